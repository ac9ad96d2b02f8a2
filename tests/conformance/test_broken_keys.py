"""A key of a wrong type beside the units keeps none of them from being fetched, begun, settled or given back.

The keys of the units themselves (queue, hash in flight, members, where an outcome goes) are not among these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kiqcluster.errors import RedisRefused
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
from kiqcluster.store import Store
from kiqcluster.store.engine.engine import Engine
from kiqcluster.store.engine.units import Member, Unit
from tests.conformance.test_scripts import ME, NOW, engine, inflight, push, queue, reserve, settle

__all__ = ["engine"]  # the fixture

OTHER = Member("host:2:bbbbbbbbbbbb", 1, "boot ns 2 2.00")
SLOTS, RUNNING, LOCK, MARKED = "kiq:slots:Sync", "kiq:rate:r:running", "kiq:lock:a", "kiq:lock:a:marked"
ROWS = [
    Effect("enter", SLOTS, (2, "Sync", "park")),
    Effect("clear", LOCK, ("jid",)),
    Effect("renew", MARKED, ("jid", 60)),
    Effect("note", "kiq:history:jid", ("{}", 60)),
]
KEYS: dict[str, Callable[[Store], str]] = {
    "suspects": lambda store: store.keys.suspects,
    "held": lambda store: store.keys.held(ME.identity),
    "beats": lambda store: store.keys.beats,
    "audit": lambda store: store.keys.audit,
    "hand_owners": lambda store: store.keys.hand_owners,
    "hands": lambda store: store.keys.hands(ME.identity),
    "paused": lambda store: store.keys.paused,
    "queues": lambda store: store.keys.queues,
    "wake": lambda store: store.keys.wake("default"),
    "limits": lambda store: store.keys.limits,
    "parked_sets": lambda store: store.keys.parked_sets,
    "line": lambda store: store.keys.parked(SLOTS),
    "grants": lambda store: store.keys.grants(SLOTS),
    "positions": lambda store: store.keys.positions(SLOTS),
    "rates": lambda store: store.keys.rates,
    "lock": lambda store: LOCK,
    "mark": lambda store: MARKED,
    "history": lambda store: store.keys.history("jid"),
    "processed": lambda store: store.keys.processed,
}
OUTCOMES: dict[str, Outcome] = {
    "done": Done(),
    "discard": Discard(),
    "retry": Retry(b"r", NOW),
    "dead": Dead(b"d", NOW),
    "deferred": Deferred(b"w", NOW),
    "interrupted": Interrupted(b"i"),
    "requeue": Requeue(),
    "parked": Parked(SLOTS, 2, "Sync"),
    "locked": Done(effects=(Effect("clear", LOCK, ("jid",)), Effect("extend", MARKED, ("jid", 60)))),
    "iterated": Interrupted(b"i", to_back=True, effects=(Effect("iteration", MARKED, ("1", "7", "0.5", 60)),)),
    "ended": Done(effects=(Effect("forget", MARKED),)),
    "noted": Done(effects=(Effect("note", "kiq:history:jid", ("{}", 60)),)),
    "told": Done(effects=(Effect("tell", MARKED, ("{}", 60)),)),
    "forgotten": Done(effects=(Effect("forget", MARKED),)),
    "counted": Done(effects=(Effect("increment", "kiq:struck", ("s",)), Effect("pass_on", SLOTS, (2, "Sync")))),
    "handed": Done(effects=(Effect("hand_on", LOCK, ("jid", MARKED, "next", 60, "queues", "queue:x", "x", "p")),)),
}


UNITS = ["plain", "suspect", "holding"]
# Each key meets each second outcome in the short form, and the other way round; all three of them in the long one.
SETTLED = [
    pytest.param(unit, broken, name, marks=[] if (row + column) % (2 * len(UNITS)) == 2 * kind else pytest.mark.full)
    for kind, unit in enumerate(UNITS)
    for row, broken in enumerate(KEYS)
    for column, name in enumerate(OUTCOMES)
    if (name, broken) != ("parked", "line")  # begin does not have it parked
]


def spoil(store: Store, name: str) -> None:
    key = KEYS[name](store)
    store.call("DEL", key)
    store.call("LPUSH" if name in ("audit", "lock", "mark", "processed") else "SET", key, "of a wrong type")


def suspects_of(store: Store) -> list[str]:
    """Return what waits in the wake list, where it is one."""
    key = store.keys.wake("default")
    is_list = store.call("TYPE", key) == b"list"
    return [each.decode() for each in store.call("LRANGE", key, 0, -1)] if is_list else []


@pytest.fixture(params=KEYS)
def broken(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=UNITS)
def unit(request: pytest.FixtureRequest, engine: Engine, store: Store) -> Unit:
    push(store, "default", "a")
    (unit,) = reserve(engine, 1).units
    if request.param == "suspect":
        unit.deaths = 1
    elif request.param == "holding":
        assert engine.begin_run(unit, [ROWS[0]]).action == "go"
    return unit


def test_it_is_fetched(engine: Engine, store: Store, broken: str) -> None:
    spoil(store, broken)
    push(store, "default", "a")
    with store.borrowed() as connection:
        _, reserved = engine.exchange(connection, ME, 1, {"default": (1, 1)}, [], NOW)

    assert reserved is not None
    assert [each.payload for each in reserved.units] == [b"a"]


def test_it_begins(engine: Engine, store: Store, broken: str) -> None:
    push(store, "default", "a")
    (unit,) = reserve(engine, 1).units
    spoil(store, broken)

    if broken == "held":  # it could not be given back what it takes; the worker puts it off, and another one may run it
        with pytest.raises(RedisRefused, match="WRONGTYPE"):
            engine.begin_run(unit, ROWS)
        assert settle(engine, (unit, Deferred(b"w", NOW))) == 1
    else:
        assert engine.begin_run(unit, ROWS).action == "go"


def test_where_a_line_is_broken_it_is_refused_instead_of_parked(engine: Engine, store: Store) -> None:
    push(store, "default", "a", "b")
    first, second = reserve(engine, 2).units
    row = Effect("enter", SLOTS, (1, "Sync", "park"))
    spoil(store, "line")

    assert engine.begin_run(first, [row]).action == "go"
    with pytest.raises(RedisRefused, match=f"WRONGTYPE {SLOTS}:parked"):  # the worker puts it off
        engine.begin_run(second, [row])


@pytest.mark.parametrize(("unit", "broken", "name"), SETTLED, indirect=["unit", "broken"])
def test_it_is_settled(engine: Engine, store: Store, unit: Unit, broken: str, name: str) -> None:
    spoil(store, broken)

    assert settle(engine, (unit, OUTCOMES[name])) == 1
    assert inflight(store) == []


def test_it_is_recovered(engine: Engine, store: Store, unit: Unit, broken: str) -> None:
    spoil(store, broken)

    with store.borrowed() as connection:
        assert engine.recover(connection, ME.identity, [unit.token]) == 1
    assert inflight(store) == []
    assert queue(store) + suspects_of(store) == ["a"]


def test_it_is_given_back_by_a_resync(engine: Engine, store: Store, unit: Unit, broken: str) -> None:
    spoil(store, broken)

    with store.borrowed() as connection:
        assert engine.resync(connection, ME, replace(ME, epoch=2), []) == (1, 0)
    assert inflight(store) == []
    assert queue(store) + suspects_of(store) == ["a"]


def test_others_join_and_beat(engine: Engine, store: Store, broken: str) -> None:
    if broken == "beats":
        pytest.skip("the beats themselves; docs/concepts/recovery.md says what follows")
    spoil(store, broken)

    engine.join(OTHER)
    with store.borrowed() as connection:
        engine.beat(connection, [OTHER.identity])

    assert OTHER.identity in engine.members()
    assert store.call("ZSCORE", store.keys.beats, OTHER.identity) is not None
