"""Processor: one thread that runs units, one after the other.

1. next       hand in the last outcome, get a unit (fetch.py; it waits, leads, or says that it is time to end)
2. execute    unit → outcome (execution.py)

Its record in RunningJobs tells the supervisor what it runs; `running` tells the other threads of the worker, which may
tell the job something.
Counterpart: sidekiq processor.rb.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from threading import get_native_id

from kiqcluster.ipc.running_jobs import RunningJobs
from kiqcluster.process.clock import Clock
from kiqcluster.process.service import Service
from kiqcluster.store.engine.units import Settlement
from kiqcluster.worker.fetch.fetch import ReliableFetch
from kiqcluster.worker.run.endings import REQUEUE, RETURNED
from kiqcluster.worker.run.execution import Execution
from kiqcluster.worker.run.job_run import AsyncJobs, JobRun

__all__ = ["Processor"]


class Processor(Service):
    """number: its record in RunningJobs, and its place in the manager's list."""

    def __init__(
        self,
        number: int,
        fetch: ReliableFetch,
        execution: Execution,
        running_jobs: RunningJobs,
        clock: Clock,
        on_crash: Callable[[str, Exception], None],
        async_jobs: AsyncJobs | None = None,
    ) -> None:
        super().__init__(f"processor/{number}", on_crash)
        self.number = number
        self.running: JobRun | None = None
        self._fetch = fetch
        self._execution = execution
        self._running_jobs = running_jobs
        self._now = clock.now
        self._async_jobs = async_jobs
        self._finished: Settlement | None = None  # the last outcome; a crash leaves it to the next thread

    def run(self) -> None:
        self._running_jobs.thread(self.number, get_native_id())
        self._fetch.coordinator.abandon()
        while (unit := self._fetch.next(self._finished)) is not None:
            self._finished = finished = Settlement(unit, REQUEUE)  # now: after the run there may be no memory for it
            try:
                if self._run_one(finished) and finished.outcome is REQUEUE and self._async_jobs is not None:
                    self._await_place(finished, self._async_jobs)
            except BaseException:  # this thread ends, for want of memory perhaps; its unit does not wait
                if self._finished is not None:  # else the event loop has it
                    self._fetch.coordinator.hand_in(finished)
                raise
        self._finished = None

    @property
    def left_over(self) -> Settlement | None:
        """The outcome that a crashed thread may not have handed in; handed in twice, it is settled once."""
        return None if self.is_alive else self._finished

    def interrupt(self, timed_out: Collection[str] = ()) -> Settlement | None:
        """Return the outcome of the unit that still runs when the process must go, or that was the last to end.

        That one may be handed in already; then it changes nothing.
        timed_out: tokens of the units because of which it must go; they have failed, and the others do not count.
        """
        run = self.running
        if run is None:
            return self._finished
        conclude = self._execution.put_back if timed_out else self._execution.interrupt
        if run.unit.token in timed_out:
            conclude = self._execution.time_out
        try:
            outcome = conclude(run)
        except BaseException:  # noqa: BLE001  # a handler that calls sys.exit must not keep the others from going back
            outcome = run.outcome or REQUEUE
        finished = self._finished
        if self.running is not run and finished is not None and finished.unit is run.unit:
            return finished  # it has ended meanwhile
        return Settlement(run.unit, outcome)

    def ended(self) -> Settlement | None:
        """Return the outcome of the last unit that has ended, handed in or not; None while the next one runs."""
        run = self.running
        return self.interrupt() if run is None or run.outcome is not None else None

    def _await_place(self, settlement: Settlement, async_jobs: AsyncJobs) -> None:
        """Hand a unit in for which the event loop has no place, and take no other one until there is one."""
        if async_jobs.places.is_full():
            self._fetch.coordinator.hand_in(settlement)
            self._finished = None
            async_jobs.places.wait()

    def _run_one(self, settlement: Settlement) -> bool:
        """Run a unit; return whether it has ended, and does not go on on the event loop."""
        unit = settlement.unit
        self._running_jobs.start(self.number, unit.token, unit.payload)
        self.running = run = JobRun(unit, self._now())
        try:
            outcome = self._execution.execute(run)
            if outcome is None:
                self._finished = None  # first: nobody else may put it back
            else:
                settlement.outcome = outcome
        except BaseException:
            settlement.outcome = run.outcome or REQUEUE  # one that has run must not run again
            raise
        finally:
            self.running = None
            self._running_jobs.finish(self.number)
        if outcome is None:  # the event loop writes its ending, perhaps at this moment
            return False
        if run.ending is not RETURNED:
            run.release()
        return True
