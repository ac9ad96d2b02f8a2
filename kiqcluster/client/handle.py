"""Handle: a job that was enqueued, and what became of it (option `result_ttl`: features/results.py)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from math import inf
from typing import Generic, TypeVar, cast

from kiqcluster.application.options import RESULT_TTL
from kiqcluster.application.registry import Definition
from kiqcluster.client.result_waits import REPLY_MARGIN_SECONDS, aresult_of, wait_command
from kiqcluster.client.results import Result, read_progress, read_result
from kiqcluster.errors import JobDropped, JobFailed, MalformedPayload, StoreError, UsageError
from kiqcluster.process.clock import Clock, SystemClock
from kiqcluster.process.job_context import current_job
from kiqcluster.process.runtime import current_setup
from kiqcluster.sidekiq.payload import Jid, read
from kiqcluster.store import Store
from kiqcluster.store.store import literal_pattern
from kiqcluster.store.wire import Command

__all__ = ["Handle"]

R = TypeVar("R", covariant=True)
PENDING = Result("pending")
MIN_EXPLAINED_SECONDS = 1.0  # of a timeout after which the retry set is looked at: for short ones it would be too dear
PAGE_JOBS = 1_000  # of the retry set, among which a job is looked for whose time is over


class Handle(Generic[R]):
    """A job that was enqueued.  jid: its id.  jids: of all jobs of its chain, of which it is the last one."""

    def __init__(
        self,
        jid: Jid,
        definition: Definition | None,
        store: Store | None,
        clock: Clock | None = None,
        *,
        name: str = "",
        jids: tuple[Jid, ...] = (),
    ) -> None:
        """store: that has it; None where a test has its jobs in memory.  name: of a class that is not defined here."""
        self.jid = jid
        self.jids = jids or (jid,)
        self._name = name if definition is None else definition.name
        self._definition = definition
        self._store = store
        self._clock = clock or SystemClock()

    def __repr__(self) -> str:
        return f"<{self._name} {self.jid}>"

    def status(self) -> Result:
        """Return what has become of the job, or how far it has come (`progress`).

        One round trip.  Raises StoreError; UsageError without `result_ttl`.
        """
        self._check()
        if self._store is None:
            return self._in_memory()
        reads: list[Command] = [("LRANGE", self._key(self._store), 0, 0), ("GET", self._store.keys.progress(self.jid))]
        found, progress = self._store.pipeline(reads)
        return read_result(found[0]) if found else Result("pending", progress=read_progress(progress))

    def result(self, timeout: float | None = None) -> R:
        """Wait until the job has ended; return what it returned.

        timeout: seconds; None waits for ever, and 0 not at all.  Redis tells of the end: nobody polls.
        Raises JobFailed, JobDropped, also of the job at which its chain has ended; TimeoutError; StoreError; UsageError
        without `result_ttl`, without a timeout within a job, and for a result that does not fit the annotation of
        `perform`.
        In a test that has its jobs in memory, a job that has not run raises TimeoutError at once.
        """
        self._check()
        seconds = self._seconds(timeout)
        if self._store is None:
            return self._value(self._in_memory(), timeout)
        ended = self._wait(self._store, seconds)
        return self._value(ended, timeout, self._reason(self._store, timeout) if ended is PENDING else "")

    async def aresult(self, timeout: float | None = None) -> R:  # as result
        """Wait as `result` does, while the event loop goes on; a coroutine may await many."""
        self._check()
        seconds = self._seconds(timeout)
        if self._store is None:
            return self._value(self._in_memory(), timeout)
        found = await aresult_of(self._store, self._key(self._store), seconds)
        if found is None:
            return self._value(PENDING, timeout, await asyncio.to_thread(self._reason, self._store, timeout))
        return self._value(read_result(found), timeout)

    def _reason(self, store: Store, timeout: float | None) -> str:
        """Return why a job has not ended in time; empty where nothing says it, and after a short wait.

        One round trip, which looks at a page of the retry set: a job that waits beyond it is not found.
        """
        if timeout is None or timeout < MIN_EXPLAINED_SECONDS:
            return ""
        pattern, page = f"*{literal_pattern(self.jid)}*", list[bytes]()
        with suppress(StoreError):  # the caller has to know of the timeout
            page = store.call("ZSCAN", store.keys.retry, 0, "MATCH", pattern, "COUNT", PAGE_JOBS)[1]
        for raw in page[::2]:  # entries and their scores
            with suppress(MalformedPayload):
                failed = read(raw)
                if failed.get("jid") in self.jids and failed.get("error_class"):
                    return f": it has failed ({failed['error_class']}) and waits for a retry"
        return ""

    def _seconds(self, timeout: float | None) -> float:
        """Return for how many seconds to wait.  Raises UsageError where a job would wait for ever."""
        waiting = current_job()
        if timeout is None and waiting is not None:
            raise UsageError(
                f"{waiting.name} waits for the result of {self!r} without a timeout: if all threads of the workers "
                "wait so, none is left to run the jobs that they wait for; use a chain (then), a callback of a batch, "
                "or give a timeout"
            )
        return inf if timeout is None else timeout

    def _value(self, ended: Result, timeout: float | None, reason: str = "") -> R:
        """Return what a job returned that has ended so.  reason: why it has not ended."""
        if ended.state == "pending" and self._store is None:
            raise TimeoutError(
                f"{self!r} has not run: the jobs of this test wait in memory; run them with drain(), or use "
                "the mode inline, in which a push runs them (a push of a job after that job)"
            )
        if ended.state == "pending":
            raise TimeoutError(f"{self!r} has not ended within {timeout:g} s{reason}")
        if ended.state == "dropped":
            raise JobDropped(ended.ended_by or self._name, ended.ended_by_jid or self.jid, ended.reason)
        if ended.state == "failed" or ended.error_class:
            name, jid = ended.ended_by or self._name, ended.ended_by_jid or self.jid
            raise JobFailed(name, jid, ended.error_class, ended.error_message)
        value = ended.value if self._definition is None else self._definition.read_result(ended.value)
        return cast("R", value)

    def _wait(self, store: Store, seconds: float) -> Result:
        """Wait for the only element of a list, and leave it there: BLMOVE from the list to itself."""
        key = self._key(store)
        until, connection = self._clock.monotonic() + seconds, store.connection()
        try:
            while True:
                command, wait = wait_command(key, until - self._clock.monotonic())
                (reply,) = connection.exchange([command], wait + REPLY_MARGIN_SECONDS)
                if reply is not None:
                    return read_result(reply)
                if self._clock.monotonic() >= until:
                    return PENDING
        finally:
            connection.close()

    def _check(self) -> None:
        """Raise UsageError for a job that keeps no results."""
        if self._definition is None or RESULT_TTL not in self._definition.local:
            raise UsageError(f"{self._name} keeps no results; declare for how many seconds it should: result_ttl=3600")

    def _key(self, store: Store) -> str:
        return store.keys.result(self.jid)

    def _in_memory(self) -> Result:
        """Return what has become of a job of a test."""
        setup = current_setup()
        if setup.delivery is None:
            raise UsageError(f"{self!r} was kept in memory by a test mode that has ended; ask for its result within it")
        found = setup.delivery.kept(self._key(setup.current_store()))
        return read_result(found[0]) if found else PENDING
