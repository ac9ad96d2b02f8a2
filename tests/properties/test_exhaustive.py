"""The core of the rules with every state visited: two processes, two units, and each fault at every moment.

The faults of the core: one reply that is lost, or a command that arrives late; one freeze, of a process or of the host;
one death.  Whoever is handed a silent member recovers it.  A blackout (an outage, a fail-over, a clock that was set) is
tried beside each of them.  The state machine is small_model.py; the last test compares its scripts with those of
store/lua.  The random walks of test_rules.py go further, with the real scripts, but do not see every state.
"""

from __future__ import annotations

from random import Random

import pytest

from kiqcluster.sidekiq.outcome import Done
from kiqcluster.store import Store
from kiqcluster.store.engine.engine import Engine
from kiqcluster.store.engine.units import Member, Settlement, Unit
from kiqcluster.store.entry_moves import DeadSetLimits
from tests.properties import small_model
from tests.properties.small_model import DEATH, Identity, Server, Violation, explore, first_state

TICK = 1_000.0  # seconds
SILENCE = 4.5 * TICK  # of which a third is longer than a tick, and shorter than two
ROW = str(round(1_000 * SILENCE))
STEPS = 400
SHORT = [("lost",), ("freeze",), ("blackout", "kill")]
LONG = [
    ("freeze", "kill"),
    ("blackout", "freeze"),
    ("lost", "blackout"),
    ("lost", "freeze"),
    ("lost", "freeze", "kill"),
]


@pytest.mark.parametrize("faults", SHORT, ids=" ".join)
def test_no_state_has_a_unit_lost_doubled_or_stuck(faults: tuple[str, ...]) -> None:
    print(f"{explore(first_state(faults)):,} states")


@pytest.mark.full
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("faults", LONG, ids=" ".join)
def test_no_state_of_the_whole_core_has_either(faults: tuple[str, ...]) -> None:
    print(f"{explore(first_state(faults)):,} states")


@pytest.mark.parametrize(
    ("rule", "faults", "harm"),
    [
        ("R2", ("lost",), "stuck"),
        ("R3", ("lost",), "stuck"),
        ("R4", ("lost",), "in 2 places"),
        ("R8 window", ("blackout",), "lives, and was recovered"),
        ("R8 row", ("blackout",), "lives, and was recovered"),
        ("R8 score", ("freeze",), "lives, and was recovered"),
        ("R8 audit", ("kill",), "members that nobody is"),
        ("fork", ("fork", "kill"), "lives|places|stuck|members"),
    ],
)
def test_without_one_rule_a_state_has(rule: str, faults: tuple[str, ...], harm: str) -> None:
    with pytest.raises(Violation, match=harm):
        explore(first_state(faults), rule)


# the scripts of the model and those of the engine


class Real:
    """The engine, called as the model's functions are."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._engine = Engine(store, DeadSetLimits(1, 1.0))
        store.call("LPUSH", "queue:q", *(unit for unit in (0, 1)))

    def join(self, identity: Identity) -> None:
        self._engine.join(Member(name(identity), 1, "boot ns 1 1"))

    def reserve(self, identity: Identity, token: tuple[int, int]) -> bool:
        member = Member(name(identity), token[0], "boot ns 1 1")
        with self._store.borrowed() as connection:
            _, reserved = self._engine.exchange(connection, member, token[1], {"q": (1, 1)}, [], 1.0)
        assert reserved is not None
        return reserved.fenced

    def settle(self, identity: Identity, token: tuple[int, int], unit: int) -> None:
        done = Unit("q", str(unit).encode(), f"{token[0]:08d}.{token[1]:010d}.00001", name(identity))
        with self._store.borrowed() as connection:
            self._engine.settle(connection, [Settlement(done, Done())], 1.0)

    def resync(self, identity: Identity, known: int, raised: int, tokens: frozenset[tuple[int, int]]) -> bool:
        old, new = (Member(name(identity), epoch, "boot ns 1 1") for epoch in (known, raised))
        held = [f"{epoch:08d}.{call:010d}.00001" for epoch, call in tokens]
        with self._store.borrowed() as connection:
            return self._engine.resync(connection, old, new, held) is None

    def recover(self, identity: Identity) -> None:
        with self._store.borrowed() as connection:
            self._engine.recover(connection, name(identity))

    def beat(self, identity: Identity) -> bool:
        with self._store.borrowed() as connection:
            return bool(self._engine.beat(connection, [name(identity)], SILENCE, server="s").strangers)

    def audit(self) -> None:
        self._store.call("DEL", "kiq:audit")
        with self._store.borrowed() as connection:
            self._engine.beat(connection, [])

    def age(self) -> None:
        flat = self._store.call("ZRANGE", "kiq:beats", 0, -1, "WITHSCORES")
        for identity, score in zip(flat[::2], flat[1::2], strict=True):
            self._store.call("ZADD", "kiq:beats", float(score) - 1_000 * TICK, identity)
        if row := self._store.call("HGET", "kiq:watch", ROW):
            moved = (int(each) - round(1_000 * TICK) for each in row.split()[1:])
            self._store.call("HSET", "kiq:watch", ROW, "s {} {}".format(*moved))

    def server(self) -> Server:
        """Return what is in Redis in the words of the model; its units are done that are nowhere."""
        read = self._store.call
        now = int(read("TIME")[0])
        members = read("HGETALL", "kiq:members")
        scores = read("ZRANGE", "kiq:beats", 0, -1, "WITHSCORES")
        held = set()
        for key in read("KEYS", "kiq:inflight:*"):
            flat = read("HGETALL", key)
            for field, payload in zip(flat[::2], flat[1::2], strict=True):
                epoch, call, _ = field.decode().split(".")
                held.add((identity_of(key), (int(epoch), int(call)), int(payload)))
        queue = tuple(int(unit) for unit in read("LRANGE", "queue:q", 0, -1))
        records = zip(members[::2], members[1::2], strict=True)
        places = [*queue, *(unit for _, _, unit in held)]
        return Server(
            queue,
            frozenset((identity_of(each), int(record.split()[0])) for each, record in records),
            frozenset(held),
            (int(0 not in places), int(1 not in places)),
            frozenset(
                (identity_of(each), min(DEATH, round((now - float(score) / 1_000) / TICK)))
                for each, score in zip(scores[::2], scores[1::2], strict=True)
            ),
            self._row(now),
        )

    def _row(self, now: int) -> tuple[int, int] | None:
        if (row := self._store.call("HGET", "kiq:watch", ROW)) is None:
            return None
        since, last = (round((now - int(each) / 1_000) / TICK) for each in row.split()[1:])
        return None if last > 1 else (min(DEATH, since), last)


def name(identity: Identity) -> str:
    return f"host:{identity[0]}:{identity[1]}"


def identity_of(raw: bytes) -> Identity:
    _, number, generation = raw.decode().rsplit(":", 2)
    return int(number), int(generation)


def test_the_scripts_of_the_model_do_what_the_real_ones_do(store: Store, seed: str) -> None:
    print(f"KIQ_SEED={seed}")
    rng = Random(seed)
    model, real = Server((1, 0), frozenset(), frozenset(), (0, 0), frozenset()), Real(store)
    seen: set[Server] = set()

    for _ in range(STEPS):
        identity, token = (rng.randrange(2), 0), (rng.randint(1, 3), rng.randint(1, 3))
        match rng.choice(("join", "reserve", "reserve", "settle", "resync", "recover", "beat", "audit", "age")):
            case "join":
                model, _ = small_model.join(model, identity), real.join(identity)
            case "reserve":
                if any(each[:2] == (identity, token) for each in model.held):
                    continue  # a call number comes once
                model, _, is_fenced = small_model.reserve(model, identity, token)
                assert real.reserve(identity, token) == is_fenced
            case "settle":
                if rng.random() < 0.9:  # or the walk would end soon
                    continue
                unit = next((each[2] for each in model.held if each[:2] == (identity, token)), 0)
                model, _ = small_model.settle(model, identity, token, unit), real.settle(identity, token, unit)
            case "resync":
                known, raised = token[0], rng.randint(1, 4)
                tokens = frozenset({token} if rng.random() < 0.5 else ())
                model, is_fenced = small_model.resync(model, identity, known, raised, tokens)
                assert real.resync(identity, known, raised, tokens) == is_fenced
            case "recover":
                left = 1
                while left:
                    model, left = small_model.recover(model, identity)
                real.recover(identity)
            case "beat":
                model, is_stranger = small_model.beat(model, identity)
                assert real.beat(identity) == is_stranger
            case "audit":
                model, _ = small_model.audit(model), real.audit()
            case "age":
                model, _ = small_model.age(model), real.age()
        seen.add(model)
        assert real.server() == model

    assert len(seen) > 20
