"""Settle calls: outcomes of units → calls of settle.lua, and its replies → refusals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import sha1
from typing import Any

from kiqcluster.sidekiq.keys import STAT_TTL_SECONDS, Keys, utc_date
from kiqcluster.sidekiq.outcome import (
    Dead,
    Deferred,
    Done,
    Dropped,
    Effect,
    Interrupted,
    Outcome,
    Parked,
    Requeue,
    Retry,
)
from kiqcluster.store.engine.units import Refusals, Settlement, Unit
from kiqcluster.store.entry_moves import DeadSetLimits
from kiqcluster.store.scripts import SETTLE, Call, Word, row_words, sliced
from kiqcluster.store.wire import ErrorReply

__all__ = [
    "DROPPED_SECONDS",
    "FIXED_SETTLE_KEYS",
    "MAX_DROPPED_JOBS",
    "MAX_OUTCOMES",
    "SettleCalls",
    "read_refusals",
]

MAX_OUTCOMES = 200  # of one settle script, without units that are done, which cost little
MAX_DROPPED_JOBS, DROPPED_SECONDS = 10_000, 7 * 86_400  # of the log of dropped jobs
FIXED_SETTLE_KEYS = 5  # keys of a settle that are the same for all outcomes


class SettleCalls:
    """Makes the calls that settle units, with the keys of one store and the limits of its dead set."""

    def __init__(self, keys: Keys, limits: DeadSetLimits) -> None:
        self._keys = keys
        self._limits = limits

    def make(self, done: Sequence[Settlement], now: float) -> Iterator[Call]:
        """Yield the calls that settle these units, at least one per identity.

        Units of a fenced identity may be mixed with those of its successor.
        """
        identity: str | None = None
        found: dict[str, tuple[list[str], list[Settlement]]] = {}
        for settlement in done:
            outcome, unit = settlement.outcome, settlement.unit
            if unit.identity != identity:
                identity = unit.identity
                fields, others = found.setdefault(identity, ([], []))
            is_plain = not (outcome.effects or unit.deaths or unit.holds or unit.is_in_hand)
            if is_plain and type(outcome) is Done:  # to remove and count
                fields.append(f"{unit.token}:{unit.queue}")  # unit.field, without a call for each job
            else:
                others.append(settlement)
        for identity, (fields, others) in found.items():
            light = fields
            for some in sliced(others, MAX_OUTCOMES) or [()]:
                yield self._call(identity, light, some, now)
                light = []

    def _call(self, identity: str, done: Sequence[str], others: Sequence[Settlement], now: float) -> Call:
        date = utc_date(now)
        stats = [self._keys.processed, self._keys.processed_on(date), self._keys.failed, self._keys.failed_on(date)]
        keys = [self._keys.inflight(identity), *stats]
        index_by_key: dict[str, int] = {}
        arguments: list[Word] = [STAT_TTL_SECONDS, len(done), *done]
        for settlement in others:
            outcome, unit = settlement.outcome, settlement.unit
            effects = (*self._consequences(unit, outcome), *outcome.effects)
            if unit.holds:
                effects = (*effects, Effect("release", self._keys.held(identity)))
            arguments += (unit.field, int(outcome.processed), int(outcome.failed), len(effects))
            arguments += row_words(effects, keys, index_by_key)
        return Call(SETTLE, keys, arguments)

    def _consequences(self, unit: Unit, outcome: Outcome) -> tuple[Effect, ...]:
        """Return the rows of the table of effects that an outcome needs."""
        queue = self._keys.queue(unit.queue)
        if unit.deaths and not isinstance(outcome, Requeue | Parked):  # these have not run it
            absolved = Effect("absolve", self._keys.suspects, (sha1(unit.payload, usedforsecurity=False).hexdigest(),))
            return (absolved, *self._consequences(replace(unit, deaths=0), outcome))
        match outcome:
            case Retry(payload=payload, at=at):
                return (Effect("zadd", self._keys.retry, (repr(at), payload)),)
            case Dead(payload=payload, at=at):
                limits = self._limits
                return (Effect("bury", self._keys.dead, (repr(at), payload, limits.timeout, limits.largest)),)
            case Requeue():
                # A suspect goes where only a reserve finds it; from the queue it might be run beside others.
                if unit.deaths:
                    return (Effect("give_back_suspect", self._keys.wake(unit.queue), (queue,)),)
                return (Effect("give_back", queue),)
            case Interrupted(payload=payload, to_back=to_back):
                return (Effect("lpush" if to_back else "rpush", queue, (payload,)),)
            case Deferred(payload=payload, at=at):
                return (Effect("zadd", self._keys.schedule, (repr(at), payload)),)
            case Dropped(payload=payload, at=at) if payload:
                return (
                    Effect("record", self._keys.dropped, (repr(at), payload, DROPPED_SECONDS, MAX_DROPPED_JOBS + 1)),
                )
            case Parked(key=key, largest=largest, name=name):
                return (Effect("park", key, (queue, "" if largest is None else largest, name)),)
        return ()


def read_refusals(replies: Sequence[Any], done: Sequence[Settlement]) -> Refusals:
    """Return token → reason of the units that settle.lua could not write."""
    refusals: Refusals = {}
    for reply in replies:
        if isinstance(reply, ErrorReply):  # the whole script failed; the units it wrote are not known
            return {settlement.unit.token: str(reply) for settlement in done}
        tokens = [field.decode(errors="replace").partition(":")[0] for field in reply[1][::2]]
        refusals.update(zip(tokens, [words.decode(errors="replace") for words in reply[1][1::2]], strict=True))
    return refusals
