"""Pages: queues and sets of any size, read a page at a time while others add, take and delete.

walk_queue    payloads of a queue.  Jobs come and go at both its ends, so indexes shift between two pages: each page
              is read a little wider, and laid against the last one by payloads that both of them hold
walk_set      entries of a sorted set.  Score and payload make a total order, so the last entry says where to go on,
              whether it is still there or not
batches       records, as many as one script may move

Every job that is not moved is yielded at least once; exactly once unless most of a page disappears during the read.
A page is 500 jobs or 4 MB, whichever is less; one round trip each, unless the page has to be looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from math import inf, nextafter
from typing import NamedTuple, TypeVar

from kiqcluster.api.records import JobRecord
from kiqcluster.store import Store
from kiqcluster.store.entry_moves import Part, read_queue

__all__ = [
    "MAX_PAGE_BYTES",
    "MAX_PAGE_JOBS",
    "Order",
    "Placed",
    "batches",
    "page_size",
    "read_entries",
    "walk_queue",
    "walk_set",
]

FIRST_PAGE_JOBS = 50  # jobs that are read before it is known how large they are
MAX_PAGE_JOBS = 500
MIN_PAGE_JOBS = 4
MAX_PAGE_BYTES = 4_000_000
MAX_ANCHORS = 16  # payloads on either side of where a page ends, by which the next one is laid against it
MAX_SOUGHT_ANCHORS = 4  # … of them, that are looked for in the whole queue; each costs Redis a walk through it
MAX_SEARCHES = 3  # before the place is guessed: somebody takes jobs faster than they are looked for

Entry = tuple[bytes, float]  # payload, score
Record = TypeVar("Record", bound=JobRecord)


class Order(Enum):
    NEWEST_FIRST = "newest first"
    OLDEST_FIRST = "oldest first"


class Placed(NamedTuple):
    """A payload of a queue.  place: how many jobs were to be fetched before it, when it was read."""

    payload: bytes
    place: int


def page_size(payloads: Sequence[bytes]) -> int:
    """Return how many jobs the next page should have, after one with these."""
    average = sum(map(len, payloads)) / len(payloads) if payloads else 0.0
    return max(MIN_PAGE_JOBS, min(MAX_PAGE_JOBS, int(MAX_PAGE_BYTES / max(1.0, average))))


def batches(
    records: Iterable[Record], go_together: Callable[[Record, Record], bool] | None = None
) -> Iterator[list[Record]]:
    """Yield records a page at a time, in their order.  go_together: whether one may be in the batch of a first one."""
    batch: list[Record] = []
    size = 0
    for record in records:
        size += len(record.raw)
        is_stranger = batch and go_together is not None and not go_together(batch[0], record)
        if batch and (len(batch) == MAX_PAGE_JOBS or size > MAX_PAGE_BYTES or is_stranger):
            yield batch
            batch, size = [], len(record.raw)
        batch.append(record)
    if batch:
        yield batch


# queues


def walk_queue(store: Store, queue: str, order: Order) -> Iterator[Placed]:
    """Yield the jobs of a queue.  Oldest first, it ends after as many as there were when it began."""
    walk = QueueWalk(store, queue, order)
    page = walk.first()
    most = page.length if order is Order.OLDEST_FIRST else None
    for count, placed in enumerate(walk.placed(page)):
        if count == most:
            return
        yield placed


class Page(NamedTuple):
    """payloads: in reading order; behind the last one, `left` jobs remain.  start: the first that was not read yet."""

    payloads: Sequence[bytes]
    left: int
    start: int
    length: int


class QueueWalk:
    """One walk through a queue, from page to page.

    Jobs are counted from the end towards which it reads: what is read already may vanish and shifts nothing then, and
    what is added there, seldom enough (put back oldest, pushed newest), is noticed by the anchors.
    """

    def __init__(self, store: Store, queue: str, order: Order) -> None:
        self._store = store
        self._queue = queue
        self._order = order

    def first(self) -> Page:
        """Return the first page."""
        if self._order is Order.NEWEST_FIRST:
            return self._page(read_queue(self._store, self._queue, 0, FIRST_PAGE_JOBS - 1))
        return self._page(read_queue(self._store, self._queue, -FIRST_PAGE_JOBS, -1))

    def placed(self, page: Page) -> Iterator[Placed]:
        """Yield all jobs from a page on."""
        while True:
            payloads, anchors = page.payloads, min(MAX_ANCHORS, len(page.payloads) // 4)
            end = len(payloads) if not page.left else max(page.start, len(payloads) - anchors)
            for index in range(page.start, end):
                left = page.left + len(payloads) - 1 - index
                yield Placed(payloads[index], left if self._order is Order.NEWEST_FIRST else page.length - 1 - left)
            if not page.left:
                return
            behind, ahead = payloads[max(0, end - MAX_ANCHORS) : end], payloads[end:]
            page = self._next(behind, ahead, page.left + len(ahead), page_size(payloads))

    def _next(self, behind: Sequence[bytes], ahead: Sequence[bytes], left: int, size: int) -> Page:
        """Return the page that begins with `ahead`, before which lies `behind`; `left` jobs were left there."""
        for _ in range(MAX_SEARCHES):
            page = self._read(left, size)
            before = page.length - page.left - len(page.payloads)
            start = aligned(page.payloads, behind, ahead, page.left + len(page.payloads) - left)
            # A page that begins with the second of `ahead` may lie behind the first, if there is more before it.  One
            # that ends with the last but one of `behind` may lie before the last, if there is more after it.
            begins_late = start == 0 and before and page.payloads[0] != ahead[0]
            ends_early = start == len(page.payloads) and page.left and page.payloads[-1] != behind[-1]
            if start is not None and not (begins_late or ends_early):
                return page._replace(start=start)
            found = self._search(behind[-MAX_SOUGHT_ANCHORS:], ahead[:MAX_SOUGHT_ANCHORS])
            if found is None:
                break
            left = found
        # All of them are gone.  Oldest first, the fetching has overtaken us, and all that is there is new.
        if self._order is Order.OLDEST_FIRST:
            return self.first()
        page = self._read(left, size)
        return page._replace(start=max(0, min(len(page.payloads), page.left + len(page.payloads) - left)))

    def _read(self, left: int, size: int) -> Page:
        """Return the page whose first job has `left - 1` behind it, a quarter of a page wider on both sides."""
        farthest, nearest = left - 1 + size // 4, max(0, left - size - size // 4)
        if self._order is Order.NEWEST_FIRST:
            return self._page(read_queue(self._store, self._queue, -farthest - 1, -nearest - 1))
        return self._page(read_queue(self._store, self._queue, nearest, farthest))

    def _page(self, part: Part) -> Page:
        if self._order is Order.NEWEST_FIRST:
            left = max(0, part.length - part.first - len(part.payloads))
            return Page(part.payloads, left, 0, part.length)
        return Page(part.payloads[::-1], min(part.first, part.length), 0, part.length)

    def _search(self, behind: Sequence[bytes], ahead: Sequence[bytes]) -> int | None:
        """Return how many jobs are left from `ahead` on, after a look through the whole queue; None if all are gone."""
        rank = 1 if self._order is Order.NEWEST_FIRST else -1
        lists = (self._store.keys.queue(self._queue), self._store.keys.wake(self._queue))
        sought = [*ahead, *reversed(behind)]
        lengths, commands = [("LLEN", key) for key in lists], []
        for payload in sought:
            commands += [("LPOS", key, payload, "RANK", rank) for key in lists]
        queued, rung, *found = self._store.pipeline([*lengths, *commands])
        for at, (in_queue, in_wake) in enumerate(zip(found[::2], found[1::2], strict=True)):
            if in_queue is None and in_wake is None:
                continue
            if self._order is Order.NEWEST_FIRST:
                left = rung - in_wake if in_queue is None else queued + rung - in_queue
            else:
                left = in_queue + 1 if in_wake is None else queued + in_wake + 1
            return int(left + at if at < len(ahead) else left - 1 - (at - len(ahead)))
        return None


def aligned(payloads: Sequence[bytes], behind: Sequence[bytes], ahead: Sequence[bytes], expected: int) -> int | None:
    """Return the index of the first payload that is new, or None where nothing tells.

    behind: read already, up to where the last page ended.  ahead: what followed, and comes next.  expected: the index,
    if nothing has changed; of payloads that occur twice the nearest counts.
    """
    indexes: dict[bytes, list[int]] = {}
    for index, payload in enumerate(payloads):
        indexes.setdefault(payload, []).append(index)
    for offset, payload in enumerate(ahead):
        if payload in indexes:
            return min(indexes[payload], key=lambda index: abs(index - expected - offset))
    for offset, payload in enumerate(reversed(behind)):
        if payload in indexes:
            return 1 + min(indexes[payload], key=lambda index: abs(index + 1 + offset - expected))
    return None


# sorted sets


def walk_set(store: Store, key: str, order: Order, first: float | None = None) -> Iterator[Entry]:
    """Yield the entries of a sorted set, the newest being those of the highest score.

    first: the score to begin with; entries of the float before it may come, too.
    """
    walk = SetWalk(store, key, order)
    before = inf if order is Order.NEWEST_FIRST else -inf
    last: Entry | None = None if first is None or first == before else (b"", nextafter(first, before))
    rank, size = 0 if last is None else walk.rank_after(last), FIRST_PAGE_JOBS
    while True:
        start = max(0, rank - 1)  # one that was read already, to see that nothing has shifted
        entries = read_entries(store, key, order, start, size + 1)
        if last is not None and start and (not entries or walk.is_after(entries[0], last)):
            rank = walk.rank_after(last)
            continue
        for entry in entries:
            if last is None or walk.is_after(entry, last):
                yield entry
                last = entry
        if len(entries) <= size:
            return
        rank = start + len(entries)
        size = page_size([payload for payload, _ in entries])


def read_entries(store: Store, key: str, order: Order, start: int, count: int) -> list[Entry]:
    """Return entries by their rank.  One round trip."""
    reverse = ("REV",) if order is Order.NEWEST_FIRST else ()
    flat = store.call("ZRANGE", key, start, start + count - 1, *reverse, "WITHSCORES") if count > 0 else []
    return [(payload, float(score)) for payload, score in zip(flat[::2], flat[1::2], strict=True)]


class SetWalk:
    """Where a walk through a sorted set is."""

    def __init__(self, store: Store, key: str, order: Order) -> None:
        self._store = store
        self._key = key
        self._order = order

    def is_after(self, entry: Entry, other: Entry) -> bool:
        """Return whether an entry comes after another one in reading order."""
        mine, others = (entry[1], entry[0]), (other[1], other[0])
        return mine < others if self._order is Order.NEWEST_FIRST else mine > others

    def rank_after(self, last: Entry) -> int:
        """Return the rank of the first entry after `last`.  Round trips: one, and one per doubling of its ties."""
        score = repr(last[1])
        beyond = (f"({score}", "+inf") if self._order is Order.NEWEST_FIRST else ("-inf", f"({score}")
        low, ties = self._store.pipeline([("ZCOUNT", self._key, *beyond), ("ZCOUNT", self._key, score, score)])
        high = low + ties
        while low < high:
            middle = (low + high) // 2
            entries = read_entries(self._store, self._key, self._order, middle, 1)
            if not entries or self.is_after(entries[0], last):
                high = middle
            else:
                low = middle + 1
        return int(low)
