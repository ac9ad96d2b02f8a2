"""JobRun: one unit while a processor, or the event loop, runs it; and Reader, which reads its job."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from kiqcluster.application.registry import Registry
from kiqcluster.features.stacks import current_stacks
from kiqcluster.process.job_context import CURRENT_JOB, JobContext
from kiqcluster.sidekiq.outcome import Effect, Outcome
from kiqcluster.sidekiq.payload import Payload, peek
from kiqcluster.store import Store
from kiqcluster.store.engine.units import Unit
from kiqcluster.worker.run.endings import Ending
from kiqcluster.worker.run.read_job import ReadJob, payload_of

__all__ = ["AsyncJobs", "AsyncPlaces", "JobRun", "Reader"]


@dataclass(slots=True)
class JobRun:
    """A unit, and what is known of its run.

    One processor writes it; the main thread and the heartbeat read it, and may tell the job something by `context`.
    since: epoch seconds.  job, context: what was read of the unit, and what the job sees of itself; None until then.
    original_payload: as it came, for features; None until one is asked.
    effects: the rows that server middleware adds, None while there are none; they are written with whatever outcome
    the run gets.  has_begun: whether an error of the run may be the job's own.  ending: None until it has ended.
    outcome: None until it is decided; from there on the job must not run again.
    is_overdue: whether the log says that it has run for longer than its `timeout`.
    record: of RunningJobs, for a job that may run on the event loop, else None.  started: monotonic seconds.
    told_progress: what Redis has of its progress, and since when, monotonic seconds.
    has_asked: whether its begin rows were put to Redis.
    obey_soon: of an async job for which its processor waits: cancels it where it waits, if it was told; any thread.
    """

    unit: Unit
    since: float
    context: JobContext | None = None
    job: ReadJob | None = None
    original_payload: Payload | None = None
    effects: list[Effect] | None = None
    has_begun: bool = False
    ending: Ending | None = None
    outcome: Outcome | None = None
    record: int | None = None
    started: float = 0.0
    told_progress: tuple[tuple[float, float | None], float] | None = None
    is_overdue: bool = False
    has_asked: bool = False
    obey_soon: Callable[[], object] | None = None

    def release(self) -> None:
        """Let go of the ending of a run, for the one who has its outcome: its error has frames that have the run.

        In such a cycle, whatever the job held would stay until the collector of cycles comes.
        """
        self.ending = None

    def describe(self, now: float) -> str:
        """Return the job's class and jid, and for how long it has run.  now: epoch seconds."""
        name, jid = peek(self.unit.payload)
        name = name if self.context is None else self.context.name
        return f"{name} {jid}, for {max(0.0, now - self.since):.1f} s"


class Reader:
    """stopping, is_fenced, store: what jobs see of the process (JobContext)."""

    def __init__(
        self, registry: Registry, stopping: threading.Event, is_fenced: Callable[[str], bool], store: Store
    ) -> None:
        self._registry = registry
        self._features_of = current_stacks().run.of
        self._stopping = stopping
        self._is_fenced = is_fenced
        self._store = store
        self._pid = os.getpid()  # of the worker: made after its fork

    def begin(self, run: JobRun) -> ReadJob:
        """Return the job of a run, which knows it and its context from here on.  Raises MalformedPayload."""
        unit = run.unit
        payload = payload_of(unit)
        name, definition = self._registry.find(payload)
        job = ReadJob(unit, payload, name, definition, self._features_of(definition, payload))
        run.context = JobContext(
            payload, unit.queue, name, self._stopping, unit.identity, self._is_fenced, (unit, self._store), self._pid
        )
        run.job = job  # last: another thread that sees it has the context as well
        return job

    def identify(self, run: JobRun) -> ReadJob:
        """Return the job of a unit that may not have begun; its features see its end.  Raises MalformedPayload.

        It becomes the current job of this context, so that lines of the log name it.
        """
        run.unit.holds = True  # its thread may take a place at this moment (limits)
        job = run.job or self.begin(run)
        CURRENT_JOB.set(run.context)
        return job


class AsyncPlaces(Protocol):
    """The places of the event loop (async_processor.Places)."""

    def take(self) -> int | None: ...

    def leave(self, record: int) -> None: ...

    def is_full(self) -> bool: ...

    def wait(self) -> None: ...


class AsyncJobs(Protocol):
    """What runs async jobs (async_processor.AsyncProcessor); called by processors."""

    @property
    def places(self) -> AsyncPlaces: ...

    def run_on_loop(self, run: JobRun, record: int, coroutine: Coroutine[Any, Any, Any]) -> None: ...

    def complete(self, run: JobRun, coroutine: Coroutine[Any, Any, Any]) -> Any: ...

    def limit(self, record: int, token: str, seconds: float) -> None: ...
