"""Running: runs a job from its bytes as a worker does, in the calling thread.

The worker's own Execution runs it, so middleware, the job's options, its hooks and the handlers work as in production.
Nothing is written, and no Redis is needed.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from random import Random
from typing import Any

from kiqcluster.application.registry import current_registry
from kiqcluster.errors import RetryError
from kiqcluster.process.events import Events
from kiqcluster.process.metrics import JobMetrics
from kiqcluster.process.runtime import CONTEXTS_WITH_EVENTS, Runtime, current_setup
from kiqcluster.sidekiq.outcome import Outcome
from kiqcluster.store.engine.units import Unit
from kiqcluster.worker.run.execution import Execution
from kiqcluster.worker.run.job_run import JobRun

__all__ = ["perform"]

SEED = 0  # of the jitter of retries, so that every run of a test has the same times


def perform(raw: bytes, queue: str) -> tuple[Outcome, BaseException | None]:
    """Run a job; return its outcome, and the error that it raised.

    Exceptions that end the test, not the job, are raised: Ctrl-C, and pytest's skip and fail.
    """
    raised: list[BaseException] = []

    def note(error: Exception, context: dict[str, Any]) -> None:
        if context.get("context") in CONTEXTS_WITH_EVENTS:
            raised.append(_original(error))

    def note_failure(event: str, fields: dict[str, Any]) -> None:
        if event == "job_failed":
            said.append(f"{fields['outcome']}: {fields['error']}")

    said: list[str] = []
    events = Events()
    events.listen(note_failure, lambda event: event == "job_failed")
    setup = current_setup()
    watched = replace(setup, error_handlers=[*setup.error_handlers, note])
    runtime = Runtime(setup.current_config(), setup.current_store(), watched, events, rng=Random(SEED))
    execution = Execution(runtime, current_registry(), JobMetrics(1, list), threading.Event())
    run = JobRun(Unit(queue, raw, token="", identity=""), runtime.clock.now())
    outcome = execution.execute(run)
    assert outcome is not None, "it had no event loop to leave the job to"
    failure = None if run.ending is None else run.ending.failure
    if not raised and isinstance(failure, RetryError):
        raised.append(failure)  # of which no handler is told
    if not raised:
        return outcome, RuntimeError(said[0]) if said else None
    error = raised[0]
    if not isinstance(error, Exception | SystemExit | GeneratorExit):
        raise error
    return outcome, error


def _original(error: Exception) -> BaseException:
    """Return the exception that a job raised, if handlers received another one in its place."""
    cause = error.__cause__
    return cause if type(error) is RuntimeError and cause is not None and not isinstance(cause, Exception) else error
