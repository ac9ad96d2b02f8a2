"""Kinds: the three sets, as rows of a table, and how a walk through one goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kiqcluster.api import DeadSet, JobSet, RetrySet, ScheduledSet, SortedEntry
from kiqcluster.ctl.places import whereabouts
from kiqcluster.ctl.selection import Selection
from kiqcluster.ctl.tables import clean
from kiqcluster.store import Store

__all__ = ["DEAD", "EXAMPLE", "RETRIES", "SCHEDULED", "Kind", "elsewhere", "walk"]

EXAMPLE = "b4a577edbccf1d805744efa9"  # an id in the examples


@dataclass(frozen=True, slots=True)
class Kind:
    """A set.  words: what it is called.  since: from when on a job lies there; age: the same in words."""

    name: str
    words: str
    help: str
    job_set: type[JobSet]
    is_newest_first: bool
    since: Callable[[SortedEntry], float | None]
    age: str

    @property
    def entries(self) -> tuple[str, str]:
        return f"entry of {self.words}", f"entries of {self.words}"


def _failed(entry: SortedEntry) -> float | None:
    return entry.retried_at or entry.failed_at or entry.created_at


RETRIES = Kind(
    "retries",
    "the retry set",
    "Jobs that failed, and will be tried again.",
    RetrySet,
    False,
    _failed,
    "since a job has last failed",
)
SCHEDULED = Kind(
    "scheduled",
    "the schedule",
    "Jobs that are not due yet.",
    ScheduledSet,
    False,
    lambda entry: entry.created_at,
    "since a job was made",
)
DEAD = Kind(
    "dead",
    "the dead set",
    "Jobs that failed for good, or were killed.  They run again only if somebody retries them.",
    DeadSet,
    True,
    lambda entry: entry.score,
    "since a job has died",
)


def walk(job_set: JobSet, selection: Selection, *, is_newest_first: bool) -> Iterable[SortedEntry]:
    """Return the entries, among which are those selected; in no order where Redis looks for a text."""
    if selection.text is not None:
        return job_set.scan(selection.text)
    return job_set if is_newest_first else reversed(job_set)


def elsewhere(store: Store, kind: Kind, jids: Sequence[str]) -> dict[str, str]:
    """Return what there is to say of jobs that are not there."""
    places = whereabouts(store, jids)
    return {
        jid: f"{clean(jid)} is not in {kind.words}, but {places[jid]}"
        if jid in places
        else f"{clean(jid)} is not in {kind.words}, nor anywhere else"
        for jid in jids
    }
