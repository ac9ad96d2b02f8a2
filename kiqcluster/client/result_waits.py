"""Result waits: coroutines that wait for results (Handle.aresult).  One thread for each Redis waits for them.

1. aresult_of    in the coroutine: a wait is handed to the thread, and taken back if the coroutine is cancelled
2. ResultWaits   each wait has a connection on which Redis holds a command until the job ends; one selector has all
3. Wait          the coroutine goes on with what Redis keeps, None once its time is over, or an error

A thread for each wait would take those of the event loop's pool, which other code of the coroutines needs: also the
jobs that are waited for.
"""

from __future__ import annotations

import asyncio
import selectors
import socket
from collections import deque
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from math import inf

from kiqcluster.client.store_service import StoreService
from kiqcluster.errors import RedisUnavailable, ReplyLost, StoreError
from kiqcluster.process.clock import SystemClock
from kiqcluster.store import Connection, Store
from kiqcluster.store.wire import Command, ErrorReply, Reply

__all__ = ["REPLY_MARGIN_SECONDS", "ResultWaits", "aresult_of", "wait_command"]

MAX_WAIT_SECONDS = 20.0  # of one command; the next one goes on
MIN_WAIT_SECONDS = 0.001  # Redis takes 0 for ever
REPLY_MARGIN_SECONDS = 5.0
LOOK_SECONDS = 1.0  # between looks for commands whose reply is overdue


def wait_command(key: str, left: float) -> tuple[Command, float]:
    """Return the command that waits for the only element of a list and leaves it there, and for how many seconds.

    left: seconds that the caller still has.
    """
    seconds = min(max(left, MIN_WAIT_SECONDS), MAX_WAIT_SECONDS)
    return ("BLMOVE", key, key, "LEFT", "LEFT", f"{seconds:.3f}"), seconds


async def aresult_of(store: Store, key: str, seconds: float) -> bytes | None:
    """Wait for what Redis keeps of a job; None if there is nothing for so many seconds.  Raises StoreError."""
    loop = asyncio.get_running_loop()
    waits = ResultWaits.of(store)
    wait = Wait(store, key, waits.clock.monotonic() + seconds, loop, loop.create_future())
    waits.submit(wait)
    try:
        return await wait.future
    finally:
        waits.forget(wait)


@dataclass(slots=True, eq=False)
class Wait:
    """until: monotonic seconds.  reply_until: after which the connection counts as broken."""

    store: Store
    key: str
    until: float
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[bytes | None]
    connection: Connection | None = None
    descriptor: int = -1
    reply_until: float = inf
    has_ended: bool = False

    def end(self, found: bytes | None, error: Exception | None = None) -> None:
        """Have the coroutine go on.  Called by the thread."""
        self.has_ended = True

        def go_on() -> None:
            if self.future.done():  # it was cancelled
                return
            if error is None:
                self.future.set_result(found)
            else:
                self.future.set_exception(error)

        with suppress(RuntimeError):  # its loop is closed: nobody waits
            self.loop.call_soon_threadsafe(go_on)


class ResultWaits(StoreService):
    """The thread; only it touches the selector and the connections."""

    service_name = "async results"

    def __init__(self) -> None:
        super().__init__()
        self.clock = SystemClock()
        self._submitted: deque[Wait] = deque()
        self._forgotten: deque[Wait] = deque()
        self._waits: set[Wait] = set()
        self._selector = selectors.DefaultSelector()
        self._alarm, self._waker = socket.socketpair()
        self._alarm.setblocking(False)
        self._waker.setblocking(False)
        self._selector.register(self._alarm, selectors.EVENT_READ)

    # any thread

    def submit(self, wait: Wait) -> None:
        """Wait for a key."""
        self._submitted.append(wait)
        self.wake()

    def forget(self, wait: Wait) -> None:
        """Give up a wait, unless it has ended."""
        if not wait.has_ended:
            self._forgotten.append(wait)
            self.wake()

    def wake(self) -> None:
        with suppress(OSError):  # it is full of wakeups that the thread has not read, or closed
            self._waker.send(b"!")

    # the thread

    def run(self) -> None:
        super().run()
        self._selector.close()
        self._alarm.close()
        self._waker.close()

    def work(self) -> None:
        """Wait for what comes next.  A method, so that `run` keeps no wait, and with it the store, while it waits."""
        ready = self._selector.select(LOOK_SECONDS if self._waits else None)
        with suppress(BlockingIOError):
            self._alarm.recv(4096)
        self._begin_submitted()
        while self._forgotten:
            self._remove(self._forgotten.popleft())
        for key, _ in ready:
            if key.data in self._waits:
                self._read(key.data)
        self._end_overdue()

    def abandon(self, error: Exception) -> None:
        self._waits.update(self._submitted.popleft() for _ in range(len(self._submitted)))
        for wait in list(self._waits):
            wait.end(None, error)
            with suppress(OSError, LookupError, ValueError):  # of a selector that is broken
                self._remove(wait)

    def _begin_submitted(self) -> None:
        """Begin the waits that have come.  They fail together while Redis cannot be reached: each try takes long."""
        unreachable: RedisUnavailable | None = None
        for _ in range(len(self._submitted)):
            wait = self._submitted.popleft()
            if wait.future.done():
                continue
            self._waits.add(wait)
            try:
                if unreachable is not None:
                    raise copy(unreachable)  # noqa: TRY301  # as if it had tried
                wait.connection = wait.store.connection()
                self._ask(wait, wait.connection)
            except Exception as error:  # noqa: BLE001  # the coroutine gets it
                if isinstance(error, RedisUnavailable):
                    unreachable = error
                self._end(wait, None, error)

    def _ask(self, wait: Wait, connection: Connection) -> None:
        now = self.clock.monotonic()
        command, seconds = wait_command(wait.key, wait.until - now)
        wait.reply_until = now + seconds + REPLY_MARGIN_SECONDS
        connection.send(command)
        if connection.fileno() != wait.descriptor:  # it has connected
            self._unregister(wait)
            wait.descriptor = connection.fileno()
            self._selector.register(wait.descriptor, selectors.EVENT_READ, wait)

    def _read(self, wait: Wait) -> None:
        """Take the reply, if it has arrived; ask again where there is none yet, and time is left."""
        assert wait.connection is not None, "it has begun"
        try:
            replies = list(wait.connection.receive())
            if not replies:
                wait.reply_until = self.clock.monotonic() + REPLY_MARGIN_SECONDS  # a part of it has arrived
            elif replies[0] is None and self.clock.monotonic() < wait.until:
                self._ask(wait, wait.connection)
            else:
                self._end(wait, *_found(replies[0]))
        except StoreError as error:
            self._end(wait, None, error)

    def _end_overdue(self) -> None:
        now = self.clock.monotonic()
        for wait in [each for each in self._waits if each.reply_until < now]:
            self._end(wait, None, ReplyLost("Redis did not answer in time; wait again"))

    def _end(self, wait: Wait, found: bytes | None, error: Exception | None = None) -> None:
        wait.end(found, error)
        self._remove(wait)

    def _remove(self, wait: Wait) -> None:
        self._waits.discard(wait)
        connection, wait.connection = wait.connection, None
        if connection is not None:
            self._unregister(wait)  # first: a new connection may get its number
            connection.close()

    def _unregister(self, wait: Wait) -> None:
        if wait.descriptor >= 0:
            self._selector.unregister(wait.descriptor)
            wait.descriptor = -1


def _found(reply: Reply | ErrorReply) -> tuple[bytes | None, Exception | None]:
    return (None, reply) if isinstance(reply, ErrorReply) else (reply, None)
