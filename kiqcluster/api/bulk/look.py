"""Look: entries of a set that a selection means, from a place on, until there is enough, or the time is over.

A look says how far it has come, so that whoever asks can show what there is, and go on from there.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kiqcluster.api._store import CLOCK
from kiqcluster.api.bulk.selection import Selection
from kiqcluster.api.queues import QueuedJob
from kiqcluster.api.records import JobRecord
from kiqcluster.api.sets import JobSet, SortedEntry
from kiqcluster.process.clock import Clock
from kiqcluster.store import Store
from kiqcluster.store.search import Anchor, JobSlice, Place, scan_entries, scan_jobs

__all__ = [
    "EVERYTHING",
    "Budget",
    "Look",
    "PlacedEntry",
    "QueueLook",
    "anchors_behind",
    "bounds",
    "find_place",
    "is_in_time",
    "look",
    "look_at_queue",
    "read_anchors",
    "walk",
    "walk_queue",
    "write_anchors",
]

EVERYTHING = Selection()
MIN_CANDIDATES = 100  # that one slice brings, of which some may not be meant after all
ARGUMENTS_SLICE = 500  # entries of a slice where arguments are searched: each may be found, which takes longer
MAX_WALKED = 200  # entries that a walk has in memory
MAX_ANCHORS = 3
ANCHOR = re.compile(r"[0-9]{1,11}-[0-9a-f]{40}")
WINDOW_ENTRIES = 200  # of one score, among which the entry of a place is looked for


@dataclass(frozen=True, slots=True)
class Budget:
    """How long a look may last: round trips and seconds, but at least one round trip.  Each is a slice of 1 000."""

    trips: int = 5
    seconds: float = 0.08


class PlacedEntry(NamedTuple):
    """An entry.  place: how many entries of its score come before it."""

    entry: SortedEntry
    place: int


@dataclass(frozen=True, slots=True)
class Look:
    """What was found.

    first: rank of the first entry that was looked at, in the order of the look.  looked: how many were.  last: where
    the next look begins, None if nothing was looked at.  has_more: whether there is more to look at.  size: entries of
    the set.  limit: rank after the last one that may be meant, by its score.
    """

    found: Sequence[PlacedEntry]
    first: int
    looked: int
    last: Place | None
    has_more: bool
    size: int
    limit: int


def look(
    job_set: JobSet,
    store: Store,
    selection: Selection = EVERYTHING,
    *,
    after: Place | None = None,
    newest_first: bool = True,
    most: int,
    budget: Budget | None = None,
    arguments: Callable[[JobRecord], str] | None = None,
    are_arguments_json: bool = True,
    clock: Clock = CLOCK,
) -> Look:
    """Look for `most` entries.  after: None for the beginning.  arguments: how they are shown.

    As many round trips as the budget has, at most.  Raises StoreError.
    """
    budget = budget or Budget()
    begin, stop = bounds(selection, newest_first=newest_first)
    place, parts = after or begin, selection.parts(are_arguments_json=are_arguments_json)
    found: list[PlacedEntry] = []
    first, looked, until = -1, 0, clock.monotonic() + budget.seconds
    for trip in range(1, budget.trips + 1):
        wanted = most - len(found)
        part = scan_entries(
            store,
            job_set.key,
            place,
            parts,
            newest_first=newest_first,
            stop=stop,
            **_most(selection, wanted, has_parts=bool(parts)),
            with_places=True,
        )
        first = part.start if first < 0 else first
        several = [PlacedEntry(SortedEntry(raw, score, job_set), at) for raw, score, at in part.found]
        meant = [each for each in several if selection.matches(each.entry, 0.0, arguments=arguments)]
        found += meant[:wanted]
        if len(meant) >= wanted and meant[wanted - 1].entry.raw != (part.last.payload if part.last else b""):
            entry, at = meant[wanted - 1]
            place = Place(repr(entry.score).encode(), entry.raw, at)
            return Look(found, first, part.start + part.read - first, place, True, part.size, part.limit)
        place, looked = part.last, part.start + part.read - first
        if not part.has_more or len(found) == most or trip == budget.trips or clock.monotonic() >= until:
            break
    return Look(found, max(0, first), looked, place, part.has_more, part.size, part.limit)


def _most(selection: Selection, wanted: int, *, has_parts: bool) -> dict[str, int]:
    """Return how many entries a slice may read and find.

    Redis finds hidden arguments, too.  A slice that ended after so many of them would tell by its size that they are
    there, so where arguments are searched its size does not follow what was found.
    """
    if selection.arguments is not None:
        return {"most": ARGUMENTS_SLICE, "most_found": ARGUMENTS_SLICE}
    return {"most_found": max(wanted, MIN_CANDIDATES) if has_parts else wanted}


def walk(
    job_set: JobSet,
    store: Store,
    selection: Selection = EVERYTHING,
    *,
    newest_first: bool = True,
    arguments: Callable[[JobRecord], str] | None = None,
    are_arguments_json: bool = True,
) -> Iterator[SortedEntry]:
    """Yield all entries that are selected.  One round trip per 1 000 that are looked at.  Raises StoreError."""
    place: Place | None = None
    while True:
        found = look(
            job_set,
            store,
            selection,
            after=place,
            newest_first=newest_first,
            most=MAX_WALKED,
            budget=Budget(trips=1),
            arguments=arguments,
            are_arguments_json=are_arguments_json,
        )
        yield from (each.entry for each in found.found)
        place = found.last
        if not found.has_more or not found.looked:
            return


@dataclass(frozen=True, slots=True)
class QueueLook:
    """What was found in a queue.

    first: place of the first job that was looked at; 0 is the one that is fetched next.  looked: place behind the last
    one.  after: behind which jobs the next look begins.  size: jobs of the queue.
    """

    found: Sequence[QueuedJob]
    first: int
    looked: int
    after: list[Anchor]
    size: int

    @property
    def has_more(self) -> bool:
        return self.looked < self.size


def look_at_queue(
    store: Store,
    queue: str,
    selection: Selection = EVERYTHING,
    *,
    after: Sequence[Anchor] = (),
    most: int,
    budget: Budget | None = None,
    arguments: Callable[[JobRecord], str] | None = None,
    are_arguments_json: bool = True,
    clock: Clock = CLOCK,
) -> QueueLook:
    """Look for `most` jobs of a queue, behind some or from the next to be fetched on.

    If others have fetched more than 500 jobs since, it begins at the place where those were.
    As many round trips as the budget has, at most, one more if these jobs are not found.  Raises StoreError.
    """
    budget = budget or Budget()
    parts = selection.parts(are_arguments_json=are_arguments_json)
    found: list[QueuedJob] = []
    anchors, first, until = list(after), -1, clock.monotonic() + budget.seconds
    for trip in range(1, budget.trips + 1):
        wanted = most - len(found)
        most_found = max(wanted, MIN_CANDIDATES) if parts else wanted
        part = scan_jobs(store, queue, anchors, parts, most_found=most_found, most_searches=1)
        first = part.start if first < 0 else first
        several = [QueuedJob(raw, queue, at) for raw, at in part.found]
        meant = [
            job for job in several if is_in_time(selection, job) and selection.matches(job, 0.0, arguments=arguments)
        ]
        found += meant[:wanted]
        if len(meant) > wanted:
            shown = [Anchor(job.place or 0, sha1(job.raw)) for job in found[: -MAX_ANCHORS - 1 : -1]]
            return QueueLook(found, first, shown[0].place + 1, shown, part.size)
        anchors = anchors_behind(part) or anchors
        if not part.has_more or len(found) == most or trip == budget.trips or clock.monotonic() >= until:
            break
    return QueueLook(found, max(0, first), part.start + part.read, anchors, part.size)


def walk_queue(
    store: Store,
    queue: str,
    selection: Selection = EVERYTHING,
    *,
    arguments: Callable[[JobRecord], str] | None = None,
    are_arguments_json: bool = True,
) -> Iterator[QueuedJob]:
    """Yield all jobs of a queue that are selected, the next to be fetched first.

    One round trip per 1 000 that are looked at.  Raises StoreError.
    """
    parts = selection.parts(are_arguments_json=are_arguments_json)
    after: Sequence[Anchor] = []
    while True:
        part = scan_jobs(store, queue, after, parts)
        for raw, place in part.found:
            job = QueuedJob(raw, queue, place)
            if is_in_time(selection, job) and selection.matches(job, 0.0, arguments=arguments):
                yield job
        after = anchors_behind(part) or after
        if not part.has_more or not part.read:
            return


def anchors_behind(part: JobSlice, taken: Collection[int] = ()) -> list[Anchor]:
    """Return the last jobs of a slice that stay.  taken: places of those that do not."""
    found = part.found[-MAX_ANCHORS - len(taken) :]
    stay = [Anchor(place, sha1(raw)) for raw, place in found if place not in taken]
    last = sorted([*part.anchors, *stay], reverse=True)[:MAX_ANCHORS]
    return [Anchor(each.place - sum(at < each.place for at in taken), each.digest) for each in last]


def write_anchors(anchors: Sequence[Anchor]) -> str:
    """Return anchors as text: place-digest, with dots between."""
    return ".".join(f"{place}-{digest}" for place, digest in anchors)


def read_anchors(text: str) -> list[Anchor]:
    """Return what `write_anchors` has written; [] for anything else."""
    words = text.split(".")[:MAX_ANCHORS]
    if not all(ANCHOR.fullmatch(word) for word in words):
        return []
    pairs = [word.partition("-") for word in words]
    return [Anchor(int(place), digest) for place, _, digest in pairs]


def sha1(raw: bytes) -> str:
    """Return what names the bytes of a job in an anchor, as Redis computes it."""
    return hashlib.sha1(raw, usedforsecurity=False).hexdigest()


def is_in_time(selection: Selection, job: JobRecord) -> bool:
    """Return whether a job was enqueued within the bounds of a selection, which are scores in a set."""
    at = job.enqueued_at or job.created_at
    lowest, highest = selection.lowest, selection.highest
    return (lowest is None or (at is not None and at >= lowest)) and (
        highest is None or (at is not None and at <= highest)
    )


def bounds(selection: Selection, *, newest_first: bool) -> tuple[Place | None, float | None]:
    """Return where a look at all that is selected begins, and the last score that it reads."""
    first, last = selection.lowest, selection.highest
    if newest_first:
        first, last = last, first
    return None if first is None else Place(repr(first).encode()), last


def find_place(
    job_set: JobSet, store: Store, score: float, place: int, is_it: Callable[[bytes], bool], *, newest_first: bool
) -> Place:
    """Return the place behind an entry; of one that is gone, the place where it was.

    place: how many entries of its score came before it.  is_it: whether bytes are those of the entry.
    One round trip.  Raises StoreError.
    """
    low = max(0, place - WINDOW_ENTRIES // 2)
    order = ("REV",) if newest_first else ()
    payloads = store.call(
        "ZRANGE", job_set.key, repr(score), repr(score), "BYSCORE", *order, "LIMIT", low, WINDOW_ENTRIES
    )
    text = repr(score).encode()
    for at, payload in enumerate(payloads):
        if is_it(payload):
            return Place(text, payload, low + at)
    return Place(text, b"", place)
