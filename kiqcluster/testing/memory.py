"""Memory: receives jobs in place of Redis, and runs them (Fake, Inline).

1. deliver   a push's jobs → memory, as the bytes that Redis would have got
2. enqueued, retries, dead, performed   the jobs in memory, oldest first
3. drain     due entries → queues through client middleware, like the poller; then runs queued jobs, like a worker,
             until none is left, and keeps each outcome as settle would write it
Inline drains the jobs of a push before the push returns.

One list has every job together with its place, so that no second list can disagree with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from kiqcluster.application.registry import current_registry
from kiqcluster.client.reenqueue import enqueued
from kiqcluster.client.router import queue_of
from kiqcluster.errors import UsageError
from kiqcluster.features.cancellation import CANCELLATIONS
from kiqcluster.features.chains import told_of_dropped
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.delivery import Ready
from kiqcluster.process.runtime import current_setup
from kiqcluster.process.service import beside_loops
from kiqcluster.sidekiq.outcome import Dead, Deferred, Effect, Interrupted, Outcome, Requeue, Retry
from kiqcluster.sidekiq.payload import THEN
from kiqcluster.sidekiq.ruby_json import JSON
from kiqcluster.store import Store
from kiqcluster.testing.jobs import (
    UNSPECIFIED,
    EnqueuedJob,
    JobLike,
    PerformedJob,
    Unspecified,
    Wanted,
    code_name,
    listed,
    name_of,
)
from kiqcluster.testing.running import perform

__all__ = ["MAX_RUNS", "Fake", "Inline"]

MAX_RUNS = 10_000  # jobs that one drain, or one inline push, may run: more count as an endless chain
MIDDLEWARE_RETRY_SECONDS = 1.0  # until a due job whose client middleware failed is tried again
QUEUE, SCHEDULE, RETRY, DEAD = "queue", "schedule", "retry", "dead"
Chosen = Callable[[EnqueuedJob], bool]


@dataclass(slots=True, eq=False)
class Held:
    """A job in memory, and its place."""

    job: EnqueuedJob
    place: str


def _is_cancelled(held: Held, jid: str) -> bool:
    """Return whether a job is removed by a cancel of this id, as in Redis (control/cancellation)."""
    payload = held.job.payload
    following = payload.get(THEN) if held.place in (SCHEDULE, RETRY) else None
    jids = [payload.get("jid"), *(each.get("jid") for each in following or () if isinstance(each, dict))]
    return held.place != DEAD and jid in jids


class Fake:
    """Keeps jobs in memory, for a test to inspect and run.  Thread-safe.

    `_held`, `_performed` and `_kept` are guarded by `_lock`, which no thread holds while a job or middleware runs.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[Held] = []
        self._performed: list[PerformedJob] = []
        self._kept: dict[str, list[bytes]] = {}  # what jobs leave: by key, as lists of Redis
        self._thread = threading.local()  # is_running: whether it runs a job; pushed: jobs that Inline has yet to run

    def deliver(self, jobs: Sequence[Ready], store: Store | None) -> bool:
        """Take the jobs of a push; called by the client."""
        self._keep(jobs, store)
        return True

    def cancel(self, jid: str) -> bool:
        """Remove a job that waits, by its id; return whether there was one; called by `kiqcluster.cancel`."""
        with self._lock:
            removed = [held for held in self._held if _is_cancelled(held, jid)]
            self._held = [held for held in self._held if held not in removed]
        keys = current_setup().current_store().keys
        for held in removed:
            told = told_of_dropped(held.job.raw, CANCELLATIONS.name)
            self._note(Effect("tell", keys.result(each.jid), (each.value, each.seconds)) for each in told)
        return bool(removed)

    def _keep(self, jobs: Sequence[Ready], store: Store | None) -> list[Held]:
        shard = "default" if store is None else store.name
        kept = [
            Held(EnqueuedJob(job.encoded, job.queue, job.at, shard), QUEUE if job.at is None else SCHEDULE)
            for job in jobs
        ]
        with self._lock:
            self._held += kept
        for job in jobs:
            self._note(job.rows)
        return kept

    def _note(self, rows: Iterable[Effect]) -> None:
        """Keep what jobs leave: their history, and their result."""
        with self._lock:
            for row in rows:
                if row.operation not in ("note", "tell") or not isinstance(row.arguments[0], bytes):
                    continue
                former = self._kept.get(row.key, []) if row.operation == "note" else []
                self._kept[row.key] = [*former, row.arguments[0]]

    def kept(self, key: str) -> list[bytes]:
        """Return the history, or the result, of a job by its key; called by handles, and by Django's results."""
        with self._lock:
            return list(self._kept.get(key, ()))

    # jobs in memory

    def enqueued(
        self, job: JobLike | None = None, *args: Any, queue: str | None = None, tags: Iterable[str] = ()
    ) -> list[EnqueuedJob]:
        """Return the jobs in queues and in the schedule, in the order of their pushes.

        job: return only that job.  args: only with these arguments.  queue, tags: see assert_enqueued.
        """
        return self._matching(Wanted(job, args, queue, tags=tags), QUEUE, SCHEDULE)

    def retries(self, job: JobLike | None = None, *args: Any) -> list[EnqueuedJob]:
        """Return the jobs that have failed and will be tried again, at their `at`."""
        return self._matching(Wanted(job, args), RETRY)

    def dead(self, job: JobLike | None = None, *args: Any) -> list[EnqueuedJob]:
        """Return the jobs of the dead set; their payload has the reason."""
        return self._matching(Wanted(job, args), DEAD)

    def performed(self, job: JobLike | None = None, *args: Any) -> list[PerformedJob]:
        """Return the runs so far, in order, each with its outcome and error."""
        wanted = Wanted(job, args)
        with self._lock:
            return [each for each in self._performed if wanted.fits(each)]

    def clear(self) -> None:
        """Remove every job."""
        with self._lock:
            self._held.clear()
            self._performed.clear()
            self._kept.clear()

    def _matching(self, wanted: Wanted, *places: str) -> list[EnqueuedJob]:
        wanted.check()
        with self._lock:
            return [held.job for held in self._held if held.place in places and wanted.fits(held.job)]

    # assertions

    def assert_enqueued(
        self,
        job: JobLike | None = None,
        *args: Any,
        queue: str | None = None,
        at: float | datetime | Unspecified | None = UNSPECIFIED,
        in_: float | timedelta | None = None,
        count: int | None = None,
        tags: Iterable[str] = (),
        payload: Mapping[str, JSON] | None = None,
    ) -> EnqueuedJob:
        """Return the first enqueued job that fits; raise AssertionError, which lists the enqueued jobs, if none fits.

        job: a job, or the name of one.  args: its arguments as in the payload, or none for any arguments;
        `unittest.mock.ANY` stands for any value.  queue: its queue.  at: when it is due, None for at once.  in_: the
        delay with which it was pushed; both within a second.  count: number of jobs that must fit.  tags: tags that it
        has.  payload: keys and values that its payload has.
        """
        __tracebackhide__ = True
        if count is not None and count < 1:
            raise UsageError(f"count = {count} asks for no job; that there is none is said by refute_enqueued")
        wanted = Wanted(job, args, queue, at, in_, tags, payload or {})
        found = self._matching(wanted, QUEUE, SCHEDULE)
        if found and count in (None, len(found)):
            return found[0]
        if found:
            said = f"{len(found)} jobs, not {count}: {wanted.said('was enqueued')}"
        else:
            said = f"no job {wanted.said('was enqueued')}"
        raise AssertionError(said + self._instead(wanted))

    def refute_enqueued(
        self,
        job: JobLike | None = None,
        *args: Any,
        queue: str | None = None,
        at: float | datetime | Unspecified | None = UNSPECIFIED,
        in_: float | timedelta | None = None,
        tags: Iterable[str] = (),
        payload: Mapping[str, JSON] | None = None,
    ) -> None:
        """Raise AssertionError, which lists the enqueued jobs, if one of them fits.  See assert_enqueued."""
        __tracebackhide__ = True
        wanted = Wanted(job, args, queue, at, in_, tags, payload or {})
        if found := self._matching(wanted, QUEUE, SCHEDULE):
            raise AssertionError(f"no job {wanted.said('was to be enqueued')}; these were:\n{listed(found)}")

    def _instead(self, wanted: Wanted) -> str:
        """Return the end of a message: the jobs in memory."""
        others = self._matching(Wanted(), QUEUE, SCHEDULE)
        text = f"; enqueued were:\n{listed(others)}" if others else "; nothing was"
        with self._lock:
            ran = [each for each in self._performed if wanted.fits(each)]
        return f"{text}\nit has run already, see performed():\n{listed(ran)}" if ran else text

    # running

    def drain(
        self, *jobs_or_queues: JobLike, scheduled: bool = False, retries: bool = False, raise_errors: bool = True
    ) -> int:
        """Run jobs like a worker until none is left, including jobs that these push; return the number of runs.

        jobs_or_queues: jobs (as objects) and queues (by name) to run, all by default; UsageError for a name that only a
        job has.  Jobs of classes that are not registered here stay: they are Ruby's.  Scheduled jobs and retries run
        when they are due by kiqcluster's clock, frozen or not.  scheduled, retries: also run those in memory now that
        are due later.  raise_errors: raise the first error of a job, after its outcome was kept; the remaining jobs
        stay enqueued.  With False, drain continues like a worker.
        """
        __tracebackhide__ = True
        for each in jobs_or_queues:
            self._refuse_slip(each)
        chosen = _chosen(jobs_or_queues)
        ahead = {place for place, is_wanted in ((SCHEDULE, scheduled), (RETRY, retries)) if is_wanted}
        return beside_loops(partial(self._drain, chosen, ahead, raise_errors))

    def _refuse_slip(self, wanted: JobLike) -> None:
        """Raise UsageError for a job's name in the place of a queue's: drain would silently run nothing."""
        definition = current_registry().get(wanted) if isinstance(wanted, str) else None
        with self._lock:
            queues = {held.job.queue for held in self._held}
        if definition is not None and wanted not in queues | set(map(queue_of, current_registry())):
            raise UsageError(
                f"drain({wanted!r}) means a queue, and {wanted} is a job: pass the job itself, or its queue"
            )

    def _drain(self, chosen: Chosen, ahead: Collection[str], raise_errors: bool) -> int:
        __tracebackhide__ = True
        self._release(chosen, ahead, raise_errors)
        runs = 0
        while True:
            held = self._take(chosen)
            if held is not None:
                self._run(held, runs, raise_errors)
                runs += 1
            elif not self._release(chosen, (), raise_errors):
                return runs

    def _release(self, chosen: Chosen, ahead: Collection[str], raise_errors: bool) -> bool:
        """Move due jobs, and all jobs in the places `ahead`, to their queues; return whether any was moved."""
        now = SystemClock.now()
        with self._lock:
            due = [
                held
                for held in self._held
                if held.place in (SCHEDULE, RETRY)
                and (held.place in ahead or (held.job.at or 0.0) <= now)
                and chosen(held.job)
            ]
        has_moved = False
        for held in sorted(due, key=lambda each: each.job.at or 0.0):
            try:
                move = enqueued(current_setup(), held.job.raw, now)
            except Exception as error:
                if raise_errors:
                    raise
                current_setup().notify_error_handlers(error, {"context": "client middleware", "job": held.job.payload})
                self._replace(held, held.job.raw, held.place, held.job.queue, now + MIDDLEWARE_RETRY_SECONDS)
                continue
            if move.verb == "push":
                self._replace(held, move.new, QUEUE, move.queue)
                has_moved = True
            else:
                self._remove(held)
        return has_moved

    def _take(self, chosen: Chosen) -> Held | None:
        """Remove and return the job that has been in its queue for longest."""
        with self._lock:
            for index, held in enumerate(self._held):
                if held.place == QUEUE and chosen(held.job):
                    return self._held.pop(index)
        return None

    def _run(self, held: Held, runs: int, raise_errors: bool) -> None:
        """Run a job that was taken, and keep its outcome.  runs: number of runs before it."""
        __tracebackhide__ = True
        if runs >= MAX_RUNS:
            raise AssertionError(
                f"{runs} jobs have run, and {held.job} is still to come: a job that pushes itself never ends, and a "
                "middleware that puts jobs back has to let them run some day"
            )
        is_within, self._thread.is_running = self.is_running, True
        try:
            outcome, error = perform(held.job.raw, held.job.queue)
        finally:
            self._thread.is_running = is_within
        with self._lock:
            self._performed.append(PerformedJob(held.job, outcome, error))
        self._settle(held, outcome)
        if error is not None and raise_errors:
            raise error

    @property
    def is_running(self) -> bool:
        """Whether this thread runs a job."""
        return getattr(self._thread, "is_running", False)

    def _settle(self, held: Held, outcome: Outcome) -> None:
        self._note(outcome.effects)
        match outcome:
            case Retry(payload=payload, at=at):
                self._replace(held, payload, RETRY, held.job.queue, at)
            case Deferred(payload=payload, at=at):
                self._replace(held, payload, SCHEDULE, held.job.queue, at)
            case Dead(payload=payload, at=at):
                self._replace(held, payload, DEAD, held.job.queue, at)
            case Interrupted(payload=payload):
                self._replace(held, payload, QUEUE, held.job.queue, first=True)
            case Requeue():
                self._replace(held, held.job.raw, QUEUE, held.job.queue, first=True)
        self._keep_next(held, outcome)

    def _keep_next(self, held: Held, outcome: Outcome) -> list[Held]:
        """Keep what the end of a job pushes or buries, such as the next job of its chain; return what it pushes."""
        keys = current_setup().current_store().keys
        kept: list[Held] = []
        for effect in outcome.effects:
            if effect.operation == "lpush" and effect.key.startswith(keys.queue("")):
                queue, raw, place = effect.key.removeprefix(keys.queue("")), effect.arguments[0], QUEUE
            elif effect.operation == "bury":
                queue, raw, place = held.job.queue, effect.arguments[1], DEAD
            else:
                continue
            assert isinstance(raw, bytes), "a payload"
            kept.append(Held(EnqueuedJob(raw, queue, None, held.job.shard), place))
        with self._lock:
            self._held += kept
        return [each for each in kept if each.place == QUEUE]

    def _replace(
        self, held: Held, raw: bytes, place: str, queue: str, at: float | None = None, *, first: bool = False
    ) -> None:
        """Put a job in another place, with other bytes: at the end, or first if asked for."""
        job = EnqueuedJob(raw, queue, at, held.job.shard)
        if place != QUEUE and isinstance(named := job["queue"], str):
            job = EnqueuedJob(raw, named, at, held.job.shard)  # its retry_queue, if there is one
        with self._lock:
            self._held = [each for each in self._held if each is not held]
            self._held.insert(0 if first else len(self._held), Held(job, place))

    def _remove(self, held: Held) -> None:
        with self._lock:
            self._held = [each for each in self._held if each is not held]


class Inline(Fake):
    """Runs the jobs of a push before the push returns; jobs that are due later wait, as in Fake.

    If a job fails, the push raises its error; its retry is kept.  A job that another job pushes runs after that job has
    ended, never within it.
    """

    def deliver(self, jobs: Sequence[Ready], store: Store | None) -> bool:
        """Take the jobs of a push and run those that are due; called by the client."""
        __tracebackhide__ = True
        kept = [held for held in self._keep(jobs, store) if held.place == QUEUE]
        if self.is_running:
            self._thread.pushed = [*getattr(self._thread, "pushed", ()), *kept]
        else:
            beside_loops(partial(self._run_pushed, kept))
        return True

    def _keep_next(self, held: Held, outcome: Outcome) -> list[Held]:
        pushed = super()._keep_next(held, outcome)
        self._thread.pushed = [*getattr(self._thread, "pushed", ()), *pushed]
        return pushed

    def _run_pushed(self, kept: list[Held]) -> None:
        """Run the jobs of a push, and the jobs that they push."""
        __tracebackhide__ = True
        self._thread.pushed = kept
        runs = 0
        while self._thread.pushed:
            held, *self._thread.pushed = self._thread.pushed
            if self._take(partial(_is_ours, held.job)) is not None:
                self._run(held, runs, raise_errors=True)
                runs += 1


def _chosen(jobs_or_queues: Sequence[JobLike]) -> Chosen:
    """Return a function that tells whether to run a job."""
    queues = {each for each in jobs_or_queues if isinstance(each, str)}
    names = {name_of(each) for each in jobs_or_queues if not isinstance(each, str)}

    def is_chosen(job: EnqueuedJob) -> bool:
        is_meant = not jobs_or_queues or job.queue in queues or code_name(job.payload) in names
        return is_meant and _is_here(job)

    return is_chosen


def _is_ours(mine: EnqueuedJob, job: EnqueuedJob) -> bool:
    """Return whether a job is the one that this thread pushed, and this process can run it."""
    return job is mine and _is_here(job)


def _is_here(job: EnqueuedJob) -> bool:
    """Return whether this process has the code of a job."""
    return current_registry().find(job.payload)[1] is not None
