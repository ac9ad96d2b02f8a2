"""Policies: who decides, what becomes of the job, and what those that come with the product decide."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from kiqcluster import Client, Job, job, policies
from kiqcluster.errors import JobDefinitionError, UsageError
from kiqcluster.policies import Decision, Defer, Drop, Policy
from kiqcluster.process.runtime import Run, Setup
from kiqcluster.sidekiq.outcome import Deferred, Done, Dropped, Retry
from kiqcluster.sidekiq.ruby_json import decode, encode
from tests.unit.features.test_size_limiter import Written
from tests.unit.worker.run.test_deferrals import BY_LIMIT
from tests.unit.worker.run.test_execution import Worker, entry


@pytest.fixture
def ran(worker: Worker) -> list[str]:
    return []


def declare(ran: list[str], policy: Any) -> None:
    job(name="Rebuild", policy=policy)(lambda word: ran.append(word))


def always(decision: Decision) -> Policy:
    return lambda _run: decision


class TestVerdicts:
    def test_none_runs_the_job(self, worker: Worker, ran: list[str]) -> None:
        declare(ran, always(None))

        assert worker.run("Rebuild", "a") == Done()
        assert ran == ["a"]

    def test_a_deferred_job_waits_for_the_time_with_its_reason_and_no_attempt_is_counted(
        self, worker: Worker, ran: list[str]
    ) -> None:
        declare(ran, always(Defer(30, "moon")))

        outcome = worker.run("Rebuild", "a")

        assert isinstance(outcome, Deferred)
        assert outcome.at == worker.clock.time + 30
        assert (entry(outcome)["deferred_by"], entry(outcome)["deferred_count"]) == ("moon", 1)
        assert "retry_count" not in entry(outcome)
        assert (ran, worker.reported) == ([], [])
        assert worker.sample("skipped_total", "Rebuild", action="deferred") == 1

    def test_its_deferrals_are_counted_in_its_payload(self, worker: Worker, ran: list[str]) -> None:
        declare(ran, always(Defer(30, "moon")))
        raw = encode({"class": "Rebuild", "args": ["a"]})

        for count in (1, 2, 3):
            outcome = worker.run_bytes(raw)
            assert isinstance(outcome, Deferred)
            raw = outcome.payload
            assert (decode(raw)["deferred"], decode(raw)["deferred_count"]) == (True, count)

    @pytest.mark.parametrize("seconds", [nan, inf, -inf, -1, 10 * 366 * 86_400, 10**400, True, "5", None])
    def test_a_job_cannot_be_deferred_by_what_is_no_sensible_time(self, seconds: Any) -> None:
        with pytest.raises(UsageError, match="seconds"):
            Defer(seconds)
        with pytest.raises(UsageError, match="seconds"):
            policies.feature_flag(lambda _name: True, delay=seconds)
        with pytest.raises(UsageError, match="seconds"):
            policies.health_signal(lambda: True, delay=seconds)
        with pytest.raises(UsageError, match="seconds"):
            policies.ReplicaReached(lambda: "", lambda _position: True, delay=seconds)

    @pytest.mark.parametrize("seconds", [0, 0.5, 9 * 365 * 86_400])
    def test_any_other_time_will_do(self, seconds: float) -> None:
        assert Defer(seconds).seconds == seconds

    def test_a_dropped_job_is_kept_among_the_dropped_with_its_reason(self, worker: Worker, ran: list[str]) -> None:
        declare(ran, always(Drop("moon")))

        outcome = worker.run("Rebuild", "a")

        assert isinstance(outcome, Dropped)
        assert (decode(outcome.payload)["dropped"], decode(outcome.payload)["dropped_by"]) == (True, "moon")
        assert ran == []

    def test_the_first_of_several_that_decides_decides(self, worker: Worker, ran: list[str]) -> None:
        asked: list[str] = []

        def named(name: str, decision: Decision) -> Policy:
            def decide(run: Run) -> Decision:
                asked.append(f"{name} {run.job.name} {run.payload['args'][0]}")
                return decision

            return decide

        declare(ran, [named("one", None), named("two", Drop()), named("three", None)])

        assert isinstance(worker.run("Rebuild", "a"), Dropped)
        assert asked == ["one Rebuild a", "two Rebuild a"]

    def test_subclasses_inherit_them(self, worker: Worker, ran: list[str]) -> None:
        class Base(Job, policy=always(Drop())): ...

        class Sub(Base, name="Sub"):
            def perform(self) -> None: ...

        assert isinstance(worker.run("Sub"), Dropped)

    def test_one_that_raises_fails_the_job(self, worker: Worker, ran: list[str]) -> None:
        def broken(_run: Run) -> Decision:
            raise ConnectionError("no flags today")

        declare(ran, broken)

        outcome = worker.run("Rebuild", "a")

        assert isinstance(outcome, Retry)
        assert entry(outcome)["error_message"] == "no flags today"

    def test_one_that_returns_something_else_fails_the_job_and_says_so(self, worker: Worker, ran: list[str]) -> None:
        declare(ran, lambda _run: True)

        assert "returned True; it returns Defer, Drop or None" in entry(worker.run("Rebuild", "a"))["error_message"]

    @pytest.mark.parametrize("policy", [True, "flag", 3, [3]])
    def test_what_cannot_be_called_is_refused_at_import(self, worker: Worker, ran: list[str], policy: Any) -> None:
        with pytest.raises(JobDefinitionError, match=r"policy = .* does not fit"):
            declare(ran, policy)


class TestFeatureFlag:
    def test_jobs_run_while_it_is_on(self, worker: Worker, ran: list[str]) -> None:
        on = {"Rebuild"}
        declare(ran, policies.feature_flag(on.__contains__))

        assert worker.run("Rebuild", "a") == Done()
        on.clear()
        outcome = worker.run("Rebuild", "b")

        assert isinstance(outcome, Deferred)
        assert outcome.at == worker.clock.time + 300
        assert entry(outcome)["deferred_by"] == "feature_flag"
        assert ran == ["a"]

    def test_it_may_drop_them(self, worker: Worker, ran: list[str]) -> None:
        declare(ran, policies.feature_flag(lambda _name: False, drop=True))

        assert isinstance(worker.run("Rebuild", "a"), Dropped)

    def test_a_drop_wins_that_comes_first(self, worker: Worker, ran: list[str]) -> None:
        drop, defer = (policies.feature_flag(lambda _name: False, drop=is_drop) for is_drop in (True, False))
        declare(ran, [drop, defer])

        assert isinstance(worker.run("Rebuild", "a"), Dropped)


class TestHealthSignal:
    def test_they_wait_for_five_seconds_unless_told_otherwise(self, worker: Worker, ran: list[str]) -> None:
        declare(ran, policies.health_signal(lambda: False))

        outcome = worker.run("Rebuild", "a")

        assert isinstance(outcome, Deferred)
        assert outcome.at == worker.clock.time + 5

    def test_jobs_wait_while_something_is_not_healthy(self, worker: Worker, ran: list[str]) -> None:
        answers = [False, True]
        declare(ran, policies.health_signal(lambda: answers.pop(0), delay=7, check=0))

        outcome = worker.run("Rebuild", "a")

        assert isinstance(outcome, Deferred)
        assert (outcome.at, entry(outcome)["deferred_by"]) == (worker.clock.time + 7, "health_signal")
        assert worker.run("Rebuild", "a") == Done()

    def test_an_answer_holds_for_a_while(self, worker: Worker, ran: list[str]) -> None:
        asked: list[bool] = []
        declare(ran, policies.health_signal(lambda: not asked.append(True), check=60))

        for _ in range(5):
            worker.run("Rebuild", "a")

        assert asked == [True]


class TestReplicaReached:
    @pytest.fixture
    def database(self, ran: list[str]) -> dict[str, str]:
        """Where the primary and the replica stand."""
        database = {"primary": "0/5", "replica": "0/3"}
        declare(
            ran,
            policies.ReplicaReached(
                lambda: database["primary"], lambda position: database["replica"] >= position, delay=2
            ),
        )
        return database

    def test_a_push_carries_the_position_of_the_primary(self, setup: Setup, database: dict[str, str]) -> None:
        setup.delivery = written = Written()

        Client().push({"class": "Rebuild", "args": ["a"]})
        database["primary"] = "0/6"
        Client().push_bulk({"class": "Rebuild", "args": [["b"], ["c"]]})

        positions = [each["wal_locations"] for each in written.payloads()]
        assert positions == [{"main": "0/5"}, {"main": "0/6"}, {"main": "0/6"}]

    def test_a_job_waits_once_for_the_replica_and_then_runs_on_the_primary(
        self, worker: Worker, ran: list[str], database: dict[str, str]
    ) -> None:
        keys = {"wal_locations": {"main": "0/5"}}

        outcome = worker.run("Rebuild", "a", **keys)

        assert isinstance(outcome, Deferred)
        assert (outcome.at, entry(outcome)["deferred_by"]) == (worker.clock.time + 2, "data_consistency")
        assert worker.run_bytes(outcome.payload) == Done()
        assert ran == ["a"]

    def test_waits_for_other_reasons_do_not_count(self, worker: Worker, ran: list[str]) -> None:
        declare(ran, policies.ReplicaReached(lambda: "0/5", lambda _position: False, most=2))
        raw = encode({"class": "Rebuild", "args": ["a"], "wal_locations": {"main": "0/5"}, **BY_LIMIT})

        for count in (1, 2):
            outcome = worker.run_bytes(raw)
            assert isinstance(outcome, Deferred)
            raw = outcome.payload
            assert decode(raw)["deferred_count"] == count

        assert worker.run_bytes(raw) == Done()

    def test_it_runs_at_once_where_the_replica_is_there_or_no_position_is_known(
        self, worker: Worker, ran: list[str], database: dict[str, str]
    ) -> None:
        assert worker.run("Rebuild", "a", wal_locations={"main": "0/3"}) == Done()
        assert worker.run("Rebuild", "b") == Done()
        assert worker.run("Rebuild", "c", wal_locations="0/9") == Done()
