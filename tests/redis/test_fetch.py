"""ReliableFetch: who holds what, in one process with a real server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha1
from typing import Any

import pytest

from kiqcluster.errors import RedisUnavailable, ReplyLost
from kiqcluster.process.clock import Clock, SystemClock
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.process.runtime import Runtime, Setup
from kiqcluster.sidekiq.outcome import Done, Retry
from kiqcluster.sidekiq.queue_groups import parse_group
from kiqcluster.store import Connection, Store
from kiqcluster.store.engine.engine import Engine
from kiqcluster.store.engine.units import Exchange, Member, Refusals, Reserved, Settlement, Unit
from kiqcluster.store.entry_moves import DeadSetLimits
from kiqcluster.worker.fetch.batch import BatchState
from kiqcluster.worker.fetch.fetch import ReliableFetch
from kiqcluster.worker.fetch.in_flight import SUSPECT_DELAY_SECONDS
from kiqcluster.worker.fetch.prefetch import Prefetch
from kiqcluster.worker.fetch.queue_order import QueueOrder
from kiqcluster.worker.identity import ProcessFingerprint, new_member
from tests.kit import TIMEOUT_SECONDS, RedisServer, wait_until


class Bench:
    """A fetch with its engine, and what it reports."""

    def __init__(
        self,
        store: Store,
        setup: Setup,
        group: str = "default",
        *,
        strict: bool = False,
        death_limits: Sequence[int | None] = (),
        clock: Clock | None = None,
    ) -> None:
        self.store = store
        self.engine = Engine(store, DeadSetLimits(100, 1_000.0))
        self.events: list[str] = []
        self.members: list[Member] = []
        self.pokes = 0
        self.rejoined: list[str] = []
        events = Events()
        events.listen(lambda name, _: self.events.append(name))
        self.runtime = runtime = Runtime(Config(), store, setup, events, clock or SystemClock())
        order = QueueOrder(parse_group(group, strict=strict), (), runtime.rng)
        birth = ProcessFingerprint.of_this_process()
        self.fetch = ReliableFetch(
            runtime,
            self.engine,
            order,
            lambda: new_member(birth),
            self.members.append,
            self._poke,
            death_limits=death_limits,
            on_rejoined=lambda: self.rejoined.append(self.fetch.member.identity),
        )
        self.coordinator = self.fetch.coordinator
        self.supply, self.batches, self.redis_view = (
            self.coordinator.supply,
            self.coordinator.batches,
            self.coordinator.redis_view,
        )
        self.engine.join(self.fetch.member)

    def _poke(self) -> None:
        self.pokes += 1

    def push(self, *payloads: str, queue: str = "default") -> None:
        self.store.call("LPUSH", self.store.keys.queue(queue), *payloads)

    def queued(self, queue: str = "default") -> list[str]:
        return [raw.decode() for raw in self.store.call("LRANGE", self.store.keys.queue(queue), 0, -1)]

    def inflight(self) -> int:
        held: int = self.store.call("HLEN", self.store.keys.inflight(self.fetch.member.identity))
        return held

    def settle(self) -> None:
        """Flush what is finished, as the manager does when it is overdue."""
        with self.coordinator.lock:
            batch = self.coordinator.claim_to_settle()
        if batch is not None:
            self.fetch._flush(batch)

    def receive_in_transit(self) -> None:
        """Receive the reply to the batch in transit, as the manager does when nobody needs it."""
        with self.coordinator.lock:
            batch = self.coordinator._claim(0)
        assert batch.sent is not None
        self.fetch._flush(batch)

    def next(self, finished: Settlement | None = None) -> Unit:
        unit = self.fetch.next(finished)
        assert unit is not None
        return unit


@pytest.fixture
def bench(store: Store, setup: Setup) -> Iterator[Bench]:
    bench = Bench(store, setup)
    yield bench
    bench.coordinator.end()


def test_an_outcome_and_the_next_unit_share_one_round_trip(bench: Bench) -> None:
    bench.push("a", "b")
    first = bench.next()
    progress = bench.fetch.progress

    second = bench.next(Settlement(first, Done()))

    assert (first.payload, second.payload) == (b"a", b"b")
    assert bench.fetch.progress == progress + 1
    assert bench.inflight() == 1


def test_round_trips_are_counted_and_the_units_that_wait_here(bench: Bench) -> None:
    bench.push("a", "b", "c")

    first = bench.next()
    bench.next(Settlement(first, Done()))

    assert bench.fetch.round_trips == 2
    assert 0 < bench.fetch.round_trip_seconds < TIMEOUT_SECONDS
    assert len(bench.supply.units) == 0
    bench.supply.units.append(first)  # as if prefetched
    assert len(bench.supply.units) == 1
    bench.supply.units.clear()


def test_as_many_units_are_reserved_as_processors_are_idle(bench: Bench) -> None:
    taken: list[bytes] = []
    threads = [threading.Thread(target=lambda: taken.append(bench.next().payload), daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: bench.supply.demand == 4, "four parked processors")

    bench.push(*"abcdefgh")
    bench.fetch.on_wakeup()

    wait_until(lambda: len(taken) == 4, "four units")
    assert sorted(taken) == [b"a", b"b", b"c", b"d"]
    assert bench.queued() == ["h", "g", "f", "e"]


def test_quiet_gives_unstarted_units_back_in_order(bench: Bench) -> None:
    bench.push(*"abcd")
    running = bench.next()
    with bench.coordinator.lock:  # as if prefetched for processors that are not idle any more
        reserved = bench.engine.exchange(bench.fetch._connection, bench.fetch.member, 99, {"default": (2, 2)}, [], 0.0)[
            1
        ]
        assert reserved is not None
        bench.supply.units.extend(reserved.units)

    returned = bench.coordinator.quiet()
    assert bench.pokes  # the manager is told to settle at once
    bench.fetch.flush_overdue()

    assert returned == 2
    assert bench.queued() == ["d", "c", "b"]
    assert bench.inflight() == 1
    assert running.payload == b"a"


def test_a_check_that_finds_all_units_taken_meanwhile_is_followed_by_another(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During a check nobody wakes the manager: the outcomes of those units would wait for the next sweep."""
    bench.push("a", "b")
    bench.supply.units.extend(bench.next() for _ in range(2))

    def processors_are_faster(_now: float) -> bool:
        bench.supply.units.clear()
        return False

    monkeypatch.setattr(bench.coordinator, "_has_waited_too_long", processors_are_faster)

    assert bench.fetch.flush_overdue() is not None
    assert bench.fetch.flush_overdue() is None
    assert not bench.supply.is_manager_notified


def test_a_processor_whose_outcome_the_manager_has_settled_still_looks_for_work(bench: Bench) -> None:
    bench.push("a")
    first = bench.next()
    bench.redis_view.is_reserve_due = False  # the only reason to look is this outcome
    bench.supply.finished.append(Settlement(first, Done()))  # handed in; the manager is faster than its processor
    bench.settle()
    bench.push("b")
    got: list[bytes] = []

    threading.Thread(target=lambda: got.append(bench.next().payload), daemon=True).start()

    wait_until(lambda: got == [b"b"], "the next unit, without a wakeup")


def test_starvation_is_reported_when_wakeups_can_be_armed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that parks before an empty batch is closed must not report it: the manager would arm nothing."""
    armed: list[list[str]] = []
    notified, ended = threading.Event(), threading.Event()
    receive = bench.fetch._on_reserved

    def receive_while_another_parks(*arguments: Any) -> None:
        receive(*arguments)
        threading.Thread(target=bench.fetch.next, daemon=True).start()
        wait_until(lambda: bench.supply.demand == 1, "the other to park")
        wait_until(lambda: not notified.is_set(), "the manager to have looked, if it was told")

    monkeypatch.setattr(bench.fetch, "_on_reserved", receive_while_another_parks)
    monkeypatch.setattr(bench.coordinator, "_wake_manager", notified.set)

    def manage() -> None:
        while notified.wait(TIMEOUT_SECONDS) and not ended.is_set():
            armed.append(bench.coordinator.queues_to_arm())
            notified.clear()

    threading.Thread(target=manage, daemon=True).start()
    threading.Thread(target=bench.fetch.next, daemon=True).start()

    wait_until(lambda: armed and armed[-1] == ["default"], "the wakeup to be armed")
    ended.set()
    notified.set()


def test_units_that_arrive_after_a_quiet_go_back_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.push("a")
    receive = bench.fetch._on_reserved
    pokes: list[int] = []

    def become_quiet_and_receive(*arguments: Any) -> None:
        bench.coordinator.quiet()
        pokes.append(bench.pokes)
        receive(*arguments)

    monkeypatch.setattr(bench.fetch, "_on_reserved", become_quiet_and_receive)

    threading.Thread(target=bench.fetch.next, daemon=True).start()

    wait_until(lambda: pokes and bench.pokes > pokes[0], "the manager to be told once more")
    wait_until(lambda: bench.supply.demand, "the batch to be closed")
    bench.fetch.flush_overdue()
    assert bench.queued() == ["a"]
    assert bench.inflight() == 0


class TestAhead:
    """A batch that is sent before its units are needed."""

    JOBS = 100

    @pytest.fixture(autouse=True)
    def in_transit(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        """50 units are taken at once; with 25 of them left, the next batch is in transit."""
        monkeypatch.setattr(
            Prefetch, "record_finished", lambda *_: None
        )  # it stays as it is set here, however slow the machine
        bench.push(*(f"{number:03}" for number in range(self.JOBS)))
        bench.supply.prefetch.depth = 50
        self.taken = [bench.next() for _ in range(26)]
        assert bench.batches.in_transit is not None
        assert len(bench.supply.units) == 24

    def test_a_processor_that_finds_no_unit_receives_it(self, bench: Bench) -> None:
        rest = [bench.next() for _ in range(self.JOBS - len(self.taken))]

        assert [unit.payload for unit in self.taken + rest] == [b"%03d" % number for number in range(self.JOBS)]
        assert bench.inflight() == self.JOBS

    def test_the_process_is_not_certain_of_its_units_until_it_is_received(self, bench: Bench) -> None:
        assert not bench.coordinator.is_certain()

        bench.receive_in_transit()

        assert bench.coordinator.is_certain()

    def test_the_manager_receives_it_when_nobody_needs_it(self, bench: Bench) -> None:
        wait_until(lambda: bench.inflight() > 50, "the batch to have run")

        wait_until(
            lambda: bench.fetch.flush_overdue() and bench.batches.in_transit is None,
            "the batch to be closed",
        )

        assert len(bench.supply.units) == bench.inflight() - len(self.taken)

    def test_quiet_gives_it_back_with_the_rest_in_order(self, bench: Bench) -> None:
        wait_until(lambda: bench.inflight() > 50, "the batch to have run")

        bench.coordinator.quiet()

        wait_until(lambda: bench.fetch.flush_overdue() is None, "everything to be given back")
        assert bench.inflight() == len(self.taken)
        assert bench.queued() == [f"{number:03}" for number in reversed(range(len(self.taken), self.JOBS))]

    def test_leaving_gives_it_back_as_well(self, bench: Bench) -> None:
        bench.coordinator.quiet()
        bench.coordinator.end()

        bench.fetch.leave([], 5.0)

        assert bench.queued() == [f"{number:03}" for number in reversed(range(self.JOBS))]

    def test_after_a_freeze_its_reply_is_not_believed(self, bench: Bench) -> None:
        """Others may have recovered its units since: a resync tells."""
        assert bench.batches.in_transit is not None
        bench.batches.in_transit.started_at -= 60
        epoch = bench.fetch.member.epoch

        rest = [bench.next() for _ in range(self.JOBS - len(self.taken))]

        assert bench.fetch.member.epoch == epoch + 1
        assert sorted(unit.payload for unit in self.taken + rest) == [b"%03d" % number for number in range(self.JOBS)]

    def test_after_a_second_freeze_nor_is_the_answer_to_that(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The process stood still after Redis had confirmed its units: it asks again, without them."""
        assert bench.batches.in_transit is not None
        bench.batches.in_transit.started_at -= 60
        now, resync, resyncs = bench.fetch._now, bench.fetch._membership.resync, []
        monkeypatch.setattr(bench.fetch, "_now", lambda: now() + (60 if len(resyncs) == 1 else 0))

        def counted(connection: Connection, held: Sequence[str]) -> bool:
            confirmed = resync(connection, held)
            resyncs.append(len(held))
            return confirmed

        monkeypatch.setattr(bench.fetch._membership, "resync", counted)

        rest = [bench.next() for _ in range(self.JOBS - len(self.taken))]

        assert resyncs[1] < resyncs[0]
        assert sorted(unit.payload for unit in self.taken + rest) == [b"%03d" % number for number in range(self.JOBS)]

    def test_when_its_reply_is_lost_nothing_is(self, bench: Bench, redis_server: RedisServer) -> None:
        redis_server.store().call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

        rest = [bench.next() for _ in range(self.JOBS - len(self.taken))]

        assert sorted(unit.payload for unit in self.taken + rest) == [b"%03d" % number for number in range(self.JOBS)]


def test_a_quiet_process_settles_but_fetches_nothing_until_it_resumes(bench: Bench) -> None:
    bench.push("a", "b")
    first = bench.next()
    bench.coordinator.quiet()
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.append(bench.next(Settlement(first, Done())).payload), daemon=True)
    thread.start()

    wait_until(lambda: bench.inflight() == 0, "the outcome to be settled")
    assert bench.queued() == ["b"]
    assert not bench.fetch.on_wakeup()

    bench.coordinator.resume()
    wait_until(lambda: got == [b"b"], "the next unit after resume")


def test_a_process_that_others_recovered_goes_on_under_a_new_identity(bench: Bench) -> None:
    bench.push("a")
    unit = bench.next()
    old = bench.fetch.member
    with bench.store.borrowed() as connection:
        bench.engine.recover(connection, old.identity)
    assert bench.queued() == ["a"]

    again = bench.next(Settlement(unit, Retry(b"a, retried", 1.0)))

    assert again.payload == b"a"
    assert bench.fetch.member.identity != old.identity
    assert bench.members[-1] == bench.fetch.member
    assert bench.store.call("ZCARD", bench.store.keys.retry) == 0
    assert "worker_fenced" in bench.events
    assert bench.rejoined == [bench.fetch.member.identity]


def test_a_redis_without_its_data_takes_no_outcome_and_work_goes_on(bench: Bench) -> None:
    bench.push("a")
    unit = bench.next()
    bench.store.call("FLUSHDB")
    bench.push("b")

    following = bench.next(Settlement(unit, Retry(b"a, retried", 1.0)))

    assert following.payload == b"b"
    assert "worker_fenced" in bench.events
    assert bench.store.call("ZCARD", bench.store.keys.retry) == 0


def test_after_a_lost_reply_nothing_is_lost_and_nothing_is_held_twice(bench: Bench, redis_server: RedisServer) -> None:
    impatient = bench.fetch._connection
    impatient._timeout = 0.2
    impatient.close()
    bench.push("a", "b")
    got: list[bytes] = []

    with redis_server.stalled():
        thread = threading.Thread(target=lambda: got.append(bench.next().payload), daemon=True)
        thread.start()
        wait_until(lambda: "redis_lost" in bench.events, "the reply to be missed")

    wait_until(lambda: got, "a unit after the stall")
    assert got == [b"a"]
    assert bench.queued() == ["b"]
    assert bench.inflight() == 1
    assert "redis_back" in bench.events


def test_outcomes_are_kept_while_redis_is_away_and_settled_when_it_is_back(
    setup: Setup, durable_server: RedisServer
) -> None:
    bench = Bench(durable_server.store(), setup)
    bench.push("a", "b")
    unit = bench.next()
    durable_server.kill()
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.append(bench.next(Settlement(unit, Done())).payload), daemon=True)
    thread.start()
    wait_until(lambda: "redis_lost" in bench.events, "the outage to be noticed")

    durable_server.start()

    wait_until(lambda: got == [b"b"], "the next unit")
    assert bench.inflight() == 1
    assert int(bench.store.call("GET", bench.store.keys.processed)) == 1
    assert bench.events.count("redis_lost") == 1
    bench.coordinator.end()


def test_leaving_puts_back_held_units_and_ends_the_membership(bench: Bench) -> None:
    bench.push("a", "b")
    first = bench.next()
    second = bench.next()
    with bench.coordinator.lock:
        bench.supply.finished.append(Settlement(first, Done()))

    bench.coordinator.end()
    bench.fetch.leave([], 5.0)

    assert second.payload == b"b"
    assert bench.queued() == ["b"]
    assert bench.engine.members() == {}
    assert bench.inflight() == 0


def test_leaving_empties_wake_lists_also_while_the_epoch_is_in_doubt(bench: Bench) -> None:
    """A resync may have run whose reply was lost."""
    bench.store.call("LPUSH", "kiq:wake:default", "a", "b")
    member = bench.fetch.member
    with bench.store.borrowed() as connection:
        bench.engine.resync(connection, member, member.raised(), [])

    bench.coordinator.end()
    bench.fetch.leave([], 5.0)

    assert bench.store.call("LRANGE", "queue:default", 0, -1) == [b"b", b"a"]
    assert bench.store.call("HLEN", "kiq:members") == 0


def test_a_refused_settle_holds_up_no_other_unit_and_is_tried_again(bench: Bench) -> None:
    bench.push("a", "b", "c")
    units = [bench.next() for _ in range(2)]
    bench.store.call("SET", bench.store.keys.retry, "not a zset")
    with bench.coordinator.lock:
        bench.supply.finished += [Settlement(units[0], Retry(b"again", 5.0)), Settlement(units[1], Done())]

    bench.settle()

    assert bench.inflight() == 1
    assert int(bench.store.call("GET", bench.store.keys.processed)) == 1
    bench.store.call("DEL", bench.store.keys.retry)
    bench.fetch._in_flight.refused_until = 0.0  # the pause is over
    bench.fetch.flush_overdue()
    assert bench.inflight() == 0
    assert bench.store.call("ZRANGE", bench.store.keys.retry, 0, -1) == [b"again"]


def test_an_outcome_that_redis_refused_is_kept_once_when_the_batch_fails_afterwards(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.push("a", "b")
    unit = bench.next()
    bench.store.call("SET", bench.store.keys.retry, "not a zset")
    monkeypatch.setattr(bench.fetch, "_on_reserved", raising(ReplyLost("lost while the units are confirmed")))
    with bench.coordinator.lock:
        batch = bench.coordinator._claim(1)
    bench.supply.finished.append(Settlement(unit, Retry(b"again", 5.0)))

    bench.fetch._flush(batch)

    assert [each.unit for each in bench.fetch._in_flight.refused] == [unit]
    assert not bench.fetch._in_flight.finished


@pytest.mark.parametrize("key", ["queue:default", "kiq:wake:default"])
def test_a_sweep_finds_jobs_in_a_queue_or_its_wake_list(bench: Bench, key: str) -> None:
    got: list[bytes] = []
    threading.Thread(target=lambda: got.append(bench.next().payload), daemon=True).start()
    wait_until(lambda: bench.supply.demand == 1, "a parked processor")
    bench.store.call("LPUSH", key, "a")

    bench.fetch.sweep()

    wait_until(lambda: got == [b"a"], "the unit")


def test_a_sweep_of_empty_queues_wakes_nobody_and_counts_as_progress(bench: Bench) -> None:
    threading.Thread(target=bench.fetch.next, daemon=True).start()
    wait_until(lambda: bench.supply.demand == 1, "a parked processor")
    calls, progress = bench.fetch._call, bench.fetch.progress

    bench.fetch.sweep()

    assert bench.fetch.progress == progress + 1
    assert bench.fetch._call == calls
    assert not bench.redis_view.is_reserve_due


def test_a_sweep_leaves_it_to_a_reserve_whether_a_queue_still_rests(bench: Bench) -> None:
    bench.store.call("SADD", "paused", "default")
    threading.Thread(target=bench.fetch.next, daemon=True).start()
    wait_until(lambda: bench.supply.demand == 1, "a parked processor")
    assert bench.coordinator.queues_to_arm() == []
    bench.store.call("SREM", "paused", "default")

    bench.fetch.sweep()

    wait_until(lambda: bench.coordinator.queues_to_arm() == ["default"], "the queue to be listened to again")


def test_a_wakeup_sends_the_batch_at_once_and_the_woken_processor_receives_it(bench: Bench) -> None:
    got: list[bytes] = []
    threading.Thread(target=lambda: got.append(bench.next().payload), daemon=True).start()
    wait_until(lambda: bench.supply.demand == 1, "a parked processor")
    bench.push("a")
    with bench.coordinator.lock:
        calls = bench.fetch._call

    assert bench.fetch.on_wakeup("default")

    assert bench.fetch._call == calls + 1  # sent by the thread that heard of the push
    wait_until(lambda: got == [b"a"], "the unit")
    wait_until(lambda: bench.batches.state is BatchState.NONE, "the batch to be closed")
    assert bench.batches.in_transit is None


class TestSentAhead:
    """Batches that are sent while there are units at hand."""

    @pytest.fixture(autouse=True)
    def _steady(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Prefetch, "record_finished", lambda *_: None)

    @pytest.fixture
    def in_transit(self, bench: Bench) -> list[Unit]:
        """A batch for 25 units in transit, and none at hand; those that ran meanwhile."""
        prefetch(bench, at_hand=25)
        return [bench.next() for _ in range(25)]

    @pytest.mark.parametrize("depth", [50, 51])
    def test_the_next_batch_is_sent_before_anybody_is_woken(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch, depth: int
    ) -> None:
        """A processor that is woken holds the interpreter while jobs are at hand: the batch would be sent too late."""
        prefetch(bench, at_hand=25, depth=depth)
        for _ in range(25):
            bench.next()
        sent = bench.fetch._call
        sent_by_then: list[int] = []
        wake = bench.coordinator._wake_taker
        with monkeypatch.context() as patch:
            patch.setattr(bench.coordinator, "_wake_taker", lambda: (sent_by_then.append(bench.fetch._call), wake()))
            bench.next()

        assert sent_by_then[0] == sent + 1

    def test_when_it_cannot_be_sent_the_units_at_hand_still_run(
        self, bench: Bench, in_transit: list[Unit], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        paused, gate = threading.Event(), threading.Event()
        monkeypatch.setattr(bench.fetch._health, "pause", lambda _: (paused.set(), gate.wait(3 * TIMEOUT_SECONDS)))
        monkeypatch.setattr(bench.engine, "begin", raising(RedisUnavailable("away")))
        monkeypatch.setattr(bench.engine, "finish", once_another_is_parked(bench))

        ran = run(bench, 2)

        assert paused.wait(TIMEOUT_SECONDS)
        wait_until(lambda: len(ran) == 1, "the other one to run")
        monkeypatch.undo()
        gate.set()
        wait_until(lambda: len(ran) == 2, "both to run")

    def test_while_redis_does_not_read_it_the_units_at_hand_still_run(
        self, bench: Bench, in_transit: list[Unit], redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Five megabytes of outcomes are more than a socket's buffers hold."""
        stall, finish = redis_server.stalled(), once_another_is_parked(bench)

        def finish_and_stall(connection: Connection, sent: Exchange) -> tuple[Refusals, Reserved | None]:
            found = finish(connection, sent)
            monkeypatch.undo()
            bench.supply.finished.extend(Settlement(unit, Retry(b"x" * 200_000, 5.0)) for unit in in_transit)
            stall.__enter__()
            return found

        monkeypatch.setattr(bench.engine, "finish", finish_and_stall)
        ran = run(bench, 2)

        try:
            wait_until(lambda: len(ran) == 1, "the other one to run", seconds=3)  # less than a write is waited for
        finally:
            stall.__exit__(None, None, None)

    def test_an_exception_in_a_flush_leaves_no_batch_open(
        self, bench: Bench, in_transit: list[Unit], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        receive = bench.fetch._on_reserved
        monkeypatch.setattr(bench.fetch, "_on_reserved", lambda *given: (receive(*given), raising(SystemExit())()))

        with pytest.raises(SystemExit):
            bench.next()

        assert bench.batches.state is BatchState.NONE

    def test_a_processor_that_is_alone_runs_the_units_at_hand_while_redis_is_away(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        prefetch(bench, at_hand=10)
        monkeypatch.setattr(bench.engine, "begin", raising(RedisUnavailable("away")))

        ran = run(bench, 1)

        wait_until(lambda: ran, "it to run one")

    def test_a_processor_that_is_woken_for_a_unit_and_flushes_instead_wakes_the_next(self, bench: Bench) -> None:
        gate = threading.Event()
        started = run(bench, 4, gate)
        wait_until(lambda: bench.supply.demand == 4, "four parked processors")

        prefetch(bench, at_hand=10)

        wait_until(lambda: len(started) == 4, "all four to run")
        gate.set()


def prefetch(bench: Bench, at_hand: int, depth: int = 50) -> None:
    """Have 100 jobs, so many of them at hand, and few enough to send a batch for half of a depth."""
    bench.push(*(str(number) for number in range(100)))
    limits = {"default": (at_hand, at_hand)}
    reserved = bench.engine.exchange(bench.fetch._connection, bench.fetch.member, 99, limits, [], 0.0)[1]
    assert reserved is not None
    with bench.coordinator.lock:
        bench.fetch._in_flight.add(reserved.units, 0.0)
        bench.supply.units.extend(reserved.units)
        bench.supply.low_watermark, bench.supply.prefetch.depth = depth // 2, depth
        bench.coordinator.parked.notify()


def run(bench: Bench, count: int, gate: threading.Event | None = None) -> list[bytes]:
    """Have processors take a unit each, and wait at a gate; return the payloads as they come."""
    started: list[bytes] = []

    def work() -> None:
        unit = bench.fetch.next()
        if unit is not None:
            started.append(unit.payload)
        if gate is not None:
            gate.wait(TIMEOUT_SECONDS)

    for _ in range(count):
        threading.Thread(target=work, daemon=True).start()
    return started


def raising(error: BaseException) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def once_another_is_parked(bench: Bench) -> Callable[[Connection, Exchange], tuple[Refusals, Reserved | None]]:
    finish = bench.engine.finish

    def wait_and_finish(connection: Connection, sent: Exchange) -> tuple[Refusals, Reserved | None]:
        wait_until(lambda: bench.supply.demand == 1, "the other one to park")
        return finish(connection, sent)

    return wait_and_finish


class TestSuspects:
    @pytest.fixture(autouse=True)
    def pair(self, bench: Bench) -> None:
        """Two jobs that have been there at two deaths."""
        for payload in (b"first", b"second"):
            bench.store.call("HSET", bench.store.keys.suspects, sha1(payload).hexdigest(), 2)
        bench.push("first", "second")
        self.first = bench.next()

    def test_the_next_one_starts_with_the_batch_that_settles_the_one_before(self, bench: Bench) -> None:
        calls = bench.fetch._call

        assert bench.next(Settlement(self.first, Done())).payload == b"second"

        assert bench.fetch._call == calls + 1

    def test_the_class_with_the_lowest_limit_says_how_far_apart_they_start(self, store: Store, setup: Setup) -> None:
        """One death is the last chance of a class that may have two."""
        fetches = [Bench(store, setup, death_limits=limits).fetch for limits in ((None, 2), (None, 5))]
        for fetch in fetches:
            fetch._in_flight.add([Unit("default", b"", "token", "me", deaths=1)], at=0.0)

        assert [fetch._in_flight.most_deaths([], SUSPECT_DELAY_SECONDS) for fetch in fetches] == [0, 1]

    def test_one_that_must_wait_arms_no_wakeups(self, bench: Bench) -> None:
        """Its queue is not empty: a wakeup there would come at once, for a reserve that may not take it, for ever."""
        other = threading.Thread(target=bench.fetch.next, daemon=True)
        other.start()

        wait_until(
            lambda: bench.supply.demand == 1 and bench.batches.state is BatchState.NONE,
            "the other processor to be idle",
        )

        assert bench.coordinator.queues_to_arm() == []
        assert bench.queued() == ["second"]
        bench.coordinator.end()
        other.join()
