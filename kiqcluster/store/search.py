"""Search: finds entries of a set, or jobs of a queue, whose payloads contain a text.  Redis searches slice by slice.

A slice blocks Redis for at most about 5 ms, so its size follows the size of the payloads in the previous slice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kiqcluster.store.scripts import FIND_ENTRIES, FIND_JOBS, Call, run_script
from kiqcluster.store.store import Store

__all__ = ["MAX_TEXTS", "search_entries", "search_jobs"]

FIRST_SLICE_JOBS = 16  # while the size of payloads is unknown
MAX_SLICE_COMPARISONS = 2_000  # of a payload with a text
MIN_SLICE_JOBS = 4
MAX_SLICE_BYTES = 1_000_000
MAX_TEXTS = 8
OVERLAP_JOBS = 16  # jobs of a queue that are read again, because earlier ones may have been deleted meanwhile


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
