"""quiet, resume, roll, reload, kill: orders to clusters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from threading import Event
from types import MappingProxyType

import click

from kiqcluster.api.processes import WorkSet
from kiqcluster.control.cluster_document import ClusterStatus
from kiqcluster.control.control_messages import Message, new_message
from kiqcluster.control.redis_transport import RedisTransport
from kiqcluster.control.socket_transport import SocketTransport
from kiqcluster.control.transports import Answer, Transport
from kiqcluster.control.waiting import Problems, Waiter
from kiqcluster.ctl.fleet.ps import summary_of
from kiqcluster.ctl.jobs.locate import resolve_jid
from kiqcluster.ctl.text.options import (
    CONTEXT_SETTINGS,
    DURATION,
    Output,
    check_timeout,
    identity_option,
    json_option,
    timeout_option,
    transport_options,
)
from kiqcluster.errors import ExitCode
from kiqcluster.process.clock import SystemClock

__all__ = ["accepted", "kill", "quiet", "reload", "report", "resume", "roll", "roll_and_report"]

BETWEEN_RUNS_SECONDS = 3.0  # for which a job that is to be killed may run nowhere: its process has just died
RETRY_SECONDS = 0.3  # until a supervisor is asked again whether it runs the job


def report(
    output: Output,
    order: Message,
    answers: Sequence[Answer],
    problems: Problems,
    statuses: Mapping[str, ClusterStatus],
    words: str = "",
    more: Mapping[str, object] = MappingProxyType({}),
) -> int:
    """Print how it went; return the exit code.  words: what else there is to say of those that have done it.

    more: for the document.
    """
    errors = {**{each.name: each.error for each in answers if each.error}, **problems}
    for name, error in sorted(errors.items()):
        first, *others = error.strip().splitlines() or [""]
        for line in (f"{name}: {first}", *(f"  {each}" for each in others)):  # of a roll, a traceback may follow
            output.error(line)
    clusters = []
    for each in answers:
        status = statuses.get(each.name)
        if each.name not in errors:
            output.info(f"{each.name}: {summary_of(status) if status is not None else 'has ended'}{words}")
        shown = status.as_json() if status is not None else {"name": each.name}
        clusters.append({**shown, "error": errors.get(each.name)})
    output.document({"action": order.action, "id": order.id, "ok": not errors, **more, "clusters": clusters})
    return ExitCode.UNEXPECTED if errors else ExitCode.STOPPED


def accepted(answers: Sequence[Answer]) -> list[str]:
    """Return the names of those that accepted the order."""
    return [each.name for each in answers if each.error is None]


def roll_and_report(transport: Transport, output: Output, order: Message, *, wait: bool, timeout: float | None) -> int:
    """Have clusters replace their workers; with wait, until that has ended.  Returns the exit code."""
    answers = transport.send(order)
    problems = Waiter().until_rolled(transport, accepted(answers), order.id, timeout, output.info) if wait else {}
    return report(output, order, answers, problems, transport.statuses(), ", rolled" if wait else "")


@click.command(context_settings=CONTEXT_SETTINGS)
@click.option(
    "--lease", type=DURATION, help="after which it ends by itself; 0 = never  [the supervisor's quiet_lease, 1h]"
)
@click.option("--wait", is_flag=True, help="until nothing runs any more, showing how many jobs still do")
@timeout_option("how long to wait at most  [as long as it takes]")
@identity_option
@transport_options
@json_option
@click.pass_context
def quiet(
    ctx: click.Context, transport: Transport, output: Output, lease: float | None, wait: bool, timeout: float | None
) -> None:
    """Fetch nothing more, until `resume` or the end of a lease.

    Jobs that run go on, and due ones still move to their queues.  It is the cluster that is quiet: a worker that is
    replaced meanwhile boots quiet.  It ends by `kiqctl resume`, or by itself with its lease.

    \b
      kiqctl quiet --lease 15m --wait
      kiqctl quiet --host app-1 --json
      kiqctl quiet --socket /run/kiqcluster.sock      while Redis is away
    """
    check_timeout(timeout, wait=wait, lease=lease)
    order = new_message("quiet", lease)
    answers = transport.send(order)
    problems = Waiter().until_drained(transport, accepted(answers), timeout, output.info) if wait else {}
    ctx.exit(report(output, order, answers, problems, transport.statuses()))


@click.command(context_settings=CONTEXT_SETTINGS)
@identity_option
@transport_options
@json_option
@click.pass_context
def resume(ctx: click.Context, transport: Transport, output: Output) -> None:
    """Fetch again, regardless of who made it quiet.

    \b
      kiqctl resume
      kiqctl resume --host app-1
    """
    order = new_message("resume")
    answers = transport.send(order)
    ctx.exit(report(output, order, answers, {}, transport.statuses()))


@click.command(context_settings=CONTEXT_SETTINGS)
@click.option("--wait", is_flag=True, help="until every worker is replaced; exit code 1 if one could not be")
@timeout_option("how long to wait at most  [as long as it takes]")
@transport_options
@json_option
@click.pass_context
def roll(ctx: click.Context, transport: Transport, output: Output, wait: bool, timeout: float | None) -> None:
    """Replace every worker process by one with the newest code.

    It goes from slot to slot.  Each is replaced once its successor is ready.  If that does not boot, the old one stays,
    and the roll ends there.

    \b
      kiqctl roll --wait
      kiqctl roll --wait --timeout 10m --host app-1
    """
    check_timeout(timeout, wait=wait)
    ctx.exit(roll_and_report(transport, output, new_message("roll"), wait=wait, timeout=timeout))


@click.command(context_settings=CONTEXT_SETTINGS)
@click.option("--wait", is_flag=True, help="until it is in force; exit code 1 if it could not be")
@timeout_option("how long to wait at most  [as long as it takes]")
@transport_options
@json_option
@click.pass_context
def reload(ctx: click.Context, transport: Transport, output: Output, wait: bool, timeout: float | None) -> None:
    """Reload configuration and queue groups.

    Workers whose group has not changed keep running.  A file that cannot be read is an error at once.  Whether the
    application can be imported, and has queues to listen to, shows later; --wait waits for that.

    \b
      kiqctl reload --wait
      kiqctl reload --wait --timeout 2m --host app-1
    """
    check_timeout(timeout, wait=wait)
    order = new_message("reload")
    answers = transport.send(order)
    problems = Waiter().until_reloaded(transport, accepted(answers), order.id, timeout, output.info) if wait else {}
    ctx.exit(report(output, order, answers, problems, transport.statuses(), ", reloaded" if wait else ""))


@click.command(context_settings=CONTEXT_SETTINGS)
@click.argument("jid")
@transport_options
@json_option
@click.pass_context
def kill(ctx: click.Context, jid: str, transport: RedisTransport | SocketTransport, output: Output) -> None:
    """End a job that hangs, by its worker process.

    JID is the id of a running job (`kiqctl busy`), or an unambiguous prefix of it.  Its process is killed and replaced.
    Jobs that ran beside it run again, and the death does not count against them.  It counts against this job, which
    goes to the dead set after max_retries_after_interruption such deaths.  If it runs nowhere, the command looks for it
    again for three seconds: its process may just have died.

    \b
      kiqctl kill 6f1d22b3a9c04e7f8a51d0c2
      kiqctl kill 6f1d22b3a9c04e7f8a51d0c2 --socket /run/kiqcluster.sock      where its process has only one worker
    """
    clock = SystemClock()
    until, done = clock.monotonic() + BETWEEN_RUNS_SECONDS, list[Answer]()
    while not done:
        order = replace(new_message("kill"), jid=resolve_jid(jid, _running_jids(transport)))
        answers = transport.send(order)
        done = [each for each in answers if each.error is None]  # the others do not run it
        if clock.monotonic() > until:
            break
        if not done:
            Event().wait(RETRY_SECONDS)
    ctx.exit(report(output, order, done or answers, {}, transport.statuses(), f", a worker is killed for {order.jid}"))


def _running_jids(transport: RedisTransport | SocketTransport) -> list[str]:
    """Return the ids of the jobs that run, by Redis at the latest heartbeats.  Raises NoSuchProcess, KiqError."""
    if isinstance(transport, SocketTransport):
        return [each.jid for each in transport.running()]
    return [work.job.jid for store in transport.stores for work in WorkSet(store=store)]
