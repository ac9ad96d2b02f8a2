"""Locate: looks for one job by its id wherever it may be in a Redis, a while at a time.

held      the processes that run it, or hold it
locate    retries, schedule, dropped jobs, lines of parked jobs, queues, dead jobs: from a position on, until the time
          is over.  The answer says where to go on
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kiqcluster.api._store import CLOCK
from kiqcluster.api.bulk.look import Budget
from kiqcluster.api.bulk.state import SETS
from kiqcluster.api.limits import ParkedJob
from kiqcluster.api.processes import Work, read_commands, read_work, with_progress
from kiqcluster.api.queues import QueuedJob
from kiqcluster.api.records import JobRecord, is_verbatim
from kiqcluster.api.sets import SortedEntry
from kiqcluster.process.clock import Clock
from kiqcluster.store import Store
from kiqcluster.store.limits import parking
from kiqcluster.store.scripts import FIND_HELD, FIND_JOBS, Call, read_scripts_each
from kiqcluster.store.search import Place, scan_entries

__all__ = ["Found", "Located", "Position", "held", "locate", "read_position"]

PROCESSES_PER_TRIP = 500
HELD_CALLS_PER_TRIP = 250
JOBS_PER_TRIP, QUEUES_PER_TRIP = 1_000, 100  # of queues that are searched in one round trip
OVERLAP_ENTRIES, OVERLAP_JOBS = 50, 16  # read again, since others before them may have gone meanwhile
SET_ORDER = ("retry", "schedule", "dropped")
PARKED, QUEUE, DEAD = "parked", "queue", "dead"


@dataclass(frozen=True, slots=True)
class Position:
    """Where a look goes on.  kind: of the place; "" for the beginning.  name: of a queue or line.  at: within it."""

    kind: str = ""
    name: str = ""
    at: str = ""

    def as_text(self) -> str:
        """Return it for an address."""
        name = base64.urlsafe_b64encode(self.name.encode(errors="surrogatepass")).decode().rstrip("=")
        return f"{self.kind}.{name}.{self.at}"


def read_position(text: str) -> Position:
    """Return the position of a text; the beginning for what is none."""
    kind, _, rest = text.partition(".")
    name, _, at = rest.partition(".")
    try:
        decoded = base64.urlsafe_b64decode(name + "=" * (-len(name) % 4)).decode(errors="surrogatepass")
    except (binascii.Error, ValueError):
        return Position()
    return Position(kind, decoded, at) if kind in (*SET_ORDER, PARKED, QUEUE, DEAD) else Position()


@dataclass(frozen=True, slots=True)
class Found:
    """A place of the job.  kind: a key of SETS, `parked`, `queue`.  name: of the queue, or of the limit."""

    kind: str
    name: str
    job: JobRecord


@dataclass(frozen=True, slots=True)
class Located:
    """found: places of the job.  position: where to go on, None at the end.  looked, total: jobs looked at."""

    found: Sequence[Found]
    position: Position | None
    looked: int
    total: int


@dataclass(frozen=True, slots=True)
class _Spot:
    kind: str
    name: str
    key: str
    size: int

    @property
    def order(self) -> tuple[int, str]:
        return (*SET_ORDER, PARKED, QUEUE, DEAD).index(self.kind), self.name


def held(store: Store, jid: str) -> tuple[list[Work], list[tuple[str, JobRecord]]]:
    """Return where the job runs, as heartbeats say; and (identity, job) for each process that holds it.

    Three round trips, two more for each 250 processes.  Raises StoreError.
    """
    keys, text = store.keys, jid.encode(errors="surrogatepass")
    registered, members = store.read_each([("SMEMBERS", keys.processes), ("HKEYS", keys.members)])
    works: list[Work] = []
    identities, holders = _names(registered), _names(members)
    commands = [command for each in identities for command in read_commands(keys, each)]
    replies = store.read_each(commands, 2 * PROCESSES_PER_TRIP)
    for identity, work, workers in zip(identities, replies[::2], replies[1::2], strict=True):
        pairs = [_with_text(flat, text) for flat in (work, workers)]
        works += [each for each in read_work(identity, *pairs) if each.job.jid == jid]
    holding: list[tuple[str, JobRecord]] = []
    calls = [Call(FIND_HELD, [keys.inflight(each), keys.hands(each)], [text, keys.hand(each, "")]) for each in holders]
    for identity, found in zip(holders, read_scripts_each(store, calls, HELD_CALLS_PER_TRIP), strict=True):
        jobs = map(JobRecord, found if isinstance(found, list) else [])
        holding += [(identity, job) for job in jobs if job.jid == jid]
    return (with_progress(store, works) if works else []), holding


def _with_text(flat: Any, text: bytes) -> list[bytes]:
    """Return the pairs of a flat reply whose value contains a text: to decode all would take long."""
    pairs = zip(flat[::2], flat[1::2], strict=True) if isinstance(flat, list) else ()
    return [word for pair in pairs if text in pair[1] or not text.isascii() for word in pair]


def _names(reply: Any) -> list[str]:
    """Return the names in a reply; none where the key is of another type."""
    return sorted(name.decode(errors="replace") for name in reply) if isinstance(reply, list) else []


def locate(
    store: Store, jid: str, begin: Position | None = None, budget: Budget | None = None, clock: Clock = CLOCK
) -> Located:
    """Look for a job.  begin: None for the beginning.

    Two round trips, and as many as the budget has.  Raises StoreError.
    """
    budget, position = budget or Budget(), begin or Position()
    spots = sorted(_spots(store), key=lambda spot: spot.order)
    total = sum(spot.size for spot in spots)
    if position.kind:
        first = _Spot(position.kind, position.name, "", 0).order
        left = [spot for spot in spots if spot.order >= first]
        if left and left[0].order != first:
            position = Position()
    else:
        left = spots
    found: list[Found] = []
    looked, until, trips = total - sum(spot.size for spot in left), clock.monotonic() + budget.seconds, 0
    while left:
        if trips and (trips == budget.trips or clock.monotonic() >= until):
            return Located(found, replace(position, kind=left[0].kind, name=left[0].name), looked, total)
        trips += 1
        if left[0].kind == QUEUE:
            several, read, at = _look_in_queues(store, jid, left, position.at)
        else:
            several, read, at = _look_in_set(store, jid, left[0], position.at)
        found += several
        if at:
            position = Position(left[0].kind, left[0].name, at)
            looked = total - sum(spot.size for spot in left) + read
        else:
            count = _together(left) if left[0].kind == QUEUE and not position.at else 1
            looked = total - sum(spot.size for spot in left[count:])
            left, position = left[count:], Position()
    return Located(found, None, total, total)


def _spots(store: Store) -> list[_Spot]:
    """Return all places that have jobs.  Two round trips."""
    keys = store.keys
    queues, lines = store.read_each([("SMEMBERS", keys.queues), ("SMEMBERS", keys.parked_sets)])
    spots = [_Spot(kind, "", getattr(keys, kind), 0) for kind in (*SET_ORDER, DEAD)]
    spots += [_Spot(PARKED, slots, keys.parked(slots), 0) for slots in _names(lines)]
    spots += [_Spot(QUEUE, name, keys.queue(name), 0) for name in _names(queues)]
    commands = [
        command
        for spot in spots
        for command in (
            (("LLEN", spot.key), ("LLEN", keys.wake(spot.name)))
            if spot.kind == QUEUE
            else (("ZCARD", spot.key), ("EXISTS", ""))
        )
    ]
    replies = store.read_each(commands)  # what is not a queue or a set has no jobs
    sizes = [
        sum(each for each in pair if isinstance(each, int)) for pair in zip(replies[::2], replies[1::2], strict=True)
    ]
    return [replace(spot, size=size) for spot, size in zip(spots, sizes, strict=True) if size]


def _text(jid: str) -> bytes:
    return jid.encode() if is_verbatim(jid) else b'"jid"'


def _look_in_set(store: Store, jid: str, spot: _Spot, at: str) -> tuple[list[Found], int, str]:
    """Return what a slice of a set has of the job, how many were read up to its end, and where the next one begins."""
    score, _, place = at.partition("~")
    after = Place(score.encode(), b"", int(place)) if place.isdigit() and _is_number(score) else None
    part = scan_entries(store, spot.key, after, [[_text(jid)]], with_places=True)
    found = []
    for raw, its_score, _ in part.found:
        if spot.kind == PARKED:
            name, key = parking.name_of(store.keys, spot.name)
            record: JobRecord = ParkedJob(raw, its_score, spot.name, key, store.keys.queue(""))
        else:
            name, record = "", SortedEntry(raw, its_score, SETS[spot.kind](store=store))
        if record.jid == jid:
            found.append(Found(spot.kind, name, record))
    if not part.has_more or part.last is None:
        return found, 0, ""
    return found, part.start + part.read, f"{float(part.last.score)!r}~{max(0, part.last.after - OVERLAP_ENTRIES)}"


def _is_number(text: str) -> bool:
    try:
        return float(text) == float(text)
    except ValueError:
        return False


def _together(spots: Sequence[_Spot]) -> int:
    """Return how many queues, from the first on, are searched in one round trip."""
    count, jobs = 0, 0
    for spot in spots[:QUEUES_PER_TRIP]:
        jobs += spot.size
        if spot.kind != QUEUE or (count and jobs > JOBS_PER_TRIP):
            break
        count += 1
    return count


def _look_in_queues(store: Store, jid: str, spots: Sequence[_Spot], at: str) -> tuple[list[Found], int, str]:
    """Return the same of a slice of a queue, or of several small queues."""
    first = int(at) if at.isdigit() and len(at) < 12 else 0
    chosen = spots[: 1 if at else _together(spots)]
    calls = [
        Call(FIND_JOBS, [spot.key, store.keys.wake(spot.name)], [first, JOBS_PER_TRIP, _text(jid)]) for spot in chosen
    ]
    replies = read_scripts_each(store, calls, QUEUES_PER_TRIP)
    found = list(_queued(jid, zip(chosen, replies, strict=True)))
    read = replies[0][0] if isinstance(replies[0], list) else 0
    if len(chosen) == 1 and read == JOBS_PER_TRIP:
        return found, first + read - OVERLAP_JOBS, str(first + read - OVERLAP_JOBS)
    return found, 0, ""


def _queued(jid: str, answers: Iterator[tuple[_Spot, Any]]) -> Iterator[Found]:
    for spot, reply in answers:
        for raw in reply[2] if isinstance(reply, list) else ():
            job = QueuedJob(raw, spot.name, None)
            if job.jid == jid:
                yield Found(QUEUE, spot.name, job)
