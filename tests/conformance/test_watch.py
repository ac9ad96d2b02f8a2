"""The row of the fleet's beats: when it is certain that processes could beat, so that a silent one is dead (R8)."""

from __future__ import annotations

import pytest

from kiqcluster.errors import RedisRefused
from kiqcluster.store import Store
from kiqcluster.store.engine import engine as engine_module
from kiqcluster.store.engine.engine import Engine
from kiqcluster.store.engine.units import Member
from kiqcluster.store.entry_moves import DeadSetLimits
from tests.server_clock import ServerClock

SILENCE = 60.0
DEAD = Member("there:1:bbbbbbbbbbbb", 1, "boot ns 1 1")
FIELD = str(round(1_000 * SILENCE))


class Fleet:
    """Processes that beat once each: `beat` is the first beat of one that has just started."""

    def __init__(self, store: Store, clock: ServerClock) -> None:
        self.store, self.clock = store, clock
        self.engine = Engine(store, DeadSetLimits(1, 1.0))
        self.now = 1_795_168_740.0
        self.born = 0
        clock.set(self.now)
        self.engine.join(DEAD)

    def beat(self, after: float = 0.0, *, server: str = "a", silence: float = SILENCE, most: int = 20) -> list[str]:
        """Let time go by, and have a process beat; return whom it was handed."""
        self.now += after
        self.born += 1
        self.clock.set(self.now)
        name = f"here:{self.born}:aaaaaaaaaaaa"
        self.engine.join(Member(name, 1, "boot ns 1 1"))
        with self.store.borrowed() as connection:
            beat = self.engine.beat(connection, [name], silence, most, 10.0, server=server, is_certain=False)
        self.store.call("HDEL", "kiq:members", name)
        self.store.call("ZREM", "kiq:beats", name)
        return sorted(beat.silent)

    def beats(self, seconds: float, **options: object) -> list[str]:
        """Have processes beat each ten seconds for so long; return whom they were handed."""
        return [name for _ in range(round(seconds / 10)) for name in self.beat(10.0, **options)]  # type: ignore[arg-type]


@pytest.fixture
def fleet(store: Store, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    clock = ServerClock(store)
    clock.use(monkeypatch, engine_module)
    return Fleet(store, clock)


def test_a_silent_member_is_handed_out_once_beats_have_come_for_the_whole_time_whoever_has_beaten(fleet: Fleet) -> None:
    assert fleet.beat() == []
    assert fleet.beats(50) == []

    assert fleet.beat(10.0) == [DEAD.identity]


@pytest.mark.parametrize(("gap", "found"), [(20.0, [DEAD.identity]), (20.1, [])])
def test_a_gap_of_more_than_a_third_begins_anew(fleet: Fleet, gap: float, found: list[str]) -> None:
    fleet.beat()
    fleet.beats(50)

    assert fleet.beat(gap) == found


def test_after_a_gap_it_takes_the_whole_time_again(fleet: Fleet) -> None:
    fleet.beats(60)
    assert fleet.beat(300.0) == []

    assert fleet.beats(50) == []
    assert fleet.beat(10.0) == [DEAD.identity]


def test_another_server_begins_anew_and_its_beats_count_from_then_on(fleet: Fleet) -> None:
    fleet.beat()
    fleet.beats(50)

    assert fleet.beat(10.0, server="b") == []
    assert fleet.beats(50, server="b") == []
    assert fleet.beat(10.0, server="b") == [DEAD.identity]


@pytest.mark.parametrize("step", [-3_600.0, 3_600.0, -0.1])
def test_a_clock_that_was_set_begins_anew(fleet: Fleet, step: float) -> None:
    fleet.beat()
    fleet.beats(60 - 10)
    fleet.clock.ahead = step

    assert fleet.beat(0.0) == []
    assert fleet.beats(40) == []


def test_whoever_does_not_know_the_server_neither_counts_nor_receives_any(fleet: Fleet, store: Store) -> None:
    assert fleet.beats(60, server="") == []
    assert store.call("EXISTS", "kiq:watch") == 0

    fleet.beat()
    fleet.beats(60, server="")

    assert fleet.beat() == []


def test_processes_that_wait_for_another_time_do_not_count(fleet: Fleet, store: Store) -> None:
    """A gap of two minutes is none for those that wait for ten."""
    fleet.beat(silence=600.0)
    for _ in range(8):
        fleet.beat(120.0, silence=600.0)

    assert fleet.beat() == []
    assert sorted(store.call("HKEYS", "kiq:watch")) == sorted([b"600000", FIELD.encode()])


@pytest.mark.parametrize("broken", ["a string", "no row", "times that are none"])
def test_what_is_broken_is_written_anew(fleet: Fleet, store: Store, broken: str) -> None:
    fleet.beats(60)
    if broken == "a string":
        store.call("SET", "kiq:watch", "x")
    else:
        store.call("HSET", "kiq:watch", FIELD, "x" if broken == "no row" else "a 1e400 -5")

    assert fleet.beat(10.0) == []
    assert fleet.beats(50) == []
    assert fleet.beat(10.0) == [DEAD.identity]


def test_beats_that_cannot_be_written_prove_nothing(fleet: Fleet, store: Store) -> None:
    """A key of a wrong type is the same for all: nobody can beat."""
    fleet.beat()
    fleet.beats(50)
    store.call("RENAME", "kiq:beats", "aside")
    store.call("SET", "kiq:beats", "no sorted set")
    for _ in range(3):
        with pytest.raises(RedisRefused, match="WRONGTYPE"):
            fleet.beat(10.0)
    store.call("RENAME", "aside", "kiq:beats")

    assert fleet.beat(0.0) == []


def test_who_wants_nobody_keeps_the_row_all_the_same(fleet: Fleet) -> None:
    fleet.beat(most=0)
    fleet.beats(50, most=0)

    assert fleet.beat(10.0) == [DEAD.identity]
