"""The engine's Redis half: the operations of docs/engine.md as typed calls.

join       become a member, before the first reserve (R1)
exchange   settle a batch and reserve a batch, in one round trip (R2, R4)
has_work   look whether a reserve would be of use
settle     settle alone; may be sent again
resync     after a lost reply: fence, and give back what the caller does not hold (R3)
recover    end a membership, one's own or a dead one's, and give its units back (R7)
beat       say that a process lives, and see who else does
move_due   schedule and retry set → queues (moves.py)

The worker decides when to call them; every loss and fence is theirs to see, so nothing here retries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha1
from math import inf
from typing import Any

from kiqcluster.clock import utc_date
from kiqcluster.errors import RedisRefused
from kiqcluster.keys import STAT_TTL, Keys
from kiqcluster.outcome import Dead, Deferred, Done, Effect, Interrupted, Outcome, Requeue, Retry
from kiqcluster.store.connection import Link, Store
from kiqcluster.store.moves import DeadSetLimits, Move, move_entries
from kiqcluster.store.scripts import (
    BEAT,
    JOIN,
    RECOVER,
    RESERVE,
    RESYNC,
    SETTLE,
    Call,
    Word,
    begin_scripts,
    finish_scripts,
    run_scripts,
)

__all__ = [
    "ALL_SUSPECT",
    "ANY_DEATHS",
    "DEFERRAL",
    "DeadSetLimits",
    "Engine",
    "Exchange",
    "Limits",
    "Member",
    "Refusals",
    "Reserved",
    "Settlement",
    "Unit",
]

Refusals = dict[str, str]  # token → Redis' words, of units that stay held
# Queue, in the order of preference → how many units a batch may hold in all when one is taken from it: in its turn, and
# once all queues have had theirs.  0 only empties its wake list.
Limits = Mapping[str, tuple[int, int]]

LARGEST_BATCH = 1_000_000  # bytes at which a reserve stops (it holds at least one unit)
LOOK_TIMEOUT = 1.0  # seconds that a look at the queues may take; who leads after it waits for longer
SUSPECT_TTL = 72 * 3_600  # seconds that suspects are remembered after the last death
ANY_DEATHS = 1_000_000  # more than any suspect was at
ALL_SUSPECT = ("*",)  # where nobody knows which units were running
RECOVER_BATCH = 1_000  # units that one recover script gives back
DEFERRAL = 60.0  # seconds until a due entry is looked at again that its queue refuses


@dataclass(frozen=True, slots=True)
class Member:
    """A process' right to reserve.

    record: `boot-id pid-namespace pid create-time`, by which others on the host see whether it lives.
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

    token: by which `identity` holds it.  deaths: processes that died while they ran it.
    reserved_at: monotonic seconds, for whoever holds it; until then, just now.
    """

    queue: str
    payload: bytes
    token: str
    identity: str
    deaths: int = 0
    reserved_at: float = inf

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
class Reserved:
    """What a reserve brought.

    resting: queues that were left alone, paused or broken.  fenced: others have recovered this member; it holds
    nothing any more.  refusal: Redis' words when it, or one of the queues, could not be read.
    """

    units: list[Unit]
    resting: frozenset[str]
    fenced: bool = False
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A settle and reserve that was sent, and what it takes to read its replies."""

    calls: Sequence[Call]
    done: Sequence[Settlement]
    member: Member
    call: int
    limits: Limits | None


class Engine:
    """The scripts, called with the keys and arguments of one store."""

    def __init__(self, store: Store, limits: DeadSetLimits) -> None:
        self.store = store
        self._keys: Keys = store.keys
        self._limits = limits

    def join(self, member: Member) -> None:
        """Enter the membership.  May be sent again before the first reserve.  One round trip."""
        arguments = [member.identity, f"{member.padded_epoch} {member.record}"]
        with self.store.borrowed() as link:
            (reply,) = run_scripts(link, [Call(JOIN, [self._keys.members, self._keys.beats], arguments)])
        if isinstance(reply, RedisRefused):
            raise reply

    def exchange(
        self,
        link: Link,
        member: Member,
        call: int,
        limits: Limits | None,
        done: Sequence[Settlement],
        now: float,
        *,
        most_deaths: int = ANY_DEATHS,
    ) -> tuple[Refusals, Reserved | None]:
        """Settle `done` and reserve units from the queues of `limits`, in its order.

        call: a number that grows with each reserve of this epoch.  limits: see Limits; None skips the reserve.
        most_deaths: that a suspect may have been at which is among the units, 0 for none; it comes alone.
        Returns what Redis refused to settle, and what was reserved: each stands for itself.
        One round trip, O(settlements + queues + units).  Raises RedisUnavailable, ReplyLost.
        """
        return self.finish(link, self.begin(link, member, call, limits, done, now, most_deaths=most_deaths))

    def begin(
        self,
        link: Link,
        member: Member,
        call: int,
        limits: Limits | None,
        done: Sequence[Settlement],
        now: float,
        *,
        most_deaths: int = ANY_DEATHS,
    ) -> Exchange:
        """Send an exchange; `finish` comes next on that link, from whichever thread."""
        calls = [*self._settle_calls(done, now)]
        if limits is not None:
            calls.append(self._reserve_call(member, call, limits, most_deaths))
        begin_scripts(link, calls)
        return Exchange(calls, done, member, call, limits)

    def finish(self, link: Link, sent: Exchange) -> tuple[Refusals, Reserved | None]:
        """Return what an exchange that was sent has brought."""
        replies = finish_scripts(link, sent.calls)
        if sent.limits is None:
            return _read_refusals(replies, sent.done), None
        reserved = _read_reserved(replies.pop(), sent.member, sent.call, list(sent.limits))
        return _read_refusals(replies, sent.done), reserved

    def has_work(self, queues: Iterable[str]) -> bool:
        """Return whether anything lies in these queues or in their wake lists.  One command.  Raises StoreError."""
        keys = [key for queue in queues for key in (self._keys.queue(queue), self._keys.wake(queue))]
        if not keys:
            return False
        with self.store.borrowed() as link:
            (found,) = link.exchange([("EXISTS", *keys)], timeout=LOOK_TIMEOUT)
        if isinstance(found, RedisRefused):
            raise found
        return bool(found)

    def settle(self, link: Link, done: Sequence[Settlement], now: float) -> int:
        """Write outcomes; return how many tokens were still held.  May be sent again.  One round trip.

        Raises StoreError; after a RedisRefused, all units but the refused ones are settled.
        """
        replies = run_scripts(link, list(self._settle_calls(done, now)))
        for reason in _read_refusals(replies, done).values():
            raise RedisRefused(reason)
        return sum(reply[0] for reply in replies)

    def resync(self, link: Link, member: Member, raised: Member, held: Iterable[str]) -> int | None:
        """Raise the epoch and give back units that the caller does not hold.

        raised: the member with an epoch higher than that of every resync sent before, so that none of those can arrive
        late and take away what was reserved since.
        Returns the number of units, or None when the member is fenced; the caller goes on as `raised`.
        May be sent again, as said.  One round trip.
        """
        keys = [self._keys.members, self._keys.inflight(member.identity)]
        arguments = [
            member.identity,
            member.padded_epoch,
            raised.padded_epoch,
            self._keys.queue(""),
            *held,
        ]
        (reply,) = run_scripts(link, [Call(RESYNC, keys, arguments)])
        if isinstance(reply, RedisRefused):
            raise reply
        return None if reply[0] == b"FENCED" else int(reply[1])

    def recover(self, link: Link, identity: str, running: Iterable[str] = (), beat: str | None = None) -> int | None:
        """End a membership and give its units back; return how many.  One round trip per 1 000 units.

        running: tokens of the units that may have killed the process, ALL_SUSPECT where nobody knows.
        beat: the one that was seen standing still, None where the process is known to be gone.
        Returns None, and has changed nothing, when the beat has moved since.
        """
        recovered, left, refused, words = 0, 1, 0, b""
        keys = [self._keys.members, self._keys.inflight(identity), self._keys.beats, self._keys.suspects]
        arguments: list[Word] = [identity, self._keys.queue(""), RECOVER_BATCH, SUSPECT_TTL, beat or "", *running]
        while left:
            call = Call(RECOVER, keys, arguments)
            (reply,) = run_scripts(link, [call])
            if isinstance(reply, RedisRefused):
                raise reply
            if reply[0] == b"ALIVE":
                return None
            given, left, refused, words = reply
            recovered += given
        if refused:
            raise RedisRefused(f"{words.decode()} ({refused} units of {identity} stay in flight)")
        return recovered

    def beat(self, link: Link, mine: Iterable[str]) -> dict[str, str]:
        """Say that these processes live; return what moves while others do: identity → beat.  One round trip."""
        call = Call(BEAT, [self._keys.members, self._keys.beats], list(mine))
        (reply,) = run_scripts(link, [call])
        if isinstance(reply, RedisRefused):
            raise reply
        words = [word.decode() for word in reply]
        return dict(zip(words[::2], words[1::2], strict=True))

    def members(self) -> dict[str, str]:
        """Return identity → record of every member, epoch cut off.  One round trip."""
        flat = self.store.call("HGETALL", self._keys.members)
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return {identity.decode(): record.decode().partition(" ")[2] for identity, record in pairs}

    def move_due(self, source: str, entries: Sequence[Move], now: float) -> int:
        """Move entries that are still there and due; return how many.  One round trip.

        Raises StoreError; after a RedisRefused, those that were not refused have moved all the same.
        """
        later = now + DEFERRAL
        moved, refusals = move_entries(self.store, source, entries, now, self._limits, highest=now, refused_until=later)
        for words in refusals:
            raise RedisRefused(words)
        return len(moved)

    # calls

    def _reserve_call(self, member: Member, call: int, limits: Limits, most_deaths: int) -> Call:
        keys = [self._keys.members, self._keys.inflight(member.identity), self._keys.paused, self._keys.suspects]
        arguments: list[Word] = [member.identity, member.padded_epoch, f"{call:010d}", LARGEST_BATCH, most_deaths]
        for queue, (turn, rest) in limits.items():
            keys += (self._keys.wake(queue), self._keys.queue(queue))
            arguments += (queue, turn, rest)
        return Call(RESERVE, keys, arguments)

    def _settle_calls(self, done: Sequence[Settlement], now: float) -> Iterator[Call]:
        """Yield one call per identity: units of a fenced identity may still be among those of its successor."""
        by_identity: dict[str, list[Settlement]] = {}
        for settlement in done:
            by_identity.setdefault(settlement.unit.identity, []).append(settlement)
        for identity, settlements in by_identity.items():
            yield self._settle_call(identity, settlements, now)

    def _settle_call(self, identity: str, settlements: Sequence[Settlement], now: float) -> Call:
        date = utc_date(now)
        stats = [self._keys.processed, self._keys.processed_on(date), self._keys.failed, self._keys.failed_on(date)]
        keys = [self._keys.inflight(identity), *stats]
        index_by_key: dict[str, int] = {}
        done: list[str] = []
        others: list[Word] = []
        for settlement in settlements:
            outcome, unit = settlement.outcome, settlement.unit
            if type(outcome) is Done and not outcome.effects and not unit.deaths:
                done.append(f"{unit.token}:{unit.queue}")  # unit.field, without a call for each job
                continue
            effects = (*self._consequences(unit, outcome, now), *outcome.effects)
            others += (unit.field, int(outcome.processed), int(outcome.failed), len(effects))
            for effect in effects:
                if effect.key not in index_by_key:
                    keys.append(effect.key)
                    index_by_key[effect.key] = len(keys)
                others += (effect.operation, index_by_key[effect.key], len(effect.arguments), *effect.arguments)
        return Call(SETTLE, keys, [STAT_TTL, len(done), *done, *others])

    def _consequences(self, unit: Unit, outcome: Outcome, now: float) -> tuple[Effect, ...]:
        """Return an outcome as rows of the table of effects."""
        queue = self._keys.queue(unit.queue)
        if unit.deaths and not isinstance(outcome, Requeue):
            absolved = Effect("absolve", self._keys.suspects, (sha1(unit.payload, usedforsecurity=False).hexdigest(),))
            return (absolved, *self._consequences(replace(unit, deaths=0), outcome, now))
        match outcome:
            case Retry(payload=payload, at=at):
                return (Effect("zadd", self._keys.retry, (repr(at), payload)),)
            case Dead(payload=payload, at=at):
                return (self._bury(payload, at, now),)
            case Requeue():
                return (Effect("give_back", queue),)
            case Interrupted(payload=payload):
                return (Effect("rpush", queue, (payload,)),)
            case Deferred(payload=payload, at=at):
                return (Effect("zadd", self._keys.schedule, (repr(at), payload)),)
        return ()

    def _bury(self, payload: bytes, at: float, now: float) -> Effect:
        cutoff = repr(now - self._limits.timeout)
        return Effect("bury", self._keys.dead, (repr(at), payload, cutoff, self._limits.largest))


def _read_reserved(reply: Any, member: Member, call: int, queues: Sequence[str]) -> Reserved:
    if isinstance(reply, RedisRefused):
        return Reserved([], frozenset(), refusal=str(reply))
    if reply[0] == b"FENCED":
        return Reserved([], frozenset(), fenced=True)
    head, identity = f"{member.padded_epoch}.{call:010d}.", member.identity
    units: list[Unit] = []
    for at in range(4, len(reply), 2):
        queue, payloads = queues[reply[at]], reply[at + 1]
        first = len(units) + 1
        units += [Unit(queue, payload, f"{head}{index:05d}", identity) for index, payload in enumerate(payloads, first)]
    if units:
        units[0].deaths = reply[3]
    refusal = next((f"{queues[at]}: {words.decode()}" for at, words in zip(*reply[1:3], strict=True) if words), "")
    return Reserved(units, frozenset(queues[index] for index in reply[1]), refusal=refusal)


def _read_refusals(replies: Sequence[Any], done: Sequence[Settlement]) -> Refusals:
    """Return token → reason of the units that settle.lua could not write."""
    refusals: Refusals = {}
    for reply in replies:
        if isinstance(reply, RedisRefused):  # the script as a whole: which of the units it wrote is not known
            return {settlement.unit.token: str(reply) for settlement in done}
        tokens = [field.decode(errors="replace").partition(":")[0] for field in reply[1][::2]]
        refusals.update(zip(tokens, [words.decode(errors="replace") for words in reply[1][1::2]], strict=True))
    return refusals
