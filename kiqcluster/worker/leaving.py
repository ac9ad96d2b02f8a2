"""Leaving: returns the units of a worker to Redis at its end.

Runs in: the worker's main thread, after processors were asked to stop.
1. cancel    async jobs that still run, and report which others do
2. leave     settle, put back the units that still run, end the membership; again while Redis is away
3. give up   others recover the units of this process, like those of the dead (R7)
"""

from __future__ import annotations

from collections.abc import Collection
from threading import Event

from kiqcluster.errors import StoreError
from kiqcluster.process.runtime import Runtime
from kiqcluster.sidekiq.payload import peek
from kiqcluster.worker.parts import Parts

__all__ = ["LAST_STEP_SECONDS", "leave"]

MAX_LEAVE_SECONDS, LEAVE_RETRY_SECONDS = 4.0, 0.1  # while Redis does not answer; between tries
CANCEL_SECONDS = 0.5  # that async jobs get to end once they are cancelled
LAST_STEP_SECONDS = 1.5  # for each of the last steps; they must fit into the supervisor's grace
NEVER_SET = Event()  # to wait on between tries


def leave(runtime: Runtime, parts: Parts, *, is_requested: bool, timed_out: Collection[str]) -> bool:
    """Put back the units of this process; return whether Redis took them before the grace was used up.

    is_requested, timed_out: see Launcher.finish_stop.
    """
    processors, fetch = parts.processors, parts.fetch
    until = runtime.clock.monotonic() + MAX_LEAVE_SECONDS
    if is_requested:
        processors.cancel(CANCEL_SECONDS)
    running = [each.unit for each in processors.running()]
    interrupted = processors.interrupt(timed_out) if is_requested else processors.ended()
    suspects = [] if is_requested else [run.unit.token for run in processors.suspects()]
    if running:
        event = "worker_interrupted" if is_requested else "stop_unasked"
        jids = ", ".join(peek(unit.payload)[1] for unit in running)
        runtime.events.emit(event, running=len(running), jids=jids)
    while True:
        try:
            have_ended = parts.manager.end_waits(LAST_STEP_SECONDS)
            fetch.leave(interrupted, LAST_STEP_SECONDS, suspects, have_waits_ended=have_ended)
        except StoreError as error:
            if runtime.clock.monotonic() + LAST_STEP_SECONDS < until:
                NEVER_SET.wait(LEAVE_RETRY_SECONDS)
                continue
            units = max(fetch.running(), len(running))
            has_all = not units and fetch.coordinator.is_certain()
            if not has_all:
                identity = fetch.member.identity
                runtime.events.emit("worker_stranded", identity=identity, units=units, error=str(error))
            return has_all
        else:
            return True
