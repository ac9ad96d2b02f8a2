"""Wakeups: how an idle process learns of a push at once, and loses no job.

`BLMOVE queue:q kiq:wake:q` waits on one socket for each queue, all under one selector.  The payload that it moves is
only a signal: it lies in a wake list, which belongs to the queue (R6), and the next reserve takes it from there.
Whatever happens to this process, the next sweep of any other process finds it.

Runs in: the manager thread only, but for `wake` and `end_on_server`.  Never: reads the payload that a reply carries.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Sequence

from kiqcluster.clock import Clock
from kiqcluster.errors import RedisRefused, ReplyLost, StoreError
from kiqcluster.store import Connection, Store, is_outage

__all__ = ["MAX_ARMED_QUEUES", "Wakeups"]

MAX_ARMED_QUEUES = 8  # of a process; sweeps see pushes to the other queues, within a second
MAX_WAIT_SECONDS = 30  # after which a wait ends by itself, and is armed anew if it is still wanted
REPLY_GRACE_SECONDS = 5.0  # that the reply to an ended wait may take
MAX_PAYLOAD_BYTES = 262_144  # that a wakeup waits for; the rest of a larger payload is not read
REARM_DELAY_SECONDS = 1.0  # until a queue is armed again whose connection was lost


class Wakeups:
    """The armed waits of one process, and the socket pair that interrupts them."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._armed: dict[str, Connection] = {}
        self._connections: dict[str, Connection] = {}
        self._armed_at: dict[str, float] = {}
        self._not_armed_before: dict[str, float] = {}
        self._client_ids: dict[str, tuple[int, int]] = {}  # queue → number of its connection, and id of that
        self._wake_reader, self._wake_writer = socket.socketpair()
        for end in (self._wake_reader, self._wake_writer):
            end.setblocking(False)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, None)

    def close_after_fork(self) -> None:
        """In a forked process, close the descriptors of this one; the store closes its links."""
        for each in (self._selector, self._wake_reader, self._wake_writer):
            each.close()

    def descriptors(self) -> tuple[int, int, int]:
        """Return the numbers of the descriptors that a wait needs, beside the connections."""
        return self._selector.fileno(), self._wake_reader.fileno(), self._wake_writer.fileno()

    def wake(self) -> None:
        """End the current wait; from any thread."""
        try:
            self._wake_writer.send(b"!")
        except (BlockingIOError, OSError):  # full: the wait ends anyway; closed: it has ended
            return

    def arm(self, queues: Sequence[str]) -> None:
        """Begin to wait for pushes to these queues, where that has not begun.  Raises StoreError."""
        now = self._clock.monotonic()
        self._drop_dead(now)
        for queue in queues[:MAX_ARMED_QUEUES]:
            if queue in self._armed or self._not_armed_before.get(queue, 0.0) > now:
                continue
            connection = self._connections.setdefault(queue, self._store.connection())
            try:
                self._learn_client_id(queue, connection)
                connection.send(self._command(queue))
            except StoreError:
                self._not_armed_before[queue] = now + REARM_DELAY_SECONDS
                raise
            self._armed[queue] = connection
            self._armed_at[queue] = now
            self._selector.register(connection.fileno(), selectors.EVENT_READ, queue)

    def wait(self, seconds: float) -> list[str]:
        """Return the queues with a push, after `seconds` at most or after `wake`."""
        pushed = []
        for key, _ in self._selector.select(seconds):
            if key.data is None:
                self._drain_wakes()
            elif self._is_push(key.data, key.fd):
                pushed.append(key.data)
        return pushed

    def close(self) -> None:
        """End every wait, on the server too: afterwards nothing moves to a wake list for this process."""
        try:
            self.end_on_server()
        finally:
            for connection in self._armed.values():
                self._selector.unregister(connection.fileno())
            for connection in self._connections.values():
                connection.close()
            for state in (self._armed, self._connections, self._armed_at, self._client_ids):
                state.clear()

    def end_on_server(self) -> None:
        """End the waits of this process on the server; from any thread.  Raises StoreError."""
        ids = [known[1] for queue in list(self._armed) if (known := self._client_ids.get(queue))]
        if ids:
            with self._store.borrowed() as connection:
                connection.exchange([("CLIENT", "KILL", "ID", each) for each in ids])  # a refusal: it has ended

    def _drop_dead(self, now: float) -> None:
        """Drop waits that the server should have ended long ago: their connection is half open."""
        for queue, armed_at in list(self._armed_at.items()):
            if queue in self._armed and now > armed_at + MAX_WAIT_SECONDS + REPLY_GRACE_SECONDS:
                connection = self._armed[queue]
                self._disarm(queue, connection.fileno())
                connection.close()

    def _learn_client_id(self, queue: str, connection: Connection) -> None:
        connection.connect()
        if self._client_ids.get(queue, (0, 0))[0] != connection.connect_count:
            (client_id,) = connection.exchange([("CLIENT", "ID")])
            if isinstance(client_id, RedisRefused):
                self._client_ids.pop(queue, None)
            else:
                self._client_ids[queue] = (connection.connect_count, client_id)

    def _command(self, queue: str) -> tuple[str | int, ...]:
        keys = self._store.keys
        return ("BLMOVE", keys.queue(queue), keys.wake(queue), "RIGHT", "LEFT", MAX_WAIT_SECONDS)

    def _is_push(self, queue: str, fd: int) -> bool:
        """Read the part of a reply that has arrived; return whether it is whole and tells of a push."""
        connection = self._armed[queue]
        try:
            for reply in connection.receive():
                self._disarm(queue, fd)
                if isinstance(reply, RedisRefused):
                    self._not_armed_before[queue] = self._clock.monotonic() + REARM_DELAY_SECONDS
                    return is_outage(reply)  # a primary that is a replica now: the next batch meets that and reports it
                return reply is not None
        except ReplyLost:
            self._disarm(queue, fd)
            self._not_armed_before[queue] = self._clock.monotonic() + REARM_DELAY_SECONDS
            return True  # it may have moved a payload: a reserve looks
        if connection.arriving > MAX_PAYLOAD_BYTES:
            self._disarm(queue, fd)
            connection.close()  # it tells of a push, and on a slow line the reserve must not wait for the rest
            return True
        return False

    def _disarm(self, queue: str, fd: int) -> None:
        self._armed.pop(queue)
        self._selector.unregister(fd)

    def _drain_wakes(self) -> None:
        try:
            while self._wake_reader.recv(4_096):
                continue
        except BlockingIOError:
            return
