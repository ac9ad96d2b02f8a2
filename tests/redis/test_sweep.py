"""The sweep: workers of other hosts that fall silent, with a real server and a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kiqcluster.errors import ReplyLost
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.process.runtime import Runtime, Setup
from kiqcluster.store import Connection, Store
from kiqcluster.store.engine.engine import Engine
from kiqcluster.store.engine.units import Beat, Member
from kiqcluster.store.entry_moves import DeadSetLimits
from kiqcluster.worker.fetch.fencing import Fencing
from kiqcluster.worker.fetch.wake_lists import QUEUES_PER_ROUND_TRIP
from kiqcluster.worker.identity import ProcessFingerprint
from kiqcluster.worker.maintenance.recovery import Recovery
from tests.kit import ManualClock

SILENCE_LIMIT_SECONDS = 60.0
LIMIT_MS = str(round(1_000 * SILENCE_LIMIT_SECONDS))


class MovedEngine(Engine):
    """An engine whose server is `ahead` seconds ahead of the clock that Redis really has."""

    ahead = 0.0

    def beat(self, *arguments: Any, **options: Any) -> Beat:
        beat = super().beat(*arguments, **options)
        return replace(beat, at=beat.at + self.ahead)


def age(store: Store, seconds: float) -> None:
    """Make every beat in Redis older, and the row of the fleet's beats with them."""
    flat = store.call("ZRANGE", "kiq:beats", 0, -1, "WITHSCORES")
    for identity, score in zip(flat[::2], flat[1::2], strict=True):
        store.call("ZADD", "kiq:beats", float(score) - 1_000 * seconds, identity)
    if watch := store.call("HGET", "kiq:watch", LIMIT_MS):
        server, since, last = watch.decode().split()
        times = (str(int(each) - round(1_000 * seconds)) for each in (since, last))
        store.call("HSET", "kiq:watch", LIMIT_MS, " ".join((server, *times)))


class Watcher:
    """A worker that sweeps when it is told to.  Time goes by only in `look`, for Redis and for this process alike."""

    def __init__(self, store: Store, setup: Setup, name: str = "here:1:aaaaaaaaaaaa") -> None:
        self.store = store
        self.clock = ManualClock()
        self.identity = name
        self.events: list[tuple[str, str]] = []
        self.engine = MovedEngine(store, DeadSetLimits(100, 1_000.0))
        self.engine.join(Member(name, 1, "boot ns 1 1"))
        self.recovered: list[str] = []
        self.times_uncertain = 0
        events = Events()
        events.listen(lambda event, fields: self.events.append((event, fields["why"])))
        runtime = Runtime(Config(health_recover_after=SILENCE_LIMIT_SECONDS), store, setup, events, self.clock)
        self.fencing = Fencing(self.clock, SILENCE_LIMIT_SECONDS)
        self.fencing.begin(name)
        self.recovery = Recovery(
            runtime,
            self.engine,
            ProcessFingerprint.of_this_process(),
            lambda: self.identity,
            self.fencing,
            self.mark_uncertain,
            lambda identity, _: self.recovered.append(identity),
            lambda *_: None,
            lambda *_: None,
        )

    def mark_uncertain(self) -> None:
        self.times_uncertain += 1

    def pass_time(self, seconds: float) -> None:
        self.clock.time += seconds
        self.engine.ahead += seconds
        age(self.store, seconds)

    def look(self, after: float = 10.0) -> list[str]:
        """Let time go by and look; return who was recovered."""
        self.pass_time(after)
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
def ready(watcher: Watcher) -> Watcher:
    """One that has beaten for long enough to recover others."""
    watcher.look_for(SILENCE_LIMIT_SECONDS)
    return watcher


def lost(watcher: Watcher) -> Member:
    """Have a worker of another host take two units, and fall silent."""
    member = Member("there:7:bbbbbbbbbbbb", 1, "another-boot ns 7 7")
    watcher.engine.join(member)
    watcher.store.call("LPUSH", "queue:default", "a", "b", "c")
    with watcher.store.borrowed() as connection:
        watcher.engine.exchange(connection, member, 1, {"default": (2, 2)}, [], 0.0)
    return member


@pytest.fixture
def other(ready: Watcher) -> Member:
    return lost(ready)


def queued(store: Store) -> list[str]:
    """Return the payloads that wait, the next to be fetched last: a wake list, where suspects go, comes first."""
    lists = store.pipeline([("LRANGE", key, 0, -1) for key in ("queue:default", "kiq:wake:default")])
    return [raw.decode() for each in lists for raw in each]


def beat(watcher: Watcher, member: Member | Watcher) -> None:
    with watcher.store.borrowed() as connection:
        Engine(watcher.store, DeadSetLimits(1, 1.0)).beat(connection, [member.identity])


def members(store: Store) -> list[str]:
    return sorted(name.decode() for name in store.call("HKEYS", "kiq:members"))


def test_a_silent_worker_of_another_host_is_recovered_after_the_time_and_all_it_held_is_suspect(
    ready: Watcher, other: Member, store: Store
) -> None:
    store.call("SADD", "processes", other.identity)

    assert ready.look_for(SILENCE_LIMIT_SECONDS - 10) == []
    assert queued(store) == ["c"]
    assert ready.look() == [other.identity]

    assert queued(store) == ["c", "b", "a"]
    assert members(store) == [ready.identity]
    assert store.call("HVALS", "kiq:suspects") == [b"1", b"1"]
    assert store.call("SMEMBERS", "processes") == []
    assert store.call("ZRANGE", "kiq:beats", 0, -1) == [ready.identity.encode()]
    assert ready.events == [("recovered", "whose process gave no sign of life for 60 s")]


def test_one_that_beats_is_left_alone(ready: Watcher, other: Member, store: Store) -> None:
    assert ready.look_for(5 * SILENCE_LIMIT_SECONDS, lambda: beat(ready, other)) == []
    assert queued(store) == ["c"]


def test_one_that_beats_between_the_look_and_the_script_is_left_alone(
    ready: Watcher, other: Member, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready.look_for(SILENCE_LIMIT_SECONDS - 10)
    take_note = ready.recovery._update_fencing
    monkeypatch.setattr(ready.recovery, "_update_fencing", lambda *seen: (take_note(*seen), beat(ready, other)))

    assert ready.look() == []
    assert queued(store) == ["c"]
    assert members(store) == [ready.identity, other.identity]


@pytest.mark.parametrize("dead", [1, 45])
def test_however_many_die_at_once_the_last_one_recovers_them_at_its_first_look(
    ready: Watcher, store: Store, dead: int
) -> None:
    """Also those that are more than one look is handed."""
    for number in range(dead):
        ready.engine.join(Member(f"there:{number}:dddddddddddd", 1, f"another-boot ns {number} 7"))

    assert ready.look_for(SILENCE_LIMIT_SECONDS - 10) == []
    assert len(ready.look()) == dead
    assert members(store) == [ready.identity]


def test_two_are_never_handed_the_same_one_at_once_and_what_a_dead_one_was_handed_comes_again(
    ready: Watcher, other: Member, store: Store
) -> None:
    age(store, SILENCE_LIMIT_SECONDS)

    def handed_to(identity: str) -> list[str]:
        with store.borrowed() as connection:
            return list(ready.engine.beat(connection, [identity], SILENCE_LIMIT_SECONDS, 20, 10.0).silent)

    assert handed_to(ready.identity) == [other.identity]
    assert handed_to(ready.identity) == []
    age(store, 10.0)
    assert handed_to(ready.identity) == [other.identity]


def test_a_worker_recovers_nobody_until_it_has_beaten_for_the_whole_time(watcher: Watcher, store: Store) -> None:
    """The beats of others may be old because nobody could beat: after an outage, in a replica."""
    other = lost(watcher)
    age(store, 10 * SILENCE_LIMIT_SECONDS)

    assert watcher.look_for(SILENCE_LIMIT_SECONDS - 10) == []
    assert watcher.look() == [other.identity]


def test_a_process_that_has_just_started_recovers_whom_the_fleet_has_waited_for(
    ready: Watcher, other: Member, store: Store, setup: Setup
) -> None:
    """None of the others lives for as long as a dead one must be waited for."""
    names = [f"there:{number}:ffffffffffff" for number in range(6)]

    found = []
    for name in names:
        beat(ready, ready)
        young = Watcher(store, setup, name)
        young.engine.ahead = ready.engine.ahead
        found.append(young.look())
        store.call("HDEL", "kiq:members", name)

    assert found == [[], [], [], [], [], [other.identity]]
    assert queued(store) == ["c", "b", "a"]


def test_it_does_not_while_nobody_has_beaten_for_a_third_of_the_time(
    ready: Watcher, other: Member, store: Store, setup: Setup
) -> None:
    """Nobody knows whether others could."""
    age(store, SILENCE_LIMIT_SECONDS)
    young = Watcher(store, setup, "there:1:ffffffffffff")

    assert young.look() == []
    assert young.look_for(SILENCE_LIMIT_SECONDS - 10) == []
    assert sorted(young.look()) == sorted([other.identity, ready.identity])


def test_it_does_not_where_it_does_not_know_which_server_answers(
    ready: Watcher, other: Member, store: Store, setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MovedEngine, "server_of", lambda *_: "")
    young = Watcher(store, setup, "there:1:ffffffffffff")
    row = store.call("HGETALL", "kiq:watch")
    age(store, SILENCE_LIMIT_SECONDS)
    aged = store.call("HGETALL", "kiq:watch")

    assert young.look(0.0) == []
    assert store.call("HGETALL", "kiq:watch") == aged != row


def test_processes_that_wait_for_another_time_do_not_vouch_for_it(
    ready: Watcher, other: Member, store: Store, setup: Setup
) -> None:
    """Whoever waits for ten minutes bears gaps of three, in which nobody may have been able to beat."""
    for _ in range(8):
        with store.borrowed() as connection:
            ready.engine.beat(connection, [ready.identity], 600.0, 0, server="s")
        ready.pass_time(100.0)
    young = Watcher(store, setup, "there:1:ffffffffffff")

    assert young.look(0.0) == []
    assert len(store.call("HKEYS", "kiq:watch")) == 2


def test_a_process_whose_own_clock_contradicts_redis_does_not_believe_the_fleet(
    ready: Watcher, other: Member, store: Store, setup: Setup
) -> None:
    young = Watcher(store, setup, "there:1:ffffffffffff")
    ready.look_for(SILENCE_LIMIT_SECONDS - 10)
    young.engine.ahead = ready.engine.ahead
    young.clock.time = ready.clock.time
    assert young.look(0.0) == []
    age(store, 15.0)
    ready.engine.ahead += 15.0
    young.engine.ahead += 15.0  # the server's clock was set, by too little to be seen there

    assert young.look(0.0) == []
    assert young.look() == [other.identity]


def test_connections_that_are_closed_whenever_they_are_idle_put_nothing_off(
    ready: Watcher, other: Member, store: Store
) -> None:
    """`timeout 1` in redis.conf, or a proxy."""

    def close() -> None:
        killer = store.connection()  # whose own end Redis would put off until it has answered
        killer.exchange([("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")])
        killer.close()

    assert ready.look_for(SILENCE_LIMIT_SECONDS - 10, close) == []
    assert ready.look() == [other.identity]


def test_another_server_gives_everybody_the_whole_time_again(
    ready: Watcher, other: Member, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that was promoted knows less."""
    ready.look_for(SILENCE_LIMIT_SECONDS - 10)
    store.close()
    monkeypatch.setattr(ready.engine, "server_of", lambda *_: "another-server")

    assert ready.look_for(SILENCE_LIMIT_SECONDS) == []
    assert ready.look() == [other.identity]


def test_where_info_is_forbidden_a_new_connection_counts_as_another_server(
    ready: Watcher, other: Member, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ready.engine, "server_of", lambda *_: "")
    store.close()
    ready.look_for(SILENCE_LIMIT_SECONDS - 10)
    store.close()

    assert ready.look_for(SILENCE_LIMIT_SECONDS) == []
    assert ready.look() == [other.identity]


def test_after_beats_that_redis_refused_everybody_has_the_whole_time_again(
    ready: Watcher, other: Member, store: Store
) -> None:
    """Nobody could beat for longer than a third of the time: a wrong type is the same for all."""
    ready.look_for(SILENCE_LIMIT_SECONDS - 20)
    store.call("RENAME", "kiq:beats", "aside")
    store.call("SET", "kiq:beats", "no sorted set")
    for _ in range(2):
        ready.clock.time += 10
        ready.engine.ahead += 10
        ready.recovery._sweep()
    store.call("RENAME", "aside", "kiq:beats")
    age(store, 20)

    assert ready.look_for(SILENCE_LIMIT_SECONDS) == []
    assert ready.look() == [other.identity]


def test_a_watcher_that_was_frozen_gives_everybody_the_whole_time_again(ready: Watcher, other: Member) -> None:
    ready.look_for(SILENCE_LIMIT_SECONDS - 10)

    assert ready.look(after=1_000.0) == []
    assert ready.look_for(SILENCE_LIMIT_SECONDS - 10) == []
    assert ready.look() == [other.identity]


@pytest.mark.parametrize("hours", [1, -1])
def test_a_step_of_the_servers_clock_recovers_nobody_that_lives_and_puts_nobody_off(
    ready: Watcher, other: Member, store: Store, hours: int
) -> None:
    """A fail-over may be one: another machine, another clock."""
    living = Member("there:8:eeeeeeeeeeee", 1, "another-boot ns 8 8")
    ready.engine.join(living)
    ready.look_for(SILENCE_LIMIT_SECONDS / 2, lambda: beat(ready, living))
    ready.engine.ahead += hours * 3_600
    age(store, hours * 3_600)

    assert ready.look_for(SILENCE_LIMIT_SECONDS, lambda: beat(ready, living)) == []
    assert ready.look() == [other.identity]


def test_a_clock_of_ours_that_stood_still_recovers_nobody_that_lives_and_only_puts_off_the_dead(
    ready: Watcher, other: Member, store: Store
) -> None:
    """A machine that was suspended: Redis' clock went on, ours did not, and no worker of this machine has beaten."""
    sibling = Member("here:8:cccccccccccc", 1, "boot ns 8 8")
    ready.engine.join(sibling)
    ready.engine.ahead += 10 * SILENCE_LIMIT_SECONDS
    age(store, 10 * SILENCE_LIMIT_SECONDS)

    assert ready.look(after=0.0) == []  # who wakes first
    beat(ready, sibling)

    assert ready.look_for(SILENCE_LIMIT_SECONDS + 20, lambda: beat(ready, sibling)) == [other.identity]
    assert ready.times_uncertain == 0


def test_a_worker_never_sweeps_itself_and_beats_at_each_look(ready: Watcher, store: Store) -> None:
    for _ in range(30):
        assert ready.look() == []
        seconds, micros = (int(part) for part in store.call("TIME"))
        score = float(store.call("ZSCORE", "kiq:beats", ready.identity))
        assert 0 <= seconds * 1_000 + micros // 1_000 - score < 5_000


def test_two_that_watch_each_other_live_on(ready: Watcher, store: Store, setup: Setup) -> None:
    second = Watcher(store, setup, "there:2:cccccccccccc")

    found = [each for _ in range(30) for each in (*ready.look(5.0), *second.look(5.0))]

    assert found == []


def test_an_empty_membership_is_swept_and_so_is_a_beat_without_one(ready: Watcher, store: Store) -> None:
    """What a stop leaves behind that came while a booting worker waited for Redis, and what is left of a recovery."""
    ready.engine.join(Member("there:3:dddddddddddd", 1, "another-boot ns 3 3"))
    beat(ready, Member("there:4:eeeeeeeeeeee", 1, ""))
    store.call("ZADD", "kiq:beats", 1, "there:5:ffffffffffff")

    ready.look_for(SILENCE_LIMIT_SECONDS + 10)

    assert members(store) == [ready.identity]
    assert store.call("ZRANGE", "kiq:beats", 0, -1) == [ready.identity.encode()]
    assert store.call("EXISTS", "kiq:suspects") == 0


def test_a_member_that_has_lost_its_beat_is_found_and_swept(ready: Watcher, other: Member, store: Store) -> None:
    """A worker that was killed after it had left the registry, and before it had left the membership."""
    store.call("ZREM", "kiq:beats", other.identity)
    store.call("DEL", "kiq:audit")

    assert ready.look_for(SILENCE_LIMIT_SECONDS) == []
    assert ready.look() == [other.identity]
    assert queued(store) == ["c", "b", "a"]


def test_a_recovery_that_somebody_began_is_ended_however_its_process_beats(
    ready: Watcher, other: Member, store: Store
) -> None:
    store.call("HSET", "kiq:members", other.identity, f"fenced {other.record}")

    assert ready.look_for(SILENCE_LIMIT_SECONDS + 10, lambda: beat(ready, other)) == [other.identity]
    assert queued(store) == ["c", "b", "a"]


def test_a_worker_that_was_recovered_hears_it_with_its_next_beat(ready: Watcher, store: Store) -> None:
    assert not ready.fencing.is_fenced(ready.identity)
    store.call("HDEL", "kiq:members", ready.identity)

    ready.look()

    assert ready.fencing.is_fenced(ready.identity)
    assert ready.times_uncertain == 1


def test_a_worker_that_cannot_beat_knows_before_others_may_recover_it(ready: Watcher) -> None:
    ready.clock.time += SILENCE_LIMIT_SECONDS * 5 / 6
    assert not ready.fencing.is_fenced(ready.identity)
    ready.clock.time += 0.1
    assert ready.fencing.is_fenced(ready.identity)

    ready.look(0.0)

    assert not ready.fencing.is_fenced(ready.identity)


def test_a_unit_that_cannot_go_back_holds_up_no_other_process_and_is_tried_again(
    ready: Watcher, other: Member, store: Store
) -> None:
    store.call("RENAME", "queue:default", "aside")
    store.call("SET", "queue:default", "no list")
    third = Member("third:9:ffffffffffff", 1, "third-boot ns 9 9")
    ready.engine.join(third)

    assert ready.look_for(2 * SILENCE_LIMIT_SECONDS) == [third.identity]
    assert store.call("HLEN", f"kiq:inflight:{other.identity}") == 2
    store.call("DEL", "queue:default")
    store.call("RENAME", "aside", "queue:default")
    assert ready.look_for(2 * SILENCE_LIMIT_SECONDS) == [other.identity]
    assert queued(store) == ["c", "b", "a"]


def test_a_job_in_the_wake_list_of_a_dead_process_goes_back_to_its_queue(
    ready: Watcher, other: Member, store: Store
) -> None:
    """Nobody of ours serves that queue any more; the wake list is ours alone."""
    store.call("SADD", "queues", "default", "emails", "broken")
    store.call("LPUSH", "queue:emails", "c")
    store.call("LPUSH", "kiq:wake:emails", "x", "y")
    store.call("SET", "kiq:wake:broken", "no list")

    assert ready.look_for(SILENCE_LIMIT_SECONDS) == [other.identity]

    assert store.call("EXISTS", "kiq:wake:emails") == 0
    assert store.call("LRANGE", "queue:emails", 0, -1) == [b"c", b"y", b"x"]


def test_suspects_go_to_where_ruby_looks_once_no_wait_with_a_hand_list_can_take_them(
    ready: Watcher, other: Member, store: Store
) -> None:
    store.call("SADD", "queues", "default")

    assert ready.look_for(SILENCE_LIMIT_SECONDS) == [other.identity]
    assert store.call("LRANGE", "kiq:wake:default", 0, -1) == [b"b", b"a"]
    ready.look_for(30.0)

    assert store.call("EXISTS", "kiq:wake:default") == 0
    assert store.call("LRANGE", "queue:default", 0, -1) == [b"c", b"b", b"a"]


@pytest.mark.parametrize("way", ["boot", "told"])
def test_so_it_does_when_the_death_is_known(ready: Watcher, other: Member, store: Store, way: str) -> None:
    store.call("SADD", "queues", "emails")
    store.call("LPUSH", "kiq:wake:emails", "x")

    if way == "boot":
        ready.recovery.catch_up({other.identity: ()})
    else:
        ready.recovery.recover({other.identity: ()})
        ready.recovery._recover_orphans()

    assert store.call("LRANGE", "queue:emails", 0, -1) == [b"x"]


def test_an_outage_after_a_recovery_keeps_no_wake_list_full(
    ready: Watcher, other: Member, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.call("SADD", "queues", "emails")
    store.call("LPUSH", "kiq:wake:emails", "x")

    def is_lost(*_: object, **_options: object) -> None:
        raise ReplyLost("Redis did not answer")

    with monkeypatch.context() as patch:
        patch.setattr(ready.engine, "return_wake_lists", is_lost)
        ready.look_for(SILENCE_LIMIT_SECONDS)
    assert ready.recovered == [other.identity]

    ready.look()
    assert store.call("LRANGE", "queue:emails", 0, -1) == [b"x"]


def test_many_wake_lists_hold_up_no_beat(
    ready: Watcher, other: Member, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round trip takes a second here.  A process that does not beat is recovered with the jobs that it runs."""
    names = [f"q{number}" for number in range(3 * QUEUES_PER_ROUND_TRIP)]
    store.call("SADD", "queues", *names)
    store.pipeline([("LPUSH", f"kiq:wake:{name}", "a") for name in names[::100]])
    empty, gaps = ready.engine.return_wake_lists, [0.0]

    def empty_slowly(connection: Connection, queues: list[str], *, suspects_stay: bool) -> int:
        ready.clock.time += 1.0
        gaps[-1] += 1.0
        return empty(connection, queues, suspects_stay=suspects_stay)

    monkeypatch.setattr(ready.engine, "return_wake_lists", empty_slowly)
    ready.look_for(2 * SILENCE_LIMIT_SECONDS, between=lambda: gaps.append(0.0))

    assert ready.recovered == [other.identity]
    assert max(gaps) == 1.0
    assert sum(gaps) >= 3.0
    assert not store.call("KEYS", "kiq:wake:q*")


def test_many_slow_recoveries_hold_up_no_beat(ready: Watcher, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes six seconds here, as behind a far Redis."""
    dead = [Member(f"there:{number}:bbbbbbbbbbbb", 1, "another-boot ns 7 7") for number in range(12)]
    for member in dead:
        ready.engine.join(member)
    age(store, 2 * SILENCE_LIMIT_SECONDS)
    recover, beat_at, gaps = ready.engine.recover, [ready.clock.time], list[float]()

    def recover_slowly(*arguments: Any) -> int | None:
        ready.clock.time += 6.0
        ready.engine.ahead += 6.0
        return recover(*arguments)

    def note(*arguments: Any, **options: Any) -> Beat:
        gaps.append(ready.clock.time - beat_at[0])
        beat_at[0] = ready.clock.time
        return beat(*arguments, **options)

    beat = ready.engine.beat
    monkeypatch.setattr(ready.engine, "recover", recover_slowly)
    monkeypatch.setattr(ready.engine, "beat", note)
    ready.look_for(8 * SILENCE_LIMIT_SECONDS)

    assert sorted(ready.recovered) == sorted(member.identity for member in dead)
    assert max(gaps) < SILENCE_LIMIT_SECONDS / 2


def test_many_slow_recoveries_of_known_deaths_hold_up_no_beat(ready: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"here:{number}:bbbbbbbbbbbb" for number in range(5)]
    recover = ready.engine.recover

    def recover_slowly(*arguments: Any) -> int | None:
        ready.clock.time += 6.0
        return recover(*arguments)

    monkeypatch.setattr(ready.engine, "recover", recover_slowly)
    ready.recovery.recover(dict.fromkeys(names, ()))
    for done in (2, 4, 5):
        ready.recovery._beat_at = ready.clock.time + 10.0
        ready.recovery._recover_orphans()

        assert ready.recovered == names[:done]


def test_a_look_costs_as_much_beside_a_thousand_members_as_beside_two(
    ready: Watcher, other: Member, store: Store
) -> None:
    """As the server counts, a script's own calls too.  Looks that follow at once make no audit."""

    def processed() -> int:
        info = store.call("INFO", "stats").decode()
        return int(info.partition("total_commands_processed:")[2].split()[0])

    def cost() -> int:
        before = processed()
        with store.borrowed() as connection:
            ready.engine.beat(connection, [ready.identity], SILENCE_LIMIT_SECONDS, 20, 10.0)
        return processed() - before - 1  # the INFO itself

    few = min(cost() for _ in range(5))
    for number in range(1_000):
        ready.engine.join(Member(f"there:{number}:dddddddddddd", 1, f"another-boot ns {number} 7"))

    assert min(cost() for _ in range(5)) == few <= 8


def test_what_it_was_told_just_before_its_stop_is_still_done(ready: Watcher, other: Member, store: Store) -> None:
    ready.recovery.recover({other.identity: ()})
    ready.recovery.stop()

    ready.recovery.run()

    assert ready.recovered == [other.identity]
    assert queued(store) == ["c", "b", "a"]
