"""Loop: one run of an iterable job.

1. begin      read where the job is; nothing in Redis: at the beginning
2. items      for each item: note its cursor; save the state every few seconds; end when the process stops, when
              somebody has cancelled the job, when its `timeout` is over, or when it has had its turn; else the job does
              the item
3. end        on_stop, and on_complete after the last item

The cursor is that of the item which is done next, so an item whose run is cut off is done again.
Where no worker runs the job itself (perform_inline, also inside of another job; tests without Redis) there is no state,
and nothing stops it.
Runs in: a processor thread; of an async job in a thread of the event loop's pool.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from contextlib import suppress
from math import inf
from threading import Lock
from typing import Any, ClassVar, Protocol

from kiqcluster.application.registry import Definition
from kiqcluster.errors import AbortIteration, GaveWay, Interrupted, InvalidArguments, JobCancelled, StoreError
from kiqcluster.features.iteration import Iteration
from kiqcluster.ipc.forks import Forks, exit_if_forked
from kiqcluster.iterable.enumerators import CountedItems
from kiqcluster.iterable.state import CANCELLED, LOST, read_state, save_state
from kiqcluster.process.clock import Clock, SystemClock
from kiqcluster.process.job_context import CURRENT_STEP, JobContext, Step, current_job
from kiqcluster.process.runtime import current_setup
from kiqcluster.sidekiq.payload import check_arguments
from kiqcluster.sidekiq.ruby_json import JSON
from kiqcluster.store import is_outage

__all__ = ["SAVE_SECONDS", "HasIterations", "Loop"]

LOGGER = logging.getLogger("kiqcluster")
PLAIN = (int, str)  # types of cursors that are JSON for certain
SAVE_SECONDS = 5.0  # between two writes of the state (sidekiq iterable.rb)
PAIRS = "build_enumerator has to return an iterable of pairs (item, cursor), as the helpers of kiqcluster.iterable do"


class HasIterations(Protocol):
    """The parts of an iterable job that the loop calls."""

    definition: ClassVar[Definition]
    arguments: tuple[Any, ...]
    cursor: JSON

    def build_enumerator(self, *args: Any, cursor: Any) -> Any: ...
    def on_start(self) -> None: ...
    def on_resume(self) -> None: ...
    def on_stop(self) -> None: ...
    def on_cancel(self) -> None: ...
    def on_complete(self) -> None: ...


class Loop:
    """One run.  job: the instance.  turn: seconds that it may run before others of its queue do; None for no limit."""

    def __init__(
        self, job: HasIterations, arguments: tuple[Any, ...], turn: float | None, clock: Clock | None = None
    ) -> None:
        running = _own_run(job)
        self._job = job
        self._monotonic = (clock or SystemClock()).monotonic
        self._running = running
        self._held = None if running is None or running.held is None or not running.held[0].token else running.held
        self._turn = None if self._held is None else turn  # without a state, the next run would begin anew
        self._iteration = Iteration()
        self.step = Step(CURRENT_STEP.get())  # whoever runs the items makes it the current one
        self._seconds_before = 0.0  # of earlier runs
        self._total: int | None = None  # of items, where one of our enumerators knows it; a cursor is a number of them
        self._generation = Forks.generation
        self._lock = Lock()  # an async job is cancelled on its event loop, perhaps while a thread takes the next item
        job.arguments = arguments
        self._stop_seconds = current_setup().current_config().stop_timeout
        self._started = self._saved_at = self._item_since = self._monotonic()

    def items(self) -> Generator[Any, None, None]:
        """Yield the items that this run does.

        Raises Interrupted where the job goes on in another run, JobCancelled, JobTimedOut; what hooks and the
        enumerator raise.
        """
        job = self._job
        self._begin()
        self._enter("build_enumerator")
        pairs = job.build_enumerator(*job.arguments, cursor=self._iteration.cursor)
        if pairs is None:
            LOGGER.info("build_enumerator has returned None: %s has nothing to do", type(job).__qualname__)
            return
        iterator, self._total = self._checked(pairs), pairs.total if isinstance(pairs, CountedItems) else None
        try:
            if self._iteration.executions == 1:
                self._enter("on_start")
                job.on_start()
            else:
                self._enter("on_resume")
                job.on_resume()
            with suppress(AbortIteration):
                yield from self._until_stopped(iterator)
            exit_if_forked(self._generation)  # a child that the application has forked does not end the job
        finally:
            _close(iterator)
            _close(pairs)
        self._stop()
        self._enter("on_complete")
        job.on_complete()

    # 1. begin

    def _begin(self) -> None:
        if self._held is not None and self._running is not None:
            try:
                found = read_state(self._held[1], self._running.jid)
            except StoreError as error:
                if not is_outage(error):
                    raise
                raise Interrupted("Redis is away, so it is not known where this job goes on") from error
            self._iteration, self._seconds_before = found, found.seconds
            is_cancelled, found.cancelled = found.cancelled, False
            self._running.iteration = found
            if is_cancelled or self._running.cancelled:
                self.end_cancelled()
        self._iteration.executions += 1
        self._job.cursor = self._iteration.cursor

    def _checked(self, pairs: Any) -> Iterator[tuple[Any, JSON]]:
        try:
            return iter(pairs)
        except TypeError as error:
            raise TypeError(f"{type(self._job).__qualname__}: {PAIRS}, not {pairs!r}") from error

    # 2. items

    def _until_stopped(self, pairs: Iterator[tuple[Any, JSON]]) -> Iterator[Any]:
        iteration, running, job = self._iteration, self._running, self._job
        is_first = True
        for pair in pairs:
            exit_if_forked(self._generation)
            try:
                item, cursor = pair
            except (TypeError, ValueError) as error:
                raise TypeError(f"{type(job).__qualname__}: {PAIRS}; it has yielded {pair!r}") from error
            if is_first or type(cursor) not in PLAIN:
                self._check_cursor(cursor)
            iteration.cursor = job.cursor = cursor
            now = self._monotonic()
            iteration.seconds = self._seconds_before + now - self._started
            if now - self._item_since > self._stop_seconds:
                self._warn(now - self._item_since)
            if running is not None and running.stopping:
                self._end_early(running)
            if running is not None and running.time_limit is not None:
                running.check_timeout()
            if now - self._saved_at >= SAVE_SECONDS:
                self._save()
            if self._total is not None and running is not None and isinstance(cursor, int):
                running.progress(cursor, self._total)
            if self._turn is not None and now - self._started >= self._turn and not is_first:
                self._stop()
                raise GaveWay
            is_first, self._item_since = False, now
            self._enter("each_iteration", cursor)
            yield item
            exit_if_forked(self._generation)  # else it would do all items that are left, as its parent does

    def _end_early(self, running: JobContext) -> None:
        """End the run of a job that is asked to stop.  Raises JobCancelled or Interrupted."""
        if running.cancelled:
            self.end_cancelled()
        self._stop()
        raise Interrupted

    def end_cancelled(self) -> None:
        """End a job that somebody has cancelled.  Raises JobCancelled."""
        running = self._running
        assert running is not None, "a worker runs it"
        if not running.cancelled:  # Ruby's client has cancelled it
            running.cancel()
        with self._lock:
            is_first, self._iteration.cancelled = not self._iteration.cancelled, True
        if is_first:
            self._enter("on_cancel")
            self._job.on_cancel()
            self._stop()
        raise JobCancelled(running.name, running.jid)

    def _stop(self) -> None:
        self._enter("on_stop")
        self._job.on_stop()

    def _enter(self, name: str, cursor: JSON = None) -> None:
        """Note which method of the job is called next."""
        self.step.name, self.step.cursor = name, cursor

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody has cancelled the job."""
        return self._running is not None and self._running.cancelled

    def _save(self) -> None:
        """Save where the job is.  While Redis is away the job goes on: the next save, or its end, catches up."""
        if self._held is None or self._running is None:
            self._saved_at = inf
            return
        unit, store = self._held
        try:
            answer = save_state(store, unit, self._running.jid, self._iteration.encoded())
        except StoreError as error:
            if not is_outage(error):
                raise
            return
        finally:
            self._saved_at = self._monotonic()  # its end: a Redis that does not answer must not hold up each item
        if answer == LOST:
            raise Interrupted("another process runs this job by now")
        if answer == CANCELLED:
            self.end_cancelled()

    def _warn(self, seconds: float) -> None:
        """Say once for each run that a stop would cut off such an item."""
        LOGGER.warning(
            "%s: one item took %.1f s, and a stop waits for %.0f s (timeout): a deploy cuts such items off, and they "
            "are done again; make items smaller",
            type(self._job).__qualname__,
            seconds,
            self._stop_seconds,
        )
        self._stop_seconds = inf

    def _check_cursor(self, cursor: JSON) -> None:
        """Raise TypeError for a cursor that is not JSON: the job could not go on after a stop."""
        try:
            check_arguments([cursor], _raise)
        except (InvalidArguments, RecursionError) as error:
            raise TypeError(f"{type(self._job).__qualname__}: the cursor {cursor!r} is not JSON: {error}") from error


def _own_run(job: HasIterations) -> JobContext | None:
    """Return the run of a worker that is for this job; None for a job that is called inside of another one, or of none.

    The state of the other one must not become that of this one.
    """
    running = current_job()
    if running is None or running.iteration is not None or running.name != type(job).definition.name:
        return None
    return running


def _raise(error: InvalidArguments) -> None:
    raise error


def _close(iterator: Any) -> None:
    """Close a generator, so that it gives back its file or connection."""
    close = getattr(iterator, "close", None)
    if callable(close):
        close()
