"""ps: who is there, by supervisor, and what they do.

What a worker does it tells Redis itself; how it stands its supervisor tells, also of slots that have no worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from kiqcluster.control.cluster_document import Child, View, Worker, number_of, view_of, worker_of
from kiqcluster.control.process_registry import LATE_SECONDS, Process, clusters, natural, processes
from kiqcluster.control.redis_transport import is_among
from kiqcluster.control.socket_transport import SocketWay
from kiqcluster.ctl.text.options import (
    SETTINGS,
    Output,
    address_options,
    host_option,
    json_option,
    open_store,
    socket_option,
)
from kiqcluster.ctl.text.tables import NOTHING, Column, ago, clean, counted, duration, left, megabytes, right
from kiqcluster.errors import ExitCode, UsageError
from kiqcluster.process.durations import show_duration

__all__ = ["in_words", "ps"]

FACTS = (right("BUSY"), left("STATE", 10), right("RSS"), right("UP"), right("BEAT"), left("VERSION"))
QUEUES = left("QUEUES", 20)
STALE_SECONDS = 20.0  # without news, of which a supervisor sends some every ten, after which it may stand still
WHOLE = "the whole text: `kiqctl ps --json`, or the log"
OTHERS = (left("PROCESS"), *FACTS, QUEUES)
RESTARTS = right("RESTARTS")
RELEASE, GENERATION = left("RELEASE", 10), right("GENERATION")  # where not all processes have the same


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
    """Show clusters and their workers: busy, quiet, how a roll goes.

    What a lease has left, and what waits for a reload, a roll or a restart, stands beside the cluster's name; below
    it, how the latest roll went.  STATE is serves, quiet, booting, unresponsive, backoff until the next try, stopping
    or no Redis; UP is how long it has run, BEAT how long ago it was last heard of, RESTARTS how often the slot's worker
    has died that nobody wanted to, and how long ago the latest did.  One that has ended without a word is shown for
    a minute.  RELEASE, or GENERATION, is there while not all run the same.

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
        views = [view_of(each) for each in sorted(clusters(everybody), key=lambda each: natural(each.supervisor))]
        others = sorted((p for p in everybody if p.supervisor is None), key=lambda each: natural(each.identity))
    for view in views:
        output.print([f"{clean(view.name)}  {clean(view.version)}  {in_words(view)}"])
        output.print(f"  {line}" for line in in_hindsight(view))
        output.table(*table_of(view))
    if others:
        output.say("without a supervisor that tells of itself (Ruby's Sidekiq, or just started)")
        output.table(OTHERS, [row(each.identity, worker_of(each)) for each in others])
    if not views and not others:
        output.complain(f"no kiqcluster process is registered at {place}")
    output.document(lambda: document_of(views, others))
    ctx.exit(ExitCode.STOPPED if views or others else ExitCode.UNEXPECTED)


def document_of(views: Sequence[View], others: Sequence[Process]) -> dict[str, Any]:
    """Return what --json prints.  others: processes without a supervisor."""
    strangers = [{**asdict(worker_of(each)), "host": each.host, "is_ours": each.is_ours} for each in others]
    return {"clusters": [view.as_json() for view in views], "others": strangers}


def table_of(view: View) -> tuple[Sequence[Column], list[tuple[str, ...]]]:
    """Return columns and rows for a cluster's processes, and for its slots without one."""
    by_pid = {each.pid: each for each in sorted(view.workers, key=lambda each: -each.age)}  # of two, the later one
    known = {child.pid for child in view.children}
    pairs: list[tuple[Child | None, Worker | None]] = [(each, by_pid.get(each.pid or 0)) for each in view.children]
    pairs += [(None, worker) for worker in view.workers if worker.pid not in known]
    more, words = _differences(view.children)
    more = [RESTARTS, *more]
    rows = []
    for child, worker in pairs:
        pid = (child.pid if child is not None else worker.pid if worker is not None else None) or NOTHING
        *facts, queues = row(str(pid), worker, child)
        told = (NOTHING,) * len(more) if child is None else (restarts_of(child, view.now), *words(child))
        rows.append((*facts, *told, queues))
    return (right("PID"), *FACTS, *more, QUEUES), rows


def row(name: str, worker: Worker | None, child: Child | None = None) -> tuple[str, ...]:
    """Return the words for a process that goes by that name, or for a slot."""
    state = state_of(worker, child)
    if worker is None:
        return (name, NOTHING, state, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING)
    return (
        name,
        f"{worker.busy}/{worker.concurrency}",
        state,
        megabytes(worker.rss),
        duration(worker.uptime),
        duration(worker.age),
        worker.version or NOTHING,
        ", ".join(worker.queues),
    )


def state_of(worker: Worker | None, child: Child | None) -> str:
    """Return how a process or slot stands.  Whether it is quiet, a worker itself knows best."""
    state = child.state if child is not None else ""
    if child is not None and state == "backoff":
        return f"backoff, {duration(child.backoff)}"
    if child is not None and state == "booting":
        return f"booting: {child.waits_for}" if child.waits_for else state
    if state == "unresponsive" or (worker is not None and state != "stopping" and worker.age >= LATE_SECONDS):
        return "unresponsive"
    if child is not None and state in ("ready", "quiet") and not child.redis:
        return "no Redis"
    if state == "stopping":
        return state
    return "quiet" if (state == "quiet" if worker is None else worker.quiet) else "serves"


def restarts_of(child: Child, now: float) -> str:
    """Return how often a process of its slot has died that nobody wanted to, and how long ago the latest did."""
    if child.restarts is None:
        return NOTHING
    when = f" ({ago(min(child.died_at, now), now)})" if child.restarts and child.died_at and now else ""
    return f"{child.restarts}{when}"


def _differences(children: Sequence[Child]) -> tuple[list[Column], Callable[[Child], tuple[str, ...]]]:
    """Return the columns in which processes differ that should not for long, and what makes the words for them."""
    processes = [each for each in children if each.pid is not None]
    releases = {each.release for each in processes}
    names = {each: each.rstrip("/").rpartition("/")[2] for each in releases}
    if len(set(names.values())) < len(releases):
        names = {each: each for each in releases}
    has_releases = len(releases) > 1
    # One release may have been brought by several rolls: somebody has changed it in place.
    has_generations = len({(each.release, each.generation) for each in processes}) > len(releases)

    def words(child: Child) -> tuple[str, ...]:
        release = names.get(child.release, "") or NOTHING if child.pid else NOTHING
        generation = NOTHING if child.generation is None else str(child.generation)
        return (*([release] if has_releases else []), *([generation] if has_generations else []))

    return [*([RELEASE] if has_releases else []), *([GENERATION] if has_generations else [])], words


# in words


def in_words(view: View) -> str:
    """Return what a cluster is doing, and what waits, in one line that a terminal only shows."""
    words = [f"{counted(len(view.workers), 'worker')} in {counted(view.slots, 'slot')}"]
    words.append(f"busy {view.busy} of {view.concurrency}")
    if view.quiet_by:
        lease = "no end" if view.lease_remaining is None else f"{show_duration(view.lease_remaining)} left"
        words.append(f"quiet by {view.quiet_by} ({lease})")
    elif count := sum(worker.quiet for worker in view.workers):
        words.append(f"{count} quiet")
    if view.roll is not None and view.roll.get("state") == "rolling":
        words.append(f"rolling {view.roll.get('done')} of {view.roll.get('of')}")
    if view.reload is not None and view.reload.get("state") == "reloading":
        words.append("reloading")
    if view.stopping:
        words.append("stopping")
    for what, why in (("restart", view.restart_needed), ("reload", view.reload_needed), ("roll", view.roll_needed)):
        if why:
            words.append(f"{what} needed: {_first_line(why)}")
    return clean(", ".join(words))


def in_hindsight(view: View) -> list[str]:
    """Return in lines of the same kind how the latest roll went, what failed, and whether this is old news."""
    lines = []
    if view.silent_for >= STALE_SECONDS:
        lines.append(f"its supervisor has not reported for {duration(view.silent_for)}; it may be stuck")
    if view.roll is not None and view.roll.get("state") == "done" and view.roll.get("of"):
        when = _when(view, view.roll)
        lines.append(f"rolled {view.roll.get('done')} of {view.roll.get('of')}{',' if when else ''}{when}")
    elif view.roll is not None and view.roll.get("state") == "failed":
        done = f" with {view.roll.get('done')} of {view.roll.get('of')} replaced"
        lines += _failure(view, "roll", view.roll, done)
    if view.reload is not None and view.reload.get("state") == "failed":
        lines += _failure(view, "reload", view.reload)
    return [clean(line) for line in lines]


def _failure(view: View, what: str, report: Mapping[str, Any], how_far: str = "") -> Iterator[str]:
    error = str(report.get("error") or "no reason is known").strip()
    yield f"the last {what} failed{_when(view, report)}{how_far}: {_first_line(error)}"
    if "\n" in error:
        yield f"  {WHOLE}"


def _when(view: View, report: Mapping[str, Any]) -> str:
    """Return how long ago it ended; nothing where that is unknown."""
    ended_at = number_of(report.get("ended_at"))
    return f" {ago(min(ended_at, view.now), view.now)}" if ended_at and view.now else ""


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0].rstrip()
