"""Sets: the jobs that wait for a time (schedule, retry) and those that wait for nothing any more (dead).

What is done to entries is done by their bytes, in scripts: each is at any time in one place, and whoever comes second
changes nothing.  Iterating and the verbs for all are made for sets of any size.
Counterpart: sidekiq api.rb JobSet, SortedEntry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from kiqcluster.api._pages import MAX_PAGE_JOBS, Order, batches, read_entries, walk_set
from kiqcluster.api._store import CLOCK, store_in_force
from kiqcluster.api.records import JobRecord, is_verbatim, renamed
from kiqcluster.client.reenqueue import DEFAULT_QUEUE, added, retried
from kiqcluster.errors import JobKilled, RedisRefused, ReplyLost, StoreError, UsageError
from kiqcluster.features.chains import DELETED, told_of_dropped, told_of_killed
from kiqcluster.process.clock import Clock
from kiqcluster.process.durations import scheduled_at
from kiqcluster.process.runtime import current_setup
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.payload import check_queue_name, check_storable
from kiqcluster.sidekiq.ruby_entries import entry_for_ruby
from kiqcluster.sidekiq.ruby_json import JSON
from kiqcluster.store import Store
from kiqcluster.store.entry_moves import STAGE, DeadSetLimits, Move, move_entries, trim_dead
from kiqcluster.store.scripts import sliced
from kiqcluster.store.search import search_entries
from kiqcluster.store.shard_moves import ShardMove
from kiqcluster.store.store import literal_pattern, scan

__all__ = [
    "DeadSet",
    "DroppedSet",
    "JobSet",
    "RetrySet",
    "ScheduledSet",
    "SortedEntry",
    "burial",
    "dead_set_limits",
    "deletion",
    "notify_killed",
]

GLOB = "*"  # makes a pattern of a text, as for Ruby; JSON has brackets, and messages have question marks
UNREADABLE = "Ruby cannot read the payload: half a surrogate pair is in it, or it is nested too deep"
MAX_SCORES_PER_ROUND_TRIP, MAX_ENTRIES_OF_A_SCORE = 100, 1_000
WAITING = ("schedule", "retry")  # sets whose jobs have not ended
KILLED = "the job was moved to the dead set by hand; it runs again only if somebody retries it there"


class SortedEntry(JobRecord):
    """A job of a set.  score: epoch seconds.  Its verbs return False when somebody was faster; one round trip each."""

    __slots__ = ("_set", "score")

    def __init__(self, raw: bytes, score: float, job_set: JobSet) -> None:
        super().__init__(raw)
        self.score = score
        self._set = job_set

    @property
    def waits(self) -> bool:
        """Whether its job is to run, and has not ended yet."""
        return self._set.key_name in WAITING

    @property
    def at(self) -> datetime:
        """The time that its score says, in UTC; the first or last that there is for one beyond."""
        try:
            return datetime.fromtimestamp(self.score, UTC)
        except (OverflowError, ValueError, OSError):
            return datetime.max.replace(tzinfo=UTC) if self.score > 0 else datetime.min.replace(tzinfo=UTC)

    @property
    def id(self) -> str:
        """`score|jid`, as Ruby's pages call it."""
        is_finite = self.score - self.score == 0
        return f"{ruby_json.ruby_float(self.score) if is_finite else self.score}|{self.jid}"

    def delete(self) -> bool:
        return self._set.delete([self]) == 1

    def reschedule(self, at: float | timedelta | datetime) -> bool:
        """Give it another time: epoch seconds, an aware datetime, or a timedelta from now.  Its score here stays."""
        return self._set.reschedule([self], at) == 1

    def add_to_queue(self) -> bool:
        """Have it run now, as it is."""
        return self._set.add_to_queue([self]) == 1

    def retry(self) -> bool:
        """Have it run now, and not count the failure that brought it here as a retry."""
        return self._set.retry([self]) == 1

    def kill(self) -> bool:
        """Move it to the dead set, and tell the death handlers."""
        return self._set.kill([self]) == 1


class JobSet:
    """A sorted set of jobs; see ScheduledSet, RetrySet and DeadSet.

    Iteration begins with the highest score, `reversed()` with the lowest; both go on while others add and take.
    """

    key_name = ""  # of the key in keys.py

    def __init__(self, *, store: Store | None = None, clock: Clock = CLOCK) -> None:
        self._store = store_in_force(store)
        self._clock = clock
        self._key: str = getattr(self._store.keys, self.key_name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    @property
    def key(self) -> str:
        """Its key in Redis."""
        return self._key

    # looking

    @staticmethod
    def since(entry: SortedEntry) -> float | None:
        """Return when an entry came here, epoch seconds; None if it does not say."""
        return entry.score

    def __len__(self) -> int:
        """Return how many entries there are.  One round trip."""
        return int(self._store.call("ZCARD", self._key))

    def __iter__(self) -> Iterator[SortedEntry]:
        """Yield the entries, highest score first.  One round trip per page of 500."""
        return (SortedEntry(*entry, self) for entry in walk_set(self._store, self._key, Order.NEWEST_FIRST))

    def __reversed__(self) -> Iterator[SortedEntry]:
        """Yield the entries, lowest score first.  One round trip per page of 500."""
        return (SortedEntry(*entry, self) for entry in walk_set(self._store, self._key, Order.OLDEST_FIRST))

    def page(self, start: int, count: int) -> list[SortedEntry]:
        """Return `count` entries from the `start`-th on, which is 0; highest score first.  One round trip."""
        if start < 0:
            return []
        entries = read_entries(self._store, self._key, Order.NEWEST_FIRST, start, count)
        return [SortedEntry(*entry, self) for entry in entries]

    def scan(self, pattern: str) -> Iterator[SortedEntry]:
        """Yield the entries whose bytes match, in no order; while the set changes, one may come twice.

        pattern: a text that they hold somewhere; with a `*`, a glob, in which `?` and `[…]` mean something too.
        One round trip per 500 entries of the set.
        """
        if GLOB not in pattern:
            pattern = f"*{literal_pattern(pattern)}*"
        for flat in scan(self._store, "ZSCAN", self._key, "MATCH", pattern, "COUNT", MAX_PAGE_JOBS):
            for payload, score in zip(flat[::2], flat[1::2], strict=True):
                yield SortedEntry(payload, float(score), self)

    def find_job(self, jid: str) -> SortedEntry | None:
        """Return the entry of this id.  It has to look through the set: one round trip per 2 000 entries."""
        entries = self.holding([jid.encode()]) if is_verbatim(jid) else iter(self)
        return next((entry for entry in entries if entry.jid == jid), None)

    def holding(self, texts: Sequence[bytes]) -> Iterator[SortedEntry]:
        """Yield the entries whose bytes hold one of up to 8 texts, highest score first; Redis looks for them.

        While the set changes, one may come twice.  One round trip per 2 000 entries.
        """
        return (SortedEntry(*entry, self) for entry in search_entries(self._store, self._key, texts))

    def fetch(self, score: float | tuple[float, float], jid: str | None = None) -> list[SortedEntry]:
        """Return the entries of a score, or of a range with both its ends; of this id only.

        Two round trips, one more per 500 entries.
        """
        low, high = score if isinstance(score, tuple) else (score, score)
        return [entry for entry in self.between(low, high, Order.OLDEST_FIRST) if jid is None or entry.jid == jid]

    def between(self, low: float, high: float, order: Order = Order.NEWEST_FIRST) -> Iterator[SortedEntry]:
        """Yield the entries of a range of scores with both its ends.

        Two round trips, one more per 500 entries of that range; others are not read.
        """
        first = high if order is Order.NEWEST_FIRST else low
        for payload, score in walk_set(self._store, self._key, order, first):
            if score < low if order is Order.NEWEST_FIRST else score > high:
                return
            if low <= score <= high:
                yield SortedEntry(payload, score, self)

    def at_scores(self, scores: Sequence[float]) -> Iterator[SortedEntry]:
        """Yield the entries of these scores, at most 1 000 of each.  One round trip per 100 scores."""
        for some in sliced(scores, MAX_SCORES_PER_ROUND_TRIP):
            commands = [
                ("ZRANGE", self._key, repr(score), repr(score), "BYSCORE", "LIMIT", 0, MAX_ENTRIES_OF_A_SCORE)
                for score in some
            ]
            for score, payloads in zip(some, self._store.pipeline(commands), strict=True):
                for payload in payloads:
                    yield SortedEntry(payload, score, self)

    # changing: entries that are still there.  Each verb returns how many were, one script per 500 entries.

    def delete(self, entries: Iterable[SortedEntry]) -> int:
        """Delete entries; return how many were still there.  One round trip per 500."""
        return self._apply(entries, lambda entry, _: deletion(entry))

    def reschedule(self, entries: Iterable[SortedEntry], at: float | timedelta | datetime) -> int:
        """Give entries another time: epoch seconds, an aware datetime, or a timedelta from now.  Bytes stay.

        Returns how many were still there.  One round trip per 500.  Raises InvalidPush for what is not a valid time.
        """
        score = repr(scheduled_at(at, self._clock.now())).encode()
        return self._apply(entries, lambda entry, _: Move(entry.raw, "defer", "", score))

    def move(self, entries: Iterable[SortedEntry], to: str) -> int:
        """Give entries another queue, to which they go in their time; return how many were still there.

        Nothing else of them changes.  One round trip per 500.  Raises InvalidPush for a name that is none.
        """
        name = check_queue_name(to)
        return self._apply(entries, lambda entry, _: Move(entry.raw, "rename", "", renamed(entry.raw, name)))

    def stage(self, entries: Iterable[SortedEntry], to: str, move: ShardMove) -> int:
        """Stage entries for the same set of another shard, with another queue; return how many were still there.

        They keep their time.  `ShardMove.deliver` is to follow.  One round trip per 500.  Raises InvalidPush.
        """
        name = check_queue_name(to)

        def plan(entry: SortedEntry, _: float) -> Move:
            return Move(
                entry.raw, STAGE, move.to, move.entry(renamed(entry.raw, name), name, self.key_name, entry.score)
            )

        return self._apply(entries, plan)

    def add_to_queue(self, entries: Iterable[SortedEntry]) -> int:
        """Push entries to their queues through client middleware; return how many were still there.

        What a link stops is deleted and counts.  Raises what a link raises, once all others have moved.
        One round trip per 500.
        """
        return self._apply(entries, lambda entry, now: added(current_setup(), entry.raw, now))

    def retry(self, entries: Iterable[SortedEntry]) -> int:
        """Do the same, with one retry fewer on the jobs' account, as Ruby does.  One round trip per 500."""
        return self._apply(entries, lambda entry, now: retried(current_setup(), entry.raw, now))

    def kill(self, entries: Iterable[SortedEntry]) -> int:
        """Move entries to the dead set with their bytes, which is trimmed; return how many were still there.

        The death handlers of this process are told of each job, with JobKilled.  One round trip per 500.
        """
        return self._apply(entries, lambda entry, _: burial(entry), notify_killed)

    def clear(self) -> int:
        """Delete all entries; return how many.  One round trip, whatever their number."""
        count, _ = self._store.transaction([("ZCARD", self._key), ("UNLINK", self._key)])
        return int(count)

    def delete_all(self) -> int:
        """Do the same as clear."""
        return self.clear()

    def retry_all(self) -> int:
        """Retry all entries; return how many.  Two round trips per 500.  Those that come meanwhile may stay."""
        return self.retry(self)

    def add_all_to_queue(self) -> int:
        """Push all entries to their queues; return how many.  Two round trips per 500."""
        return self.add_to_queue(self)

    def kill_all(self) -> int:
        """Kill all entries; return how many.  Two round trips per 500."""
        return self.kill(self)

    def _apply(
        self,
        entries: Iterable[SortedEntry],
        plan: Callable[[SortedEntry, float], Move],
        tell: Callable[[SortedEntry], object] | None = None,
    ) -> int:
        """Move entries batch by batch; return how many were still there.

        An entry that Redis will not let go, or that a link fails on, holds up no other: RedisRefused, or the link's
        error, is raised when all others have moved.
        """
        count, left, at_stake, reason, is_trim_due = 0, 0, 0, "", False
        failures: list[Exception] = []
        try:
            for several in batches(entries):
                now = self._clock.now()
                batch, moves = _planned(several, plan, now, failures)
                at_stake = len(batch)
                moved, refusals, dropped = move_entries(self._store, self._key, moves, now, dead_set_limits())
                is_trim_due |= dropped.has_more
                at_stake, count, left = 0, count + len(moved), left + len(refusals)
                reason = next(iter(refusals), reason)
                if tell is not None:
                    for index in moved:
                        tell(batch[index])
            while is_trim_due:
                is_trim_due = trim_dead(self._store, self._clock.now(), dead_set_limits()).has_more
            if left:
                raise RedisRefused(f"{reason} ({left} entries of {self._key} stay; {count} were moved)")
        except StoreError as error:
            error.moved, error.left, error.unknown = count, left, at_stake if isinstance(error, ReplyLost) else 0
            raise
        for failure in failures[:1]:
            failure.add_note(
                f"{len(failures)} entries of {self._key} stay, on which middleware failed; {count} were moved"
            )
            raise failure
        return count


class ScheduledSet(JobSet):
    """Jobs that are not due yet; score: when they are."""

    key_name = "schedule"

    @staticmethod
    def since(entry: SortedEntry) -> float | None:
        return entry.created_at


class RetrySet(JobSet):
    """Jobs that failed and will be tried again; score: when."""

    key_name = "retry"

    @staticmethod
    def since(entry: SortedEntry) -> float | None:
        return entry.retried_at or entry.failed_at or entry.created_at


class DroppedSet(JobSet):
    """Jobs that were dropped before they ran: by a strike, or because they had expired.  Python's only.

    The score is when.  It keeps 10 000 jobs for 7 days.
    """

    key_name = "dropped"


class DeadSet(JobSet):
    """Jobs that failed for good; score: time of death.  They can be retried, which takes them out."""

    key_name = "dead"

    def kill(self, entries: Iterable[SortedEntry]) -> int:  # noqa: ARG002  # as in every set
        """Raise UsageError: they are dead already."""
        raise UsageError("what lies in the dead set is dead already; retry it, or delete it")

    def bury(self, job: bytes | Mapping[str, JSON]) -> None:
        """Put a job into the dead set as of now, which is trimmed, and tell the death handlers.

        job: bytes, which stay as they are, or a payload; one that a page of Ruby's cannot show is kept inside of an
        entry that it can.  Raises InvalidArguments for values that JSON cannot store.  Two round trips; the second
        drops 1 000 entries at most.
        """
        now = self._clock.now()
        if isinstance(job, bytes):
            raw = job
        else:
            check_storable(job, "job", may_be_deep=True)  # infinity and NaN would become null
            raw = entry_for_ruby(ruby_json.encode(dict(job)), {}, DEFAULT_QUEUE)
        self._store.call("ZADD", self._key, repr(now), raw)
        trim_dead(self._store, now, dead_set_limits())
        notify_killed(JobRecord(raw))

    def trim(self) -> int:
        """Drop what is too old or too much (`dead.timeout`, `dead.max_jobs`); return how many.

        One round trip per 1 000.
        """
        count = 0
        while True:
            dropped = trim_dead(self._store, self._clock.now(), dead_set_limits())
            count += sum(dropped)
            if not dropped.has_more:
                return count


def _planned(
    entries: Iterable[SortedEntry],
    plan: Callable[[SortedEntry, float], Move],
    now: float,
    failures: list[Exception],
) -> tuple[list[SortedEntry], list[Move]]:
    """Return entries and what becomes of each, without those that a link fails on; its errors go to `failures`."""
    batch, moves = [], []
    for entry in entries:
        try:
            moves.append(plan(entry, now))
            batch.append(entry)
        except Exception as error:  # noqa: BLE001  # the application's code; it is raised when the others have moved
            failures.append(error)
    return batch, moves


def dead_set_limits() -> DeadSetLimits:
    """Return the limits of the dead set, as this process is configured."""
    config = current_setup().current_config()
    return DeadSetLimits(config.dead_max_jobs, config.dead_timeout)


def deletion(entry: SortedEntry) -> Move:
    """Return the move that deletes an entry; who waits for its job is told, unless that has ended already."""
    return Move(entry.raw, "drop", told=told_of_dropped(entry.raw, DELETED) if entry.waits else ())


def burial(entry: SortedEntry) -> Move:
    """Return the move of an entry to the dead set; who waits for its job is told, unless that has ended already."""
    told = told_of_killed(entry.raw, JobKilled(KILLED)) if entry.waits else ()
    return Move(entry.raw, "bury", "", entry.raw, told=told)


def notify_killed(job: JobRecord) -> None:
    """Tell the death handlers of a job that was killed; bytes that are not a job concern none of them."""
    if job.payload:
        current_setup().notify_death_handlers(job.payload, JobKilled(KILLED))
