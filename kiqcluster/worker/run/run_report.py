"""Run report: tells, logs and counts what became of units, once it is decided.

1. begin       read this thread's CPU time, if the last reading is old
2. tell        error handlers, and what an ending says by itself
3. conclude    the line of the log, the tally, and what the poller has to know

Each processor has one, because a tally has one writer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kiqcluster.application.registry import Registry
from kiqcluster.errors import CannotRun, PayloadDecompressionError, RetryError, as_exception, message_of
from kiqcluster.process.boundary.calls import is_a
from kiqcluster.process.job_context import current_job
from kiqcluster.process.metrics import JobMetrics
from kiqcluster.process.runtime import Runtime
from kiqcluster.process.tallies import DEFERRED, DROPPED, MIN_CPU_MEASURED_SECONDS, Tallies, Tally
from kiqcluster.sidekiq.outcome import Dead, Deferred, Discard, Done, Dropped, Interrupted, Outcome, Parked, Retry
from kiqcluster.sidekiq.payload import DEFERRED_BY_RATE_LIMIT, Payload, read, seconds
from kiqcluster.worker.run import retry
from kiqcluster.worker.run.endings import (
    DEFERRAL_SECONDS,
    DONE,
    MAX_DEFERRALS,
    RETURNED,
    Cancelled,
    Ending,
    KilledProcesses,
    OutcomeFailed,
    Raised,
    RanOverLimit,
    Refused,
    Returned,
    Unreadable,
    Unresolved,
)
from kiqcluster.worker.run.job_lines import JobLines, extra_fields
from kiqcluster.worker.run.job_run import JobRun
from kiqcluster.worker.run.read_job import ReadJob

__all__ = ["UNREGISTERED", "LogDone", "OnDue", "RunReport"]

UNREGISTERED = "(unknown)"  # label of jobs whose class is not registered here
OUTCOME_WORDS = {
    Retry: "failed, will be retried",
    Dead: "failed, buried",
    Discard: "failed, discarded",
    Dropped: "failed after it was cancelled, dropped",
}
LogDone = Callable[[Payload, str, str, float], None]  # payload, class, queue, seconds that it ran
OnDue = Callable[[Retry | Deferred], None]


class RunReport:
    """log_done: logs job_done, instead of an event; called within the job's context.

    on_due: called with an outcome whose job becomes due again.  cpu_due: monotonic seconds from which on the CPU time
    that was read last is too old to begin a run with.  emit: says an event about a job.  lines: the fields of jobs in
    their lines, None unless `log.jobs` is full.
    """

    def __init__(
        self, runtime: Runtime, registry: Registry, metrics: JobMetrics, log_done: LogDone | None, on_due: OnDue
    ) -> None:
        is_full = runtime.config.log_jobs == "full"
        self.lines = JobLines(runtime) if is_full else None
        self.emit = runtime.events.emit if self.lines is None else self.lines.emit
        self._setup = runtime.setup
        self._clock = runtime.clock
        self._now = runtime.clock.now
        self._registry = registry
        self._metrics = metrics
        self._tallies = metrics.tallies()
        self._stop_tallies: Tallies | None = None
        done = self._emit_done if log_done is None or is_full else log_done
        is_wanted = runtime.config.log_jobs != "off" and runtime.events.is_heard("job_done")
        self._log_done = done if is_wanted else None
        self._on_due = on_due
        self._once = runtime.setup.once
        self._cpu = 0.0  # this thread's CPU seconds, as last read
        self.cpu_due = 0.0

    def begin(self, started: float) -> None:
        """Read the CPU time that a run begins with.  started: monotonic seconds, not before `cpu_due`."""
        self._cpu, self.cpu_due = self._clock.cpu(), started + MIN_CPU_MEASURED_SECONDS

    def conclude(self, run: JobRun, job: ReadJob, ending: Ending, outcome: Outcome, elapsed: float) -> None:
        """Tell, log and count what became of a unit.  elapsed: seconds that it ran."""
        queue, name, payload = run.unit.queue, job.name, job.payload
        is_short = elapsed < MIN_CPU_MEASURED_SECONDS
        # Jobs on the event loop take turns: the time of their thread is nobody's.
        used = None if is_short or run.record is not None else self._read_cpu(elapsed)
        if self.lines is not None:
            self.lines.used = used
        is_done = outcome is DONE or type(outcome) is Done
        if ending is not RETURNED:
            self.tell(job, ending, outcome, self.tally)
        if not is_done:
            self._report_not_done(run, ending, outcome, elapsed)
        elif ending.failure is not None:
            self._report_normal_failure(run, name, ending.failure, elapsed)
        elif self._log_done is not None:
            log_done = self._emit_done if run.context is not None and run.context.extras else self._log_done
            log_done(payload, name, queue, elapsed)
        enqueued_at = seconds(payload.get("enqueued_at"))
        waited = None if enqueued_at is None else self._now() - elapsed - enqueued_at
        tally = self._tallies.get((name, queue)) or self.tally(name, queue)
        if is_done and is_short and "retry_count" not in payload:
            tally.add_short(elapsed, waited)
        else:
            tally.add(outcome, elapsed, waited, was_retried="retry_count" in payload, used=used)
        if self.lines is not None:
            self.lines.release()

    def tell(self, job: ReadJob, ending: Ending, outcome: Outcome, tally: Callable[[str, str], Tally]) -> None:
        """Tell the error handlers of an ending, and log and count what it is, whatever the time of its run.

        tally: `tally` or `tally_of_stop`, by the thread that calls.
        """
        unit = job.unit
        match ending:
            case Raised():
                if not (is_a(ending.failure, RetryError) and isinstance(outcome, Retry)):
                    self._setup.notify_error_handlers(
                        as_exception(ending.failure), {"context": "job", "job": ending.payload, "queue": unit.queue}
                    )
            case Returned(was_skipped=True):
                skipped = DEFERRED if isinstance(ending.by_middleware, Deferred) else DROPPED
                tally(job.name, unit.queue).skip(skipped)
            case Refused():
                self._tell_refused(job, ending, outcome, tally(job.name, unit.queue))
            case Cancelled():
                self.emit("job_dropped", reason=ending.by)
            case Unresolved():
                detail = f" for {DEFERRAL_SECONDS:.0f} s ({ending.count} of {MAX_DEFERRALS})"
                self.log_failed("deferred", ending.error, detail=detail)
            case Unreadable():
                self._setup.notify_error_handlers(
                    ending.error, {"context": "malformed payload", "queue": unit.queue, "payload": unit.payload}
                )
                self.log_failed("cannot run, buried", ending.error)
                if is_a(ending.error, PayloadDecompressionError):
                    tally(self._registry.find(read(unit.payload))[0], unit.queue).count("dead")
            case KilledProcesses():
                tally(job.name, unit.queue).add(Dead(b"", 0.0), 0.0, None, was_retried=False)
                if ending.is_told:
                    self._setup.notify_error_handlers(
                        ending.error, {"context": "job", "job": job.payload, "queue": unit.queue}
                    )
            case OutcomeFailed():
                self.log_failed("cannot conclude, buried", ending.error)

    def _tell_refused(self, job: ReadJob, ending: Refused, outcome: Outcome, tally: Tally) -> None:
        verdict = ending.verdict
        reason = "" if verdict is None else verdict.reason
        if reason == DEFERRED_BY_RATE_LIMIT:
            tally.count("rate_limited")
        if verdict is not None and verdict.action == "defer" and reason:
            self._report_deferred(job.name, verdict.seconds, reason)
        if is_a(ending, RanOverLimit):  # it has run, and was not skipped
            return
        if isinstance(outcome, Dropped):
            self.emit("job_dropped", reason=reason)
        if isinstance(outcome, Parked):
            tally.count("parked")
        elif isinstance(outcome, Dropped | Deferred):
            tally.skip(DROPPED if isinstance(outcome, Dropped) else DEFERRED, reason)

    def _report_deferred(self, name: str, seconds: float, reason: str) -> None:
        """Log that a job is deferred, once a minute for its class: it may be deferred by the thousand.

        Where `log.jobs` is full, each deferral has its line anyway.
        """
        if self.lines is None and self._once.may(f"job_deferred {name}"):
            self.emit("job_deferred", seconds=seconds, reason=reason)

    def count_timed_out(self, run: JobRun, name: str) -> None:
        """Count a run that took longer than its `timeout`."""
        if run.context is not None and run.context.timed_out:
            self.tally(name, run.unit.queue).count("timed_out")

    def _report_normal_failure(self, run: JobRun, name: str, failure: BaseException, elapsed: float) -> None:
        """Log and count a job that has raised NormalFailure: it is done, and only a batch would know more."""
        self.emit("job_normal_failure", elapsed=elapsed, reason=message_of(failure), **extra_fields(run.context))
        self.tally(name, run.unit.queue).count("normal_failures")

    def _report_not_done(self, run: JobRun, ending: Ending, outcome: Outcome, elapsed: float) -> None:
        """Log what became of a unit that is not done, and tell the poller of one that is due again."""
        if ending.failure is not None:
            trace = ending.trace if isinstance(ending, Raised) else None
            detail = f", in {outcome.at - self._clock.now():.0f} s" if isinstance(outcome, Retry) else ""
            self.log_failed(OUTCOME_WORDS[type(outcome)], ending.failure, elapsed, detail, trace)
        elif type(outcome) is Interrupted:
            self.emit("job_interrupted", elapsed=elapsed, **extra_fields(run.context))
        elif self.lines is not None:
            self.lines.put_off(outcome)
        if isinstance(outcome, Retry | Deferred):
            self._on_due(outcome)

    def _read_cpu(self, elapsed: float) -> float:
        """Return the CPU seconds of a run that took `elapsed` (docs/metrics.md).

        They are too many by MIN_CPU_MEASURED_SECONDS at most.
        """
        before, self._cpu = self._cpu, self._clock.cpu()
        self.cpu_due = self._clock.monotonic() + MIN_CPU_MEASURED_SECONDS
        return min(self._cpu - before, elapsed)

    def _emit_done(self, _payload: Payload, _name: str, _queue: str, elapsed: float) -> None:
        self.emit("job_done", elapsed=elapsed, **extra_fields(current_job()))

    def log_failed(
        self,
        outcome: str,
        error: BaseException,
        elapsed: float = 0.0,
        detail: str = "",
        trace: Sequence[str] | None = None,
    ) -> None:
        """Log a failure.  trace: of the error, where it is known already."""
        described = retry.describe_error(error)
        if is_a(error, (CannotRun, RetryError)):
            trace = ()
        elif trace is None:
            trace = retry.trace(error)
        text = f"{described['error_class']}: {described['error_message']}"
        fields = extra_fields(current_job())
        if self.lines is not None:
            fields = {**described, **fields}
        self.emit(
            "job_failed",
            outcome=outcome,
            detail=detail,
            elapsed=elapsed,
            error=text,
            traceback="".join(trace),
            **fields,
        )

    def conclude_timed_out(self, job: ReadJob, ending: Ending, outcome: Outcome, elapsed: float) -> None:
        """Log and count a unit that was ended by its `timeout_hard`, in another thread than its own."""
        if ending.failure is not None:
            self.log_failed(OUTCOME_WORDS[type(outcome)], ending.failure, elapsed)
        if isinstance(outcome, Retry):
            self._on_due(outcome)
        tally = self.tally_of_stop(job.name, job.unit.queue)
        tally.add(outcome, elapsed, None, was_retried="retry_count" in job.payload)
        tally.count("timed_out")

    def tally(self, name: str, queue: str) -> Tally:
        """Return what counts the runs of a job in this thread."""
        return self._of(self._tallies, name, queue)

    def tally_of_stop(self, name: str, queue: str) -> Tally:
        """Return what counts units that end here without their thread: it may be counting, and each has one writer."""
        self._stop_tallies = self._metrics.tallies() if self._stop_tallies is None else self._stop_tallies
        return self._of(self._stop_tallies, name, queue)

    def _of(self, tallies: Tallies, name: str, queue: str) -> Tally:
        tally = tallies.get((name, queue))
        if tally is None:
            # A name that nobody registered may be anything: as a label it would let Redis grow our series without end.
            key = (name if self._registry.get(name) is not None else UNREGISTERED, queue)
            tally = tallies[key] = tallies.get(key) or Tally()
        return tally
