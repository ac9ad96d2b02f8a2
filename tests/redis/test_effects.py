"""Effects: what a server link wants written with a run's end is written with it, whatever that end is."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from kiqcluster import Outcome, Run, job
from kiqcluster.application.registry import Registry
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.process.metrics import JobMetrics
from kiqcluster.process.runtime import Runtime, Setup
from kiqcluster.sidekiq.outcome import Effect
from kiqcluster.store import Store
from kiqcluster.store.engine.engine import Engine
from kiqcluster.store.engine.units import Member, Settlement
from kiqcluster.store.entry_moves import DeadSetLimits
from kiqcluster.worker.run.execution import Execution
from kiqcluster.worker.run.job_run import JobRun

ME = Member("host:1:aaaaaaaaaaaa", 1, "boot ns 1 2")
NOW = 1_795_168_740.25


@pytest.mark.parametrize(("name", "ends_in"), [("fine", None), ("broken", "retry"), ("hopeless", "dead")])
def test_a_links_effects_are_written_with_any_outcome_and_with_that_run_only(
    store: Store, setup: Setup, registry: Registry, name: str, ends_in: str | None
) -> None:
    @job(name="fine")
    def fine() -> None: ...

    def fail() -> None:
        raise ValueError("on purpose")

    job(name="broken")(fail)
    fail_for_good = type(fail)(fail.__code__, {**fail.__globals__}, "fail_for_good")
    fail_for_good.__qualname__ = "fail_for_good"
    job(name="hopeless", retry=0)(fail_for_good)

    @setup.server_middleware.add
    def release(run: Run, proceed: Any) -> Outcome | None:
        run.effects.append(Effect("sadd", "released", (run.jid,)))
        result: Outcome | None = proceed()
        return result

    engine = Engine(store, DeadSetLimits(100, 1_000.0))
    engine.join(ME)
    execution = Execution(Runtime(Config(), store, setup, Events()), registry, JobMetrics(1, list), threading.Event())
    for jid in ("first", "second"):
        store.call(
            "LPUSH",
            "queue:default",
            f'{{"class":"{name}","args":[],"jid":"{jid}","retry":{0 if name == "hopeless" else 3}}}',
        )

    with store.borrowed() as connection:
        _, reserved = engine.exchange(connection, ME, 1, {"default": (2, 2)}, [], NOW)
        assert reserved is not None
        first, second = (Settlement(unit, execution.execute(JobRun(unit, NOW))) for unit in reserved.units)
        engine.settle(connection, [first], NOW)
        assert store.call("SMEMBERS", "released") == [b"first"]
        engine.settle(connection, [second], NOW)

    assert sorted(store.call("SMEMBERS", "released")) == [b"first", b"second"]
    if ends_in is not None:
        assert store.call("ZCARD", ends_in) == 2
