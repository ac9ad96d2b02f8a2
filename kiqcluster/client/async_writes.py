"""Async writes: pushes of coroutines.  A thread for each Redis writes for them, so their event loop never waits for it.

1. awrite_all   what a coroutine calls instead of write_all
2. Writer       pushes that came meanwhile are written together, in one round trip
3. Request      the coroutine goes on with the outcome of its own jobs

A push whose coroutine is cancelled may be written all the same, as one whose reply is lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from threading import Event

from kiqcluster.client.store_service import StoreService
from kiqcluster.client.writes import MAX_BYTES_PER_ROUND_TRIP, MAX_JOBS_PER_ROUND_TRIP, Refused, write_all
from kiqcluster.errors import NotReplicated, ReplyLost, StoreError
from kiqcluster.process.delivery import Ready
from kiqcluster.store import Store

__all__ = ["awrite_all"]


async def awrite_all(store: Store, jobs: Sequence[Ready], wait_replicas: int) -> Refused:
    """Write jobs as `write_all` does, in a coroutine, whose event loop goes on meanwhile."""
    if not jobs:
        return {}
    loop = asyncio.get_running_loop()
    request = Request(store, jobs, wait_replicas, loop, loop.create_future())
    Writer.of(store).submit(request)
    return await request.future


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """Jobs that a coroutine has pushed.  future: gets what write_all returns, or raises."""

    store: Store
    jobs: Sequence[Ready]
    wait_replicas: int
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Refused]

    def is_like(self, other: Request) -> bool:
        """Return whether both may share a round trip."""
        return self.wait_replicas == other.wait_replicas

    def tell(self, refused: Refused, error: Exception | None) -> None:
        """Have the coroutine go on.  refused, error: of the write in which its jobs were."""
        with suppress(RuntimeError):  # its loop is closed: nobody waits
            self.loop.call_soon_threadsafe(self._end(refused, error))

    def _end(self, refused: Refused, error: Exception | None) -> Callable[[], None]:
        """Return the function that the loop has to call."""
        jids = [job.jid for job in self.jobs]
        if isinstance(error, StoreError):
            is_enqueued = set(jids) <= set(error.enqueued)
            if is_enqueued and not isinstance(error, NotReplicated):
                error = None
            else:
                error = copy(error)
                error.enqueued = tuple(jid for jid in jids if jid in error.enqueued)
                if isinstance(error, ReplyLost | NotReplicated):
                    error.jids = tuple(jid for jid in jids if jid in error.jids)
        own = {jid: refused[jid] for jid in jids if jid in refused}

        def go_on() -> None:
            if self.future.done():  # it was cancelled
                return
            if error is None:
                self.future.set_result(own)
            else:
                self.future.set_exception(error)

        return go_on


class Writer(StoreService):
    """The thread that writes to one Redis."""

    service_name = "async writes"

    def __init__(self) -> None:
        super().__init__()
        self._requests: deque[Request] = deque()
        self._batch: deque[Request] = deque()  # taken from the requests, and not told yet
        self._is_asked = Event()

    def submit(self, request: Request) -> None:
        """Have a request written; from any thread."""
        self._requests.append(request)
        self._is_asked.set()

    def wake(self) -> None:
        self._is_asked.set()

    def work(self) -> None:
        self._is_asked.wait()
        self._is_asked.clear()  # first: whatever comes later sets it again
        while self._requests:
            self._take_batch()
            self._write_batch()

    def abandon(self, error: Exception) -> None:
        while self._batch:
            self._batch.popleft().tell(Refused(), error)
        self._is_asked.set()  # other requests may wait

    def _take_batch(self) -> None:
        """Take requests that share one round trip, so that an error concerns all of them; a large one is alone."""
        jobs = size = 0
        while self._requests and (not self._batch or self._requests[0].is_like(self._batch[0])):
            jobs += len(self._requests[0].jobs)
            size += sum([len(job.encoded) for job in self._requests[0].jobs])
            if self._batch and (jobs > MAX_JOBS_PER_ROUND_TRIP or size > MAX_BYTES_PER_ROUND_TRIP):
                break
            self._batch.append(self._requests.popleft())

    def _write_batch(self) -> None:
        """Write the requests of the batch, and have their coroutines go on."""
        first, refused, error = self._batch[0], Refused(), None
        try:
            refused = write_all(first.store, [job for each in self._batch for job in each.jobs], first.wait_replicas)
        except Exception as raised:  # noqa: BLE001  # each coroutine gets it
            error = raised
        while self._batch:
            self._batch[0].tell(refused, error)
            self._batch.popleft()
