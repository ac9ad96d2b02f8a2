"""Outcomes: the results of units.  Pure values; settle writes them (store/engine/).

An outcome says what to write and what to count.  `effects` are more rows for the same step: features use them to
release locks and slots in the step that ends the job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

__all__ = [
    "DISCARD",
    "KILL",
    "Dead",
    "Deferred",
    "Discard",
    "Done",
    "Dropped",
    "Effect",
    "Exactly",
    "HookAnswer",
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
        """Raise TypeError or UnicodeEncodeError for values that cannot be sent, in the middleware that adds them."""
        for word in (self.operation, self.key, *self.arguments):
            if isinstance(word, str):
                word.encode()
            elif isinstance(word, bool) or not isinstance(word, bytes | int | float):
                raise TypeError(f"effect {self.operation}: {word!r} is not text, bytes or number")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Base of the outcomes.

    processed, failed: whether Sidekiq's counters count the unit.
    """

    processed: ClassVar[bool] = False
    failed: ClassVar[bool] = False
    effects: tuple[Effect, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True, slots=True)
class Done(Outcome):
    """The job ran and returned."""

    processed = True


@dataclass(frozen=True, slots=True)
class Retry(Outcome):
    """The job failed and will be tried again.  at: epoch seconds."""

    payload: bytes
    at: float
    processed = True
    failed = True


@dataclass(frozen=True, slots=True)
class Dead(Outcome):
    """The job failed for good, or cannot be run: it goes to the dead set, with the reason in its payload.

    counted: False for a payload that never ran (Sidekiq does not count unparsable payloads either).
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
    """The job failed, and its options or hooks say that nothing is kept."""

    processed = True
    failed = True


@dataclass(frozen=True, slots=True)
class Requeue(Outcome):
    """The job was not started: it goes back to the front of its queue unchanged."""


@dataclass(frozen=True, slots=True)
class Interrupted(Outcome):
    """The job was stopped while it ran: it goes to the front of its queue, with interrupted_count raised.

    to_back: it gives way, and goes behind the jobs that wait.
    """

    payload: bytes
    to_back: bool = False


@dataclass(frozen=True, slots=True)
class Deferred(Outcome):
    """The job must not run now: it goes to the schedule set, and no attempt is counted.  at: epoch seconds."""

    payload: bytes
    at: float


@dataclass(frozen=True, slots=True)
class Dropped(Outcome):
    """The job was not started and never will be, by the verdict of a feature.  It did not fail.

    payload: kept for a while in the list of dropped jobs.  at: epoch seconds.
    """

    payload: bytes = b""
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Parked(Outcome):
    """The job was not started: it waits until a member leaves a full set.

    key: of the set (begin.lua, `enter`).  largest: most members of the set, None for as many as the limit of that name
    has allowed last.  name: of a limit that may be overridden.
    """

    key: str
    largest: int | None
    name: str = ""


class HookAnswer:
    """What the hooks retry_in, retries_exhausted and interruptions_exhausted may return besides seconds."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


class Exactly(float):
    """Seconds that a hook retry_in asks for without jitter."""


DISCARD = HookAnswer("DISCARD")  # delete the job after its death handlers
KILL = HookAnswer("KILL")  # move it to the dead set now
