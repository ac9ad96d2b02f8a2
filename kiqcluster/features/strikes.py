"""Strikes: an operator defers or drops the jobs of a class, or with an argument, for a while (`kiqctl strike`).

server   on_begin: a verdict for a job that a strike is about; on_end: counts it

Redis holds the strikes; each process reads them with its heartbeat, so one acts within 10 s everywhere.
Price: nothing for a class that no strike is about; no round trip otherwise.
Runs in: processor threads; the heartbeat's thread (`apply`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kiqcluster.application.registry import Definition
from kiqcluster.features.hooks.job_end import JobEnd
from kiqcluster.process.clock import Clock, SystemClock
from kiqcluster.process.durations import MAX_DURATION_SECONDS
from kiqcluster.process.runtime import Run
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.outcome import Deferred, Dropped, Effect
from kiqcluster.sidekiq.payload import MAX_EPOCH_SECONDS, Payload
from kiqcluster.store.engine.units import BeginVerdict

__all__ = ["ACTIONS", "MAX_STRIKES", "MAX_STRIKE_BYTES", "STRIKES", "Strike", "Strikes"]

MAX_STRIKES = 100  # at a time; each heartbeat reads all of them, and a few more (publish.lua)
MAX_STRIKE_BYTES = 10_000  # of one strike in Redis; workers do not read a larger one
MAX_ERRORS = 5  # told of at a beat
ACTIONS = ("defer", "drop")
MAX_POSITION_DIGITS = 9  # of an argument


@dataclass(frozen=True, slots=True)
class Strike:
    """A rule about jobs.

    id: by which it is removed.  name: of the class, "" for any.  arguments: name of a parameter, or its position from 0
    → its value; a job that is meant has all of them.  action: defer or drop.  delay: seconds until a deferred job is
    tried again.  until: epoch seconds when the strike ends.  by: who added it.  reason: in words, may be empty.
    """

    id: str
    name: str
    action: str
    until: float
    delay: float = 0.0
    arguments: Mapping[str, Any] = field(default_factory=dict)
    by: str = ""
    reason: str = ""

    @classmethod
    def read(cls, identifier: bytes, raw: bytes) -> Strike:
        """Return a strike as Redis holds it.  Raises ValueError for what is not one."""
        try:
            found = ruby_json.decode(raw)
            strike = cls(identifier.decode(), **found)
            is_valid = strike._is_valid()
        except (TypeError, ValueError, ruby_json.Undecodable) as error:
            raise ValueError(f"{raw[:100]!r} in kiq:strikes is not a strike ({error})") from error
        if not is_valid:
            raise ValueError(
                f"{raw[:100]!r} in kiq:strikes is not a strike; remove it: kiqctl strike remove {strike.id}"
            )
        return strike

    def _is_valid(self) -> bool:
        """Return whether all fields are such that a job can be judged by them: anybody may have written them."""
        return (
            all(isinstance(each, str) for each in (self.name, self.by, self.reason))
            and self.action in ACTIONS
            and isinstance(self.arguments, dict)
            and _is_within(self.until, MAX_EPOCH_SECONDS)
            and _is_within(self.delay, MAX_DURATION_SECONDS)
        )

    def encoded(self) -> bytes:
        """Return the value that Redis holds under its id."""
        words = ("name", "action", "until", "delay", "arguments", "by", "reason")
        return ruby_json.encode({word: getattr(self, word) for word in words})

    def is_about(self, name: str, arguments: Sequence[Any], parameters: Sequence[str]) -> bool:
        """Return whether a job is meant.  parameters: the names of its arguments, in order."""
        if self.name not in ("", name):
            return False
        for key, value in self.arguments.items():
            at = parameters.index(key) if key in parameters else _position(key)
            if at is None or at >= len(arguments) or arguments[at] != value or type(arguments[at]) is not type(value):
                return False
        return True


def _is_within(number: object, largest: float) -> bool:
    """Return whether a value is a number from 0 to `largest`, which an integer of any length may not be."""
    return type(number) in (int, float) and 0 <= number <= largest  # type: ignore[operator]  # it is a number


def _position(key: str) -> int | None:
    """Return the position that a key names, None if it is none."""
    return int(key) if key.isdecimal() and len(key) <= MAX_POSITION_DIGITS else None


class Strikes:
    """The server half: the strikes that this process knows."""

    name = "strike"
    keys: frozenset[str] = frozenset()

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._raw: tuple[Mapping[bytes, bytes], str] = {}, ""
        self._strikes: tuple[Strike, ...] = ()

    def apply(self, raw: Mapping[bytes, bytes], why: str = "") -> tuple[bool, list[ValueError]]:
        """Use the strikes that Redis holds; return whether they have changed, and errors about what is none.

        why: these are not all, "" if they are.
        """
        if (raw, why) == self._raw:
            return False, []
        strikes, errors = list[Strike](), list[ValueError]()
        if why:
            errors.append(ValueError(f"strikes: {why}; those that are not read have no effect"))
        for identifier, value in sorted(raw.items()):
            try:
                strikes.append(Strike.read(identifier, value))
            except ValueError as error:
                errors.append(error)
        self._raw, self._strikes = (raw, why), tuple(strikes)
        return True, errors[:MAX_ERRORS]

    def is_used_by(self, definition: Definition) -> bool:
        return any(each.name in ("", definition.name) for each in self._strikes)

    def asks_ahead(self, _definition: Definition) -> bool:
        return True

    def on_begin(self, run: Run) -> Iterable[Effect] | BeginVerdict:
        strike = self._about(run.job.name, run.payload, tuple(run.job.signature.parameters))
        if strike is None:
            return ()
        return BeginVerdict(strike.action, strike.delay, reason=f"{self.name}:{strike.id}")

    def on_end(self, end: JobEnd) -> Iterable[Effect]:
        """Count a job that a strike kept from running."""
        outcome = end.outcome
        if not isinstance(outcome, Dropped | Deferred):
            return ()
        entry = ruby_json.decode(outcome.payload) if outcome.payload else {}
        by = entry.get("dropped_by") if isinstance(outcome, Dropped) else entry.get("deferred_by")
        if not isinstance(by, str) or not by.startswith(f"{self.name}:"):
            return ()
        return [Effect("increment", end.keys.struck, (by.partition(":")[2],))]

    def on_end_failed(self, end: JobEnd, _error: BaseException) -> Iterable[Effect]:
        return self.on_end(end)

    def _about(self, name: str, payload: Payload, parameters: Sequence[str]) -> Strike | None:
        now = self._clock.now()
        for each in self._strikes:
            if each.until > now and each.is_about(name, payload["args"], parameters):
                return each
        return None


STRIKES = Strikes()
