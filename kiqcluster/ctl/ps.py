"""ps: who is there, by supervisor, and what they do."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict

import click

from kiqcluster.ctl.by_redis import is_among, view_of, worker_of
from kiqcluster.ctl.by_socket import SocketWay
from kiqcluster.ctl.options import SETTINGS, Output, host_option, json_option, redis_options, socket_option
from kiqcluster.ctl.ways import Worker
from kiqcluster.durations import show_duration
from kiqcluster.errors import ExitCode, UsageError
from kiqcluster.fleet import Process, clusters, processes
from kiqcluster.store import Store

__all__ = ["ps"]

COLUMNS = ("PID", "BUSY", "STATE", "RSS", "BEAT", "QUEUES")


@click.command(context_settings=SETTINGS)
@host_option
@socket_option
@redis_options
@json_option
@click.pass_context
def ps(ctx: click.Context, store: Store, output: Output, hosts: tuple[str, ...], socket: str | None) -> None:
    """Show the worker processes by supervisor: what is busy, quiet and until when, and how a roll goes.

    BEAT is how long ago a process was last heard of; one that has ended without a word is shown for a minute.

    \b
      kiqctl ps
      kiqctl ps --json
      kiqctl ps --socket /run/kiqcluster.sock
    """
    others: list[Process] = []
    if socket is not None and hosts:
        raise UsageError("--socket reaches one supervisor; leave --host out")
    if socket is not None:
        views = list(SocketWay(socket).look().values())
    else:
        everybody = [each for each in processes(store) if is_among(each.host, hosts)]
        views = [view_of(each) for each in clusters(everybody)]
        others = [each for each in everybody if each.supervisor is None]
    for view in views:
        output.say(f"{view.name}  {view.version}  {view.in_words()}")
        output.say(table(row(worker) for worker in view.workers))
    if others:
        output.say("without a supervisor that tells of itself (Ruby's Sidekiq, or just started)")
        output.say(table(row(worker_of(each)) for each in others))
    if not views:
        output.complain(f"no kiqcluster process is registered at {socket or store.address}")
    strangers = [{**asdict(worker_of(each)), "host": each.host, "is_ours": each.is_ours} for each in others]
    output.document({"clusters": [view.as_json() for view in views], "others": strangers})
    ctx.exit(ExitCode.STOPPED if views else ExitCode.UNEXPECTED)


def row(worker: Worker) -> tuple[str, ...]:
    return (
        str(worker.pid),
        f"{worker.busy}/{worker.concurrency}",
        "quiet" if worker.quiet else "serves",
        f"{worker.rss / 1e6:.0f} MB",
        show_duration(worker.age),
        ", ".join(worker.queues),
    )


def table(rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose last column ends where the terminal does."""
    lines = [COLUMNS, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS) - 1)]
    room = max(20, shutil.get_terminal_size((100, 0)).columns - sum(widths) - 2 * len(widths) - 2)
    return "\n".join(
        "  "
        + "  ".join(f"{word:>{width}}" for word, width in zip(line, widths, strict=False))
        + f"  {shortened(line[-1], room)}"
        for line in lines
    )


def shortened(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
