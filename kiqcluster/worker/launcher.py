"""Launcher: takes the parts of a worker through their life.

Runs in: the worker's main thread.
1. join       become a member, give back the units of dead processes, learn the queues
2. start      the services, by SERVICES
3. quiet      fetch no more, give reserved units back; polling goes on
4. resume     fetch again
5. stop       quiet, wait for running jobs until the deadline, put back the jobs that still run, leave

Counterpart: sidekiq launcher.rb.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from enum import Enum, auto
from typing import NamedTuple

from kiqcluster.errors import StoreError
from kiqcluster.process.runtime import Runtime
from kiqcluster.process.service import Service
from kiqcluster.worker.leaving import LAST_STEP_SECONDS, leave
from kiqcluster.worker.parts import Parts

__all__ = ["SERVICES", "Launcher", "Row", "Stop", "services_of"]


class Stop(Enum):
    """When a service is asked to stop."""

    FIRST = auto()  # by `begin_stop`, while jobs go on
    JOBS_END = auto()  # by `finish_stop`: the time of running jobs is over
    LEAVING = auto()  # then; the membership ends once these have ended, or LAST_STEP_SECONDS later
    LAST = auto()  # by its `end`: once the membership has ended, and at the end of a process that crashes
    NEVER = auto()  # it ends with the process


class Row(NamedTuple):
    """A kind of service that the launcher starts or stops.

    The manager starts the processors and the event loop, and starts them again.
    name: of the service, up to a slash.  starts: with the worker; else the first time that it is needed.
    restarts: at the next tick of the main loop if it has crashed; else the next time that it is needed.
    """

    name: str
    starts: bool
    stops: Stop
    restarts: bool


# In the order of their start.  The manager comes last, with the many processors: if there are not threads for all,
# fewer of them will do.
SERVICES = (
    Row("collectors", True, Stop.NEVER, True),
    Row("joblog", True, Stop.LAST, True),
    Row("recovery", True, Stop.LEAVING, True),
    Row("heartbeat", True, Stop.LEAVING, True),
    Row("poller", True, Stop.FIRST, True),
    Row("source", True, Stop.LEAVING, True),
    Row("manager", True, Stop.JOBS_END, True),
    Row("progress", False, Stop.JOBS_END, False),
)


def services_of(parts: Parts) -> dict[str, list[Service]]:
    """Return the services among the parts by the names of their rows."""
    found: dict[str, list[Service]] = {row.name: [] for row in SERVICES}
    for field in fields(parts):
        part = getattr(parts, field.name)
        for each in part if isinstance(part, Sequence) else (part,):
            if isinstance(each, Service):
                found[each.name.partition("/")[0]].append(each)
    return found


class Launcher:
    """One worker's life."""

    def __init__(self, runtime: Runtime, parts: Parts) -> None:
        self._runtime = runtime
        self.parts = parts
        self._services = services_of(parts)

    @property
    def is_quiet(self) -> bool:
        return self.parts.fetch.coordinator.is_quiet

    def join(self, orphans: Mapping[str, Sequence[str]]) -> None:
        """Become a member, give back the units of dead processes, learn the queues.

        Units go back before this process fetches, so they run before younger ones.
        Raises StoreError while Redis is away: call it again then.  Raises UsageError if another application has a cron
        entry of this one.
        """
        parts = self.parts
        parts.cron.refuse_held()
        parts.fetch.join()
        parts.recovery.catch_up(orphans)
        parts.queue_names.read()

    def announce(self) -> None:
        """Have the fleet see this worker, from the moment that it is ready on, and count the threads of the fleet."""
        self.parts.heartbeat.announce()
        try:
            self.parts.limits.count_threads()
        except StoreError as error:  # it is counted with a beat
            self._runtime.trouble("limits", error)

    def start(self) -> None:
        """Start the threads: from here on jobs run, and may end this process."""
        self.parts.metrics.start(self.parts.order.weights)
        for service in self._where(lambda row: row.starts):
            service.start()

    def restart_crashed_services(self) -> None:
        """Start services again that have crashed; called at each tick of the main loop."""
        for service in self._where(lambda row: row.restarts):
            if not service.is_alive:
                service.start()

    def descriptors(self) -> dict[str, tuple[int, ...]]:
        """Return the descriptors that the services wait on, by their purpose."""
        return {"bells": self.parts.manager.descriptors(), "heartbeat": self.parts.heartbeat.descriptors()}

    def quiet(self) -> None:
        """Fetch no more.  Reversible."""
        if self.is_quiet:
            return
        returned = self.parts.fetch.coordinator.quiet()
        self.parts.heartbeat.beat_soon()
        self._runtime.events.emit("worker_quiet", returned=returned)
        self._runtime.run_hooks("quiet")

    def resume(self) -> None:
        """End a quiet."""
        if not self.is_quiet or self.parts.stopping.is_set():
            return
        self.parts.fetch.coordinator.resume()
        self.parts.heartbeat.beat_soon()
        self._runtime.events.emit("worker_resumed")
        self._runtime.run_hooks("resume")

    def tally(self) -> dict[str, float]:
        """Return the fields of a beat to the supervisor: counts since the start, and the units of this moment."""
        fetch = self.parts.fetch
        return {
            "processed": self.parts.metrics.jobs.processed(),
            "prefetched": len(fetch.coordinator.supply.units),
            "round_trips": fetch.round_trips,
            "round_trip_seconds": fetch.round_trip_seconds,
            "drained": fetch.coordinator.is_drained(),
        }

    def begin_stop(self) -> None:
        """Quiet for good, and tell running jobs that the process stops."""
        self.quiet()
        self.parts.stopping.set()
        self._stop(Stop.FIRST)
        self._runtime.run_hooks("shutdown")

    def finish_stop(self, *, is_requested: bool = True, timed_out: Collection[str] = ()) -> bool:
        """Put back the jobs that still run, settle, leave the membership and the registry.

        is_requested: whether anybody has asked for this stop.  If nobody did, a job that still runs may have caused it,
        and counts as in a death (docs/adr/0016).  timed_out: tokens of the units because of which it stops.
        No thread is killed: a job that still runs ends with the process (invariant 6).
        Returns whether Redis has it all; if not, the units are recovered like those of the dead (R7).
        """
        parts, clock = self.parts, self._runtime.clock
        self._stop(Stop.JOBS_END)
        parts.fetch.coordinator.end()
        ending = self._stop(Stop.LEAVING)
        until = clock.monotonic() + LAST_STEP_SECONDS
        for service in ending:
            service.join(max(0.0, until - clock.monotonic()))
        try:
            parts.heartbeat.withdraw(LAST_STEP_SECONDS)
        except StoreError as error:
            self._runtime.trouble("stop", error)  # the heartbeat expires by itself
        if is_requested:  # if Redis is away now, or this process is killed as it leaves, that is no job's doing
            # But the supervisor must remember which jobs were overdue: a hook of theirs may hang in the next step.
            parts.running_jobs.clear(keep=timed_out)
        # Nearly last: from here on others may run the jobs that still run here.
        has_left = leave(self._runtime, parts, is_requested=is_requested, timed_out=timed_out)
        if has_left and not parts.heartbeat.is_alive:  # else Redis is away, or the heartbeat is at it
            parts.executions.finish(self._runtime.store.connection(timeout=LAST_STEP_SECONDS))
        if has_left and is_requested:
            parts.running_jobs.clear()
        parts.job_log.end()
        self._runtime.run_hooks("exit")
        return has_left

    def close_after_fork(self) -> None:
        """Close the worker's descriptors and connections in a forked process."""
        self.parts.manager.close_after_fork()
        self.parts.heartbeat.close_after_fork()
        self._runtime.store.close_after_fork()
        self._runtime.setup.close_after_fork()

    def _stop(self, step: Stop) -> list[Service]:
        """Ask the services to stop that stop in a step; return them."""
        services = list(self._where(lambda row: row.stops is step))
        for service in services:
            service.stop()
        return services

    def _where(self, is_meant: Callable[[Row], bool]) -> Iterator[Service]:
        """Yield the services of the rows that are meant, in the order of the rows."""
        for row in SERVICES:
            if is_meant(row):
                yield from self._services[row.name]
