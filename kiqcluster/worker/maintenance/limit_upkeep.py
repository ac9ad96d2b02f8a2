"""Upkeep of concurrency limits: what no job's begin or end does.

Runs in: the poller's thread (sweep, ends of overrides), which runs code of the application anyway; the heartbeat's
(count_threads).
1. count_threads   the threads of the fleet, for limits in percent: before the first job, and once a minute, from
                   Sidekiq's process list
2. source          an override ends: the jobs that have room by then go on
3. sweep           the safety net, a duty of the fleet: a look at each line of parked jobs; one command where there
                   are none.  It also notices that a function returns another limit by now
4. left lines      those of an earlier release of the application: no job of this one asks for a place there, since its
                   class has lost the option, or its key is another one by now.  Nobody would send the next job on, so a
                   sweep sends all

Threads are counted, and ends of overrides awaited, only where the application declares such a limit, or equal jobs that
run one after the other.  Applications without limits sweep too: jobs may be parked by a release that had some.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from kiqcluster.application.options import EXCLUSIVE
from kiqcluster.application.registry import Definition, Registry
from kiqcluster.control.process_registry import field_commands, live_fields
from kiqcluster.errors import StoreError
from kiqcluster.features.deduplication import ONE_AT_A_TIME, ServerDeduplication
from kiqcluster.features.limits.concurrency_limit import FLEET, OPTION, ConcurrencyLimits, limit_of
from kiqcluster.process.boundary.calls import guarded
from kiqcluster.process.runtime import Runtime
from kiqcluster.store.engine.units import Unit
from kiqcluster.store.entry_moves import Move
from kiqcluster.store.limits.parking import MAX_LINES, name_of, override_of, parked_sets, send_lines
from kiqcluster.store.scripts import sliced
from kiqcluster.store.wire import Command, server_time
from kiqcluster.worker.maintenance.poller import DueSource
from kiqcluster.worker.run.read_job import payload_of

__all__ = ["LimitUpkeep"]

COUNT_SECONDS = 60.0
RETRY_SECONDS = 5.0  # until the end of an override is tried again, which Redis refused
MAX_PER_ROUND_TRIP = 500  # processes asked for their threads
MAX_THREAD_DIGITS = 6  # of what a process tells; anything may stand there
MAX_ROUNDS = 10  # of one look at a line: 10 000 jobs where there is no limit, as for a line that a release has left
MARGIN_SECONDS = 0.01  # after the end of an override
GRANT_MS = 10_000  # that a place is kept for a job on its way (lua/parked.lua)
HALVES = (ServerDeduplication(), ConcurrencyLimits())  # that have jobs wait in lines


class LimitUpkeep:
    """concurrency: threads of this process.  is_stopping: whether a sweep should end before it is through."""

    def __init__(
        self,
        runtime: Runtime,
        registry: Registry,
        concurrency: int,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._runtime = runtime
        self._store = runtime.store
        self._registry = registry
        self._concurrency = concurrency
        self._is_stopping = is_stopping
        self._count_at = 0.0
        FLEET.count = concurrency

    @property
    def is_needed(self) -> bool:
        return any(OPTION in each.local or each.local.get("deduplicate") in EXCLUSIVE for each in self._registry)

    def count_threads(self) -> None:
        """Count the threads of the fleet, if some time has passed.  Two round trips, one more per 500 processes."""
        now = self._runtime.clock.monotonic()
        if now < self._count_at or not self.is_needed:
            return
        keys = self._store.keys
        names = [name.decode(errors="replace") for name in self._store.call("SMEMBERS", keys.processes)]
        total = 0
        replies = self._store.read_each(field_commands(keys, names, "concurrency"), 2 * MAX_PER_ROUND_TRIP)
        for threads in live_fields(replies):
            if threads is not None and threads.isdigit() and len(threads) <= MAX_THREAD_DIGITS:
                total += int(threads)
        FLEET.count = max(total, self._concurrency)
        self._count_at = now + COUNT_SECONDS

    def source(self) -> DueSource:
        """Return the ends of overrides, for the poller."""
        return DueSource(self._store.keys.limit_ends, self._end)

    def sweep(self) -> None:
        """Look at the lines of parked jobs.

        One round trip where no job is parked, else one for a hundred lines.  Raises StoreError when Redis is away.
        """
        if self._store.call("EXISTS", self._store.keys.parked_sets):
            self._send()

    def _end(self, entry: bytes, now: float) -> Move:
        """Send on what has room since an override has ended.  now: of the clock by which the entry is due."""
        name = entry.decode(errors="replace")
        try:
            time, value = self._store.pipeline([("TIME",), ("HGET", self._store.keys.limits, f"{name}|override")])
            here = server_time(time)
            if found := override_of(value, here):  # this host's clock is ahead of Redis'
                return Move(entry, "defer", "", repr(now + found[1] - here + MARGIN_SECONDS).encode())
            self._send(name)
        except StoreError as error:
            self._runtime.trouble("limits", error)
            return Move(entry, "defer", "", repr(now + RETRY_SECONDS).encode())
        return Move(entry, "drop")

    def _send(self, name: str | None = None) -> None:
        """Look at the lines of one limit, None for all; a refused one holds up no other."""
        limits: dict[str, int | None] = {}  # each asked once: with keys, a class has many lines
        lines = []
        for slots in set(parked_sets(self._store)):
            own = name_of(self._store.keys, slots)[0]
            if name in (None, own):
                if own not in limits:
                    limits[own] = self._limit(own)
                lines.append((slots, limits[own]))
        left = self._left_lines([slots for slots, _ in lines])
        used = [(slots, limit) for slots, limit in lines if slots not in left]
        refused = send_lines(self._store, [*used, *((slots, 0) for slots in left)], MAX_ROUNDS, self._is_stopping)
        for refusal in refused:
            self._runtime.trouble("limits", refusal)

    def _left_lines(self, lines: Sequence[str]) -> set[str]:
        """Return the lines of an earlier release of the application: nobody has a place, nor is on the way, and their
        first job, as this release knows its class, would ask for a place elsewhere, or for none.

        One round trip for MAX_LINES lines, and one more where nobody has a place.  Raises StoreError.
        """
        keys, left = self._store.keys, set[str]()
        known = [slots for slots in lines if self._definition(slots) is not None]
        fresh = 1_000 * server_time(self._store.call("TIME")) - GRANT_MS if known else 0.0
        for some in sliced(known, MAX_LINES):
            asked: list[Command] = [("EXISTS", slots) for slots in some]
            asked += [("ZCOUNT", keys.grants(slots), fresh, "+inf") for slots in some]
            replies = self._store.read_each(asked)
            quiet = [slots for at, slots in enumerate(some) if replies[at] == replies[len(some) + at] == 0]
            firsts = self._store.read_each([("ZRANGE", keys.parked(slots), 0, 0) for slots in quiet])
            for slots, first in zip(quiet, firsts, strict=True):
                if isinstance(first, list) and first and self._is_left(slots, first[0]):
                    left.add(slots)
        return left

    def _is_left(self, slots: str, entry: bytes) -> bool:
        """Return whether the job of an entry would not wait in this line by now; False where that cannot be told."""
        definition = self._definition(slots)
        _, _, raw = entry.partition(b"\0")
        if definition is None:
            return False

        def is_elsewhere() -> bool:
            payload, used = payload_of(Unit("", raw, "", "")), [half for half in HALVES if half.is_used_by(definition)]
            return slots not in [half.line_of(definition, payload, self._store.keys) for half in used]

        return guarded(lambda _: False, is_elsewhere)  # where that fails, the job finds out at its begin

    def _definition(self, slots: str) -> Definition | None:
        name = name_of(self._store.keys, slots)[0]
        return self._registry.get(name) or self._registry.get(name.removesuffix(ONE_AT_A_TIME))

    def _limit(self, name: str) -> int | None:
        """Return the limit that a class declares; None where it is not known here, or cannot be told."""
        definition = self._registry.get(name)
        if definition is None or OPTION not in definition.local:
            return 1 if name.endswith(ONE_AT_A_TIME) else None
        return guarded(partial(self._report_limit, name), limit_of, definition.local[OPTION], FLEET.count)

    def _report_limit(self, name: str, raised: BaseException) -> None:
        self._runtime.setup.notify_once(raised, f"{OPTION} of {name}")
