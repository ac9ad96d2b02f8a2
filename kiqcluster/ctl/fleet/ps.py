"""ps: the clusters and their workers, with their states.

Workers publish their running jobs; supervisors publish the state of their slots, empty ones included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import click

from kiqcluster.control.cluster_document import (
    ClusterStatus,
    ProcessStatus,
    WorkerStatus,
    shown_processes,
    shown_state,
    status_from_redis,
    worker_status,
)
from kiqcluster.control.process_registry import (
    RegisteredProcess,
    group_by_cluster,
    list_processes,
    natural_sort_key,
    read_number,
)
from kiqcluster.control.redis_transport import is_host_selected
from kiqcluster.control.slot_state import SlotState
from kiqcluster.control.socket_transport import SocketTransport
from kiqcluster.ctl.text.options import (
    CONTEXT_SETTINGS,
    Output,
    RedisChoice,
    address_options,
    host_option,
    json_option,
    socket_option,
)
from kiqcluster.ctl.text.shards import read_shards
from kiqcluster.ctl.text.tables import (
    NO_VALUE,
    Column,
    ago,
    clean,
    format_duration,
    format_megabytes,
    number_column,
    pluralize,
    text_column,
)
from kiqcluster.errors import ExitCode, UsageError
from kiqcluster.process.durations import show_duration
from kiqcluster.store import Store

__all__ = ["ps", "summary_of"]

WORKER_COLUMNS = (
    number_column("BUSY"),
    text_column("STATE", 10),
    number_column("RSS"),
    number_column("UP"),
    number_column("BEAT"),
    text_column("VERSION"),
)
QUEUES_COLUMN = text_column("QUEUES", 20)
FULL_TEXT_HINT = "the whole text: `kiqctl ps --json`, or the log"
LONE_PROCESS_COLUMNS = (text_column("PROCESS"), *WORKER_COLUMNS, QUEUES_COLUMN)
RESTARTS_COLUMN = number_column("RESTARTS")
RELEASE_COLUMN, GENERATION_COLUMN = (
    text_column("RELEASE", 10),
    number_column("GENERATION"),
)  # where not all processes have the same


@dataclass(frozen=True, slots=True)
class Fleet:
    """address: where it was asked for.  others: have no supervisor.  missing: names of shards that are away."""

    address: str
    statuses: list[ClusterStatus]
    others: list[RegisteredProcess] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


@click.command(context_settings=CONTEXT_SETTINGS)
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
    chosen: RedisChoice,
) -> None:
    """Show clusters and their workers.

    They are those of all shards, unless --shard names one.
    The line of a cluster shows the remaining lease of a quiet, and whether a reload, a roll or a restart is needed;
    the next line shows the result of the latest roll.  STATE is serves, quiet, booting, unresponsive, backoff with
    the time until the next try, stopping or no Redis.  UP is the uptime, BEAT the time since the last heartbeat,
    RESTARTS the unplanned restarts of the slot, and how long ago the latest was.  A worker that died without
    deregistering is shown for a minute.  RELEASE or GENERATION is shown while workers differ in it.

    \b
      kiqctl ps
      kiqctl ps --json
      kiqctl ps --socket /run/kiqcluster.sock
    """
    if socket is None:
        fleet = _registered(chosen.stores(), hosts, output)
    elif chosen.redis or chosen.shard or hosts:
        raise UsageError("--socket reaches one supervisor without Redis; leave --redis, --shard and --host out")
    else:
        fleet = Fleet(socket, list(SocketTransport(socket).statuses().values()))
    _show(fleet, output)
    output.document(lambda: document_of(fleet.statuses, fleet.others))
    is_whole = bool(fleet.statuses or fleet.others) and not fleet.missing
    ctx.exit(ExitCode.STOPPED if is_whole else ExitCode.UNEXPECTED)


def _registered(stores: Sequence[Store], hosts: Sequence[str], output: Output) -> Fleet:
    """Return what is registered in these shards, of these hosts only if there are any.  Raises StoreError."""
    found, missing = read_shards(stores, output, list_processes)
    processes = [each for several in found for each in several if is_host_selected(each.host, hosts)]
    clusters = sorted(group_by_cluster(processes), key=lambda each: natural_sort_key(each.supervisor))
    lone = [each for each in processes if each.supervisor is None]
    return Fleet(
        ", ".join(store.address for store in stores),
        [status_from_redis(each) for each in clusters],
        sorted(lone, key=lambda each: natural_sort_key(each.identity)),
        missing,
    )


def _show(fleet: Fleet, output: Output) -> None:
    for status in fleet.statuses:
        output.print([f"{clean(status.name)}  {clean(status.version)}  {summary_of(status)}"])
        output.print(f"  {line}" for line in recent_events(status))
        output.table(*table_of(status))
    if fleet.others:
        output.info("without a supervisor that tells of itself (Ruby's Sidekiq, or just started)")
        output.table(LONE_PROCESS_COLUMNS, [row_of(each.identity, worker_status(each)) for each in fleet.others])
    if not fleet.statuses and not fleet.others:
        output.error(f"no kiqcluster process is registered at {fleet.address}")


def document_of(statuses: Sequence[ClusterStatus], others: Sequence[RegisteredProcess]) -> dict[str, Any]:
    """Return what --json prints.  others: processes without a supervisor."""
    lone = [{**asdict(worker_status(each)), "host": each.host, "is_ours": each.is_ours} for each in others]
    return {"clusters": [status.as_json() for status in statuses], "others": lone}


def table_of(status: ClusterStatus) -> tuple[Sequence[Column], list[tuple[str, ...]]]:
    """Return columns and rows for a cluster's processes, and for its slots without one."""
    more, words = _differences(status.children)
    more = [RESTARTS_COLUMN, *more]
    rows = []
    for process, worker in shown_processes(status):
        pid = (process.pid if process is not None else worker.pid if worker is not None else None) or NO_VALUE
        *facts, queues = row_of(str(pid), worker, process)
        told = (NO_VALUE,) * len(more) if process is None else (restarts_of(process, status.now), *words(process))
        rows.append((*facts, *told, queues))
    return (number_column("PID"), *WORKER_COLUMNS, *more, QUEUES_COLUMN), rows


def row_of(name: str, worker: WorkerStatus | None, process: ProcessStatus | None = None) -> tuple[str, ...]:
    """Return the row of a process, or of an empty slot."""
    state = state_of(worker, process)
    if worker is None:
        return (name, NO_VALUE, state, NO_VALUE, NO_VALUE, NO_VALUE, NO_VALUE, NO_VALUE)
    return (
        name,
        f"{worker.busy}/{worker.concurrency}",
        state,
        format_megabytes(worker.rss),
        format_duration(worker.uptime),
        format_duration(worker.age),
        worker.version or NO_VALUE,
        ", ".join(worker.queues),
    )


def state_of(worker: WorkerStatus | None, process: ProcessStatus | None) -> str:
    """Return the state of a process or slot, in words."""
    state = shown_state(worker, process)
    if process is not None and state == SlotState.BACKOFF:
        return f"{state}, {format_duration(process.backoff)}"
    if process is not None and state == SlotState.BOOTING and process.waits_for:
        return f"{state}: {process.waits_for}"
    return state


def restarts_of(process: ProcessStatus, now: float) -> str:
    """Return the unplanned restarts of its slot, and how long ago the latest was."""
    if process.restarts is None:
        return NO_VALUE
    when = f" ({ago(min(process.died_at, now), now)})" if process.restarts and process.died_at and now else ""
    return f"{process.restarts}{when}"


def _differences(children: Sequence[ProcessStatus]) -> tuple[list[Column], Callable[[ProcessStatus], tuple[str, ...]]]:
    """Return the columns RELEASE and GENERATION where processes differ in them, and a function for their cells."""
    processes = [each for each in children if each.pid is not None]
    releases = {each.release for each in processes}
    names = {each: each.rstrip("/").rpartition("/")[2] for each in releases}
    if len(set(names.values())) < len(releases):
        names = {each: each for each in releases}
    has_releases = len(releases) > 1
    # One release may have been brought by several rolls: somebody has changed it in place.
    has_generations = len({(each.release, each.generation) for each in processes}) > len(releases)

    def words(process: ProcessStatus) -> tuple[str, ...]:
        release = names.get(process.release, "") or NO_VALUE if process.pid else NO_VALUE
        generation = NO_VALUE if process.generation is None else str(process.generation)
        return (*([release] if has_releases else []), *([generation] if has_generations else []))

    return [*([RELEASE_COLUMN] if has_releases else []), *([GENERATION_COLUMN] if has_generations else [])], words


# in words


def summary_of(status: ClusterStatus) -> str:
    """Return the state of a cluster, and what it needs, as one printable line."""
    words = [f"{pluralize(len(status.workers), 'worker')} in {pluralize(status.slots, 'slot')}"]
    words.append(f"busy {status.busy} of {status.concurrency}")
    if status.quiet_by:
        lease = "no end" if status.lease_remaining is None else f"{show_duration(status.lease_remaining)} left"
        words.append(f"quiet by {status.quiet_by} ({lease})")
    elif count := sum(worker.quiet for worker in status.workers):
        words.append(f"{count} quiet")
    if status.roll is not None and status.roll.get("state") == "rolling":
        words.append(f"rolling {status.roll.get('done')} of {status.roll.get('of')}")
    if status.reload is not None and status.reload.get("state") == "reloading":
        words.append("reloading")
    if status.stopping:
        words.append("stopping")
    words += [f"{what} needed: {_first_line(why)}" for what, why in status.needs]
    return clean(", ".join(words))


def recent_events(status: ClusterStatus) -> list[str]:
    """Return printable lines: the result of the latest roll, failures, and whether the state is stale."""
    lines = []
    if status.is_stale:
        lines.append(f"its supervisor has not reported for {format_duration(status.silent_for)}; it may be stuck")
    if status.roll is not None and status.roll.get("state") == "done" and status.roll.get("of"):
        when = _when(status, status.roll)
        lines.append(f"rolled {status.roll.get('done')} of {status.roll.get('of')}{',' if when else ''}{when}")
    elif status.roll is not None and status.roll.get("state") == "failed":
        done = f" with {status.roll.get('done')} of {status.roll.get('of')} replaced"
        lines += _failure(status, "roll", status.roll, done)
    if status.reload is not None and status.reload.get("state") == "failed":
        lines += _failure(status, "reload", status.reload)
    return [clean(line) for line in lines]


def _failure(status: ClusterStatus, what: str, report: Mapping[str, Any], how_far: str = "") -> Iterator[str]:
    error = str(report.get("error") or "no reason is known").strip()
    yield f"the last {what} failed{_when(status, report)}{how_far}: {_first_line(error)}"
    if "\n" in error:
        yield f"  {FULL_TEXT_HINT}"


def _when(status: ClusterStatus, report: Mapping[str, Any]) -> str:
    """Return how long ago it ended; "" if that is unknown."""
    ended_at = read_number(report.get("ended_at"))
    return f" {ago(min(ended_at, status.now), status.now)}" if ended_at and status.now else ""


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0].rstrip()
