"""Recycling: which workers have run enough jobs or use too much memory, and are to be replaced.

Runs in: the supervisor's loop, at each turn.
1. jobs           the slot gets a replacement, as in a rolling restart
2. memory         the same, once a worker was above the limit at MAX_MEMORY_STRIKES checks in a row
3. memory_hard    the worker is asked to stop at once, if enough others serve; otherwise it is replaced
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from kiqcluster.control.slot_state import SlotState
from kiqcluster.process.clock import Clock
from kiqcluster.process.config import Config
from kiqcluster.process.durations import show_size
from kiqcluster.process.events import Events
from kiqcluster.supervisor.cluster.child import Child
from kiqcluster.supervisor.cluster.slots import Slot
from kiqcluster.supervisor.cluster.state import ClusterState

__all__ = ["MAX_MEMORY_STRIKES", "MEMORY_CHECK_SECONDS", "Recycling"]

MAX_MEMORY_STRIKES = 3  # checks in a row above recycle.memory
MEMORY_CHECK_SECONDS = 5.0  # between two checks of one worker


class Recycling:
    """config: returns the configuration that applies now.

    replace: queues a slot for replacement; returns whether that is new.  stop: asks a process to stop within seconds.
    """

    def __init__(
        self,
        config: Callable[[], Config],
        state: ClusterState,
        replace: Callable[[Slot, str], bool],
        stop: Callable[[Child, float, str], None],
        events: Events,
        clock: Clock,
    ) -> None:
        self._config = config
        self._state = state
        self._replace = replace
        self._stop = stop
        self._events = events
        self._clock = clock
        self._warned: set[tuple[str, float]] = set()  # limits that are too low, by name and value

    def check(self) -> None:
        """Queue the workers that have reached a limit."""
        for slot in self._state.slots:
            if slot.state.is_serving and slot.child is not None:
                if slot.child.beat.processed >= slot.child.job_limit:
                    self._replace(slot, "max_jobs")
                if slot.child.beat.rss and self._clock.monotonic() >= slot.memory_check_at:  # its first beat has come
                    slot.memory_check_at = self._clock.monotonic() + MEMORY_CHECK_SECONDS
                    self._check_memory(slot, slot.child)
                    return  # one worker a turn: a check takes a millisecond or more

    def _check_memory(self, slot: Slot, child: Child) -> None:
        config = self._config()
        if not config.recycle_memory and not config.recycle_memory_hard:
            return
        size = child.beat.unshared_bytes()
        soft = self._usable_limit("recycle.memory", config.recycle_memory, child)
        hard = self._usable_limit("recycle.memory_hard", config.recycle_memory_hard, child)
        slot.memory_strikes = slot.memory_strikes + 1 if size > soft else 0
        if size > hard and self._may_lose_one(config):
            self._emit_outgrown(slot, child, size, hard)
            self._stop(child, 0.0, "max_rss")
            return
        if (slot.memory_strikes >= MAX_MEMORY_STRIKES or size > hard) and self._replace(slot, "max_rss"):
            self._emit_outgrown(slot, child, size, min(soft, hard))

    def _emit_outgrown(self, slot: Slot, child: Child, size: int, limit: float) -> None:
        shown = {"size": show_size(round(size, -6)), "limit": show_size(round(limit))}
        self._events.emit("child_outgrown", slot=slot.number, child=child.pid, **shown)

    def _usable_limit(self, name: str, limit: int, child: Child) -> float:
        """Return a limit in bytes; inf if the child was above it at its start: its replacement would be, too."""
        size = child.boot_memory
        if not limit or size <= limit:
            return limit or inf
        if (name, limit) not in self._warned:
            self._warned.add((name, limit))
            problem = (
                f"{name} is {show_size(limit)}, and workers have {show_size(round(size, -6))} when they start: "
                "they are not replaced for it"
            )
            self._events.emit("setting_doubtful", problem=f"{problem}; raise it, or leave it out")
        return inf

    def _may_lose_one(self, config: Config) -> bool:
        """Return whether enough other slots serve."""
        floor = len(self._state.slots) - 1 if config.roll_min_serving is None else config.roll_min_serving
        return sum(slot.state is SlotState.READY for slot in self._state.slots) - 1 >= floor
