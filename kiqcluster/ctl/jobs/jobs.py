"""jobs: what waits in one queue, looked at, counted, deleted."""

from __future__ import annotations

from collections.abc import Iterable

import click

from kiqcluster.api import JobRecord, Queue
from kiqcluster.api.dashboard import job_as_json
from kiqcluster.clock import SystemClock
from kiqcluster.ctl.jobs.bulk import Task, carry_out, count, report
from kiqcluster.ctl.jobs.locate import NotThere, check_queues, whereabouts
from kiqcluster.ctl.jobs.pager import Page, page_options
from kiqcluster.ctl.jobs.selection import Selection, job_filters
from kiqcluster.ctl.text.completion import complete_queues
from kiqcluster.ctl.text.options import SETTINGS, Output, confirm, json_option, redis_options, yes_option
from kiqcluster.ctl.text.rows import SHORT_JID, arguments, details
from kiqcluster.ctl.text.tables import ago, clean, counted, left, number, right
from kiqcluster.errors import ExitCode, UsageError
from kiqcluster.store import Store

__all__ = ["jobs"]

COLUMNS = (right("ENQUEUED"), left("CLASS", 12), left("JID", SHORT_JID, is_first=True), left("ARGS", 8))


@click.command(context_settings=SETTINGS)
@click.argument("queue", shell_complete=complete_queues)
@click.option("--oldest", "is_oldest_first", is_flag=True, help="the next to be fetched first, instead of the latest")
@job_filters
@page_options
@click.option("--count", "is_count", is_flag=True, help="say how many there are, and no more")
@click.option("--delete", "is_delete", is_flag=True, help="delete those that the filters select")
@yes_option
@redis_options
@json_option
@click.pass_context
def jobs(
    ctx: click.Context,
    store: Store,
    output: Output,
    queue: str,
    selection: Selection,
    page: Page,
    is_oldest_first: bool,
    is_count: bool,
    is_delete: bool,
    yes: bool,
) -> None:
    """Show the jobs of a queue, count them, or delete some.

    One round trip a page, or per 500 jobs where a filter has to look at them.  With --delete it says how many these
    are, and asks; for all of a queue, see `kiqctl queues clear`.

    \b
      kiqctl jobs default
      kiqctl jobs default --oldest --limit 100 --json
      kiqctl jobs default --class SendInvoice --args-contain EUR --count
      kiqctl jobs default --jid b4a577edbccf1d805744efa9
      kiqctl jobs default --class SendInvoice --delete --yes
    """
    check_queues(store, [queue])
    if is_count and is_delete:
        raise UsageError("--delete says the count as well; leave --count out")
    if is_delete and not selection.is_narrow:
        raise UsageError(f"delete which?  Add a filter; all of them: kiqctl queues clear {queue}")
    look = Look(store, queue, selection, is_oldest_first=is_oldest_first)
    if is_delete:
        ctx.exit(_delete(look, output, yes=yes))
    elif is_count:
        total = count(output, look.task()) if selection.is_narrow else len(look.queue)
        output.say(number(total))
        output.document({"queue": queue, "count": total})
    elif look.named is not None:
        _show(look, output, look.named)
    else:
        _list(look, page, output)
    ctx.exit(ExitCode.STOPPED)


class Look:
    """The jobs of a queue that are meant, in the order that is wanted."""

    def __init__(self, store: Store, name: str, selection: Selection, *, is_oldest_first: bool) -> None:
        self.store = store
        self.queue = Queue(name, store=store)
        self.selection = selection
        self.now = SystemClock.now()
        self._is_oldest_first = is_oldest_first

    @property
    def named(self) -> str | None:
        """The id of the one job that is meant, None where a filter says which."""
        jid = self.selection.jid
        return jid if self.selection == Selection(jid=jid) else None

    def task(self) -> Task[JobRecord]:
        """Return how those that are meant are deleted."""
        return Task("deleting", self._walk, len(self.queue), self._is_meant, self.queue.delete_all)

    def page(self, page: Page, size: int) -> list[JobRecord]:
        """Return a page of those that are meant.  size: of the queue."""
        if self.selection.is_narrow:
            return page.of(filter(self._is_meant, self._walk()))
        if self._is_oldest_first:
            return page.of_reversed(size, self.queue.page)
        return self.queue.page(page.start, page.size)

    def _walk(self) -> Iterable[JobRecord]:
        return reversed(self.queue) if self._is_oldest_first else self.queue

    def _is_meant(self, job: JobRecord) -> bool:
        return self.selection.matches(job, self.now)


def _list(look: Look, page: Page, output: Output) -> None:
    size = len(look.queue)
    shown = look.page(page, size)
    if shown:
        rows = [(ago(each.enqueued_at, look.now), each.display_class, each.jid, arguments(each)) for each in shown]
        output.table(COLUMNS, rows, indent=0)
    many = f"jobs of {clean(look.queue.name)}"
    output.say(
        page.in_words(len(shown), many.replace("jobs", "job", 1), many, size, is_narrow=look.selection.is_narrow)
    )
    rows_of_document = [{**job_as_json(each), "enqueued_at": each.enqueued_at, "tags": each.tags} for each in shown]
    output.document({"queue": look.queue.name, "size": size, "page": page.number, "jobs": rows_of_document})


def _show(look: Look, output: Output, jid: str) -> None:
    job = look.queue.find_job(jid)
    if job is None:
        raise NotThere(_not_there(look, jid))
    output.print(map(clean, details(job) or ()))
    output.document({**job_as_json(job), "enqueued_at": job.enqueued_at, "tags": job.tags, "payload": job.payload})


def _not_there(look: Look, jid: str) -> str:
    where = whereabouts(look.store, [jid]).get(jid)
    elsewhere = f"but {where}" if where else "nor anywhere else"
    return f"{clean(jid)} is not in the queue {clean(look.queue.name)}, {elsewhere}"


def _delete(look: Look, output: Output, *, yes: bool) -> int:
    task, one = look.task(), f"of the queue {clean(look.queue.name)}"
    if not yes and (total := count(output, task)):
        confirm(output, f"delete {counted(total, f'job {one}', f'jobs {one}')}", yes=False)
    outcome = carry_out(output, task)
    named, problem = look.named, ""
    if named is not None and outcome.found == 0:
        problem = _not_there(look, named)
        output.complain(problem)
    document = {"action": "delete", "queue": look.queue.name}
    return report(output, outcome, "deleted", (f"job {one}", f"jobs {one}"), document, problem=problem)
