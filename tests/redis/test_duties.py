"""Duties of the fleet: each is claimed once when it is due, whatever is in Redis."""

from __future__ import annotations

import re
from random import Random

import pytest

from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.process.runtime import Runtime, Setup
from kiqcluster.store import Store
from kiqcluster.store.engine.duties import claim_duties
from kiqcluster.worker.maintenance.duties import Duties, due_after, longest_gap
from kiqcluster.worker.maintenance.outside_sources import OWN_INTERVALS, SourceMover
from tests.kit import ManualClock, RedisServer

PAUSES = {"poll": 60.0, "prune": 600.0}


def server_ms(store: Store) -> int:
    seconds, microseconds = (int(part) for part in store.call("TIME"))
    return seconds * 1_000 + microseconds // 1_000


class TestClaims:
    def test_a_duty_that_nobody_has_begun_is_claimed_once(self, store: Store) -> None:
        before = server_ms(store)

        assert claim_duties(store, PAUSES).left == {"poll": 0.0, "prune": 0.0}

        left = claim_duties(store, PAUSES).left
        assert 59.0 < left["poll"] <= 60.0
        assert 599.0 < left["prune"] <= 600.0
        begun = {int(at) for at in store.call("HVALS", "kiq:polls")}
        assert len(begun) == 1
        assert before <= begun.pop() <= server_ms(store)

    def test_a_duty_is_claimed_again_when_its_pause_is_over(self, store: Store) -> None:
        now = server_ms(store)
        store.call("HSET", "kiq:polls", "poll", now - 60_000, "prune", now - 60_000)

        left = claim_duties(store, PAUSES).left

        assert left["poll"] == 0.0
        assert 539.0 < left["prune"] <= 540.0

    @pytest.mark.parametrize("members", [1, 1_000])
    @pytest.mark.parametrize(
        ("claims", "commands"), [(False, {"time", "hlen", "hmget"}), (True, {"time", "hlen", "hmget", "hset"})]
    )
    def test_a_look_takes_a_few_commands_whatever_the_fleet_has(
        self, store: Store, members: int, claims: bool, commands: set[str]
    ) -> None:
        """A thousand processes look more than a hundred times a second."""
        store.call("HSET", "kiq:members", *(word for number in range(members) for word in (number, "1 boot ns 1 1")))
        if not claims:
            claim_duties(store, PAUSES)
        store.call("CONFIG", "RESETSTAT")

        claim_duties(store, PAUSES)

        text = store.call("INFO", "commandstats").decode()
        calls = {name: int(count) for name, count in re.findall(r"cmdstat_(\w+):calls=(\d+)", text)}
        assert calls.pop("evalsha") == 1
        assert calls.keys() - {"config", "info"} == commands
        assert sum(calls[name] for name in commands) <= 3 + 2 * claims

    @pytest.mark.parametrize("began", ["in an hour", "-1e400", "nan", "0.5", ""])
    def test_a_time_that_cannot_be_is_no_reason_to_wait(self, store: Store, began: str) -> None:
        """Of one later than now: the server's clock was set back."""
        store.call("HSET", "kiq:polls", "poll", server_ms(store) + 3_600_000 if began == "in an hour" else began)

        assert claim_duties(store, PAUSES).left["poll"] == 0.0
        assert claim_duties(store, PAUSES).left["poll"] > 59.0

    @pytest.mark.parametrize("write", [("SET", "kiq:polls", "a"), ("SADD", "kiq:polls", "a")], ids=["string", "set"])
    def test_a_key_of_a_wrong_type_holds_up_nothing(self, store: Store, write: tuple[str, ...]) -> None:
        store.call(*write)

        assert claim_duties(store, PAUSES).left["poll"] == 0.0
        assert claim_duties(store, PAUSES).left["poll"] > 59.0

    def test_names_of_earlier_releases_do_not_pile_up(self, store: Store) -> None:
        now = server_ms(store)
        store.call("HSET", "kiq:polls", *(word for number in range(1_001) for word in (f"release {number}", now)))

        assert claim_duties(store, PAUSES).left["poll"] == 0.0

        assert set(store.call("HKEYS", "kiq:polls")) == {b"poll", b"prune"}

    def test_it_tells_how_many_processes_there_are(self, store: Store) -> None:
        assert claim_duties(store, PAUSES).processes == 0
        store.call("HSET", "kiq:members", "a", "1 x", "b", "1 x")
        assert claim_duties(store, PAUSES).processes == 2
        store.call("DEL", "kiq:members")
        store.call("SET", "kiq:members", "of a wrong type")
        assert claim_duties(store, PAUSES).processes == 1

    def test_a_server_without_memory_has_its_duties_done(self, own_server: RedisServer) -> None:
        store = own_server.store()
        store.call("CONFIG", "SET", "maxmemory", 1)

        assert claim_duties(store, PAUSES).left["poll"] == 0.0
        assert claim_duties(store, PAUSES).left["poll"] > 59.0


class TestDuties:
    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    def duties(self, store: Store, clock: ManualClock, setup: Setup, **intervals: float) -> Duties:
        runtime = Runtime(Config(), store, setup, Events(), clock, Random(1))
        return Duties(runtime, "poller", intervals or {"poll": 5.0, "prune": 60.0})

    def age(self, store: Store, seconds: float) -> None:
        """Have every duty begun earlier."""
        for name in store.call("HKEYS", "kiq:polls"):
            store.call("HINCRBY", "kiq:polls", name, -round(1_000 * seconds))

    def test_it_asks_only_for_what_may_be_due(self, store: Store, clock: ManualClock, setup: Setup) -> None:
        duties = self.duties(store, clock, setup)
        assert duties.claim().left == {"poll": 0.0, "prune": 0.0}
        assert 4.5 < duties.next_look - clock.time < 5.0

        clock.time = duties.next_look
        self.age(store, 5.0)

        assert duties.claim().left == {"poll": 0.0}

    def test_what_another_process_does_is_asked_for_when_it_is_due_again(
        self, store: Store, clock: ManualClock, setup: Setup
    ) -> None:
        claim_duties(store, {"poll": due_after(5.0), "prune": due_after(60.0)})
        self.age(store, 1.0)
        duties = self.duties(store, clock, setup)

        left = duties.claim().left

        assert left == {"poll": pytest.approx(3.5, abs=0.5), "prune": pytest.approx(53.0, abs=0.5)}
        assert left["poll"] < duties.next_look - clock.time < left["poll"] + 0.5

    def test_a_duty_that_this_process_cannot_do_is_left_to_others(
        self, store: Store, clock: ManualClock, setup: Setup
    ) -> None:
        duties = self.duties(store, clock, setup)
        duties.claim()
        duties.leave_to_others("poll")
        clock.time += longest_gap(5.0) - 0.1
        self.age(store, 60.0)
        assert duties.claim().left == {}

        clock.time += 0.2

        assert duties.claim().left == {"poll": 0.0}

    def test_where_redis_refuses_the_question_a_process_does_all_in_time_and_says_it_once(
        self, own_server: RedisServer, clock: ManualClock, setup: Setup
    ) -> None:
        told: list[str] = []
        setup.error_handlers.append(lambda error, context: told.append(f"{context['context']}: {error}"))
        own_server.store().call("ACL", "SETUSER", "worker", "on", ">secret", "+@all", "~queue:*")
        duties = self.duties(Store(own_server.url.replace("//", "//worker:secret@")), clock, setup)

        for looks in range(3):
            assert "poll" in duties.claim().left, looks
            assert 4.5 < duties.next_look - clock.time < 5.0
            clock.time = duties.next_look

        assert len(told) == 1
        assert "kiq:polls" in told[0]


class TestOutsideSources:
    """Jobs in a database, which the processes of an application look for in turn."""

    class Source:
        name = "outbox shop"
        interval = 1.0

        def move(self) -> bool:
            return False

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    def mover(self, store: Store, setup: Setup, clock: ManualClock, known: str = "shop 1") -> SourceMover:
        runtime = Runtime(Config(), store, setup, Events(), clock, Random(1))
        return SourceMover(self.Source(), runtime, lambda *_: None, known)

    def test_one_of_them_looks_in_each_interval(self, store: Store, setup: Setup, clock: ManualClock) -> None:
        movers = [self.mover(store, setup, clock) for _ in range(3)]

        assert [mover._is_due() for mover in movers] == [True, False, False]

    def test_another_application_looks_into_its_own_database(
        self, store: Store, setup: Setup, clock: ManualClock
    ) -> None:
        movers = [self.mover(store, setup, clock, known) for known in ("shop 1", "blog 2")]

        assert [mover._is_due() for mover in movers] == [True, True]

    def test_who_has_had_no_turn_for_long_looks_all_the_same(
        self, store: Store, setup: Setup, clock: ManualClock
    ) -> None:
        """Two databases may have one name, and one of them many processes more."""
        mover = self.mover(store, setup, clock)
        for _ in range(OWN_INTERVALS - 1):
            clock.time += 1.0
            claim_duties(store, {"outbox shop shop 1": 0.0})
            assert not mover._is_due()

        clock.time += 1.0
        claim_duties(store, {"outbox shop shop 1": 0.0})

        assert mover._is_due()
