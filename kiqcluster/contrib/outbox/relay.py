"""Relay: pushes the rows of an outbox to Redis.

Runs in: a thread of each worker (worker/maintenance/outside_sources), `python -m kiqcluster.contrib.outbox relay`, and
the sender's thread of a process that has committed rows.
1. lock    some rows, the oldest first, that no other relay has locked
2. push    as Client does, in one round trip for each shard; the rows decide where and how
3. delete  what Redis has, confirmed by replicas or not; mark what it refuses, which is tried again in a minute and
           holds up no other row
4. commit

A crash between push and commit leaves the rows: they are pushed again, with the same jids.  Nothing is lost, and a job
that must take effect once calls `once`.
A push to a Redis that is away keeps its rows locked until the time limit of the call.  From then on its rows are not
locked: each look asks for an answer first, and says once that they wait.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from kiqcluster.client.writes import write_all
from kiqcluster.contrib.outbox.rows import Row, ready
from kiqcluster.errors import KiqError, MalformedPayload, NotReplicated, RedisRefused, StoreError, UsageError
from kiqcluster.process.clock import Clock, SystemClock
from kiqcluster.process.delivery import Ready
from kiqcluster.process.runtime import Setup, current_setup
from kiqcluster.store import Store, is_outage

__all__ = [
    "BATCH_SIZE",
    "INTERVAL_SECONDS",
    "KEEP_INBOX",
    "Batch",
    "NoTables",
    "NotRelayed",
    "Pushed",
    "Relay",
    "Summary",
    "Table",
    "push",
]

LOGGER = logging.getLogger("kiqcluster")
BATCH_SIZE = 500  # rows of one transaction
INTERVAL_SECONDS = 1.0
PROBLEM_DELAY_SECONDS = 60.0  # until a row that was refused is tried again, as with other sources of the poller
MAX_PROBLEM_CHARACTERS = 500
KEEP_INBOX = timedelta(days=30)  # longer than all retries of a job take, which are 21 days by default
PRUNE_INTERVAL_SECONDS = 600.0
PRUNE_SIZE = 1_000  # keys of one transaction
SUMMARY_INTERVAL_SECONDS = 15.0
# Of refusals that may be about one job: the type of its queue's key, a key that is not allowed, an error of a script.
ROW_CODES = frozenset({"WRONGTYPE", "NOPERM", "ERR"})
FAILED_UPKEEP_SECONDS = 300.0  # until upkeep that has failed is tried again; rows go on meanwhile


class NotRelayed(KiqError):
    """A row of an outbox could not be pushed.  It stays, and is tried again."""


class NoTables(KiqError):
    """A database lacks the tables of an outbox.  remedy: how this project makes them."""

    def __init__(self, name: str, remedy: str) -> None:
        super().__init__(
            f"the database {name!r} lacks kiq_outbox or kiq_inbox, and no job is relayed from it; {remedy}"
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """What waits.  refused: how many of them have a problem.  oldest_at: epoch seconds, None if nothing waits."""

    waiting: int
    refused: int
    oldest_at: float | None


class Summaries(Protocol):
    """Receives the name of a table, its summary, and the epoch second of that."""

    def __call__(self, name: str, summary: Summary, now: float, /) -> None: ...


class Batch(Protocol):
    """Rows that are locked until the end of their transaction."""

    rows: Sequence[Row]

    def delete(self, ids: Sequence[int]) -> None: ...

    def mark(self, identifier: int, problem: str, retry_at: float) -> None: ...


class Table(Protocol):
    """The tables of an outbox and of an inbox in a database.  Calls raise NoTables, and what the database raises."""

    name: str

    def locked(
        self, limit: int, now: float, without_shards: Collection[str], ids: Sequence[int] | None
    ) -> AbstractContextManager[Batch]:
        """Begin a transaction, lock rows that are due in order, and commit at the end; roll back an error.

        Where a lock holds up writers (SQLite), nothing is locked if nothing is due.  ids: only these.
        """
        ...

    def summary(self) -> Summary: ...

    def refused(self, limit: int) -> list[Row]:
        """Return rows with a problem, the oldest first."""
        ...

    def retry_refused(self) -> int:
        """Have rows with a problem tried at once; return how many."""
        ...

    def prune_inbox(self, before: float, limit: int) -> int:
        """Forget keys that were recorded before this epoch second; return how many."""
        ...


@dataclass(slots=True)
class Pushed:
    """What came of a push.  ids: rows that Redis has.  problems: row → why not.  reached: shards that took some.

    away: shards that gave no answer, or refuse all rows → why.
    unconfirmed: of pushes whose jobs Redis has, and too few replicas; another push would make each of them run twice.
    in_memory: jobs of a test, for which there is no Redis; they are delivered after the commit, for they may run then.
    """

    ids: list[int] = field(default_factory=list)
    problems: dict[int, str] = field(default_factory=dict)
    reached: set[str] = field(default_factory=set)
    away: dict[str, StoreError] = field(default_factory=dict)
    unconfirmed: list[NotReplicated] = field(default_factory=list)
    in_memory: list[tuple[list[Ready], Store]] = field(default_factory=list)


def push(setup: Setup, rows: Iterable[Row]) -> Pushed:
    """Push rows; one round trip per shard, and one more for each row if Redis refuses some for a reason of theirs."""
    pushed = Pushed()
    groups: dict[tuple[str, int], list[tuple[int, Ready]]] = {}
    for row in rows:
        try:
            groups.setdefault((row.shard, row.wait_replicas), []).append((row.id, ready(row)))
        except MalformedPayload as error:
            pushed.problems[row.id] = str(error)
    for (shard, wait_replicas), jobs in groups.items():
        try:
            store = setup.shard(shard)
        except UsageError as error:
            pushed.problems.update((identifier, str(error)) for identifier, _ in jobs)
            continue
        if setup.delivery is not None:
            pushed.in_memory.append(([job for _, job in jobs], store))
            pushed.ids += [identifier for identifier, _ in jobs]
        else:
            _push_group(pushed, store, shard, jobs, wait_replicas)
    return pushed


def _push_group(
    pushed: Pushed, store: Store, shard: str, jobs: Sequence[tuple[int, Ready]], wait_replicas: int
) -> None:
    """Push jobs of one shard; each by itself if Redis refuses some of them for a reason of theirs."""
    try:
        write_all(store, [job for _, job in jobs], wait_replicas)
        pushed.ids += [identifier for identifier, _ in jobs]
        pushed.reached.add(shard)
        return
    except StoreError as error:
        failure = error
    certain, rest = Counter(failure.enqueued), []
    for identifier, job in jobs:
        if certain[job.jid] > 0:
            certain[job.jid] -= 1
            pushed.ids.append(identifier)
        else:
            rest.append((identifier, job))
    if isinstance(failure, NotReplicated):
        pushed.unconfirmed.append(failure)
        pushed.reached.add(shard)
        return  # the others have not been written; the next batch has them
    if not _is_about_row(failure):
        pushed.away[shard] = failure
    elif len(jobs) == 1:
        pushed.problems[jobs[0][0]] = str(failure)
    else:
        for each in rest:
            if shard not in pushed.away:
                _push_group(pushed, store, shard, [each], wait_replicas)


def _is_about_row(error: StoreError) -> bool:
    """Return whether Redis may take other jobs; it takes none without memory or with a wrong password, for example."""
    if is_outage(error) or not isinstance(error, RedisRefused):
        return False
    of_user = error.code == "NOPERM" and "to run the" in str(error)  # about the command, and not about a key
    return error.code in ROW_CODES and not of_user and "unknown command" not in str(error)


class Relay:
    """The source of one database.

    keep_inbox: how long keys of `once` are kept; None for ever.  One thread at a time calls `move`, another
    may call `move_rows`.
    """

    def __init__(
        self,
        table: Table,
        *,
        interval: float = INTERVAL_SECONDS,
        keep_inbox: timedelta | None = KEEP_INBOX,
        on_summary: Summaries | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not interval > 0:
            raise UsageError(f"interval = {interval!r} does not fit; it takes seconds, more than 0")
        self.table = table
        self.name = f"outbox {table.name}"
        self.interval = interval
        self._keep_seconds = None if keep_inbox is None else keep_inbox.total_seconds()
        self._on_summary = on_summary
        self._clock = clock or SystemClock()
        self._away: set[str] = set()  # shards that gave no answer, or refuse all rows
        self._told: set[str] = set()  # those of which that was said; until they take rows again
        self._goes_on = False  # whether the next call of `move` belongs to the same look
        self._prune_at = self._summary_at = 0.0  # monotonic

    def move(self) -> bool:
        """Push some rows; return whether more may wait.  Raises what the database raises."""
        goes_on, self._goes_on = self._goes_on, False
        if not goes_on:  # otherwise a shard that is away would get the same rows again and again, without a pause
            self._ask_away()
        self._goes_on = self._move(None)
        self._do_upkeep()
        return self._goes_on

    def move_rows(self, ids: Sequence[int]) -> None:
        """Push these rows, without upkeep."""
        self._ask_away()
        self._move(ids)

    def _ask_away(self) -> None:
        setup = current_setup()
        self._away = {shard for shard in self._away if not answers(setup, shard)}

    def _move(self, ids: Sequence[int] | None) -> bool:
        setup, now = current_setup(), self._clock.now()
        with self.table.locked(BATCH_SIZE, now, self._away, ids) as batch:
            pushed = push(setup, batch.rows)
            if pushed.ids:
                batch.delete(pushed.ids)
            for identifier, problem in pushed.problems.items():
                batch.mark(identifier, problem[:MAX_PROBLEM_CHARACTERS], now + PROBLEM_DELAY_SECONDS)
            rows = batch.rows
        for jobs, store in pushed.in_memory:
            if setup.delivery is not None:
                setup.delivery.deliver(jobs, store)
        self._away |= pushed.away.keys()
        self._tell_shards(setup, pushed)
        self._report(setup, rows, pushed)
        return len(rows) == BATCH_SIZE

    def _tell_shards(self, setup: Setup, pushed: Pushed) -> None:
        """Say once that a shard is away, and that it is back."""
        for shard in (pushed.reached - pushed.away.keys()) & self._told:
            self._told.discard(shard)
            LOGGER.warning("%s: the shard %r takes rows again", self.name, shard)
        for shard, failure in pushed.away.items():
            if shard in self._told:
                continue
            self._told.add(shard)
            said = f"{self.name}: rows for the shard {shard!r} wait until it takes them: {failure}"
            if is_outage(failure):
                LOGGER.warning("%s", said)
            else:  # it does not go away by itself
                setup.notify_error_handlers(NotRelayed(said), {"context": "outbox"})

    def _report(self, setup: Setup, rows: Sequence[Row], pushed: Pushed) -> None:
        """Tell the error handlers of problems that are new."""
        for failure in pushed.unconfirmed:
            setup.notify_error_handlers(failure, {"context": "outbox", "jids": failure.jids})
        for row in rows:
            problem = pushed.problems.get(row.id, "")[:MAX_PROBLEM_CHARACTERS]
            if problem not in ("", row.problem):
                error = NotRelayed(f"{row.job_class} {row.jid} stays in the outbox, and is tried again: {problem}")
                setup.notify_error_handlers(error, {"context": "outbox", "row": row.id, "jid": row.jid})

    def _do_upkeep(self) -> None:
        now = self._clock.monotonic()
        if now >= self._summary_at and self._on_summary is not None:
            self._summary_at = now + FAILED_UPKEEP_SECONDS
            self._on_summary(self.table.name, self.table.summary(), self._clock.now())
            self._summary_at = now + SUMMARY_INTERVAL_SECONDS
        if now >= self._prune_at and self._keep_seconds is not None:
            self._prune_at = now + FAILED_UPKEEP_SECONDS
            pruned = self.table.prune_inbox(self._clock.now() - self._keep_seconds, PRUNE_SIZE)
            self._prune_at = now + (0.0 if pruned == PRUNE_SIZE else PRUNE_INTERVAL_SECONDS)


def answers(setup: Setup, shard: str) -> bool:
    """Return whether a shard answers; one that is no more in the configuration does, for each row says so."""
    try:
        setup.shard(shard).call("PING")
    except UsageError:
        return True
    except StoreError as error:
        return _is_about_row(error)
    return True
