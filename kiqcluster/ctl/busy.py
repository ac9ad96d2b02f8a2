"""busy: the jobs that run, as the latest heartbeats tell."""

from __future__ import annotations

import click

from kiqcluster.api.processes import Work, WorkSet
from kiqcluster.clock import SystemClock
from kiqcluster.ctl.options import SETTINGS, Output, json_option, redis_options
from kiqcluster.ctl.picture import job_as_json
from kiqcluster.ctl.tables import counted, duration, left, right
from kiqcluster.ctl.views import arguments
from kiqcluster.errors import ExitCode
from kiqcluster.store import Store

__all__ = ["busy"]

COLUMNS = (
    left("PROCESS", 16),
    left("TID"),
    right("SINCE"),
    left("QUEUE", 8),
    left("CLASS", 12),
    left("JID"),
    left("ARGS", 8),
)


@click.command(context_settings=SETTINGS)
@click.option("--queue", metavar="NAME", help="jobs of this queue only")
@click.option("--class", "name", metavar="NAME", help="jobs of this class only")
@redis_options
@json_option
@click.pass_context
def busy(ctx: click.Context, store: Store, output: Output, queue: str | None, name: str | None) -> None:
    """Show the jobs that run: where, since when, their arguments.  Those of Ruby's processes, too.

    Processes tell with their heartbeats, every ten seconds; shorter jobs mostly do not show.  Two round trips, one more
    per 500 processes.

    \b
      kiqctl busy
      kiqctl busy --queue mailers --class SendInvoice
      kiqctl busy --json
    """
    now = SystemClock.now()
    found = [each for each in WorkSet(store=store) if _is_meant(each, queue, name)]
    if found:
        processes = len({each.identity for each in found})
        output.table(COLUMNS, [_row(each, now) for each in found], indent=0)
        output.say(f"{counted(len(found), 'job')} in {counted(processes, 'process', 'processes')}")
    else:
        output.say("nothing runs" if queue is None and name is None else "nothing of that kind runs")
    output.document({"busy": len(found), "jobs": [_as_json(each, now) for each in found]})
    ctx.exit(ExitCode.STOPPED)


def _is_meant(work: Work, queue: str | None, name: str | None) -> bool:
    return queue in (None, work.queue) and name in (None, work.job.name, work.job.display_class)


def _row(work: Work, now: float) -> tuple[str, ...]:
    job = work.job
    place = (work.identity, work.tid, duration(now - work.run_at), work.queue)
    return (*place, job.display_class, job.jid, arguments(job))


def _as_json(work: Work, now: float) -> dict[str, object]:
    place = {"identity": work.identity, "tid": work.tid, "run_at": work.run_at, "seconds": max(0.0, now - work.run_at)}
    return {**place, **job_as_json(work.job), "queue": work.queue}
