"""Cancelled jobs: removed from where they wait, with their locks; marks; ids that come back."""

from __future__ import annotations

from threading import Event
from typing import Any

import pytest

import kiqcluster
from kiqcluster import Client, job
from kiqcluster.api import DeadSet, DroppedSet, JobSet, RetrySet, ScheduledSet
from kiqcluster.client.results import read_result
from kiqcluster.control import cancellation
from kiqcluster.control.cancellation import Cancelled, cancel_in
from kiqcluster.errors import JobCancelled, JobDropped, UsageError
from kiqcluster.features.cancellation import Cancellations
from kiqcluster.process.job_context import JobContext
from kiqcluster.process.runtime import Setup, current_setup
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.payload import KEPT_RESULT_TTL, THEN
from kiqcluster.store import Store

pytestmark = pytest.mark.usefixtures("registry")  # other tests of this process have jobs of these names

JID = "b4a577edbccf1d805744efa9"


def payload(jid: str = JID, **more: Any) -> bytes:
    return ruby_json.encode({"class": "Sync", "args": [JID], "jid": jid, "queue": "low", "retry": True, **more})


def marks(store: Store) -> list[bytes]:
    found: list[bytes] = store.call("ZRANGE", store.keys.cancelled, 0, -1)
    return found


def lay(store: Store, place: str, raw: bytes) -> None:
    """Put a job into a place."""
    match place:
        case "queue" | "wake":
            store.call("SADD", store.keys.queues, "low")
            key = store.keys.queue("low") if place == "queue" else store.keys.wake("low")
            store.call("LPUSH", key, payload("other"), raw, payload("third"))
        case "parked":
            slots = store.keys.slots("Sync")
            store.call("SADD", store.keys.parked_sets, slots)
            store.call("ZADD", store.keys.parked(slots), 1, store.keys.queue("low").encode() + b"\0" + raw)
        case _:
            store.call("ZADD", place, 1_795_168_740.5, raw)


@pytest.mark.parametrize("place", ["queue", "wake", "schedule", "retry", "parked"])
@pytest.mark.parametrize("jid", [JID, "ä:1"])
def test_a_job_that_waits_is_moved_to_the_dropped_jobs_with_its_lock(store: Store, place: str, jid: str) -> None:
    raw = payload(jid, idempotency_key="abc")
    store.call("SET", store.keys.lock("abc"), jid)
    lay(store, place, raw)

    assert cancel_in(store, jid) == Cancelled(removed=1)

    (entry,) = DroppedSet(store=store)
    assert (entry.jid, entry["dropped_by"], entry["queue"]) == (jid, "cancelled", "low")
    assert store.call("EXISTS", store.keys.lock("abc"), "schedule", "retry", "kiq:slots:Sync:parked") == 0
    left = store.call("LRANGE", store.keys.queue("low"), 0, -1) + store.call("LRANGE", store.keys.wake("low"), 0, -1)
    assert raw not in left
    assert len(left) == (2 if place in ("queue", "wake") else 0)
    assert marks(store) == []
    assert cancel_in(store, jid) == Cancelled()


@pytest.mark.parametrize("place", ["queue", "wake", "schedule", "retry", "parked"])
def test_who_waits_for_a_job_or_its_chain_is_told_once_it_is_removed(store: Store, setup: Setup, place: str) -> None:
    @job(name="Sync", result_ttl=60)
    def sync(_: str) -> None: ...

    handle = sync.enqueue(JID)
    assert handle is not None
    last = {"class": "Last", "queue": "q", "jid": "last", "args": [None], KEPT_RESULT_TTL: 30}
    lay(store, place, payload(handle.jid, **{THEN: [last]}))

    assert kiqcluster.cancel(handle.jid)

    with pytest.raises(JobDropped, match="cancelled"):
        handle.result(0)
    (kept,) = store.call("LRANGE", store.keys.result("last"), 0, -1)
    found = read_result(kept)
    assert (found.state, found.reason, found.ended_by, found.ended_by_jid) == (
        "dropped",
        "cancelled",
        "Sync",
        handle.jid,
    )
    assert 20 < store.call("TTL", store.keys.result("last")) <= 30


@pytest.mark.parametrize("when", ["schedule", "retry"])
def test_the_id_of_a_last_job_cancels_a_chain_that_waits_for_its_time(store: Store, setup: Setup, when: str) -> None:
    @job
    def load(number: int) -> int: ...

    @job
    def add(number: int) -> int: ...

    @job(result_ttl=60)
    def tell(number: int) -> int: ...

    last = load.then(add).then(tell).perform_in(7_200, 1)
    assert last is not None
    (entry,) = ScheduledSet(store=store)
    if when == "retry":
        store.call("ZADD", "retry", 9e9, entry.raw)
        entry.delete()
        store.call("DEL", store.keys.result(last))

    assert kiqcluster.cancel(last)

    assert store.call("EXISTS", "schedule", "retry", store.keys.cancelled) == 0
    (dropped,) = DroppedSet(store=store)
    assert (dropped.jid, dropped["dropped_by"]) == (entry.jid, "cancelled")
    (kept,) = store.call("LRANGE", store.keys.result(last), 0, -1)
    assert (read_result(kept).state, read_result(kept).ended_by) == ("dropped", "load")
    assert not kiqcluster.cancel(last)


@pytest.mark.parametrize("place", ["queue", "parked"])
def test_a_later_job_of_a_chain_under_way_keeps_its_mark_for_a_day(store: Store, place: str) -> None:
    raw = payload(**{THEN: [{"class": "Last", "queue": "q", "jid": "last", "args": [None]}]})
    lay(store, place, raw)

    assert cancel_in(store, "last") == Cancelled(follows=True)
    assert not cancel_in(store, "last")

    seconds, _ = store.call("TIME")
    assert float(store.call("ZSCORE", store.keys.cancelled, "last")) > int(seconds) - 60
    assert len(DroppedSet(store=store)) == 0


def test_a_job_whose_arguments_hold_the_id_is_left_alone(store: Store) -> None:
    lay(store, "queue", payload("another"))
    lay(store, "retry", payload("another"))

    assert cancel_in(store, JID) == Cancelled()

    assert store.call("LLEN", store.keys.queue("low")) == 3
    assert store.call("ZCARD", "retry") == 1
    assert marks(store) == [JID.encode()]  # wherever it is, it does not begin


def test_a_dead_job_stays_dead_and_may_be_retried(store: Store) -> None:
    lay(store, "dead", payload())
    store.call("HSET", store.keys.iteration(JID), "c", "5")

    assert not cancel_in(store, JID)

    assert (len(DeadSet(store=store)), marks(store)) == (1, [])
    assert store.call("HGETALL", store.keys.iteration(JID)) == [b"c", b"5"]


@pytest.mark.parametrize("kind", [RetrySet, ScheduledSet, DeadSet, DroppedSet])
def test_a_retry_by_hand_removes_the_mark(store: Store, kind: type[JobSet]) -> None:
    lay(store, getattr(store.keys, kind.key_name), payload())
    store.call("ZADD", store.keys.cancelled, 1, JID, 2, "other")

    (entry,) = kind(store=store)
    assert entry.retry()

    assert marks(store) == [b"other"]
    assert store.call("LLEN", store.keys.queue("low")) == 1


def test_a_push_of_the_same_id_removes_the_mark_and_others_do_not(store: Store) -> None:
    store.call("ZADD", store.keys.cancelled, 1, JID, 2, "other")
    client = Client(store, Setup())

    client.push({"class": "Sync", "args": []})
    assert marks(store) == [JID.encode(), b"other"]
    assert client.push({"class": "Sync", "args": [], "jid": JID}) == JID

    assert marks(store) == [b"other"]
    assert store.call("LLEN", store.keys.queue("default")) == 2


def test_a_unit_in_flight_is_found_in_its_hash_and_in_a_hand_list(store: Store) -> None:
    store.call("HSET", store.keys.members, "host:1:a", "1 b n 1 1.0", "host:2:b", "1 b n 2 1.0")
    store.call("HSET", store.keys.inflight("host:1:a"), "00000001.1:low", payload("first"))
    store.call("HSET", store.keys.hands("host:2:b"), "00000001.h2:low", "7")
    store.call("LPUSH", store.keys.hand("host:2:b", "00000001.h2:low"), payload("second"))

    assert cancel_in(store, "first") == Cancelled(running=1)
    assert cancel_in(store, "second") == Cancelled(running=1)

    assert marks(store) == [b"first", b"second"]
    assert store.call("LLEN", store.keys.control("host:1:a")) == 2  # it is told to look


def test_a_job_that_ends_by_its_mark_before_its_process_is_told_was_found(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next beat of the process may fall between the mark and the message."""
    inflight = store.keys.inflight("me")
    store.call("HSET", store.keys.members, "me", 1)
    store.call("HSET", inflight, "1:low", payload())
    mark = cancellation._mark

    def mark_and_end(*arguments: Any) -> bool:
        was_told = mark(*arguments)
        store.pipeline([("DEL", inflight), ("ZREM", store.keys.cancelled, JID)])
        return was_told

    monkeypatch.setattr(cancellation, "_mark", mark_and_end)

    assert cancel_in(store, JID) == Cancelled(running=1)


def test_a_job_that_is_dropped_by_its_mark_between_two_looks_was_found(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A processor takes it and drops it within the time in which the places are looked through."""
    lay(store, "queue", payload())
    remove = cancellation._remove

    def drop_and_remove(*arguments: Any) -> tuple[int, bool]:
        store.pipeline([("DEL", store.keys.queue("low")), ("ZREM", store.keys.cancelled, JID)])
        return remove(*arguments)

    monkeypatch.setattr(cancellation, "_remove", drop_and_remove)

    assert cancel_in(store, JID) == Cancelled(running=1)


def test_marks_are_limited_in_number_and_age(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancellation, "MAX_MARKS", 3)
    store.call("ZADD", store.keys.cancelled, 1, "of 1970")

    for number in range(5):
        cancel_in(store, f"jid{number}")

    assert marks(store) == [b"jid2", b"jid3", b"jid4"]


def test_marks_of_jobs_that_were_found_nowhere_give_way_to_those_that_processes_hold(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To cancel jobs that have ended is common, and must not have a running one forgotten."""
    monkeypatch.setattr(cancellation, "MAX_MARKS", 3)
    store.call("HSET", store.keys.members, "host:1:a", "1 b n 1 1.0")
    for number in range(2):
        store.call("HSET", store.keys.inflight("host:1:a"), f"0000000{number}.1:low", payload(f"held{number}"))

    for jid in ("held0", "ended0", "held1", "ended1", "ended2"):
        cancel_in(store, jid)

    assert marks(store) == [b"ended2", b"held0", b"held1"]
    cancel_in(store, "held0")
    assert marks(store) == [b"ended2", b"held1", b"held0"]


def test_a_mark_is_kept_for_a_day_only_where_a_process_holds_the_job(store: Store) -> None:
    now = store.call("TIME")[0]
    store.call("HSET", store.keys.members, "host:1:a", "1 b n 1 1.0")
    store.call("HSET", store.keys.inflight("host:1:a"), "00000001.1:low", payload("held"))
    for jid in ("held", "ended"):
        cancel_in(store, jid)

    kept = {jid: float(store.call("ZSCORE", store.keys.cancelled, jid)) - float(now) for jid in ("held", "ended")}

    assert abs(kept["held"]) < 60  # they go when they are a day old
    assert abs(kept["ended"] + 23 * 3_600) < 60


@pytest.mark.parametrize("state", [{"c": "5"}, {"ex": "1"}, {}])
def test_an_iterable_job_of_ruby_is_told_if_it_has_a_cursor(store: Store, state: dict[str, str]) -> None:
    """Without a cursor Ruby raises TypeError for a cancelled job (reference, fact 17)."""
    for name, value in state.items():
        store.call("HSET", store.keys.iteration(JID), name, value)

    assert cancel_in(store, JID) == Cancelled(told="c" in state)

    assert bool(store.call("HEXISTS", store.keys.iteration(JID), "cancelled")) is ("c" in state)


def test_the_public_function_uses_the_configured_redis(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current_setup(), "store", store)
    monkeypatch.setattr(current_setup(), "delivery", None)
    lay(store, "schedule", payload())

    assert kiqcluster.cancel(JID)
    assert not kiqcluster.cancel(JID)
    with pytest.raises(UsageError, match="is not the id of a job"):
        kiqcluster.cancel("")


def test_a_process_without_marks_asks_nothing_for_any_job() -> None:
    known = Cancellations()

    assert not known.is_used_by(None)  # type: ignore[arg-type]  # it looks at no definition
    assert known.apply([JID])
    assert not known.apply([JID, "other"])
    assert known.apply([])


def test_the_context_of_a_job_says_that_it_is_cancelled() -> None:
    context = JobContext({"jid": JID}, "low", "Sync", Event())
    context.check_cancelled()
    assert (context.cancelled, context.stopping) == (False, False)

    context.cancel()

    assert context.cancelled
    assert context.stopping
    with pytest.raises(JobCancelled, match=f"Sync {JID} was cancelled"):
        context.check_cancelled()
