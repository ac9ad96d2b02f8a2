"""Own metrics: what the supervisor knows itself: slots, processes, quiet, rolls, its own loop.

The tables say what there is; docs/metrics.md tells it to people, and a test holds the two together.
What only one child counts is kept per slot when the child dies, so that no counter goes back.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf

import psutil

from kiqcluster.control.slot_state import SlotState
from kiqcluster.ipc.negotiation import Format
from kiqcluster.process.clock import Clock
from kiqcluster.process.version import VERSION
from kiqcluster.supervisor.cluster.child import Child
from kiqcluster.supervisor.cluster.slots import Slot
from kiqcluster.supervisor.cluster.state import ClusterState
from kiqcluster.supervisor.metrics.text_format import Labels, family_header, format_value, sample_prefix

__all__ = ["REASONS", "OwnMetrics", "Usage"]

REASONS = (
    *("crash", "killed", "boot", "silent", "max_jobs", "max_rss", "rolling", "remote_stop", "job_killed"),
    "job_timeout",
)
RESULTS = ("done", "failed", "superseded")
USAGE_CACHE_SECONDS = 1.0  # for which the usage of a process is not read again
TURN_WINDOW_SECONDS = 60.0  # over which the longest turn is shown, at least

Samples = Iterable[tuple[str, Labels, float]]  # suffix, labels, value


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources that a process uses.  resident: bytes.  cpu: seconds since its start."""

    resident: int = 0
    cpu: float = 0.0
    descriptors: int = 0


class ProcessReader:
    """Reads the usage of one process, at most once per USAGE_CACHE_SECONDS; keeps the latest after its end."""

    def __init__(self, pid: int) -> None:
        self.usage = Usage()
        self._read_at = -inf
        try:
            self._process: psutil.Process | None = psutil.Process(pid)
        except psutil.Error:
            self._process = None

    def read(self, now: float) -> Usage:
        if self._process is not None and now >= self._read_at + USAGE_CACHE_SECONDS:
            self._read_at = now
            try:
                with self._process.oneshot():
                    times = self._process.cpu_times()
                    memory, descriptors = self._process.memory_info().rss, self._process.num_fds()
            except psutil.Error:  # it has ended
                return self.usage
            self.usage = Usage(memory, times.user + times.system, descriptors)
        return self.usage


@dataclass(slots=True)
class ExitedTotals:
    """Totals of the dead children of a slot.

    Whole microseconds: a sum of floats depends on the order, and a counter that falls by its last digit was reset, for
    Prometheus.
    """

    cpu_us: int = 0
    round_trips: int = 0
    round_trips_us: int = 0

    def add(self, child: Child, usage: Usage) -> None:
        self.cpu_us += round(1e6 * max(usage.cpu, child.ending.cpu))  # of a dead one the kernel tells the whole
        self.round_trips += child.beat.round_trips
        self.round_trips_us += round(1e6 * child.beat.round_trip_seconds)


@dataclass(frozen=True, slots=True)
class SlotSnapshot:
    """One slot at the time of a scrape.

    usage: of its child.  counted: by all its processes, the dead, and those that come and go in a rolling restart.
    """

    slot: Slot
    child: Child | None
    usage: Usage
    counted: ExitedTotals
    now: float


@dataclass(slots=True)
class LongestTurn:
    """The longest turn of the loop in this window and the one before."""

    began_at: float = 0.0
    seconds: float = 0.0
    before: float = 0.0

    def note(self, seconds: float, now: float) -> None:
        if now >= self.began_at + TURN_WINDOW_SECONDS:
            self.before = self.seconds if now < self.began_at + 2 * TURN_WINDOW_SECONDS else 0.0
            self.began_at, self.seconds = now, 0.0
        self.seconds = max(self.seconds, seconds)


# name, help, value; a slot that has none of it has no sample
SLOT_GAUGES: tuple[tuple[str, str, Callable[[SlotSnapshot], float | None]], ...] = (
    (
        "kiqcluster_child_resident_memory_bytes",
        "Memory of the slot's process",
        lambda view: view.usage.resident if view.child else None,
    ),
    (
        "kiqcluster_child_open_fds",
        "File descriptors of the slot's process",
        lambda view: view.usage.descriptors if view.child else None,
    ),
    (
        "kiqcluster_child_last_beat_timestamp_seconds",
        "When the slot's process last told that jobs can run",
        lambda view: view.child.beat.epoch if view.child and view.child.beat.epoch else None,
    ),
    (
        "kiqcluster_child_boot_seconds",
        "Seconds that the slot's process took to become ready",
        lambda view: view.child.ready_at - view.child.started_at if view.child and view.child.ready_at else None,
    ),
    (
        "kiqcluster_child_backoff_seconds",
        "Seconds until the slot's next process is started",
        lambda view: 0.0 if view.child else max(0.0, view.slot.history.not_before - view.now),
    ),
    (
        "kiqcluster_child_generation",
        "The rolling restart that brought the code of the slot's process",
        lambda view: view.child.generation if view.child else None,
    ),
    (
        "kiqcluster_prefetched_units",
        "Units that the slot's process holds and has not started",
        lambda view: view.child.beat.prefetched if view.child else None,
    ),
    (
        "kiqcluster_redis_up",
        "Whether the slot's process reaches Redis",
        lambda view: float(view.child.beat.redis) if view.child and view.child.is_ready else None,
    ),
)
SLOT_COUNTERS: tuple[tuple[str, str, Callable[[SlotSnapshot], float | None]], ...] = (
    (
        "kiqcluster_child_cpu_seconds",
        "CPU seconds of the slot's processes",
        lambda view: view.counted.cpu_us / 1e6,
    ),
    (
        "kiqcluster_fetch_round_trips",
        "Round trips to Redis that settled and reserved units",
        lambda view: view.counted.round_trips,
    ),
    (
        "kiqcluster_fetch_round_trip_seconds",
        "Seconds that these round trips took",
        lambda view: view.counted.round_trips_us / 1e6,
    ),
)


class OwnMetrics:
    """refused: series of children that there was no room for."""

    def __init__(self, state: ClusterState, clock: Clock) -> None:
        self._state = state
        self._clock = clock
        self._readers: dict[int, ProcessReader] = {}  # by pid
        self._retired: dict[int, ExitedTotals] = {}  # by slot
        self._longest = LongestTurn()
        self.refused = 0

    def record_turn(self, seconds: float) -> None:
        """Record how long a turn of the loop took."""
        self._longest.note(seconds, self._clock.monotonic())

    def on_child_exit(self, slot: Slot, child: Child) -> None:
        """Keep the counts of a dead child."""
        watched = self._readers.pop(child.pid, None)
        usage = Usage() if watched is None else watched.usage
        self._retired.setdefault(slot.number, ExitedTotals()).add(child, usage)

    def page(self, form: Format) -> Generator[None, None, str]:
        """Return all of it as text; yields between processes."""
        views = []
        for slot in list(self._state.slots):
            views.append(self._snapshot(slot))
            yield
        parts = []
        for kind, suffix, table in (("gauge", "", SLOT_GAUGES), ("counter", "_total", SLOT_COUNTERS)):
            parts += [_family(name, kind, text, _present(views, value, suffix), form) for name, text, value in table]
        parts += [_family(*about, form) for about in (*self._cluster(), *self._quiet(), *self._supervisor())]
        return "".join(parts)

    def _snapshot(self, slot: Slot) -> SlotSnapshot:
        now = self._clock.monotonic()
        counted = replace(self._retired.get(slot.number, ExitedTotals()))
        current = Usage()
        for child in slot.children():
            usage = self._read_usage(child.pid, now)
            counted.add(child, usage)
            current = usage if child is slot.child else current
        return SlotSnapshot(slot, slot.child, current, counted, now)

    def _read_usage(self, pid: int, now: float) -> Usage:
        watched = self._readers.get(pid)
        if watched is None:
            watched = self._readers[pid] = ProcessReader(pid)
        return watched.read(now)

    def _cluster(self) -> Iterator[tuple[str, str, str, Samples]]:
        state = self._state
        by_state = Counter(slot.state for slot in state.slots)
        yield (
            "kiqcluster_children",
            "gauge",
            "Slots by the state of their process",
            [("", (("state", each),), by_state[each]) for each in SlotState],
        )
        yield (
            "kiqcluster_child_restarts",
            "counter",
            "Processes replaced, by why they ended",
            [
                ("_total", (("reason", reason), ("slot", str(slot.number))), slot.restarts[reason])
                for slot in state.slots
                for reason in dict.fromkeys((*REASONS, *slot.restarts))
            ],
        )
        for name, text, counts in (
            ("kiqcluster_rolls", "Rolling restarts that have ended", state.rolls),
            ("kiqcluster_reloads", "Configurations read again", state.reloads),
        ):
            yield name, "counter", text, [("_total", (("result", each),), counts[each]) for each in RESULTS]
        yield "kiqcluster_rolling", "gauge", "Whether a rolling restart is under way", [("", (), state.is_rolling)]
        yield _counter("kiqcluster_recovered_units", "Units of dead processes that were given back", state.recovered)
        yield _counter("kiqcluster_lost_memberships", "Live processes whose units others recovered", state.fenced)

    def _quiet(self) -> Iterator[tuple[str, str, str, Samples]]:
        quiet, now = self._state.quiet, self._clock.monotonic()
        left = quiet.remaining(now)
        yield "kiqcluster_quiet", "gauge", "Whether the cluster is quiet", [("", (), bool(quiet))]
        yield (
            "kiqcluster_quiet_since_timestamp_seconds",
            "gauge",
            "When the quiet began, 0 without one",
            [("", (), quiet.since_epoch if quiet else 0.0)],
        )
        yield (
            "kiqcluster_quiet_lease_remaining_seconds",
            "gauge",
            "Seconds until the quiet ends by itself, 0 without one",
            [("", (), 0.0 if not quiet else inf if left is None else left)],
        )
        yield _counter("kiqcluster_quiet_lease_expirations", "Quiets that ended by themselves", quiet.expirations)

    def _supervisor(self) -> Iterator[tuple[str, str, str, Samples]]:
        state = self._state
        usage = self._read_usage(os.getpid(), self._clock.monotonic())
        for name, text, value in (
            ("resident_memory_bytes", "Memory of the supervisor", usage.resident),
            ("open_fds", "File descriptors of the supervisor", usage.descriptors),
            ("start_time_seconds", "When the supervisor started", state.started_epoch),
            ("longest_turn_seconds", "Longest turn of the supervisor's loop in the last minute or two", self._turn()),
        ):
            yield f"kiqcluster_supervisor_{name}", "gauge", text, [("", (), value)]
        yield _counter("kiqcluster_supervisor_cpu_seconds", "CPU seconds of the supervisor", usage.cpu)
        yield _counter("kiqcluster_series_refused", "Series of children beyond what there is room for", self.refused)
        is_needed = bool(state.restart_needed)
        yield (
            "kiqcluster_restart_needed",
            "gauge",
            "Whether something waits for a new supervisor",
            [("", (), is_needed)],
        )
        version = (("version", VERSION),)
        if state.routing:
            rules = (("digest", state.routing),)
            yield "kiqcluster_routing_rules", "info", "The routing rules in force", [("_info", rules, 1.0)]
        yield "kiqcluster_build", "info", "The version that runs", [("_info", version, 1.0)]

    def _turn(self) -> float:
        return max(self._longest.seconds, self._longest.before)


def _counter(name: str, text: str, value: float) -> tuple[str, str, str, Samples]:
    return name, "counter", text, [("_total", (), value)]


def _present(views: list[SlotSnapshot], value: Callable[[SlotSnapshot], float | None], suffix: str) -> Samples:
    """Return a sample for each slot that has a value."""
    return [(suffix, (("slot", str(view.slot.number)),), found) for view in views if (found := value(view)) is not None]


def _family(name: str, kind: str, text: str, samples: Samples, form: Format) -> str:
    """Return a metric as text; nothing while it has no samples."""
    lines = [f"{sample_prefix(name + suffix, labels)}{format_value(value)}\n" for suffix, labels, value in samples]
    return family_header(name, kind, text, "", form) + "".join(lines) if lines else ""
