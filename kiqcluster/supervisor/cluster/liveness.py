"""Liveness: which children do not respond, and what their threads are at.

Runs in: the supervisor's loop, at each look at the deadlines.
1. look       a child that is ready and has said nothing for UNRESPONSIVE_SECONDS is unresponsive; it is asked for its
              stacks, which a handler in C writes, also while a job holds the interpreter
2. ask        the same for one that somebody wants to know of
3. read       DUMP_SECONDS later, the stacks are told

A child that is to be killed for its silence is asked as well: see processes.py.
"""

from __future__ import annotations

from math import inf

from kiqcluster.clock import Clock
from kiqcluster.process.events import Events
from kiqcluster.supervisor.cluster.slots import Child, Slot, describe_jobs

__all__ = ["DUMP_SECONDS", "UNRESPONSIVE_SECONDS", "Liveness"]

UNRESPONSIVE_SECONDS = 5.0  # without a word, of which a worker sends one a second
DUMP_SECONDS = 0.3  # from the question to the reading of stacks


class Liveness:
    """Keeps `is_unresponsive` and the stacks of children."""

    def __init__(self, events: Events, clock: Clock) -> None:
        self._events = events
        self._clock = clock

    def look(self, slot: Slot, child: Child, *, is_leaving: bool) -> None:
        """Look at one child.  is_leaving: it may be silent; it has a deadline of its own."""
        now = self._clock.monotonic()
        if child.is_ready and not is_leaving:
            seconds = now - child.last_frame_at
            if seconds >= UNRESPONSIVE_SECONDS:
                self._on_silence(slot, child, seconds)
            elif child.is_unresponsive:
                child.is_unresponsive = False
                self._events.emit("child_responds", slot=slot.number, child=child.pid)
        if now >= child.dump_due:
            child.dump_due = inf
            if stacks := child.read_stacks():
                self._events.emit("child_stacks", slot=slot.number, child=child.pid, stacks=stacks)

    def _on_silence(self, slot: Slot, child: Child, seconds: float) -> None:
        jobs = child.running_jobs.jobs()
        child.busy = len(jobs)  # its beats tell it no more
        if child.is_unresponsive:
            return
        child.is_unresponsive = True
        epoch = self._clock.now()
        self._events.emit(
            "child_unresponsive", slot=slot.number, child=child.pid, seconds=seconds,
            running=[each.as_json(epoch) for each in jobs], report=describe_jobs(jobs, epoch),
        )  # fmt: skip
        self.ask(child)

    def ask(self, child: Child) -> bool:
        """Ask a child for its stacks; return whether there is somebody to answer."""
        if child.stacks is None:
            return False
        try:
            child.stacks.request(child.pid)
        except OSError:  # it has died
            return False
        child.dump_due = self._clock.monotonic() + DUMP_SECONDS
        return True
