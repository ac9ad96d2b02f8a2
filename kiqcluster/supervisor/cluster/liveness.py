"""Liveness: which children do not respond, and the stacks of their threads.

Runs in: the supervisor's loop, at each look at the deadlines.
1. check            a ready child without a frame for UNRESPONSIVE_SECONDS is unresponsive; its stacks are requested,
                    which a handler in C writes, also while a job holds the interpreter lock
2. request_stacks   the same for another child
3. DUMP_SECONDS later, `check` reads the stacks, logs them, and has another child publish them

A child that is to be killed for its silence is asked as well: see processes.py.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import psutil

from kiqcluster.process.clock import Clock
from kiqcluster.process.events import Events
from kiqcluster.supervisor.cluster.child import Child, describe_jobs
from kiqcluster.supervisor.cluster.slots import Slot

__all__ = ["DUMP_SECONDS", "UNRESPONSIVE_SECONDS", "Liveness"]

UNRESPONSIVE_SECONDS = 5.0  # without a frame; a worker sends one a second
DUMP_SECONDS = 0.3  # from the request until the stacks are read

OnStacks = Callable[[Slot, Child, str], None]


class Liveness:
    """Keeps `is_unresponsive` and the stacks of children."""

    def __init__(self, events: Events, clock: Clock, on_stacks: OnStacks = lambda _slot, _child, _stacks: None) -> None:
        """on_stacks: called with the requested stacks of a child."""
        self._events = events
        self._clock = clock
        self._on_stacks = on_stacks

    def check(self, slot: Slot, child: Child, *, is_leaving: bool) -> None:
        """Check one child.  is_leaving: it may be silent, since it has a deadline to stop."""
        now = self._clock.monotonic()
        if child.is_ready and not is_leaving:
            seconds = now - child.responses.last_frame_at
            if seconds >= UNRESPONSIVE_SECONDS:
                self._on_silence(slot, child, seconds)
            elif child.responses.is_unresponsive:
                child.responses.is_unresponsive = False
                self._events.emit("child_responds", slot=slot.number, child=child.pid)
        if now >= child.responses.dump_due:
            child.responses.dump_due = inf
            if stacks := child.responses.read_stacks():
                self._events.emit("child_stacks", slot=slot.number, child=child.pid, stacks=stacks)
                self._on_stacks(slot, child, stacks)

    def _on_silence(self, slot: Slot, child: Child, seconds: float) -> None:
        jobs = child.running_jobs.jobs()
        child.beat.busy = len(jobs)  # no beat reports it any more
        if child.responses.is_unresponsive:
            return
        child.responses.is_unresponsive = True
        epoch = self._clock.now()
        self._events.emit(
            "child_unresponsive", slot=slot.number, child=child.pid, seconds=seconds,
            running=[each.as_json(epoch) for each in jobs], report=describe_jobs(jobs, epoch),
        )  # fmt: skip
        self.request_stacks(child)

    def request_stacks(self, child: Child) -> bool:
        """Ask a child for its stacks; return whether it can answer.

        A child that is stopped (SIGSTOP, a debugger) would answer at the moment when it goes on.  Then its threads run
        while the handler reads their frames, which can crash it.
        """
        if child.responses.stacks is None or _is_stopped(child.pid):
            return False
        try:
            child.responses.stacks.request(child.pid)
        except OSError:  # it has died
            return False
        child.responses.dump_due = self._clock.monotonic() + DUMP_SECONDS
        return True


def _is_stopped(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return False
