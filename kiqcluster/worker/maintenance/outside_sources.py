"""SourceMover: pushes jobs that wait outside of Redis, in a database for example (`Setup.due_sources`).

Runs in: a thread for each source, so that a slow or dead database holds up neither the poller nor the heartbeat; it
goes on while the process is quiet.
1. look    a duty of the fleet (duties.py), once in the `interval` of the source; each process that lives for
           OWN_INTERVALS of them without a turn looks all the same: another database may have the name of this one
2. move    until the source has no more
3. fail    an error is reported once, until a look succeeds or another error comes; the waits grow meanwhile
"""

from __future__ import annotations

from kiqcluster.errors import StoreError, as_exception, class_name
from kiqcluster.process.boundary.calls import guarded
from kiqcluster.process.delivery import OutsideSource
from kiqcluster.process.runtime import Runtime
from kiqcluster.process.service import OnCrash, Service
from kiqcluster.worker.maintenance.duties import Duties

__all__ = ["SourceMover", "pause_after"]

OWN_INTERVALS = 30  # after which a process looks, whoever else has looked meanwhile
MAX_FAILURE_PAUSE_SECONDS = 60.0


def pause_after(failures: int, pause: float) -> float:
    """Return the seconds until the next look.  failures: in a row.  pause: without any."""
    return pause if failures == 0 else max(pause, min(MAX_FAILURE_PAUSE_SECONDS, 2.0 ** min(failures, 10)))


class SourceMover(Service):
    """One source.  known: scope of the application (duties.scope)."""

    def __init__(self, source: OutsideSource, runtime: Runtime, on_crash: OnCrash, known: str = "") -> None:
        super().__init__(f"source/{source.name}", on_crash)
        self._source = source
        self._runtime = runtime
        self._duties = Duties(runtime, self.name, {f"{source.name} {known}": source.interval})
        self._looked_at = runtime.clock.monotonic()
        self._failures = 0
        self._reported = ""  # the latest error

    def run(self) -> None:
        is_going_on = True
        while is_going_on:
            if self._is_due():
                self.look()
            until_next = max(0.0, self._duties.next_look - self._runtime.clock.monotonic())
            is_going_on = self.pause(pause_after(self._failures, until_next))

    def look(self) -> None:
        """Move all that waits; an error is reported."""
        self._looked_at = self._runtime.clock.monotonic()
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

    def _is_due(self) -> bool:
        """Claim a look; return whether it is this process' turn, as it is while its Redis is away."""
        try:
            is_claimed = 0.0 in self._duties.claim().left.values()
        except StoreError:  # another Redis may take the jobs
            return True
        waited = self._runtime.clock.monotonic() - self._looked_at
        return is_claimed or waited >= OWN_INTERVALS * self._source.interval
