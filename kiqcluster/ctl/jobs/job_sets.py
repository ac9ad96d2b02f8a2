"""Job sets: the table of the retry set, the schedule and the dead set, and how each is searched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf

from kiqcluster.api import DeadSet, DroppedSet, JobSet, Order, RetrySet, ScheduledSet, SortedEntry
from kiqcluster.ctl.jobs.locate import locate_jobs
from kiqcluster.ctl.jobs.selection import Selection
from kiqcluster.ctl.text.tables import clean
from kiqcluster.store import Store

__all__ = ["DEAD", "DROPPED", "EXAMPLE", "RETRIES", "SCHEDULED", "JobSetKind", "describe_missing", "iterate"]

EXAMPLE = "b4a577edbccf1d805744efa9"  # an id in the examples


@dataclass(frozen=True, slots=True)
class JobSetKind:
    """A set.  words: what it is called.  since: from when on a job lies there; age: the same in words.

    is_by_score: that moment is the score, by which Redis can find a job.
    """

    name: str
    words: str
    help: str
    job_set: type[JobSet]
    is_newest_first: bool
    since: Callable[[SortedEntry], float | None]
    age: str
    is_age_score: bool = False

    @property
    def order(self) -> Order:
        """The order in which a list shows them."""
        return Order.NEWEST_FIRST if self.is_newest_first else Order.OLDEST_FIRST

    @property
    def entries(self) -> tuple[str, str]:
        return f"entry of {self.words}", f"entries of {self.words}"


RETRIES = JobSetKind(
    "retries",
    "the retry set",
    "Jobs that failed, and will be tried again.",
    RetrySet,
    False,
    RetrySet.since,
    "since a job has last failed",
)
SCHEDULED = JobSetKind(
    "scheduled",
    "the schedule",
    "Jobs that are not due yet.",
    ScheduledSet,
    False,
    ScheduledSet.since,
    "since a job was made",
)
DEAD = JobSetKind(
    "dead",
    "the dead set",
    "Jobs that failed for good, or were killed.  They run again only if somebody retries them.",
    DeadSet,
    True,
    DeadSet.since,
    "since a job has died",
    is_age_score=True,
)
DROPPED = JobSetKind(
    "dropped",
    "the dropped jobs",
    "Jobs that were dropped before they ran.  They are kept for 7 days, 10 000 at most.",
    DroppedSet,
    True,
    DroppedSet.since,
    "since a job was dropped",
    is_age_score=True,
)


def iterate(kind: JobSetKind, job_set: JobSet, selection: Selection, now: float, order: Order) -> Iterable[SortedEntry]:
    """Return the entries, among which are those selected; in no order where Redis looks for a text."""
    if selection.text is not None:
        return job_set.scan(selection.text)
    if kind.is_age_score and (selection.older is not None or selection.newer is not None):
        oldest = -inf if selection.newer is None else now - selection.newer
        newest = inf if selection.older is None else now - selection.older
        return job_set.between(oldest, newest, order)
    return job_set if order is Order.NEWEST_FIRST else reversed(job_set)


def describe_missing(store: Store, kind: JobSetKind, jids: Sequence[str]) -> dict[str, str]:
    """Return what there is to say of jobs that are not there."""
    places = locate_jobs(store, jids, kind.job_set)
    return {
        jid: f"{clean(jid)} is not in {kind.words}, but {places[jid]}"
        if jid in places
        else f"{clean(jid)} is not in {kind.words}, nor anywhere else"
        for jid in jids
    }
