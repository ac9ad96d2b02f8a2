"""Job watch: looks once a second at the jobs that run, from the main thread of a worker.

1. stamp      the supervisor is told since when each unit runs
2. overdue    the log names a job that goes on although its `timeout` is over, once for each run
3. blocked    the log names an async job whose step keeps all others from going on, once for each step
4. progress   what jobs have said of it is written (maintenance/progress)
5. changed    the log says that something which all jobs share is another one now, with the jobs that run
"""

from __future__ import annotations

from kiqcluster.ipc.running_jobs import RunningJobs
from kiqcluster.process.boundary import process_state
from kiqcluster.process.job_context import JobContext
from kiqcluster.process.runtime import Runtime
from kiqcluster.sidekiq.payload import peek
from kiqcluster.worker.maintenance.progress import ProgressReporter
from kiqcluster.worker.run.job_run import JobRun
from kiqcluster.worker.run.processors import Processors

__all__ = ["JobWatch"]


class JobWatch:
    """Watches the jobs of one worker."""

    def __init__(
        self, runtime: Runtime, processors: Processors, running_jobs: RunningJobs, progress: ProgressReporter
    ) -> None:
        self._clock = runtime.clock
        self._emit = runtime.events.emit
        self._processors = processors
        self._running_jobs = running_jobs
        self._progress = progress
        self._state: process_state.ProcessState | None = None  # at the first look, before any job

    def look(self) -> None:
        """Look at all of them."""
        found = self._processors.running_by_record()
        self._running_jobs.stamp(self._clock.now(), [(record, run.unit.token, run.since) for record, run in found])
        for _, run in found:
            if not run.is_overdue and run.context is not None and run.context.timed_out:
                self._report_overdue(run, run.context)
        if self._processors.loop is not None:
            self._report_blocked(self._processors.loop.blocked())
        self._progress.look()
        self._report_changes([run.context.name for _, run in found if run.context is not None])

    def _report_overdue(self, run: JobRun, context: JobContext) -> None:
        run.is_overdue = True
        limit = 0.0 if context.time_limit is None else context.time_limit.seconds
        elapsed = self._clock.now() - run.since
        self._emit("job_overdue", name=context.name, jid=context.jid, elapsed=elapsed, limit=limit)

    def _report_changes(self, running: list[str]) -> None:
        before, self._state = self._state, process_state.read()
        if before is None or before == self._state:
            return
        names = ", ".join(sorted(set(running))) or "none"
        for what, old, new in process_state.changes(before, self._state):
            self._emit("process_changed", what=what, before=old, now=new, running=names)

    def _report_blocked(self, blocked: tuple[JobRun, float] | None) -> None:
        if blocked is not None:
            run, seconds = blocked
            name, jid = peek(run.unit.payload)
            self._emit("event_loop_blocked", name=name, jid=jid, seconds=seconds)
