"""jobs: what waits in one queue, looked at, counted, deleted."""

from __future__ import annotations

from collections.abc import Iterable

import click

from kiqcluster.api import JobRecord, Queue
from kiqcluster.api.dashboard import job_as_json
from kiqcluster.ctl.jobs.bulk import BulkTask, count_selected, report, run_task
from kiqcluster.ctl.jobs.locate import NotFound, check_queues, locate_jobs
from kiqcluster.ctl.jobs.selection import Selection, job_filters
from kiqcluster.ctl.text.completion import complete_queues
from kiqcluster.ctl.text.options import CONTEXT_SETTINGS, Output, confirm, json_option, redis_options, yes_option
from kiqcluster.ctl.text.pager import Page, page_options
from kiqcluster.ctl.text.rows import SHORT_JID_WIDTH, arguments, details
from kiqcluster.ctl.text.tables import ago, clean, format_number, number_column, pluralize, text_column
from kiqcluster.errors import ExitCode, UsageError
from kiqcluster.process.clock import SystemClock
from kiqcluster.store import Store

__all__ = ["jobs"]

COLUMNS = (
    number_column("ENQUEUED"),
    text_column("CLASS", 12),
    text_column("JID", SHORT_JID_WIDTH, shrinks_first=True),
    text_column("ARGS", 8),
)


@click.command(context_settings=CONTEXT_SETTINGS)
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
    if is_delete and not selection.has_filters:
        raise UsageError(f"delete which?  Add a filter; all of them: kiqctl queues clear {queue}")
    listing = QueueListing(store, queue, selection, is_oldest_first=is_oldest_first)
    if is_delete:
        ctx.exit(_delete(listing, output, yes=yes))
    elif is_count:
        total = count_selected(output, listing.task()) if selection.has_filters else len(listing.queue)
        output.info(format_number(total))
        output.document({"queue": queue, "count": total})
    elif listing.only_jid is not None:
        _show(listing, output, listing.only_jid)
    else:
        _list(listing, page, output)
    ctx.exit(ExitCode.STOPPED)


class QueueListing:
    """The jobs of a queue that are meant, in the order that is wanted."""

    def __init__(self, store: Store, name: str, selection: Selection, *, is_oldest_first: bool) -> None:
        self.store = store
        self.queue = Queue(name, store=store)
        self.selection = selection
        self.now = SystemClock.now()
        self._is_oldest_first = is_oldest_first

    @property
    def only_jid(self) -> str | None:
        """The id of the one job that is meant, None where a filter says which."""
        jid = self.selection.jid
        return jid if self.selection == Selection(jid=jid) else None

    def task(self) -> BulkTask[JobRecord]:
        """Return how those that are meant are deleted."""
        return BulkTask("deleting", self._walk, len(self.queue), self._is_selected, self.queue.delete_all)

    def page(self, page: Page, size: int) -> list[JobRecord]:
        """Return a page of those that are meant.  size: of the queue."""
        if self.selection.has_filters:
            return page.of(filter(self._is_selected, self._walk()))
        if self._is_oldest_first:
            return page.of_reversed(size, self.queue.page)
        return self.queue.page(page.start, page.size)

    def _walk(self) -> Iterable[JobRecord]:
        return reversed(self.queue) if self._is_oldest_first else self.queue

    def _is_selected(self, job: JobRecord) -> bool:
        return self.selection.matches(job, self.now)


def _list(listing: QueueListing, page: Page, output: Output) -> None:
    size = len(listing.queue)
    shown = listing.page(page, size)
    if shown:
        rows = [(ago(each.enqueued_at, listing.now), each.display_class, each.jid, arguments(each)) for each in shown]
        output.table(COLUMNS, rows, indent=0)
    many = f"jobs of {clean(listing.queue.name)}"
    output.info(
        page.in_words(len(shown), many.replace("jobs", "job", 1), many, size, has_filters=listing.selection.has_filters)
    )
    rows_of_document = [{**job_as_json(each), "enqueued_at": each.enqueued_at, "tags": each.tags} for each in shown]
    output.document({"queue": listing.queue.name, "size": size, "page": page.number, "jobs": rows_of_document})


def _show(listing: QueueListing, output: Output, jid: str) -> None:
    job = listing.queue.find_job(jid)
    if job is None:
        raise NotFound(_describe_missing(listing, jid))
    output.print(map(clean, details(job) or ()))
    output.document({**job_as_json(job), "enqueued_at": job.enqueued_at, "tags": job.tags, "payload": job.payload})


def _describe_missing(listing: QueueListing, jid: str) -> str:
    where = locate_jobs(listing.store, [jid]).get(jid)
    describe_missing = f"but {where}" if where else "nor anywhere else"
    return f"{clean(jid)} is not in the queue {clean(listing.queue.name)}, {describe_missing}"


def _delete(listing: QueueListing, output: Output, *, yes: bool) -> int:
    task, one = listing.task(), f"of the queue {clean(listing.queue.name)}"
    if not yes and (total := count_selected(output, task)):
        confirm(output, f"delete {pluralize(total, f'job {one}', f'jobs {one}')}", yes=False)
    result = run_task(output, task)
    only_jid, problem = listing.only_jid, ""
    if only_jid is not None and result.found == 0:
        problem = _describe_missing(listing, only_jid)
        output.error(problem)
    document = {"action": "delete", "queue": listing.queue.name}
    return report(output, result, "deleted", (f"job {one}", f"jobs {one}"), document, problem=problem)
