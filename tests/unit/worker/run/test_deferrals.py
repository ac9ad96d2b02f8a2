"""Deferred jobs: what is left of a deferral when they run, and those whose payloads no set may keep."""

from __future__ import annotations

from typing import Any

import pytest

from kiqcluster import Interrupted, job, limits
from kiqcluster.application.registry import Registry
from kiqcluster.errors import OverLimit, RedisRefused
from kiqcluster.features.limits.rate_limits import RateLimits
from kiqcluster.features.versions import VersionCheck
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.outcome import Dead, Deferred, Done, Effect, Outcome, Retry
from kiqcluster.sidekiq.outcome import Interrupted as InterruptedOutcome
from kiqcluster.sidekiq.payload import INVALID_PAYLOAD, bare
from kiqcluster.sidekiq.ruby_json import decode
from kiqcluster.store.engine.units import BeginVerdict
from tests.unit.worker.run.test_execution import Feature, Worker, fail

BY_LIMIT = {"deferred": True, "deferred_by": "rate_limit", "deferred_count": 3}
UNREADABLE = b'{"retry":%s,"class":"sync","queue":"default","args":[1e400],"jid":"aaaaaaaaaaaaaaaaaaaaaaaa"%s}'


@pytest.fixture
def worker(setup: Setup, registry: Registry) -> Worker:
    return Worker(setup, registry)


def yields(*_: Any) -> None:
    raise Interrupted


def is_over(*_: Any) -> None:
    raise OverLimit("crm", 5.0)


class TestRetries:
    """A job that has begun is not deferred any more: its next start takes its turn behind those that are."""

    def test_a_retry_is_not_promised_what_its_deferral_was(self, worker: Worker) -> None:
        job(name="broken", rate_limit=limits.sliding_window(1, 60))(fail)
        worker.play(RateLimits())

        failed = worker.run("broken", **BY_LIMIT, kiq_rate=["broken"])
        assert isinstance(failed, Retry)
        worker.run_bytes(failed.payload)

        assert [rows[0].arguments[-1] for rows in worker.asked] == [1, 0]
        assert decode(failed.payload).keys().isdisjoint({"deferred", "deferred_by", "kiq_rate"})
        assert decode(failed.payload)["deferred_count"] == 3

    @pytest.mark.parametrize(
        ("keys", "expected"),
        [({}, 0), ({"kiq_rate": ["crm"]}, 0), ({"kiq_rate": ["crm", "sync"]}, 1), ({"kiq_rate": "sync"}, 0)],
    )
    def test_a_promise_counts_for_the_limit_that_gave_it(
        self, worker: Worker, keys: dict[str, Any], expected: int
    ) -> None:
        job(name="sync", rate_limit=limits.sliding_window(1, 60))(lambda: None)
        worker.play(RateLimits())

        worker.run("sync", **BY_LIMIT, **keys)

        assert [rows[0].arguments[-1] for rows in worker.asked] == [expected]
        assert limits.has_promised("crm", {**BY_LIMIT, **keys}) == ("crm" in keys.get("kiq_rate", []))

    def test_all_limits_that_have_put_a_job_off_are_remembered_until_it_has_begun(self, worker: Worker) -> None:
        job(name="sync")(is_over)

        outcome = worker.run("sync", **BY_LIMIT, kiq_rate=["sync"])

        assert isinstance(outcome, Deferred)
        assert decode(outcome.payload)["kiq_rate"] == ["sync", "crm"]
        job(name="broken")(fail)
        failed = worker.run("broken", **BY_LIMIT, kiq_rate=["sync"])
        assert isinstance(failed, Retry)
        assert "kiq_rate" not in decode(failed.payload)

    @pytest.mark.parametrize("retry", [0, True])
    def test_hooks_and_the_dead_set_see_it_so_too(self, worker: Worker, retry: Any) -> None:
        told: list[Any] = []
        job(name="broken", retry_in=lambda _count, _error, payload: told.append(payload))(fail)

        outcome = worker.run("broken", **BY_LIMIT, retry=retry)

        told += [payload for payload, _ in worker.told_of_deaths]
        assert isinstance(outcome, Dead | Retry)
        assert [each.get("deferred_by") for each in [decode(outcome.payload), *told]] == [None, None]

    def test_one_that_gives_way_has_begun_as_well(self, worker: Worker) -> None:
        job(name="polite")(yields)

        outcome = worker.run("polite", **BY_LIMIT)

        assert isinstance(outcome, Deferred)
        assert "deferred_by" not in decode(outcome.payload)


class TestUnreadable:
    """What must wait, and Ruby cannot read, waits in an entry that Ruby's poller does not lose."""

    def run(self, worker: Worker, more: bytes = b"", retry: bytes = b"true") -> Outcome:
        return worker.run_bytes(UNREADABLE % (retry, more))

    def check_deferred(self, outcome: Outcome, reason: str | None) -> None:
        assert isinstance(outcome, Deferred)
        entry = decode(outcome.payload)
        assert (entry["class"], entry["display_class"], entry["jid"]) == (INVALID_PAYLOAD, "sync", "a" * 24)
        kept = bare(outcome.payload)
        assert b'"args":[1e400]' in kept
        assert decode(kept).get("deferred_by") == reason

    @pytest.mark.parametrize("retry", [b"true", b"false", b"0"])
    def test_a_newer_version(self, worker: Worker, retry: bytes) -> None:
        job(name="sync")(fail)
        worker.play(VersionCheck())

        self.check_deferred(self.run(worker, b',"version":9', retry), "version")

    def test_what_a_begin_row_defers(self, worker: Worker) -> None:
        job(name="sync")(fail)
        row = Effect("within", "kiq:rate:x", (1, "60", 0))
        worker.play(Feature([row]))
        worker.verdict = BeginVerdict("defer", 30.0, row)

        self.check_deferred(self.run(worker), "feature")

    def test_begin_rows_that_redis_refuses(self, worker: Worker) -> None:
        job(name="sync")(fail)
        worker.play(Feature([Effect("within", "kiq:rate:x")]))
        worker.verdict = RedisRefused("NOPERM")

        self.check_deferred(self.run(worker), None)

    def test_a_limit_inside_of_the_job(self, worker: Worker) -> None:
        job(name="sync")(is_over)

        self.check_deferred(self.run(worker), "rate_limit")

    def test_a_job_that_gives_way(self, worker: Worker) -> None:
        job(name="sync")(yields)

        self.check_deferred(self.run(worker), None)

    def test_at_a_stop_it_goes_back_to_its_queue(self, worker: Worker) -> None:
        job(name="sync")(yields)
        worker.stopping.set()

        assert self.run(worker) == InterruptedOutcome(UNREADABLE % (b"true", b""))

    def test_once_it_may_run_it_runs(self, worker: Worker) -> None:
        ran: list[float] = []

        @job(name="sync")
        def sync(number: float) -> None:
            ran.append(number)
            if len(ran) == 1:
                raise Interrupted

        waiting = self.run(worker)
        assert isinstance(waiting, Deferred)

        assert worker.run_bytes(waiting.payload) == Done()
        assert ran == [float("inf")] * 2
