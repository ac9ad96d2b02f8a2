"""CronTicks: enqueues the jobs of cron entries whose ticks are due; a source of the poller.

Runs in: the poller's thread, also in a quiet process.
1. read      the entries that are due, the oldest first
2. plan      which ticks get a job (features/cron.py), and the payloads (client/cron_jobs.py)
3. write     each job with its step to the following tick, in one script; all of them in one round trip

Every process may do it; each tick is taken once.  A process that does not know the class of an entry, or is of another
application, leaves it to others for a while: they know its middleware and guarantees.  An entry that cannot be read
here (another release wrote it, or this host does not have its time zone), whose job cannot be made, or is refused by
Redis, holds up no other: its tick stays, and is tried again in a minute.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import inf
from typing import NamedTuple

from kiqcluster.application.registry import Definition, Registry
from kiqcluster.client.cron_jobs import prepared
from kiqcluster.client.writes import write_each
from kiqcluster.errors import RedisRefused, UsageError, as_exception
from kiqcluster.features.cron import plan
from kiqcluster.process.boundary.calls import guarded
from kiqcluster.process.delivery import Ready
from kiqcluster.process.metrics import JobMetrics
from kiqcluster.process.runtime import Runtime
from kiqcluster.sidekiq.cron_entries import CronEntry, Step
from kiqcluster.store import is_outage
from kiqcluster.store.cron import DueTick, read_ticks, skip_ticks
from kiqcluster.worker.maintenance.poller import Moved

__all__ = ["CronTicks"]

MAX_TICKS = 200  # entries at once
STRANGER_SECONDS = 5.0  # that a tick is left to processes that know the class of its job
RETRY_SECONDS = 60.0  # until an entry is tried again that could not be read, or its job not be made or written
MAX_KNOWN = 20_000  # entries that are kept decoded


class _Job(NamedTuple):
    """A job on its way, and the step of its entry."""

    ready: Ready
    id: str
    step: Step


class CronTicks:
    """metrics: count how late each tick was.

    known: scope of this application (duties.scope), for which it polls: others leave its ticks to it.
    """

    def __init__(self, runtime: Runtime, registry: Registry, metrics: JobMetrics, known: str = "") -> None:
        self.key = runtime.store.keys.cron_ticks
        self.duty = f"{self.key} {known}"
        self._runtime = runtime
        self._registry = registry
        self._metrics = metrics
        self._application = runtime.config.known_cron_application()
        self._entries: dict[str, tuple[bytes, CronEntry | None]] = {}  # id → as Redis holds it, and decoded
        self._refused: dict[str, str] = {}  # entry whose latest push Redis has refused → the words of that
        self._waiting: dict[str, float] = {}  # entry that could not be enqueued → monotonic second of the next try

    def move(self, now: float) -> Moved:
        """Enqueue what is due.  Two round trips, two more if something is.  Raises StoreError."""
        here = self._runtime.clock.monotonic()
        self._waiting = {each: until for each, until in self._waiting.items() if until > here}
        due = read_ticks(self._runtime.store, now, MAX_TICKS + len(self._waiting))
        jobs: list[_Job] = []
        skipped: list[tuple[str, float, float | None]] = []
        later = inf  # seconds until an entry is due that was left out
        for tick in due.ticks:
            if tick.id in self._waiting:
                later = min(later, self._waiting[tick.id] - here)
            elif (seconds := self._left_to_others(tick, due.now)) > 0:
                later = min(later, seconds)
            else:
                self._plan(tick, due.now, jobs, skipped)
        if skipped:
            skip_ticks(self._runtime.store, skipped)
        moved = self._write(jobs, due.now) + len(skipped)
        if self._waiting:
            later = min(later, *(until - here for until in self._waiting.values()))
        next_by_id: dict[str, float] = {each.id: each.step.following for each in jobs}  # the last step of each counts
        next_by_id |= {each: at for each, _, at in skipped if at is not None}
        if moved and (due.next_at is None or any(at <= due.now for at in next_by_id.values())):
            return Moved(moved, due.now, None)
        return Moved(moved, due.now, min(due.next_at or inf, due.now + later, *next_by_id.values()))

    def _left_to_others(self, tick: DueTick, now: float) -> float:
        """Return the seconds for which a tick is left to processes that know the class of its job; 0 for none."""
        entry = None if tick.raw is None else self._entry(tick.id, tick.raw)
        if entry is None or self._definition(entry) is not None:
            return 0.0
        return max(0.0, tick.awaited + STRANGER_SECONDS - now)

    def _plan(
        self, tick: DueTick, now: float, jobs: list[_Job], skipped: list[tuple[str, float, float | None]]
    ) -> None:
        """Add what becomes of a due tick to the jobs, or to the ticks that are skipped."""
        if tick.raw is None:  # the entry was removed
            skipped.append((tick.id, tick.awaited, None))
            return
        entry = self._entry(tick.id, tick.raw)
        if entry is None:  # other processes may be able to read it
            self._wait(tick.id)
            return
        for step in plan(entry, tick.awaited, now):
            ready = None if step.at is None else self._prepared(entry, step, now)
            if ready is not None:
                jobs.append(_Job(ready, entry.id, step))
            elif tick.id in self._waiting:
                return
            else:
                skipped.append((tick.id, step.awaited, float(step.following)))

    def _entry(self, identifier: str, raw: bytes) -> CronEntry | None:
        """Return an entry, None for one that cannot be read here, which is reported once."""
        known = self._entries.get(identifier)
        if known is not None and known[0] == raw:
            return known[1]
        entry = None
        try:
            entry = CronEntry.read(identifier, raw)
        except UsageError as error:
            self._runtime.setup.notify_error_handlers(error, {"context": "cron", "entry": identifier})
        if len(self._entries) >= MAX_KNOWN:
            self._entries.clear()
        self._entries[identifier] = raw, entry
        return entry

    def _definition(self, entry: CronEntry) -> Definition | None:
        """Return the class of an entry's jobs, None where it is not known here.

        A class of that name here is another one if another application declares the entry.
        """
        return self._registry.get(entry.job) if entry.application in ("", self._application) else None

    def _prepared(self, entry: CronEntry, step: Step, now: float) -> Ready | None:
        """Return the job of a step; None if client middleware stopped it, or if it cannot be made now."""
        setup, store, definition = self._runtime.setup, self._runtime.store, self._definition(entry)
        return guarded(partial(self._unprepared, entry), prepared, setup, store, definition, entry, step, now)

    def _unprepared(self, entry: CronEntry, raised: BaseException) -> None:
        self._runtime.setup.notify_error_handlers(as_exception(raised), {"context": "cron", "entry": entry.id})
        self._wait(entry.id)

    def _write(self, jobs: Sequence[_Job], now: float) -> int:
        """Write jobs; return how many ticks this process has taken."""
        taken = 0
        results = write_each(self._runtime.store, [job.ready for job in jobs])
        for job, result in zip(jobs, results, strict=True):
            if isinstance(result, Exception):
                self._report(job.id, result)
                self._wait(job.id)
                continue
            self._refused.pop(job.id, None)
            if result is None or result.row.operation != "tick":
                taken += 1
                self._metrics.count_cron(max(0.0, now - (job.step.at or now)), is_refused=result is not None)
        return taken

    def _report(self, identifier: str, error: Exception) -> None:
        """Report why a job was not pushed; a refusal of Redis (memory, an ACL) once, not at each try of each entry."""
        if not isinstance(error, RedisRefused) or is_outage(error):
            self._runtime.trouble("cron", error)
            return
        words = str(error)
        if words not in self._refused.values():
            self._runtime.events.emit("redis_refused", operation="the push of a cron job", error=words)
        self._refused[identifier] = words

    def _wait(self, identifier: str) -> None:
        self._waiting[identifier] = self._runtime.clock.monotonic() + RETRY_SECONDS
