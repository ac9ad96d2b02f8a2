"""Values of the engine: members, the units that they hold, and the answers of its operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from kiqcluster.sidekiq.outcome import Effect, Outcome
from kiqcluster.store.scripts import Call

__all__ = [
    "ALL_SUSPECT",
    "ANY_DEATHS",
    "GO",
    "Beat",
    "BeginVerdict",
    "Exchange",
    "Limits",
    "Member",
    "Refusals",
    "Reserved",
    "Settlement",
    "Unit",
]

Refusals = dict[str, str]  # token → Redis' error, of units that stay held
# Queue, in the order of preference → two limits: how large the batch may become by units of this queue in its turn, and
# after every queue has had its turn.  0 only empties its wake list.
Limits = Mapping[str, tuple[int, int]]

ANY_DEATHS = 1_000_000  # more than any suspect has
ALL_SUSPECT = ("*",)  # when the running units are not known


@dataclass(frozen=True, slots=True)
class Member:
    """A process' right to reserve.

    record: `boot-id pid-namespace pid create-time`, by which other processes on the host see whether it is alive.
    """

    identity: str
    epoch: int
    record: str

    @property
    def padded_epoch(self) -> str:
        return f"{self.epoch:08d}"

    def raised(self) -> Member:
        return Member(self.identity, self.epoch + 1, self.record)


@dataclass(slots=True)
class Unit:
    """A reserved payload.

    token: by which `identity` holds it.  deaths: number of processes that died while they ran it.
    reserved_at: monotonic seconds of the process that holds it.
    holds: whether it may hold keys besides its payload, which are released with it.
    is_in_hand: whether it may still lie in the hand list of that token (lua/hand_lists.lua).
    asked: its Begin, while somebody asks whether it may run, or until its thread knows the answer (begin_calls.py).
    """

    queue: str
    payload: bytes
    token: str
    identity: str
    deaths: int = 0
    reserved_at: float = inf
    holds: bool = False
    is_in_hand: bool = False
    asked: Any = field(default=None, repr=False, compare=False)

    @property
    def field(self) -> str:
        """Return its place in the in-flight hash of `identity`."""
        return f"{self.token}:{self.queue}"


@dataclass(slots=True)
class Settlement:
    """A unit and its outcome."""

    unit: Unit
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class BeginVerdict:
    """Whether a unit may run.

    action: go; lost, when others have recovered it; or drop, park or defer.  seconds: of a defer.
    row: the first row that was not true.  reason: who says so, for the payload of a deferred job.
    limit: name of the rate limit that has promised the job a time.
    """

    action: str
    seconds: float = 0.0
    row: Effect | None = None
    reason: str = ""
    limit: str = ""


GO = BeginVerdict("go")


@dataclass(frozen=True, slots=True)
class Reserved:
    """The result of a reserve.

    resting: queues that were left alone, paused or broken.  fenced: whether others have recovered this member; then it
    holds nothing.  refusal: Redis' error when the reserve, or one of its queues, was refused.
    is_refused: whether the reserve as a whole was refused.
    """

    units: list[Unit]
    resting: frozenset[str]
    fenced: bool = False
    refusal: str = ""
    is_refused: bool = False


@dataclass(frozen=True, slots=True)
class Beat:
    """The result of a beat.

    at: the server's time, epoch seconds.  strangers: identities that have beaten and are no longer members.
    silent: identity → score of each member that this caller should recover.
    complaint: about a broken key that does not stop the beat, "" if there is none.
    """

    at: float
    strangers: frozenset[str]
    silent: dict[str, int]
    complaint: str = ""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A settle and reserve that was sent, with the data needed to read its replies."""

    calls: Sequence[Call]
    done: Sequence[Settlement]
    member: Member
    call: int
    limits: Limits | None
    now: float
