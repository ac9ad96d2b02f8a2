"""The poller: what is due moves once, whatever it is, and nothing waits that is due."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import pytest

from kiqcluster.errors import MalformedPayload, PayloadDecryptionError, RedisUnavailable
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.process.runtime import Push, Runtime, Setup
from kiqcluster.sidekiq.payload import INVALID_PAYLOAD
from kiqcluster.store import Store
from kiqcluster.store.engine.engine import MAX_DUE, MAX_DUE_BYTES, Engine
from kiqcluster.store.entry_moves import DeadSetLimits, Dropped, Move
from kiqcluster.worker.maintenance.duties import Duty
from kiqcluster.worker.maintenance.poller import DueSource, Poller, sidekiq_sources
from tests.kit import TIMEOUT_SECONDS, ManualClock, RedisServer, wait_until
from tests.proxy import Proxy

LIMITS = DeadSetLimits(100, 1_000.0)


@pytest.fixture
def poller(store: Store, setup: Setup) -> Poller:
    return poller_on(store, setup, [])


def poller_on(store: Store, setup: Setup, refusals: list[str], engine: Engine | None = None) -> Poller:
    """refusals: gets what the poller says of them."""
    events = Events()
    events.listen(lambda name, fields: refusals.append(fields["error"]) if name == "redis_refused" else None)
    return poller_of(Runtime(Config(), store, setup, events), engine or Engine(store, LIMITS))


def poller_of(runtime: Runtime, engine: Engine) -> Poller:
    return Poller(runtime, engine, lambda name, error: None)


def due(store: Store, key: str, raw: str | bytes, seconds: float = -1.0, now: float | None = None) -> None:
    store.call("ZADD", key, (time.time() if now is None else now) + seconds, raw)


def due_of(store: Store, key: str, queue: str, count: int, size: int = 0) -> None:
    """Have so many jobs of a queue be due, the first of all."""
    payloads = [f'{{"class":"X","queue":"{queue}","args":["{"x" * size}"],"jid":"{n}"}}' for n in range(count)]
    store.call("ZADD", key, *(word for n, each in enumerate(payloads) for word in (n, each)))


def entries_read(store: Store) -> int:
    """Return how many due entries were asked for since RESETSTAT."""
    stats = store.call("INFO", "commandstats").decode()
    return sum(map(int, re.findall(r"cmdstat_zrangebyscore:calls=(\d+)", stats)))


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


@pytest.mark.parametrize("error", [MalformedPayload, PayloadDecryptionError])
def test_a_job_whose_link_raises_an_error_of_ours_is_put_off_and_not_buried(
    poller: Poller, store: Store, setup: Setup, error: type[Exception]
) -> None:
    @setup.client_middleware.add
    def refuse(push: Push, proceed: Any) -> Push | None:
        raise error("the payload of another job, which the link has looked at")

    due(store, store.keys.retry, '{"class":"Fine","queue":"q","args":[],"jid":"1"}')

    poller.poll()

    assert store.call("ZCARD", store.keys.dead) == 0
    assert store.call("ZCOUNT", store.keys.retry, time.time() + 30, "+inf") == 1


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


def test_a_broken_queue_holds_up_neither_its_set_nor_the_other(store: Store, setup: Setup) -> None:
    refusals: list[str] = []
    store.call("SET", "queue:broken", "no list")
    due_of(store, store.keys.retry, "broken", 500)
    due(store, store.keys.retry, '{"class":"X","queue":"fine","args":[],"jid":"a"}')
    due(store, store.keys.schedule, '{"class":"X","queue":"fine","args":[],"jid":"b"}')

    assert poller_on(store, setup, refusals).poll() == 2

    assert store.call("LLEN", "queue:fine") == 2
    assert store.call("ZCOUNT", store.keys.retry, time.time() + 30, "+inf") == 500
    assert [words.rpartition("(")[2] for words in refusals] == ["key queue:broken)"]


def test_a_forbidden_queue_holds_up_neither_its_set_nor_the_other_and_is_not_asked_for_again(
    own_server: RedisServer, setup: Setup
) -> None:
    store, refusals = own_server.store(), list[str]()
    keys = [f"~{key}" for key in ("queue:fine", "retry", "schedule", "dead", "queues", "processes")]
    store.call("ACL", "SETUSER", "worker", "on", ">secret", "+@all", *keys)
    due_of(store, store.keys.retry, "forbidden", 250)
    due(store, store.keys.retry, '{"class":"X","queue":"fine","args":[],"jid":"a"}')
    due(store, store.keys.schedule, '{"class":"X","queue":"fine","args":[],"jid":"b"}')
    poller = poller_on(Store(own_server.url.replace("//", "//worker:secret@")), setup, refusals)

    assert poller.poll() == 2

    assert store.call("LLEN", "queue:fine") == 2
    assert store.call("ZCOUNT", store.keys.retry, time.time() + 30, "+inf") == 250
    assert len(refusals) == 1
    assert "queue:forbidden" in refusals[0]
    store.call("ACL", "LOG", "RESET")
    due_of(store, store.keys.schedule, "forbidden", 50)
    due(store, store.keys.schedule, '{"class":"X","queue":"fine","args":[],"jid":"c"}')
    assert poller.poll() == 1
    assert store.call("ACL", "LOG") == []
    assert len(refusals) == 1


def test_a_backlog_of_retries_does_not_hold_up_the_schedule(poller: Poller, store: Store, setup: Setup) -> None:
    moved: list[str] = []

    @setup.client_middleware.add
    def note(push: Push, proceed: Any) -> Push | None:
        moved.append(push.payload["queue"])
        return proceed()  # type: ignore[no-any-return]

    due_of(store, store.keys.retry, "failed", 3 * MAX_DUE)
    due_of(store, store.keys.schedule, "scheduled", 1)

    assert poller.poll() == 3 * MAX_DUE + 1

    assert moved.index("scheduled") == MAX_DUE


def test_who_may_not_bury_moves_all_the_same(own_server: RedisServer, setup: Setup) -> None:
    store, refusals = own_server.store(), list[str]()
    keys = [f"~{key}" for key in ("queue:*", "retry", "schedule", "queues", "processes")]
    store.call("ACL", "SETUSER", "worker", "on", ">secret", "+@all", *keys)
    due(store, store.keys.retry, "no job")
    due_of(store, store.keys.retry, "fine", 3)
    poller = poller_on(Store(own_server.url.replace("//", "//worker:secret@")), setup, refusals)

    assert poller.poll() == 3

    assert store.call("LLEN", "queue:fine") == 3
    assert store.call("ZCOUNT", store.keys.retry, time.time() + 30, "+inf") == 1
    assert [words.rpartition("(")[2] for words in refusals] == ["key dead)"]


def test_sets_whose_entries_can_be_neither_moved_nor_put_off_are_asked_once_a_poll(
    own_server: RedisServer, setup: Setup
) -> None:
    store, refusals = own_server.store(), list[str]()
    keys = [f"~{key}" for key in ("queue:*", "retry", "schedule", "dead", "processes")]
    store.call("ACL", "SETUSER", "worker", "on", ">secret", "+@all", *keys)
    for source in (store.keys.retry, store.keys.schedule):
        due_of(store, source, "fine", 10 * MAX_DUE)
    poller = poller_on(Store(own_server.url.replace("//", "//worker:secret@")), setup, refusals)
    store.call("CONFIG", "RESETSTAT")

    assert poller.poll() == 0

    assert entries_read(store) == 2 * MAX_DUE
    assert len(refusals) == 2


def test_a_set_of_the_wrong_type_holds_up_no_other_and_is_named_once(store: Store, setup: Setup) -> None:
    refusals: list[str] = []
    store.call("SET", store.keys.retry, "no set")
    due(store, store.keys.schedule, '{"class":"X","queue":"fine","args":[],"jid":"b"}')
    poller = poller_on(store, setup, refusals)

    assert poller.poll() == 1
    poller.poll()

    assert len(refusals) == 1
    assert refusals[0].endswith("(key retry)")


def test_the_rest_of_what_the_dead_set_holds_too_many_is_trimmed_by_the_poller(poller: Poller, store: Store) -> None:
    now = time.time()
    store.call("ZADD", store.keys.dead, *[word for n in range(3_500) for word in (now - n / 100, f"e{n}")])
    poller.poll()
    assert store.call("ZCARD", store.keys.dead) == 3_500

    poller.inbox.trim_soon()
    poller.poll()

    assert store.call("ZCARD", store.keys.dead) == 99


def test_a_trim_that_is_wanted_while_another_one_runs_comes_next(store: Store, setup: Setup) -> None:
    trims: list[float] = []

    class Busy(Engine):
        def trim_dead(self, now: float) -> Dropped:
            trims.append(now)
            if len(trims) == 1:  # another thread buries a job meanwhile
                poller.inbox.trim_soon()
            return super().trim_dead(now)

    poller = poller_on(store, setup, [], Busy(store, LIMITS))
    poller.inbox.trim_soon()
    poller.poll()

    assert len(trims) == 2


def test_large_entries_are_moved_few_at_a_time(store: Store, setup: Setup) -> None:
    sizes: list[int] = []

    class Measured(Engine):
        def move_due(self, source: str, entries: Sequence[Move], now: float) -> tuple[int, list[str]]:
            sizes.append(sum(len(entry.old) for entry in entries))
            return super().move_due(source, entries, now)

    due_of(store, store.keys.retry, "fine", 50, size=40_000)
    due_of(store, store.keys.schedule, "fine", 1, size=2 * MAX_DUE_BYTES)

    assert poller_on(store, setup, [], Measured(store, LIMITS)).poll() == 51

    assert len(sizes) > 8
    *others, largest = sorted(sizes)
    assert max(others) <= MAX_DUE_BYTES < largest


def test_what_is_due_moves_over_a_slow_line_once(store: Store, redis_server: RedisServer, setup: Setup) -> None:
    due_of(store, store.keys.retry, "fine", 12, size=100_000)
    due_of(store, store.keys.schedule, "fine", 1, size=1_000_000)

    with Proxy(("127.0.0.1", redis_server.port), rate=4_000_000) as line:
        assert poller_on(Store(line.url, timeout=0.3), setup, []).poll() == 13

    assert store.call("LLEN", "queue:fine") == 13


def commands_of(store: Store, act: Callable[[], object]) -> dict[str, int]:
    """Return which commands the server runs meanwhile, those of scripts among them."""
    store.call("CONFIG", "RESETSTAT")
    act()
    stats = store.call("INFO", "commandstats").decode()
    found = {name: int(calls) for name, calls in re.findall(r"cmdstat_([^:|]+):calls=(\d+)", stats)}
    return {name: calls for name, calls in found.items() if name not in ("info", "config", "select", "hello", "client")}


class TestKnownTimes:
    """On a clock of its own, at the time of the server's."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock(time.time())

    @pytest.fixture
    def timed(self, store: Store, setup: Setup, clock: ManualClock) -> Poller:
        return poller_of(Runtime(Config(), store, setup, Events(), clock), Engine(store, LIMITS))

    def test_a_poll_with_nothing_due_soon_asks_one_command_per_set(
        self, own_server: RedisServer, setup: Setup, clock: ManualClock
    ) -> None:
        store = own_server.store()
        poller = poller_of(Runtime(Config(), store, setup, Events(), clock), Engine(store, LIMITS))
        due(store, store.keys.schedule, '{"class":"X","queue":"q","args":[],"jid":"a"}', seconds=60)

        assert commands_of(store, lambda: poller.poll(ahead=30.0)) == {"zcount": 2}

    def test_what_is_due_before_the_next_poll_moves_at_its_time_and_not_before(
        self, timed: Poller, store: Store, clock: ManualClock
    ) -> None:
        due_in(store, clock, "a", 3.0)
        due_in(store, clock, "b", 3.5)

        assert timed.poll(ahead=5.0) == 0
        clock.time += 2.99
        assert timed.move_known() == 0
        clock.time += 0.011
        assert timed.move_known() == 1
        assert timed.move_known() == 0
        clock.time += 0.5
        assert timed.move_known() == 1

        assert [json.loads(raw)["jid"] for raw in store.call("LRANGE", "queue:q", 0, -1)] == ["b", "a"]

    def test_a_move_says_when_the_next_one_is_due_without_another_question(
        self, own_server: RedisServer, setup: Setup, clock: ManualClock
    ) -> None:
        store = own_server.store()
        poller = poller_of(Runtime(Config(), store, setup, Events(), clock), Engine(store, LIMITS))
        due_in(store, clock, "warm", -1.0)
        poller.poll()  # the scripts are known from here on
        for number in range(3):
            due_in(store, clock, str(number), 1.0 + number / 10)
        poller.poll(ahead=5.0)
        clock.time += 1.01

        asked = commands_of(store, poller.move_known)

        assert asked["evalsha"] == 2
        clock.time += 0.1
        assert poller.move_known() == 1

    def test_several_that_know_the_same_time_move_it_once(self, store: Store, setup: Setup, clock: ManualClock) -> None:
        due_in(store, clock, "a", 3.0)
        pollers = [poller_of(Runtime(Config(), store, setup, Events(), clock), Engine(store, LIMITS)) for _ in range(4)]
        for each in pollers:
            each.poll(ahead=5.0, processes=4)
        clock.time += 3.01

        assert [each.move_known() for each in pollers] == [1, 0, 0, 0]
        assert store.call("LLEN", "queue:q") == 1

    def test_a_clock_that_is_far_ahead_wakes_by_that_of_redis(
        self, timed: Poller, store: Store, clock: ManualClock
    ) -> None:
        due_in(store, clock, "a", 20.0)
        clock.time += 3_600.0

        assert timed.poll(ahead=30.0) == 0
        clock.time += 19.0

        assert timed.move_known() == 0
        assert store.call("ZCARD", store.keys.schedule) == 1

    def test_a_source_that_is_refused_wakes_nobody(self, store: Store, timed: Poller, clock: ManualClock) -> None:
        due_in(store, clock, "a", 3.0)
        store.call("SET", store.keys.retry, "no set")

        timed.poll(ahead=5.0)
        store.call("SET", store.keys.schedule, "no set either")
        clock.time += 3.01

        assert timed.move_known() == 0
        assert timed._due_times.wake_at() == inf

    def test_what_this_process_writes_moves_at_its_time_though_no_poll_is_near(
        self, poller: Poller, store: Store
    ) -> None:
        """The first poll comes 10 s after the start.  Of two entries that it writes, the one that is due later moves
        by what the first move has learned; the one of another set by what was written down.
        """
        written = [("b", 0.4), ("a", 0.2), ("never", 3_600.0), ("c", 0.6)]
        poller.start()
        now, begun = time.time(), time.monotonic()
        try:
            for jid, seconds in written:
                key = store.keys.retry if jid == "c" else store.keys.schedule
                payload = f'{{"class":"X","queue":"q","args":[],"jid":"{jid}"}}'
                due(store, key, payload, seconds, now)
                poller.inbox.expect(key, now + seconds)
            wait_until(lambda: store.call("LLEN", "queue:q") == 3, "all to move")
        finally:
            poller.stop()
            assert poller.join(TIMEOUT_SECONDS)

        assert time.monotonic() - begun > 0.55
        assert [json.loads(raw)["jid"] for raw in store.call("LRANGE", "queue:q", 0, -1)] == ["c", "b", "a"]

    def test_a_feature_may_bring_a_source_of_its_own(self, store: Store, setup: Setup, clock: ManualClock) -> None:
        def tick(entry: bytes, now: float) -> Move:
            return Move(entry, "push", "nightly", b'{"class":"Nightly","args":["%s"]}' % entry)

        runtime, engine = Runtime(Config(), store, setup, Events(), clock), Engine(store, LIMITS)
        sources = [*sidekiq_sources(store.keys, setup), DueSource("kiq:cron", tick)]
        poller = Poller(runtime, engine, lambda name, error: None, sources)
        due_in(store, clock, "a", 3.0)
        store.call("ZADD", "kiq:cron", clock.time + 2.0, "at night")

        assert poller.poll(ahead=5.0) == 0
        clock.time += 2.01
        assert poller.move_known() == 1
        clock.time += 1.0
        assert poller.move_known() == 1

        (pushed,) = store.call("LRANGE", "queue:nightly", 0, -1)
        assert json.loads(pushed)["args"] == ["at night"]
        assert store.call("LLEN", "queue:q") == 1


def due_in(store: Store, clock: ManualClock, jid: str, seconds: float) -> None:
    raw = f'{{"class":"X","queue":"q","args":[],"jid":"{jid}"}}'
    store.call("ZADD", store.keys.schedule, repr(clock.time + seconds), raw)


class TestLooks:
    """What a process does of the duties of the fleet."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock(time.time())

    @pytest.fixture
    def done(self) -> list[str]:
        return []

    @pytest.fixture
    def runtime(self, store: Store, setup: Setup, clock: ManualClock) -> Runtime:
        return Runtime(Config(), store, setup, Events(), clock)

    def poller(self, runtime: Runtime, done: list[str], *duties: Duty) -> Poller:
        pruning = Duty("prune", 60.0, lambda: done.append("prune"))
        return Poller(runtime, Engine(runtime.store, LIMITS), lambda *_: None, None, duties or [pruning])

    def age(self, store: Store, clock: ManualClock, seconds: float) -> None:
        """Let time go by."""
        clock.time += seconds
        for name in store.call("HKEYS", "kiq:polls"):
            store.call("HINCRBY", "kiq:polls", name, -round(1_000 * seconds))

    def test_the_first_look_does_all_and_others_find_nothing_to_do(
        self, runtime: Runtime, store: Store, done: list[str]
    ) -> None:
        due_of(store, store.keys.retry, "q", 1)
        due_of(store, store.keys.schedule, "q", 1)
        pollers = [self.poller(runtime, done) for _ in range(3)]

        assert [each.look() for each in pollers] == [2, 0, 0]

        assert done == ["prune"]

    def test_what_is_due_again_is_done_by_whoever_looks(
        self, runtime: Runtime, store: Store, clock: ManualClock, done: list[str]
    ) -> None:
        self.poller(runtime, done).look()
        due_of(store, store.keys.schedule, "q", 1)
        self.age(store, clock, 5.0)

        assert self.poller(runtime, done).look() == 1

        assert done == ["prune"]

    def test_a_look_learns_when_the_next_job_is_due(
        self, runtime: Runtime, store: Store, clock: ManualClock, done: list[str]
    ) -> None:
        due_in(store, clock, "a", 3.0)
        poller = self.poller(runtime, done)

        assert poller.look() == 0
        clock.time += 3.01

        assert poller.move_known() == 1

    def test_what_others_have_polled_is_left_to_them_but_not_what_was_written_since(
        self, runtime: Runtime, store: Store, clock: ManualClock, done: list[str]
    ) -> None:
        """The entries of the retry set were there when the other one polled, that of the schedule was not."""
        poller, other = self.poller(runtime, done), self.poller(runtime, done)
        store.call("ZADD", store.keys.retry, repr(clock.time + 8.0), '{"class":"X","queue":"q","args":[],"jid":"r"}')
        poller.look()
        self.age(store, clock, 5.0)
        other.look()
        self.age(store, clock, 1.0)
        poller.inbox.expect(store.keys.schedule, clock.time + 1.0)
        poller._take_written()
        due_in(store, clock, "s", 1.0)

        poller.look()
        clock.time += 5.0

        assert poller.move_known() == 1
        assert [json.loads(raw)["jid"] for raw in store.call("LRANGE", "queue:q", 0, -1)] == ["s"]
        assert other.move_known() == 1

    def test_a_duty_that_redis_refuses_holds_up_no_other_and_is_said_once(
        self, runtime: Runtime, store: Store, clock: ManualClock, done: list[str]
    ) -> None:
        told: list[str] = []
        runtime.events.listen(lambda name, fields: told.append(str(fields["error"])))

        def refuse() -> None:
            done.append("refused")
            store.call("HGET", "text", "field")

        store.call("SET", "text", "no hash")
        duties = [Duty("a", 1.0, refuse), Duty("b", 1.0, lambda: done.append("b"))]
        poller = self.poller(runtime, done, *duties)

        poller.look()
        for _ in range(12):
            self.age(store, clock, 1.0)
            poller.look()

        assert done[:2] == ["refused", "b"]
        assert done.count("b") == 13
        assert done.count("refused") == 2, "meanwhile others may try"
        assert len(told) == 1

    def test_a_backlog_holds_up_no_other_duty(
        self, runtime: Runtime, store: Store, clock: ManualClock, done: list[str], setup: Setup
    ) -> None:
        """Each batch takes three seconds here."""

        @setup.client_middleware.add
        def take_long(push: Push, proceed: Any) -> Push | None:
            if push.payload["jid"] == "0":
                self.age(store, clock, 3.0)
            return proceed()  # type: ignore[no-any-return]

        for number in range(4):
            words = [f'{{"class":"X","queue":"q","args":[{number}],"jid":"{n}"}}' for n in range(MAX_DUE)]
            store.call("ZADD", store.keys.retry, *(word for each in words for word in (number, each)))
        poller = self.poller(runtime, done, Duty("often", 6.0, lambda: done.append("often")))

        moved = poller.look()
        assert moved == 2 * MAX_DUE
        assert done == ["often"]

        while moved < 4 * MAX_DUE:
            moved += poller.move_known(poller._duties.next_look) + poller.look()
        assert done == ["often", "often"]

    def test_the_steps_of_the_start_come_first_and_are_tried_again_after_an_outage(
        self, runtime: Runtime, done: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        errors: list[Exception] = [RedisUnavailable("away")]

        def write() -> None:
            done.append("write")
            if errors:
                raise errors.pop()

        duties = [Duty("prune", 60.0, lambda: done.append("prune"))]
        poller = Poller(runtime, Engine(runtime.store, LIMITS), lambda *_: None, None, duties, first=[write])
        monkeypatch.setattr(poller, "pause", lambda seconds: done.append(f"pause {seconds:g}"))
        monkeypatch.setattr(poller, "_wait_for_look", poller.stop)
        poller.run()

        assert done == ["write", "pause 1", "write", "prune"]
