"""RedisWait: waits for Redis while a worker boots.

Runs in: the worker's main thread.  An outage is not a failure of the boot; a refusal is.  The supervisor learns why the
boot is held up, and a worker that waits obeys it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

from kiqcluster.application.registry import Definition
from kiqcluster.errors import ExitCode, KiqError, RedisRefused, StoreError
from kiqcluster.ipc.frames import Channel
from kiqcluster.process.clock import Clock
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.store import Store, is_outage, risks
from kiqcluster.store.rights.trials import check_worker

__all__ = ["KiqStopped", "RedisWait", "features_in_use"]

T = TypeVar("T")
FEATURE_BY_OPTION = {
    "concurrency_limit": "limits",
    "cron": "cron",
    "deduplicate": "deduplication",
    "rate_limit": "limits",
}
QUIET_SECONDS = 1.0  # without a log line: a server that starts beside this process takes less


def features_in_use(definitions: Iterable[Definition], config: Config) -> set[str]:
    """Return the features of store/rights that jobs and their configuration declare."""
    found = {"cron"} if config.cron or config.cron_file else set[str]()
    for each in definitions:
        found |= {FEATURE_BY_OPTION[name] for name in each.local.keys() & FEATURE_BY_OPTION.keys()}
        if each.is_iterable:
            found.add("iterable jobs")
    return found


class KiqStopped(KiqError):
    """Asked to stop while it booted."""

    exit_code = ExitCode.STOPPED


class RedisWait:
    """features: of store/rights that the jobs here use.

    pause: waits for a moment and obeys the supervisor; raises KiqStopped when that asks the process to stop.
    """

    def __init__(
        self,
        store: Store,
        features: Collection[str],
        channel: Channel,
        events: Events,
        clock: Clock,
        pause: Callable[[], None],
    ) -> None:
        self._store = store
        self._features = features
        self._channel = channel
        self._events = events
        self._clock = clock
        self._pause = pause
        self._waits_since = 0.0
        self._has_logged = False

    def reach(self) -> None:
        """Wait until Redis answers, and warn of settings that can lose jobs.  Raises RedisRefused."""
        try:
            info = self.retry(self._check)
        except StoreError as error:
            raise RedisRefused(f"{error}; check the address {self._store.address}") from error
        for problem, remedy in risks(info):
            self._events.emit("redis_unsafe", problem=problem, remedy=remedy)

    def retry(self, operation: Callable[[], T]) -> T:
        """Run an operation until Redis is there for it; return its result.  Raises StoreError for a refusal."""
        while True:
            try:
                return operation()
            except StoreError as error:
                if not is_outage(error):
                    raise
                self._wait(error)

    def report_end(self) -> None:
        """Log that Redis is back, if its absence was logged."""
        if self._has_logged:
            self._events.emit("redis_back", seconds=self._clock.monotonic() - self._waits_since)

    def _check(self) -> dict[str, str]:
        info = self._store.check()
        identity = f"{socket.gethostname()}:{os.getpid()}:boot"  # of the form that it will have
        check_worker(self._store, identity, self._features)
        return info

    def _wait(self, error: StoreError) -> None:
        self._channel.send("booting", reason=str(error))
        now = self._clock.monotonic()
        self._waits_since = self._waits_since or now
        if not self._has_logged and now >= self._waits_since + QUIET_SECONDS:
            self._has_logged = True
            self._events.emit("redis_awaited", error=str(error))
        self._pause()
