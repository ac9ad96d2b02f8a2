"""Runs with time limits: what a job may do about them, and what becomes of one whose process had to go."""

from __future__ import annotations

from typing import Any

import pytest

from kiqcluster import current_job, job
from kiqcluster.application.registry import Registry
from kiqcluster.features.stacks import Stacks, using_stacks
from kiqcluster.features.timeouts import Timeouts
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.outcome import Dead, Discard, Done, Interrupted, Outcome, Retry
from kiqcluster.sidekiq.payload import INVALID_PAYLOAD
from kiqcluster.sidekiq.ruby_json import encode
from kiqcluster.store.engine.units import Unit
from kiqcluster.worker.run.execution import Execution
from kiqcluster.worker.run.job_run import JobRun
from tests.unit.worker.run.test_execution import Feature, Worker, entry

TIMED_OUT = "kiqcluster.errors.JobTimedOut"


@pytest.fixture
def worker(setup: Setup, registry: Registry) -> Worker:
    return Worker(setup, registry)


def a_run(**keys: Any) -> JobRun:
    raw = encode({"class": "slow", "args": [], "jid": "a" * 24, "retry": True, **keys})
    return JobRun(Unit("default", raw, "token", "me"), 0.0)


class TestCooperative:
    @pytest.mark.parametrize(("seconds", "kind", "count"), [(4, Done, 0), (5, Retry, 1)])
    def test_a_job_that_checks_fails_once_its_time_is_over(
        self, worker: Worker, seconds: float, kind: type[Outcome], count: int
    ) -> None:
        @job(timeout=5)
        def slow() -> None:
            worker.clock.time += seconds
            running = current_job()
            assert running is not None
            running.check_timeout()

        outcome = worker.run("slow")

        assert type(outcome) is kind
        assert worker.sample("timed_out_total", "slow") == count
        if isinstance(outcome, Retry):
            assert (entry(outcome)["error_class"], entry(outcome)["retry_count"]) == (TIMED_OUT, 0)

    def test_a_job_that_does_not_check_ends_as_ever_and_counts(self, worker: Worker) -> None:
        @job(timeout=5)
        def slow() -> None:
            worker.clock.time += 6

        assert type(worker.run("slow")) is Done
        assert worker.sample("timed_out_total", "slow") == 1

    def test_the_time_begins_with_the_run_and_not_with_the_questions_before_it(self, worker: Worker) -> None:
        class Slow(Feature):
            def on_begin(self, run: Any) -> Any:
                worker.clock.time += 10
                return ()

        left: list[float | None] = []

        @job(timeout=15)
        def slow() -> None:
            running = current_job()
            assert running is not None
            left.append(running.seconds_left)

        worker.play(Slow(), Timeouts())
        worker.run("slow")

        assert left == [pytest.approx(15)]


class TestHard:
    def test_the_supervisor_is_told_of_the_unit_and_its_limit(self, worker: Worker) -> None:
        told: list[tuple[str, float]] = []
        job(name="slow", timeout_hard=60)(lambda: None)
        job(name="quick")(lambda: None)
        worker.execution = Execution(*worker._parts, on_limit=lambda token, limit: told.append((token, limit)))

        worker.run("quick")
        worker.run("slow")

        assert told == [("token", 60)]

    def test_it_has_failed_by_the_rules_of_retries(self, worker: Worker) -> None:
        job(name="slow", timeout_hard=60)(lambda: None)

        payload = entry(worker.execution.time_out(a_run()))

        assert (payload["error_class"], payload["retry_count"]) == (TIMED_OUT, 0)
        assert payload["error_message"] == "slow ran for longer than its timeout_hard of 60 s"
        assert [type(error).__name__ for error, _ in worker.reported] == ["JobTimedOut"]
        assert worker.counted()["slow", "default"] == {"failed": 1, "timed_out": 1, "fail": 1}
        ((_, line),) = [each for each in worker.events if each[0] == "job_failed"]
        assert line["elapsed"] >= 60, "it has run for so long at least, whatever the clock says"

    @pytest.mark.parametrize(
        ("keys", "kind"),
        [({"retry": 0}, Dead), ({"retry": False}, Discard), ({"retry": 1, "retry_count": 0, "failed_at": 1.0}, Dead)],
    )
    def test_one_without_attempts_left_is_given_up(
        self, worker: Worker, keys: dict[str, Any], kind: type[Outcome]
    ) -> None:
        job(name="slow", timeout_hard=60)(lambda: None)

        assert type(worker.execution.time_out(a_run(**keys))) is kind
        assert [type(error).__name__ for _, error in worker.told_of_deaths] == ["JobTimedOut"]

    def test_its_line_its_handlers_and_hooks_know_which_job_it_is(self, worker: Worker) -> None:
        job(name="slow", timeout_hard=60, retry_in=lambda *_: notice("hook"))(lambda: None)
        seen: list[tuple[str, str, str]] = []

        def notice(what: str) -> None:
            running = current_job()
            seen.append((what, "", "") if running is None else (what, running.name, running.jid))

        worker._parts[0].events.listen(lambda event, _: notice(event))
        worker.setup.error_handler(lambda *_: notice("handler"))

        worker.execution.time_out(a_run())

        assert seen == [(each, "slow", "a" * 24) for each in ("hook", "handler", "job_failed")]
        assert current_job() is None

    def test_features_see_its_end(self, worker: Worker) -> None:
        job(name="slow", timeout_hard=60)(lambda: None)
        seen: list[Outcome] = []
        feature = Feature(end=lambda end: seen.append(end.outcome) or ())  # type: ignore[func-returns-value]
        with using_stacks(Stacks(server=(feature,))):
            execution = Execution(*worker._parts)

        outcome = execution.time_out(a_run())

        assert seen == [outcome]

    def test_one_that_is_not_registered_here_has_failed_too(self, worker: Worker) -> None:
        assert entry(worker.execution.time_out(a_run()))["error_class"] == TIMED_OUT

    def test_bytes_that_are_no_job_are_buried(self, worker: Worker) -> None:
        outcome = worker.execution.time_out(JobRun(Unit("default", b"{", "token", "me"), 0.0))

        assert entry(outcome)["class"] == INVALID_PAYLOAD

    def test_its_neighbours_go_back_as_they_were(self, worker: Worker) -> None:
        job(name="slow", max_retries_after_interruption=0)(lambda: None)
        run = a_run(interrupted_count=7)

        outcome = worker.execution.put_back(run)

        assert outcome == Interrupted(run.unit.payload)
        assert worker.counted()["slow", "default"] == {"interrupted": 1}
