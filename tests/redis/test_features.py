"""The stacks of features, played by features of the test's own: what they add to a push and to a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from kiqcluster import Push, job
from kiqcluster.application.registry import Definition, Registry
from kiqcluster.errors import RedisRefused
from kiqcluster.features.stacks import Stacks, using_stacks
from kiqcluster.sidekiq.outcome import Effect
from kiqcluster.store import Store
from tests.redis.test_client import payloads

pytestmark = pytest.mark.usefixtures("setup")

LOCK, INDEX = "kiq:test:lock", "kiq:test:index"


@dataclass
class OneAtATime:
    """Refuses a push while the one before holds the lock; writes each jid into an index."""

    seen: list[str] = field(default_factory=list)
    lock: str = LOCK

    def is_used_by(self, definition: Definition) -> bool:
        return True

    def on_push(self, push: Push, definition: Definition) -> Iterable[Effect]:
        self.seen.append(push.payload["jid"])
        if push.queue == "plain":
            return ()
        lock = Effect("claim", self.lock, (push.payload["jid"], 60))
        return (lock, Effect("sadd", INDEX, (push.payload["jid"],)))


@pytest.fixture
def feature() -> Iterator[OneAtATime]:
    feature = OneAtATime()
    with using_stacks(Stacks(client=(feature,))):
        yield feature


@pytest.fixture
def work(registry: Registry) -> Any:
    @job
    def work(number: int) -> None: ...

    return work


class TestPush:
    def test_a_job_and_its_rows_are_written_in_one_step(self, work: Any, store: Store, feature: OneAtATime) -> None:
        jid = work.perform_async(1)

        assert [each["jid"] for each in payloads(store)] == [jid]
        assert store.call("SMEMBERS", "queues") == [b"default"]
        assert store.call("GET", LOCK) == jid.encode()
        assert 0 < store.call("TTL", LOCK) <= 60
        assert store.call("SMEMBERS", INDEX) == [jid.encode()]

    def test_a_guard_that_is_not_true_refuses_the_job_and_all_of_its_rows(
        self, work: Any, store: Store, feature: OneAtATime
    ) -> None:
        first = work.perform_async(1)

        assert work.perform_async(2) == first
        assert [each["jid"] for each in payloads(store)] == [first]
        assert store.call("SCARD", INDEX) == 1

    def test_a_scheduled_job_too(self, work: Any, store: Store, feature: OneAtATime) -> None:
        jid = work.perform_in(60, 1)

        assert work.perform_in(60, 2) == jid is not None
        assert store.call("ZCARD", "schedule") == 1

    def test_of_a_bulk_push_each_job_stands_for_itself(self, work: Any, store: Store, feature: OneAtATime) -> None:
        jids = work.perform_bulk([[number] for number in range(5)])

        assert jids == [jids[0]] * 5 != [None] * 5
        assert [each["jid"] for each in payloads(store)] == [jids[0]]
        assert len(feature.seen) == 5

    def test_a_push_without_rows_stays_a_pipeline(self, work: Any, store: Store, feature: OneAtATime) -> None:
        work.set(queue="plain").perform_async(1)
        store.call("CONFIG", "RESETSTAT")

        assert work.set(queue="plain").perform_async(2) is not None
        assert b"cmdstat_eval" not in store.call("INFO", "commandstats")

    def test_a_broken_key_of_a_row_writes_nothing(self, work: Any, store: Store, feature: OneAtATime) -> None:
        store.call("SET", INDEX, "no set")

        with pytest.raises(RedisRefused, match="WRONGTYPE"):
            work.perform_async(1)

        assert payloads(store) == []
        assert store.call("EXISTS", LOCK) == 0
