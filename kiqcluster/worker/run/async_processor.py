"""Async processor: one event loop, on which all async jobs of a worker run.

Runs in: its own thread, which has the loop; what other threads call says so.
1. Places       a processor has begun a unit whose job is async: it runs only if there is a place
2. run_on_loop  its coroutine goes to the loop; the processor takes the next unit
3. AsyncRun     the steps of the coroutine, and its end: the outcome is handed in (execution.py decides it)
4. cancel       at a stop, when the time of running jobs is over; `interrupt` has the outcomes of those that are left

The loop never waits for Redis: processors reserve and begin units, and whoever flushes next settles their outcomes.
A coroutine runs in steps, one at a time in the whole process.  So the job whose step is the last one is to blame for a
death of the process, and the others are not.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Generator, Iterable, Iterator
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from math import inf
from threading import get_native_id
from typing import Any

from kiqcluster.errors import JobTimedOut, UsageError
from kiqcluster.ipc.forks import Forks, exit_if_forked
from kiqcluster.ipc.running_jobs import RunningJobs
from kiqcluster.process.boundary.calls import guarded, handled_error, is_a
from kiqcluster.process.clock import Clock
from kiqcluster.process.context.cancel_marks import Marks
from kiqcluster.process.service import Service
from kiqcluster.sidekiq.outcome import Outcome
from kiqcluster.store.engine.units import Settlement
from kiqcluster.worker.run.endings import REQUEUE
from kiqcluster.worker.run.execution import Execution
from kiqcluster.worker.run.job_run import JobRun

__all__ = ["AsyncProcessor", "new_loop"]

MAX_PLACE_WAIT_SECONDS = 0.1  # for a place; a unit that waits for longer goes back to its queue
BLOCKED_SECONDS = 1.0  # of one step, from which on the log says that it blocks the loop

HandIn = Callable[[Settlement], object]


class AsyncProcessor(Service):
    """running_jobs: has a record for each job that may run at once, behind those of the processors.

    execution: decides what becomes of jobs that have ended on the loop.  hand_in: from any thread, never waits.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        hand_in: HandIn,
        execution: Execution,
        running_jobs: RunningJobs,
        clock: Clock,
        on_crash: Callable[[str, Exception], None],
    ) -> None:
        super().__init__("async", on_crash)
        self.loop = loop
        self.execution = execution
        self.running_jobs = running_jobs
        self.generation = Forks.generation
        self.step: AsyncRun | None = None  # the one whose step is under way
        self.steps = 0  # so far
        self.is_cancelling = False
        self._hand_in = hand_in
        self._now = clock.monotonic
        first = running_jobs.processors
        self.places = Places(range(first, first + running_jobs.async_places), self.stopping.is_set)
        self._runs: dict[int, AsyncRun] = {}  # by record
        self._submitted: deque[tuple[AsyncRun, Context]] = deque()
        self._is_woken = False
        self._ended = threading.Condition()  # a job has ended while they are cancelled
        self._thread_number = 0  # of the loop's, as the kernel numbers it
        self._looked_at = (0, 0.0)  # steps and time, when `blocked` looked last

    def run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self._thread_number = get_native_id()
        if not self.stopping.is_set():
            self.loop.run_forever()  # goes on where it was after a task of the application has called sys.exit

    def wake(self) -> None:
        with suppress(RuntimeError):  # it is closed
            self.loop.call_soon_threadsafe(self.loop.stop)

    # processor threads

    def run_on_loop(self, run: JobRun, record: int, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Have a coroutine run on the loop, in a copy of the caller's context.  The unit is the loop's from here on."""
        unit = run.unit
        self.running_jobs.start_async(record, unit.token, unit.payload)
        self.running_jobs.thread(record, self._thread_number)
        started = AsyncRun(self, run, record, coroutine)
        self._runs[record] = started
        try:
            self._submit(started)
        except BaseException:  # for want of memory: it has failed, and its place is free
            started.is_over = True
            del self._runs[record]
            raise

    def complete(self, run: JobRun, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the loop, and wait for it: a job inside middleware that is not async.

        Returns what it returns, and raises what it raises.
        """
        waited = WaitedRun(self, run, coroutine)
        run.obey_soon = partial(self.loop.call_soon_threadsafe, waited.obey)
        self._submit(waited)
        try:
            return waited.result()
        finally:
            run.obey_soon = None  # which has the run

    def limit(self, record: int, token: str, seconds: float) -> None:
        """Have the supervisor know for how long a unit may run."""
        self.running_jobs.limit(record, token, seconds)

    def _submit(self, run: AsyncRun) -> None:
        self._submitted.append((run, copy_context()))
        if not self._is_woken:
            self._wake_loop()

    def _wake_loop(self) -> None:
        self._is_woken = True
        try:
            self.loop.call_soon_threadsafe(self._start_submitted)
        except BaseException:  # for want of memory: the next one that is submitted wakes it
            self._is_woken = False
            raise

    # the loop

    def _start_submitted(self) -> None:
        self._is_woken = False  # first: whatever is submitted later wakes the loop
        exit_if_forked(self.generation)
        submitted = self._submitted
        try:
            while submitted:
                run, context = submitted.popleft()
                # Within its context, and not with it: task factories of an older form take none.
                guarded(partial(_fail, context, run), context.run, run.start, self.loop)
        finally:
            if submitted:  # there was no memory to say that the last one has failed
                self._wake_loop()

    def end(self, run: AsyncRun, returned: Any, error: BaseException | None) -> None:
        """Hand in the outcome of a job that has ended.  One that was cancelled for a stop is left to `interrupt`."""
        if self.is_cancelling and error is not None:
            run.has_ended = True
        else:
            settlement = run.settlement
            try:
                settlement.outcome = self.execution.finish(run.job_run, returned, error)
            except BaseException:  # there is no memory; its unit does not wait, and one that has run must not run again
                settlement.outcome = run.job_run.outcome or REQUEUE
                raise
            finally:
                self._hand_in(settlement)
                self._release(run)
                run.release()
        if self.is_cancelling:
            with self._ended:
                self._ended.notify_all()

    def cancel_jobs(self, marks: Marks) -> None:
        """Tell jobs that somebody has cancelled them: where they wait, CancelledError is raised.  From any thread."""
        if self._runs:
            with suppress(RuntimeError):  # it is closed
                self.loop.call_soon_threadsafe(self._cancel_jobs, marks)

    def _cancel_jobs(self, marks: Marks) -> None:
        self._start_submitted()
        for run in self.runs():
            if run.job_run.context is not None and not run.has_ended:
                marks.tell(run.job_run.context)
                run.obey()

    def _release(self, run: AsyncRun) -> None:
        record = run.record
        del self._runs[record]
        self.running_jobs.finish(record)
        self.places.leave(record)

    def _cancel_all(self) -> None:
        self._start_submitted()
        for run in list(self._runs.values()):
            if run.task is not None and not run.has_ended:
                run.task.cancel()

    # the main thread, the manager, the heartbeat

    def running(self) -> list[JobRun]:
        """Return the runs of this moment."""
        return [run.job_run for run in self.runs()]

    def runs(self) -> list[AsyncRun]:
        """Return the same with their records."""
        return list(self._runs.values())

    def cancel(self, seconds: float) -> None:
        """Cancel all jobs, and wait until they have ended, so long at most.  From here on none is started anew."""
        if not self._runs:
            return
        self.is_cancelling = True
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._cancel_all)
        with self._ended:
            self._ended.wait_for(lambda: all(run.has_ended for run in self.runs()), seconds)

    def interrupt(self, timed_out: Collection[str] = ()) -> Iterator[Settlement]:
        """Yield the outcomes of the units that still run when the process must go.  timed_out: see Processor."""
        for job_run in self.running():
            token = job_run.unit.token
            conclude = self.execution.put_back if timed_out else self.execution.interrupt
            if token in timed_out:
                conclude = self.execution.time_out
            yield _concluded(job_run, conclude)

    def ended(self) -> Iterator[Settlement]:
        """Yield the outcomes of the units that have ended, and may not be handed in yet."""
        for job_run in self.running():
            if job_run.outcome is not None:
                yield _concluded(job_run, self.execution.interrupt)

    def blocked(self) -> tuple[JobRun, float] | None:
        """Return the job whose step has lasted since an earlier look, and how long that is ago, in seconds.

        Once for each step.
        """
        (steps, at), now = self._looked_at, self._now()
        run = self.step
        if run is None or self.steps != steps:
            self._looked_at = (self.steps, now)
        elif now - at >= BLOCKED_SECONDS:
            self._looked_at = (steps, inf)
            return run.job_run, now - at
        return None

    def close_after_fork(self) -> None:
        """Close the loop's descriptors in a forked process."""
        for part in ("_selector", "_ssock", "_csock"):
            with suppress(AttributeError, OSError, ValueError):
                os.close(getattr(self.loop, part).fileno())


class Places:
    """The places of the event loop: each is a record of RunningJobs.  From any thread."""

    def __init__(self, records: Iterable[int], is_stopping: Callable[[], bool]) -> None:
        self._free = deque(records)
        self._is_stopping = is_stopping
        self._left = threading.Condition()
        self._waiting = 0  # threads

    def take(self) -> int | None:
        """Return a free record, None if there is none for a while."""
        try:
            return self._free.popleft()
        except IndexError:
            return self._wait(MAX_PLACE_WAIT_SECONDS)

    def leave(self, record: int) -> None:
        """Give a place back."""
        self._free.append(record)
        if self._waiting:
            with self._left:
                self._left.notify()

    def is_full(self) -> bool:
        """Return whether no place is free."""
        return not self._free

    def wait(self) -> None:
        """Wait until there may be a place: a processor that has met a full loop reserves nothing meanwhile."""
        record = self._wait(None)
        if record is not None:
            self.leave(record)

    def _wait(self, seconds: float | None) -> int | None:
        with self._left:
            self._waiting += 1
            try:
                self._left.wait_for(lambda: bool(self._free) or self._is_stopping(), seconds)
            finally:
                self._waiting -= 1
        try:
            return self._free.popleft()
        except IndexError:  # others were faster
            return None


class AsyncRun(Coroutine[Any, Any, None]):
    """A job on the loop: the task that runs it takes it for a coroutine.

    is_over: whether no code of the job runs any more.  has_ended: it is over, and left to `interrupt`.
    """

    __slots__ = (
        *("_coroutine", "_has_obeyed", "_processor", "_timer"),
        *("has_ended", "is_over", "is_overdue", "job_run", "record", "settlement", "task"),
    )

    def __init__(
        self, processor: AsyncProcessor, job_run: JobRun, record: int, coroutine: Coroutine[Any, Any, Any]
    ) -> None:
        self.job_run = job_run
        self.settlement = Settlement(job_run.unit, REQUEUE)  # now: after the run there may be no memory for it
        self.record = record
        self.task: asyncio.Task[None] | None = None
        self.has_ended = False
        self.is_overdue = False
        self._has_obeyed = False
        self.is_over = False
        self._processor = processor
        self._coroutine = coroutine
        self._timer: asyncio.TimerHandle | None = None

    def send(self, value: Any) -> Any:
        """Run the next step."""
        return self._step(self._coroutine.send, value)

    def throw(self, *raised: Any) -> Any:
        """Run the next step, with an exception: it is cancelled, or what it waited for has failed."""
        return self._step(self._coroutine.throw, *raised)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, None]:  # required of a coroutine; nobody awaits it
        raise NotImplementedError

    def release(self) -> None:
        """Let go of what the run held, once it has ended: its task holds this object."""
        self.task = None
        self.job_run.release()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make the task.  Raises what a task factory of the application raises, and TypeError for what is no task."""
        if self.is_over:
            return
        task = loop.create_task(self)
        if not asyncio.isfuture(task):
            raise TypeError(f"the task factory of the event loop has made no task, but {type(task).__name__}")
        if task.done():  # an eager one
            return
        self.task = task
        limit = None if self.job_run.context is None else self.job_run.context.time_limit
        if limit is not None:
            self._timer = loop.call_later(limit.seconds, self._time_out)
        self.obey()

    def fail(self, error: BaseException) -> None:
        """End a job that could not start: it has failed with this error, and does not run later either."""
        if not self.is_over:
            guarded(lambda _: None, self._coroutine.close)
            self._end(None, error)

    def obey(self) -> None:
        """Cancel it where it waits if its job was told that it is cancelled, maybe before it came to the loop; once."""
        context = self.job_run.context
        if context is not None and context.cancelled and self.task is not None and not self._has_obeyed:
            self._has_obeyed = True
            self.task.cancel()

    def _time_out(self) -> None:
        if self.task is not None and not self.has_ended:
            self.is_overdue = True
            self.task.cancel()

    def _step(self, resume: Callable[..., Any], *arguments: Any) -> Any:
        processor = self._processor
        if Forks.generation != processor.generation:
            exit_if_forked(processor.generation)
        if self.is_over:  # its factory has made a task, and failed
            raise StopIteration
        try:
            processor.step = self
            processor.steps += 1
            self._record_step(processor)
            awaited = resume(*arguments)
        except StopIteration as ended:
            self._end(ended.value, None)
            raise StopIteration from None
        except BaseException:  # noqa: BLE001  # a job may raise anything, sys.exit included; the loop goes on
            self._end(None, handled_error())
            raise StopIteration from None
        finally:
            processor.step = None
        if Forks.generation != processor.generation or not Forks.page[0]:
            exit_if_forked(processor.generation)
        return awaited

    def _record_step(self, processor: AsyncProcessor) -> None:
        processor.running_jobs.step(self.record)

    def _end(self, returned: Any, error: BaseException | None) -> None:
        exit_if_forked(self._processor.generation, error)
        self.is_over = True
        if self._timer is not None:
            self._timer.cancel()
        if self.is_overdue and is_a(error, asyncio.CancelledError):
            error = self._timed_out(error)
        self.finish(returned, error)

    def _timed_out(self, error: BaseException) -> BaseException:
        context = self.job_run.context
        if context is None or context.time_limit is None:
            return error
        return JobTimedOut(context.name, "timeout", context.time_limit.seconds)

    def finish(self, returned: Any, error: BaseException | None) -> None:
        self._processor.end(self, returned, error)


class WaitedRun(AsyncRun):
    """A job whose processor waits for it, and has its record and its outcome."""

    __slots__ = ("_ended", "_error", "_returned")

    def __init__(self, processor: AsyncProcessor, job_run: JobRun, coroutine: Coroutine[Any, Any, Any]) -> None:
        super().__init__(processor, job_run, -1, coroutine)
        self._ended = threading.Event()
        self._returned: Any = None
        self._error: BaseException | None = None

    def result(self) -> Any:
        """Wait for the end; return what the job returned, or raise what it raised.  Once."""
        self._ended.wait()
        (returned, error), self._returned, self._error, self.task = (self._returned, self._error), None, None, None
        if error is None:
            return returned
        try:
            raise error
        finally:
            del error  # it has this frame

    def _record_step(self, processor: AsyncProcessor) -> None:
        """Its processor's record says that it runs."""

    def finish(self, returned: Any, error: BaseException | None) -> None:
        self.has_ended = True
        self._returned, self._error = returned, error
        self._ended.set()


def _concluded(job_run: JobRun, conclude: Callable[[JobRun], Outcome]) -> Settlement:
    try:
        outcome = conclude(job_run)
    except BaseException:  # noqa: BLE001  # a handler that calls sys.exit must not keep the others from going back
        outcome = job_run.outcome or REQUEUE
    return Settlement(job_run.unit, outcome)


def _fail(context: Context, run: AsyncRun, error: BaseException) -> None:
    context.run(run.fail, error)


def new_loop(library: str) -> asyncio.AbstractEventLoop:
    """Return a new event loop of asyncio, or of uvloop.  Raises UsageError where that is not installed.

    uvloop is never chosen because it is there: the handlers that it has registered for forks can leave threads of C
    libraries waiting for ever once a job has started a child process.
    """
    if library == "asyncio":
        return asyncio.new_event_loop()
    try:
        import uvloop
    except ImportError as error:
        raise UsageError(
            "event_loop = uvloop, and uvloop cannot be imported; the worker does not start. Install uvloop, or leave "
            "the setting out"
        ) from error
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
