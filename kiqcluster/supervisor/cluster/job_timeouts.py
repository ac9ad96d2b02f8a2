"""Job timeouts: a job that runs for longer than its `timeout_hard` ends with its process, and that process is replaced.

Runs in: the supervisor's loop, at each look at the deadlines.  It reads the limits in the memory that it shares with
each worker, so it sees a job that holds the interpreter lock as well.
1. check    a worker with such a job is told which one it is, and asked to stop: its other jobs have `stop.timeout`
2. kill     a worker that does not respond is killed instead.  The overdue job has failed.  Any of its jobs may hold the
            interpreter, so all others are suspects, as after any death; but if some of its jobs use the processor, only
            these (docs/adr/0030)

Time in which the supervisor stood still does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf

import psutil

from kiqcluster.process.clock import Clock
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.supervisor.cluster.child import JOB_TIMEOUT, Child, describe_jobs
from kiqcluster.supervisor.cluster.liveness import UNRESPONSIVE_SECONDS
from kiqcluster.supervisor.cluster.slots import Slot

__all__ = ["JobTimeouts", "cpu_by_thread"]

MIN_SAMPLE_SECONDS = 0.9  # between the two looks at the CPU time of threads: less than from one look to the next
# A thread is busy that used so much of that time, and half as much as the busiest one.  On a crowded host that may be
# little; a thread that waits for the interpreter wakes up every 5 ms, and uses about 1 %.
BUSY_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Sample:
    """CPU seconds by thread at a moment (monotonic), and when the process had sent its last frame by then."""

    at: float
    used: dict[int, float] | None
    last_frame_at: float


def cpu_by_thread(pid: int) -> dict[int, float] | None:
    """Return the CPU seconds of each thread of a process, {} if they cannot be read; None if the process is stopped."""
    try:
        process = psutil.Process(pid)
        if process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
            return None
        return {each.id: each.user_time + each.system_time for each in process.threads()}
    except psutil.Error:
        return {}


class JobTimeouts:
    """config: returns the configuration that applies now.  stop: asks a process to stop within seconds, for a reason.

    kill: has a process killed, with the text of the reason and its label.
    used: returns the CPU seconds of each thread of a process, None if it is stopped.
    """

    def __init__(
        self,
        config: Callable[[], Config],
        stop: Callable[[Child, float, str], None],
        kill: Callable[[Child, str, str], None],
        events: Events,
        clock: Clock,
        used: Callable[[int], dict[int, float] | None] = cpu_by_thread,
    ) -> None:
        self._config = config
        self._stop = stop
        self._kill = kill
        self._events = events
        self._clock = clock
        self._used = used
        self._since: dict[tuple[int, str], float] = {}  # (pid, token) → when it was first seen, monotonic seconds
        self._samples: dict[int, Sample] = {}  # pid → of a process with overdue jobs, at the first look of its silence

    def check(self, children: Iterable[tuple[Slot, Child]]) -> None:
        """Look at the running jobs of all processes."""
        now, before, samples = self._clock.monotonic(), self._since, self._samples
        self._since, self._samples = {}, {}
        for slot, child in children:
            overdue = []
            for token, seconds in child.running_jobs.limits().items():
                key = (child.pid, token)
                since = self._since[key] = before.get(key, now)
                if now - since >= seconds:
                    overdue.append(token)
            if overdue and not child.ending.kill_reason:
                self._samples[child.pid] = self._sample(child, samples.get(child.pid), now)
                self._end(slot, child, overdue, now)

    def _end(self, slot: Slot, child: Child, overdue: list[str], now: float) -> None:
        new = [token for token in overdue if token not in child.ending.timed_out]
        jobs = [job for job in child.running_jobs.jobs() if job.token in overdue]
        epoch = self._clock.now()
        report = describe_jobs(jobs, epoch)
        if new:
            child.ending.timed_out += tuple(new)
            self._events.emit(
                "job_timed_out", slot=slot.number, child=child.pid, report=report,
                running=[job.as_json(epoch) for job in jobs],
            )  # fmt: skip
            child.channel.send("timed_out", tokens=child.ending.timed_out)
        is_silent = now - child.responses.last_frame_at >= UNRESPONSIVE_SECONDS
        if is_silent and now - (sample := self._samples[child.pid]).at >= MIN_SAMPLE_SECONDS:
            child.ending.holders = self._holders(child, sample, now)
            self._kill(child, f"does not respond, and has jobs beyond their timeout_hard; {report}", JOB_TIMEOUT)
        elif not child.ending.is_asked_to_stop:
            self._stop(child, self._config().stop_timeout, JOB_TIMEOUT)

    def _sample(self, child: Child, before: Sample | None, now: float) -> Sample:
        """Return the sample of the first look since its last frame."""
        if before is not None and before.last_frame_at == child.responses.last_frame_at:
            return before
        return Sample(now, self._used(child.pid), child.responses.last_frame_at)

    def _holders(self, child: Child, sample: Sample, now: float) -> frozenset[str]:
        """Return which jobs, beside the overdue ones, may hold the interpreter of a process that does not respond.

        None if the process is stopped: then nobody holds it.
        """
        threads, used = child.running_jobs.threads(), self._used(child.pid)
        others = threads.keys() - set(child.ending.timed_out)
        if used is None or sample.used is None:
            return frozenset()
        spent = {token: used.get(thread, 0.0) - sample.used.get(thread, inf) for token, thread in threads.items()}
        least = max(BUSY_SHARE * (now - sample.at), max(spent.values(), default=0.0) / 2)
        busy = {token for token, seconds in spent.items() if seconds >= least}
        return frozenset(others & busy if busy else others)
