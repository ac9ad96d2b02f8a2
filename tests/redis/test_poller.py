"""The poller: what is due moves once, whatever it is, and nothing waits that is due."""

from __future__ import annotations

import json
import time
from random import Random
from typing import Any

import pytest

from kiqcluster.config import Config
from kiqcluster.events import Events
from kiqcluster.payload import INVALID_PAYLOAD
from kiqcluster.runtime import Push, Runtime, Setup
from kiqcluster.store import Store
from kiqcluster.store.engine import DeadSetLimits, Engine
from kiqcluster.worker.poller import Poller, poll_pause


@pytest.fixture
def poller(store: Store, setup: Setup) -> Poller:
    runtime = Runtime(Config(), store, setup, Events())
    return Poller(runtime, Engine(store, DeadSetLimits(100, 1_000.0)), lambda name, error: None)


def due(store: Store, key: str, raw: str | bytes, seconds: float = -1.0) -> None:
    store.call("ZADD", key, time.time() + seconds, raw)


def test_due_jobs_go_to_their_queues_with_the_bytes_they_had(poller: Poller, store: Store) -> None:
    raw = '{"class":"X","queue":"q","args":[1.50,1E5,"\\u00e9"],"jid":"a","created_at":1.5,"unknown":{"k": 1}}'
    due(store, store.keys.retry, raw)
    due(store, store.keys.schedule, raw.replace('"a"', '"b"'), seconds=60)

    moved = poller.poll()

    assert moved == 1
    (pushed,) = store.call("LRANGE", "queue:q", 0, -1)
    assert pushed.startswith(raw[:-1].encode())
    assert abs(json.loads(pushed)["enqueued_at"] - time.time()) < 5
    assert store.call("SMEMBERS", "queues") == [b"q"]
    assert store.call("ZCARD", store.keys.schedule) == 1


def test_entries_that_are_no_jobs_are_buried_with_their_reason(poller: Poller, store: Store) -> None:
    for raw in (b"not json", b"123", b'{"args":[]}', b"\xff\xfe"):
        due(store, store.keys.schedule, raw)

    poller.poll()

    assert store.call("ZCARD", store.keys.schedule) == 0
    dead = [json.loads(raw) for raw in store.call("ZRANGE", store.keys.dead, 0, -1)]
    assert len(dead) == 4
    assert {each["class"] for each in dead} == {INVALID_PAYLOAD}
    assert all(each["error_message"] for each in dead)


def test_an_entry_whose_queue_no_key_can_name_goes_to_default_and_holds_up_no_other(
    poller: Poller, store: Store
) -> None:
    due(store, store.keys.schedule, '{"class":"X","queue":"\\ud800","args":[],"jid":"a"}')
    due(store, store.keys.schedule, '{"class":"X","queue":"q","args":[],"jid":"b"}')

    moved = poller.poll()

    assert moved == 2
    (pushed,) = store.call("LRANGE", "queue:default", 0, -1)
    assert json.loads(pushed)["queue"] == "default"
    assert store.call("LLEN", "queue:q") == 1


def test_client_middleware_sees_due_jobs_and_its_changes_are_written(
    poller: Poller, store: Store, setup: Setup
) -> None:
    @setup.client_middleware.add
    def mark(push: Push, proceed: Any) -> Push | None:
        if push.payload["class"] == "Unwanted":
            return None
        if push.payload["class"] == "Failing":
            raise ValueError("no")
        push.payload["seen"] = True
        push.payload["queue"] = "elsewhere"
        del push.payload["old"]
        return proceed()  # type: ignore[no-any-return]

    for name in ("Wanted", "Unwanted", "Failing"):
        due(store, store.keys.schedule, json.dumps({"class": name, "queue": "q", "args": [], "jid": name, "old": 1}))

    poller.poll()

    (pushed,) = store.call("LRANGE", "queue:elsewhere", 0, -1)
    assert json.loads(pushed)["seen"] is True
    assert "old" not in json.loads(pushed)
    (deferred, score) = store.call("ZRANGE", store.keys.schedule, 0, -1, "WITHSCORES")
    assert b"Failing" in deferred  # untouched: the link may work the next time
    assert float(score) > time.time() + 30
    assert store.call("ZCARD", store.keys.dead) == 0


def test_a_link_that_makes_a_payload_unwritable_stops_no_other_job(poller: Poller, store: Store, setup: Setup) -> None:
    @setup.client_middleware.add
    def spoil(push: Push, proceed: Any) -> Push | None:
        if push.payload["class"] == "Spoilt":
            push.payload["weight"] = float("nan")
        return proceed()  # type: ignore[no-any-return]

    for name in ("Spoilt", "Fine"):
        due(store, store.keys.retry, json.dumps({"class": name, "queue": "q", "args": [], "jid": name}))

    poller.poll()

    assert [json.loads(raw)["class"] for raw in store.call("LRANGE", "queue:q", 0, -1)] == ["Fine"]
    assert store.call("ZCARD", store.keys.retry) == 1


def test_a_thousand_due_jobs_move_in_one_poll(poller: Poller, store: Store) -> None:
    words = [word for n in range(1_000) for word in (n, f'{{"class":"X","queue":"q","args":[],"jid":"{n}"}}')]
    store.call("ZADD", store.keys.schedule, *words)

    assert poller.poll() == 1_000
    jids = [json.loads(raw)["jid"] for raw in reversed(store.call("LRANGE", "queue:q", 0, -1))]
    assert jids == [str(n) for n in range(1_000)]


@pytest.mark.parametrize(("processes", "lowest", "highest"), [(1, 2.5, 7.5), (4, 10, 30), (20, 0, 200)])
def test_pauses_average_one_poll_per_interval_over_the_fleet(processes: int, lowest: float, highest: float) -> None:
    rng = Random(7)

    pauses = [poll_pause(processes, 5.0, rng) for _ in range(4_000)]

    assert lowest <= min(pauses)
    assert max(pauses) <= highest
    assert sum(pauses) / len(pauses) == pytest.approx(5.0 * processes, rel=0.05)
