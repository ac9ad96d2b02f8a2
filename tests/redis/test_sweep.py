"""The sweep: workers of other hosts whose beat stands still, with a real server and a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kiqcluster.config import Config
from kiqcluster.events import Events
from kiqcluster.runtime import Runtime, Setup
from kiqcluster.store import Store
from kiqcluster.store.engine import DeadSetLimits, Engine, Member
from kiqcluster.worker import standstill
from kiqcluster.worker.identity import Birth
from kiqcluster.worker.recovery import Recovery
from tests.kit import ManualClock

LIMIT = 60.0


class Watcher:
    """A worker that sweeps when it is told to; its link is its own."""

    def __init__(self, store: Store, setup: Setup, name: str = "here:1:aaaaaaaaaaaa") -> None:
        self.clock = ManualClock()
        self.identity = name
        self.events: list[tuple[str, str]] = []
        self.engine = Engine(store, DeadSetLimits(100, 1_000.0))
        self.engine.join(Member(name, 1, "boot ns 1 1"))
        self.recovered: list[str] = []
        events = Events()
        events.listen(lambda event, fields: self.events.append((event, fields["why"])))
        runtime = Runtime(Config(recover_after=LIMIT), store, setup, events, self.clock)
        birth = Birth.of_this_process()
        self.recovery = Recovery(
            runtime,
            self.engine,
            birth,
            lambda: [self.identity],
            lambda identity, _: self.recovered.append(identity),
            lambda *_: None,
        )

    def look(self, after: float = 10.0) -> list[str]:
        """Let time go by and look; return who was recovered."""
        self.clock.time += after
        before = len(self.recovered)
        self.recovery._sweep()
        return self.recovered[before:]

    def look_for(self, seconds: float, between: Callable[[], object] = lambda: None) -> list[str]:
        found = []
        for _ in range(int(seconds / 10)):
            found += self.look()
            between()
        return found


@pytest.fixture
def watcher(store: Store, setup: Setup) -> Watcher:
    watcher = Watcher(store, setup)
    watcher.look()
    return watcher


@pytest.fixture
def other(store: Store, watcher: Watcher) -> Member:
    """A worker of another host that holds two units."""
    member = Member("there:7:bbbbbbbbbbbb", 1, "another-boot ns 7 7")
    watcher.engine.join(member)
    store.call("LPUSH", "queue:default", "a", "b", "c")
    with store.borrowed() as link:
        watcher.engine.exchange(link, member, 1, {"default": (2, 2)}, [], 0.0)
    watcher.look()
    return member


def queued(store: Store) -> list[str]:
    return [raw.decode() for raw in store.call("LRANGE", "queue:default", 0, -1)]


def beat(store: Store, member: Member) -> None:
    store.call("HINCRBY", "kiq:beats", member.identity, 1)


def test_a_silent_worker_of_another_host_is_recovered_after_the_time_and_all_it_held_is_suspect(
    watcher: Watcher, other: Member, store: Store
) -> None:
    store.call("SADD", "processes", other.identity)

    assert watcher.look_for(LIMIT - 10) == []
    assert queued(store) == ["c"]
    assert watcher.look() == [other.identity]

    assert queued(store) == ["c", "b", "a"]
    assert list(watcher.engine.members()) == [watcher.identity]
    assert store.call("HVALS", "kiq:suspects") == [b"1", b"1"]
    assert store.call("SMEMBERS", "processes") == []
    assert store.call("HKEYS", "kiq:beats") == [watcher.identity.encode()]
    assert watcher.events == [("recovered", "whose process gave no sign of life for 60 s")]


def test_one_that_beats_is_left_alone(watcher: Watcher, other: Member, store: Store) -> None:
    assert watcher.look_for(5 * LIMIT, lambda: beat(store, other)) == []
    assert queued(store) == ["c"]


def test_one_that_beats_between_the_look_and_the_script_is_left_alone(
    watcher: Watcher, other: Member, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher.look_for(LIMIT - 10)
    look = watcher.recovery._look

    def look_and_be_late() -> standstill.Look:
        seen = look()
        beat(store, other)
        return seen

    monkeypatch.setattr(watcher.recovery, "_look", look_and_be_late)

    assert watcher.look() == []
    assert queued(store) == ["c"]
    assert set(watcher.engine.members()) == {watcher.identity, other.identity}


def test_after_a_lost_connection_everybody_has_the_whole_time_again(
    watcher: Watcher, other: Member, store: Store
) -> None:
    watcher.look_for(LIMIT - 10)
    store.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    assert watcher.look_for(LIMIT) == []
    assert watcher.look_for(20) == [other.identity]


def test_after_a_look_that_redis_refused_everybody_has_the_whole_time_again(
    watcher: Watcher, other: Member, store: Store
) -> None:
    watcher.look_for(LIMIT - 10)
    store.call("RENAME", "kiq:beats", "aside")
    store.call("SET", "kiq:beats", "no hash")
    assert watcher.look() == []
    store.call("RENAME", "aside", "kiq:beats")

    assert watcher.look_for(LIMIT) == []
    assert watcher.look_for(20) == [other.identity]


def test_a_watcher_that_was_frozen_gives_everybody_the_whole_time_again(watcher: Watcher, other: Member) -> None:
    watcher.look_for(LIMIT - 10)

    assert watcher.look(after=1_000.0) == []
    assert watcher.look_for(LIMIT - 10) == []
    assert watcher.look_for(20) == [other.identity]


def test_a_worker_never_sweeps_itself_and_beats_at_each_look(watcher: Watcher, store: Store) -> None:
    before = int(store.call("HGET", "kiq:beats", watcher.identity))

    assert watcher.look_for(5 * LIMIT) == []
    assert int(store.call("HGET", "kiq:beats", watcher.identity)) == before + 30


def test_two_that_watch_each_other_live_on(watcher: Watcher, store: Store, setup: Setup) -> None:
    second = Watcher(store, setup, "there:2:cccccccccccc")

    found = [each for _ in range(30) for each in (*watcher.look(), *second.look())]

    assert found == []


def test_an_empty_membership_is_swept_and_so_is_a_beat_without_one(watcher: Watcher, store: Store) -> None:
    """What a stop leaves behind that came while a booting worker waited for Redis, and what a fenced one says late."""
    watcher.engine.join(Member("there:3:dddddddddddd", 1, "another-boot ns 3 3"))
    store.call("HINCRBY", "kiq:beats", "there:4:eeeeeeeeeeee", 1)

    watcher.look_for(LIMIT + 10)

    assert list(watcher.engine.members()) == [watcher.identity]
    assert store.call("HKEYS", "kiq:beats") == [watcher.identity.encode()]
    assert store.call("EXISTS", "kiq:suspects") == 0


def test_a_recovery_that_somebody_began_is_ended_however_its_process_beats(
    watcher: Watcher, other: Member, store: Store
) -> None:
    store.call("HSET", "kiq:members", other.identity, f"fenced {other.record}")

    assert watcher.look_for(LIMIT + 10, lambda: beat(store, other)) == [other.identity]
    assert queued(store) == ["c", "b", "a"]


def test_a_unit_that_cannot_go_back_holds_up_no_other_process_and_is_tried_again(
    watcher: Watcher, other: Member, store: Store
) -> None:
    store.call("RENAME", "queue:default", "aside")
    store.call("SET", "queue:default", "no list")
    third = Member("third:9:ffffffffffff", 1, "third-boot ns 9 9")
    watcher.engine.join(third)

    assert watcher.look_for(2 * LIMIT) == [third.identity]
    assert store.call("HLEN", f"kiq:inflight:{other.identity}") == 2
    store.call("RENAME", "aside", "queue:default")
    assert watcher.look_for(2 * LIMIT) == [other.identity]
    assert queued(store) == ["c", "b", "a"]


def test_a_look_costs_a_handful_of_commands(watcher: Watcher, other: Member, store: Store) -> None:
    """One round trip; as the server counts, a script's own calls too: 4 a look, 6 looks in 60 s."""

    def processed() -> int:
        info = store.call("INFO", "stats").decode()
        return int(info.partition("total_commands_processed:")[2].split()[0])

    watcher.look()
    before = processed()
    watcher.look()

    assert processed() - before - 1 <= 4  # the INFO itself


def test_what_it_was_told_just_before_its_stop_is_still_done(watcher: Watcher, other: Member, store: Store) -> None:
    watcher.recovery.recover({other.identity: ()})
    watcher.recovery.stop()

    watcher.recovery.run()

    assert watcher.recovered == [other.identity]
    assert queued(store) == ["c", "b", "a"]
