"""Routed migration: `migrate --routing`, jobs that wait elsewhere than their class is routed now.

Each place is looked through once: sets first, since what falls due meanwhile is found in its queue afterwards, then
lines of parked jobs, then all queues that there are by then.  A job whose class has another shard now goes there
(store/shard_moves.py).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from kiqcluster.api import (
    DeadSet,
    JobRecord,
    JobSet,
    ParkedJobs,
    Queue,
    RetrySet,
    ScheduledSet,
    concurrency_limits,
)
from kiqcluster.api._pages import batches
from kiqcluster.client.reenqueue import DEFAULT_QUEUE
from kiqcluster.ctl.jobs.bulk import BulkResult, BulkTask, count_selected, report, run_task
from kiqcluster.ctl.text.application import load_routes
from kiqcluster.ctl.text.options import Output, confirm
from kiqcluster.ctl.text.tables import clean, format_number, number_column, pluralize, text_column
from kiqcluster.errors import ExitCode, RedisRefused, StoreError, UsageError
from kiqcluster.process.runtime import current_setup
from kiqcluster.sidekiq.payload import batch_of
from kiqcluster.store import Store
from kiqcluster.store.shard_moves import ShardMove, staged_counts
from kiqcluster.store.shards import address_of, shard_name

__all__ = ["SETS", "RoutedJobs", "RoutedMigration", "migrate_routed"]

SETS: dict[str, type[JobSet]] = {"schedule": ScheduledSet, "retry": RetrySet, "dead": DeadSet}
ON_THE_WAY = "on the way"  # to another shard, since a run that was ended early
ROUTED_COLUMNS = (text_column("PLACE", 12), text_column("TO", 8), number_column("JOBS"))


@dataclass(frozen=True, slots=True)
class Target:
    """Where a class is routed.  shard: "" for the default one."""

    queue: str
    shard: str


@dataclass(frozen=True, slots=True)
class RoutedJobs:
    """Which jobs of a shard wait elsewhere than their class is routed.

    name, source: only those of this class, and of this queue; None for any.  shard: in which they wait.
    """

    name: str | None
    source: str | None
    shard: str
    target_by_class: Mapping[str, Target]

    @classmethod
    def of(cls, name: str | None, source: str | None, require: Sequence[str], store: Store) -> RoutedJobs:
        """Import the application for the routes of its classes.  Raises UsageError, ApplicationError."""
        _, routes = load_routes(require)
        if name is not None and name not in {each.name for each in routes}:
            raise UsageError(f"the application defines no class {clean(name)}, so no rule routes it; move it with --to")
        return cls(name, source, shard_name(store.name), {each.name: Target(each.queue, each.shard) for each in routes})

    def target_of(self, job: JobRecord) -> Target | None:
        """Return where a job is to go; None for one that stays.

        That are also jobs of unknown classes, and the retry of a `retry_queue`.
        """
        queue = job.queue or DEFAULT_QUEUE
        is_meant = self.name is None or self.name in (job.name, job.display_class)
        if not is_meant or self.source not in (None, queue):
            return None
        if job["retry_queue"] == job.queue and job.retry_count is not None:
            return None
        target = self.target_by_class.get(job.name) or self.target_by_class.get(job.display_class)
        return None if target == Target(queue, self.shard) else target


class Place(Protocol):
    """A set, a queue, or a line of parked jobs."""

    def move(self, jobs: Iterable[Any], to: str) -> int: ...

    def stage(self, jobs: Iterable[Any], to: str, move: ShardMove) -> int: ...


class RoutedMigration:
    """Moves jobs to where they are routed, place by place; each place is looked through once.

    moved: how many, by the name of the place and the target.  left: how many were not, since their batch is here.
    """

    def __init__(self, store: Store, jobs: RoutedJobs, places: Sequence[str]) -> None:
        self.moved: Counter[tuple[str, Target]] = Counter()
        self.left = 0
        self._store = store
        self._jobs = jobs
        self._places = places
        self._move_by_shard: dict[str, ShardMove] = {}

    def tasks(self) -> Iterator[tuple[str, BulkTask[Any]]]:
        """Yield the name of each place, and what is done there.  Queues come last, when sets have fed them."""
        for place in self._places:
            if place in SETS:
                job_set = SETS[place](store=self._store)
                yield self._task(place, job_set, len(job_set), partial(iter, job_set))
            elif place == "parked":
                for name in sorted({each.name for each in concurrency_limits(store=self._store) if each.parked}):
                    line = ParkedJobs(name, store=self._store)
                    yield self._task(f"parked {name}", line, len(line), partial(iter, line))
            else:
                source = self._jobs.source
                queues = Queue.all(store=self._store) if source is None else [Queue(source, store=self._store)]
                for queue in queues:
                    yield self._task(f"queue {queue.name}", queue, len(queue), partial(reversed, queue))

    def count(self, output: Output) -> Counter[tuple[str, Target]]:
        """Return how many jobs would move."""
        self.left = 0
        found: Counter[tuple[str, Target]] = Counter()
        for shard, count in staged_counts(self._store).items():
            found[ON_THE_WAY, Target("", shard_name(shard))] = count
        for place, task in self.tasks():
            count_selected(output, dataclasses.replace(task, is_selected=partial(self._is_counted, found, place)))
        return found

    def finish_earlier(self) -> int:
        """Deliver the jobs that a run which was ended early has left on the way; return how many."""
        done = 0
        for shard in staged_counts(self._store):
            count = self._move_to(shard_name(shard)).deliver()
            self.moved[ON_THE_WAY, Target("", shard_name(shard))] += count
            done += count
        return done

    def _task(
        self, place: str, where: Place, total: int, records: Callable[[], Iterable[Any]]
    ) -> tuple[str, BulkTask[Any]]:
        act = partial(self._act, place, where)
        return place, BulkTask(f"moving in {clean(place)}", records, total, self._is_selected, act)

    def _is_selected(self, job: JobRecord) -> bool:
        """Return whether a job is to go; bytes that are no JSON object name no class."""
        return self._target_of(job) is not None

    def _target_of(self, job: JobRecord) -> Target | None:
        """Return where a job is to go.  Of a batch, none goes to another shard: the batch could not hear of its end."""
        target = self._jobs.target_of(job)
        if target is None or target.shard == self._jobs.shard or batch_of(job.payload) is None:
            return target
        self.left += 1
        return None

    def _is_counted(self, found: Counter[tuple[str, Target]], place: str, job: JobRecord) -> bool:
        if (target := self._target_of(job)) is not None:
            found[place, target] += 1
        return target is not None

    def _act(self, place: str, where: Place, jobs: Iterable[JobRecord]) -> int:
        """Move jobs batch by batch; return how many were still there.  Raises what Redis refuses at the end."""
        done, left, refusal = 0, 0, None
        try:
            for several in batches(jobs):
                for target, group in _by_target(several, self._jobs.target_of).items():
                    try:
                        count = self._move(where, group, target)
                    except RedisRefused as error:
                        if not error.left:
                            raise
                        count, left, refusal = error.moved, left + error.left, refusal or error
                    self.moved[place, target] += count
                    done += count
        except StoreError as error:
            error.moved += done
            raise
        if refusal is not None:
            refusal.moved, refusal.left = done, left
            raise refusal
        return done

    def _move(self, where: Place, jobs: Sequence[JobRecord], target: Target) -> int:
        if target.shard == self._jobs.shard:
            return where.move(jobs, target.queue)
        move = self._move_to(target.shard)
        move.check()
        count = where.stage(jobs, target.queue, move)
        try:
            move.deliver()
        except StoreError as error:
            error.unknown = count
            raise
        return count

    def _move_to(self, shard: str) -> ShardMove:
        if shard not in self._move_by_shard:
            config = current_setup().current_config()
            target = Store(address_of(shard, config.shards), name=shard) if shard else Store(config.known_redis())
            self._move_by_shard[shard] = ShardMove(self._store, target)
        return self._move_by_shard[shard]


def _by_target(
    jobs: Iterable[JobRecord], target_of: Callable[[JobRecord], Target | None]
) -> dict[Target, list[JobRecord]]:
    """Return the jobs of a batch by where they go, in their order."""
    found: dict[Target, list[JobRecord]] = {}
    for job in jobs:
        if (target := target_of(job)) is not None:
            found.setdefault(target, []).append(job)
    return found


def migrate_routed(migration: RoutedMigration, output: Output, *, dry_run: bool, yes: bool) -> int:
    """Count, and after a confirmation move, what waits elsewhere than its class is routed; return the exit code."""
    if dry_run or not yes:
        found = migration.count(output)
        total = found.total()
        if dry_run:
            rows = [(place, _in_words(to), format_number(count)) for (place, to), count in found.items()]
            output.table(ROUTED_COLUMNS, rows, indent=0)
            output.info(f"would move {pluralize(total, 'job')} to where their classes are routed")
            _said_of_left(output, migration.left)
            output.document({"action": "migrate", "dry_run": True, "found": total, "moves": _as_json(found)})
            return ExitCode.STOPPED
        if total:
            confirm(output, f"move {pluralize(total, 'job')} to where their classes are routed", yes=False)
    migration.left = 0
    whole = BulkResult()
    whole.found = whole.done = migration.finish_earlier()
    for _, task in migration.tasks():
        whole.add(run_task(output, task))
        if whole.has_ended_early:
            break
    for (place, to), count in migration.moved.items():
        if count:
            output.info(f"{clean(place)} to {_in_words(to)}: {format_number(count)}")
    document = {"action": "migrate", "dry_run": False, "moves": _as_json(migration.moved)}
    problem = _said_of_left(output, migration.left)
    return report(output, whole, "moved", ("job", "jobs"), document, problem=problem)


def _said_of_left(output: Output, count: int) -> str:
    """Report the jobs that stay because of their batch; return the words, "" for none."""
    if not count:
        return ""
    words = (
        f"{pluralize(count, 'job of a batch was', 'jobs of batches were')} left: their class has another shard, but a "
        "batch and its jobs are in one; let a worker of this shard run their queues until the batches have ended"
    )
    output.error(words)
    return words


def _in_words(to: Target) -> str:
    return clean(" in ".join(filter(None, (to.queue, to.shard))))


def _as_json(moved: Mapping[tuple[str, Target], int]) -> list[dict[str, Any]]:
    """Return a row for each place and target; `shard` only where that is another one."""
    return [
        {"place": place, "to": to.queue, **({"shard": to.shard} if to.shard else {}), "jobs": count}
        for (place, to), count in moved.items()
        if count
    ]
