"""Handle: a job that was enqueued, and what became of it (option `result_ttl`: features/results.py)."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Generic, TypeVar, cast

from kiqcluster.application.registry import Definition
from kiqcluster.errors import JobDropped, JobFailed, UsageError
from kiqcluster.features.results import RESULT_TTL, Result, read_result
from kiqcluster.process.clock import Clock, SystemClock
from kiqcluster.sidekiq.payload import Jid
from kiqcluster.store import Store

__all__ = ["Handle"]

R = TypeVar("R", covariant=True)
MAX_WAIT_SECONDS = 20.0  # of one command; the next one goes on
REPLY_MARGIN_SECONDS = 5.0
MIN_WAIT_SECONDS = 0.001  # Redis takes 0 for ever
PENDING = Result("pending")


class Handle(Generic[R]):
    """A job that was enqueued.  jid: its id.  store: that has it; None where a test keeps it in memory."""

    def __init__(self, jid: Jid, definition: Definition, store: Store | None, clock: Clock | None = None) -> None:
        self.jid = jid
        self._definition = definition
        self._store = store
        self._clock = clock or SystemClock()

    def __repr__(self) -> str:
        return f"<{self._definition.name} {self.jid}>"

    def status(self) -> Result:
        """Return what has become of the job.  One round trip.  Raises StoreError; UsageError without `result_ttl`."""
        store, key = self._place()
        found = store.call("LRANGE", key, 0, 0)
        return read_result(found[0]) if found else PENDING

    def result(self, timeout: float | None = None) -> R:
        """Wait until the job has ended; return what it returned.

        timeout: seconds; None waits for ever, and 0 not at all.  Redis tells of the end: nobody polls.
        Raises JobFailed, JobDropped, TimeoutError; StoreError; UsageError without `result_ttl`.
        """
        ended = self.status() if timeout == 0 else self._wait(inf if timeout is None else timeout)
        if ended.state == "pending":
            raise TimeoutError(f"{self!r} has not ended within {timeout:g} s")
        if ended.state == "dropped":
            raise JobDropped(self._definition.name, self.jid, ended.reason)
        if ended.error_class:
            raise JobFailed(self._definition.name, self.jid, ended.error_class, ended.error_message)
        return cast("R", ended.value)

    async def aresult(self, timeout: float | None = None) -> R:  # as result
        """Wait in a thread, as `result` does; a coroutine may await many."""
        return await asyncio.to_thread(self.result, timeout)

    def _wait(self, seconds: float) -> Result:
        """Wait for the only element of a list, and leave it there: BLMOVE from the list to itself."""
        store, key = self._place()
        until, connection = self._clock.monotonic() + seconds, store.connection()
        try:
            while (left := until - self._clock.monotonic()) > 0:
                wait = min(max(left, MIN_WAIT_SECONDS), MAX_WAIT_SECONDS)
                command = ("BLMOVE", key, key, "LEFT", "LEFT", f"{wait:.3f}")
                (reply,) = connection.exchange([command], wait + REPLY_MARGIN_SECONDS)
                if isinstance(reply, Exception):
                    raise reply
                if reply is not None:
                    return read_result(reply)
        finally:
            connection.close()
        return PENDING

    def _place(self) -> tuple[Store, str]:
        if RESULT_TTL not in self._definition.local:
            raise UsageError(
                f"{self._definition.name} keeps no results; declare for how many seconds it should: result_ttl=3600"
            )
        if self._store is None:
            raise UsageError(
                f"{self!r}: this needs Redis, and the jobs of this test stay in memory; use testing.real()"
            )
        return self._store, self._store.keys.result(self.jid)
