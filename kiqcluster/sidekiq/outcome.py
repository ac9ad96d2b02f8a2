"""Outcomes: what became of a unit.  Pure values; writing them is settle's work (store/engine.py).

An outcome says what to write and what to count.  `effects` are more rows for the same step: features release
locks and slots with them, so that what must agree with a job's end is written with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

__all__ = [
    "Dead",
    "Deferred",
    "Discard",
    "Done",
    "Dropped",
    "Effect",
    "Interrupted",
    "Outcome",
    "Parked",
    "Requeue",
    "Retry",
]


@dataclass(frozen=True, slots=True)
class Effect:
    """One row of settle's table of effects; it runs only if the unit's token was held.

    operation: a name in settle.lua.  key: a Redis key from keys.py.
    """

    operation: str
    key: str
    arguments: Sequence[str | bytes | float] = ()

    def __post_init__(self) -> None:
        """Raise TypeError or UnicodeEncodeError for values that cannot be sent, where middleware adds them."""
        for word in (self.operation, self.key, *self.arguments):
            if isinstance(word, str):
                word.encode()
            elif isinstance(word, bool) or not isinstance(word, bytes | int | float):
                raise TypeError(f"effect {self.operation}: {word!r} is not text, bytes or number")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Base of the outcomes.

    processed, failed: what the unit adds to Sidekiq's counters.
    """

    processed: ClassVar[bool] = False
    failed: ClassVar[bool] = False
    effects: tuple[Effect, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True, slots=True)
class Done(Outcome):
    """It ran and returned."""

    processed = True


@dataclass(frozen=True, slots=True)
class Retry(Outcome):
    """It failed and will be tried again.  at: epoch seconds."""

    payload: bytes
    at: float
    processed = True
    failed = True


@dataclass(frozen=True, slots=True)
class Dead(Outcome):
    """It failed for good, or cannot be run: it is buried, with its reason in the payload.

    counted: False for what never ran (Sidekiq counts no unparsable payload either).
    """

    payload: bytes
    at: float
    counted: bool = True

    @property
    def processed(self) -> bool:  # type: ignore[override]  # a payload that never ran counts as nothing
        return self.counted

    @property
    def failed(self) -> bool:  # type: ignore[override]  # as above
        return self.counted


@dataclass(frozen=True, slots=True)
class Discard(Outcome):
    """It failed and its options or hooks say that nothing is kept."""

    processed = True
    failed = True


@dataclass(frozen=True, slots=True)
class Requeue(Outcome):
    """It was not started: it goes back to the front of its queue as it was."""


@dataclass(frozen=True, slots=True)
class Interrupted(Outcome):
    """It was stopped while it ran, and runs again next: front of its queue, with interrupted_count raised."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class Deferred(Outcome):
    """It must not run now: schedule set, without counting as an attempt.  at: epoch seconds."""

    payload: bytes
    at: float


@dataclass(frozen=True, slots=True)
class Dropped(Outcome):
    """It was not started and never will be, without having failed: a begin row said so."""


@dataclass(frozen=True, slots=True)
class Parked(Outcome):
    """It was not started: it waits until a member leaves a set that is full.

    key: of the set (begin.lua, `enter`).  largest: how many members it may have.
    """

    key: str
    largest: int
