"""Timeouts: what a job is told of its time, and which limits are refused."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from threading import Event

import pytest

from kiqcluster import Job, job
from kiqcluster.application.registry import Definition
from kiqcluster.errors import JobDefinitionError, JobTimedOut
from kiqcluster.features.hooks.job_start import JobStart
from kiqcluster.features.hooks.run_hooks import NO_FEATURES
from kiqcluster.features.timeouts import Timeouts
from kiqcluster.process.job_context import JobContext
from kiqcluster.store.engine.units import Unit
from kiqcluster.worker.run.endings import hard_timeout
from kiqcluster.worker.run.read_job import ReadJob
from tests.kit import ManualClock


def context() -> JobContext:
    return JobContext({"jid": "a" * 24}, "default", "slow", Event())


def declared(**options: float) -> Definition:
    @job(**options)  # type: ignore[arg-type]
    def slow() -> None: ...

    return slow.definition


def start(
    running: JobContext,
    definition: Definition,
    clock: ManualClock,
    on_limit: Callable[[str, float], None] = lambda _token, _seconds: None,
) -> None:
    Timeouts().on_start(JobStart(running, definition, "token", clock.monotonic, on_limit))


class TestCooperative:
    def test_a_job_is_told_what_is_left(self) -> None:
        clock, running = ManualClock(), context()
        start(running, declared(timeout=5), clock)

        clock.time += 3

        assert running.seconds_left == pytest.approx(2)
        assert not running.timed_out
        running.check_timeout()

    def test_a_check_raises_once_the_time_is_over(self) -> None:
        clock, running = ManualClock(), context()
        start(running, declared(timeout=5), clock)

        clock.time += 5

        assert running.timed_out
        with pytest.raises(JobTimedOut, match=r"slow ran for longer than its timeout of 5 s") as caught:
            running.check_timeout()
        assert isinstance(caught.value, TimeoutError)
        assert (caught.value.option, caught.value.limit) == ("timeout", 5)

    def test_a_job_without_one_never_times_out(self) -> None:
        running = context()

        assert (running.seconds_left, running.timed_out) == (None, False)
        running.check_timeout()

    def test_it_does_not_ask_the_job_to_stop(self) -> None:
        """A job that answers by Interrupted would run again, for ever."""
        clock, running = ManualClock(), context()
        start(running, declared(timeout=5), clock)

        clock.time += 6

        assert not running.stopping


class TestHard:
    def test_the_supervisor_is_told_the_limit(self) -> None:
        told: list[tuple[str, float]] = []

        def tell(token: str, seconds: float) -> None:
            told.append((token, seconds))

        start(context(), declared(timeout_hard=60), ManualClock(), tell)

        assert told == [("token", 60)]

    def test_its_error_names_the_job_and_the_limit(self) -> None:
        definition = declared(timeout_hard=60)
        error = hard_timeout(ReadJob(Unit("q", b"", "token", "me"), {}, "slow", definition, NO_FEATURES))

        assert str(error) == "slow ran for longer than its timeout_hard of 60 s"
        assert str(pickle.loads(pickle.dumps(error))) == str(copy.copy(error)) == str(error)


class TestDeclared:
    @pytest.mark.parametrize("value", [0, -1, True, "5", 1e9])
    @pytest.mark.parametrize("option", ["timeout", "timeout_hard"])
    def test_what_is_no_duration_is_refused(self, option: str, value: object) -> None:
        with pytest.raises(JobDefinitionError, match=option):
            declared(**{option: value})  # type: ignore[arg-type]

    @pytest.mark.parametrize("hard", [10, 5])
    def test_a_hard_one_that_is_not_the_larger_is_refused(self, hard: float) -> None:
        with pytest.raises(JobDefinitionError, match="make timeout_hard the larger one"):
            declared(timeout=10, timeout_hard=hard)

    def test_they_are_inherited_and_not_written_to_payloads(self) -> None:
        class Slow(Job, timeout=10, timeout_hard=20):
            def perform(self) -> None: ...

        class Slower(Slow, timeout_hard=30):
            def perform(self) -> None: ...

        assert (Slower.definition.local["timeout"], Slower.definition.local["timeout_hard"]) == (10, 30)
        assert Slower.definition.options.keys().isdisjoint(("timeout", "timeout_hard"))
        assert Slower.definition.has_timeout
        assert not declared().has_timeout
