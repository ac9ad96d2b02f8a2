"""Each Lua script does what its header says.  What it leaves when it fails after a call: test_faults.py."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha1
from itertools import pairwise
from math import inf
from threading import Event

import pytest

from kiqcluster.api import Queue, ScheduledSet
from kiqcluster.errors import RedisRefused, RedisUnavailable, ReplyLost
from kiqcluster.iterable.state import save_state
from kiqcluster.sidekiq.keys import FORMAT_VERSION
from kiqcluster.sidekiq.outcome import (
    Dead,
    Deferred,
    Discard,
    Done,
    Effect,
    Interrupted,
    Outcome,
    Parked,
    Requeue,
    Retry,
)
from kiqcluster.sidekiq.ruby_json import decode
from kiqcluster.store import Store
from kiqcluster.store import scripts as script_module
from kiqcluster.store.cron import skip_ticks
from kiqcluster.store.engine.begin_calls import Begin, may_hold
from kiqcluster.store.engine.engine import MAX_RETURNED, Engine
from kiqcluster.store.engine.settle_calls import MAX_OUTCOMES
from kiqcluster.store.engine.units import (
    ALL_SUSPECT,
    ANY_DEATHS,
    Beat,
    BeginVerdict,
    Member,
    Reserved,
    Settlement,
    Unit,
)
from kiqcluster.store.engine.wait_lists import forget_hands, stale_hands
from kiqcluster.store.entry_moves import (
    DeadSetLimits,
    Dropped,
    Move,
    drop_entries,
    move_entries,
    move_jobs,
    read_due,
    read_queue,
)
from kiqcluster.store.guarded_push import GuardedJob, Refusal, push_guarded
from kiqcluster.store.limits.parking import end_override, override_limit, send_parked
from kiqcluster.store.limits.places import leave_place, take_place
from kiqcluster.store.scripts import (
    BEGIN,
    LEAVE_PLACE,
    MOVE_ENTRIES,
    MOVE_JOBS,
    ONCE,
    RECEIVE_JOBS,
    RECOVER,
    RELEASE,
    RESERVE,
    RESYNC,
    SEND_PARKED,
    SETTLE,
    TAKE_PLACE,
    Call,
    Script,
    run_scripts,
)
from kiqcluster.store.shard_moves import ShardMove
from kiqcluster.worker.fetch.membership import Membership

NOW = 1_795_168_740.25
ME = Member("host:1:aaaaaaaaaaaa", 1, "boot ns 1 2.00")


@pytest.fixture
def engine(store: Store) -> Engine:
    engine = Engine(store, DeadSetLimits(largest=100, timeout=1_000.0))
    engine.join(ME)
    return engine


def push(store: Store, queue: str, *payloads: str) -> None:
    store.call("LPUSH", store.keys.queue(queue), *payloads)


def reserve(engine: Engine, wanted: int, *queues: str, call: int = 1, member: Member = ME) -> Reserved:
    with engine.store.borrowed() as connection:
        _, reserved = engine.exchange(
            connection, member, call, dict.fromkeys(queues or ("default",), (wanted, wanted)), [], NOW
        )
    assert reserved is not None
    if reserved.refusal and not reserved.resting:
        raise RedisRefused(reserved.refusal)
    return reserved


LARGE = [letter * 600_000 for letter in "abc"]  # two of them are more than one batch gives back


def hold_each(engine: Engine, count: int) -> None:
    """Reserve so many, one by one: a reserve brings one large unit."""
    for call in range(1, count + 1):
        assert len(reserve(engine, 1, call=call).units) == 1


def calls_of(store: Store, command: str) -> int:
    """Return how often a command ran since RESETSTAT, calls inside scripts included."""
    found = re.search(rf"^cmdstat_{command}:calls=(\d+)".encode(), store.call("INFO", "commandstats"), re.MULTILINE)
    return int(found[1]) if found else 0


def calls_of_scripts(store: Store) -> int:
    refused = re.search(rb"^errorstat_NOSCRIPT:count=(\d+)", store.call("INFO", "errorstats"), re.MULTILINE)
    return calls_of(store, "eval") + calls_of(store, "evalsha") - (int(refused[1]) if refused else 0)


def settle(engine: Engine, *pairs: tuple[Unit, Outcome]) -> int:
    with engine.store.borrowed() as connection:
        return engine.settle(connection, [Settlement(unit, outcome) for unit, outcome in pairs], NOW)


def queue(store: Store, name: str = "default") -> list[str]:
    """Return a queue's payloads, the next to be fetched last."""
    return [payload.decode() for payload in store.call("LRANGE", store.keys.queue(name), 0, -1)]


def entries(store: Store, key: str) -> dict[str, float]:
    flat = store.call("ZRANGE", key, 0, -1, "WITHSCORES")
    return {member.decode(): float(score) for member, score in zip(flat[::2], flat[1::2], strict=True)}


def inflight(store: Store, member: Member = ME) -> list[bytes]:
    held: list[bytes] = store.call("HVALS", store.keys.inflight(member.identity))
    return held


class TestReserve:
    def test_takes_the_oldest_first_and_keeps_a_copy_of_each(self, engine: Engine, store: Store) -> None:
        push(store, "default", "a", "b", "c")

        units = reserve(engine, 2).units

        assert [unit.payload for unit in units] == [b"a", b"b"]
        assert [unit.token for unit in units] == ["00000001.0000000001.00001", "00000001.0000000001.00002"]
        assert queue(store) == ["c"]
        held = store.call("HGETALL", store.keys.inflight(ME.identity))
        assert held == [
            *(b"00000001.0000000001.00001:default", b"a"),
            *(b"00000001.0000000001.00002:default", b"b"),
        ]

    def test_tokens_sort_in_the_order_of_the_queue(self, engine: Engine, store: Store) -> None:
        push(store, "default", *[f"{number:04d}" for number in range(350)])

        units = reserve(engine, 350).units

        assert [unit.payload for unit in sorted(units, key=lambda unit: unit.token)] == [
            f"{number:04d}".encode() for number in range(350)
        ]

    def test_goes_through_the_queues_in_the_order_given(self, engine: Engine, store: Store) -> None:
        push(store, "low", "l1", "l2")
        push(store, "high", "h1")

        units = reserve(engine, 2, "high", "low").units

        assert [(unit.queue, unit.payload) for unit in units] == [("high", b"h1"), ("low", b"l1")]

    def test_takes_from_the_wake_list_first_and_puts_the_rest_back_in_order(self, engine: Engine, store: Store) -> None:
        push(store, "default", "d", "e")
        store.call("LPUSH", store.keys.wake("default"), "a", "b", "c")

        units = reserve(engine, 1).units

        assert [unit.payload for unit in units] == [b"a"]
        assert store.call("LLEN", store.keys.wake("default")) == 0
        assert queue(store) == ["e", "d", "c", "b"]

    def test_without_room_it_only_empties_the_wake_list(self, engine: Engine, store: Store) -> None:
        push(store, "default", "b")
        store.call("LPUSH", store.keys.wake("default"), "a")

        units = reserve(engine, 0).units

        assert units == []
        assert queue(store) == ["b", "a"]

    def test_a_paused_queue_is_left_alone_and_reported(self, engine: Engine, store: Store) -> None:
        push(store, "default", "a")
        push(store, "other", "b")
        store.call("LPUSH", store.keys.wake("default"), "z")
        store.call("SADD", store.keys.paused, "default")

        reserved = reserve(engine, 5, "default", "other")

        assert [unit.payload for unit in reserved.units] == [b"b"]
        assert reserved.resting == {"default"}
        assert queue(store) == ["a", "z"]

    def test_every_gate_closes_the_queues_that_it_names(self, store: Store) -> None:
        closed, broken = "kiq:test:closed", "kiq:test:broken"
        engine = Engine(store, DeadSetLimits(100, 1_000.0), gates=[("member_of", broken), ("member_of", closed)])
        engine.join(ME)
        for name in ("default", "other", "third"):
            push(store, name, name)
        store.call("SADD", store.keys.paused, "default")
        store.call("SADD", closed, "other")
        store.call("SET", broken, "no set")

        reserved = reserve(engine, 5, "default", "other", "third")

        assert [unit.payload for unit in reserved.units] == [b"third"]
        assert reserved.resting == {"default", "other"}
        assert f"{broken}: WRONGTYPE" in reserved.refusal

    def test_a_stranger_and_an_old_epoch_are_fenced_and_change_nothing(self, engine: Engine, store: Store) -> None:
        push(store, "default", "a")
        stranger = Member("host:2:bbbbbbbbbbbb", 1, "boot ns 2 2.00")

        assert reserve(engine, 1, member=stranger).fenced
        assert reserve(engine, 1, member=ME.raised()).fenced
        assert queue(store) == ["a"]

    def test_a_batch_stops_at_a_megabyte_but_holds_at_least_one_unit(self, engine: Engine, store: Store) -> None:
        push(store, "default", "x" * 3_000_000, "y" * 600_000, "z" * 600_000, "small")

        first = reserve(engine, 10, call=1).units
        second = reserve(engine, 10, call=2).units

        assert [unit.payload[:1] for unit in first] == [b"x"]
        assert [unit.payload[:1] for unit in second] == [b"y", b"z"]

    def test_payloads_of_any_bytes_survive(self, engine: Engine, store: Store) -> None:
        hostile = [b"\x00\xff\r\n", b"12:not a length", "☃".encode(), b""]
        store.call("LPUSH", store.keys.queue("a:b"), *hostile)

        units = reserve(engine, 10, "a:b").units
        settle(engine, *[(unit, Requeue()) for unit in reversed(units)])

        assert [unit.payload for unit in units] == hostile
        assert store.call("LRANGE", store.keys.queue("a:b"), 0, -1) == hostile[::-1]


def test_a_join_that_arrives_late_lowers_no_epoch(engine: Engine, store: Store) -> None:
    with store.borrowed() as connection:
        engine.resync(connection, ME, ME.raised(), [])

    engine.join(ME)

    assert not reserve(engine, 1, member=ME.raised()).fenced


class TestSettle:
    @pytest.fixture
    def unit(self, engine: Engine, store: Store) -> Unit:
        push(store, "default", "original")
        (unit,) = reserve(engine, 1).units
        return unit

    @pytest.mark.parametrize(
        ("outcome", "where", "processed", "failed"),
        [
            (Done(), {}, 1, 0),
            (Discard(), {}, 1, 1),
            (Retry(b"again", NOW + 15.5), {"retry": {"again": NOW + 15.5}}, 1, 1),
            (Dead(b"gone", NOW), {"dead": {"gone": NOW}}, 1, 1),
            (Dead(b"never ran", NOW, counted=False), {"dead": {"never ran": NOW}}, 0, 0),
            (Deferred(b"later", NOW + 30), {"schedule": {"later": NOW + 30}}, 0, 0),
            (Requeue(), {"queue": ["original"]}, 0, 0),
            (Interrupted(b"changed"), {"queue": ["changed"]}, 0, 0),
        ],
        ids=lambda value: type(value).__name__ if isinstance(value, Outcome) else "",
    )
    def test_each_outcome_is_written_and_counted(
        self,
        engine: Engine,
        store: Store,
        unit: Unit,
        outcome: Outcome,
        where: dict[str, object],
        processed: int,
        failed: int,
    ) -> None:
        held = settle(engine, (unit, outcome))

        assert held == 1
        assert inflight(store) == []
        assert entries(store, store.keys.retry) == where.get("retry", {})
        assert entries(store, store.keys.dead) == where.get("dead", {})
        assert entries(store, store.keys.schedule) == where.get("schedule", {})
        assert queue(store) == where.get("queue", [])
        for key, count in ((store.keys.processed, processed), (store.keys.failed, failed)):
            assert int(store.call("GET", key) or 0) == count
        for key, count in (
            (store.keys.processed_on("2026-11-20"), processed),
            (store.keys.failed_on("2026-11-20"), failed),
        ):
            assert int(store.call("GET", key) or 0) == count
            assert store.call("TTL", key) == (157_680_000 if count else -2)

    @pytest.mark.parametrize(
        "outcome",
        [Done(), Discard(), Retry(b"x", NOW), Dead(b"x", NOW), Deferred(b"x", NOW), Requeue(), Interrupted(b"x")],
        ids=lambda outcome: type(outcome).__name__,
    )
    def test_the_second_settle_of_a_unit_changes_nothing(
        self, engine: Engine, store: Store, unit: Unit, outcome: Outcome
    ) -> None:
        settle(engine, (unit, outcome))
        before = everything(store)

        held = settle(engine, (unit, outcome))

        assert held == 0
        assert everything(store) == before

    def test_a_late_settle_of_a_recovered_unit_changes_nothing(self, engine: Engine, store: Store, unit: Unit) -> None:
        with store.borrowed() as connection:
            engine.recover(connection, ME.identity)

        held = settle(engine, (unit, Retry(b"again", NOW)))

        assert held == 0
        assert queue(store) == ["original"]
        assert entries(store, store.keys.retry) == {}

    def test_effects_run_with_the_outcome_and_only_if_the_token_was_held(
        self, engine: Engine, store: Store, unit: Unit
    ) -> None:
        effects = (
            Effect("sadd", "kiq:test:set", ("member",)),
            Effect("lpush", "kiq:test:list", ("back",)),
            Effect("rpush", "kiq:test:list", ("front",)),
            Effect("zadd", "kiq:test:zset", ("1.5", "scored")),
        )

        settle(engine, (unit, Done(effects=effects)))
        settle(engine, (unit, Done(effects=effects)))

        assert store.call("SMEMBERS", "kiq:test:set") == [b"member"]
        assert store.call("LRANGE", "kiq:test:list", 0, -1) == [b"back", b"front"]
        assert entries(store, "kiq:test:zset") == {"scored": 1.5}
        assert int(store.call("GET", store.keys.processed)) == 1

    def test_the_dead_set_keeps_its_limits(self, engine: Engine, store: Store) -> None:
        store.call(
            "ZADD", store.keys.dead, NOW - 2_000, "too old", *[word for n in range(150) for word in (NOW - n, f"e{n}")]
        )
        push(store, "default", "a")
        (unit,) = reserve(engine, 1).units

        settle(engine, (unit, Dead(b"newest", NOW + 1)))

        dead = entries(store, store.keys.dead)
        assert len(dead) == 99  # as Sidekiq: the limit less one
        assert "newest" in dead
        assert "too old" not in dead
        assert "e149" not in dead

    def test_a_thousand_outcomes_go_in_one_batch(self, engine: Engine, store: Store) -> None:
        push(store, "default", *[str(number) for number in range(2_500)])
        units = [unit for call in range(1, 4) for unit in reserve(engine, 1_000, call=call).units]

        held = settle(engine, *[(unit, Done()) for unit in units])

        assert held == 2_500
        assert inflight(store) == []
        assert int(store.call("GET", store.keys.processed)) == 2_500

    @pytest.mark.parametrize("outcome", [Requeue(), Retry(b"later", 9.0)])
    def test_outcomes_that_cost_more_go_a_batch_at_a_time_in_order(
        self, engine: Engine, store: Store, outcome: Outcome
    ) -> None:
        count = 2 * MAX_OUTCOMES + 1
        push(store, "default", *map(str, range(count)), "done")
        units = reserve(engine, count + 1).units
        store.call("CONFIG", "RESETSTAT")

        held = settle(engine, *[(unit, outcome) for unit in reversed(units[:-1])], (units[-1], Done()))

        assert held == count + 1
        assert inflight(store) == []
        assert calls_of_scripts(store) == 3
        if isinstance(outcome, Requeue):
            assert queue(store) == [*map(str, reversed(range(count)))]


SLOTS, CANCELLED = "kiq:test:slots", "kiq:test:cancelled"


def enter(largest: int, otherwise: str, key: str = SLOTS) -> Effect:
    return Effect("enter", key, (largest, otherwise))


def slots(store: Store, key: str = SLOTS) -> set[str]:
    return {member.decode() for member in store.call("SMEMBERS", key)}


def park(store: Store, *payloads: str, queue: str = "other", key: str = SLOTS) -> None:
    """Have jobs wait in the line of a set, in this order."""
    for place, payload in enumerate(payloads, 1):
        store.call("ZADD", f"{key}:parked", place, f"{store.keys.queue(queue)}\0{payload}")


def parked(store: Store, key: str = SLOTS) -> list[str]:
    """Return the jobs in the line of a set, the first one first."""
    entries: list[bytes] = store.call("ZRANGE", f"{key}:parked", 0, -1)
    return [entry.decode().partition("\0")[2] for entry in entries]


def forget_turns(store: Store) -> None:
    """Have it be some time ago that jobs were sent back."""
    for digest in store.call("ZRANGE", f"{SLOTS}:turns", 0, -1):
        store.call("ZADD", f"{SLOTS}:turns", 1, digest)


class TestBegin:
    @pytest.fixture
    def units(self, engine: Engine, store: Store) -> list[Unit]:
        push(store, "default", "a", "b", "c")
        return reserve(engine, 3).units

    def test_without_rows_it_asks_nobody(self, engine: Engine, store: Store, units: list[Unit]) -> None:
        store.call("CONFIG", "RESETSTAT")

        assert engine.begin_run(units[0], []).action == "go"
        assert (calls_of_scripts(store), units[0].holds) == (0, False)

    def test_the_first_row_that_is_not_true_decides_and_nothing_is_changed(
        self, engine: Engine, store: Store, units: list[Unit]
    ) -> None:
        first, second, third = units
        assert engine.begin_run(first, [enter(1, "park")]).action == "go"
        store.call("SET", CANCELLED, 1)

        deferred = engine.begin_run(second, [enter(5, "park", "other"), enter(1, "defer 2.5"), enter(1, "drop")])
        dropped = engine.begin_run(third, [Effect("absent", CANCELLED, ("drop",)), enter(1, "park")])

        assert (deferred.action, deferred.seconds, deferred.row) == ("defer", 2.5, enter(1, "defer 2.5"))
        assert (dropped.action, dropped.row) == ("drop", Effect("absent", CANCELLED, ("drop",)))
        assert slots(store) == {f"{ME.identity}/{first.token}"}
        assert slots(store, "other") == set()
        assert store.call("HLEN", store.keys.held(ME.identity)) == 1

    def test_any_number_of_rows_takes_one_round_trip_and_may_be_sent_again(
        self, engine: Engine, store: Store, units: list[Unit]
    ) -> None:
        rows = [enter(1, "park"), enter(2, "drop", "other"), Effect("absent", CANCELLED, ("drop",))]
        engine.begin_run(units[0], rows)
        store.call("CONFIG", "RESETSTAT")

        assert engine.begin_run(units[0], rows).action == "go"
        assert calls_of_scripts(store) == 1
        assert (len(slots(store)), len(slots(store, "other"))) == (1, 1)

    def test_a_unit_that_others_have_recovered_enters_nothing(
        self, engine: Engine, store: Store, units: list[Unit]
    ) -> None:
        with store.borrowed() as connection:
            engine.recover(connection, ME.identity)

        assert engine.begin_run(units[0], [enter(1, "park")]).action == "lost"
        assert slots(store) == set()

    def test_an_unknown_row_is_refused_and_changes_nothing(
        self, engine: Engine, store: Store, units: list[Unit]
    ) -> None:
        with pytest.raises(RedisRefused, match="no begin row leap"):
            engine.begin_run(units[0], [enter(1, "park"), Effect("leap", "key", ("drop",))])

        assert slots(store) == set()

    def test_a_history_has_what_begins_and_ends_and_no_other_run(self, engine: Engine, store: Store) -> None:
        push(store, "default", "a")
        (unit,) = reserve(engine, 1).units
        note = Effect("note", "kiq:history:a", ("began", 60))
        store.call("SET", CANCELLED, "1")

        engine.begin_run(unit, [note, Effect("absent", CANCELLED, ("drop",))])
        assert store.call("EXISTS", "kiq:history:a") == 0

        assert engine.begin_run(unit, [note]).action == "go"
        ended = Done(effects=(Effect("note", "kiq:history:a", ("ended", 9)),))
        for _ in range(2):  # nobody holds it the second time
            settle(engine, (unit, ended))
        assert store.call("LRANGE", "kiq:history:a", 0, -1) == [b"began", b"ended"]
        assert store.call("TTL", "kiq:history:a") == 9


BEGIN_ROWS = [
    Effect("enter", SLOTS, (9, "park")),
    Effect("concurrent", "kiq:rate:places", (9, "defer 1")),
    Effect("absent", CANCELLED, ("drop",)),
    Effect("clear", "kiq:lock:x", ("jid",)),
    Effect("renew", "kiq:lock:x", ("jid", 9)),
    Effect("fixed_window", "kiq:rate:x", (9, "60.0", 0)),
]
RATES = [("fixed_window", 3_600), ("sliding_window", 60), ("leaky_bucket", 60)]  # operation, seconds


@pytest.mark.parametrize(("kind", "seconds"), RATES)
class TestRates:
    @pytest.fixture
    def units(self, engine: Engine, store: Store) -> list[Unit]:
        push(store, "default", "a", "b", "c")
        return reserve(engine, 3).units

    def rate(self, store: Store, kind: str, seconds: float, was_promised: bool = False) -> Effect:
        return Effect(kind, store.keys.rate("crm"), (1, repr(seconds), int(was_promised)))

    def test_a_unit_within_the_rate_begins_and_the_others_are_deferred_one_after_another(
        self, engine: Engine, store: Store, units: list[Unit], kind: str, seconds: float
    ) -> None:
        rows = [self.rate(store, kind, seconds)]

        first, second, third = [engine.begin_run(unit, rows) for unit in units]

        assert (first.action, second.action, third.action) == ("go", "defer", "defer")
        assert (second.row, 0 < second.seconds <= seconds) == (rows[0], True)
        assert third.seconds - second.seconds == pytest.approx(seconds, abs=0.5)

    def test_a_unit_that_another_row_refuses_counts_as_no_start(
        self, engine: Engine, store: Store, units: list[Unit], kind: str, seconds: float
    ) -> None:
        store.call("SET", CANCELLED, 1)
        rows = [self.rate(store, kind, seconds), Effect("absent", CANCELLED, ("drop",))]

        assert engine.begin_run(units[0], rows).action == "drop"
        assert engine.begin_run(units[1], rows[:1]).action == "go"

    def test_its_keys_expire(self, engine: Engine, store: Store, units: list[Unit], kind: str, seconds: float) -> None:
        for unit in units:
            engine.begin_run(unit, [self.rate(store, kind, seconds)])

        for key in store.call("KEYS", "kiq:rate:*"):
            assert seconds <= store.call("TTL", key) <= 6 * seconds


class TestHolds:
    """What a unit holds is released in the script that moves the unit, whichever that is."""

    @pytest.fixture
    def unit(self, engine: Engine, store: Store) -> Unit:
        push(store, "default", "a")
        (unit,) = reserve(engine, 1).units
        engine.begin_run(unit, [enter(1, "park"), enter(3, "drop", "other")])
        assert (len(slots(store)), len(slots(store, "other"))) == (1, 1)
        return unit

    @pytest.mark.parametrize(
        "outcome",
        [
            Done(),
            Retry(b"again", NOW),
            Dead(b"dead", NOW),
            Discard(),
            Requeue(),
            Interrupted(b"a"),
            Deferred(b"a", NOW),
        ],
        ids=lambda outcome: type(outcome).__name__,
    )
    def test_by_every_outcome(self, engine: Engine, store: Store, unit: Unit, outcome: Outcome) -> None:
        assert settle(engine, (unit, outcome)) == 1

        assert (slots(store), slots(store, "other")) == (set(), set())
        assert store.call("EXISTS", store.keys.held(ME.identity)) == 0

    def test_by_a_recovery(self, engine: Engine, store: Store, unit: Unit) -> None:
        with store.borrowed() as connection:
            assert engine.recover(connection, ME.identity) == 1

        assert (slots(store), slots(store, "other")) == (set(), set())
        assert store.call("EXISTS", store.keys.held(ME.identity)) == 0

    def test_by_a_resync_that_gives_it_back(self, engine: Engine, store: Store, unit: Unit) -> None:
        with store.borrowed() as connection:
            assert engine.resync(connection, ME, ME.raised(), []) == (1, 0)

        assert slots(store) == set()

    @pytest.mark.parametrize("by", ["resync", "recovery"])
    def test_by_both_also_where_an_earlier_script_could_not(
        self, engine: Engine, store: Store, unit: Unit, by: str
    ) -> None:
        push(store, "default", "b")
        (other,) = reserve(engine, 1, call=2).units
        engine.begin_run(other, [enter(3, "drop", "other")])
        store.call("HDEL", store.keys.inflight(ME.identity), unit.field)  # all that was left of it is what it holds

        with store.borrowed() as connection:
            if by == "resync":
                engine.resync(connection, ME, ME.raised(), [other.token])
            else:
                engine.recover(connection, ME.identity)

        left = {f"{ME.identity}/{other.token}"} if by == "resync" else set()
        assert (slots(store), slots(store, "other")) == (set(), left)

    def test_not_by_a_resync_that_leaves_it(self, engine: Engine, store: Store, unit: Unit) -> None:
        with store.borrowed() as connection:
            assert engine.resync(connection, ME, ME.raised(), [unit.token]) == (0, 0)

        assert slots(store) == {f"{ME.identity}/{unit.token}"}

    def test_not_by_a_late_settle_of_a_recovered_unit(self, engine: Engine, store: Store, unit: Unit) -> None:
        with store.borrowed() as connection:
            engine.recover(connection, ME.identity)
        store.call("SADD", SLOTS, "the next holder")

        assert settle(engine, (unit, Done())) == 0
        assert slots(store) == {"the next holder"}

    def test_a_parked_job_goes_back_to_its_queue_when_a_member_leaves(
        self, engine: Engine, store: Store, unit: Unit
    ) -> None:
        push(store, "other", "b", "c")
        for number, later in enumerate(reserve(engine, 2, "other", call=2).units):
            assert engine.begin_run(later, [enter(1, "park")]).action == "park"
            settle(engine, (later, Parked(SLOTS, 1)))
            assert len(parked(store)) == number + 1
        assert queue(store, "other") == []

        settle(engine, (unit, Done()))

        assert queue(store, "other") == ["b"]
        assert parked(store) == ["c"]

    @pytest.mark.parametrize("is_cancelled", [False, True])
    def test_a_job_that_begins_or_is_refused_sends_a_parked_one_back_while_there_is_room(
        self, engine: Engine, store: Store, is_cancelled: bool
    ) -> None:
        """It may have a grant from a release; a job that does not enter will release nothing."""
        push(store, "default", "a")
        (unit,) = reserve(engine, 1, call=2).units
        park(store, "b", "c", "d", "e")
        if is_cancelled:
            store.call("SET", CANCELLED, "1")

        verdict = engine.begin_run(unit, [Effect("absent", CANCELLED, ("drop",)), enter(3, "park")])

        assert verdict.action == ("drop" if is_cancelled else "park"), "it came later than those who wait"
        assert queue(store, "other") == ["d", "c", "b"], "the first one is fetched first"
        assert parked(store) == ["e"]

    @pytest.mark.parametrize("broken", ["of a broken queue", "not a job at all"])
    def test_what_cannot_leave_a_parked_list_holds_up_no_other(
        self, engine: Engine, store: Store, unit: Unit, broken: str
    ) -> None:
        store.call("SET", store.keys.queue("broken"), "no list")
        junk = broken if broken == "not a job at all" else f"{store.keys.queue('broken')}\0{broken}"
        store.call("ZADD", f"{SLOTS}:parked", 1, junk, 2, f"{junk} too", 3, f"{store.keys.queue('other')}\0b")

        settle(engine, (unit, Done()))

        assert queue(store, "other") == ["b"]
        assert store.call("ZRANGE", f"{SLOTS}:parked", 0, -1) == [junk.encode(), f"{junk} too".encode()]

    @pytest.mark.parametrize("prefix", ["", "{kiq:1}:"])
    def test_jobs_of_a_paused_queue_wait_there_and_hold_up_no_other(self, store: Store, prefix: str) -> None:
        shard = Store(store.address, prefix=prefix)
        engine, key = Engine(shard, LIMITS), shard.keys.slots("Sync")
        engine.join(ME)
        row = Effect("enter", key, (1, "Sync", "park"))
        push(shard, "default", "a")
        (unit,) = reserve(engine, 1).units
        assert engine.begin_run(unit, [row]).action == "go"
        paused = [f"job-{number}" for number in range(25)]
        park(shard, *paused, queue="paused", key=key)
        shard.call(
            "ZADD", f"{key}:parked", 100, f"{shard.keys.queue('other')}\0b", 101, f"{shard.keys.queue('other')}\0c"
        )
        shard.call("SADD", shard.keys.paused, "paused")

        settle(engine, (unit, Done()))

        assert queue(shard, "other") == ["b"]
        assert (sorted(queue(shard, "paused")), parked(shard, key)) == (sorted(paused), ["c"])
        assert shard.call("ZCARD", f"{key}:turns") == 1, "no place is kept for them"

        shard.call("SREM", shard.keys.paused, "paused")
        for again in reversed(reserve(engine, len(paused), "paused", call=2).units):
            assert engine.begin_run(again, [row]).action == "park"
            settle(engine, (again, Parked(key, 1, "Sync")))
        assert parked(shard, key) == [*paused, "c"], "each where it has stood"

    def test_a_long_line_of_a_paused_queue_is_sent_back_in_parts(self, store: Store) -> None:
        park(store, *map(str, range(2_500)), queue="paused")
        store.call("SADD", store.keys.paused, "paused")
        store.call("SADD", "kiq:parked", SLOTS)

        assert [send_parked(store, SLOTS, 1)[:2] for _ in range(4)] == [(1000, 1500), (1000, 500), (500, 0), (0, 0)]

    def test_parked_jobs_go_on_when_somebody_has_deleted_the_set(
        self, engine: Engine, store: Store, unit: Unit
    ) -> None:
        park(store, "b")
        store.call("DEL", SLOTS)

        settle(engine, (unit, Done()))

        assert queue(store, "other") == ["b"]

    @pytest.mark.parametrize("junk", ["", "no JSON", "7", "{}", '["me", 7, null, {}]', '"text"', "null"])
    def test_a_field_that_somebody_else_wrote_keeps_no_unit(
        self, engine: Engine, store: Store, unit: Unit, junk: str
    ) -> None:
        held = store.keys.held(ME.identity)
        store.call("HSET", held, unit.field, junk)

        assert engine.begin_run(unit, [enter(9, "park", "third")]).action == "go"
        store.call("HSET", held, unit.field, junk)
        assert settle(engine, (unit, Done())) == 1
        assert (inflight(store), store.call("EXISTS", held)) == ([], 0)

    def test_a_suspect_that_is_parked_stays_one(self, engine: Engine, store: Store, unit: Unit) -> None:
        push(store, "other", "b")
        digest = sha1(b"b", usedforsecurity=False).hexdigest()
        store.call("HSET", store.keys.suspects, digest, 2)
        (later,) = reserve(engine, 1, "other", call=2).units
        assert later.deaths == 2

        settle(engine, (later, Parked(SLOTS, 1)))

        assert store.call("HGET", store.keys.suspects, digest) == b"2"

    @pytest.mark.parametrize("prefix", ["", "sidekiq:", "{kiq:1}:"])
    def test_a_suspect_that_was_parked_goes_where_only_a_reserve_finds_it(self, store: Store, prefix: str) -> None:
        """From the queue it might be moved into a hand list, and run beside others."""
        shard = Store(store.address, prefix=prefix)
        engine = Engine(shard, LIMITS)
        engine.join(ME)
        keys, digest = shard.keys, sha1(b"b", usedforsecurity=False).hexdigest()
        key = keys.slots("Sync")
        row = Effect("enter", key, (1, "Sync", "park"))
        push(shard, "default", "a")
        (unit,) = reserve(engine, 1).units
        assert engine.begin_run(unit, [row]).action == "go"
        shard.call("HSET", keys.suspects, digest, 2)
        park(shard, "b", "c", key=key)

        settle(engine, (unit, Done()))

        assert (queue(shard, "other"), shard.call("LRANGE", keys.wake("other"), 0, -1)) == ([], [b"b"])
        (suspect,) = reserve(engine, 1, "other", call=2).units
        assert (suspect.payload, suspect.deaths) == (b"b", 2)
        assert engine.begin_run(suspect, [row]).action == "go"
        settle(engine, (suspect, Done()))
        assert queue(shard, "other") == ["c"]

    @pytest.mark.parametrize("broken", ["queue", "wake"])
    def test_a_suspect_of_a_broken_queue_stays_parked_and_one_of_a_broken_wake_list_goes_to_its_queue(
        self, engine: Engine, store: Store, unit: Unit, broken: str
    ) -> None:
        store.call("HSET", store.keys.suspects, sha1(b"b", usedforsecurity=False).hexdigest(), 2)
        park(store, "b")
        store.call("SET", getattr(store.keys, broken)("other"), "no list")

        assert settle(engine, (unit, Done())) == 1
        assert parked(store) == (["b"] if broken == "queue" else [])
        assert broken == "queue" or queue(store, "other") == ["b"]

    def test_a_recovery_lets_a_parked_job_go_on(self, engine: Engine, store: Store, unit: Unit) -> None:
        push(store, "other", "b")
        (later,) = reserve(engine, 1, "other", call=2).units
        settle(engine, (later, Parked(SLOTS, 1)))

        with store.borrowed() as link:
            engine.recover(link, ME.identity)

        assert (queue(store, "other"), queue(store)) == (["b"], ["a"])

    def test_what_would_be_parked_goes_back_if_there_is_room_by_now(
        self, engine: Engine, store: Store, unit: Unit
    ) -> None:
        push(store, "other", "b")
        (later,) = reserve(engine, 1, "other", call=2).units
        assert engine.begin_run(later, [enter(1, "park")]).action == "park"
        settle(engine, (unit, Done()))

        settle(engine, (later, Parked(SLOTS, 1)))

        assert queue(store, "other") == ["b"]
        assert store.call("EXISTS", f"{SLOTS}:parked") == 0

    @pytest.mark.parametrize("payload", ["b", "with a \0 in it", "x" * 100_000])
    def test_a_parked_payload_keeps_its_bytes(self, engine: Engine, store: Store, unit: Unit, payload: str) -> None:
        push(store, "other", payload)
        (later,) = reserve(engine, 1, "other", call=2).units
        settle(engine, (later, Parked(SLOTS, 1)))

        settle(engine, (unit, Done()))

        assert queue(store, "other") == [payload]

    def test_jobs_of_the_same_bytes_are_parked_as_often_as_they_are(
        self, engine: Engine, store: Store, unit: Unit
    ) -> None:
        """Somebody has pushed a job without a jid, or with one jid, several times."""
        payload = '{"class":"Sync","args":[7]}'
        push(store, "other", *[payload] * 4)
        for call in (2, 3):
            later = reserve(engine, 2, "other", call=call).units
            settle(engine, *[(each, Parked(SLOTS, 1)) for each in later])
        line = parked(store)

        assert [decode(each) for each in line] == [decode(payload)] * 4
        assert (len(set(line)), line[0]) == (4, payload)
        for number in range(4):
            settle(engine, (unit, Done()))
            assert queue(store, "other") == [line[number]]
            (unit,) = reserve(engine, 1, "other", call=4 + number).units
            assert engine.begin_run(unit, [enter(1, "park")]).action == "go"
        assert parked(store) == []

    def test_a_parked_job_of_a_broken_queue_stays_parked(self, engine: Engine, store: Store, unit: Unit) -> None:
        push(store, "other", "b")
        (later,) = reserve(engine, 1, "other", call=2).units
        settle(engine, (later, Parked(SLOTS, 1)))
        store.call("SET", store.keys.queue("other"), "no list")

        assert settle(engine, (unit, Done())) == 1
        assert parked(store) == ["b"]

    @pytest.mark.parametrize("key", [SLOTS, "kiq:held:" + ME.identity])
    def test_a_broken_key_keeps_no_unit(self, engine: Engine, store: Store, unit: Unit, key: str) -> None:
        store.call("DEL", key)
        store.call("SET", key, "of a wrong type")

        assert settle(engine, (unit, Done())) == 1
        assert inflight(store) == []


class TestTogether:
    """Begins of one round trip, with what runs have released that have ended."""

    @pytest.fixture
    def units(self, engine: Engine, store: Store) -> list[Unit]:
        push(store, "default", "a", "b", "c")
        return reserve(engine, 3).units

    def test_each_has_a_verdict_or_an_error_of_its_own(self, engine: Engine, store: Store, units: list[Unit]) -> None:
        rows = [[enter(1, "park")], [enter(1, "drop"), Effect("leap", "key", ("drop",))], [enter(1, "defer 2.5")]]
        store.call("CONFIG", "RESETSTAT")

        first, second, third = engine.begin_units([Begin(*each) for each in zip(units, rows, strict=True)]).verdicts

        assert isinstance(second, RedisRefused)
        assert "no begin row leap" in str(second)
        assert [each.action for each in (first, third) if isinstance(each, BeginVerdict)] == ["go", "defer"]
        assert slots(store) == {f"{ME.identity}/{units[0].token}"}

    def test_who_begins_finds_the_place_of_a_run_that_has_ended(
        self, engine: Engine, store: Store, units: list[Unit]
    ) -> None:
        first, second, third = units
        engine.begin_run(first, [enter(1, "park")])
        engine.begin_units([], [third])  # from now on the server knows the script, and runs them in order

        begun = engine.begin_units([Begin(second, [enter(1, "park")])], [first])

        assert begun.is_released
        assert [each.action for each in begun.verdicts if isinstance(each, BeginVerdict)] == ["go"]
        assert slots(store) == {f"{ME.identity}/{second.token}"}
        assert store.call("HKEYS", store.keys.held(ME.identity)) == [second.field.encode()]

    def test_a_release_may_be_sent_again_and_takes_nothing_from_the_next_holder(
        self, engine: Engine, store: Store, units: list[Unit]
    ) -> None:
        first, second, _ = units
        engine.begin_run(first, [enter(1, "park")])
        engine.begin_units([], [first])
        engine.begin_run(second, [enter(1, "park")])
        park(store, "d")

        engine.begin_units([], [first])

        assert settle(engine, (first, Done())) == 1
        assert slots(store) == {f"{ME.identity}/{second.token}"}
        assert parked(store) == ["d"]

    def test_a_broken_key_is_told(self, engine: Engine, store: Store, units: list[Unit]) -> None:
        engine.begin_run(units[0], [enter(1, "park")])
        store.call("SET", SLOTS, "of a wrong type")

        assert engine.begin_units([], units[:1]).is_released, "it has no members"
        assert store.call("EXISTS", store.keys.held(ME.identity)) == 0

    @pytest.mark.parametrize("is_first", [True, False])
    def test_each_row_that_has_a_unit_hold_a_key_is_known(
        self, engine: Engine, store: Store, units: list[Unit], is_first: bool
    ) -> None:
        """Of the others, nothing is released when the unit is settled."""
        held = store.keys.held(ME.identity)
        for unit, row in zip(units, BEGIN_ROWS[:3] if is_first else BEGIN_ROWS[3:], strict=False):
            engine.begin_run(unit, [row])

            assert store.call("HEXISTS", held, unit.field) == may_hold([row]) == unit.holds


class TestParked:
    """The line of a set: who goes on, and when."""

    @pytest.fixture
    def running(self, engine: Engine, store: Store) -> Unit:
        push(store, "default", "a")
        (unit,) = reserve(engine, 1).units
        assert engine.begin_run(unit, [enter(1, "park")]).action == "go"
        return unit

    def later(self, engine: Engine, store: Store, call: int, *payloads: str) -> list[Unit]:
        """Return units of another queue, which find no room yet."""
        push(store, "other", *payloads)
        return reserve(engine, len(payloads), "other", call=call).units

    def park(self, engine: Engine, *units: Unit, largest: int = 1) -> None:
        for unit in units:
            assert engine.begin_run(unit, [enter(largest, "park")]).action == "park"
            settle(engine, (unit, Parked(SLOTS, largest)))

    def test_jobs_go_on_in_the_order_of_their_parking_also_of_one_settle(
        self, engine: Engine, store: Store, running: Unit
    ) -> None:
        units = self.later(engine, store, 2, *"cbd")
        settle(engine, *((unit, Parked(SLOTS, 1)) for unit in units))

        assert parked(store) == ["c", "b", "d"]

    def test_a_place_is_kept_for_a_job_on_its_way(self, engine: Engine, store: Store, running: Unit) -> None:
        (waiting,) = self.later(engine, store, 2, "b")
        self.park(engine, waiting)
        settle(engine, (running, Done()))
        assert queue(store, "other") == ["b"]

        push(store, "default", "c")
        (fresh,) = reserve(engine, 1, call=3).units
        self.park(engine, fresh)

        (next_one,) = reserve(engine, 1, "other", call=4).units
        assert engine.begin_run(next_one, [enter(1, "park")]).action == "go"
        assert store.call("EXISTS", f"{SLOTS}:turns", f"{SLOTS}:places") == 0

    def test_a_place_is_kept_no_longer_than_some_seconds(self, engine: Engine, store: Store, running: Unit) -> None:
        """Ruby may have run the job, or somebody has deleted it."""
        (waiting,) = self.later(engine, store, 2, "b")
        self.park(engine, waiting)
        settle(engine, (running, Done()))
        forget_turns(store)

        push(store, "default", "c")
        (fresh,) = reserve(engine, 1, call=3).units

        assert engine.begin_run(fresh, [enter(1, "park")]).action == "go"

    def test_who_comes_later_parks_behind_and_sends_the_first_one_on(
        self, engine: Engine, store: Store, running: Unit
    ) -> None:
        units = self.later(engine, store, 2, "b", "c")
        self.park(engine, *units)
        settle(engine, (running, Done()))
        store.call("DEL", store.keys.queue("other"))  # b is gone, and releases nothing
        forget_turns(store)

        push(store, "default", "d")
        (fresh,) = reserve(engine, 1, call=3).units
        self.park(engine, fresh)

        assert queue(store, "other") == ["c"]
        assert parked(store) == ["d"]

    def test_a_job_that_is_parked_again_stands_where_it_has_stood(
        self, engine: Engine, store: Store, running: Unit
    ) -> None:
        units = self.later(engine, store, 2, "b", "c", "d")
        self.park(engine, *units)
        settle(engine, (running, Done()))
        store.call("SADD", SLOTS, "somebody/1")  # its limit is lower by now, say

        (again,) = reserve(engine, 1, "other", call=3).units
        assert again.payload == b"b"
        self.park(engine, again)

        assert parked(store) == ["b", "c", "d"]

    def test_a_job_that_ends_before_its_begin_passes_its_turn_on(
        self, engine: Engine, store: Store, running: Unit
    ) -> None:
        units = self.later(engine, store, 2, "b", "c", "d")
        self.park(engine, *units)
        settle(engine, (running, Done()))
        (unit,) = reserve(engine, 1, "other", call=3).units

        assert settle(engine, (unit, Discard(effects=(Effect("pass_on", SLOTS, (1,)),)))) == 1

        assert (unit.payload, queue(store, "other"), parked(store)) == (b"b", ["c"], ["d"])
        digest = sha1(b"c").hexdigest().encode()
        assert store.call("ZRANGE", f"{SLOTS}:turns", 0, -1) == store.call("HKEYS", f"{SLOTS}:places") == [digest]

    def test_a_job_without_a_turn_passes_on_only_what_has_room(
        self, engine: Engine, store: Store, running: Unit
    ) -> None:
        units = self.later(engine, store, 2, "b", "c", "d", "e")
        self.park(engine, *units[:3])
        effect = Effect("pass_on", SLOTS, (1, "Sync"))

        assert settle(engine, (units[3], Discard(effects=(effect,)))) == 1
        assert queue(store, "other") == [], "there is no room"
        override_limit(store, "Sync", 2, None)
        push(store, "default", "f")
        (late,) = reserve(engine, 1, call=3).units
        assert settle(engine, (late, Discard(effects=(effect,)))) == 1

        assert (queue(store, "other"), parked(store)) == (["b"], ["c", "d"])

    def test_keys_of_a_wrong_type_keep_no_unit_that_passes_on(self, engine: Engine, store: Store) -> None:
        (unit,) = self.later(engine, store, 2, "b")
        for key in (SLOTS, f"{SLOTS}:turns", f"{SLOTS}:places", f"{SLOTS}:parked", store.keys.limits):
            store.call("SET", key, "of a wrong type")

        assert settle(engine, (unit, Discard(effects=(Effect("pass_on", SLOTS, (1, "Sync")),)))) == 1

    def test_an_override_goes_before_the_limit_until_it_ends(self, engine: Engine, store: Store) -> None:
        units = self.later(engine, store, 2, *"abcd")
        rows = [Effect("enter", SLOTS, (3, "Sync", "park"))]
        override_limit(store, "Sync", 1, 60)

        assert [engine.begin_run(unit, rows).action for unit in units[:2]] == ["go", "park"]
        assert store.call("HGET", store.keys.limits, "Sync") == b"3", "the declared limit, for whoever looks"
        assert 0 < float(store.call("ZSCORE", store.keys.limit_ends, "Sync")) - server_time(store) <= 60

        end_at = int(1_000 * server_time(store)) - 1  # past, by any rounding
        store.call("HSET", store.keys.limits, "Sync|override", f"1 {end_at}")
        assert engine.begin_run(units[1], rows).action == "go"
        override_limit(store, "Sync", -1, None)
        assert engine.begin_run(units[2], rows).action == "park"
        assert engine.begin_run(units[1], rows).action == "go", "it is in already"
        override_limit(store, "Sync", 0, None)
        assert [engine.begin_run(unit, rows).action for unit in units] == ["go"] * 4
        assert end_override(store, "Sync")
        assert store.call("ZCARD", store.keys.limit_ends) == 0
        assert not end_override(store, "Sync")

    def test_a_raised_limit_sends_on_as_many_as_have_room(self, engine: Engine, store: Store) -> None:
        name, slots = "Sync", store.keys.slots("Sync", "an account")
        store.call("HSET", store.keys.limits, name, 1)
        park(store, *(str(number) for number in range(30)), key=slots)
        store.call("SADD", store.keys.parked_sets, slots)

        override_limit(store, name, 4, None)
        assert queue(store, "other") == ["3", "2", "1", "0"]
        override_limit(store, name, 0, None)

        assert queue(store, "other")[4:] == [str(number) for number in reversed(range(4, 30))], "in their order"

    @pytest.mark.parametrize("junk", ["", "many", "2", "2 soon", "2.5 99999999999999"])
    def test_an_override_that_somebody_else_wrote_is_none(self, engine: Engine, store: Store, junk: str) -> None:
        (unit,) = self.later(engine, store, 2, "a")
        store.call("HSET", store.keys.limits, "Sync|override", junk)

        assert engine.begin_run(unit, [Effect("enter", SLOTS, (-1, "Sync", "park"))]).action == "park"

    @pytest.mark.parametrize("prefix", ["", "sidekiq:", "{kiq:1}:"])
    def test_a_prefix_may_look_like_a_part_of_a_key(self, store: Store, prefix: str) -> None:
        shard = Store(store.address, prefix=prefix)
        engine = Engine(shard, LIMITS)
        engine.join(ME)
        key, row = shard.keys.slots("Sync"), Effect("enter", shard.keys.slots("Sync"), (3, "Sync", "park"))
        override_limit(shard, "Sync", -1, None)
        push(shard, "default", "a")
        (unit,) = reserve(engine, 1).units

        assert engine.begin_run(unit, [row]).action == "park", "the override is in force"
        settle(engine, (unit, Parked(key, 3, "Sync")))
        assert shard.call("HGETALL", shard.keys.limits)[:2] == [b"Sync|override", b"-1 100000000000000"]
        assert shard.call("HGET", shard.keys.limits, "Sync") == b"3"
        assert shard.call("SMEMBERS", shard.keys.parked_sets) == [key.encode()], "the look once a minute finds it"
        assert end_override(shard, "Sync")
        assert queue(shard) == ["a"]
        assert all(name.startswith(prefix.encode()) for name in store.call("KEYS", "*"))

    def test_who_has_a_turn_in_one_line_passes_the_other(self, engine: Engine, store: Store, running: Unit) -> None:
        """At the end of that line it would give up its grant, and all that wait would go from one line to the other."""
        rows = [enter(1, "park"), enter(2, "park", "wide")]
        (equal,) = self.later(engine, store, 2, "b")
        self.park(engine, equal)
        park(store, "d", key="wide", queue="low")
        settle(engine, (running, Done()))
        push(store, "low", "c")
        (again,) = reserve(engine, 1, "other", call=3).units
        (fresh,) = reserve(engine, 1, "low", call=4).units

        assert engine.begin_run(again, rows).action == "go"
        assert engine.begin_run(fresh, rows[1:]).action == "park", "it has no grant anywhere"

    def test_who_has_a_turn_in_one_line_still_needs_a_place_in_the_other(
        self, engine: Engine, store: Store, running: Unit
    ) -> None:
        (equal,) = self.later(engine, store, 2, "b")
        self.park(engine, equal)
        settle(engine, (running, Done()))
        store.call("SADD", "wide", "somebody/1")
        (again,) = reserve(engine, 1, "other", call=3).units

        verdict = engine.begin_run(again, [enter(1, "park"), enter(1, "park", "wide")])

        assert (verdict.action, verdict.row) == ("park", enter(1, "park", "wide"))
        assert slots(store) == set()

    def test_keys_of_a_wrong_type_keep_no_unit(self, engine: Engine, store: Store, running: Unit) -> None:
        (waiting,) = self.later(engine, store, 2, "b")
        for key in (f"{SLOTS}:turns", f"{SLOTS}:places", store.keys.limits, store.keys.parked_sets):
            store.call("SET", key, "of a wrong type")
        row = Effect("enter", SLOTS, (1, "Sync", "park"))

        assert engine.begin_run(waiting, [row]).action == "park"
        assert settle(engine, (waiting, Parked(SLOTS, 1, "Sync"))) == 1
        assert settle(engine, (running, Done())) == 1
        assert queue(store, "other") == ["b"]
        (again,) = reserve(engine, 1, "other", call=3).units
        assert engine.begin_run(again, [row]).action == "go"

    def test_a_sweep_sends_on_what_has_room_and_forgets_what_is_over(self, engine: Engine, store: Store) -> None:
        park(store, "b", "c")
        store.call("SADD", store.keys.parked_sets, SLOTS)
        store.call("SADD", SLOTS, "nobody:1:2/0.1")

        assert send_parked(store, SLOTS, 1) == (1, 1, 1)
        assert send_parked(store, SLOTS, 1) == (0, 1, 0), "a place is kept for the first"
        forget_turns(store)
        assert send_parked(store, SLOTS, 1) == (1, 0, 0)
        assert store.call("EXISTS", SLOTS, f"{SLOTS}:parked") == 0
        forget_turns(store)
        assert send_parked(store, SLOTS, 1) == (0, 0, 0)
        assert store.call("KEYS", f"{SLOTS}*") == []
        assert store.call("EXISTS", store.keys.parked_sets) == 0

    def test_a_sweep_without_a_known_limit_sends_nothing(self, engine: Engine, store: Store) -> None:
        park(store, "b")

        assert send_parked(store, SLOTS) == (0, 1, 0)

    def test_a_sweep_leaves_the_places_of_members_alone(self, engine: Engine, store: Store, running: Unit) -> None:
        assert send_parked(store, SLOTS, 1) == (0, 0, 0)
        assert slots(store) == {f"{ME.identity}/{running.token}"}


LOCK, MARK = "kiq:test:lock", "kiq:test:mark"


class TestClaims:
    """Keys that a push has claimed: only the job whose jid they have changes them."""

    @pytest.fixture
    def unit(self, engine: Engine, store: Store) -> Unit:
        push(store, "default", "a")
        (unit,) = reserve(engine, 1).units
        return unit

    def test_a_begin_clears_the_key_of_its_own_job_only(self, engine: Engine, store: Store, unit: Unit) -> None:
        store.call("MSET", LOCK, "me", MARK, "another")

        rows = [Effect("clear", LOCK, ("me",)), Effect("clear", MARK, ("me",))]

        assert engine.begin_run(unit, rows).action == "go"
        assert store.call("MGET", LOCK, MARK) == [None, b"another"]
        store.call("SET", LOCK, "claimed since")
        assert engine.begin_run(unit, rows).action == "go", "it may be sent again"
        assert store.call("GET", LOCK) == b"claimed since"

    def test_a_begin_that_another_row_stops_clears_nothing(self, engine: Engine, store: Store, unit: Unit) -> None:
        store.call("MSET", LOCK, "me", CANCELLED, "1")

        verdict = engine.begin_run(unit, [Effect("clear", LOCK, ("me",)), Effect("absent", CANCELLED, ("drop",))])

        assert (verdict.action, store.call("GET", LOCK)) == ("drop", b"me")

    def test_nor_does_one_of_a_unit_that_others_have_recovered(self, engine: Engine, store: Store, unit: Unit) -> None:
        store.call("SET", LOCK, "me")
        recover_me(engine, unit)

        assert engine.begin_run(unit, [Effect("clear", LOCK, ("me",))]).action == "lost"
        assert store.call("GET", LOCK) == b"me"

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            (("me", 10), (b"me", 50)),
            (("me", 90), (b"me", 90)),
            (("me", None), (b"me", -1)),
            (None, (b"me", 50)),
            (("another", 10), (b"another", 10)),
        ],
    )
    def test_a_begin_renews_what_is_its_own_or_free(
        self, engine: Engine, store: Store, unit: Unit, before: tuple[str, int | None] | None, after: tuple[bytes, int]
    ) -> None:
        claim(store, LOCK, before)

        assert engine.begin_run(unit, [Effect("renew", LOCK, ("me", 50))]).action == "go"

        assert (store.call("GET", LOCK), store.call("TTL", LOCK)) == after

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            (("me", 10), (b"me", 50)),
            (("me", 90), (b"me", 90)),
            (None, (None, -2)),
            (("another", 10), (b"another", 10)),
        ],
    )
    def test_a_settle_extends_what_is_its_own(
        self, engine: Engine, store: Store, unit: Unit, before: tuple[str, int | None] | None, after: tuple[bytes, int]
    ) -> None:
        claim(store, LOCK, before)

        assert settle(engine, (unit, Requeue(effects=(Effect("extend", LOCK, ("me", 50)),)))) == 1

        assert (store.call("GET", LOCK), store.call("TTL", LOCK)) == after

    @pytest.mark.parametrize(("holder", "after"), [("me", None), ("another", b"another")])
    def test_a_settle_clears_what_is_its_own(
        self, engine: Engine, store: Store, unit: Unit, holder: str, after: bytes | None
    ) -> None:
        store.call("SET", LOCK, holder)

        assert settle(engine, (unit, Done(effects=(Effect("clear", LOCK, ("me",)),)))) == 1

        assert store.call("GET", LOCK) == after

    @pytest.mark.parametrize(
        ("holder", "marked", "again", "after"),
        [
            ("me", "me", True, b"next"),
            (None, "me", True, b"next"),
            ("another", "me", False, b"another"),
            ("me", None, False, None),
            ("me", "another", False, None),
            ("another", "another", False, b"another"),
        ],
    )
    def test_a_settle_hands_on_if_a_push_was_refused(
        self,
        engine: Engine,
        store: Store,
        unit: Unit,
        holder: str | None,
        marked: str | None,
        again: bool,
        after: bytes | None,
    ) -> None:
        for key, value in ((LOCK, holder), (MARK, marked)):
            claim(store, key, None if value is None else (value, 10))

        assert settle(engine, (unit, Done(effects=(handed_on("b"),)))) == 1

        assert store.call("GET", LOCK) == after
        assert queue(store) == (["b"] if again else [])
        assert store.call("SISMEMBER", store.keys.queues, "default") == int(again)
        assert store.call("GET", MARK) == (b"another" if marked == "another" else None)
        if again:
            assert store.call("TTL", LOCK) == 50

    def test_a_queue_of_a_wrong_type_keeps_the_unit_and_its_claims(
        self, engine: Engine, store: Store, unit: Unit
    ) -> None:
        store.call("MSET", LOCK, "me", MARK, "me", store.keys.queue("default"), "no list")

        with pytest.raises(RedisRefused, match="WRONGTYPE"):
            settle(engine, (unit, Done(effects=(handed_on("b"),))))

        assert (inflight(store), store.call("MGET", LOCK, MARK)) == ([b"a"], [b"me", b"me"])

    @pytest.mark.parametrize("operation", ["clear", "extend", "hand_on"])
    def test_a_key_of_a_wrong_type_is_nobodys(self, engine: Engine, store: Store, unit: Unit, operation: str) -> None:
        for key in (LOCK, MARK):
            store.call("RPUSH", key, "me")
        rows = {"hand_on": handed_on("b"), "extend": Effect("extend", LOCK, ("me", 50))}

        assert (
            engine.begin_run(unit, [Effect("clear", LOCK, ("me",)), Effect("renew", LOCK, ("me", 50))]).action == "go"
        )
        assert settle(engine, (unit, Done(effects=(rows.get(operation, Effect("clear", LOCK, ("me",))),)))) == 1

        assert store.call("LRANGE", LOCK, 0, -1) == [b"me"]

    @pytest.mark.parametrize("verb", ["drop", "bury"])
    def test_an_entry_that_never_runs_again_releases_its_key(self, store: Store, verb: str) -> None:
        mine, others, none = (locked_job(jid) for jid in ("mine", "yours", None))
        keys = store.keys
        store.call("ZADD", keys.retry, 1, mine, 2, others, 3, none, 4, "no JSON, with an idempotency_key")
        store.call("MSET", keys.lock("mine"), "mine", keys.lock("yours"), "the next one")
        moves = [Move(raw, verb, "", raw) for raw in (b"gone", mine, none, others, b"no JSON, with an idempotency_key")]

        moved = move_entries(store, keys.retry, moves, NOW, LIMITS)

        assert moved.indexes == [1, 2, 3, 4]
        assert store.call("MGET", keys.lock("mine"), keys.lock("yours")) == [None, b"the next one"]

    def test_a_parked_job_that_is_deleted_releases_its_key_in_the_same_script(self, store: Store) -> None:
        mine, others, none, gone = (b"queue:default\0" + locked_job(jid) for jid in ("mine", "yours", None, "gone"))
        keys, junk = store.keys, b"no entry, with an idempotency_key"
        lines = [keys.parked(keys.slots(name)) for name in ("A", "B")]
        store.call("ZADD", lines[0], 1, mine, 2, none, 3, junk)
        store.call("ZADD", lines[1], 1, others)
        store.call("MSET", keys.lock("mine"), "mine", keys.lock("yours"), "yours", keys.lock("gone"), "gone")
        entries = [(lines[0], mine), (lines[1], others), (lines[0], none), (lines[0], gone), (lines[0], junk)]
        before = calls_of_scripts(store)

        assert drop_entries(store, entries) == 4

        assert calls_of_scripts(store) - before == 2, "one script for each line"
        assert store.call("EXISTS", *lines) == 0
        assert store.call("MGET", keys.lock("mine"), keys.lock("yours"), keys.lock("gone")) == [None, None, b"gone"]

    def test_a_line_that_is_no_sorted_set_is_an_error(self, store: Store) -> None:
        store.call("SET", "line", "junk")

        with pytest.raises(RedisRefused, match="WRONGTYPE"):
            drop_entries(store, [("line", b"queue:default\0{}")])

    def test_an_entry_that_is_gone_or_runs_again_releases_nothing(self, store: Store) -> None:
        mine, gone = locked_job("mine"), locked_job("gone")
        store.call("ZADD", store.keys.retry, 1, mine)
        store.call("MSET", store.keys.lock("mine"), "mine", store.keys.lock("gone"), "gone")
        moves = [Move(gone, "drop"), Move(mine, "push", "default", mine), Move(mine, "drop")]

        assert move_entries(store, store.keys.retry, moves, NOW, LIMITS).indexes == [1]
        assert store.call("MGET", store.keys.lock("mine"), store.keys.lock("gone")) == [b"mine", b"gone"]

    def test_a_job_that_is_deleted_from_its_queue_releases_its_key(self, store: Store) -> None:
        mine, others, gone, none = (locked_job(jid) for jid in ("mine", "yours", "gone", None))
        store.call("LPUSH", store.keys.queue("default"), mine, others, none)
        store.call("MSET", *(word for jid in ("mine", "gone") for word in (store.keys.lock(jid), jid)))
        store.call("SET", store.keys.lock("yours"), "the next one")

        pairs = [(raw, b"") for raw in (gone, mine, none, others)]

        assert move_jobs(store, "default", "", pairs, (9, 0), b"mark") == [1, 2, 3]
        locks = [store.keys.lock(jid) for jid in ("mine", "yours", "gone")]
        assert store.call("MGET", *locks) == [None, b"the next one", b"gone"]

    def test_a_job_that_is_moved_keeps_its_key(self, store: Store) -> None:
        mine = locked_job("mine")
        store.call("LPUSH", store.keys.queue("default"), mine)
        store.call("SET", store.keys.lock("mine"), "mine")

        assert move_jobs(store, "default", "low", [(mine, mine)], (9, 0), b"mark") == [0]
        assert store.call("GET", store.keys.lock("mine")) == b"mine"


def claim(store: Store, key: str, held: tuple[str, int | None] | None) -> None:
    """Set a key to the jid that holds it, for so many seconds; None leaves it out."""
    if held is not None:
        store.call("SET", key, held[0], *(("EX", held[1]) if held[1] is not None else ()))


def handed_on(payload: str) -> Effect:
    return Effect("hand_on", LOCK, ("me", MARK, "next", 50, "queues", "queue:default", "default", payload))


def locked_job(jid: str | None) -> bytes:
    """Return a job whose lock has the name of its jid; None for one without a lock."""
    key = f'"idempotency_key":"{jid}",' if jid is not None else ""
    return f'{{"class":"X","args":[],{key}"jid":"{jid or "unlocked"}"}}'.encode()


class TestPush:
    """push: guards, and the rows that tell of a refusal.  What is written otherwise: tests/redis/test_features.py."""

    def rows(self, *more: Effect) -> list[Effect]:
        return [Effect("claim", LOCK, ("me", 60)), Effect("count_refused", "counts", ("X",)), *more]

    def push(self, store: Store, rows: list[Effect]) -> Refusal | RedisRefused | None:
        with store.borrowed() as connection:
            (result,) = push_guarded(connection, store.keys, [GuardedJob("default", None, b"job-1", rows)])
        return result

    def test_a_push_that_is_written_tells_of_no_refusal(self, store: Store) -> None:
        assert self.push(store, self.rows(Effect("mark_refused", MARK, (60,)))) is None

        assert (store.call("GET", LOCK), queue(store)) == (b"me", ["job-1"])
        assert store.call("EXISTS", "counts", MARK) == 0

    def test_a_history_begins_with_the_job_that_is_pushed(self, store: Store) -> None:
        assert self.push(store, self.rows(Effect("note", "kiq:history:a", ("one", 60)))) is None
        assert self.push(store, self.rows(Effect("note", "kiq:history:b", ("one", 60)))) is not None

        assert store.call("LRANGE", "kiq:history:a", 0, -1) == [b"one"]
        assert store.call("TTL", "kiq:history:a") == 60
        assert store.call("EXISTS", "kiq:history:b") == 0

    def test_a_history_that_cannot_be_written_keeps_no_job_from_its_queue(self, store: Store) -> None:
        store.call("SET", "kiq:history:a", "of a wrong type")

        assert self.push(store, self.rows(Effect("note", "kiq:history:a", ("one", 60)))) is None

        assert queue(store) == ["job-1"]

    def test_a_refused_one_is_counted_and_marks_the_holder(self, store: Store) -> None:
        store.call("SET", LOCK, "holder")

        for _ in range(2):
            refusal = self.push(store, self.rows(Effect("mark_refused", MARK, (60,))))
            assert isinstance(refusal, Refusal)
            assert refusal.value == "holder"

        assert queue(store) == []
        assert store.call("HGETALL", "counts") == [b"X", b"2"]
        assert (store.call("GET", MARK), store.call("TTL", MARK)) == (b"holder", 60)

    def test_a_refusal_by_another_guard_is_none_of_this_one(self, store: Store) -> None:
        store.call("SET", CANCELLED, "1")
        first, last = Effect("absent", CANCELLED), Effect("absent", "free")

        assert self.push(store, [first, *self.rows()]) is not None
        assert self.push(store, [*self.rows(), first]) is not None
        assert self.push(store, [last, *self.rows(), last]) is None

        assert store.call("EXISTS", "counts") == 0

    def test_a_count_of_a_wrong_type_changes_no_answer(self, store: Store) -> None:
        store.call("MSET", LOCK, "holder", "counts", "no hash")

        assert isinstance(self.push(store, self.rows()), Refusal)
        store.call("DEL", LOCK)
        assert self.push(store, self.rows()) is None


class TestPushTick:
    """push: the row of a cron entry."""

    def push(self, store: Store, *more: Effect, name: str = "e") -> Refusal | RedisRefused | None:
        tick = Effect("tick", store.keys.cron_ticks, (name, "60.0", "120.0"))
        log = Effect("log", store.keys.cron_history("e"), ('{"jid":"me"}', 2))
        with store.borrowed() as connection:
            job = GuardedJob("default", None, b"job-1", [tick, *more, log])
            (result,) = push_guarded(connection, store.keys, [job])
        return result

    def awaited(self, store: Store) -> bytes | None:
        score: bytes | None = store.call("ZSCORE", store.keys.cron_ticks, "e")
        return score

    def history(self, store: Store) -> list[bytes]:
        lines: list[bytes] = store.call("LRANGE", store.keys.cron_history("e"), 0, -1)
        return lines

    def test_a_tick_is_taken_once(self, store: Store) -> None:
        store.call("ZADD", store.keys.cron_ticks, 60, "e")

        assert self.push(store) is None
        refusal = self.push(store)

        assert isinstance(refusal, Refusal)
        assert refusal.row.operation == "tick"
        assert (queue(store), self.awaited(store), self.history(store)) == (["job-1"], b"120", [b'{"jid":"me"}'])

    def test_an_entry_that_is_gone_or_disabled_has_no_tick(self, store: Store) -> None:
        assert isinstance(self.push(store), Refusal)

        assert (queue(store), self.awaited(store)) == ([], None)

    def test_a_lock_keeps_the_job_out_and_the_tick_is_over(self, store: Store) -> None:
        store.call("ZADD", store.keys.cron_ticks, 60, "e")
        store.call("SET", LOCK, "holder")

        refusal = self.push(store, Effect("claim", LOCK, ("me", 60)))

        assert isinstance(refusal, Refusal)
        assert (refusal.row.operation, refusal.value) == ("claim", "holder")
        assert (queue(store), self.awaited(store)) == ([], b"120")
        assert self.history(store) == [b'{"jid":"me"}\nholder']

    def test_a_refused_tick_claims_no_lock(self, store: Store) -> None:
        assert isinstance(self.push(store, Effect("claim", LOCK, ("me", 60))), Refusal)

        assert store.call("EXISTS", LOCK) == 0

    def test_a_history_of_a_wrong_type_keeps_no_job(self, store: Store) -> None:
        store.call("ZADD", store.keys.cron_ticks, 60, "e")
        store.call("SET", store.keys.cron_history("e"), "x")

        assert self.push(store) is None
        assert (queue(store), self.awaited(store)) == (["job-1"], b"120")

    def test_the_history_is_cut(self, store: Store) -> None:
        for _ in range(4):
            store.call("ZADD", store.keys.cron_ticks, 60, "e")
            assert self.push(store) is None

        assert len(self.history(store)) == 2

    def test_ticks_of_a_wrong_type_write_nothing(self, store: Store) -> None:
        store.call("SET", store.keys.cron_ticks, "x")

        assert isinstance(self.push(store), RedisRefused)
        assert queue(store) == []


class TestSkipTicks:
    def test_only_an_entry_that_still_awaits_the_tick_awaits_another(self, store: Store) -> None:
        store.call("ZADD", store.keys.cron_ticks, 60, "a", 61, "b", 60.5, "c")

        changed = skip_ticks(store, [("a", 60.0, 120.0), ("b", 60.0, 120.0), ("c", 60.5, None), ("d", 60.0, 120.0)])

        assert changed == 2
        assert store.call("ZRANGE", store.keys.cron_ticks, 0, -1, "WITHSCORES") == [b"b", b"61", b"a", b"120"]


class TestResync:
    def test_gives_back_what_the_caller_does_not_hold_and_fences_the_old_epoch(
        self, engine: Engine, store: Store
    ) -> None:
        push(store, "default", "a", "b", "c", "d")
        units = reserve(engine, 3).units

        with store.borrowed() as connection:
            returned = engine.resync(connection, ME, ME.raised(), [units[1].token])

        assert returned == (2, 0)
        assert queue(store) == ["d", "c", "a"]
        assert inflight(store) == [b"b"]
        assert reserve(engine, 1, call=2).fenced
        assert [unit.payload for unit in reserve(engine, 1, call=2, member=ME.raised()).units] == [b"a"]

    def test_may_be_sent_again(self, engine: Engine, store: Store) -> None:
        with store.borrowed() as connection:
            engine.resync(connection, ME, ME.raised(), [])
            again = engine.resync(connection, ME, ME.raised().raised(), [])

        assert again == (0, 0)

    def test_gives_back_large_units_a_batch_at_a_time(self, engine: Engine, store: Store) -> None:
        push(store, "default", *LARGE)
        hold_each(engine, len(LARGE))

        with store.borrowed() as connection:
            assert engine.resync(connection, ME, ME.raised(), []) == (2, 1)

        assert queue(store) == [LARGE[2], LARGE[1]]
        assert len(inflight(store)) == 1

    def test_gives_back_many_units_a_batch_at_a_time(self, engine: Engine, store: Store) -> None:
        push(store, "default", *map(str, range(MAX_RETURNED + 5)))
        reserve(engine, MAX_RETURNED + 5)

        with store.borrowed() as connection:
            assert engine.resync(connection, ME, ME.raised(), []) == (MAX_RETURNED, 5)
            assert engine.resync(connection, ME, ME.raised().raised(), []) == (5, 0)

        assert queue(store) == [*map(str, reversed(range(MAX_RETURNED + 5)))]

    def test_a_member_goes_on_once_all_is_given_back(self, engine: Engine, store: Store) -> None:
        push(store, "default", *LARGE)
        hold_each(engine, len(LARGE))
        membership = Membership(engine, lambda: ME, lambda _: None, Event())

        with store.borrowed() as connection:
            assert membership.resync(connection, [])

        assert queue(store) == [*reversed(LARGE)]
        assert not reserve(engine, 1, call=4, member=membership.member).fenced

    def test_one_that_arrives_after_its_caller_has_gone_on_takes_nothing_away(
        self, engine: Engine, store: Store
    ) -> None:
        twice = ME.raised().raised()
        push(store, "default", "a", "b")
        with store.borrowed() as connection:
            engine.resync(connection, ME, twice, [])
            reserve(engine, 1, call=2, member=twice)

            for late in (ME.raised(), twice):
                assert engine.resync(connection, ME, late, []) is None

        assert inflight(store) == [b"a"]
        assert not reserve(engine, 1, call=3, member=twice).fenced

    def test_tells_a_member_that_was_recovered(self, engine: Engine, store: Store) -> None:
        with store.borrowed() as connection:
            engine.recover(connection, ME.identity)

            assert engine.resync(connection, ME, ME.raised(), []) is None


class TestRecover:
    def test_gives_everything_back_oldest_next_and_ends_the_membership(self, engine: Engine, store: Store) -> None:
        push(store, "default", "a", "b", "c")
        push(store, "other", "x")
        reserve(engine, 2, call=1)
        reserve(engine, 1, "other", call=2)

        with store.borrowed() as connection:
            units = engine.recover(connection, ME.identity)

        assert units == 3
        assert queue(store) == ["c", "b", "a"]
        assert queue(store, "other") == ["x"]
        assert engine.members() == {}
        assert reserve(engine, 1, call=3).fenced

    def test_more_than_one_batch_keeps_the_order(self, engine: Engine, store: Store) -> None:
        push(store, "default", *[f"{number:04d}" for number in range(2_300)])
        for call in range(1, 4):
            reserve(engine, 1_000, call=call)

        with store.borrowed() as connection:
            units = engine.recover(connection, ME.identity)

        assert units == 2_300
        assert queue(store) == [f"{number:04d}" for number in reversed(range(2_300))]

    def test_large_units_go_back_a_batch_at_a_time_in_order(self, engine: Engine, store: Store) -> None:
        push(store, "default", *LARGE)
        hold_each(engine, len(LARGE))
        store.call("CONFIG", "RESETSTAT")

        with store.borrowed() as connection:
            assert engine.recover(connection, ME.identity) == len(LARGE)

        assert calls_of_scripts(store) == 2
        assert queue(store) == [*reversed(LARGE)]
        assert engine.members() == {}

    def test_large_units_that_their_queue_refuses_are_not_read_one_by_one(self, engine: Engine, store: Store) -> None:
        push(store, "default", *LARGE)
        hold_each(engine, len(LARGE))
        store.call("SET", store.keys.queue("default"), "no list")
        store.call("CONFIG", "RESETSTAT")

        with store.borrowed() as connection, pytest.raises(RedisRefused, match="3 units"):
            engine.recover(connection, ME.identity)

        assert calls_of(store, "hget") <= 2  # the epoch, and one payload
        assert len(inflight(store)) == len(LARGE)

    def test_who_has_beaten_since_is_left_alone(self, engine: Engine, store: Store) -> None:
        push(store, "default", "a", "b")
        reserve(engine, 1, call=1)
        with store.borrowed() as connection:
            score = engine.beat(connection, [], 0.0, 20, 0.0).silent[ME.identity]
            store.call("ZADD", store.keys.beats, score + 1, ME.identity)
            before = everything(store)

            assert engine.recover(connection, ME.identity, ALL_SUSPECT, score) is None

        assert everything(store) == before
        assert not reserve(engine, 0, call=2).fenced

    @pytest.mark.parametrize("act", ["reserve", "resync"])
    def test_who_has_stood_still_and_acts_before_it_beats_is_left_alone(
        self, engine: Engine, store: Store, act: str
    ) -> None:
        push(store, "default", "a")
        store.call("ZADD", store.keys.beats, 1, ME.identity)
        with store.borrowed() as connection:
            (score,) = engine.beat(connection, [], 60.0, 20).silent.values()

            if act == "reserve":
                reserve(engine, 1, call=1)
            else:
                engine.resync(connection, ME, ME.raised(), [])

            assert engine.recover(connection, ME.identity, ALL_SUSPECT, score) is None
            assert engine.beat(connection, [], 59.0, 20).silent == {}

    def test_who_has_not_is_recovered(self, engine: Engine, store: Store) -> None:
        push(store, "default", "a")
        reserve(engine, 1, call=1)

        with store.borrowed() as connection:
            assert (
                engine.recover(connection, ME.identity, score=engine.beat(connection, [], 0.0, 20).silent[ME.identity])
                == 1
            )
            assert engine.recover(connection, ME.identity, score=1) is None

        assert queue(store) == ["a"]
        assert engine.members() == {}
        assert store.call("EXISTS", store.keys.beats) == 0

    def test_once_it_is_fenced_a_beat_changes_nothing_more(
        self, engine: Engine, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("kiqcluster.store.engine.engine.MAX_RETURNED", 1)
        push(store, "default", "a", "b")
        reserve(engine, 2, call=1)
        store.call("HSET", store.keys.members, ME.identity, f"fenced {ME.record}")

        with store.borrowed() as connection:
            score = store.call("ZSCORE", store.keys.beats, ME.identity)
            assert engine.beat(connection, [ME.identity]).strangers == {ME.identity}

            assert store.call("ZSCORE", store.keys.beats, ME.identity) == score
            assert engine.recover(connection, ME.identity, score=1) == 2

    def test_a_unit_of_another_release_stays_and_holds_up_no_other(self, engine: Engine, store: Store) -> None:
        push(store, "default", "a", "b")
        reserve(engine, 2, call=2)
        store.call("HSET", store.keys.inflight(ME.identity), "00000001.0000000003.00001", "7:defaultc")

        with store.borrowed() as connection, pytest.raises(RedisRefused, match="another release"):
            engine.recover(connection, ME.identity)

        assert queue(store) == ["b", "a"]
        assert inflight(store) == [b"7:defaultc"]

    def test_suspects_that_cannot_be_counted_make_no_copies(self, engine: Engine, store: Store) -> None:
        push(store, "default", "a", "b")
        reserve(engine, 2, call=1)
        store.call("SET", store.keys.suspects, "no hash")

        with store.borrowed() as connection:
            assert engine.recover(connection, ME.identity, ALL_SUSPECT) == 2

        assert queue(store) == ["b", "a"]
        assert inflight(store) == []


# has the next beat look for members without a score
MAKE_AUDIT_DUE = """
local before = redis.call('GET', KEYS[1])
if before then redis.call('SET', KEYS[1], (string.gsub(before, ' %d+$', ' 1'))) end
"""


class TestBeat:
    def beat(self, engine: Engine, *mine: str, most: int = 20, pause: float = 10.0) -> Beat:
        with engine.store.borrowed() as connection:
            return engine.beat(connection, mine, 60.0, most, pause)

    def test_keeps_the_servers_time_and_hands_out_who_is_silent_oldest_first(
        self, engine: Engine, store: Store
    ) -> None:
        store.call("ZADD", store.keys.beats, 7, "left behind", 9, "older", 10**13, "ahead")
        store.call("HSET", store.keys.members, "older", "00000007 boot ns 3 3", "ahead", "00000001 boot ns 4 4")
        seconds = int(store.call("TIME")[0])

        beat = self.beat(engine, ME.identity, "nobody")

        assert seconds <= beat.at <= seconds + 5
        assert beat.strangers == {"nobody"}
        assert list(beat.silent) == ["left behind", "older"]
        scores = entries(store, store.keys.beats)
        assert scores[ME.identity] == scores["ahead"] == round(beat.at * 1_000)
        assert scores["older"] == scores["left behind"] == round((beat.at - 60 + 10) * 1_000)
        assert "nobody" not in scores

    def test_hands_out_no_more_than_is_wanted(self, engine: Engine, store: Store) -> None:
        for number in range(5):
            store.call("ZADD", store.keys.beats, number, f"m{number}")

        assert list(self.beat(engine, most=0).silent) == []
        assert list(self.beat(engine, most=2).silent) == ["m0", "m1"]
        assert list(self.beat(engine, most=2).silent) == ["m2", "m3"]
        assert list(self.beat(engine).silent) == ["m4"]

    def test_the_audit_finds_members_without_a_score_page_by_page(self, engine: Engine, store: Store) -> None:
        names = [f"m{number}" for number in range(1_000)]
        store.call("HSET", store.keys.members, *[word for name in names for word in (name, "00000001 b n 1 1")])
        assert store.call("ZCARD", store.keys.beats) == 1

        looks = 0
        while store.call("ZCARD", store.keys.beats) < 1_001:
            store.call("EVAL", MAKE_AUDIT_DUE, 1, store.keys.audit)
            self.beat(engine)
            looks += 1

        assert 5 < looks < 30

    def test_a_beat_is_taken_by_a_full_server(self, engine: Engine, store: Store) -> None:
        store.call("CONFIG", "SET", "maxmemory", "1")
        try:
            assert self.beat(engine, ME.identity).strangers == set()
        finally:
            store.call("CONFIG", "SET", "maxmemory", "0")


def test_a_release_that_is_too_old_is_refused_with_a_sentence(engine: Engine, store: Store) -> None:
    store.call("SET", store.keys.format, FORMAT_VERSION + 1)
    before = everything(store)

    with pytest.raises(RedisRefused, match=f"format {FORMAT_VERSION + 1} into force.*Start the newer release"):
        engine.join(Member("host:4:dddddddddddd", 1, "boot ns 4 4"))

    assert everything(store) == before
    store.call("SET", store.keys.format, FORMAT_VERSION)
    engine.join(ME)


class TestOnce:
    COUNT = ("INCRBY", 2, 1, 3)
    LIST = ("RPUSH", 3, 2, "a", "b")

    def run(self, store: Store, number: int, *commands: tuple[object, ...]) -> tuple[int, list[bytes]]:
        arguments = [number, 60, *(word for command in commands for word in command)]
        with store.borrowed() as connection:
            (reply,) = run_scripts(connection, [Call(ONCE, ["record", "count", "list"], arguments)])
        return reply[0], reply[1]

    def test_runs_each_command_with_its_words(self, store: Store) -> None:
        assert self.run(store, 1, self.COUNT, self.LIST, ("PERSIST", 2, 0)) == (1, [])

        assert store.call("GET", "count") == b"3"
        assert store.call("LRANGE", "list", 0, -1) == [b"a", b"b"]
        assert 0 < store.call("TTL", "record") <= 60

    @pytest.mark.parametrize("late", [7, 6, 1])
    def test_a_number_that_has_run_or_was_passed_runs_no_more(self, store: Store, late: int) -> None:
        self.run(store, 7, self.COUNT)

        assert self.run(store, late, self.COUNT) == (0, [])
        assert self.run(store, 10, self.COUNT) == (1, [])
        assert store.call("GET", "count") == b"6"

    def test_a_refused_command_is_left_out_for_good_and_the_others_run(self, store: Store) -> None:
        store.call("SET", "list", "no list")

        ran, (refusal,) = self.run(store, 1, self.LIST, self.COUNT)

        assert (ran, refusal.split()[0]) == (1, b"WRONGTYPE")
        assert self.run(store, 1, self.LIST, self.COUNT) == (0, [])
        assert store.call("GET", "count") == b"3"

    def test_a_full_server_refuses_the_whole_so_that_it_can_be_sent_again(self, store: Store) -> None:
        store.call("CONFIG", "SET", "maxmemory", "1")
        try:
            with pytest.raises(RedisRefused):
                self.run(store, 1, self.COUNT)
        finally:
            store.call("CONFIG", "SET", "maxmemory", "0")

        assert self.run(store, 1, self.COUNT) == (1, [])


LIMITS = DeadSetLimits(largest=100, timeout=1_000.0)


class TestMoveEntries:
    def test_moves_what_is_due_and_only_once(self, engine: Engine, store: Store) -> None:
        store.call("ZADD", store.keys.schedule, NOW - 1, "old", NOW + 60, "later")
        entries_due = [Move(b"old", "push", "default", b"new"), Move(b"later", "push", "default", b"too early")]

        first, _ = engine.move_due(store.keys.schedule, entries_due, NOW)
        second, _ = engine.move_due(store.keys.schedule, entries_due, NOW)

        assert (first, second) == (1, 0)
        assert queue(store) == ["new"]
        assert store.call("SMEMBERS", store.keys.queues) == [b"default"]
        assert entries(store, store.keys.schedule) == {"later": NOW + 60}

    def test_without_a_highest_score_it_moves_whatever_is_there(self, store: Store) -> None:
        store.call("ZADD", store.keys.retry, NOW + 60, "a", "+inf", "b")
        moves = [Move(name, "push", "default", name) for name in (b"a", b"gone", b"b")]

        moved, refusals, _ = move_entries(store, store.keys.retry, moves, NOW, LIMITS)

        assert (moved, refusals) == ([0, 2], [])
        assert queue(store) == ["b", "a"]

    def test_buries_drops_and_defers(self, store: Store) -> None:
        store.call("ZADD", store.keys.retry, NOW, "bad", NOW, "unwanted", NOW, "not now")
        moves = [
            Move(b"bad", "bury", "", b"wrapped"),
            Move(b"unwanted", "drop"),
            Move(b"not now", "defer", "", repr(NOW + 7.5).encode()),
        ]

        moved, *_ = move_entries(store, store.keys.retry, moves, NOW, LIMITS)

        assert moved == [0, 1, 2]
        assert entries(store, store.keys.retry) == {"not now": NOW + 7.5}
        assert entries(store, store.keys.dead) == {"wrapped": NOW}

    def test_renames_where_they_are_in_their_time(self, store: Store) -> None:
        store.call("ZADD", store.keys.retry, NOW + 0.1, "a", "+inf", "b", NOW, "c")
        moves = [Move(b"a", "rename", "", b"a2"), Move(b"b", "rename", "", b"b2"), Move(b"gone", "rename", "", b"x")]

        moved, *_ = move_entries(store, store.keys.retry, [*moves, Move(b"c", "rename", "", b"c")], NOW, LIMITS)

        assert moved == [0, 1, 3]
        assert entries(store, store.keys.retry) == {"a2": NOW + 0.1, "b2": float("inf"), "c": NOW}

    def test_two_of_which_a_rename_would_make_one_are_left_alone(self, store: Store) -> None:
        store.call("ZADD", store.keys.retry, NOW, "a", NOW + 1, "a2")

        assert move_entries(store, store.keys.retry, [Move(b"a", "rename", "", b"a2")], NOW, LIMITS)[:2] == ([], [])

        assert entries(store, store.keys.retry) == {"a": NOW, "a2": NOW + 1}

    def test_what_is_buried_trims_the_dead_set_as_settle_does(self, store: Store) -> None:
        old = [word for n in range(150) for word in (NOW - n, f"e{n}")]
        store.call("ZADD", store.keys.dead, NOW - 2_000, "too old", *old)
        store.call("ZADD", store.keys.retry, NOW, "bad")

        move_entries(store, store.keys.retry, [Move(b"bad", "bury", "", b"bad")], NOW + 1, LIMITS)

        dead = entries(store, store.keys.dead)
        assert len(dead) == 99
        assert dead["bad"] == NOW + 1
        assert not {"too old", "e149"} & dead.keys()

    def test_nothing_is_trimmed_when_nothing_was_buried(self, store: Store) -> None:
        store.call("ZADD", store.keys.dead, 1, "ancient", NOW, "other")

        move_entries(store, store.keys.dead, [Move(b"other", "drop")], NOW, LIMITS)

        assert entries(store, store.keys.dead) == {"ancient": 1.0}

    def test_what_is_buried_where_it_lies_stays(self, store: Store) -> None:
        store.call("ZADD", store.keys.dead, NOW - 9, "dead", NOW - 8, "bare")
        moves = [Move(b"dead", "bury", "", b"dead"), Move(b"bare", "bury", "", b"wrapped")]

        move_entries(store, store.keys.dead, moves, NOW, LIMITS)

        assert entries(store, store.keys.dead) == {"dead": NOW, "wrapped": NOW}

    def test_an_entry_that_is_refused_stays_as_it_is_unless_a_score_says_otherwise(self, store: Store) -> None:
        store.call("SET", store.keys.queue("broken"), "no list")
        store.call("ZADD", store.keys.retry, NOW, "a", NOW, "b")
        moves = [Move(b"a", "push", "broken", b"a"), Move(b"b", "push", "default", b"b")]

        moved, refusals, _ = move_entries(store, store.keys.retry, moves, NOW, LIMITS)

        assert moved == [1]
        assert "WRONGTYPE" in refusals[0]
        assert entries(store, store.keys.retry) == {"a": NOW}

    def test_a_caller_whose_clock_is_ahead_moves_nothing_early_and_drops_nothing_of_the_dead(
        self, engine: Engine, store: Store
    ) -> None:
        now, wrong = server_time(store), server_time(store) + 86_400
        store.call("ZADD", store.keys.schedule, now + 600, "later", now - 1, "due")
        store.call("ZADD", store.keys.dead, now - 10, "fresh")

        found = engine.read_due(store.keys.schedule, wrong)
        engine.move_due(store.keys.schedule, [Move(b"later", "push", "default", b"early")], wrong)
        move_entries(store, store.keys.schedule, [Move(b"due", "bury", "", b"due")], wrong, LIMITS)

        assert found.entries == [b"due"]
        assert abs(found.now - now) < 5
        assert queue(store) == []
        assert entries(store, store.keys.dead).keys() == {"fresh", "due"}

    def test_a_caller_whose_clock_is_a_little_ahead_is_believed(self, engine: Engine, store: Store) -> None:
        now = server_time(store)
        store.call("ZADD", store.keys.schedule, now + 10, "soon")

        assert engine.read_due(store.keys.schedule, now + 20).entries == [b"soon"]


class TestReturnWakeLists:
    def test_what_has_rung_goes_back_in_order_past_broken_queues_and_on_a_full_server(
        self, engine: Engine, store: Store
    ) -> None:
        push(store, "fine", "later")
        for name in ("broken", "fine"):
            store.call("LPUSH", store.keys.wake(name), "a", "b")
        store.call("SET", store.keys.wake("odd"), "no list")
        store.call("SET", store.keys.queue("broken"), "no list")
        store.call("CONFIG", "SET", "maxmemory", 1)
        try:
            with store.borrowed() as connection:
                engine.return_wake_lists(connection, ["none", "odd", "broken", "fine"])
        finally:
            store.call("CONFIG", "SET", "maxmemory", 0)

        assert queue(store, "fine") == ["later", "b", "a"]
        assert store.call("LRANGE", store.keys.wake("broken"), 0, -1) == [b"b", b"a"]


class TestDue:
    def test_reads_the_oldest_first_within_a_number(self, store: Store) -> None:
        store.call("ZADD", store.keys.retry, *[word for n in range(9) for word in (n, f"e{n}")], NOW + 9, "later")

        assert read_due(store, store.keys.retry, NOW, 3, 100).entries == [b"e0", b"e1", b"e2"]
        store.call("ZREMRANGEBYRANK", store.keys.retry, 0, 7)
        assert read_due(store, store.keys.retry, NOW, 3, 100) == (NOW, [b"e8"], NOW + 9)

    def test_says_when_the_next_one_is_due_unless_more_may_be_due_now(self, store: Store) -> None:
        store.call("ZADD", store.keys.retry, NOW - 2, "a", NOW, "b", repr(NOW + 0.5), "c", NOW + 9, "d")

        assert read_due(store, store.keys.retry, NOW, 9, 100) == (NOW, [b"a", b"b"], NOW + 0.5)
        assert read_due(store, store.keys.retry, NOW, 2, 100).next_at is None
        assert read_due(store, store.keys.retry, NOW, 9, 1).next_at is None
        assert read_due(store, store.keys.retry, NOW - 5, 9, 100) == (NOW - 5, [], NOW - 2)
        assert read_due(store, store.keys.retry, NOW + 9, 9, 100).next_at == inf
        assert read_due(store, store.keys.schedule, NOW, 9, 100) == (NOW, [], inf)

    def test_reads_no_more_bytes_than_it_may_but_always_one_entry(self, store: Store) -> None:
        store.call("ZADD", store.keys.retry, 1, "a" * 900, 2, "b" * 90, 3, "c" * 10, 4, "d")

        assert [entry[:1] for entry in read_due(store, store.keys.retry, NOW, 9, 100).entries] == [b"a"]
        store.call("ZREMRANGEBYRANK", store.keys.retry, 0, 0)
        assert [entry[:1] for entry in read_due(store, store.keys.retry, NOW, 9, 100).entries] == [b"b", b"c"]


class TestTrimDead:
    def test_a_million_too_many_go_in_slices_and_are_counted(self, engine: Engine, store: Store) -> None:
        store.call("ZADD", store.keys.dead, *[word for n in range(2_500) for word in (NOW - n / 10, f"e{n}")])
        push(store, "default", "a")
        (unit,) = reserve(engine, 1).units
        seen: list[Dropped] = []
        engine = Engine(store, LIMITS, seen.append)

        settle(engine, (unit, Dead(b"newest", NOW)))
        assert seen == [(0, 1_000)]
        assert seen[0].has_more
        while engine.trim_dead(NOW).has_more:
            pass

        assert seen == [(0, 1_000), (0, 1_000), (0, 402)]
        assert store.call("ZCARD", store.keys.dead) == 99

    def test_what_is_too_old_is_told_from_what_is_too_much(self, engine: Engine, store: Store) -> None:
        store.call("ZADD", store.keys.dead, *[word for n in range(5) for word in (NOW - 2_000 + n, f"old{n}")])

        assert engine.trim_dead(NOW) == (5, 0)
        assert engine.trim_dead(NOW) == (0, 0)


def server_time(store: Store) -> float:
    seconds, microseconds = map(int, store.call("TIME"))
    return seconds + microseconds / 1e6


class TestMoveJobs:
    def test_moves_to_the_back_of_the_other_queue_in_the_order_given(self, store: Store) -> None:
        push(store, "default", "a", "b", "c", "d")
        push(store, "other", "x")

        moved = move_jobs(store, "default", "other", [(b"a", b"a2"), (b"gone", b""), (b"c", b"c2")], (99, 0), b"mark")

        assert moved == [0, 2]
        assert queue(store) == ["d", "b"]
        assert queue(store, "other") == ["c2", "a2", "x"]
        assert store.call("SMEMBERS", store.keys.queues) == [b"other"]

    def test_the_wake_list_is_the_tail_of_its_queue(self, store: Store) -> None:
        push(store, "default", "c", "d")
        store.call("LPUSH", store.keys.wake("default"), "a", "b")

        moved = move_jobs(store, "default", "other", [(b"b", b"b"), (b"c", b"c")], (2, 1), b"mark")

        assert moved == [0, 1]
        assert queue(store) == ["d"]
        assert store.call("LRANGE", store.keys.wake("default"), 0, -1) == [b"a"]

    def test_looks_only_where_it_is_told_to(self, store: Store) -> None:
        push(store, "default", "a", "b", "c", "d")
        every = [(name, name) for name in (b"a", b"b", b"c", b"d")]

        assert move_jobs(store, "default", "other", every, (2, 1), b"mark") == [1, 2]
        assert move_jobs(store, "default", "other", every, (9, 2), b"mark") == []
        assert move_jobs(store, "default", "other", every, (-1, 0), b"mark") == []

    def test_of_jobs_with_the_same_bytes_as_many_go_as_are_named(self, store: Store) -> None:
        push(store, "default", "a", "b", "a", "a")

        moved = move_jobs(store, "default", "", [(b"a", b""), (b"a", b"")], (9, 0), b"mark")

        assert moved == [0, 1]
        assert queue(store) == ["a", "b"]
        assert store.call("KEYS", "*") == [b"queue:default"]

    def test_a_key_that_is_no_list_takes_none(self, store: Store) -> None:
        push(store, "default", "a", "b")
        store.call("SET", store.keys.queue("broken"), "no list")

        with pytest.raises(RedisRefused, match="WRONGTYPE"):
            move_jobs(store, "default", "broken", [(b"a", b"a")], (9, 0), b"mark")

        assert queue(store) == ["b", "a"]


class TestReadQueue:
    @pytest.mark.parametrize(
        ("first", "last", "start", "names"),
        [
            (0, -1, 0, "edcba"),
            (0, 1, 0, "ed"),
            (2, 3, 2, "cb"),
            (3, 9, 3, "ba"),
            (-2, -1, 3, "ba"),
            (-99, -4, 0, "ed"),
            (-3, -3, 2, "c"),
            (5, 9, 5, ""),
            (2, 1, 2, ""),
            (-99, -90, 0, ""),
        ],
    )
    def test_reads_queue_and_wake_list_as_one(
        self, store: Store, first: int, last: int, start: int, names: str
    ) -> None:
        push(store, "default", "c", "d", "e")
        store.call("LPUSH", store.keys.wake("default"), "a", "b")

        part = read_queue(store, "default", first, last)

        assert part == (5, start, [name.encode() for name in names])

    @pytest.mark.parametrize("key", ["queue", "wake"])
    def test_either_list_may_be_missing(self, store: Store, key: str) -> None:
        store.call("LPUSH", getattr(store.keys, key)("default"), "a", "b")

        assert read_queue(store, "default", 0, 9) == (2, 0, [b"b", b"a"])
        assert read_queue(store, "nothing", 0, 9) == (0, 0, [])


# scenes in which test_faults.py has scripts fail at each of their calls (rule R5)


Prepare = Callable[[Engine, Store], Callable[[], object]]  # prepares Redis, and returns the call of a script


@dataclass(frozen=True)
class Scene:
    """A script, the state it starts from, and what runs it."""

    name: str
    script: Script
    prepare: Prepare


def scene_reserve(engine: Engine, store: Store) -> Callable[[], object]:
    push(store, "default", "job-1", "job-2", "job-3", "job-4")
    store.call("LPUSH", store.keys.wake("default"), "job-5", "job-6", "job-7")
    return lambda: reserve(engine, 5)


def scene_bounce(engine: Engine, store: Store) -> Callable[[], object]:
    push(store, "default", "job-1")
    store.call("LPUSH", store.keys.wake("default"), "job-2", "job-3")
    return lambda: reserve(engine, 0)


def scene_settle_held(engine: Engine, store: Store) -> Callable[[], object]:
    push(store, "default", "job-1", "job-2")
    units = reserve(engine, 2).units
    for unit in units:
        engine.begin_run(unit, [enter(5, "park"), enter(5, "park", "other")])
    return lambda: settle(engine, *((unit, Requeue()) for unit in units))


def scene_park(engine: Engine, store: Store) -> Callable[[], object]:
    push(store, "default", "job-1", "job-2")
    first, second = reserve(engine, 2).units
    engine.begin_run(first, [enter(1, "park")])
    return lambda: settle(engine, (second, Parked(SLOTS, 1)))


def scene_unpark(engine: Engine, store: Store) -> Callable[[], object]:
    push(store, "default", "job-1", "job-2")
    first, second = reserve(engine, 2).units
    engine.begin_run(first, [enter(1, "park")])
    settle(engine, (second, Parked(SLOTS, 1)))
    return lambda: settle(engine, (first, Requeue()))


def scene_begin(engine: Engine, store: Store) -> Callable[[], object]:
    push(store, "default", "job-1")
    (unit,) = reserve(engine, 1).units
    park(store, "job-2", queue="default")
    return lambda: engine.begin_run(unit, [enter(5, "park"), enter(5, "park", "other")])


def scene_begin_rates(engine: Engine, store: Store) -> Callable[[], object]:
    push(store, "default", "job-1")
    (unit,) = reserve(engine, 1).units
    kinds = ("fixed_window", "sliding_window", "leaky_bucket")
    rows = [Effect(kind, store.keys.rate(kind), (1, "60.0", 0)) for kind in kinds]
    store.call("SADD", store.keys.running("concurrent"), "nobody:1:a/1")
    place = Effect("concurrent", store.keys.rate("concurrent"), (1, "defer 5"))
    return lambda: engine.begin_run(unit, [*rows, place, enter(5, "park")])


def scene_take_place(engine: Engine, store: Store) -> Callable[[], object]:
    """A unit that still lies in its hand list, and holds another place."""
    unit = in_hand(engine, "job-1")
    engine.begin_run(unit, [enter(5, "park")])
    store.call("SADD", store.keys.running("crm"), "nobody:1:a/1")
    return lambda: take_place(unit, store, "crm", 1)


def scene_leave_place(engine: Engine, store: Store) -> Callable[[], object]:
    run = scene_take_place(engine, store)
    run()
    (unit,) = units_in_flight(store)
    return lambda: leave_place(unit, store, "crm")


def units_in_flight(store: Store) -> list[Unit]:
    fields = store.call("HKEYS", store.keys.inflight(ME.identity))
    return [Unit("default", b"", field.decode().partition(":")[0], ME.identity) for field in fields]


def scene_begin_with_grant(engine: Engine, store: Store) -> Callable[[], object]:
    """A job that was sent back begins, and leaves room for two more."""
    scene_unpark(engine, store)()
    park(store, "job-3", "job-4", queue="default")
    unit = reserve(engine, 2, call=2).units[0]
    assert store.call("ZSCORE", f"{SLOTS}:turns", sha1(unit.payload, usedforsecurity=False).hexdigest())
    return lambda: engine.begin_run(unit, [enter(3, "park")])


def scene_release(engine: Engine, store: Store) -> Callable[[], object]:
    """One has ended in each of two sets; others wait for their places."""
    push(store, "default", "job-1", "job-2")
    ended = reserve(engine, 2).units
    for unit, key in zip(ended, ("", "other"), strict=True):
        engine.begin_run(unit, [enter(1, "park", key) if key else enter(1, "park")])
    park(store, "job-3", "job-4")

    def run() -> None:
        if not engine.begin_units([], ended).is_released:
            raise RedisRefused("injected fault")  # it says only that it has failed

    return run


def scene_pass_on(engine: Engine, store: Store) -> Callable[[], object]:
    """A job that was sent back ends before its begin, and leaves room for two."""
    scene_unpark(engine, store)()
    park(store, "job-3", "job-4", queue="default")
    units = reserve(engine, 2, call=2).units
    (unit,) = (each for each in units if each.payload == b"job-2")
    effect = Effect("pass_on", SLOTS, (2,))
    return lambda: settle(engine, (unit, Retry(b"job-2", NOW, effects=(effect,))))


def scene_send_parked(engine: Engine, store: Store) -> Callable[[], object]:
    park(store, "job-1", "job-2", "job-3", queue="default")
    store.call("SADD", SLOTS, "nobody/1")
    store.call("ZADD", f"{SLOTS}:turns", 1, "gone")
    return lambda: send_parked(store, SLOTS, 2)


def scene_send_paused(engine: Engine, store: Store) -> Callable[[], object]:
    """The queue of the first two is paused."""
    park(store, "job-1", "job-2", queue="other")
    store.call("ZADD", f"{SLOTS}:parked", 9, f"{store.keys.queue('default')}\0job-3")
    store.call("SADD", store.keys.paused, "other")
    return lambda: send_parked(store, SLOTS, 2)


def scene_recover_held(engine: Engine, store: Store) -> Callable[[], object]:
    scene_settle_held(engine, store)
    return scene_recover(engine, store)


def scene_settle(engine: Engine, store: Store) -> Callable[[], object]:
    push(store, "default", *[f"job-{number}" for number in range(1, 7)])
    units = reserve(engine, 6).units
    outcomes = (Retry(b"job-1", NOW), Dead(b"job-2", NOW), Deferred(b"job-3", NOW), Requeue(), Interrupted(b"job-5"))
    effects = (Effect("lpush", "queue:more", (b"job-6",)),)
    pairs = [*zip(units, (*outcomes, Discard(effects=effects)), strict=True)]
    return lambda: settle(engine, *pairs)


def scene_hand_on(engine: Engine, store: Store) -> Callable[[], object]:
    push(store, "default", "job-1")
    (unit,) = reserve(engine, 1).units
    store.call("MSET", LOCK, "me", MARK, "me")
    return lambda: settle(engine, (unit, Done(effects=(handed_on("job-1 again"),))))


def scene_resync(engine: Engine, store: Store) -> Callable[[], object]:
    push(store, "default", "job-1", "job-2", "job-3")
    units = reserve(engine, 3).units

    def run() -> object:
        with store.borrowed() as connection:
            return engine.resync(connection, ME, ME.raised(), [units[0].token])

    return run


def scene_recover(engine: Engine, store: Store) -> Callable[[], object]:
    push(store, "default", "job-1", "job-2", "job-3")
    reserve(engine, 3)

    def run() -> object:
        with store.borrowed() as connection:
            return engine.recover(connection, ME.identity)

    return run


def scene_sweep(engine: Engine, store: Store) -> Callable[[], object]:
    push(store, "default", "job-1", "job-2", "job-3")
    reserve(engine, 3)

    def run() -> object:
        with store.borrowed() as connection:
            silent = engine.beat(connection, [], 0.0, 1).silent
            return engine.recover(connection, ME.identity, ALL_SUSPECT, silent.get(ME.identity, 1))

    return run


def scene_move_due(engine: Engine, store: Store) -> Callable[[], object]:
    store.call("ZADD", store.keys.schedule, NOW, "job-1", NOW, "job-2")
    due = [Move(b"job-1", "push", "default", b"job-1"), Move(b"job-2", "bury", "", b"job-2")]

    def run() -> None:
        for words in engine.move_due(store.keys.schedule, due, NOW)[1]:
            raise RedisRefused(words)

    return run


def scene_move_by_hand(engine: Engine, store: Store) -> Callable[[], object]:
    store.call("ZADD", store.keys.dead, NOW, "job-1", NOW, "job-2", NOW, "job-3", NOW, "job-4")
    moves = [
        Move(b"job-1", "push", "default", b"job-1"),
        Move(b"job-2", "bury", "", b"job-2"),
        Move(b"job-3", "defer", "", repr(NOW + 7).encode()),
        Move(b"job-4", "rename", "", b"job-4 of another queue"),
    ]

    def run() -> None:
        for words in move_entries(store, store.keys.dead, moves, NOW, LIMITS).refusals:
            raise RedisRefused(words)

    return run


def scene_move_jobs(engine: Engine, store: Store) -> Callable[[], object]:
    push(store, "default", "job-3", "job-4", "job-5")
    store.call("LPUSH", store.keys.wake("default"), "job-1", "job-2")
    jobs = [(name, name) for name in (b"job-2", b"job-3", b"job-5")]
    return lambda: move_jobs(store, "default", "other", jobs, (9, 0), b"mark")


def scene_receive_jobs(engine: Engine, store: Store) -> Callable[[], object]:
    push(store, "default", "job-1", "job-2")
    store.call("ZADD", store.keys.schedule, NOW, "job-3")
    move = ShardMove(store, Store(store.address, prefix="{eu}:", name="eu"))
    queue, schedule = Queue("default", store=store), ScheduledSet(store=store)
    assert queue.stage(reversed(queue), "other", move) + schedule.stage(schedule, "other", move) == 3
    return move.deliver


def scene_take_over(run: Callable[[Engine, Unit], object]) -> Prepare:
    """Run a script while two units lie in hand lists; it is about the first."""

    def prepare(engine: Engine, store: Store) -> Callable[[], object]:
        unit, _ = in_hand(engine, "job-1"), in_hand(engine, "job-2", number=2)
        return lambda: run(engine, unit)

    return prepare


def resync_all(engine: Engine, _: Unit) -> object:
    with engine.store.borrowed() as connection:
        return engine.resync(connection, ME, ME.raised(), [])


def recover_me(engine: Engine, _: Unit) -> object:
    with engine.store.borrowed() as connection:
        return engine.recover(connection, ME.identity)


SCENES = [
    Scene("settle_in_hand", SETTLE, scene_take_over(lambda engine, unit: settle(engine, (unit, Requeue())))),
    Scene("begin_in_hand", BEGIN, scene_take_over(lambda engine, unit: engine.begin_run(unit, [enter(5, "park")]))),
    Scene("resync_in_hand", RESYNC, scene_take_over(resync_all)),
    Scene("recover_in_hand", RECOVER, scene_take_over(recover_me)),
    Scene("reserve", RESERVE, scene_reserve),
    Scene("bounce", RESERVE, scene_bounce),
    Scene("begin", BEGIN, scene_begin),
    Scene("begin_rates", BEGIN, scene_begin_rates),
    Scene("take_place", TAKE_PLACE, scene_take_place),
    Scene("leave_place", LEAVE_PLACE, scene_leave_place),
    Scene("park", SETTLE, scene_park),
    Scene("unpark", SETTLE, scene_unpark),
    Scene("begin_with_grant", BEGIN, scene_begin_with_grant),
    Scene("release", RELEASE, scene_release),
    Scene("pass_on", SETTLE, scene_pass_on),
    Scene("send_parked", SEND_PARKED, scene_send_parked),
    Scene("send_paused", SEND_PARKED, scene_send_paused),
    Scene("settle", SETTLE, scene_settle),
    Scene("hand_on", SETTLE, scene_hand_on),
    Scene("settle_held", SETTLE, scene_settle_held),
    Scene("recover_held", RECOVER, scene_recover_held),
    Scene("resync", RESYNC, scene_resync),
    Scene("recover", RECOVER, scene_recover),
    Scene("sweep", RECOVER, scene_sweep),
    Scene("move_due", MOVE_ENTRIES, scene_move_due),
    Scene("move_by_hand", MOVE_ENTRIES, scene_move_by_hand),
    Scene("move_jobs", MOVE_JOBS, scene_move_jobs),
    Scene("receive_jobs", RECEIVE_JOBS, scene_receive_jobs),
]
FAULT = """
local calls_left = %d
local function faulty(...)
  if calls_left == 0 then error('injected fault') end
  calls_left = calls_left - 1
  return redis.call(...)
end
"""


def failing_after(script: Script, calls: int) -> Script:
    """Return the script, made to fail before its `calls` + 1st call."""
    shebang, text = script.text.split("\n", 1)
    text = f"{shebang}\n{FAULT % calls}" + text.replace("redis.call(", "faulty(").replace(
        "pcall(redis.call,", "pcall(faulty,"
    )
    return Script(script.name, text, "0" * 40)


@pytest.fixture
def sabotage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Script, int], None]]:
    """Make a script fail after so many calls; the Lua text itself is what changes."""
    from kiqcluster.store import cron, entry_moves, shard_moves
    from kiqcluster.store.engine import begin_calls, engine, reserve_calls, settle_calls, wait_lists
    from kiqcluster.store.limits import parking, places

    def apply(script: Script, calls: int) -> None:
        name = next(name for name, value in vars(script_module).items() if value is script)
        stores = (entry_moves, parking, places, cron, shard_moves)
        users = (engine, begin_calls, reserve_calls, settle_calls, wait_lists, *stores)
        user = next(each for each in users if hasattr(each, name))
        monkeypatch.setattr(user, name, failing_after(script, calls))

    yield apply
    monkeypatch.undo()


class TestPlaces:
    """What a running job takes and leaves."""

    @pytest.fixture
    def unit(self, engine: Engine, store: Store) -> Unit:
        push(store, "default", "a")
        (unit,) = reserve(engine, 1).units
        return unit

    def test_a_place_may_be_asked_for_again_and_counts_once(self, store: Store, unit: Unit) -> None:
        assert [take_place(unit, store, "crm", 1) for _ in range(2)] == ["GO", "GO"]
        assert store.call("SMEMBERS", store.keys.running("crm")) == [f"{ME.identity}/{unit.token}".encode()]
        assert leave_place(unit, store, "crm")
        assert not leave_place(unit, store, "crm")
        assert store.call("EXISTS", store.keys.running("crm"), store.keys.held(ME.identity)) == 0

    def test_who_leaves_one_keeps_the_others(self, engine: Engine, store: Store, unit: Unit) -> None:
        engine.begin_run(unit, [enter(5, "park")])
        take_place(unit, store, "crm", 1)
        take_place(unit, store, "mail", 1)

        leave_place(unit, store, "crm")

        assert store.call("EXISTS", store.keys.running("crm")) == 0
        assert slots(store) == {f"{ME.identity}/{unit.token}"}
        settle(engine, (unit, Done()))
        assert store.call("KEYS", "kiq:rate:*:running") == []
        assert slots(store) == set()

    def test_none_is_taken_for_a_unit_that_is_not_held(self, engine: Engine, store: Store, unit: Unit) -> None:
        settle(engine, (unit, Requeue()))

        assert take_place(unit, store, "crm", 1) == "LOST"
        assert store.call("EXISTS", store.keys.running("crm"), store.keys.held(ME.identity)) == 0

    def test_a_member_that_has_them_all_keeps_them(self, engine: Engine, store: Store, unit: Unit) -> None:
        push(store, "default", "b")
        (second,) = reserve(engine, 1, call=2).units
        take_place(unit, store, "crm", 1)

        assert take_place(second, store, "crm", 1) == "FULL"
        verdict = engine.begin_run(second, [Effect("concurrent", store.keys.rate("crm"), (1, "defer 5"))])
        assert (verdict.action, verdict.seconds) == ("defer", 5.0)
        assert store.call("SCARD", store.keys.running("crm")) == 1

    @pytest.mark.parametrize("prefix", ["sidekiq:", "{kiq:rate}:"])
    def test_with_a_prefix_all_keys_have_it(self, store: Store, prefix: str) -> None:
        shard = Store(store.address, prefix=prefix)
        engine = Engine(shard, LIMITS)
        engine.join(ME)
        push(shard, "default", "a")
        (unit,) = reserve(engine, 1).units
        shard.call("SADD", shard.keys.running("crm"), "nobody:1:a/1")

        assert take_place(unit, shard, "crm", 1) == "GO"
        assert engine.begin_run(unit, [Effect("fixed_window", shard.keys.rate("x"), (1, "60.0", 0))]).action == "go"

        assert shard.call("ZCARD", shard.keys.rates) == 2
        assert all(name.startswith(prefix.encode()) for name in store.call("KEYS", "*"))

    def test_a_listing_of_a_wrong_type_refuses_no_start(self, engine: Engine, store: Store, unit: Unit) -> None:
        store.call("SET", store.keys.rates, "of a wrong type")

        assert take_place(unit, store, "crm", 1) == "GO"
        assert engine.begin_run(unit, [Effect("fixed_window", store.keys.rate("x"), (1, "60.0", 0))]).action == "go"


class TestIterations:
    """Where an iterable job is, saved while it runs and written with its end."""

    @pytest.fixture
    def unit(self, engine: Engine, store: Store) -> Unit:
        push(store, "default", "a")
        (unit,) = reserve(engine, 1).units
        return unit

    @staticmethod
    def state(store: Store) -> dict[bytes, bytes]:
        found = store.call("HGETALL", "it-a")
        return dict(zip(found[::2], found[1::2], strict=True))

    def test_the_holder_of_the_unit_saves_it(self, store: Store, unit: Unit) -> None:
        assert save_state(store, unit, "a", ("1", b"7", "0.5", 60)) == "GO"
        assert save_state(store, unit, "a", ("1", b"8", "1.5", 60)) == "GO"

        assert self.state(store) == {b"ex": b"1", b"c": b"8", b"rt": b"1.5"}
        assert 50 < store.call("TTL", "it-a") <= 60

    def test_nobody_else_does(self, engine: Engine, store: Store, unit: Unit) -> None:
        store.call("HSET", "it-a", "c", "9")
        settle(engine, (unit, Requeue()))

        assert save_state(store, unit, "a", ("1", b"7", "0.5", 60)) == "LOST"
        settle(engine, (unit, Interrupted(b"a", effects=(Effect("iteration", "it-a", ("1", b"7", "0.5", 60)),))))

        assert self.state(store) == {b"c": b"9"}

    def test_a_cancel_of_ruby_is_seen(self, store: Store, unit: Unit) -> None:
        store.call("HSET", "it-a", "cancelled", "1700000000")

        assert save_state(store, unit, "a", ("1", b"7", "0.5", 60)) == "CANCELLED"

    def test_it_is_written_with_an_outcome_and_removed_with_the_last(
        self, engine: Engine, store: Store, unit: Unit
    ) -> None:
        settle(engine, (unit, Interrupted(b"a", effects=(Effect("iteration", "it-a", ("1", b"7", "0.5", 60)),))))
        assert self.state(store) == {b"ex": b"1", b"c": b"7", b"rt": b"0.5"}
        assert 50 < store.call("TTL", "it-a") <= 60

        (unit,) = reserve(engine, 1, call=2).units
        settle(engine, (unit, Done(effects=(Effect("forget", "it-a"),))))
        assert store.call("EXISTS", "it-a") == 0

    def test_a_job_that_gives_way_goes_behind_those_that_wait(self, engine: Engine, store: Store, unit: Unit) -> None:
        push(store, "default", "b")

        settle(engine, (unit, Interrupted(b"a", to_back=True)))

        assert store.call("LRANGE", "queue:default", 0, -1) == [b"a", b"b"]  # the right end is fetched next


def everything(store: Store) -> list[str]:
    """Return every value of every key, sorted."""
    found: list[str] = []
    for key in store.call("KEYS", "*"):
        kind = store.call("TYPE", key)
        if kind == b"list":
            values = store.call("LRANGE", key, 0, -1)
        elif kind == b"zset":
            values = store.call("ZRANGE", key, 0, -1)
        elif kind == b"set":
            values = store.call("SMEMBERS", key)
        elif kind == b"hash":
            values = store.call("HVALS", key)
        else:
            values = [key + b"=" + store.call("GET", key)]
        found += [value.decode(errors="replace") for value in values]
    return sorted(found)


# one key of the wrong type, one refusal, a full server: the others go on


def test_a_broken_queue_holds_up_no_other(engine: Engine, store: Store) -> None:
    store.call("SET", store.keys.queue("broken"), "no list")
    push(store, "fine", "a")

    reserved = reserve(engine, 5, "broken", "fine")

    assert [unit.payload for unit in reserved.units] == [b"a"]
    assert reserved.resting == {"broken"}
    assert "WRONGTYPE" in reserved.refusal


def test_a_due_entry_of_a_broken_queue_is_deferred_and_holds_up_no_other(engine: Engine, store: Store) -> None:
    store.call("SET", store.keys.queue("broken"), "no list")
    store.call("ZADD", store.keys.schedule, NOW, "a", NOW, "b")

    moved, (refusal,) = engine.move_due(
        store.keys.schedule, [Move(b"a", "push", "broken", b"a"), Move(b"b", "push", "default", b"b")], NOW
    )

    assert moved == 1
    assert refusal.startswith("WRONGTYPE")
    assert refusal.endswith("(key queue:broken)")
    assert queue(store) == ["b"]
    assert entries(store, store.keys.schedule) == {"a": NOW + 60}


def test_a_unit_that_cannot_go_back_holds_up_no_other(engine: Engine, store: Store) -> None:
    push(store, "breaks", "a")
    push(store, "default", "b")
    reserve(engine, 2, "breaks", "default")
    store.call("SET", store.keys.queue("breaks"), "no list")

    with store.borrowed() as connection, pytest.raises(RedisRefused, match="WRONGTYPE"):
        engine.recover(connection, ME.identity)

    assert queue(store) == ["b"]
    assert inflight(store) == [b"a"]
    store.call("DEL", store.keys.queue("breaks"))
    with store.borrowed() as connection:
        assert engine.recover(connection, ME.identity) == 1
    assert queue(store, "breaks") == ["a"]


def test_a_counter_that_cannot_be_written_keeps_no_unit(engine: Engine, store: Store) -> None:
    store.call("SET", store.keys.processed, "abc")
    push(store, "default", "a", "b")
    (unit,) = reserve(engine, 1).units

    with store.borrowed() as connection:
        refusals, reserved = engine.exchange(connection, ME, 2, {"default": (1, 1)}, [Settlement(unit, Done())], NOW)

    assert refusals == {}
    assert reserved is not None
    assert [each.payload for each in reserved.units] == [b"b"]


def test_what_is_reserved_beside_a_refused_settle_is_not_lost(
    engine: Engine, store: Store, sabotage: Callable[[Script, int], None]
) -> None:
    push(store, "default", "a", "b")
    (unit,) = reserve(engine, 1).units
    sabotage(SETTLE, 0)

    with store.borrowed() as connection:
        refusals, reserved = engine.exchange(connection, ME, 2, {"default": (1, 1)}, [Settlement(unit, Done())], NOW)

    assert "injected fault" in refusals[unit.token]
    assert reserved is not None
    assert [each.payload for each in reserved.units] == [b"b"]


def test_where_a_refused_settle_cannot_be_tried_again_what_was_reserved_beside_it_is_in_doubt(
    engine: Engine, store: Store, sabotage: Callable[[Script, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    push(store, "default", "a", "b")
    (unit,) = reserve(engine, 1).units
    sabotage(SETTLE, 0)

    def cut_off(*_: object) -> None:
        raise RedisUnavailable("nothing was sent")  # which the caller would take for: nothing was reserved

    with store.borrowed() as connection:
        sent = engine.begin(connection, ME, 2, {"default": (1, 1)}, [Settlement(unit, Done())], NOW)
        monkeypatch.setattr("kiqcluster.store.engine.engine.run_scripts_each", cut_off)
        with pytest.raises(ReplyLost):
            engine.finish(connection, sent)

    assert len(inflight(store)) == 2


def test_a_full_server_can_be_drained(engine: Engine, store: Store) -> None:
    push(store, "default", "a")
    store.call("CONFIG", "SET", "maxmemory", "1")
    try:
        engine.join(Member("host:9:cccccccccccc", 1, "boot ns 9 2"))
        (unit,) = reserve(engine, 1).units
        assert settle(engine, (unit, Retry(b"again", NOW))) == 1
        assert entries(store, store.keys.retry) == {"again": NOW}
        assert engine.move_due(store.keys.retry, [Move(b"again", "push", "default", b"again")], NOW)[0] == 1
        with store.borrowed() as connection:
            engine.recover(connection, ME.identity)
    finally:
        store.call("CONFIG", "SET", "maxmemory", "0")
    assert queue(store) == ["again"]


class TestHandLists:
    """Lists into which idle processes have pushes moved: registered, taken over, and remembered after a death."""

    TOKEN = "00000001.h000000001"

    def arm(self, engine: Engine, queue: str = "default", member: Member = ME, max_beat_age: float = 9.0) -> object:
        return engine.register_hands(member, {queue: self.TOKEN}, {queue: 7}, max_beat_age)

    def owners(self, store: Store) -> list[bytes]:
        found: list[bytes] = store.call("ZRANGE", store.keys.hand_owners, 0, -1)
        return found

    def look(self, engine: Engine, store: Store, *, in_seconds: float = 0.0) -> list[str]:
        """Return whom a look finds, as if so many seconds had passed."""
        for owner in self.owners(store):
            store.call("ZINCRBY", store.keys.hand_owners, -1_000 * in_seconds, owner)
            gone = store.call("HGET", store.keys.hands(owner.decode()), "gone")
            if gone is not None:
                store.call("HSET", store.keys.hands(owner.decode()), "gone", round(int(gone) - 1_000 * in_seconds))
        return stale_hands(engine.store)

    def recover(self, engine: Engine, member: Member = ME) -> int | None:
        with engine.store.borrowed() as connection:
            return engine.recover(connection, member.identity)

    # arm

    def test_a_list_is_registered_with_the_connection_that_waits(self, engine: Engine, store: Store) -> None:
        assert self.arm(engine) == {"default"}

        assert store.call("HGETALL", store.keys.hands(ME.identity)) == [f"{self.TOKEN}:default".encode(), b"7"]
        assert self.owners(store) == [ME.identity.encode()]

    def test_again_it_does_not_move_the_next_look(self, engine: Engine, store: Store) -> None:
        self.arm(engine)
        before = store.call("ZSCORE", store.keys.hand_owners, ME.identity)

        self.look(engine, store, in_seconds=30.0)
        self.arm(engine)

        assert float(store.call("ZSCORE", store.keys.hand_owners, ME.identity)) < float(before)

    @pytest.mark.parametrize("how", ["never joined", "recovered", "an older epoch"])
    def test_who_is_no_member_registers_nothing(self, engine: Engine, store: Store, how: str) -> None:
        member = Member("host:5:eeeeeeeeeeee", 1, "boot ns 5 1") if how == "never joined" else ME
        if how == "recovered":
            self.recover(engine)
        elif how == "an older epoch":
            resync_all(engine, Unit("", b"", "", ""))

        assert self.arm(engine, member=member) is None

        assert not store.call("KEYS", "kiq:hand*")

    def test_an_old_beat_allows_none(self, engine: Engine, store: Store) -> None:
        store.call("ZINCRBY", store.keys.beats, -9_500, ME.identity)
        assert self.arm(engine) == set()
        store.call("ZREM", store.keys.beats, ME.identity)
        assert self.arm(engine) == set()

        assert not store.call("EXISTS", store.keys.hands(ME.identity))

    def test_a_paused_queue_allows_none_and_others_do(self, engine: Engine, store: Store) -> None:
        store.call("SADD", store.keys.paused, "default")

        allowed = engine.register_hands(ME, {"default": "1", "other": "2"}, {"default": 0, "other": 0}, 9.0)

        assert allowed == {"other"}

    def test_while_there_are_suspects_it_allows_none(self, engine: Engine, store: Store) -> None:
        store.call("HSET", store.keys.suspects, "digest", 1)

        assert self.arm(engine) == set()

    @pytest.mark.parametrize("name", ["hands", "owners", "beats", "paused"])
    def test_a_key_of_a_wrong_type_is_named(self, engine: Engine, store: Store, name: str) -> None:
        keys = store.keys
        key = {"hands": keys.hands(ME.identity), "owners": keys.hand_owners, "beats": keys.beats, "paused": keys.paused}
        store.call("SET", key[name], "of a wrong type")

        with pytest.raises(RedisRefused, match=f"WRONGTYPE.*{key[name] if name != 'paused' else ''}"):
            self.arm(engine)

    def test_suspects_of_a_wrong_type_allow_none(self, engine: Engine, store: Store) -> None:
        store.call("SET", store.keys.suspects, "of a wrong type")

        assert self.arm(engine) == set()

    # take over

    @pytest.mark.parametrize("outcome", [Done(), Requeue(), Retry(b"again", NOW), Interrupted(b"job-1")])
    def test_a_settle_takes_the_unit_out_of_its_list_once(self, engine: Engine, store: Store, outcome: Outcome) -> None:
        unit = in_hand(engine, "job-1")

        assert settle(engine, (unit, outcome)) == 1
        left = everything(store)
        assert settle(engine, (unit, outcome)) == 0

        assert everything(store) == left
        assert not store.call("EXISTS", store.keys.hand(ME.identity, unit.field))
        assert not store.call("EXISTS", store.keys.hands(ME.identity))

    def test_a_settle_of_a_unit_that_is_elsewhere_by_now_changes_nothing(self, engine: Engine, store: Store) -> None:
        unit = in_hand(engine, "job-1")
        resync_all(engine, unit)

        assert settle(engine, (unit, Retry(b"again", NOW))) == 0
        assert queue(store) == ["job-1"]

    def test_a_settle_that_comes_after_a_resync_finds_it_in_the_hash(self, engine: Engine, store: Store) -> None:
        unit = in_hand(engine, "job-1")
        with store.borrowed() as connection:
            assert engine.resync(connection, ME, ME.raised(), [unit.token]) == (0, 0)
        assert inflight(store) == [b"job-1"]

        assert settle(engine, (unit, Done())) == 1
        assert inflight(store) == []

    def test_a_begin_takes_it_over_and_a_recovery_releases_what_it_holds(self, engine: Engine, store: Store) -> None:
        unit = in_hand(engine, "job-1")

        assert engine.begin_run(unit, [enter(5, "park")]).action == "go"
        assert inflight(store) == [b"job-1"]
        assert self.recover(engine) == 1

        assert queue(store) == ["job-1"]
        assert slots(store) == set()

    def test_a_recovery_returns_what_lies_in_lists_in_the_order_of_its_queue(
        self, engine: Engine, store: Store
    ) -> None:
        for number in range(1, 4):
            in_hand(engine, f"job-{number}", number=number)
        push(store, "default", "job-4")

        assert self.recover(engine) == 3

        assert queue(store) == ["job-4", "job-3", "job-2", "job-1"]

    def test_a_unit_in_hand_may_have_killed_its_process(self, engine: Engine, store: Store) -> None:
        unit = in_hand(engine, "job-1")
        in_hand(engine, "job-2", number=2)
        with store.borrowed() as connection:
            engine.recover(connection, ME.identity, [unit.token])

        assert store.call("LRANGE", store.keys.wake("default"), 0, -1) == [b"job-1"]
        assert queue(store) == ["job-2"]

    def test_a_list_of_a_wrong_type_is_refused_alone_and_named(self, engine: Engine, store: Store) -> None:
        broken, fine = in_hand(engine, "job-1"), in_hand(engine, "job-2", number=2)
        store.call("SET", store.keys.hand(ME.identity, broken.field), "of a wrong type")

        with store.borrowed() as connection:
            refusals, _ = engine.exchange(
                connection, ME, 1, None, [Settlement(each, Done()) for each in (broken, fine)], NOW
            )

        assert list(refusals) == [broken.token]
        assert "WRONGTYPE" in refusals[broken.token]
        assert not store.call("EXISTS", store.keys.hand(ME.identity, fine.field))

    @pytest.mark.parametrize("what", ["a list", "the register"])
    @pytest.mark.parametrize("script", [resync_all, recover_me])
    def test_a_key_of_a_wrong_type_stops_neither_resync_nor_recovery(
        self, engine: Engine, store: Store, what: str, script: Callable[[Engine, Unit], object]
    ) -> None:
        push(store, "default", "job-1")
        reserve(engine, 1)
        in_hand(engine, "job-2")
        broken = in_hand(engine, "job-3", number=2)
        key = store.keys.hand(ME.identity, broken.field) if what == "a list" else store.keys.hands(ME.identity)
        store.call("SET", key, "of a wrong type")

        script(engine, broken)

        assert queue(store) == (["job-2", "job-1"] if what == "a list" else ["job-1"])

    # the lists of the dead

    def test_a_live_process_is_looked_at_later(self, engine: Engine, store: Store) -> None:
        self.arm(engine)

        assert self.look(engine, store, in_seconds=61.0) == []
        assert self.owners(store) == [ME.identity.encode()]
        assert self.look(engine, store) == []

    def test_one_that_was_recovered_is_looked_at_at_once_and_then_less_and_less_often(
        self, engine: Engine, store: Store
    ) -> None:
        self.arm(engine)
        self.recover(engine)

        found = [second for second in range(600) if self.look(engine, store, in_seconds=float(second > 0))]

        assert found[0] == 0
        assert found[1] <= 2
        gaps = [later - earlier for earlier, later in pairwise(found)]
        assert max(gaps[:4]) <= 16
        assert 59 <= max(gaps) <= 61

    def test_what_comes_late_is_found_and_returned(self, engine: Engine, store: Store) -> None:
        self.arm(engine)
        self.recover(engine)
        self.look(engine, store)
        store.call("LPUSH", store.keys.hand(ME.identity, f"{self.TOKEN}:default"), "job-1")

        assert self.look(engine, store, in_seconds=60.0) == [ME.identity]
        assert self.recover(engine) == 1

        assert queue(store) == ["job-1"]

    def test_after_an_hour_it_is_forgotten(self, engine: Engine, store: Store) -> None:
        self.arm(engine)
        self.recover(engine)
        self.look(engine, store)

        self.look(engine, store, in_seconds=3_601.0)

        assert not store.call("KEYS", "kiq:hand*")

    def test_but_never_while_anything_lies_there(self, engine: Engine, store: Store) -> None:
        """Nobody has looked for long; and who is told now may die before it recovers."""
        self.arm(engine)
        self.recover(engine)
        self.look(engine, store)
        store.call("LPUSH", store.keys.hand(ME.identity, f"{self.TOKEN}:default"), "job-1")

        for _ in range(2):
            assert self.look(engine, store, in_seconds=3_601.0) == [ME.identity]
        assert self.recover(engine) == 1
        assert queue(store) == ["job-1"]
        self.look(engine, store, in_seconds=61.0)

        assert not store.call("KEYS", "kiq:hand*")

    def test_a_register_of_a_wrong_type_holds_up_no_other_and_is_forgotten(self, engine: Engine, store: Store) -> None:
        other = Member("host:7:dddddddddddd", 1, "boot ns 7 1")
        engine.join(other)
        for member in (ME, other):
            self.arm(engine, member=member)
            self.recover(engine, member)
        store.call("SET", store.keys.hands(ME.identity), "of a wrong type")

        assert sorted(stale_hands(engine.store)) == sorted([ME.identity, other.identity])

        assert self.owners(store) == [other.identity.encode()]

    def test_owners_of_a_wrong_type_are_named_and_stop_no_recovery(self, engine: Engine, store: Store) -> None:
        in_hand(engine, "job-1")
        store.call("SET", store.keys.hand_owners, "of a wrong type")

        assert self.recover(engine) == 1
        with pytest.raises(RedisRefused, match=r"WRONGTYPE.*key kiq:hands,"):
            stale_hands(engine.store)

    def test_who_leaves_with_its_waits_ended_leaves_nothing(self, engine: Engine, store: Store) -> None:
        self.arm(engine)
        self.recover(engine)
        with store.borrowed() as connection:
            forget_hands(connection, store.keys, ME.identity)

        assert not store.call("KEYS", "kiq:hand*")


def in_hand(engine: Engine, payload: str, queue: str = "default", number: int = 1) -> Unit:
    """Have a push moved into a hand list, and return the unit that it is there."""
    token = f"00000001.h{number:09d}"
    assert engine.register_hands(ME, {queue: token}, {queue: 0}, 9.0) == {queue}
    engine.store.call("LPUSH", engine.store.keys.hand(ME.identity, f"{token}:{queue}"), payload)
    return Unit(queue, payload.encode(), token, ME.identity, is_in_hand=True)


class TestSuspects:
    """Poison isolation: a unit that processes have died of is handed out alone, to who may have one."""

    @pytest.fixture(autouse=True)
    def killer(self, engine: Engine, store: Store) -> None:
        """`k` was running when its process died; `a` and `b` were held beside it."""
        push(store, "default", "a", "k", "b")
        self.die_of_k(engine)

    def die_of_k(self, engine: Engine) -> None:
        """Reserve everything, and die while `k` runs."""
        units = [unit for call in range(1, 4) for unit in reserve(engine, 3, call=call).units]
        with engine.store.borrowed() as connection:
            engine.recover(connection, ME.identity, [unit.token for unit in units if unit.payload == b"k"])
        engine.join(ME)

    def take(self, engine: Engine, call: int, *, most_deaths: int = ANY_DEATHS, wanted: int = 10) -> list[Unit]:
        with engine.store.borrowed() as connection:
            _, reserved = engine.exchange(
                connection, ME, call, {"default": (wanted, wanted)}, [], NOW, most_deaths=most_deaths
            )
        assert reserved is not None
        return reserved.units

    def test_only_what_was_running_counts(self, store: Store) -> None:
        assert store.call("HVALS", store.keys.suspects) == [b"1"]
        assert 0 < store.call("TTL", store.keys.suspects) <= 72 * 3_600

    def test_a_suspect_comes_alone_and_its_neighbours_without_it(self, engine: Engine) -> None:
        assert deaths(self.take(engine, 1)) == [("k", 1)]
        assert deaths(self.take(engine, 2)) == [("a", 0), ("b", 0)]

    def test_one_in_the_middle_of_a_queue_comes_alone_too(self, engine: Engine, store: Store) -> None:
        with store.borrowed() as connection:
            assert engine.return_wake_lists(connection, ["default"]) == 0
        store.call("LMOVE", "queue:default", "queue:default", "RIGHT", "LEFT")
        store.call("LMOVE", "queue:default", "queue:default", "LEFT", "RIGHT")
        store.call("RPUSH", "queue:default", "first")

        assert deaths(self.take(engine, 1)) == [("first", 0)]
        assert deaths(self.take(engine, 2)) == [("k", 1)]
        assert deaths(self.take(engine, 3)) == [("a", 0), ("b", 0)]

    def test_it_goes_to_the_wake_list_which_no_wait_with_a_hand_list_reads(self, store: Store) -> None:
        assert store.call("LRANGE", store.keys.wake("default"), 0, -1) == [b"k"]
        assert queue(store) == ["b", "a"]

    @pytest.mark.parametrize("stay", [True, False])
    def test_it_stays_there_when_wake_lists_are_returned_soon_after_a_death(
        self, engine: Engine, store: Store, stay: bool
    ) -> None:
        store.call("LPUSH", store.keys.wake("default"), "x")

        with store.borrowed() as connection:
            assert engine.return_wake_lists(connection, ["default"], suspects_stay=stay) == stay

        assert store.call("LRANGE", store.keys.wake("default"), 0, -1) == [b"k"] * stay
        assert queue(store) == (["b", "a", "x"] if stay else ["b", "a", "x", "k"])

    def test_who_may_have_none_gets_what_is_behind_it(self, engine: Engine, store: Store) -> None:
        store.call("LPUSH", store.keys.wake("default"), "x")
        assert deaths(self.take(engine, 1, most_deaths=0)) == [("x", 0), ("a", 0), ("b", 0)]
        assert store.call("LRANGE", store.keys.wake("default"), 0, -1) == [b"k"]
        assert self.take(engine, 2, most_deaths=0) == []
        assert store.call("LRANGE", store.keys.wake("default"), 0, -1) == [b"k"]

    def test_many_that_must_wait_are_passed_over_and_each_is_read_once(self, engine: Engine, store: Store) -> None:
        suspects = [f"s{number}" for number in range(20)]
        push(store, "many", *(word for suspect in suspects for word in (suspect, suspect.replace("s", "n"))))
        store.call("HSET", store.keys.suspects, *(word for each in suspects for word in (digest(each), 1)))
        store.call("CONFIG", "RESETSTAT")

        with store.borrowed() as connection:
            _, reserved = engine.exchange(connection, ME, 1, {"many": (100, 100)}, [], NOW, most_deaths=0)

        assert reads_of_lists(store) == 5  # three in one pass, two in the other, none per suspect
        assert reserved is not None
        assert [unit.payload.decode() for unit in reserved.units] == [f"n{number}" for number in range(20)]
        assert sorted(queue(store, "many")) == sorted(suspects)

    def test_who_may_have_one_of_one_death_gets_none_of_two(self, engine: Engine, store: Store) -> None:
        suspects = self.take(engine, 1)
        with store.borrowed() as connection:
            engine.recover(connection, ME.identity, [unit.token for unit in suspects])  # k, for the second time
        engine.join(ME)

        assert deaths(self.take(engine, 1, most_deaths=1)) == [("a", 0), ("b", 0)]
        assert self.take(engine, 2, most_deaths=1) == []
        assert deaths(self.take(engine, 3, most_deaths=2)) == [("k", 2)]

    def test_where_nobody_knows_what_ran_all_are_suspect(self, engine: Engine, store: Store) -> None:
        for call in range(1, 4):
            self.take(engine, call)
        with store.borrowed() as connection:
            engine.recover(connection, ME.identity, ALL_SUSPECT)

        assert sorted(store.call("HVALS", store.keys.suspects)) == [b"1", b"1", b"2"]

    def test_counts_that_nobody_takes_back_do_not_grow_for_ever(self, engine: Engine, store: Store) -> None:
        store.call("HSET", store.keys.suspects, *(word for n in range(10_001) for word in (n, 1)))

        self.die_of_k(engine)

        assert store.call("HVALS", store.keys.suspects) == [b"1"]

    @pytest.mark.parametrize("outcome", [Done(), Discard(), Retry(b"x", NOW), Dead(b"x", NOW), Interrupted(b"k")])
    def test_an_end_without_a_death_clears_the_count(self, engine: Engine, store: Store, outcome: Outcome) -> None:
        (suspect,) = self.take(engine, 1)

        settle(engine, (suspect, outcome))

        assert store.call("EXISTS", store.keys.suspects) == 0

    def test_one_that_was_only_given_back_stays_suspect(self, engine: Engine, store: Store) -> None:
        (suspect,) = self.take(engine, 1)

        settle(engine, (suspect, Requeue()))

        assert store.call("HVALS", store.keys.suspects) == [b"1"]


def digest(payload: str) -> str:
    return sha1(payload.encode(), usedforsecurity=False).hexdigest()


def reads_of_lists(store: Store) -> int:
    """Return how often lists were read since the statistics were reset."""
    found = re.search(rb"cmdstat_lrange:calls=(\d+)", store.call("INFO", "commandstats"))
    return int(found[1]) if found else 0


def deaths(units: list[Unit]) -> list[tuple[str, int]]:
    return [(unit.payload.decode(), unit.deaths) for unit in units]


def test_a_refused_effect_leaves_those_before_it_unwritten(engine: Engine, store: Store) -> None:
    store.call("SET", "kiq:test:broken", "no set")
    push(store, "default", "a")
    (unit,) = reserve(engine, 1).units
    outcome = Interrupted(b"a, changed", effects=(Effect("sadd", "kiq:test:broken", ("x",)),))

    for _ in range(3):
        with pytest.raises(RedisRefused, match="WRONGTYPE"):
            settle(engine, (unit, outcome))

    assert queue(store) == []
    assert len(inflight(store)) == 1


def test_a_member_is_remembered_until_everything_it_held_is_back(engine: Engine, store: Store) -> None:
    push(store, "breaks", "a")
    reserve(engine, 1, "breaks")
    store.call("SET", store.keys.queue("breaks"), "no list")
    with store.borrowed() as connection, pytest.raises(RedisRefused):
        engine.recover(connection, ME.identity)

    assert engine.members() == {ME.identity: ME.record}
    assert reserve(engine, 1, call=9).fenced
    store.call("DEL", store.keys.queue("breaks"))
    with store.borrowed() as connection:
        engine.recover(connection, ME.identity)
    assert engine.members() == {}


@pytest.mark.parametrize("broken", ["queues", "dead"])
def test_a_broken_set_makes_no_copies_and_blocks_no_other_entry(engine: Engine, store: Store, broken: str) -> None:
    store.call("SET", getattr(store.keys, broken), "wrong type")
    store.call("ZADD", store.keys.schedule, NOW - 1, "bad", NOW, "good")
    due = [Move(b"bad", "bury", "", b"wrapped"), Move(b"good", "push", "default", b"good")]

    refusals = [words for _ in range(3) for words in engine.move_due(store.keys.schedule, due, NOW)[1]]

    assert len(refusals) == (broken == "dead")

    assert queue(store) == ["good"]


@pytest.mark.parametrize("argument", [None, True, "\ud800", ["x"]])
def test_an_effect_that_cannot_be_sent_is_refused_where_it_is_made(argument: object) -> None:
    with pytest.raises((TypeError, UnicodeEncodeError)):
        Effect("sadd", "key", (argument,))  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["paused", "kiq:suspects"])
def test_a_set_of_a_wrong_type_stops_no_reserve(engine: Engine, store: Store, key: str) -> None:
    push(store, "default", "a")
    store.call("LPUSH", key, "no set and no hash")

    with store.borrowed() as connection:
        _, reserved = engine.exchange(connection, ME, 1, {"default": (1, 1)}, [], NOW)

    assert reserved is not None
    assert [unit.payload for unit in reserved.units] == [b"a"]
    assert reserved.resting == frozenset()
    assert f"{key}: WRONGTYPE" in reserved.refusal
    assert "Rename" in reserved.refusal
    assert not reserved.is_refused


# broken keys of ours


def beat(engine: Engine, *mine: str, silence: float = 1e6, most: int = 20) -> Beat:
    with engine.store.borrowed() as connection:
        return engine.beat(connection, mine, silence, most)


def resync(engine: Engine) -> None:
    with engine.store.borrowed() as connection:
        engine.resync(connection, ME, ME.raised(), [])


def recover(engine: Engine) -> None:
    with engine.store.borrowed() as connection:
        engine.recover(connection, ME.identity)


@pytest.mark.parametrize(
    "call", [lambda engine: reserve(engine, 1), lambda engine: engine.join(ME), resync, recover, beat, Engine.members]
)
def test_members_of_a_wrong_type_are_named_with_the_remedy(
    engine: Engine, store: Store, call: Callable[[Engine], object]
) -> None:
    store.call("DEL", store.keys.beats)
    store.call("SET", store.keys.members, "no hash")

    if call is beat:
        call = lambda engine: beat(engine, ME.identity)  # noqa: E731
    with pytest.raises(RedisRefused, match=r"kiq:members is a string.* RENAME kiq:members "):
        call(engine)


def test_once_broken_members_are_renamed_all_goes_on(engine: Engine, store: Store) -> None:
    push(store, "default", "a")
    reserve(engine, 1)
    store.call("RENAME", store.keys.members, "broken")

    assert reserve(engine, 1, call=2).fenced
    engine.join(Member("host:1:bbbbbbbbbbbb", 1, "boot ns 1 2.00"))
    with store.borrowed() as connection:
        silent = engine.beat(connection, [], 0.0, 20).silent
        assert engine.recover(connection, ME.identity, score=silent[ME.identity]) == 1

    assert queue(store) == ["a"]


def test_beats_of_a_wrong_type_stop_no_boot_and_no_recovery_of_a_neighbour(engine: Engine, store: Store) -> None:
    push(store, "default", "a")
    reserve(engine, 1)
    store.call("SET", store.keys.beats, "no sorted set")

    engine.join(Member("host:1:bbbbbbbbbbbb", 1, "boot ns 1 2.00"))
    recover(engine)

    assert queue(store) == ["a"]
    assert list(engine.members()) == ["host:1:bbbbbbbbbbbb"]


def test_beats_that_cannot_be_written_are_named(engine: Engine, store: Store) -> None:
    store.call("DEL", store.keys.beats)
    store.call("SET", store.keys.beats, "no sorted set")

    with pytest.raises(RedisRefused, match="kiq:beats is a string and should be a zset"):
        beat(engine, ME.identity)


def test_a_cursor_of_a_wrong_type_stops_no_beat(engine: Engine, store: Store) -> None:
    store.call("LPUSH", store.keys.audit, "no cursor")

    assert beat(engine, ME.identity).complaint == ""


def test_a_member_whose_name_is_no_text_is_named_and_stops_nobody(engine: Engine, store: Store) -> None:
    store.call("HSET", store.keys.members, b"host:\xff", f"00000001 {ME.record}")
    store.call("ZADD", store.keys.beats, 1, b"host:\xff", 1, ME.identity)

    found = beat(engine, silence=1.0)

    assert engine.members() == {ME.identity: ME.record}
    assert list(found.silent) == [ME.identity]
    assert "kiq:members" in found.complaint
    assert r"host:\xff" in found.complaint
