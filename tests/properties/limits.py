"""Limits and guarded pushes, played by a feature of the model's own (ADR 18).

Only a few limited jobs run at once: a begin row enters a set, or has the job parked.  Another limit may be in force for
a while.  Beside it, a job may be cancelled, and the feature may be closed for a while: rows that drop and defer.  A
unique job is pushed by a claim.

1. begin_rows   what must be true before a limited job runs
2. LimitState   what Redis knows of places and parked jobs, and what must be true of it at any time
3. RULES        each rule of these scripts, and how it is taken out
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from hashlib import sha1
from importlib import import_module
from unittest.mock import patch

from kiqcluster.errors import StoreError
from kiqcluster.sidekiq.outcome import Effect
from kiqcluster.store.engine.engine import Engine
from kiqcluster.store.engine.units import BeginVerdict, Unit
from kiqcluster.store.scripts import Script

__all__ = [
    "CLOSED",
    "GRANTS",
    "INDEX",
    "LOCK",
    "NAME",
    "NO_LIMIT",
    "OVERRIDES",
    "PARKED",
    "RULES",
    "SLOTS",
    "LimitState",
    "Violation",
    "begin_rows",
    "cancelled",
    "taken_out",
]

SLOTS, PARKED, CLOSED = "kiq:test:slots", "kiq:test:slots:parked", "kiq:test:closed"
GRANTS, NAME, OVERRIDES = "kiq:test:slots:turns", "test", "kiq:limits"
NO_LIMIT = 1_000
LOCK, INDEX = "kiq:test:lock", "kiq:test:index"


class Violation(AssertionError):
    """A job is lost, doubled or stranded, or a rule about it is broken."""


def cancelled(job: bytes) -> str:
    """Return the key that cancels a job."""
    return f"kiq:test:cancelled:{job.decode()}"


def is_limited(payload: bytes) -> bool:
    return payload.startswith(b"limited")


def begin_rows(payload: bytes, largest: int) -> list[Effect]:
    """Return the begin rows of a job; none unless it is limited.  largest: jobs that may run at once."""
    if not is_limited(payload):
        return []
    return [
        Effect("absent", cancelled(payload.rstrip(b"+")), ("drop",)),
        Effect("absent", CLOSED, ("defer 1",)),
        Effect("enter", SLOTS, (largest, NAME, "park")),
    ]


@dataclass
class LimitState:
    """What is in Redis at one moment.  holders: members of the set, "identity/token".  held: the same by identity."""

    holders: set[str] = field(default_factory=set)
    held: dict[str, set[str]] = field(default_factory=dict)
    parked: list[bytes] = field(default_factory=list)
    index: set[bytes] = field(default_factory=set)
    lock: bytes = b""

    def read(self, key: str, values: Sequence[bytes]) -> Counter[bytes]:
        """Take a key in; return the payloads that are in it."""
        if key == SLOTS:
            self.holders = {value.decode() for value in values}
        elif key == PARKED:
            self.parked = [value.partition(b"\0")[2] for value in values]
        elif key == INDEX:
            self.index = set(values)
        elif key == LOCK:
            self.lock = values[0]
        elif key.startswith("kiq:held:"):
            identity = key.removeprefix("kiq:held:")
            self.held[identity] = {name.partition(b":")[0].decode() for name in values[::2]}
            for value in values[1::2]:
                holder, *names = json.loads(value)
                if names != [SLOTS] or holder.partition("/")[0] != identity:
                    raise Violation(f"{key} has {value!r}")
        return Counter(self.parked) if key == PARKED else Counter()

    def check(
        self, inflight: dict[str, set[str]], running: set[str], largest: int, forgotten: Collection[str] = ()
    ) -> None:
        """Raise Violation unless each place has a unit in flight.  running: holders that must have a place.

        forgotten: holders that may have a place without a unit until the next resync: a fail-over may have lost that
        they gave it back, and their outcome does not give it back once more.
        """
        if len(self.holders) > largest:
            raise Violation(f"too many hold a place: {sorted(self.holders)}")
        for identity, tokens in self.held.items():
            unheld = {each for each in tokens - inflight.get(identity, set()) if f"{identity}/{each}" not in forgotten}
            if unheld:
                raise Violation(f"a place is held by {identity} for {sorted(unheld)}, which is not in flight")
        registered = {f"{identity}/{token}" for identity, tokens in self.held.items() for token in tokens}
        if self.holders != registered:
            raise Violation(f"a place is held that nobody releases, or not held: {sorted(self.holders ^ registered)}")
        if len(running) > largest:
            raise Violation(f"too many run at once: {sorted(running)}")
        if running - self.holders:
            raise Violation(f"run without a place: {sorted(running - self.holders)}")

    def check_pushes(self, unique: set[bytes], expired: int) -> None:
        """Raise Violation unless each claim let one job pass.  expired: claims that have ended."""
        if self.index != unique:
            raise Violation(f"pushed without its rows, or the other way round: {sorted(self.index ^ unique)}")
        if len(unique) != expired + bool(self.lock):
            raise Violation(f"{len(unique)} jobs were pushed under {expired + bool(self.lock)} claims")


# rules taken out


CALLED_BY = {
    **dict.fromkeys(("BEGIN", "RELEASE"), "engine.begin_calls"),
    "SETTLE": "engine.settle_calls",
    "PUSH": "guarded_push",
}  # script → module, if not engine.py
MOVERS = ("SETTLE", "RECOVER", "RESYNC")
# Rule → the scripts that have it, the text of the rule, the text without it, and the harm.
RULES: dict[str, tuple[Sequence[str], str, str, str]] = {
    "begin counts places": (
        ["BEGIN"],
        "not has_line and redis.call('SCARD', key) < largest then return true end",
        "true then return true end",
        "too many hold a place|overtaken",
    ),
    "begin asks whether the unit is held": (
        ["BEGIN"],
        "if not payload then return {'LOST'} end",
        "payload = payload or ''",
        "not in flight",
    ),
    "begin registers the place": (
        ["BEGIN"],
        "register_hold(KEYS[2], ARGV[1], holder, key)",
        "",
        "a place is held that nobody releases|stranded",  # only the sweep finds it
    ),
    "settle releases": (
        ["SETTLE"],
        "release = function(key, _, _, field) release_holds(key, field) end",
        "release = function() end",
        "not in flight",
    ),
    "recovery releases": (
        ["RECOVER"],
        "local held = redis.call('EXISTS', KEYS[5]) == 1 and KEYS[5]",
        "local held = false",
        "not in flight",
    ),
    "resync releases": (
        ["RESYNC"],
        "local holds = redis.call('EXISTS', KEYS[3]) == 1 and KEYS[3]",
        "local holds = false",
        "not in flight",
    ),
    "a release sends a parked job back": (
        (*MOVERS, "RELEASE"),
        "unpark(row[index], 1)",
        "--",
        "stranded",
    ),
    "parking looks for room": (
        ["SETTLE"],
        "fill(key, limit_in_force(key, arguments[2], arguments[3]) or 0)",
        "",
        "stranded",
    ),
    "a job that is refused lets another have its grant": (
        ["BEGIN"],
        "fill(row[2], row[4])",
        "",
        "stranded",
    ),
    "a job that did not begin gives up its grant": (
        ["BEGIN"],
        "end_grant(row[2], digest, is_parked)",
        "",
        "stranded",
    ),
    "who comes later parks behind": (
        ["BEGIN"],
        "and line_length(key) == 0",
        "",
        "overtaken",
    ),
    "a place is kept for a job on its way": (
        ["BEGIN"],
        "return largest - members - (type(granted) == 'number' and granted or 0)",
        "return largest - members",
        "overtaken",
    ),
    "a job that is parked again keeps its position": (
        ["SETTLE"],
        "local known = redis.pcall('HGET', positions_at(key), digest)",
        "local known",
        "overtaken",
    ),
    "a limit may be overridden": (
        ["BEGIN"],
        "if override and tonumber(ends) > server_ms() then return tonumber(override), is_new end",
        "",
        "too many hold a place|overtaken",
    ),
    "a push asks its guards": (
        ["PUSH"],
        "if guards[operation] and not guards[operation](key, arguments) then",
        "if false then",
        "claims",
    ),
    "a push writes its rows": (
        ["PUSH"],
        "sadd = function(key, arguments) redis.call('SADD', key, arguments[1]) end",
        "sadd = function() end",
        "without its rows",
    ),
    "a begin without a reply may hold": ([], "", "", "not in flight"),
}


def without(script: Script, text: str, instead: str) -> Script:
    assert script.text.count(text) == 1, f"{script.name}.lua has no longer, or more than once: {text}"
    changed = script.text.replace(text, instead)
    return Script(script.name, changed, sha1(changed.encode(), usedforsecurity=False).hexdigest())


BEGIN_RUN = Engine.begin_run


def _begin_forgotten(engine: Engine, unit: Unit, rows: Sequence[Effect]) -> BeginVerdict:
    """Begin, and forget what a lost reply may have told."""
    try:
        return BEGIN_RUN(engine, unit, rows)
    except StoreError:
        unit.holds = False
        raise


@contextmanager
def taken_out(rule: str) -> Iterator[None]:
    """Run without a rule."""
    names, text, instead, _ = RULES[rule]
    with ExitStack() as stack:
        for name in names:
            module = f"kiqcluster.store.{CALLED_BY.get(name, 'engine.engine')}"
            script = getattr(import_module(module), name)
            stack.enter_context(patch(f"{module}.{name}", without(script, text, instead)))
        if not names:
            stack.enter_context(patch.object(Engine, "begin_run", _begin_forgotten))
        yield
