"""Search: finds entries of a set, or jobs of a queue, whose payloads contain texts.  Redis searches slice by slice.

search_entries, search_jobs   all that contain one of a few texts
scan_entries                  one slice of a set, from a place on, in either order; the next slice may wait
scan_jobs                     one slice of a queue, the next to be fetched first, while others fetch

A slice blocks Redis for at most about 5 ms, so its size follows the size of the payloads in the previous slice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kiqcluster.store.scripts import FIND_ENTRIES, FIND_JOBS, SCAN_ENTRIES, SCAN_JOBS, Call, Word, run_script
from kiqcluster.store.store import Store

__all__ = [
    "MAX_TEXTS",
    "Anchor",
    "EntrySlice",
    "FoundEntry",
    "FoundJob",
    "JobSlice",
    "Place",
    "reach_of",
    "scan_entries",
    "scan_jobs",
    "search_entries",
    "search_jobs",
]

FIRST_SLICE_JOBS = 16  # while the size of payloads is unknown
MAX_SLICE_COMPARISONS = 2_000  # of a payload with a text
MIN_SLICE_JOBS = 4
MAX_SLICE_BYTES = 1_000_000
MAX_SCANNED_ENTRIES = 1_000  # in a slice of scan_entries, which compares with more texts
MAX_TEXTS = 8
MAX_REACH_JOBS, MIN_REACH_JOBS = 500, 20  # places that a job may have moved up, in one search for it
OVERLAP_JOBS = 16  # jobs of a queue that are read again, because earlier ones may have been deleted meanwhile


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a sorted set, between two entries.

    score, payload: of the entry before it.  Without a payload: at this score, after so many entries of it.  With one,
    `after` says how many entries of its score come before it, if that was asked for.
    """

    score: bytes
    payload: bytes = b""
    after: int = 0


class FoundEntry(NamedTuple):
    """place: how many entries of its score come before it, if that was asked for."""

    payload: bytes
    score: float
    place: int


class EntrySlice(NamedTuple):
    """A slice of a sorted set.

    start: rank of its first entry.  read: entries in it.  last: where the next one begins, None after nothing.  size:
    entries of the set.  limit: rank after the last entry that may be read.
    """

    start: int
    read: int
    last: Place | None
    size: int
    limit: int
    found: list[FoundEntry]

    @property
    def has_more(self) -> bool:
        return self.start + self.read < self.limit


class Anchor(NamedTuple):
    """A job that was looked at and stays: others move it up as they fetch, so it tells where the next slice begins.

    place: how many jobs were to be fetched before it.  digest: SHA-1 of its bytes.
    """

    place: int
    digest: str


class FoundJob(NamedTuple):
    """place: how many jobs were to be fetched before it."""

    payload: bytes
    place: int


class JobSlice(NamedTuple):
    """A slice of a queue.

    start: place of its first job.  read: jobs in it.  size: jobs of the queue.  anchors: of its last jobs that were not
    found, the farthest first.
    """

    start: int
    read: int
    size: int
    anchors: list[Anchor]
    found: list[FoundJob]

    @property
    def has_more(self) -> bool:
        return self.start + self.read < self.size


def scan_jobs(
    store: Store,
    queue: str,
    after: Sequence[Anchor] | int = 0,
    parts: Sequence[Sequence[bytes]] = (),
    *,
    most_found: int = MAX_SCANNED_ENTRIES,
    reach: int = MAX_REACH_JOBS,
    most_searches: int | None = None,
) -> JobSlice:
    """Return a slice of a queue, and the jobs in it whose payloads contain a text of each part.

    after: jobs behind which it begins, the farthest first; or a place.  If none of them is there any more, all that was
    looked at has been fetched, and it begins at the next job.  reach: places in which one search looks for them.
    most_searches: so many, then it begins where the first of them was, wherever they are now; None for no limit.
    One round trip, one more per `reach` places that these jobs have moved up.  Redis is busy for about 5 ms at most for
    each.  Raises StoreError.
    """
    keys = [store.keys.queue(queue), store.keys.wake(queue)]
    about: list[Word] = [MAX_SCANNED_ENTRIES, MAX_SLICE_BYTES, most_found]
    for texts in parts:
        about += [len(texts), *texts]
    anchors, first = ([], after) if isinstance(after, int) else (list(after), 0)
    searches, asked = 0, max((each.place + 1 for each in anchors), default=0)
    while True:
        words = [word for place, digest in anchors for word in (place, digest)]
        reply = run_script(store, Call(SCAN_JOBS, keys, [first, len(anchors), *words, reach, *about]))
        if reply[0]:
            break
        searches += 1
        if searches == most_searches:
            anchors, first = [], min(asked, reply[1])
        # A place may be beyond the end: others have taken jobs, or a browser has sent any number.
        farthest = reply[1] + reach
        anchors = [Anchor(min(each.place, farthest) - reach, each.digest) for each in anchors if each.place > reach]
    _, start, read, size, stay, flat = reply
    stays = [Anchor(place, digest.decode()) for place, digest in zip(stay[::2], stay[1::2], strict=True)]
    found = [FoundJob(payload, place) for payload, place in zip(flat[::2], flat[1::2], strict=True)]
    return JobSlice(start, read, size, stays, found)


def reach_of(payloads: Sequence[bytes]) -> int:
    """Return how many places one search may look at, beside jobs with these payloads."""
    average = sum(map(len, payloads)) // max(1, len(payloads))
    return max(MIN_REACH_JOBS, min(MAX_REACH_JOBS, MAX_SLICE_BYTES // max(1, average)))


def scan_entries(
    store: Store,
    key: str,
    after: Place | None = None,
    parts: Sequence[Sequence[bytes]] = (),
    *,
    newest_first: bool = True,
    stop: float | None = None,
    most: int = MAX_SCANNED_ENTRIES,
    most_found: int = MAX_SCANNED_ENTRIES,
    with_places: bool = False,
) -> EntrySlice:
    """Return a slice of a sorted set, and the entries in it whose payloads contain a text of each part.

    after: None for the beginning.  stop: the last score that may be read.  most, most_found: entries that are read and
    found.  One round trip, for which Redis is busy for about 5 ms at most.  Raises StoreError.
    """
    arguments: list[Word] = ["REV" if newest_first else ""]
    arguments += ["", "", 0] if after is None else [after.score, after.payload, after.after]
    arguments += ["" if stop is None else repr(stop), most, MAX_SLICE_BYTES, most_found, int(with_places)]
    for texts in parts:
        arguments += [len(texts), *texts]
    start, read, last, score, place, size, limit, flat = run_script(store, Call(SCAN_ENTRIES, [key], arguments))
    found = zip(flat[::3], flat[1::3], flat[2::3], strict=True)
    entries = [FoundEntry(payload, float(its_score), place) for payload, its_score, place in found]
    return EntrySlice(start, read, Place(score, last, place) if read else after, size, limit, entries)


def search_entries(store: Store, key: str, texts: Sequence[bytes]) -> Iterator[tuple[bytes, float]]:
    """Yield payload and score of the entries that contain one of these texts, highest score first.

    While others change the set, an entry may come twice.  One round trip per 2 000 entries.  Raises StoreError.
    """
    score, last, size = b"", b"", FIRST_SLICE_JOBS
    while True:
        read, length, last, score, found = run_script(store, Call(FIND_ENTRIES, [key], [score, last, size, *texts]))
        for payload, its_score in zip(found[::2], found[1::2], strict=True):
            yield payload, float(its_score)
        if read < size:
            return
        size = _slice(read, length, len(texts))


def search_jobs(store: Store, queue: str, texts: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the payloads of a queue that contain one of these texts, the newest first.

    While others change the queue, a job may come twice.  One round trip per 2 000 jobs.  Raises StoreError.
    """
    keys = [store.keys.queue(queue), store.keys.wake(queue)]
    first, size = 0, FIRST_SLICE_JOBS
    while True:
        read, length, found = run_script(store, Call(FIND_JOBS, keys, [first, size, *texts]))
        yield from found
        if read < size:
            return
        first = max(first + 1, first + read - OVERLAP_JOBS)
        size = _slice(read, length, len(texts)) + OVERLAP_JOBS


def _slice(read: int, length: int, texts: int) -> int:
    """Return the size of the next slice, in payloads.  read, length: payloads and bytes of the previous slice."""
    average = max(1, length // max(1, read))
    return max(MIN_SLICE_JOBS, min(MAX_SLICE_COMPARISONS, MAX_SLICE_BYTES // average) // max(1, texts))
