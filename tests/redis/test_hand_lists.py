"""Hand lists: a push comes to an idle process in one round trip, and is in flight from the moment that it moves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from unittest.mock import Mock

import pytest

from kiqcluster.api import Queue
from kiqcluster.errors import ReplyLost, StoreError
from kiqcluster.process.clock import Clock
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.outcome import Done, Requeue
from kiqcluster.store import Connection, Store
from kiqcluster.store.engine.units import ALL_SUSPECT, Settlement, Unit
from kiqcluster.store.engine.wait_lists import stale_hands
from kiqcluster.worker.fetch.hand_lists import HandList
from kiqcluster.worker.fetch.wakeups import Push, Wakeups
from kiqcluster.worker.run.manager import Manager
from kiqcluster.worker.run.processors import Processors
from tests.kit import ManualClock, RedisServer, wait_until
from tests.proxy import Proxy
from tests.redis.test_fetch import Bench


class Waiter(Bench):
    """A process that waits for pushes, as its manager does; nobody takes its units but the test."""

    def __init__(self, store: Store, setup: Setup) -> None:
        super().__init__(store, setup)
        hands = self.fetch.hand_lists
        self.wakeups = Wakeups(store, self.fetch._runtime.clock, (hands.wait_seconds, hands.grace_seconds))
        self.coordinator.supply.demand = 1

    def arm(self, *queues: str) -> None:
        self.wakeups.arm(queues or ["default"], self.fetch.register_hand_lists)

    def pushes(self) -> list[Push]:
        """Wait for what comes of the waits."""
        found: list[Push] = []

        def has_come() -> bool:
            found.extend(self.wakeups.wait(0.1))
            return bool(found)

        wait_until(has_come, "a push")
        return found

    def take_in(self) -> Unit:
        """Have the fetch take in the next push, and return the unit that is at hand then."""
        (push,) = self.pushes()
        assert push.hand_list is not None
        self.fetch.on_push(push.hand_list, push.payload)
        return self.coordinator.supply.units.popleft()

    def hand(self, hand_list: HandList) -> list[bytes]:
        found: list[bytes] = self.store.call("LRANGE", self.store.keys.hand(hand_list.identity, hand_list.field), 0, -1)
        return found

    def flush(self, *settlements: Settlement) -> None:
        for each in settlements:
            self.fetch.coordinator.hand_in(each)
        self.settle()

    def resync(self) -> None:
        with self.coordinator.lock:
            batch = self.coordinator._claim(0)
        self.fetch._flush(batch)

    def close(self) -> None:
        self.fetch.coordinator.end()
        self.wakeups.close()
        self.wakeups.close_after_fork()


def idle_manager(waiter: Waiter, clock: Clock) -> Manager:
    """Return the manager of no processors."""
    return Manager(Processors(clock), waiter.fetch, waiter.wakeups, clock, lambda *_: None)


@pytest.fixture
def waiter(store: Store, setup: Setup) -> Iterator[Waiter]:
    waiter = Waiter(store, setup)
    waiter.resync()
    waiter.redis_view.is_reserve_due = False
    yield waiter
    waiter.close()


def test_a_push_is_a_unit_at_hand_without_another_round_trip(waiter: Waiter) -> None:
    waiter.arm()
    waiter.push("a")

    unit = waiter.take_in()

    assert (unit.payload, unit.queue, unit.is_in_hand) == (b"a", "default", True)
    assert waiter.queued() == []
    assert waiter.fetch.running() == 1


def test_its_end_removes_it_and_counts_it_once(waiter: Waiter, store: Store) -> None:
    waiter.arm()
    waiter.push("a")
    unit = waiter.take_in()

    waiter.flush(Settlement(unit, Done()))
    with store.borrowed() as connection:
        assert waiter.engine.settle(connection, [Settlement(unit, Done())], 1.0) == 0  # sent again

    assert store.call("GET", "stat:processed") == b"1"
    assert not store.call("KEYS", "kiq:hand:*")
    assert waiter.inflight() == 0


def test_one_that_is_put_back_is_in_its_queue_once(waiter: Waiter, store: Store) -> None:
    waiter.arm()
    waiter.push("a")
    unit = waiter.take_in()

    waiter.flush(Settlement(unit, Requeue()))

    assert waiter.queued() == ["a"]
    assert not store.call("KEYS", "kiq:hand:*")


def test_when_its_process_dies_it_goes_back(waiter: Waiter, store: Store) -> None:
    """Whether its reply was read or not."""
    waiter.arm()
    waiter.push("a")
    (push,) = waiter.pushes()
    assert push.hand_list is not None
    assert waiter.hand(push.hand_list) == [b"a"]

    with store.borrowed() as connection:
        assert waiter.engine.recover(connection, waiter.fetch.member.identity) == 1

    assert waiter.queued() == ["a"]
    assert not store.call("KEYS", "kiq:hand:*")


def test_a_process_that_stood_still_before_it_sent_a_wait_does_not_send_it(waiter: Waiter) -> None:
    """Others may have recovered it, and forgotten its lists: nobody would find what comes there."""
    clock = ManualClock()
    waiter.wakeups._clock = clock

    def stand_still(waits: Mapping[str, tuple[int, HandList | None]]) -> Mapping[str, HandList]:
        lists = waiter.fetch.register_hand_lists(waits)
        clock.time += waiter.fetch.hand_lists.wait_seconds + 0.1
        return lists

    waiter.wakeups.arm(["default"], stand_still)
    waiter.push("a")

    assert waiter.queued() == ["a"]
    assert waiter.wakeups.wait(0.0) == []
    waiter.arm()
    assert waiter.take_in().payload == b"a"


def test_one_that_ran_then_counts_as_a_suspect_and_waits_where_only_a_reserve_looks(
    waiter: Waiter, store: Store
) -> None:
    waiter.arm()
    waiter.push("a")
    unit = waiter.take_in()

    with store.borrowed() as connection:
        waiter.engine.recover(connection, waiter.fetch.member.identity, [unit.token])

    assert store.call("HVALS", "kiq:suspects") == [b"1"]
    assert store.call("LRANGE", "kiq:wake:default", 0, -1) == [b"a"]
    assert waiter.queued() == []


def test_what_a_late_command_moves_to_a_dead_process_is_found(waiter: Waiter, store: Store) -> None:
    waiter.arm()
    (hand_list,) = [wait.hand_list for wait in waiter.wakeups._armed.values()]
    assert hand_list is not None
    with store.borrowed() as connection:
        waiter.engine.recover(connection, hand_list.identity)
        waiter.push("a")  # the wait is still armed
        wait_until(lambda: waiter.hand(hand_list) == [b"a"], "the push to be moved")

        assert stale_hands(store) == [hand_list.identity]
        assert waiter.engine.recover(connection, hand_list.identity) == 1

    assert waiter.queued() == ["a"]


def test_a_reply_from_before_a_resync_is_not_believed(waiter: Waiter) -> None:
    waiter.arm()
    waiter.push("a")
    (push,) = waiter.pushes()
    assert push.hand_list is not None

    waiter.coordinator.mark_uncertain()
    waiter.resync()
    waiter.fetch.on_push(push.hand_list, push.payload)

    assert waiter.queued() == ["a"]  # the resync has put it back
    assert waiter.fetch.running() == 0
    assert waiter.redis_view.is_uncertain  # and what came since the resync goes back with the next one


def test_a_lost_reply_strands_no_job(waiter: Waiter) -> None:
    waiter.arm()
    waiter.push("a")
    (push,) = waiter.pushes()
    assert push.hand_list is not None

    waiter.fetch.on_push(push.hand_list, None)
    waiter.resync()

    assert waiter.queued() == ["a"]


def test_a_wait_whose_connection_ends_is_given_up(waiter: Waiter, store: Store) -> None:
    waiter.arm()
    (wait,) = waiter.wakeups._armed.values()

    store.call("CLIENT", "KILL", "ID", waiter.wakeups._clients["default"].client_id)

    assert waiter.pushes() == [Push("default", wait.hand_list)]


def test_what_comes_to_a_list_that_was_given_up_goes_back(waiter: Waiter, store: Store) -> None:
    waiter.arm()
    (wait,) = waiter.wakeups._armed.values()
    assert wait.hand_list is not None
    waiter.fetch.on_push(wait.hand_list, None)
    waiter.resync()
    waiter.push("a")  # the wait that was given up is still armed
    wait_until(lambda: waiter.hand(wait.hand_list) == [b"a"], "the push to be moved")  # type: ignore[arg-type]

    waiter.fetch.look_into_hand_lists()
    assert waiter.redis_view.is_uncertain
    waiter.resync()

    assert waiter.queued() == ["a"]


@pytest.mark.parametrize("why", ["paused", "suspects", "silent"])
def test_where_a_reserve_has_to_decide_a_push_is_only_a_signal(waiter: Waiter, store: Store, why: str) -> None:
    if why == "paused":
        store.call("SADD", "paused", "default")
    elif why == "suspects":
        store.call("HSET", "kiq:suspects", "0" * 40, 1)
    else:
        store.call("ZINCRBY", "kiq:beats", -20_000, waiter.fetch.member.identity)

    waiter.arm()
    waiter.push("a")

    assert waiter.pushes() == [Push("default")]
    assert store.call("LRANGE", "kiq:wake:default", 0, -1) == [b"a"]


def test_a_pause_ends_the_waits_that_would_start_one_more_job(waiter: Waiter, store: Store) -> None:
    waiter.arm()

    Queue("default", store=store).pause()
    (push,) = waiter.pushes()
    waiter.push("a")

    assert push.payload is None
    assert waiter.queued() == ["a"]


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_a_pause_while_a_wait_begins_ends_it_as_well(
    waiter: Waiter, store: Store, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """Who pauses the queue does not see a wait that is registered, and not yet sent.

    lost: how often the look whether it is paused gets no answer.
    """
    register, paused = waiter.fetch.register_hand_lists, waiter.fetch.hand_lists.paused
    answers = [ReplyLost("no answer")] * lost

    def register_before_a_pause(waits: Mapping[str, tuple[int, HandList | None]]) -> dict[str, HandList]:
        lists = register(waits)
        Queue("default", store=store).pause()
        return lists

    def look(queues: Sequence[str]) -> list[str]:
        if answers:
            raise answers.pop()
        return paused(queues)

    monkeypatch.setattr(waiter.fetch, "register_hand_lists", register_before_a_pause)
    monkeypatch.setattr(waiter.fetch.hand_lists, "paused", look)
    monkeypatch.setattr(waiter.fetch, "on_wakeup", lambda: None)  # a batch that finds Redis as it was
    manager = idle_manager(waiter, waiter.fetch._runtime.clock)

    for _ in range(1 + lost):
        manager._arm()
    waiter.push("a")

    assert waiter.wakeups.wait(0.0) == []
    assert waiter.queued() == ["a"]
    waiter.resync()
    assert waiter.queued() == ["a"]


def test_a_pause_ends_no_connection_that_has_got_the_id_of_a_wait_since(waiter: Waiter, store: Store) -> None:
    """The ids are from before a restart of Redis, or of another server."""
    waiter.arm()
    other = store.connection()
    (client_id,) = other.exchange([("CLIENT", "ID")])
    hands = store.keys.hands(waiter.fetch.member.identity)
    store.call("HSET", hands, *[word for field in store.call("HKEYS", hands) for word in (field, client_id)])

    Queue("default", store=store).pause()

    assert other.exchange([("CLIENT", "ID")]) == [client_id]
    assert waiter.wakeups.wait(0.0) == []


def test_a_stop_leaves_nothing(waiter: Waiter, store: Store) -> None:
    waiter.arm()
    waiter.push("a")
    waiter.pushes()  # and nobody takes it in
    waiter.arm()

    waiter.coordinator.end()
    waiter.wakeups.close()
    waiter.fetch.leave([], 5.0, have_waits_ended=waiter.wakeups.have_ended)
    waiter.push("b")

    assert waiter.queued() == ["b", "a"]
    assert not store.call("KEYS", "kiq:hand*")


def test_a_process_that_others_have_recovered_arms_no_wait(waiter: Waiter, store: Store) -> None:
    with store.borrowed() as connection:
        waiter.engine.recover(connection, waiter.fetch.member.identity, ALL_SUSPECT)

    waiter.arm()
    waiter.push("a")

    assert waiter.pushes() == [Push("default")]
    assert waiter.redis_view.is_uncertain


def test_when_all_became_busy_a_unit_goes_back_at_once(waiter: Waiter) -> None:
    """Another process may be idle, and the queues of the running jobs have done nothing that deserves a penalty."""
    waiter.arm()
    waiter.push("a")
    (push,) = waiter.pushes()
    waiter.supply.demand = 0
    assert push.hand_list is not None

    waiter.fetch.on_push(push.hand_list, push.payload)
    waiter.fetch.flush_overdue(["default"])

    assert waiter.queued() == ["a"]
    assert waiter.fetch.running() == 0
    assert waiter.supply.prefetch._penalties == {}


def test_a_unit_whose_taker_does_not_come_goes_back_soon(waiter: Waiter) -> None:
    waiter.arm()
    waiter.push("a")
    (push,) = waiter.pushes()
    assert push.hand_list is not None
    waiter.fetch.on_push(push.hand_list, push.payload)

    wait_until(lambda: waiter.fetch.flush_overdue() is None or waiter.queued() == ["a"], "the unit to go back")

    assert waiter.queued() == ["a"]
    assert waiter.fetch.running() == 0


def test_a_push_after_a_freeze_between_register_and_wait_is_not_believed(waiter: Waiter) -> None:
    """Others may have recovered the process in that freeze."""
    hands = waiter.fetch.hand_lists
    waiter.wakeups._clock = clock = ManualClock()

    def register(waits: Mapping[str, tuple[int, HandList | None]]) -> dict[str, HandList]:
        lists = waiter.fetch.register_hand_lists(waits)
        clock.time += hands.wait_seconds - 1.0
        return lists

    waiter.wakeups.arm(["default"], register)
    waiter.push("a")
    clock.time += hands.grace_seconds + 1.1
    (push,) = waiter.pushes()

    assert push.hand_list is not None
    assert push.payload is None


@pytest.mark.parametrize("key", ["kiq:hands", "kiq:hands:<identity>"])
def test_a_key_of_a_wrong_type_is_reported_once_and_pushes_are_signals(waiter: Waiter, store: Store, key: str) -> None:
    store.call("SET", key.replace("<identity>", waiter.fetch.member.identity), "of a wrong type")
    for _ in range(2):
        waiter.arm()
        waiter.push("a")

        assert waiter.pushes() == [Push("default")]
    assert waiter.events.count("redis_refused") == 1


def test_the_list_of_a_wait_that_was_killed_is_not_used_again(waiter: Waiter) -> None:
    """It may have got a unit that its queue then refused, which has its token."""
    waiter.arm()
    (dropped,) = waiter.wakeups.drop_hand_waits()
    assert dropped.hand_list is not None
    waiter.fetch.on_push(dropped.hand_list, None, has_ended=dropped.has_ended)
    waiter.resync()
    waiter.fetch.look_into_hand_lists()
    assert not waiter.fetch.hand_lists.has_given_up
    assert not waiter.store.call("EXISTS", waiter.store.keys.hands(waiter.fetch.member.identity))

    waiter.redis_view.is_reserve_due = False
    waiter.arm()
    waiter.push("a")

    assert waiter.take_in().token != dropped.hand_list.token


def test_an_unused_list_is_kept_while_its_queue_is_paused(waiter: Waiter, store: Store) -> None:
    spare = HandList("default", "00000002.h000000007", waiter.fetch.member.identity, waiter.redis_view.generation)
    waiter.wakeups._unused["default"] = spare
    store.call("SADD", "paused", "default")

    waiter.arm()

    assert waiter.wakeups._unused == {"default": spare}


def test_no_client_of_another_server_is_killed_that_has_the_same_id(
    waiter: Waiter,
) -> None:
    waiter.arm()
    (client,) = waiter.wakeups._clients.values()
    waiter.wakeups._clients["default"] = replace(client, server="the one before a fail-over")

    (push,) = waiter.wakeups.drop_hand_waits()

    assert not push.has_ended
    assert not waiter.wakeups.have_ended


def test_a_stop_waits_for_a_hung_redis_as_long_as_its_step_has_and_not_as_its_store(
    redis_server: RedisServer, setup: Setup
) -> None:
    with Proxy(("127.0.0.1", redis_server.port)) as proxy, closing(Store(proxy.url, timeout=3600.0)) as store:
        waiter = Waiter(store, setup)
        waiter.resync()
        waiter.arm()

        with proxy.stalled(), pytest.raises(StoreError):
            waiter.wakeups.end_on_server(0.1)

        waiter.close()


def test_a_stop_whose_end_of_the_waits_is_not_confirmed_keeps_the_register(
    waiter: Waiter, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiter.arm()
    (wait,) = waiter.wakeups._armed.values()
    assert wait.hand_list is not None

    def is_lost(*_: object) -> None:
        raise ReplyLost("Redis did not answer")

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "server_id", is_lost)
        with pytest.raises(ReplyLost):
            waiter.wakeups.end_on_server(5.0)
    waiter.coordinator.end()
    waiter.fetch.leave([], 5.0, have_waits_ended=waiter.wakeups.have_ended)
    waiter.push("a")
    wait_until(lambda: waiter.hand(wait.hand_list) == [b"a"], "the push to be moved")  # type: ignore[arg-type]

    assert stale_hands(store) == [wait.hand_list.identity]


def test_what_a_crashed_manager_had_read_goes_back(waiter: Waiter, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = idle_manager(waiter, waiter.fetch._runtime.clock)
    waiter.arm()
    waiter.push("a")
    wait_until(lambda: waiter.queued() == [], "the push to be moved")
    monkeypatch.setattr(manager, "_on_pushes", Mock(side_effect=[MemoryError, None]))

    with pytest.raises(MemoryError):
        manager.run()
    assert waiter.redis_view.is_uncertain
    waiter.resync()

    assert waiter.queued() == ["a"]


@pytest.mark.parametrize("has_crashed", [True, False])
def test_a_unit_that_a_crashed_thread_has_left_behind_goes_back(waiter: Waiter, *, has_crashed: bool) -> None:
    clock = ManualClock()
    manager = idle_manager(waiter, clock)
    waiter.coordinator._now = clock.monotonic
    waiter.arm()
    waiter.push("a")
    waiter.take_in()  # and the thread that has taken it ends for want of memory
    waiter.fetch.has_crashed = has_crashed
    manager._replace_dead()

    for _ in range(25):
        clock.time += 1.0
        manager._sweep()
    waiter.settle()

    assert waiter.queued() == (["a"] if has_crashed else [])
    assert waiter.fetch.running() == (not has_crashed)
