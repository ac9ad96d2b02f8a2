"""ps: who is there, by supervisor, and what they do."""

from __future__ import annotations

from dataclasses import asdict

import click

from kiqcluster.ctl.by_redis import is_among, view_of, worker_of
from kiqcluster.ctl.by_socket import SocketWay
from kiqcluster.ctl.options import (
    SETTINGS,
    Output,
    address_options,
    host_option,
    json_option,
    open_store,
    socket_option,
)
from kiqcluster.ctl.tables import NOTHING, duration, left, megabytes, right
from kiqcluster.ctl.ways import Worker
from kiqcluster.errors import ExitCode, UsageError
from kiqcluster.fleet import Process, clusters, processes

__all__ = ["ps"]

FACTS = (right("BUSY"), left("STATE"), right("RSS"), right("UP"), right("BEAT"), left("VERSION"), left("QUEUES", 20))
WORKERS = (right("PID"), *FACTS)
OTHERS = (left("PROCESS"), *FACTS)


@click.command(context_settings=SETTINGS)
@host_option
@socket_option
@address_options
@json_option
@click.pass_context
def ps(
    ctx: click.Context,
    output: Output,
    hosts: tuple[str, ...],
    socket: str | None,
    redis: str | None,
    config_file: str | None,
    environment: str | None,
) -> None:
    """Show the worker processes by supervisor: what is busy, quiet and until when, and how a roll goes.

    UP is how long it has run, BEAT how long ago it was last heard of; one that has ended without a word is shown for a
    minute.  What a lease has left stands beside the cluster's name.

    \b
      kiqctl ps
      kiqctl ps --json
      kiqctl ps --socket /run/kiqcluster.sock
    """
    others: list[Process] = []
    place = str(socket)
    if socket is not None:
        if redis or hosts:
            raise UsageError("--socket reaches one supervisor without Redis; leave --redis and --host out")
        views = list(SocketWay(socket).look().values())
    else:
        store = open_store(redis, config_file, environment)
        place = store.address
        everybody = [each for each in processes(store) if is_among(each.host, hosts)]
        views = [view_of(each) for each in clusters(everybody)]
        others = [each for each in everybody if each.supervisor is None]
    for view in views:
        output.say(f"{view.name}  {view.version}  {view.in_words()}")
        output.table(WORKERS, [row(str(worker.pid), worker) for worker in view.workers])
    if others:
        output.say("without a supervisor that tells of itself (Ruby's Sidekiq, or just started)")
        output.table(OTHERS, [row(each.identity, worker_of(each)) for each in others])
    if not views:
        output.complain(f"no kiqcluster process is registered at {place}")
    strangers = [{**asdict(worker_of(each)), "host": each.host, "is_ours": each.is_ours} for each in others]
    output.document({"clusters": [view.as_json() for view in views], "others": strangers})
    ctx.exit(ExitCode.STOPPED if views else ExitCode.UNEXPECTED)


def row(name: str, worker: Worker) -> tuple[str, ...]:
    """Return the words for a worker that goes by that name."""
    return (
        name,
        f"{worker.busy}/{worker.concurrency}",
        "quiet" if worker.quiet else "serves",
        megabytes(worker.rss),
        duration(worker.uptime),
        duration(worker.age),
        worker.version or NOTHING,
        ", ".join(worker.queues),
    )
