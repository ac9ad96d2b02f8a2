"""Wakeups: how an idle process learns of a push at once, and loses no job.

A wait is a BLMOVE on a socket of its own for each queue, all under one selector.  It has one of two destinations:
- a hand list    the payload is a unit of this process, and its reply brings it (hand_lists.py)
- the wake list  the payload is only a signal: it belongs to the queue (R6), and the next reserve takes it from there.
                 Whatever happens to this process, the next sweep of any other process finds it

Runs in: the manager thread only, but for `wake` and `end_on_server`.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from kiqcluster.errors import ReplyLost, StoreError
from kiqcluster.process.clock import Clock
from kiqcluster.store import Connection, Store, is_outage
from kiqcluster.store.wire import Command, ErrorReply, Reply
from kiqcluster.worker.fetch.hand_lists import HandList

__all__ = ["MAX_ARMED_QUEUES", "Push", "Wakeups"]

MAX_ARMED_QUEUES = 8  # of a process; sweeps see pushes to the other queues, within a second
MAX_WAIT_SECONDS = 30  # after which a wait ends by itself, and is armed anew if it is still wanted
REPLY_GRACE_SECONDS = 5.0  # that the reply to an ended wait may take
MAX_PAYLOAD_BYTES = 262_144  # that a wakeup waits for; the rest of a larger payload is not read
REARM_DELAY_SECONDS = 1.0  # until a queue is armed again whose connection was lost
NO_HAND_SECONDS = 60.0  # for which a queue has no hand list that has a large payload, or whose list is refused

# (queue → id of the connection that will wait, and the hand list of the last wait if it is unused) → queue → hand list
Register = Callable[[Mapping[str, tuple[int, HandList | None]]], Mapping[str, HandList]]


@dataclass(frozen=True, slots=True)
class Push:
    """What has come of a wait.

    hand_list, payload: the unit that it has brought.  Without a payload the reply is lost, and the hand list may have
    one all the same; if the wait has_ended, not later any more.  Without a hand list it is a signal that the queue has,
    or may have, a job.
    """

    queue: str
    hand_list: HandList | None = None
    payload: bytes | None = None
    has_ended: bool = False


@dataclass(frozen=True, slots=True)
class Client:
    """A connection as its server knows it.  connect_count: of the Connection.  server: see Connection.server_id."""

    connect_count: int
    client_id: int
    server: str


@dataclass(slots=True)
class Wait:
    """An armed wait.

    armed_at: monotonic seconds; with a hand list, when the membership was asked for.  seconds: after which it ends by
    itself.
    """

    connection: Connection
    descriptor: int
    armed_at: float
    seconds: float
    hand_list: HandList | None


class Wakeups:
    """The armed waits of one process, and the socket pair that interrupts them.

    hand_seconds: after which a wait with a hand list ends by itself, and for which its reply is believed afterwards.
    """

    def __init__(self, store: Store, clock: Clock, hand_seconds: tuple[float, float]) -> None:
        self._store = store
        self._clock = clock
        self._hand_seconds, self._hand_grace_seconds = hand_seconds
        self._selector = selectors.DefaultSelector()
        self._armed: dict[str, Wait] = {}
        self._unconfirmed: set[str] = set()  # queues of armed waits: see `unconfirmed`
        self._connections: dict[str, Connection] = {}
        self._unused: dict[str, HandList] = {}  # of waits that ended without a push, by queue
        self._no_hand_before: dict[str, float] = {}
        self._lost: list[Push] = []  # what `wait` returns next
        self._has_lingering_waits = False  # whether a wait was abandoned that may not have ended on the server
        self._not_armed_before: dict[str, float] = {}
        self._clients: dict[str, Client] = {}  # queue → what waits for it
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

    def arm(self, queues: Sequence[str], register: Register) -> None:
        """Begin to wait for pushes to these queues, where that has not begun.  Raises StoreError."""
        now = self._clock.monotonic()
        self._drop_dead(now)
        waiting = [
            queue
            for queue in queues[:MAX_ARMED_QUEUES]
            if queue not in self._armed and self._not_armed_before.get(queue, 0.0) <= now
        ]
        if not waiting:
            return
        for queue in waiting:
            self._learn_client_id(queue, self._connections.setdefault(queue, self._store.connection()))
        asked_at = self._clock.monotonic()
        hand_lists = register(
            {
                queue: (self._clients[queue].client_id if queue in self._clients else 0, self._unused.get(queue))
                for queue in waiting
                if self._no_hand_before.get(queue, 0.0) <= now
            }
        )
        for queue in waiting:
            if queue in hand_lists:
                self._unused.pop(queue, None)
            self._send(queue, self._connections[queue], hand_lists.get(queue), asked_at)

    def unconfirmed(self) -> list[str]:
        """Return the queues that are waited for with a hand list, and may have been paused while that began.

        A pause ends the waits that it sees, and does not see one that is registered and not yet sent.
        """
        return list(self._unconfirmed)

    def confirm(self, queues: Collection[str]) -> None:
        """Take note that somebody has looked whether these queues are paused since their waits were sent."""
        self._unconfirmed.difference_update(queues)

    def wait(self, seconds: float) -> list[Push]:
        """Return what has come, after `seconds` at most or after `wake`."""
        pushed, self._lost = self._lost, []
        for key, _ in self._selector.select(0 if pushed else seconds):
            if key.data is None:
                self._drain_wakes()
            elif (push := self._read(key.data)) is not None:
                pushed.append(push)
        return pushed

    def drop_hand_waits(self, queues: Collection[str] | None = None) -> list[Push]:
        """Drop the waits with a hand list, all or those for some queues: their replies are not to be believed."""
        queues = [
            queue
            for queue, wait in self._armed.items()
            if wait.hand_list is not None and (queues is None or queue in queues)
        ]
        try:
            ended = self._kill(queues)
        except StoreError:
            ended = set()
        return [replace(self._abandon(queue), has_ended=queue in ended) for queue in queues]

    def close(self) -> None:
        """End every wait, on the server too: afterwards nothing moves to a list for this process."""
        try:
            self._kill(list(self._armed))
        finally:
            for wait in self._armed.values():
                self._selector.unregister(wait.descriptor)
            for connection in self._connections.values():
                connection.close()
            for state in (self._armed, self._connections, self._clients, self._unused):
                state.clear()
            self._unconfirmed.clear()

    def end_on_server(self, seconds: float) -> None:
        """End the waits of this process on the server; from any thread.  seconds: for an answer.  Raises StoreError."""
        self._kill(list(self._armed), seconds)

    @property
    def have_ended(self) -> bool:
        """Whether no wait of this process can still be armed on the server, once they were closed."""
        return not self._has_lingering_waits

    def _drop_dead(self, now: float) -> None:
        """Drop waits that the server should have ended long ago: their connection is half open."""
        late = [
            queue for queue, wait in self._armed.items() if now > wait.armed_at + wait.seconds + REPLY_GRACE_SECONDS
        ]
        self._lost += [self._abandon(queue) for queue in late]

    def _kill(self, queues: Sequence[str], seconds: float | None = None) -> set[str]:
        """End the waits for these queues on the server; return those that have ended.  Raises StoreError.

        seconds: for an answer; None for as long as the store waits for one.
        The same address may lead to another server by now, where other clients have these ids.
        """
        clients = {queue: self._clients[queue] for queue in queues if queue in self._clients}
        ended: set[str] = set()
        lingered, self._has_lingering_waits = self._has_lingering_waits, True  # unless Redis confirms that they ended
        if clients:
            with self._store.borrowed() if seconds is None else closing(self._store.connection(seconds)) as connection:
                server = connection.server_id()
                ids = {queue: client.client_id for queue, client in clients.items() if client.server == server}
                kills: list[Command] = [("CLIENT", "KILL", "ID", each) for each in ids.values()]
                replies = connection.exchange_each(kills) if kills else []
            for queue, reply in zip(ids, replies, strict=True):
                if not isinstance(reply, ErrorReply) or reply.code == "ERR":  # "No such client": it has ended
                    ended.add(queue)
        self._has_lingering_waits = lingered or len(ended) < len(queues)
        return ended

    def _abandon(self, queue: str) -> Push:
        """Close the connection of a wait whose reply is not wanted any more."""
        wait = self._disarm(queue)
        wait.connection.close()
        return Push(queue, wait.hand_list)

    def _learn_client_id(self, queue: str, connection: Connection) -> None:
        connection.connect()
        known = self._clients.get(queue)
        if known is not None and known.connect_count == connection.connect_count:
            return
        self._clients.pop(queue, None)
        server = connection.server_id()
        (client_id,) = connection.exchange_each([("CLIENT", "ID")])
        if not isinstance(client_id, ErrorReply):
            self._clients[queue] = Client(connection.connect_count, client_id, server)

    def _send(self, queue: str, connection: Connection, hand_list: HandList | None, asked_at: float) -> None:
        """Arm a wait.  asked_at: when the membership was asked for.  It may have ended since, in a freeze of ours."""
        now, seconds = self._clock.monotonic(), MAX_WAIT_SECONDS if hand_list is None else self._hand_seconds
        if hand_list is not None and now > asked_at + seconds:  # others may have forgotten this process meanwhile
            self._unused[queue] = hand_list
            return
        keys = self._store.keys
        to = keys.wake(queue) if hand_list is None else keys.hand(hand_list.identity, hand_list.field)
        try:
            connection.send(("BLMOVE", keys.queue(queue), to, "RIGHT", "LEFT", seconds))
        except StoreError:
            self._not_armed_before[queue] = now + REARM_DELAY_SECONDS
            if hand_list is not None:
                self._lost.append(Push(queue, hand_list))  # the command may have arrived
            raise
        since = now if hand_list is None else asked_at
        self._armed[queue] = Wait(connection, connection.fileno(), since, seconds, hand_list)
        if hand_list is not None:
            self._unconfirmed.add(queue)
        self._selector.register(connection.fileno(), selectors.EVENT_READ, queue)

    def _read(self, queue: str) -> Push | None:
        """Read the part of a reply that has arrived; return what has come, None if nothing or not all of it has."""
        wait = self._armed[queue]
        try:
            for reply in wait.connection.receive():
                self._disarm(queue)
                return self._on_reply(queue, wait, reply)
        except ReplyLost:
            self._disarm(queue)
            self._not_armed_before[queue] = self._clock.monotonic() + REARM_DELAY_SECONDS
            return Push(queue, wait.hand_list)  # it may have moved a payload: a reserve looks, or a resync
        if wait.connection.arriving > MAX_PAYLOAD_BYTES:  # on a slow line nothing else must wait for the rest
            self._no_hand_before[queue] = self._clock.monotonic() + NO_HAND_SECONDS
            return self._abandon(queue)
        return None

    def _on_reply(self, queue: str, wait: Wait, reply: Reply | ErrorReply) -> Push | None:
        now = self._clock.monotonic()
        if isinstance(reply, ErrorReply):
            self._not_armed_before[queue] = now + REARM_DELAY_SECONDS
            if wait.hand_list is not None:  # nothing was moved
                self._unused[queue] = wait.hand_list
            if is_outage(reply):  # a primary that is a replica now: the next batch meets that and reports it
                return Push(queue)
            self._no_hand_before[queue] = now + NO_HAND_SECONDS  # the wake list may be allowed
            return None
        if reply is None:
            if wait.hand_list is not None:
                self._unused[queue] = wait.hand_list
            return None
        if wait.hand_list is None:
            return Push(queue)
        is_late = now > wait.armed_at + wait.seconds + self._hand_grace_seconds
        return Push(queue, wait.hand_list, None if is_late else reply)

    def _disarm(self, queue: str) -> Wait:
        wait = self._armed.pop(queue)
        self._unconfirmed.discard(queue)
        self._selector.unregister(wait.descriptor)
        return wait

    def _drain_wakes(self) -> None:
        try:
            while self._wake_reader.recv(4_096):
                continue
        except BlockingIOError:
            return
