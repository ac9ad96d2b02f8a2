"""SourceMover: pushes jobs that wait outside of Redis, in a database for example (`Setup.due_sources`).

Runs in: a thread for each source, so that a slow or dead database holds up neither the poller nor the heartbeat; it
goes on while the process is quiet.
1. wait    a random time, so that the fleet looks once per `interval` of the source without coordination
2. move    until the source has no more
3. fail    an error is reported once, until a look succeeds or another error comes; the waits grow meanwhile
"""

from __future__ import annotations

from kiqcluster.errors import StoreError, as_exception, class_name
from kiqcluster.process.boundary.calls import guarded
from kiqcluster.process.delivery import OutsideSource
from kiqcluster.process.runtime import Runtime
from kiqcluster.process.service import OnCrash, Service
from kiqcluster.worker.maintenance.poller import poll_pause

__all__ = ["SourceMover", "pause_after"]

MAX_PAUSES = 30  # a process waits for no longer than so many intervals, however large the fleet is
MAX_FAILURE_PAUSE_SECONDS = 60.0


def pause_after(failures: int, pause: float) -> float:
    """Return the seconds until the next look.  failures: in a row.  pause: without any."""
    return pause if failures == 0 else max(pause, min(MAX_FAILURE_PAUSE_SECONDS, 2.0 ** min(failures, 10)))


class SourceMover(Service):
    """One source.  processes: that share the looks; None for the workers of the fleet."""

    def __init__(
        self, source: OutsideSource, runtime: Runtime, on_crash: OnCrash, *, processes: int | None = None
    ) -> None:
        super().__init__(f"source/{source.name}", on_crash)
        self._processes = processes
        self._source = source
        self._runtime = runtime
        self._failures = 0
        self._reported = ""  # the latest error

    def run(self) -> None:
        while self.pause(pause_after(self._failures, self._pause())):
            self.look()

    def look(self) -> None:
        """Move all that waits; an error is reported."""
        guarded(self._report, self._move)

    def _move(self) -> None:
        while self._source.move() and not self.stopping.is_set():
            pass
        self._failures, self._reported = 0, ""

    def _report(self, error: BaseException) -> None:
        self._failures += 1
        if class_name(error) != self._reported:
            self._reported = class_name(error)  # texts have addresses and times in them
            self._runtime.trouble(self._source.name, as_exception(error))

    def _pause(self) -> float:
        interval, processes = self._source.interval, self._processes or self._fleet_size()
        return min(poll_pause(processes, interval, self._runtime.rng), MAX_PAUSES * interval)

    def _fleet_size(self) -> int:
        try:
            return int(self._runtime.store.call("SCARD", self._runtime.store.keys.processes))
        except StoreError:
            return 1
