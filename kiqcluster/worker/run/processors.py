"""Processors: the threads of a worker that run jobs, the event loop of async jobs, and what they run at this moment.

Made first and empty, so that metrics, the heartbeat and others can ask it before there is a processor.

Runs in: any thread.  `threads` and `loop` are set before the first of them starts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress

from kiqcluster.process.clock import Clock
from kiqcluster.process.context.cancel_marks import Marks
from kiqcluster.process.logs.log import tid
from kiqcluster.process.service import Service
from kiqcluster.store.engine.units import Settlement, Unit
from kiqcluster.worker.run.async_processor import AsyncProcessor
from kiqcluster.worker.run.job_run import JobRun
from kiqcluster.worker.run.processor import Processor

__all__ = ["Processors"]


class Processors:
    """The processors of one worker.  loop: of async jobs; None where no job is async."""

    def __init__(self, clock: Clock) -> None:
        self.threads: Sequence[Processor] = ()
        self.loop: AsyncProcessor | None = None
        self._clock = clock

    def services(self) -> list[Service]:
        """Return all of them, the event loop first."""
        return [*self.threads] if self.loop is None else [self.loop, *self.threads]

    # what runs

    def running(self) -> list[JobRun]:
        """Return the runs of this moment."""
        return [run for _, run in self.running_by_record()]

    def running_by_record(self) -> list[tuple[int, JobRun]]:
        """Return the runs of this moment with their records in RunningJobs."""
        found = [(each.number, running) for each in self.threads if (running := each.running) is not None]
        if self.loop is not None:
            found += [(each.record, each.job_run) for each in self.loop.runs()]
        return found

    def running_by_thread(self) -> dict[str, JobRun]:
        """Return the runs by the threads' ids, as they are in the log; async jobs have the id of a place."""
        found = {tid(each.ident): running for each in self.threads if (running := each.running) is not None}
        if self.loop is not None:
            loop = tid(self.loop.ident)
            found |= {f"{loop}-{each.record}": each.job_run for each in self.loop.runs()}
        return found

    def running_by_thread_name(self) -> dict[str, str]:
        """Return a description of each thread's job, by thread name: class, jid, and for how long it has run.

        The event loop's job is the one whose step it runs.
        """
        now = self._clock.now()
        found = [(each.thread_name, each.running) for each in self.threads]
        if self.loop is not None and self.loop.step is not None:
            found.append((self.loop.thread_name, self.loop.step.job_run))
        return {name: run.describe(now) for name, run in found if run is not None}

    def running_in_threads(self) -> list[JobRun]:
        """Return the runs that have a thread of their own."""
        return [running for processor in self.threads if (running := processor.running) is not None]

    def suspects(self) -> list[JobRun]:
        """Return the runs that may be to blame if the process ends unasked: of async jobs, the last one that ran."""
        found = self.running_in_threads()
        step = None if self.loop is None else self.loop.step
        return found if step is None else [*found, step.job_run]

    def left_over(self) -> list[Unit]:
        """Return the units whose outcomes crashed threads may not have handed in."""
        return [each.unit for processor in self.threads if (each := processor.left_over) is not None]

    def places(self) -> int:
        """Return how many jobs run at most: one in each thread, and the async ones of this moment."""
        return len(self.threads) + (0 if self.loop is None else len(self.loop.runs()))

    # what is said to running jobs

    def cancel_jobs(self, marks: Marks) -> None:
        """Tell the running jobs that have these marks that somebody has cancelled them; from any thread."""
        for running in self.running_in_threads():
            obey_soon = running.obey_soon  # None from the end of the run on
            if running.context is not None and marks.tell(running.context) and obey_soon is not None:
                with suppress(RuntimeError):  # the loop is closed
                    obey_soon()
        if self.loop is not None:
            self.loop.cancel_jobs(marks)

    def cancel(self, seconds: float) -> None:
        """Cancel the async jobs that still run, and wait for their end, so long at most."""
        if self.loop is not None:
            self.loop.cancel(seconds)

    def interrupt(self, timed_out: Collection[str] = ()) -> list[Settlement]:
        """Return the outcomes of the units that still run when the process must go.  timed_out: see Processor."""
        found = [each for processor in self.threads if (each := processor.interrupt(timed_out)) is not None]
        return found if self.loop is None else [*found, *self.loop.interrupt(timed_out)]

    def ended(self) -> list[Settlement]:
        """Return the outcomes of the units whose runs have ended, and that may not be handed in yet."""
        found = [each for processor in self.threads if (each := processor.ended()) is not None]
        return found if self.loop is None else [*found, *self.loop.ended()]
