"""migrate: jobs of a class, or all of a queue, to another queue, or each to where it is routed, wherever they wait.

1. schedule, retry, dead   entries get the other queue's name, and keep their time
2. parked                  the same, and they keep their place in line
3. queues                  jobs go to the back of the other queue, the oldest first, so that their order stays
The sets come first: what falls due meanwhile is found in its queue afterwards.  A batch is one script: each job is in
one place at any moment, and a tool that is killed in the middle has moved some, and can be run again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import click

from kiqcluster.api import (
    JobRecord,
    JobSet,
    ParkedJob,
    ParkedJobs,
    Queue,
    SortedEntry,
    concurrency_limits,
)
from kiqcluster.client.reenqueue import DEFAULT_QUEUE
from kiqcluster.control.process_registry import list_processes
from kiqcluster.ctl.jobs.bulk import BulkResult, BulkTask, count_selected, report, run_task
from kiqcluster.ctl.jobs.locate import check_queues
from kiqcluster.ctl.jobs.routed_migration import SETS, RoutedJobs, RoutedMigration, migrate_routed
from kiqcluster.ctl.text.application import routing_options
from kiqcluster.ctl.text.completion import complete_classes, complete_queues
from kiqcluster.ctl.text.options import CONTEXT_SETTINGS, Output, confirm, json_option, yes_option
from kiqcluster.ctl.text.tables import clean, format_number, number_column, pluralize, text_column
from kiqcluster.errors import ExitCode, InvalidPush, UsageError
from kiqcluster.sidekiq.payload import check_queue_name
from kiqcluster.store import Store

__all__ = ["migrate"]

PLACES = (*SETS, "parked", "queues")
DEFAULT_PLACES = ("schedule", "retry", "queues")
ROUTED_PLACES = ("schedule", "retry", "parked", "queues")  # where jobs are routed again
COLUMNS = (text_column("PLACE", 12), number_column("JOBS"))


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """name: of a class, None for whatever there is.  source: the queue that they leave, None for any other."""

    name: str | None
    source: str | None
    to: str

    @classmethod
    def of(cls, name: str | None, source: str | None, to: str) -> MigrationPlan:
        """Check the options.  Raises UsageError."""
        if name is None and source is None:
            raise UsageError("migrate what?  Name a --class, or the queue --from which all go, or both")
        try:
            plan = cls(name, source, check_queue_name(to))
        except InvalidPush as error:
            raise UsageError(str(error)) from error
        if source == to:
            raise UsageError(f"the jobs are in {to} already; name another queue to move them to")
        return plan

    def is_selected(self, job: JobRecord) -> bool:
        queue = job.queue or DEFAULT_QUEUE
        return (
            queue != self.to
            and (self.source is None or queue == self.source)
            and (self.name is None or self.name in (job.name, job.display_class))
        )

    def in_words(self) -> str:
        """Return what it is about, in one line."""
        what = "all" if self.name is None else clean(self.name)
        where = "" if self.source is None else f" from {clean(self.source)}"
        return f"{what}{where} to {clean(self.to)}"


class PlaceNames(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions only
    """Names of PLACES, separated by commas."""

    name = "places"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        names = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
        for name in names:
            if name not in PLACES:
                self.fail(f"{name!r} is not a place where jobs wait; there are {', '.join(PLACES)}", param, ctx)
        return [place for place in PLACES if place in names]


@click.command(context_settings=CONTEXT_SETTINGS)
@click.option(
    "--class",
    "name",
    metavar="NAME",
    shell_complete=complete_classes,
    help="jobs of this class, ActiveJob's inner one as well",
)
@click.option("--from", "source", metavar="QUEUE", shell_complete=complete_queues, help="jobs of this queue  [any]")
@click.option("--to", metavar="QUEUE", shell_complete=complete_queues, help="the queue that they get")
@click.option("--routing", "is_routing", is_flag=True, help="each to the queue to which its class is routed (see -r)")
@click.option(
    "--in",
    "places",
    type=PlaceNames(),
    metavar="PLACES",
    help=f"where they wait  [{','.join(DEFAULT_PLACES)}; with --routing also parked]",
)
@click.option("--dead", "with_dead", is_flag=True, help="those in the dead set as well")
@click.option("--dry-run", is_flag=True, help="say how many there are in each place, and change nothing")
@yes_option
@routing_options
@json_option
@click.pass_context
def migrate(
    ctx: click.Context,
    store: Store,
    output: Output,
    require: tuple[str, ...],
    name: str | None,
    source: str | None,
    to: str | None,
    is_routing: bool,
    places: list[str] | None,
    with_dead: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Move jobs of a class, or of a queue, to another queue.

    With --routing, each goes to the queue to which its class is routed now, also in another shard: it leaves this one,
    is confirmed by the other one, and is never in both.  If this is killed in between, do it again.

    They are moved wherever they wait.  In queues they go to the back of the other one, in their order.  In the sets
    they keep their time, and parked jobs their place.  Jobs that run are not touched, and what is enqueued meanwhile
    may stay: change who enqueues them first, and do it again.

    Each job is in one place at any moment, also if this is killed in the middle.  Two round trips per 500 jobs.

    \b
      kiqctl migrate --class SendInvoice --from default --to mailers --dry-run
      kiqctl migrate --class SendInvoice --from default --to mailers --yes
      kiqctl migrate --from low --to default --in queues --yes --json
      kiqctl migrate --class Reports::Yearly --to reports --dead --yes
      kiqctl migrate --routing -r app.jobs --dry-run
    """
    if is_routing == (to is not None):
        raise UsageError("migrate where to?  Name the queue with --to, or let --routing decide for each class")
    chosen = _chosen_places(places or (ROUTED_PLACES if is_routing else DEFAULT_PLACES), with_dead)
    if to is None:
        routed = RoutedMigration(store, RoutedJobs.of(name, source, require, store), chosen)
        ctx.exit(migrate_routed(routed, output, dry_run=dry_run, yes=yes))
    migration = Migration(store, MigrationPlan.of(name, source, to), chosen)
    if dry_run or not yes:
        total = _count(migration, output, is_shown=dry_run)
        if dry_run:
            ctx.exit(ExitCode.STOPPED)
        if total:
            what = f"move {pluralize(total, 'job')}: {migration.plan.in_words()}"
            confirm(output, "; ".join(filter(None, (what, migration.warning()))), yes=False)
    ctx.exit(_move(migration, output))


def _chosen_places(names: Collection[str], with_dead: bool) -> list[str]:
    """Return the places of these names in the order in which they are searched."""
    return [place for place in PLACES if place in names or (with_dead and place == "dead")]


class Migration:
    """The tasks that make up a plan, one for each place."""

    def __init__(self, store: Store, plan: MigrationPlan, places: Sequence[str]) -> None:
        self.store = store
        self.plan = plan
        self._places = places

    def tasks(self) -> Iterator[tuple[str, BulkTask[Any]]]:
        """Yield the name of each place, and what is done there."""
        for place in self._places:
            if place in SETS:
                yield place, self._task_of_set(place, SETS[place](store=self.store))
            elif place == "parked":
                yield from self._tasks_of_lines()
            else:
                yield from self._tasks_of_queues()

    def check(self) -> None:
        """Raise NotFound where nothing was found because the queue's name is wrong."""
        if self.plan.source is not None:
            check_queues(self.store, [self.plan.source])

    def warning(self) -> str:
        """Return what may keep the jobs from being run there.  Two round trips."""
        if any(process.may_listen_to(self.plan.to) for process in list_processes(self.store)):
            return ""
        return f"no process listens to the queue {clean(self.plan.to)}; the jobs wait until one does"

    def parked_left(self) -> int:
        """Return how many parked jobs are meant that stay, where nobody has chosen places.  Looks at all of them."""
        if "parked" in self._places or not set(DEFAULT_PLACES) <= set(self._places):
            return 0
        return sum(sum(map(task.is_selected, task.records())) for _, task in self._tasks_of_lines())

    def _task_of_set(self, place: str, job_set: JobSet) -> BulkTask[SortedEntry]:
        move = partial(job_set.move, to=self.plan.to)
        return BulkTask(f"moving in {place}", lambda: job_set, len(job_set), self._is_movable, move)

    def _tasks_of_lines(self) -> Iterator[tuple[str, BulkTask[ParkedJob]]]:
        names = {each.name for each in concurrency_limits(store=self.store) if each.parked}
        for name in sorted(names):
            line = ParkedJobs(name, store=self.store)
            move = partial(line.move, to=self.plan.to)
            label = f"moving parked {clean(name)}"
            yield f"parked {name}", BulkTask(label, partial(iter, line), len(line), self.plan.is_selected, move)

    def _is_movable(self, entry: SortedEntry) -> bool:
        """Return whether an entry is meant; bytes that are no JSON object can name no queue."""
        return bool(entry.payload) and self.plan.is_selected(entry)

    def _tasks_of_queues(self) -> Iterator[tuple[str, BulkTask[JobRecord]]]:
        source = self.plan.source
        queues = Queue.all(store=self.store) if source is None else [Queue(source, store=self.store)]
        for queue in queues:
            if queue.name != self.plan.to:
                move = partial(queue.move, to=self.plan.to)
                task = BulkTask(
                    f"moving from {clean(queue.name)}",
                    partial(reversed, queue),
                    len(queue),
                    self.plan.is_selected,
                    move,
                    is_all=self.plan.name is None,
                )
                yield f"queue {queue.name}", task

    def document(self) -> dict[str, Any]:
        return {"action": "migrate", "class": self.plan.name, "from": self.plan.source, "to": self.plan.to}


def _count(migration: Migration, output: Output, *, is_shown: bool) -> int:
    """Return how many jobs are meant; with is_shown, show how many in each place."""
    counts = {place: count_selected(output, task) for place, task in migration.tasks()}
    total = sum(counts.values())
    if not total:
        migration.check()
    if is_shown:
        output.table(COLUMNS, [(place, format_number(each)) for place, each in counts.items()], indent=0)
        output.info(f"would move {pluralize(total, 'job')}: {migration.plan.in_words()}")
        warning = migration.warning() if total else ""
        if warning:
            output.error(warning)
        parked = _tell_of_parked(migration, output)
        document = {**migration.document(), "dry_run": True, "warning": warning or None, "parked_left": parked}
        output.document({**document, "found": total, "places": counts})
    return total


def _tell_of_parked(migration: Migration, output: Output) -> int:
    """Say how many parked jobs stay, and will go to their old queue in their turn; return how many."""
    parked = migration.parked_left()
    if parked:
        which = pluralize(parked, "parked job that is meant stays", "parked jobs that are meant stay")
        output.error(f"{which}, for a turn in the old queue; to move them: --in parked")
    return parked


def _move(migration: Migration, output: Output) -> int:
    """Move them; return the exit code."""
    whole, places = BulkResult(), dict[str, int]()
    for place, task in migration.tasks():
        result = run_task(output, task)
        places[place] = result.done
        if result.done:
            output.info(f"{clean(place)}: {format_number(result.done)}")
        whole.add(result)
        if whole.has_ended_early:
            break
    if not whole.found and not whole.has_ended_early:
        migration.check()
    warning = migration.warning() if whole.done and not whole.has_ended_early else ""
    if warning:
        output.error(warning)
    parked = 0 if whole.has_ended_early else _tell_of_parked(migration, output)
    document = {**migration.document(), "dry_run": False, "warning": warning or None, "places": places}
    document["parked_left"] = parked
    return report(output, whole, "moved", ("job", "jobs"), document)
