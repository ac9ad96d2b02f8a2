"""Expiry: when a job expires, and what becomes of it then."""

from __future__ import annotations

import time
from typing import Any

import pytest

from kiqcluster import Client, job
from kiqcluster.application.registry import Registry
from kiqcluster.client.reenqueue import added, enqueued, retried
from kiqcluster.errors import InvalidPush, JobDefinitionError
from kiqcluster.process.runtime import Push, Setup
from kiqcluster.sidekiq.outcome import Deferred, Done, Dropped, Retry
from kiqcluster.sidekiq.ruby_json import decode, encode
from kiqcluster.testing import fake, frozen_clock
from tests.unit.features.test_size_limiter import Written
from tests.unit.worker.run.test_execution import Worker, fail

FAR = 4_000_000_000.0  # epoch seconds


@pytest.fixture
def offer(registry: Registry) -> Any:
    @job(expires_in=60)
    def offer(number: int) -> None: ...

    return offer


class TestPush:
    def test_a_job_expires_so_long_after_its_push(self, offer: Any, written: Written) -> None:
        offer.perform_async(1)
        offer.perform_bulk([[1], [2]])

        for payload in written.payloads():
            assert payload["expiry"] == pytest.approx(payload["created_at"] + 60, abs=0.002)
            assert payload["expires_in"] == 60

    def test_a_scheduled_one_so_long_after_it_is_due(self, offer: Any, written: Written) -> None:
        offer.perform_at(FAR, 1)
        Client().push_bulk({"class": "offer", "args": [[1], [2]], "at": [FAR, FAR + 100]})

        assert [each["expiry"] for each in written.payloads()] == [FAR + 60, FAR + 60, FAR + 160]

    def test_one_push_may_have_a_time_of_its_own_and_any_class_too(self, registry: Registry, written: Written) -> None:
        @job
        def plain(number: int) -> None: ...

        plain.set(expires_in=5).perform_at(FAR, 1)
        plain.set(expires_in=0.5).perform_bulk([[1]])
        Client().push({"class": "Ruby::Job", "args": [], "at": FAR, "expires_in": 7})
        Client().push_bulk({"class": "Ruby::Job", "args": [[]], "at": FAR, "expires_in": 8})
        plain.perform_async(1)

        own, bulk, ruby, rubys, none = written.payloads()
        assert (own["expiry"], ruby["expiry"], rubys["expiry"]) == (FAR + 5, FAR + 7, FAR + 8)
        assert bulk["expiry"] == pytest.approx(bulk["created_at"] + 0.5, abs=0.002)
        assert none.keys().isdisjoint({"expiry", "expires_in"})

    def test_a_time_that_the_payload_names_counts(self, offer: Any, written: Written) -> None:
        Client().push({"class": "offer", "args": [1], "expiry": FAR})

        assert written.payloads()[0]["expiry"] == FAR

    def test_the_due_time_that_middleware_sets_counts(self, offer: Any, setup: Setup, written: Written) -> None:
        @setup.client_middleware.add
        def later(push: Push, proceed: Any) -> Any:
            push.at = FAR
            return proceed()

        offer.perform_async(1)

        assert written.payloads()[0]["expiry"] == FAR + 60

    @pytest.mark.parametrize("value", [0, -1, True, "60", None, float("nan"), 1e9])
    def test_it_takes_seconds(self, registry: Registry, written: Written, value: Any) -> None:
        with pytest.raises(JobDefinitionError, match=r"expires_in = .* seconds"):
            job(name="offer", expires_in=value)(lambda number: None)
        with pytest.raises(InvalidPush, match=r"expires_in (= .* seconds|is nan)"):
            Client().push({"class": "Ruby::Job", "args": [], "expires_in": value})


class TestRun:
    @pytest.fixture
    def ran(self, worker: Worker) -> list[int]:
        ran: list[int] = []
        job(name="offer")(lambda number: ran.append(number))
        job(name="broken")(fail)
        return ran

    @pytest.mark.parametrize("keys", [{}, {"retry_count": 0, "failed_at": 1.5}, {"version": 7}, {"retry": False}])
    def test_an_expired_job_is_dropped_and_counted_at_its_first_run_and_later(
        self, worker: Worker, ran: list[int], keys: dict[str, Any]
    ) -> None:
        assert type(worker.run("offer", 1, expiry=time.time() - 0.001, **keys)) is Dropped

        assert (ran, worker.reported, worker.told_of_deaths) == ([], [], [])
        assert worker.sample("skipped_total", "offer", action="dropped") == 1
        assert ("job_dropped", {"reason": "expiry"}) in worker.events

    def test_one_that_has_not_expired_runs_and_its_retry_keeps_the_time(self, worker: Worker, ran: list[int]) -> None:
        assert worker.run("offer", 1, expiry=time.time() + 60) == Done()
        outcome = worker.run("broken", expiry=FAR, expires_in=60)

        assert ran == [1]
        assert isinstance(outcome, Retry)
        assert (decode(outcome.payload)["expiry"], decode(outcome.payload)["expires_in"]) == (FAR, 60)

    def test_milliseconds_are_read_as_those_of_any_time(self, worker: Worker, ran: list[int]) -> None:
        assert worker.run("offer", 1, expiry=int((time.time() + 60) * 1_000)) == Done()
        assert type(worker.run("offer", 1, expiry=int((time.time() - 60) * 1_000))) is Dropped

    @pytest.mark.parametrize("value", [None, "soon", True, 0, -5, [1]])
    def test_what_is_no_time_never_expires(self, worker: Worker, ran: list[int], value: Any) -> None:
        assert worker.run("offer", 1, expiry=value) == Done()

    def test_a_job_of_an_unknown_class_is_not_dropped_by_a_worker_that_cannot_run_it(
        self, worker: Worker, ran: list[int]
    ) -> None:
        assert isinstance(worker.run("Newcomer", expiry=1.5), Deferred)


class TestMoves:
    def test_the_poller_keeps_the_time(self, setup: Setup) -> None:
        raw = encode({"class": "X", "args": [], "queue": "q", "expiry": 50.0, "expires_in": 5})

        assert decode(enqueued(setup, raw, 100.0).new) == {**decode(raw), "enqueued_at": 100.0}

    @pytest.mark.parametrize("move", [added, retried])
    def test_who_moves_a_job_by_hand_wants_it_to_run(self, setup: Setup, move: Any) -> None:
        raw = encode({"class": "X", "args": [], "queue": "q", "expiry": 50.0, "expires_in": 5})

        assert "expiry" not in decode(move(setup, raw, 100.0).new)
        assert decode(move(setup, raw, 49.0).new)["expiry"] == 50.0


def test_in_tests_time_may_be_frozen(offer: Any, setup: Setup) -> None:
    with frozen_clock() as clock, fake() as jobs:
        offer.perform_async(1)
        clock.move(59)
        offer.perform_async(2)
        clock.move(2)
        jobs.drain()

        assert [(type(each.outcome), each.args) for each in jobs.performed()] == [(Dropped, [1]), (Done, [2])]
