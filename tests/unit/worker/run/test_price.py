"""The price of a job that uses no feature, in calls of functions of ours: they can be counted, unlike microseconds."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from types import FrameType
from typing import Any

import kiqcluster
from kiqcluster import job
from kiqcluster.application.registry import Registry
from kiqcluster.process.clock import WorkerClock
from kiqcluster.process.events import Events
from kiqcluster.process.metrics import JobMetrics
from kiqcluster.process.runtime import Runtime, Setup
from kiqcluster.sidekiq.outcome import Done
from kiqcluster.sidekiq.ruby_json import encode
from kiqcluster.store.engine.units import Unit
from kiqcluster.worker.run.execution import Execution
from kiqcluster.worker.run.job_run import JobRun
from tests.kit import ManualClock

OURS = str(Path(kiqcluster.__file__).parent)
MOST_CALLS = 15  # of a run; more are for features, for what fails, or a mistake


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count the calls of our functions in this thread, by name."""
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            calls[frame.f_code.co_qualname] += 1

    before: Callable[..., Any] | None = sys.getprofile()
    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(before)


def test_a_run_without_features_calls_few_functions(setup: Setup, registry: Registry) -> None:
    @job
    def noop() -> None: ...

    runtime = Runtime(setup.current_config(), setup.current_store(), setup, Events(), ManualClock())
    execution = Execution(runtime, registry, JobMetrics(1, list), Event())
    payload = encode({"class": "noop", "args": [], "jid": "a" * 24, "queue": "default", "retry": True})
    unit = Unit("default", payload, "token", "me", reserved_at=runtime.clock.monotonic())
    outcomes = [execution.execute(JobRun(unit, 0.0))]  # the first run of a class makes what the others find

    with counted() as calls:
        outcomes.append(execution.execute(JobRun(unit, 0.0)))

    assert outcomes == [Done(), Done()]
    assert calls.total() <= MOST_CALLS, dict(calls)


def test_a_worker_reads_its_clocks_without_a_call_of_ours() -> None:
    with counted() as calls:
        clock = WorkerClock()
        clock.now()
        clock.monotonic()

    assert calls.total() == 0, dict(calls)
