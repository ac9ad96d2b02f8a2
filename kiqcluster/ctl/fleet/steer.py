"""quiet, resume, roll, reload, kill: what whole clusters are asked to do."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import click

from kiqcluster.api.processes import WorkSet
from kiqcluster.control.cluster_document import ClusterStatus
from kiqcluster.control.control_messages import Message
from kiqcluster.control.redis_transport import RedisTransport
from kiqcluster.control.socket_transport import SocketTransport
from kiqcluster.control.transports import Answer, Transport
from kiqcluster.control.waiting import Problems, Waiter
from kiqcluster.ctl.fleet.ps import in_words
from kiqcluster.ctl.jobs.locate import in_full
from kiqcluster.ctl.text.options import (
    DURATION,
    SETTINGS,
    Output,
    identity_option,
    json_option,
    timeout_option,
    transport_options,
)
from kiqcluster.errors import ExitCode, UsageError

__all__ = ["agreed", "kill", "message", "quiet", "reload", "report", "resume", "roll", "rolling"]


def message(
    action: str, lease: float | None = None, *, name: str = "kiqctl", whom: str = "", whose: str = ""
) -> Message:
    """Return a message that can be told from any other.  name: what asks.  whom: for whom, this host if for nobody.

    whose: see Message.
    """
    by = f"{name}@{whom or socket.gethostname()}"
    return Message(action, lease=lease, by=by, id=secrets.token_hex(8), whose=whose)


def report(
    output: Output,
    what: Message,
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
            output.complain(line)
    clusters = []
    for each in answers:
        status = statuses.get(each.name)
        if each.name not in errors:
            output.say(f"{each.name}: {in_words(status) if status is not None else 'has ended'}{words}")
        shown = status.as_json() if status is not None else {"name": each.name}
        clusters.append({**shown, "error": errors.get(each.name)})
    output.document({"action": what.action, "id": what.id, "ok": not errors, **more, "clusters": clusters})
    return ExitCode.UNEXPECTED if errors else ExitCode.STOPPED


def agreed(answers: Sequence[Answer]) -> list[str]:
    """Return the names of those that do it."""
    return [each.name for each in answers if each.error is None]


def rolling(transport: Transport, output: Output, what: Message, *, wait: bool, timeout: float | None) -> int:
    """Have clusters replace their workers; with wait, until that has ended.  Returns the exit code."""
    answers = transport.send(what)
    problems = Waiter().until_rolled(transport, agreed(answers), what.id, timeout, output.say) if wait else {}
    return report(output, what, answers, problems, transport.statuses(), ", rolled" if wait else "")


@click.command(context_settings=SETTINGS)
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
    if timeout is not None and not wait:
        raise UsageError("--timeout goes with --wait")
    what = message("quiet", lease)
    answers = transport.send(what)
    problems = Waiter().until_drained(transport, agreed(answers), timeout, output.say) if wait else {}
    ctx.exit(report(output, what, answers, problems, transport.statuses()))


@click.command(context_settings=SETTINGS)
@identity_option
@transport_options
@json_option
@click.pass_context
def resume(ctx: click.Context, transport: Transport, output: Output) -> None:
    """Fetch again, whoever has made it quiet.

    \b
      kiqctl resume
      kiqctl resume --host app-1
    """
    what = message("resume")
    answers = transport.send(what)
    ctx.exit(report(output, what, answers, {}, transport.statuses()))


@click.command(context_settings=SETTINGS)
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
    if timeout is not None and not wait:
        raise UsageError("--timeout goes with --wait")
    ctx.exit(rolling(transport, output, message("roll"), wait=wait, timeout=timeout))


@click.command(context_settings=SETTINGS)
@click.option("--wait", is_flag=True, help="until it is in force; exit code 1 if it could not be")
@timeout_option("how long to wait at most  [as long as it takes]")
@transport_options
@json_option
@click.pass_context
def reload(ctx: click.Context, transport: Transport, output: Output, wait: bool, timeout: float | None) -> None:
    """Read configuration and queue groups anew.

    Workers whose group has not changed go on.  What cannot be read is an error at once; whether the application can be
    imported, and leaves something to listen to, shows later: --wait waits for that.

    \b
      kiqctl reload --wait
      kiqctl reload --wait --timeout 2m --host app-1
    """
    if timeout is not None and not wait:
        raise UsageError("--timeout goes with --wait")
    what = message("reload")
    answers = transport.send(what)
    problems = Waiter().until_reloaded(transport, agreed(answers), what.id, timeout, output.say) if wait else {}
    ctx.exit(report(output, what, answers, problems, transport.statuses(), ", reloaded" if wait else ""))


@click.command(context_settings=SETTINGS)
@click.argument("jid")
@transport_options
@json_option
@click.pass_context
def kill(ctx: click.Context, jid: str, transport: RedisTransport | SocketTransport, output: Output) -> None:
    """End a job that hangs, by its worker process.

    JID is that of a job that runs (`kiqctl busy`), or a beginning that no other has.  Its process is killed and
    replaced.  Jobs that ran beside it run again and are not blamed; it is itself, and is buried after
    max_retries_after_interruption such deaths.

    \b
      kiqctl kill 6f1d22b3a9c04e7f8a51d0c2
      kiqctl kill 6f1d22b3a9c04e7f8a51d0c2 --socket /run/kiqcluster.sock      where its process has only one worker
    """
    what = replace(message("kill"), jid=in_full(jid, _running_jids(transport)))
    answers = transport.send(what)
    done = [each for each in answers if each.error is None]  # the others do not run it
    ctx.exit(report(output, what, done or answers, {}, transport.statuses(), f", a worker is killed for {what.jid}"))


def _running_jids(transport: RedisTransport | SocketTransport) -> list[str]:
    """Return the ids of the jobs that run, by Redis at the latest heartbeats.  Raises NoSuchProcess, KiqError."""
    if isinstance(transport, SocketTransport):
        return [each.jid for each in transport.running()]
    return [work.job.jid for work in WorkSet(store=transport.store)]
