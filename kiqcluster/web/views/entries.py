"""Entries: the keys by which forms and paths name jobs, whatever their payloads are: no jid is needed, none is trusted.

Who may not see arguments must not be able to try out guesses of them.  So all that is made of the bytes of a job needs
the secret of the pages (web/security/entry_keys.py): digests are HMACs, and the places of a queue are sealed.

An entry of a set    score-digest        1795168740.5-0123456789abcdef
A job of a queue     place-digest        12-0123456789abcdef; place: jobs that are fetched before it
A parked job         time-digest         1795168740.5-0123456789abcdef; time of its first parking
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from kiqcluster.api import JobSet, Queue, SortedEntry
from kiqcluster.api.queues import QueuedJob
from kiqcluster.web.security.entry_keys import EntryKeys

__all__ = [
    "find_entries",
    "find_several",
    "parse_place",
    "read_keys",
]

MAX_KEYS = 500  # in one form
MAX_FETCHED_MEANWHILE = 500  # jobs that were fetched since a page was shown, beyond which one is looked for in vain
MAX_PUT_BACK_MEANWHILE = 20


def read_keys(keys: Iterable[str]) -> list[str]:
    """Return the keys of a form, each once, at most 500."""
    return list(dict.fromkeys(keys))[:MAX_KEYS]


def find_entries(entry_keys: EntryKeys, job_set: JobSet, keys: Sequence[str]) -> list[SortedEntry]:
    """Return those entries that are still there, in no order.  One round trip per 100 scores."""
    wanted = set(keys)
    scores = {score for key in keys if (score := _score(key)) is not None}
    return [entry for entry in job_set.at_scores(sorted(scores)) if entry_keys.entry(entry) in wanted]


def _score(key: str) -> float | None:
    try:
        score = float(key.rpartition("-")[0])
    except ValueError:
        return None
    return score if score == score else None  # NaN, which is no score


def parse_place(key: str) -> tuple[int, str] | None:
    """Return place and digest of the key of a job of a queue, None for what is none."""
    place, _, digest = key.partition("-")
    return (int(place), digest) if place.isascii() and place.isdigit() and len(place) < 12 else None


def find_several(entry_keys: EntryKeys, queue: Queue, keys: Sequence[str]) -> list[QueuedJob]:
    """Return those jobs of a page that are still there, the next to be fetched first.  One round trip."""
    parsed = [place for place in map(parse_place, keys) if place is not None]
    if not parsed:
        return []
    nearest, farthest = min(place for place, _ in parsed), max(place for place, _ in parsed)
    farthest = min(farthest, nearest + MAX_KEYS)
    wanted = Counter(digest for _, digest in parsed)
    around = queue.around(nearest, MAX_FETCHED_MEANWHILE, farthest - nearest + MAX_PUT_BACK_MEANWHILE)
    found = []
    for job in reversed(around):  # of equal jobs, those farthest from their turn: where they were
        if wanted[digest := entry_keys.digest_of(job.raw)] > 0:
            wanted[digest] -= 1
            found.append(job)
    return found[::-1]
