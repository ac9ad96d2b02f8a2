"""busy: the jobs that run, as the latest heartbeats tell, or, of one supervisor, as it sees them at this moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import click

from kiqcluster.api.dashboard import job_as_json
from kiqcluster.api.processes import Work, WorkSet
from kiqcluster.control.process_registry import list_processes
from kiqcluster.control.socket_transport import RunningJob, SocketTransport
from kiqcluster.ctl.text.completion import complete_classes, complete_queues
from kiqcluster.ctl.text.options import (
    CONTEXT_SETTINGS,
    Output,
    RedisChoice,
    address_options,
    json_option,
    socket_option,
)
from kiqcluster.ctl.text.rows import BUSY_COLUMNS, arguments, progress_words
from kiqcluster.ctl.text.shards import read_shards
from kiqcluster.ctl.text.tables import ago, format_duration, pluralize
from kiqcluster.errors import ExitCode, UsageError
from kiqcluster.process.clock import SystemClock
from kiqcluster.store import Store

__all__ = ["busy"]

# The columns of the screen, but PROCESS stays wider on a narrow terminal.
COLUMNS = (replace(BUSY_COLUMNS[0], min_width=16), *BUSY_COLUMNS[1:])
COLUMNS_NOW = tuple(each for each in COLUMNS if each.title in ("PROCESS", "SINCE", "CLASS", "JID"))


@click.command(context_settings=CONTEXT_SETTINGS)
@click.option("--queue", metavar="NAME", shell_complete=complete_queues, help="jobs of this queue only")
@click.option("--class", "name", metavar="NAME", shell_complete=complete_classes, help="jobs of this class only")
@socket_option
@address_options
@json_option
@click.pass_context
def busy(
    ctx: click.Context,
    output: Output,
    queue: str | None,
    name: str | None,
    socket: str | None,
    chosen: RedisChoice,
) -> None:
    """Show the jobs that run: where, since when, their arguments.  Those of Ruby's processes and of all shards, too.

    Processes tell with their heartbeats, every ten seconds.  What is shown is as of then: SINCE counts up to that beat,
    a job may have ended since, and shorter jobs mostly do not show.  PROGRESS is what the job has said two seconds ago
    or later.  Five round trips, three more per 500 processes.
    With --socket, the supervisor on this host tells what its workers run at this moment, without queue, progress and
    arguments.

    \b
      kiqctl busy
      kiqctl busy --queue mailers --class SendInvoice
      kiqctl busy --json
      kiqctl busy --socket /run/kiqcluster.sock
    """
    if socket is None:
        if _show_beats(chosen.stores(), output, queue, name):
            ctx.exit(ExitCode.UNEXPECTED)
    elif chosen.redis or chosen.shard or queue:
        raise UsageError(
            "--socket reaches one supervisor without Redis, which knows no queues; leave --redis, --shard and --queue "
            "out"
        )
    else:
        _show_now(SocketTransport(socket), output, name)
    ctx.exit(ExitCode.STOPPED)


def _show_now(transport: SocketTransport, output: Output, name: str | None) -> None:
    """Show what the workers of one supervisor run at this moment."""
    found, now = [each for each in transport.running() if name in (None, each.name)], SystemClock.now()
    if found:
        rows = [(each.identity, format_duration(now - each.since), each.name, each.jid) for each in found]
        output.table(COLUMNS_NOW, rows, indent=0)
        output.info(_counted(len(found), len({each.identity for each in found})))
    else:
        output.info("no jobs are running" if name is None else "no running job matches")
    output.document({"busy": len(found), "jobs": [_now_as_json(each, now) for each in found]})


def _now_as_json(job: RunningJob, now: float) -> dict[str, object]:
    seconds = max(0.0, now - job.since)
    place = {"identity": job.identity, "run_at": job.since, "seconds": seconds, "age": 0.0}
    return {**place, "jid": job.jid, "class": job.name}


def _counted(jobs: int, workers: int) -> str:
    return f"{pluralize(jobs, 'job')} in {pluralize(workers, 'process', 'processes')}"


def _show_beats(stores: Sequence[Store], output: Output, queue: str | None, name: str | None) -> list[str]:
    """Show what all processes run, as of their latest beats; return the shards that are away."""
    looks, missing = read_shards(stores, output, lambda store: (list_processes(store), list(WorkSet(store=store))))
    ages = {each.identity: each.age for processes, _ in looks for each in processes}
    now = SystemClock.now()
    found = [each for _, works in looks for each in works if _is_meant(each, queue, name)]
    seen_at = {each.identity: now - ages.get(each.identity, 0.0) for each in found}
    if found:
        output.table(COLUMNS, [_row(each, seen_at[each.identity]) for each in found], indent=0)
        many = _counted(len(found), len(seen_at))
        output.info(f"{many}, as of {ago(min(seen_at.values()), now)} or later; some may have ended since")
    else:
        output.info("no jobs are running" if queue is None and name is None else "no running job matches")
    output.document({"busy": len(found), "jobs": [_as_json(each, now, seen_at[each.identity]) for each in found]})
    return missing


def _is_meant(work: Work, queue: str | None, name: str | None) -> bool:
    return queue in (None, work.queue) and name in (None, work.job.name, work.job.display_class)


def _row(work: Work, seen_at: float) -> tuple[str, ...]:
    job = work.job
    since = format_duration(seen_at - work.run_at)
    return (
        work.identity,
        work.tid,
        since,
        progress_words(work.progress),
        work.queue,
        job.display_class,
        job.jid,
        arguments(job),
    )


def _as_json(work: Work, now: float, seen_at: float) -> dict[str, object]:
    place = {"identity": work.identity, "tid": work.tid, "run_at": work.run_at}
    place |= {"seconds": max(0.0, seen_at - work.run_at), "age": now - seen_at}
    progress = None if work.progress is None else work.progress.as_json()
    return {**place, **job_as_json(work.job), "queue": work.queue, "progress": progress}
