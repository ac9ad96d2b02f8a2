"""Sources: where a bulk action finds its jobs: a sorted set, or a queue.  Each reads slices, and moves what is meant.

SetSource     slices from the highest score down; it goes on behind the last entry that was looked at
QueueSource   slices from the job that is fetched next on; it goes on behind jobs that stay (anchors), for others fetch

A source knows how far it is.  `advance` says that a slice is done with, `last` what Redis keeps of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from kiqcluster.api.bulk.look import anchors_behind, bounds, is_in_time, read_anchors, write_anchors
from kiqcluster.api.bulk.state import QUEUE, SETS, BulkAction
from kiqcluster.api.bulk.verbs import QUEUE_VERBS, VERBS
from kiqcluster.api.queues import QueuedJob
from kiqcluster.api.records import JobRecord
from kiqcluster.api.sets import SortedEntry, dead_set_limits
from kiqcluster.errors import class_name, message_of
from kiqcluster.features.chains import DELETED, told_of_dropped
from kiqcluster.process.clock import Clock
from kiqcluster.sidekiq.payload import new_jid
from kiqcluster.store import Store
from kiqcluster.store.entry_moves import BulkMoved, BulkPart, Move, move_bulk, move_bulk_jobs
from kiqcluster.store.search import Anchor, JobSlice, Place, reach_of, scan_entries, scan_jobs

__all__ = ["MAX_DISTANCE_JOBS", "Plan", "QueueSource", "SetSource", "Slice", "Source", "source_of"]

MAX_REASON_CHARACTERS = 200
MAX_DISTANCE_JOBS = 40_000  # from the nearer end of a queue: Redis walks there to take a job out, some 3 ms
TOO_FAR = f"it lies more than {MAX_DISTANCE_JOBS} jobs from both ends of its queue: Redis would be held for too long"


class Slice(NamedTuple):
    """jobs: that may be meant.  read: how many were looked at."""

    jobs: Sequence[JobRecord]
    read: int
    has_more: bool


class Plan(NamedTuple):
    """jobs: that are to be moved.  reasons: why others stay → how many.  moves: of entries of a set, one for each."""

    jobs: Sequence[JobRecord]
    reasons: Mapping[str, int]
    moves: Sequence[Move] = ()


class Source(Protocol):
    """Of one run, in one thread."""

    def read(self, most_found: int) -> Slice:
        """Return the next slice; the same again unless `advance` was called.  One round trip, rarely more."""

    def is_meant(self, job: JobRecord) -> bool:
        """Return whether a job was there before the action was asked for, and is not as it should be already."""

    def plan(self, meant: Sequence[JobRecord]) -> Plan:
        """Return what becomes of the jobs that are meant; without Redis."""

    def move(self, plan: Plan, part: BulkPart) -> BulkMoved | None:
        """Do it, and write how far the action is; None if it is not ours any more.  One round trip."""

    def advance(self) -> None:
        """Go on behind the slice that was read last."""


def source_of(store: Store, clock: Clock, action: BulkAction, *, is_json: bool) -> Source:
    """Return where the jobs of an action are.  is_json: whether arguments are shown as JSON."""
    return (QueueSource if action.key_name == QUEUE else SetSource)(store, clock, action, is_json=is_json)


class SetSource:
    """A sorted set."""

    def __init__(self, store: Store, clock: Clock, action: BulkAction, *, is_json: bool) -> None:
        begin, self._stop = bounds(action.selection, newest_first=True)
        self._store, self._clock, self._action = store, clock, action
        self._set = SETS[action.key_name](store=store, clock=clock)
        self._parts = action.selection.parts(are_arguments_json=is_json)
        self._place = self._next = action.after or begin

    def read(self, most_found: int) -> Slice:
        part = scan_entries(
            self._store, self._set.key, self._place, self._parts, stop=self._stop, most_found=most_found
        )
        self._next = part.last
        return Slice([SortedEntry(raw, score, self._set) for raw, score, _ in part.found], part.read, part.has_more)

    def is_meant(self, job: JobRecord) -> bool:
        assert isinstance(job, SortedEntry)
        came = self._set.since(job)
        return (came is None or came <= self._action.created) and not VERBS[self._action.verb].is_done(
            job, self._action.target
        )

    def plan(self, meant: Sequence[JobRecord]) -> Plan:
        """Return moves and their entries; of those on which client middleware fails, why they stay."""
        moves: list[Move] = []
        jobs: list[JobRecord] = []
        reasons: dict[str, int] = {}
        now, plan = self._clock.now(), VERBS[self._action.verb].plan
        for entry in meant:
            assert isinstance(entry, SortedEntry)
            try:
                moves.append(plan(entry, now, self._action.target))
                jobs.append(entry)
            except Exception as error:  # noqa: BLE001  # the application's code: it holds up no other entry
                why = f"{class_name(error)}: {message_of(error)}"[:MAX_REASON_CHARACTERS]
                reasons[why] = reasons.get(why, 0) + 1
        return Plan(jobs, reasons, moves)

    def move(self, plan: Plan, part: BulkPart) -> BulkMoved | None:
        last = self._next or Place(b"")
        part = replace(part, last=(last.score, last.payload), reasons=plan.reasons)
        return move_bulk(self._store, self._set.key, plan.moves, self._clock.now(), dead_set_limits(), part)

    def advance(self) -> None:
        self._place = self._next


class QueueSource:
    """A queue.  Jobs that lie too far from both ends stay: whoever takes one out has Redis walk there."""

    def __init__(self, store: Store, clock: Clock, action: BulkAction, *, is_json: bool) -> None:
        self._store, self._clock, self._action = store, clock, action
        self._parts = action.selection.parts(are_arguments_json=is_json)
        self._anchors = read_anchors(action.after.score.decode(errors="replace") if action.after else "")
        self._slice = JobSlice(0, 0, 0, [], [])
        self._next: list[Anchor] = self._anchors
        self._reach = reach_of([])

    def read(self, most_found: int) -> Slice:
        queue = self._action.queue_name
        part = scan_jobs(self._store, queue, self._anchors, self._parts, most_found=most_found, reach=self._reach)
        self._slice = part
        self._next = anchors_behind(part) or self._anchors
        self._reach = reach_of([raw for raw, _ in part.found])
        return Slice([QueuedJob(raw, queue, place) for raw, place in part.found], part.read, part.has_more)

    def is_meant(self, job: JobRecord) -> bool:
        came = job.enqueued_at or job.created_at
        return (came is None or came <= self._action.created) and is_in_time(self._action.selection, job)

    def plan(self, meant: Sequence[JobRecord]) -> Plan:
        near = [job for job in meant if self._is_near(job)]
        return Plan(near, {TOO_FAR: len(meant) - len(near)} if len(near) < len(meant) else {})

    def move(self, plan: Plan, part: BulkPart) -> BulkMoved | None:
        verb, target = QUEUE_VERBS[self._action.verb], self._action.target
        places = [place for job in plan.jobs if (place := _place(job)) is not None]
        self._next = anchors_behind(self._slice, set(places)) or self._anchors
        return move_bulk_jobs(
            self._store,
            self._action.queue_name,
            verb.queue(target),
            [(job.raw, verb.written(job, target)) for job in plan.jobs],
            places,
            self._reach,
            f"moved by kiqcluster {new_jid()}".encode(),
            replace(part, last=(write_anchors(self._next).encode(), b""), reasons=plan.reasons),
            {} if verb.queue(target) else {job.raw: told_of_dropped(job.raw, DELETED) for job in plan.jobs},
        )

    def advance(self) -> None:
        self._anchors = self._next

    def _is_near(self, job: JobRecord) -> bool:
        place = _place(job) or 0
        return min(place, self._slice.size - 1 - place) <= MAX_DISTANCE_JOBS


def _place(job: JobRecord) -> int | None:
    return job.place if isinstance(job, QueuedJob) else None
