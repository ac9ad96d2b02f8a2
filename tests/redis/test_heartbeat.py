"""The heartbeat: what a beat writes, how little it asks, and when it doubts what Redis holds for this process."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from kiqcluster.config import Config
from kiqcluster.events import Events
from kiqcluster.runtime import Runtime, Setup
from kiqcluster.store import Store
from kiqcluster.store.engine import Unit
from kiqcluster.worker.heartbeat import CHECK_BEATS, Heartbeat, Status
from kiqcluster.worker.processor import Running
from tests.kit import ManualClock

IDENTITY = "host:1:abc"
PAYLOAD = b'{"class":"X","queue":"default","args":[],"jid":"a"}'


class Bench:
    """A heartbeat that beats when it is told to, and what it tells its surroundings."""

    def __init__(self, store: Store, setup: Setup) -> None:
        self.store = store
        self.identity = IDENTITY
        self.running: list[Running] = []
        self.names: list[str] = []
        self.doubts = 0
        status = Status(
            identity=lambda: self.identity,
            running=lambda: self.running,
            is_quiet=lambda: False,
            queues=lambda: ({"default": 1}, "random"),
            concurrency=3,
            tag="",
        )
        runtime = Runtime(Config(), store, setup, Events(), ManualClock())
        self.heartbeat = Heartbeat(
            runtime, store, status, lambda name: None, self._learn, self._doubt, lambda name, error: None
        )

    def _learn(self, names: object) -> None:
        self.names = list(names)  # type: ignore[call-overload]

    def _doubt(self) -> None:
        self.doubts += 1

    def beat(self, times: int = 1) -> None:
        for _ in range(times):
            self.heartbeat.beat()

    def commands(self) -> dict[str, int]:
        """Return command → how often the server ran it, so far; but INFO."""
        text = self.store.call("INFO", "commandstats").decode()
        counts = {name: int(calls) for name, calls in re.findall(r"cmdstat_([^:]+):calls=(\d+)", text)}
        return {name: count for name, count in counts.items() if name != "info"}


@pytest.fixture
def bench(store: Store, setup: Setup) -> Iterator[Bench]:
    bench = Bench(store, setup)
    yield bench
    bench.heartbeat.wake()


def test_a_beat_without_work_asks_for_no_more_than_it_must(bench: Bench) -> None:
    bench.beat(2)
    before = bench.commands()

    bench.beat()

    sent = {name: count - before.get(name, 0) for name, count in bench.commands().items()}
    assert {name: count for name, count in sent.items() if count} == {"hset": 1, "expire": 1, "sadd": 1, "smembers": 1}


def test_running_jobs_are_shown_while_they_run_and_not_afterwards(bench: Bench, store: Store) -> None:
    shown = [store.keys.work(IDENTITY), store.keys.workers(IDENTITY)]
    bench.running = [Running(Unit("default", PAYLOAD, "1", IDENTITY), 5.0)]
    bench.beat(2)

    assert [store.call("HLEN", key) for key in shown] == [1, 1]
    assert all(0 < store.call("TTL", key) <= 60 for key in shown)
    assert store.call("HGET", store.keys.process(IDENTITY), "busy") == b"1"

    bench.running = []
    bench.beat()

    assert [store.call("EXISTS", key) for key in shown] == [0, 0]
    assert store.call("HGET", store.keys.process(IDENTITY), "busy") == b"0"


def test_a_process_that_was_dropped_from_the_registry_is_back_at_the_next_beat(bench: Bench, store: Store) -> None:
    bench.beat()
    store.call("SREM", store.keys.processes, IDENTITY)

    bench.beat()

    assert store.call("SMEMBERS", store.keys.processes) == [IDENTITY.encode()]


def test_the_queue_names_in_redis_are_told_at_each_beat(bench: Bench, store: Store) -> None:
    bench.beat()
    store.call("SADD", store.keys.queues, "new")

    bench.beat()

    assert bench.names == ["new"]


def test_nothing_is_doubted_on_one_connection_while_redis_holds_nothing_for_us(bench: Bench) -> None:
    bench.beat(2 * CHECK_BEATS + 1)

    assert bench.doubts == 0


def test_a_new_connection_is_reason_to_doubt_for_it_may_lead_to_another_server(bench: Bench, store: Store) -> None:
    bench.beat(2)

    bench.heartbeat._link.close()
    bench.beat(2)

    assert bench.doubts == 1


def test_units_that_redis_holds_for_us_are_checked_every_few_beats(bench: Bench, store: Store) -> None:
    store.call("HSET", store.keys.inflight(IDENTITY), "token", "7:default{}")

    bench.beat(CHECK_BEATS)
    before = bench.doubts
    bench.beat(CHECK_BEATS)

    assert (before, bench.doubts) == (0, 1)


def test_whoever_has_vanished_from_the_registry_doubts_its_membership(bench: Bench, store: Store) -> None:
    bench.beat(2)
    store.call("DEL", store.keys.process(IDENTITY))  # as after a minute without a beat

    bench.beat()

    assert bench.doubts == 1


def test_a_new_identity_takes_the_old_one_off_the_registry_and_doubts_nothing(bench: Bench, store: Store) -> None:
    bench.beat()

    bench.identity = "host:1:def"
    bench.beat()

    assert store.call("SMEMBERS", store.keys.processes) == [b"host:1:def"]
    assert store.call("EXISTS", store.keys.process(IDENTITY)) == 0
    assert bench.doubts == 0
