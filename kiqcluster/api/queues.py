"""Queues: what waits to be fetched, and changes to it.

Jobs briefly parked in a queue's wake list, to wake an idle worker, count as its next jobs.
Iterating, finding, moving and deleting are made for queues of any size: nothing reads one as a whole.
Counterpart: sidekiq api.rb Queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

from kiqcluster.api._pages import MAX_PAGE_BYTES, MAX_PAGE_JOBS, Order, Placed, batches, page_size, walk_queue
from kiqcluster.api._store import CLOCK, store_in_force
from kiqcluster.api.records import JobRecord, is_verbatim, renamed
from kiqcluster.control import process_registry
from kiqcluster.errors import StoreError, UsageError
from kiqcluster.features.chains import DELETED, told_of_dropped
from kiqcluster.process.clock import Clock
from kiqcluster.sidekiq.keys import Keys
from kiqcluster.sidekiq.payload import check_queue_name, new_jid
from kiqcluster.store import Store
from kiqcluster.store.engine.wait_lists import end_hand_waits
from kiqcluster.store.entry_moves import move_jobs, read_queue
from kiqcluster.store.search import search_jobs
from kiqcluster.store.shard_moves import ShardMove
from kiqcluster.store.wire import Command, Reply

__all__ = ["Queue", "QueueSummary", "QueuedJob", "read_summary", "summaries", "summary_commands"]

MAX_SCRIPT_SPAN_JOBS = 4 * MAX_PAGE_JOBS  # places between the farthest and the nearest job that one script looks for
NEAR_JOBS = 15_000  # from an end of a queue, within which one script takes out 500; farther away, fewer
MIN_FAR_JOBS = 100
SPAN_MARGIN_JOBS = 100  # places beyond these: so many jobs may have been fetched or put back since they were read
MAX_SINGLE_SEARCH_JOBS = 10  # that Redis looks for one by one: for one that is gone it reads the whole queue
MAX_MISSING_JOBS = 10 * MAX_PAGE_JOBS  # that one walk over the queue looks for
MAX_MISSING_BYTES = 4 * MAX_PAGE_BYTES  # of their payloads

Span = tuple[int, int]  # places, the farthest from the end that is fetched next, and the nearest


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """latency: seconds that the next job has waited, 0 when there is none.  processes: live ones that fetch from it.

    error: why size and latency are 0 though nobody knows them: its key is not a list.  None where they are right.
    """

    name: str
    size: int
    latency: float
    is_paused: bool
    processes: int
    error: str | None = None


class QueuedJob(JobRecord):
    """A job of a queue.  place: how many were to be fetched before it, when it was read; None where nobody knows."""

    __slots__ = ("place",)

    def __init__(self, raw: bytes, queue: str, place: int | None) -> None:
        super().__init__(raw, queue)
        self.place = place


@dataclass(frozen=True, slots=True)
class _Destination:
    """Where jobs go.  written: their bytes there.  keys: of the set of names and of the list, if that is no queue."""

    name: str
    written: Callable[[bytes], bytes]
    keys: tuple[str, str] | None = None


class Queue:
    """One queue by its name, whether it is there or not.

    Iteration is newest first, `reversed()` oldest first; both go on while others push, fetch and delete.
    """

    def __init__(self, name: str = "default", *, store: Store | None = None, clock: Clock = CLOCK) -> None:
        self.name = name
        self._store = store_in_force(store)
        self._clock = clock

    @classmethod
    def all(cls, *, store: Store | None = None) -> list[Queue]:
        """Return the queues that were ever pushed to, by name.  One round trip."""
        shard = store_in_force(store)
        names = sorted(name.decode(errors="replace") for name in shard.call("SMEMBERS", shard.keys.queues))
        return [cls(name, store=shard) for name in names]

    def __repr__(self) -> str:
        return f"<Queue {self.name}>"

    # looking

    def __len__(self) -> int:
        """Return how many jobs wait.  One round trip."""
        return sum(self._store.pipeline([("LLEN", key) for key in self._lists]))

    def __iter__(self) -> Iterator[JobRecord]:
        """Yield the jobs, newest first.  One round trip per page of 500."""
        return map(self._record, walk_queue(self._store, self.name, Order.NEWEST_FIRST))

    def __reversed__(self) -> Iterator[JobRecord]:
        """Yield the jobs, the next to be fetched first.  One round trip per page of 500."""
        return map(self._record, walk_queue(self._store, self.name, Order.OLDEST_FIRST))

    def page(self, start: int, count: int) -> list[JobRecord]:
        """Return `count` jobs from the `start`-th newest on, which is 0.  One round trip."""
        if start < 0 or count <= 0:
            return []
        part = read_queue(self._store, self.name, start, start + count - 1)
        nearest = part.length - 1 - part.first
        return [QueuedJob(payload, self.name, nearest - at) for at, payload in enumerate(part.payloads)]

    def around(self, place: int, before: int, after: int) -> list[QueuedJob]:
        """Return the jobs at a place and beside it, the next to be fetched first; place 0 is fetched next.

        before, after: how many jobs nearer to the fetching, and how many farther from it.  One round trip.
        """
        nearest = max(0, place - before)
        part = read_queue(self._store, self.name, -(place + after) - 1, -nearest - 1)
        last = part.length - part.first - len(part.payloads)
        return [QueuedJob(raw, self.name, last + at) for at, raw in enumerate(reversed(part.payloads))]

    def find_job(self, jid: str) -> JobRecord | None:
        """Return the job of this id.  It has to look through the queue: one round trip per 2 000 jobs."""
        jobs = self.holding([jid.encode()]) if is_verbatim(jid) else iter(self)
        return next((job for job in jobs if job.jid == jid), None)

    def holding(self, texts: Sequence[bytes]) -> Iterator[JobRecord]:
        """Yield the jobs whose bytes hold one of up to 8 texts, newest first; Redis looks for them.

        While the queue changes, one may come twice.  One round trip per 2 000 jobs.
        """
        return (QueuedJob(raw, self.name, None) for raw in search_jobs(self._store, self.name, texts))

    def latency(self) -> float:
        """Return the seconds that the next job has waited, 0 when there is none.  One round trip."""
        replies = self._store.pipeline([("LINDEX", key, -1) for key in self._lists])
        return _latency(self.name, replies, self._clock.now())

    def is_paused(self) -> bool:
        """Return whether workers leave it alone.  One round trip."""
        return bool(self._store.call("SISMEMBER", self._store.keys.paused, self.name))

    # changing

    def pause(self) -> bool:
        """Have workers leave it alone: ours, and those of Sidekiq Pro.  Return whether that is new.

        What they hold already is run.  Sidekiq without Pro goes on fetching from it.  Where Redis forbids CLIENT KILL,
        each idle worker may start one more job within the next 20 seconds.
        One round trip, three more per thousand processes.
        """
        is_new = bool(self._store.call("SADD", self._store.keys.paused, self.name))
        end_hand_waits(self._store, self.name)
        return is_new

    def resume(self) -> bool:
        """End a pause; return whether there was one.  One round trip."""
        return bool(self._store.call("SREM", self._store.keys.paused, self.name))

    def clear(self) -> int:
        """Delete all jobs, and the queue's name from the set of queues; return how many.  One round trip.

        A pause stays.  So do the locks of the jobs, and in their batches they stay as they are: `delete_all` ends both.
        """
        lists = self._lists
        *lengths, _, _ = self._store.transaction(
            [
                *(("LLEN", key) for key in lists),
                ("UNLINK", *lists),
                ("SREM", self._store.keys.queues, self.name),
            ]
        )
        return sum(lengths)

    def forget(self) -> bool:
        """Take the name of an empty queue out of the set of queues; return False where the queue has jobs.

        The next push puts it back.  A pause stays.  Two round trips, rarely three.
        """
        if len(self):
            return False
        keys = self._store.keys
        _, *lengths = self._store.transaction(
            [("SREM", keys.queues, self.name), *(("LLEN", key) for key in self._lists)]
        )
        if any(lengths):  # somebody has pushed meanwhile
            self._store.call("SADD", keys.queues, self.name)
        return not any(lengths)

    def delete(self, record: JobRecord) -> bool:
        """Delete a job by its exact bytes; return False when somebody was faster.  One round trip, rarely more."""
        return self.delete_all([record]) == 1

    def delete_all(self, records: Iterable[JobRecord]) -> int:
        """Delete jobs of this queue; return how many were still there.

        One or two round trips per 500, more for scattered ones and for those far from both ends; one walk through the
        queue per 5 000 that are gone.
        """
        return self._move(records, None)

    def move(self, records: Iterable[JobRecord], to: str) -> int:
        """Move jobs of this queue to the back of another one; return how many were still there.

        Pass them oldest first (`reversed(queue)`) to keep their order.  Their payload names the new queue then.
        Those whose place nobody knows any more go last.  One or two round trips per 500, more for scattered ones; one
        walk through the queue per 5 000 that are gone.  Raises InvalidPush for a name that is none.
        """
        if check_queue_name(to) == self.name:
            raise UsageError(f"the jobs are in {to} already; name another queue to move them to")
        return self._move(records, _Destination(to, partial(renamed, to=to)))

    def stage(self, records: Iterable[JobRecord], to: str, move: ShardMove) -> int:
        """Stage jobs of this queue for a queue of another shard; return how many were still there.

        Otherwise as `move`; `ShardMove.deliver` is to follow.
        """
        check_queue_name(to)
        return self._move(records, _Destination(move.to, lambda raw: move.entry(renamed(raw, to), to), keys=move.keys))

    def _move(self, records: Iterable[JobRecord], to: _Destination | None) -> int:
        moved, nearest, at_stake = 0, inf, 0
        lost: list[QueuedJob] = []  # not where they were: others have shifted them, or, far more often, taken them
        size = 0
        try:
            for batch in self._portions(batches(map(self._placed, records), _are_close)):
                span = _span(batch)
                if span is not None and moved and span[0] > nearest:  # what we took from before them has shifted them
                    span = self._span_now(batch, span)
                at_stake = len(batch)
                missing = batch if span is None else self._move_near(span, batch, to)
                moved, at_stake = moved + len(batch) - len(missing), 0
                nearest = nearest if span is None else min(nearest, span[1])
                lost += missing
                size += sum(len(job.raw) for job in missing)
                if len(lost) >= MAX_MISSING_JOBS or size > MAX_MISSING_BYTES:
                    at_stake = len(lost)
                    found = self._move_lost(lost, to)
                    moved, at_stake = moved + found, 0
                    nearest = -1 if found else nearest
                    lost, size = [], 0
            at_stake = len(lost)
            return moved + self._move_lost(lost, to)
        except StoreError as error:
            error.moved, error.unknown = moved, at_stake
            raise

    def _portions(self, whole: Iterable[list[QueuedJob]]) -> Iterator[list[QueuedJob]]:
        """Yield the jobs of batches, fewer at a time the farther they are from both ends: Redis walks there for each.

        One round trip for the first large batch that is far from the end where jobs are fetched.
        """
        length = None
        for batch in whole:
            span = _span(batch)
            size = MAX_PAGE_JOBS
            if span is not None and span[1] > NEAR_JOBS and len(batch) > MIN_FAR_JOBS:
                length = len(self) if length is None else length
                size = portion_size(min(span[1], max(0, length - 1 - span[0])))
            yield from (batch[at : at + size] for at in range(0, len(batch), size))

    def _placed(self, record: JobRecord) -> QueuedJob:
        place = record.place if isinstance(record, QueuedJob) and record.queue == self.name else None
        return QueuedJob(record.raw, self.name, place)

    def _move_near(self, span: Span, jobs: Sequence[QueuedJob], to: _Destination | None) -> Sequence[QueuedJob]:
        """Move jobs that lie close together, there or where they are now; return the others."""
        missing = self._move_within(span, jobs, to)
        if len(missing) > MAX_SINGLE_SEARCH_JOBS:  # others have shifted them
            missing = self._move_within(self._span_now(missing, span), missing, to)
        return missing

    def _move_lost(self, jobs: Sequence[QueuedJob], to: _Destination | None) -> int:
        """Move jobs that may lie anywhere; return how many there were.

        Many are found by reading the queue ourselves, in pages: whoever has Redis look for each of them holds up
        everybody else for as long.  They go in the order of the queue then.
        """
        if len(jobs) > MAX_SINGLE_SEARCH_JOBS:
            located = self._found(Counter(job.raw for job in jobs))
        else:
            located = (found for job in jobs for found in self._located([job]))
        moved = 0
        for batch in batches(located, _are_close):
            farthest, nearest = _span(batch) or (0, 0)
            # Since their page was read, up to two batches before them have left.
            span = farthest, nearest - (2 * page_size([job.raw for job in batch]) if moved else 0)
            missing = self._move_within(span, batch, to)
            if missing:
                missing = self._move_within(self._span_now(missing, span), missing, to)
            moved += len(batch) - len(missing)
        return moved

    def _found(self, wanted: Counter[bytes]) -> Iterator[QueuedJob]:
        """Yield those of the wanted payloads that are there, oldest first.  One round trip per page."""
        left = wanted.total()
        for payload, place in walk_queue(self._store, self.name, Order.OLDEST_FIRST):
            if wanted[payload] > 0:
                wanted[payload] -= 1
                left -= 1
                yield QueuedJob(payload, self.name, place)
                if not left:
                    return

    def _move_within(self, span: Span, jobs: Sequence[QueuedJob], to: _Destination | None) -> Sequence[QueuedJob]:
        """Move jobs that lie about there; return the others.  One round trip."""
        slack = min(SPAN_MARGIN_JOBS, page_size([job.raw for job in jobs]))
        pairs = [(job.raw, to.written(job.raw) if to else b"") for job in jobs]
        mark = f"moved by kiqcluster {new_jid()}".encode()
        name, keys = (to.name, to.keys) if to else ("", None)
        places = span[0] + slack, max(0, span[1] - slack)
        told = {} if to else {job.raw: told_of_dropped(job.raw, DELETED) for job in jobs}
        moved = set(move_jobs(self._store, self.name, name, pairs, places, mark, keys, told))
        return [job for at, job in enumerate(jobs) if at not in moved]

    def _span_now(self, jobs: Sequence[QueuedJob], span: Span) -> Span:
        """Return a span put right by where three of its jobs are now.  Three round trips."""
        known = {job.raw: job.place for job in (jobs[0], jobs[len(jobs) // 2], jobs[-1]) if job.place is not None}
        found = self._located([QueuedJob(raw, self.name, place) for raw, place in known.items()])
        shifts = [known[job.raw] - job.place for job in found if job.place is not None]
        return (span[0] - min(shifts), span[1] - max(shifts)) if shifts else span

    def _located(self, jobs: Sequence[QueuedJob]) -> list[QueuedJob]:
        """Return those of the jobs that are there, with their places.  One round trip each: Redis may walk for long."""
        lists = self._lists
        located = []
        for job in jobs:
            sought = [("LPOS", key, job.raw, "RANK", -1) for key in lists]
            queued, rung, in_queue, in_wake = self._store.pipeline([*(("LLEN", key) for key in lists), *sought])
            if in_wake is not None:
                located.append(QueuedJob(job.raw, self.name, rung - 1 - in_wake))
            elif in_queue is not None:
                located.append(QueuedJob(job.raw, self.name, rung + queued - 1 - in_queue))
        return located

    @property
    def _lists(self) -> tuple[str, str]:
        return self._store.keys.queue(self.name), self._store.keys.wake(self.name)

    def _record(self, placed: Placed) -> JobRecord:
        return QueuedJob(placed.payload, self.name, placed.place)


def summaries(*, store: Store | None = None, clock: Clock = CLOCK) -> list[QueueSummary]:
    """Return all queues by name: those ever pushed to, and those paused.

    Two round trips.  Of a key that is not a list the summary has an `error`.
    """
    shard = store_in_force(store)
    keys = shard.keys
    pushed, paused, identities = shard.pipeline(
        [("SMEMBERS", key) for key in (keys.queues, keys.paused, keys.processes)]
    )
    names = sorted({name.decode(errors="replace") for name in (*pushed, *paused)})
    commands = [command for name in names for command in summary_commands(keys, name)]
    processes = process_registry.field_commands(keys, [each.decode(errors="replace") for each in identities], "info")
    replies = shard.read_each([*commands, *processes]) if commands or processes else []
    now, served = clock.now(), _served(replies[len(commands) :])
    return [
        read_summary(name, replies[at : at + 4], now, is_paused=name.encode() in paused, processes=served.get(name, 0))
        for name, at in zip(names, range(0, len(commands), 4), strict=True)
    ]


def summary_commands(keys: Keys, name: str) -> list[Command]:
    """Return the four commands whose replies `read_summary` reads, for whoever asks for more in one round trip."""
    lists = keys.queue(name), keys.wake(name)
    return [*(("LLEN", key) for key in lists), *(("LINDEX", key, -1) for key in lists)]


def read_summary(name: str, replies: Sequence[Reply], now: float, *, is_paused: bool, processes: int) -> QueueSummary:
    """Return the summary of a queue; of what is not a queue, why it has no figures."""
    size = sum(length for length in replies[:2] if isinstance(length, int))
    error = next((str(reply) for reply in replies[:2] if isinstance(reply, StoreError)), None)
    return QueueSummary(name, size, _latency(name, replies[2:4], now), is_paused, processes, error)


def _served(replies: Sequence[Reply]) -> dict[str, int]:
    """Return queue → number of processes that fetch from it, from what these say about themselves."""
    counts: dict[str, int] = {}
    for info in process_registry.live_fields(replies):
        for name in process_registry.served_queues(info):
            counts[name] = counts.get(name, 0) + 1
    return counts


def _latency(name: str, tails: Sequence[Reply], now: float) -> float:
    """Return the latency of a queue from the last entries of its list and of its wake list."""
    in_queue, in_wake = tails
    oldest = in_wake if isinstance(in_wake, bytes) else in_queue
    return JobRecord(oldest, name).latency(now) if isinstance(oldest, bytes) else 0.0


def portion_size(distance: int) -> int:
    """Return how many jobs one script takes out of a queue.  distance: from the nearer end, in jobs."""
    return max(MIN_FAR_JOBS, min(MAX_PAGE_JOBS, MAX_PAGE_JOBS * NEAR_JOBS // max(1, distance)))


def _span(jobs: Sequence[QueuedJob]) -> Span | None:
    """Return between which places the jobs were, the farthest first; None where nobody knows."""
    places = [job.place for job in jobs if job.place is not None]
    return (max(places), min(places)) if places else None


def _are_close(first: QueuedJob, job: QueuedJob) -> bool:
    """Return whether one script may look for both; jobs of unknown places are looked for one by one anyway."""
    if first.place is None or job.place is None:
        return first.place is job.place
    return abs(first.place - job.place) <= MAX_SCRIPT_SPAN_JOBS * min(1.0, page_size([job.raw]) / MAX_PAGE_JOBS)
