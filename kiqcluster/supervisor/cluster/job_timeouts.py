"""Job timeouts: a job that runs for longer than its `timeout_hard` ends with its process, and that process is replaced.

Runs in: the supervisor's loop, at each look at the deadlines.  It reads the limits in the memory that it shares with
each worker, so it sees a job that holds the interpreter lock as well.
1. check    a worker with such a job is told which one it is, and asked to stop: its other jobs have `timeout` to end
2. kill     a worker that does not respond is killed instead; that job is to blame, and no other one

Time in which the supervisor stood still does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kiqcluster.process.clock import Clock
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.supervisor.cluster.child import JOB_TIMEOUT, Child, describe_jobs
from kiqcluster.supervisor.cluster.liveness import UNRESPONSIVE_SECONDS
from kiqcluster.supervisor.cluster.slots import Slot

__all__ = ["JobTimeouts"]


class JobTimeouts:
    """config: returns the configuration that applies now.  stop: asks a process to stop within seconds, for a reason.

    kill: has a process killed, with the text of the reason and its label.
    """

    def __init__(
        self,
        config: Callable[[], Config],
        stop: Callable[[Child, float, str], None],
        kill: Callable[[Child, str, str], None],
        events: Events,
        clock: Clock,
    ) -> None:
        self._config = config
        self._stop = stop
        self._kill = kill
        self._events = events
        self._clock = clock
        self._since: dict[tuple[int, str], float] = {}  # (pid, token) → when it was first seen, monotonic seconds

    def check(self, children: Iterable[tuple[Slot, Child]]) -> None:
        """Look at the running jobs of all processes."""
        now, before = self._clock.monotonic(), self._since
        self._since = {}
        for slot, child in children:
            overdue = []
            for token, seconds in child.running_jobs.limits().items():
                key = (child.pid, token)
                since = self._since[key] = before.get(key, now)
                if now - since >= seconds:
                    overdue.append(token)
            if overdue and not child.ending.kill_reason:
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
        if now - child.responses.last_frame_at >= UNRESPONSIVE_SECONDS:
            self._kill(child, f"does not respond, and has jobs beyond their timeout_hard; {report}", JOB_TIMEOUT)
        elif not child.ending.is_asked_to_stop:
            self._stop(child, self._config().timeout, JOB_TIMEOUT)
