"""A script that fails at any of its calls, and what is there once its process is recovered (rule R5).

A scene prepares Redis and returns what runs its script.  It is played without a fault, and then with one at each call
of the script, in two ways: that call and all later ones fail, or that call alone.  Writes by `redis.pcall` fail too.
Where the product sends a failed script again, so does the scene; then the process is recovered.

The law, compared with the scene without a fault:

- no job is lost, at any time; none is there that should be gone
- no job is there twice, but where a script moves it by "write it there, then remove it here": a fault between the two
  leaves both, the other way round it would be lost
- the same locks have the same holders
- no place without a unit that holds it, no registration of a unit that is not in flight
- no counter is higher (one that cannot be written keeps no job)
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha1
from types import ModuleType
from typing import Any

import pytest

from kiqcluster.control import control_messages
from kiqcluster.control.control_messages import new_message, send
from kiqcluster.errors import RedisRefused
from kiqcluster.iterable import state
from kiqcluster.iterable.state import save_state
from kiqcluster.process.clock import SystemClock
from kiqcluster.sidekiq.outcome import Done, Dropped, Effect, Interrupted, Outcome, Retry
from kiqcluster.sidekiq.payload import Jid
from kiqcluster.store import Store, batches, cron, entry_moves, guarded_push, shard_moves
from kiqcluster.store import scripts as script_module
from kiqcluster.store.engine import begin_calls, reserve_calls, settle_calls, wait_lists
from kiqcluster.store.engine import engine as engine_module
from kiqcluster.store.engine.engine import Engine
from kiqcluster.store.engine.units import Settlement, Unit
from kiqcluster.store.engine.wait_lists import stale_hands
from kiqcluster.store.entry_moves import (
    RECORD,
    BulkPart,
    Move,
    Told,
    drop_entries,
    move_bulk,
    move_bulk_jobs,
    move_entries,
    move_jobs,
    read_due,
    record_queued,
    trim_dead,
)
from kiqcluster.store.guarded_push import GuardedJob, push_guarded
from kiqcluster.store.limits import parking, places
from kiqcluster.store.scripts import (
    BEAT,
    BEGIN,
    BULK_ENTRIES,
    BULK_JOBS,
    COPIED_BATCH,
    DUE,
    JOIN,
    MARK_CANCELLED,
    MOVE_ENTRIES,
    MOVE_JOBS,
    ONCE,
    PUSH,
    PUSH_BATCH,
    RATE,
    RECORD_JOB,
    RECOVER,
    REGISTER_HANDS,
    RETURN_WAKE_LISTS,
    SAVE_ITERATION,
    SEND,
    SETTLE,
    SKIP_TICKS,
    STALE_HANDS,
    TRIM_DEAD,
    WRITE_BATCH,
    WRITE_CRON,
    Call,
    Script,
    Word,
    run_script,
)
from tests.conformance import test_scripts as known
from tests.conformance.test_scripts import LIMITS, LOCK, MARK, ME, NOW, SLOTS, enter, locked_job, push, reserve, settle

Prepare = Callable[[Engine, Store], Callable[[], object]]
Check = Callable[[Store], object]
MOST_CALLS = 200
TICKS = "kiq:cron:ticks"
JOB = re.compile(r'^(?:.*\0)?(?:.*"jid":")?(job-\d+)', re.DOTALL)
USERS: tuple[ModuleType, ...] = (
    sys.modules[__name__],
    *(engine_module, begin_calls, reserve_calls, settle_calls, wait_lists, state),
    *(entry_moves, parking, places, cron, shard_moves, guarded_push, control_messages, batches),
)

# Reads by `redis.pcall` do not fail: what refuses them (a key of a wrong type) has tests of its own.
FAULT = """
local plan, is_broken = redis.call('HMGET', 'fault', 'calls', 'goes_on'), false
local calls_left, goes_on = tonumber(plan[1]), plan[2] == '1'
local READS = {GET=1, HGET=1, HMGET=1, HGETALL=1, HKEYS=1, HLEN=1, LLEN=1, SCARD=1, SMISMEMBER=1, TIME=1, TYPE=1,
  ZCARD=1, ZCOUNT=1, ZRANGE=1, ZRANGEBYSCORE=1, ZSCORE=1}
local function fails()
  if is_broken then return not goes_on end
  calls_left = calls_left - 1
  if calls_left >= 0 then return false end
  is_broken = true
  pcall(redis.call, 'HSET', 'fault', 'injected', 1) -- a script that only reads cannot; its caller gets the error
  return true
end
local function faulty(...)
  if fails() then error('injected fault') end
  return redis.call(...)
end
local function faulty_pcall(name, ...)
  if not READS[name] and fails() then return {err = 'ERR injected fault'} end
  return redis.pcall(name, ...)
end
"""


@dataclass(frozen=True)
class Scene:
    """A script, what prepares it and runs it, and what a fault may change.

    again: whether the product sends it again after an error.  check: more that must be as without a fault.
    excused: says of a state after lasting faults that it is fine.
    """

    name: str
    script: Script
    prepare: Prepare
    again: bool = True
    doubles: bool = False
    check: Check = field(default=lambda _: None)
    excused: Callable[[State], bool] = field(default=lambda _: False)


@dataclass(frozen=True)
class State:
    """What there is.

    jobs: how often each lies anywhere.  locks: key → holder.  members: (key, member) of the sets of places.
    registered: the same as their holders have them.  holders, in_flight: fields of units with places, and of all units.
    """

    jobs: Counter[str] = field(default_factory=Counter)
    locks: dict[str, str] = field(default_factory=dict)
    members: set[tuple[str, str]] = field(default_factory=set)
    registered: set[tuple[str, str]] = field(default_factory=set)
    holders: set[str] = field(default_factory=set)
    in_flight: set[str] = field(default_factory=set)
    counts: dict[tuple[str, str], int] = field(default_factory=dict)
    checked: object = None


@dataclass(frozen=True)
class Played:
    """A scene with a fault at one call: what was there before the script, after it, and after the recovery."""

    calls: int | None
    before: State  # empty where there is a fault
    at_once: State
    after: State


@cache
def failing(script: Script) -> Script:
    """Return the script, made to fail at the call that the key `fault` names, or at each from then on."""
    shebang, text = script.text.split("\n", 1)
    text = text.replace("redis.call(", "faulty(").replace("redis.pcall(", "faulty_pcall(")
    text = f"{shebang}\n{FAULT}" + text.replace("pcall(redis.call,", "pcall(faulty,")
    return Script(script.name, text, sha1(text.encode(), usedforsecurity=False).hexdigest())


def replace(monkeypatch: pytest.MonkeyPatch, script: Script, by: Script) -> None:
    name = next(name for name, value in vars(script_module).items() if value is script)
    for user in [each for each in USERS if hasattr(each, name)]:
        monkeypatch.setattr(user, name, by)


DUMP = """
local found = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind, value = redis.call('TYPE', key).ok
  if kind == 'string' then value = {redis.call('GET', key)} end
  if kind == 'set' then value = redis.call('SMEMBERS', key) end
  if kind == 'list' then value = redis.call('LRANGE', key, 0, -1) end
  if kind == 'zset' then value = redis.call('ZRANGE', key, 0, -1) end
  if kind == 'hash' then value = redis.call('HGETALL', key) end
  found[#found + 1] = {key, kind, value}
end
return found
"""


def state_of(store: Store, check: Check = lambda _: None) -> State:
    state = State(checked=check(store))
    for key, kind, values in store.call("EVAL", DUMP, 0):
        name, texts = key.decode(), [value.decode(errors="replace") for value in values]
        if kind == b"string":
            if name.startswith("stat:"):
                state.counts[name, ""] = int(texts[0])
            elif "lock" in name or name == MARK:
                state.locks[name] = texts[0]
        elif kind == b"set":
            if SLOTS in name or name == "other" or name.endswith(":running"):
                state.members.update((name, member) for member in texts)
        else:
            if kind == b"hash":
                value_by_field = dict(zip(texts[::2], texts[1::2], strict=True))
                read_hash(state, store, name, value_by_field)
                texts = [*value_by_field.values()]
            found = map(JOB.match, texts)
            state.jobs.update(match[1] for match in found if match)
    return state


def read_hash(state: State, store: Store, name: str, value_by_field: dict[str, str]) -> None:
    if name.startswith("kiq:inflight:"):
        state.in_flight.update(value_by_field)
    elif name.startswith("kiq:held:"):
        state.holders.update(value_by_field)
        for holder, *keys in map(json.loads, value_by_field.values()):
            state.registered.update((key, holder) for key in keys)
    elif name in (store.keys.struck, store.keys.deduplicated):
        state.counts.update({(name, word): int(count) for word, count in value_by_field.items()})


def faults_of(scene: Scene, store: Store, monkeypatch: pytest.MonkeyPatch, *, goes_on: bool) -> Iterator[Played]:
    """Play a scene without a fault (None), then with one at each call."""
    for calls in (None, *range(MOST_CALLS)):
        store.call("FLUSHALL")
        engine = Engine(store, LIMITS)
        engine.join(ME)
        run = scene.prepare(engine, store)
        before = state_of(store) if calls is None else State()
        if calls is not None:
            store.call("HSET", "fault", "calls", calls, "goes_on", int(goes_on))
            replace(monkeypatch, scene.script, failing(scene.script))
        error: RedisRefused | None = None
        try:
            run()
        except RedisRefused as refused:
            if "injected fault" not in str(refused):
                raise
            error = refused
        monkeypatch.undo()
        was_injected = bool(store.call("HEXISTS", "fault", "injected")) or error is not None
        store.call("DEL", "fault")
        if calls is not None and not was_injected:
            assert calls >= 2, "no fault was injected"
            return
        at_once = state_of(store)
        if error is not None and scene.again:
            run()
        with store.borrowed() as connection:
            engine.recover(connection, ME.identity)
        yield Played(calls, before, at_once, state_of(store, scene.check))
    pytest.fail("the script never ran to its end")


# pushes


def guarded(store: Store, rows: list[Effect], at: float | None = None) -> Callable[[], object]:
    def run() -> None:
        with store.borrowed() as connection:
            (result,) = push_guarded(connection, store.keys, [GuardedJob("default", at, b"job-1", rows)])
        if isinstance(result, RedisRefused):
            raise result

    return run


def push_rows(store: Store) -> list[Effect]:
    counted = Effect("count_refused", store.keys.deduplicated, ("X",))
    return [Effect("claim", LOCK, ("job-1", 60)), Effect("mark_refused", MARK, (60,)), counted]


def scene_push(_: Engine, store: Store) -> Callable[[], object]:
    noted = Effect("note", store.keys.history("job-1"), ("{}", 60))
    return guarded(store, [*push_rows(store), Effect("sadd", "kiq:seen", ("X",)), noted])


def scene_push_scheduled(_: Engine, store: Store) -> Callable[[], object]:
    return guarded(store, push_rows(store), NOW)


def scene_push_refused(_: Engine, store: Store) -> Callable[[], object]:
    push(store, "default", "job-2")
    store.call("SET", LOCK, "job-2")
    return guarded(store, push_rows(store))


def scene_push_tick(_: Engine, store: Store) -> Callable[[], object]:
    """A job of a cron entry, which awaits its next tick then."""
    store.call("ZADD", TICKS, 60, "e")
    tick, log = Effect("tick", TICKS, ("e", "60.0", "120.0")), Effect("log", "kiq:cron:history:e", ("run", 10))
    return guarded(store, [tick, *push_rows(store), log])


def scene_push_tick_refused(_: Engine, store: Store) -> Callable[[], object]:
    """The lock keeps the job out, and its tick is over all the same."""
    push(store, "default", "job-2")
    store.call("SET", LOCK, "job-2")
    return scene_push_tick(_, store)


def awaited(store: Store) -> object:
    return store.call("ZRANGE", TICKS, 0, -1, "WITHSCORES"), sorted(store.call("HKEYS", store.keys.cron))


def scene_skip_ticks(_: Engine, store: Store) -> Callable[[], object]:
    store.call("ZADD", TICKS, 60, "a", 60, "b", 60, "c")
    return lambda: cron.skip_ticks(store, [("a", 60.0, 120.0), ("b", 60.0, None), ("c", 5.0, 120.0)])


def scene_write_cron(_: Engine, store: Store) -> Callable[[], object]:
    store.call("HSET", store.keys.cron, "old", "{}", "same", '{"schedule":"s","tz":"UTC"}')
    store.call("ZADD", TICKS, 60, "old", 60, "same")
    same = '{"schedule":"s","tz":"UTC","args":[1]}'
    rows = [("put", "new", '{"schedule":"s"}', 180), ("put", "same", same, 180), ("remove", "old"), ("disable", "new")]
    return lambda: cron.write(store, [cron.CronRow(*row) for row in rows])


def scene_write_cron_taken_over(_: Engine, store: Store) -> Callable[[], object]:
    """The entries of an application that has ended, which another one declares."""
    old = {"on@old": '{"schedule":"s","queue":"q","application":"old"}', "off@old": '{"queue":"q","application":"old"}'}
    for identifier, raw in old.items():
        store.call("HSET", store.keys.cron, identifier, raw)
    store.call("ZADD", TICKS, 60, "on@old")
    store.call("SADD", store.keys.cron_disabled, "off@old")
    store.call("RPUSH", store.keys.cron_history("on@old"), "b", "a")
    rows = [("put", f"{name}@new", '{"schedule":"s","queue":"q"}', 180) for name in ("on", "off")]
    return lambda: cron.write(store, [cron.CronRow(*row) for row in rows], "new", ended=["old"])


def only_locks_of_the_pushed_job(state: State) -> bool:
    """The same where the job cannot be taken back: sent again, it finds its own lock."""
    return {*state.locks.values()} == {"job-1"}


def only_the_lock_of_the_pushed_job(state: State) -> bool:
    """While Redis refuses everything, the lock cannot be taken back either."""
    return not state.jobs and {*state.locks.values()} == {"job-1"}


# rates


def scene_rate(kind: str) -> Prepare:
    def prepare(_: Engine, store: Store) -> Callable[[], object]:
        return lambda: run_script(store, rate_call(store, kind, "me"))

    return prepare


def rate_call(store: Store, kind: str, holder: str) -> Call:
    return Call(RATE, [store.keys.rate(kind)], [kind, 1, "60.0", 0, holder])


def has_room(kind: str) -> Check:
    """A start more would be too many, whatever failed when the first one was counted and allowed."""
    return lambda store: (
        store.call("EXISTS", store.keys.rate(kind)) and run_script(store, rate_call(store, kind, "another")) == b"0"
    )


# claims, in the scripts that move a job


def held_unit(engine: Engine, store: Store) -> Any:
    push(store, "default", "job-1")
    (unit,) = reserve(engine, 1).units
    store.call("SET", LOCK, "job-1", "EX", 10)
    store.call("SET", MARK, "job-1", "EX", 10)
    return unit


def scene_begin_claims(engine: Engine, store: Store) -> Callable[[], object]:
    unit = held_unit(engine, store)
    store.call("DEL", MARK)
    rows = [Effect("clear", LOCK, ("job-1",)), Effect("renew", MARK, ("job-1", 50)), enter(1, "park")]
    rows.append(Effect("note", store.keys.history("job-1"), ("{}", 60)))
    return lambda: engine.begin_run(unit, rows)


def scene_settle_clears(engine: Engine, store: Store) -> Callable[[], object]:
    unit = held_unit(engine, store)
    return lambda: settle(engine, (unit, Done(effects=(Effect("clear", LOCK, ("job-1",)),))))


def scene_settle_extends(engine: Engine, store: Store) -> Callable[[], object]:
    unit = held_unit(engine, store)
    return lambda: settle(engine, (unit, Retry(b"job-1", NOW, effects=(Effect("extend", LOCK, ("job-1", 50)),))))


def lasts_long(store: Store) -> bool:
    return bool(store.call("TTL", LOCK) > 40)


def scene_settle_dropped(engine: Engine, store: Store) -> Callable[[], object]:
    """A job that a strike drops: recorded, counted, and its lock released."""
    unit = held_unit(engine, store)
    effects = (
        Effect("increment", store.keys.struck, ("3fa9c1",)),
        Effect("clear", LOCK, ("job-1",)),
        Effect("tell", store.keys.result("job-1"), ("{}", 60)),
        Effect("forget", store.keys.progress("job-1")),
        Effect("note", store.keys.history("job-1"), ("{}", 60)),
    )
    return lambda: settle(engine, (unit, Dropped(payload=b"job-1", at=NOW, effects=effects)))


def scene_settle_chain(operation: str) -> Prepare:
    """A job whose end pushes the next one of its chain, or buries it."""

    def prepare(engine: Engine, store: Store) -> Callable[[], object]:
        unit, keys = held_unit(engine, store), store.keys
        effects = {
            "lpush": (Effect("sadd", keys.queues, ("next",)), Effect("lpush", keys.queue("next"), (b"job-2",))),
            "bury": (Effect("bury", keys.dead, (repr(NOW), b"job-2", 1e9, 100)),),
        }
        return lambda: settle(engine, (unit, Done(effects=effects[operation])))

    return prepare


def scene_settle_absolves(engine: Engine, store: Store) -> Callable[[], object]:
    push(store, "default", "job-1")
    store.call("HSET", store.keys.suspects, known.digest("job-1"), 1)
    (unit,) = reserve(engine, 1).units
    assert unit.deaths == 1
    return lambda: settle(engine, (unit, Retry(b"job-1", NOW)))


def suspects(store: Store) -> object:
    return store.call("HGETALL", store.keys.suspects)


def scene_settle_counts(engine: Engine, store: Store) -> Callable[[], object]:
    push(store, "default", "job-1", "job-2")
    first, second = reserve(engine, 2).units
    return lambda: settle(engine, (first, Done()), (second, Retry(b"job-2", NOW)))


def scene_move_locked(verb: str) -> Prepare:
    """An entry of the retry set is deleted or buried; its lock is released."""

    def prepare(_: Engine, store: Store) -> Callable[[], object]:
        jobs = [locked_job(f"job-{number}") for number in (1, 2)]
        store.call("ZADD", store.keys.retry, 1, jobs[0], 2, jobs[1])
        for number in (1, 2):
            store.call("SET", store.keys.lock(f"job-{number}"), f"job-{number}")

        def run() -> None:
            moved = move_entries(store, store.keys.retry, [Move(raw, verb, "", raw) for raw in jobs], NOW, LIMITS)
            for words in moved.refusals:
                raise RedisRefused(words)

        return run

    return prepare


def scene_bulk(verb: str) -> Prepare:
    """Two entries of the retry set are moved by a bulk action."""

    def prepare(_: Engine, store: Store) -> Callable[[], object]:
        jobs = [locked_job(f"job-{number}") for number in (1, 2)]
        store.call("ZADD", store.keys.retry, 1, jobs[0], 2, jobs[1])
        for number in (1, 2):
            store.call("SET", store.keys.lock(f"job-{number}"), f"job-{number}")
        store.call("HSET", store.keys.bulk("b"), "state", "running", "owner", "me")
        part = BulkPart(store.keys.bulk("b"), "me", 10.0, "running", last=(b"1", b"the last"), looked=2, found=2)
        moves = [Move(raw, verb, "default", raw) for raw in jobs]

        def run() -> None:  # entries that Redis refuses stay, and somebody asks for them again
            moved = move_bulk(store, store.keys.retry, moves, NOW, LIMITS, part)
            if moved is not None and store.call("ZCARD", store.keys.retry):
                raise RedisRefused("injected fault: some stay")

        return run

    return prepare


def scene_delete_parked(_: Engine, store: Store) -> Callable[[], object]:
    entry = b"queue:default\0" + locked_job("job-1")
    line = store.keys.parked(store.keys.slots("X"))
    store.call("ZADD", line, 1, entry)
    store.call("SET", store.keys.lock("job-1"), "job-1")
    return lambda: drop_entries(store, [(line, entry)])


def scene_delete_jobs(_: Engine, store: Store) -> Callable[[], object]:
    jobs = [locked_job(f"job-{number}") for number in (1, 2, 3)]
    push(store, "default", *[job.decode() for job in jobs])
    for number in (1, 2, 3):
        store.call("SET", store.keys.lock(f"job-{number}"), f"job-{number}")
    return lambda: move_jobs(store, "default", "", [(job, b"") for job in jobs[:2]], (9, 0), b"mark")


def scene_bulk_jobs(to: str) -> Prepare:
    """Two of three jobs of a queue are deleted, or moved to another queue, by a bulk action."""

    def prepare(_: Engine, store: Store) -> Callable[[], object]:
        jobs = [locked_job(f"job-{number}") for number in (1, 2, 3)]
        push(store, "default", *[job.decode() for job in jobs])
        for number in (1, 2, 3):
            store.call("SET", store.keys.lock(f"job-{number}"), f"job-{number}")
        store.call("HSET", store.keys.bulk("b"), "state", "running", "owner", "me")
        part = BulkPart(store.keys.bulk("b"), "me", 10.0, "running", last=(b"2-x", b""), looked=2, found=2)
        pairs = [(job, job if to else b"") for job in jobs[:2]]
        return lambda: move_bulk_jobs(store, "default", to, pairs, [0, 1], 9, b"mark", part)

    return prepare


def scene_recover_locked(engine: Engine, store: Store) -> Callable[[], object]:
    """A process with two jobs that hold places and locks is recovered; a third job is parked."""
    push(store, "default", "job-1", "job-2")
    for unit in reserve(engine, 2).units:
        engine.begin_run(unit, [enter(5, "park"), enter(5, "park", f"{SLOTS}:other")])
        store.call("SET", f"kiq:lock:{unit.payload.decode()}", unit.payload)
    known.park(store, "job-3", queue="default")

    def run() -> object:
        with store.borrowed() as connection:
            return engine.recover(connection, ME.identity)

    return run


# membership, messages, reads


def scene_trim_dead(_: Engine, store: Store) -> Callable[[], object]:
    store.call("ZADD", store.keys.dead, NOW - 2_000, "job-1", NOW - 5, "job-2", NOW, "job-3")
    return lambda: trim_dead(store, NOW, LIMITS)


def scene_due(_: Engine, store: Store) -> Callable[[], object]:
    store.call("ZADD", store.keys.schedule, NOW - 1, "job-1", NOW + 9, "job-2")
    return lambda: read_due(store, store.keys.schedule, NOW, 10, 1_000)


def scene_return_wake_lists(engine: Engine, store: Store) -> Callable[[], object]:
    push(store, "default", "job-1")
    store.call("LPUSH", store.keys.wake("default"), "job-2", "job-3", "job-4")
    store.call("HSET", store.keys.suspects, known.digest("job-3"), 1)

    def run() -> None:
        with store.borrowed() as connection:
            engine.return_wake_lists(connection, ["default"], suspects_stay=True)

    return run


def scene_join(engine: Engine, store: Store) -> Callable[[], object]:
    store.call("DEL", store.keys.members, store.keys.beats)
    return lambda: engine.join(ME)


def scene_beat(engine: Engine, store: Store) -> Callable[[], object]:
    def run() -> object:
        with store.borrowed() as connection:
            return engine.beat(connection, [ME.identity], 1.0, 5)

    store.call("ZADD", store.keys.beats, 1, ME.identity, 1, "gone:1:a")
    return run


def scene_once(_: Engine, store: Store) -> Callable[[], object]:
    store.call("SET", "stat:x", 1)
    words: list[Word] = [7, 60, "INCRBY", 2, 1, 3, "INCRBY", 2, 1, 5]
    return lambda: run_script(store, Call(ONCE, ["record", "stat:x"], words))


def scene_register_hands(engine: Engine, store: Store) -> Callable[[], object]:
    tokens = {"default": "00000001.h000000001", "low": "00000001.h000000002"}
    return lambda: engine.register_hands(ME, tokens, dict.fromkeys(tokens, 7), 9.0)


def scene_stale_hands(engine: Engine, store: Store) -> Callable[[], object]:
    """Two processes that are gone: one is asked for, in whose list a job lies, and one is forgotten."""
    known.in_hand(engine, "job-1")
    store.call("HDEL", store.keys.members, ME.identity)
    for owner in (ME.identity, "gone:1:a"):
        store.call("HSET", store.keys.hands(owner), "gone", 1)
        store.call("ZADD", store.keys.hand_owners, 1, owner)
    return lambda: stale_hands(store)


def owners(store: Store) -> object:
    return store.call("ZRANGE", store.keys.hand_owners, 0, -1)


def scene_send(_: Engine, store: Store) -> Callable[[], object]:
    message = new_message("quiet")
    return lambda: send(store, "host:1:a", message)


def messages(store: Store) -> object:
    """Return the different messages: a reader tells one that was sent twice by its id."""
    return {*store.call("LRANGE", store.keys.control("host:1:a"), 0, -1)} != set()


def members(store: Store) -> object:
    return store.call("HKEYS", store.keys.members), store.call("ZRANGE", store.keys.beats, 0, -1)


# batches: what is counted is what is there, and a callback is pushed once

BATCH = "0" * 24
CALLBACK = b'other\0{"jid":"job-9"}'


def create(store: Store, identifier: str = BATCH, parent: str = "", history: int = 0) -> None:
    fields = {
        "history": history,
        **dict.fromkeys(("total", *batches.STATUSES), 0),
        "ttl": 1_000,
        "kept": 100,
        "on_complete": CALLBACK,
    }
    batches.create_batch(store, identifier, parent, fields)


def batch_jobs(*jids: str) -> list[batches.NewBatchJob]:
    return [batches.NewBatchJob(Jid(jid), "default", None, batch_payload(jid), (), "[]") for jid in jids]


def batch_payload(jid: str) -> bytes:
    return f'{{"class":"X","args":[],"task_id":"{BATCH}","use_task_event":true,"jid":"{jid}"}}'.encode()


def with_batch(store: Store, *jids: str, parent: str = "", history: int = 0) -> None:
    """Enqueue jobs of a batch to which no more are added.  parent: waits for this batch alone."""
    if parent:
        create(store, parent)
    create(store, parent=parent, history=history)
    if parent:
        batches.close_batch(store, parent)
    batches.push_jobs(store, BATCH, batch_jobs(*jids))
    batches.close_batch(store, BATCH)


def scene_settle_event(engine: Engine, store: Store, *, parent: str = "", history: int = 0) -> Callable[[], object]:
    """The last job of a batch ends: the counts, and what is pushed then."""
    with_batch(store, "job-1", parent=parent, history=history)
    store.call("DEL", store.keys.batches_changed, store.keys.batch_changed(BATCH))
    (unit,) = reserve(engine, 1).units
    unit_effects = (Effect("event", store.keys.batch(BATCH), ("job-1", "failed", '"no"', "")),)
    return lambda: raise_refused(engine, unit, Done(effects=unit_effects))


def raise_refused(engine: Engine, unit: Unit, outcome: Outcome) -> None:
    with engine.store.borrowed() as connection:
        refusals, _ = engine.exchange(connection, ME, 0, None, [Settlement(unit, outcome)], NOW)
    for reason in refusals.values():
        raise RedisRefused(reason)


def scene_settle_event_of_child(engine: Engine, store: Store) -> Callable[[], object]:
    return scene_settle_event(engine, store, parent="1" * 24)


def scene_begin_event(engine: Engine, store: Store) -> Callable[[], object]:
    with_batch(store, "job-1")
    (unit,) = reserve(engine, 1).units
    return lambda: engine.begin_run(unit, [Effect("working", store.keys.batch(BATCH), ("job-1", "drop"))])


def scene_push_batch(_: Engine, store: Store) -> Callable[[], object]:
    create(store)
    return lambda: batches.push_jobs(store, BATCH, batch_jobs("job-1", "job-2"))


def scene_push_event(_: Engine, store: Store) -> Callable[[], object]:
    create(store)
    return guarded(store, [Effect("event", store.keys.batch(BATCH), ("job-1", "[]")), *push_rows(store)])


def scene_create_batch(_: Engine, store: Store) -> Callable[[], object]:
    create(store, "1" * 24)
    return lambda: create(store, parent="1" * 24)


def scene_close_batch(_: Engine, store: Store) -> Callable[[], object]:
    create(store)
    return lambda: batches.close_batch(store, BATCH)


def scene_cancel_batch(_: Engine, store: Store) -> Callable[[], object]:
    create(store)
    return lambda: batches.cancel_batch(store, BATCH, "no")


def scene_cancel_running_batch(engine: Engine, store: Store) -> Callable[[], object]:
    """A batch with a job that runs: its mark stays."""
    with_batch(store, "job-1")
    (unit,) = reserve(engine, 1).units
    engine.begin_run(unit, [Effect("working", store.keys.batch(BATCH), ("job-1", "drop"))])
    return lambda: batches.cancel_batch(store, BATCH, "no")


def scene_settle_event_of_cancelled(engine: Engine, store: Store) -> Callable[[], object]:
    """The last job of a cancelled batch ends: the mark goes."""
    finish = scene_settle_event(engine, store)
    batches.cancel_batch(store, BATCH, "no")
    return finish


def scene_lose_child(_: Engine, store: Store) -> Callable[[], object]:
    """The only child of a batch has expired: the batch is complete."""
    with_batch(store, parent="1" * 24)
    store.call("DEL", store.keys.batch(BATCH))
    return lambda: batches.lose_children(store, "1" * 24, [BATCH])


def scene_mark_jobs(_: Engine, store: Store) -> Callable[[], object]:
    with_batch(store, "job-1", "job-2")
    return lambda: batches.mark_jobs(store, BATCH, ["job-1", "job-2"], "failed", '"no"')


def scene_move_event(verb: str) -> Prepare:
    def prepare(_: Engine, store: Store) -> Callable[[], object]:
        with_batch(store, "job-1")
        store.call("DEL", "queue:default")
        store.call("ZADD", "retry", 1, batch_payload("job-1"))
        move = Move(batch_payload("job-1"), verb, "", batch_payload("job-1") if verb == "bury" else b"")
        return lambda: moved(store, move)

    return prepare


def moved(store: Store, move: Move) -> None:
    _, refusals, _ = move_entries(store, "retry", [move], NOW, LIMITS)
    for reason in refusals:
        raise RedisRefused(reason)


def scene_delete_event(_: Engine, store: Store) -> Callable[[], object]:
    with_batch(store, "job-1")
    return lambda: move_jobs(store, "default", "", [(batch_payload("job-1"), b"")], (10, 0), b"mark")


def scene_copied_batch(_: Engine, store: Store) -> Callable[[], object]:
    """All of a complete batch has been copied."""
    create(store, history=1)
    batches.push_jobs(store, BATCH, batch_jobs("job-1", "job-2"))
    batches.mark_jobs(store, BATCH, ["job-1", "job-2"], "finish", "")
    batches.close_batch(store, BATCH)
    ((_, score),) = batches.read_changed_batches(store, 0, 1)
    jobs = batches.read_changes(store, BATCH, ["name"], 10).jobs
    return lambda: batches.forget_changes(store, BATCH, score, jobs)


def scene_settle_event_with_history(engine: Engine, store: Store) -> Callable[[], object]:
    return scene_settle_event(engine, store, history=1)


def batch_states(store: Store) -> object:
    """Return all fields of the batches but for times, and how many callbacks there are."""
    found = {}
    for identifier in (BATCH, "1" * 24):
        flat = [word.decode() for word in store.call("HGETALL", store.keys.batch(identifier))]
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        times = {name: "" for name in fields if name.endswith("_at")}
        times |= {name: re.sub(r"\d+\.\d{3}", "", fields[name]) for name in fields if name.startswith(":")}
        ended = store.call("ZRANGE", store.keys.batch_ended(identifier), 0, -1)
        found[identifier] = {**fields, **times}, ended, store.call("SMEMBERS", store.keys.batch_children(identifier))
    changed = store.call("SMEMBERS", store.keys.batch_changed(BATCH)), store.call("ZCARD", store.keys.batches_changed)
    marks = store.call("ZRANGE", store.keys.batches_cancelled, 0, -1)
    return found, store.call("LLEN", "queue:other"), changed, marks


def pushed_again(most: int) -> Callable[[State], bool]:
    """While Redis refuses everything, a callback cannot be taken back, nor jobs of a batch.  most: of callbacks."""

    def is_so(state: State) -> bool:
        assert isinstance(state.checked, tuple)
        return bool(state.checked[1] > most or 2 in state.jobs.values())

    return is_so


def scene_record_parked(_: Engine, store: Store) -> Callable[[], object]:
    """A parked job that somebody cancels: in the dropped jobs, and its lock is released."""
    entry = b"queue:default\0" + locked_job("job-1")
    line = store.keys.parked(store.keys.slots("X"))
    store.call("ZADD", line, 1, entry)
    store.call("SET", store.keys.lock("job-1"), "job-1")

    def run() -> None:
        moves = [Move(entry, RECORD, new=locked_job("job-1"), told=[Told("job-1", 60, b"{}")])]
        for words in move_entries(store, line, moves, NOW, LIMITS).refusals:
            raise RedisRefused(words)

    return run


def scene_record_job(_: Engine, store: Store) -> Callable[[], object]:
    """The same in a queue."""
    job = locked_job("job-1")
    push(store, "default", "job-2", job.decode(), "job-3")
    store.call("SET", store.keys.lock("job-1"), "job-1")
    return lambda: record_queued(store, "default", job, job + b" ", NOW, LIMITS, [Told("job-1", 60, b"{}")])


def scene_settle_unmarks(engine: Engine, store: Store) -> Callable[[], object]:
    """A running job that was cancelled: recorded, and its mark is removed."""
    unit = held_unit(engine, store)
    store.call("ZADD", store.keys.cancelled, 1, "job-1")
    effects = (Effect("unmark", store.keys.cancelled, ("job-1",)),)
    return lambda: settle(engine, (unit, Dropped(payload=b"job-1", at=NOW, effects=effects)))


def scene_begin_marked(engine: Engine, store: Store) -> Callable[[], object]:
    """A job with a mark may not begin."""
    unit = held_unit(engine, store)
    store.call("ZADD", store.keys.cancelled, 1, "job-1")
    rows = [Effect("unmarked", store.keys.cancelled, ("job-1", "drop")), enter(1, "park")]
    return lambda: engine.begin_run(unit, rows)


def scene_mark_cancelled(_: Engine, store: Store) -> Callable[[], object]:
    store.call("HSET", store.keys.iteration("job-1"), "c", "1")
    keys = [store.keys.cancelled, store.keys.iteration("job-1")]
    return lambda: run_script(store, Call(MARK_CANCELLED, keys, ["job-1", 60, 10, 30, ""]))


def scene_keep_mark(_: Engine, store: Store) -> Callable[[], object]:
    store.call("ZADD", store.keys.cancelled, SystemClock.now() - 50, "job-1")
    keys = [store.keys.cancelled, store.keys.iteration("job-1")]
    return lambda: run_script(store, Call(MARK_CANCELLED, keys, ["job-1", 60, 10, 60, "known"]))


def marked(store: Store) -> object:
    return store.call("ZRANGE", store.keys.cancelled, 0, -1), store.call("HKEYS", store.keys.iteration("job-1"))


def scene_settle_iteration(engine: Engine, store: Store) -> Callable[[], object]:
    """An iterable job that a stop interrupts: back in its queue, and its state is written."""
    unit = held_unit(engine, store)
    effects = (Effect("iteration", store.keys.iteration("job-1"), ("2", b"7", "1.5", 60)),)
    return lambda: settle(engine, (unit, Interrupted(b"job-1", effects=effects)))


def scene_settle_iterated(engine: Engine, store: Store) -> Callable[[], object]:
    """One that has ended: its state is removed."""
    unit = held_unit(engine, store)
    store.call("HSET", store.keys.iteration("job-1"), "ex", "1", "c", "6")
    return lambda: settle(engine, (unit, Done(effects=(Effect("forget", store.keys.iteration("job-1")),))))


def scene_save_iteration(engine: Engine, store: Store) -> Callable[[], object]:
    """A running job, in a hand list, saves where it is."""
    unit = known.in_hand(engine, "job-1")
    store.call("HSET", store.keys.iteration("job-1"), "ex", "1", "c", "6")
    return lambda: save_state(store, unit, "job-1", ("2", b"7", "1.5", 60))


def iterations(store: Store) -> object:
    key = store.keys.iteration("job-1")
    return store.call("HGETALL", key), store.call("TTL", key) > 0


NO_AGAIN = {"reserve", "bounce", "resync_in_hand", "recover_in_hand", "sweep"}
SCENES = [
    *[
        Scene(scene.name, scene.script, scene.prepare, scene.name not in NO_AGAIN, doubles=True)
        for scene in known.SCENES
    ],
    Scene("push", PUSH, scene_push, excused=only_the_lock_of_the_pushed_job),
    Scene("push_scheduled", PUSH, scene_push_scheduled, excused=only_the_lock_of_the_pushed_job),
    Scene("push_refused", PUSH, scene_push_refused),
    Scene("push_tick", PUSH, scene_push_tick, doubles=True, check=awaited, excused=only_locks_of_the_pushed_job),
    Scene("push_tick_refused", PUSH, scene_push_tick_refused, doubles=True, check=awaited),
    Scene("skip_ticks", SKIP_TICKS, scene_skip_ticks, check=awaited),
    Scene("write_cron", WRITE_CRON, scene_write_cron, check=awaited),
    Scene("write_cron taken over", WRITE_CRON, scene_write_cron_taken_over, check=awaited),
    *[
        Scene(f"rate_{kind}", RATE, scene_rate(kind), check=has_room(kind))
        for kind in ("fixed_window", "sliding_window", "leaky_bucket")
    ],
    Scene("begin_claims", BEGIN, scene_begin_claims),
    Scene("settle_clears", SETTLE, scene_settle_clears),
    Scene("settle_extends", SETTLE, scene_settle_extends, check=lasts_long),
    Scene("settle_dropped", SETTLE, scene_settle_dropped, doubles=True),
    Scene("settle_chain", SETTLE, scene_settle_chain("lpush"), doubles=True),
    Scene("settle_chain_buries", SETTLE, scene_settle_chain("bury")),
    Scene("settle_absolves", SETTLE, scene_settle_absolves, check=suspects),
    Scene("settle_counts", SETTLE, scene_settle_counts),
    Scene("delete_locked", MOVE_ENTRIES, scene_move_locked("drop")),
    Scene("bury_locked", MOVE_ENTRIES, scene_move_locked("bury")),
    Scene("bulk_delete", BULK_ENTRIES, scene_bulk("drop")),
    Scene("bulk_bury", BULK_ENTRIES, scene_bulk("bury")),
    Scene("bulk_push", BULK_ENTRIES, scene_bulk("push"), doubles=True),
    Scene("bulk_delete_jobs", BULK_JOBS, scene_bulk_jobs("")),
    Scene("bulk_move_jobs", BULK_JOBS, scene_bulk_jobs("other"), doubles=True),
    Scene("delete_parked", MOVE_ENTRIES, scene_delete_parked),
    Scene("delete_jobs", MOVE_JOBS, scene_delete_jobs),
    Scene("record_parked", MOVE_ENTRIES, scene_record_parked, doubles=True),
    Scene("record_job", RECORD_JOB, scene_record_job, doubles=True),
    Scene("settle_unmarks", SETTLE, scene_settle_unmarks, doubles=True),
    Scene("settle_iteration", SETTLE, scene_settle_iteration, doubles=True),
    Scene("settle_iterated", SETTLE, scene_settle_iterated),
    Scene("save_iteration", SAVE_ITERATION, scene_save_iteration, doubles=True, check=iterations),
    Scene("begin_marked", BEGIN, scene_begin_marked),
    Scene("mark_cancelled", MARK_CANCELLED, scene_mark_cancelled, check=marked),
    Scene("keep_mark", MARK_CANCELLED, scene_keep_mark, check=marked),
    Scene("recover_locked", RECOVER, scene_recover_locked, doubles=True),
    Scene("trim_dead", TRIM_DEAD, scene_trim_dead),
    Scene("due", DUE, scene_due),
    Scene("return_wake_lists", RETURN_WAKE_LISTS, scene_return_wake_lists),
    Scene("join", JOIN, scene_join, check=members),
    Scene("beat", BEAT, scene_beat, check=members),
    Scene("once", ONCE, scene_once),
    Scene("register_hands", REGISTER_HANDS, scene_register_hands, check=owners),
    Scene("stale_hands", STALE_HANDS, scene_stale_hands, check=owners),
    Scene("send", SEND, scene_send, check=messages),
    Scene("settle_event", SETTLE, scene_settle_event, check=batch_states, excused=pushed_again(1)),
    Scene("settle_event_of_child", SETTLE, scene_settle_event_of_child, check=batch_states, excused=pushed_again(2)),
    Scene("settle_event_history", SETTLE, scene_settle_event_with_history, check=batch_states, excused=pushed_again(1)),
    Scene("copied_batch", COPIED_BATCH, scene_copied_batch, check=batch_states),
    Scene("begin_event", BEGIN, scene_begin_event, check=batch_states),
    Scene("push_batch", PUSH_BATCH, scene_push_batch, check=batch_states, excused=pushed_again(1)),
    Scene("push_event", PUSH, scene_push_event, check=batch_states, excused=only_locks_of_the_pushed_job),
    Scene("create_batch", WRITE_BATCH, scene_create_batch, check=batch_states),
    Scene("close_batch", WRITE_BATCH, scene_close_batch, check=batch_states, excused=pushed_again(1)),
    Scene("cancel_batch", WRITE_BATCH, scene_cancel_batch, check=batch_states, excused=pushed_again(1)),
    Scene("cancel_running_batch", WRITE_BATCH, scene_cancel_running_batch, check=batch_states),
    Scene(
        "settle_event_of_cancelled",
        SETTLE,
        scene_settle_event_of_cancelled,
        check=batch_states,
        excused=pushed_again(1),
    ),
    Scene("lose_child", WRITE_BATCH, scene_lose_child, check=batch_states, excused=pushed_again(1)),
    Scene("mark_jobs", WRITE_BATCH, scene_mark_jobs, check=batch_states, excused=pushed_again(1)),
    Scene("delete_event", MOVE_ENTRIES, scene_move_event("drop"), check=batch_states, excused=pushed_again(1)),
    Scene("bury_event", MOVE_ENTRIES, scene_move_event("bury"), check=batch_states, excused=pushed_again(1)),
    Scene("delete_event_in_queue", MOVE_JOBS, scene_delete_event, check=batch_states, excused=pushed_again(1)),
]


# They only read; or they are written again: with the next beat, a second later, when a duty is due again, or by whoever
# still wants a lock.
WITHOUT_SCENES = {
    *("find_entries", "find_held", "find_jobs", "read_queue", "read_rate", "read_batch", "publish", "lock"),
    *("progress", "scan_entries", "scan_jobs"),
    "change_bulk",  # changes who works on a bulk action
    "claim_duties",
}


def test_every_script_that_changes_what_jobs_need_has_a_scene() -> None:
    names = {each.name for each in vars(script_module).values() if isinstance(each, Script)}

    assert names - {scene.script.name for scene in SCENES} == WITHOUT_SCENES


@pytest.mark.parametrize(
    "goes_on",
    [pytest.param(True, id="one_call_fails"), pytest.param(False, id="all_later_calls_fail", marks=pytest.mark.full)],
)
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
def test_a_fault_at_any_call_breaks_no_law(
    scene: Scene, goes_on: bool, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [*breaches(scene, faults_of(scene, store, monkeypatch, goes_on=goes_on), goes_on=goes_on)]
    assert found == []


def breaches(scene: Scene, faults: Iterator[Played], *, goes_on: bool) -> Iterator[object]:
    """Yield the number of the call whose fault breaks the law, and what is wrong."""
    clean = next(faults)
    kept = {*clean.before.jobs} & {*clean.after.jobs}
    most = {job: number * (2 if scene.doubles else 1) for job, number in clean.after.jobs.items()}
    for played in faults:
        calls, after = played.calls, played.after
        if not goes_on and scene.excused(after):
            continue
        if lost := kept - {*played.at_once.jobs} | {*clean.after.jobs} - {*after.jobs}:
            yield calls, "lost", lost
        if more := {job: number for job, number in after.jobs.items() if number > most.get(job, 0)}:
            yield calls, "too often", more
        if clean.after.locks != after.locks:
            yield calls, "locks", clean.after.locks, after.locks
        if stray := after.members - after.registered - clean.after.members:
            yield calls, "places without a holder", stray
        if gone := clean.after.members - after.members:
            yield calls, "places lost", gone
        if not after.holders <= after.in_flight:
            yield calls, "holders of nothing", after.holders - after.in_flight
        # A counter that cannot be written keeps no unit.  A unit that is settled again counts again.
        most_counted = {name: count * (2 if scene.doubles else 1) for name, count in clean.after.counts.items()}
        if more_counts := {name: count for name, count in after.counts.items() if count > most_counted.get(name, 0)}:
            yield calls, "counted too often", more_counts
        if clean.after.checked != after.checked:
            yield calls, "checked", clean.after.checked, after.checked
