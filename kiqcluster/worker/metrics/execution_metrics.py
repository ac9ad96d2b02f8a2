"""Execution metrics: the totals of the runs of jobs, for the metrics pages of Sidekiq 7 and 8 and for `kiqcluster.api`.

Runs in: the heartbeat's thread, at each beat; once more in the main thread when that one has ended.
1. gather    what was counted (tallies.py) since the last batch, by job, as commands on the keys of this minute
2. send      under a number: a batch whose reply was lost is sent again as it was, and runs once all the same

The job's path pays nothing for it.  What a process has not written when it is killed is lost, as with Sidekiq.
Counterpart: sidekiq metrics/tracking.rb.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime

from kiqcluster.errors import StoreError
from kiqcluster.process.runtime import Runtime
from kiqcluster.process.tallies import Executions
from kiqcluster.sidekiq.keys import MINUTE_TTL_SECONDS, ROLLUP_TTL_SECONDS, Keys
from kiqcluster.store import Connection, is_outage
from kiqcluster.store.scripts import ONCE, Call, Word, run_scripts
from kiqcluster.worker.run.run_report import UNREGISTERED

__all__ = ["ExecutionMetricsWriter", "increments"]

RECORD_TTL_SECONDS = 3_600  # seconds in which a batch can be sent again without being counted twice
BATCH_JOBS = 100  # jobs written in one round trip; the server does nothing else for about a millisecond
NOTHING = Executions()

Command = tuple[Word, ...]


class ExecutionMetricsWriter:
    """count: returns job name → runs since the process started.  sender: who writes, unique to this process."""

    def __init__(
        self, runtime: Runtime, keys: Keys, count: Callable[[], Mapping[str, Executions]], sender: str
    ) -> None:
        self._runtime = runtime
        self._keys = keys
        self._count = count
        self._record = keys.executions_written(sender)
        self._gathered: dict[str, Executions] = {}  # what is in batches
        self._number = 0
        self._batch: Call | None = None  # on its way, or with its reply lost
        self._refusal = ""

    def flush(self, connection: Connection) -> None:
        """Write the counts since the last call.  One round trip per BATCH_JOBS jobs, none where nothing ran.

        Never raises for Redis: a later call writes the counts that could not be written.
        """
        try:
            if self._batch is not None:
                self._send(connection, self._batch)
            for batch in self._gather():
                self._send(connection, batch)
        except StoreError as error:
            if not is_outage(error):
                self._log_refusal(str(error))

    def finish(self, connection: Connection) -> None:
        """Flush for the last time, and leave no record behind.  One round trip more."""
        self.flush(connection)
        if self._batch is None and self._number:
            with suppress(StoreError):  # it expires by itself
                connection.exchange([("UNLINK", self._record)])

    def _gather(self) -> Iterator[Call]:
        """Yield batches with what was counted until now, each to be sent before the next."""
        at = datetime.fromtimestamp(self._runtime.clock.now(), UTC)
        counts = self._count()
        changed = [name for name in counts if name != UNREGISTERED and counts[name] != self._before(name)]
        for start in range(0, len(changed), BATCH_JOBS):
            commands: list[Command] = []
            for name in changed[start : start + BATCH_JOBS]:
                commands += increments(self._keys, name, self._before(name), counts[name], at)
                self._gathered[name] = counts[name]
            commands += (("EXPIRE", key, ttl) for key, ttl in _kept(self._keys, at))
            yield self._call(commands)

    def _before(self, name: str) -> Executions:
        return self._gathered.get(name, NOTHING)

    def _call(self, commands: Iterable[Command]) -> Call:
        self._number += 1
        places: dict[Word, int] = {}
        words: list[Word] = [self._number, RECORD_TTL_SECONDS]
        for verb, key, *rest in commands:
            place = places.setdefault(key, len(places) + 2)
            words += (verb, place, len(rest), *rest)
        return Call(ONCE, [self._record, *map(str, places)], words)

    def _send(self, connection: Connection, batch: Call) -> None:
        self._batch = batch
        (reply,) = run_scripts(connection, [batch])  # refused as a whole, for want of memory perhaps: nothing ran
        self._batch = None
        self._log_refusal(reply[1][0].decode(errors="replace") if reply[1] else "")

    def _log_refusal(self, reason: str) -> None:
        """Log a refusal, unless it is the same as before."""
        if reason and reason != self._refusal:
            self._runtime.events.emit("redis_refused", operation="write executions", error=reason)
        self._refusal = reason


def increments(keys: Keys, name: str, before: Executions, now: Executions, at: datetime) -> Iterator[Command]:
    """Yield what adds the runs of a job between two counts to the keys of a minute, in the forms of 7 and of 8.

    It goes to a hash of ours as well: readers of both forms take it off once.
    """
    counts = {"p": now.processed - before.processed, "f": now.failed - before.failed}
    by_bucket = [after - count for count, after in zip(before.buckets, now.buckets, strict=True)]
    has_ms = any(by_bucket) or now.ms != before.ms
    for key, _ in _kept(keys, at):
        if has_ms:
            yield "HINCRBY", key, f"{name}|ms", now.ms - before.ms
        yield from (("HINCRBY", key, f"{name}|{letter}", count) for letter, count in counts.items() if count)
    slots = [word for slot, count in enumerate(by_bucket) if count for word in ("INCRBY", "u16", f"#{slot}", count)]
    if slots:
        for key in (keys.histogram(name, at), keys.histogram_7(name, at)):
            yield "BITFIELD", key, "OVERFLOW", "SAT", *slots
            yield "EXPIRE", key, MINUTE_TTL_SECONDS
    for slot, count in enumerate(by_bucket):
        if count:
            yield "HINCRBY", keys.own_executions(at), f"{name}|{slot}", count


def _kept(keys: Keys, at: datetime) -> tuple[tuple[str, int], ...]:
    """Return the hashes that a moment counts in, and for how many seconds they are kept."""
    return (
        (keys.executions(at), MINUTE_TTL_SECONDS),
        (keys.executions_7(at), MINUTE_TTL_SECONDS),
        (keys.own_executions(at), MINUTE_TTL_SECONDS),
        (keys.executions_rollup(at), ROLLUP_TTL_SECONDS),
    )
