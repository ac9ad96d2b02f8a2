"""Bells: how an idle process learns of a push at once, without a loss window.

`BLMOVE queue:q kiq:wake:q` waits on a socket per queue, all under one selector.  The moved payload is only a
bell: it lies in a list that belongs to the queue (R6), and the next reserve takes it from there.  Whatever
happens to this process, any other one's next sweep finds it.

Runs in: the manager thread only.  Never: reads the payload that a reply carries.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Sequence

from kiqcluster.clock import Clock
from kiqcluster.errors import RedisRefused, ReplyLost, StoreError
from kiqcluster.store import Link, Store, is_outage

__all__ = ["MOST_BELLS", "Bells"]

MOST_BELLS = 8  # queues of a process that have a bell; the others are seen by the sweep, within a second
LONGEST_WAIT = 30  # seconds after which a wait ends by itself and is armed anew, or not
GRACE = 5.0  # seconds that the reply to an ended wait may take
MAX_BELL_BYTES = 262_144  # of a payload that a bell brings along; what is larger is not waited for
RECONNECT_PAUSE = 1.0  # seconds before a bell is armed again after its connection was lost


class Bells:
    """The armed waits of one process, and the poke that interrupts them."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._armed: dict[str, Link] = {}
        self._links: dict[str, Link] = {}
        self._armed_at: dict[str, float] = {}
        self._not_before: dict[str, float] = {}
        self._client_ids: dict[str, tuple[int, int]] = {}  # queue → number of its link's connection, and id of that
        self._poked, self._poker = socket.socketpair()
        for end in (self._poked, self._poker):
            end.setblocking(False)
        self._selector.register(self._poked, selectors.EVENT_READ, None)

    def let_go(self) -> None:
        """Close, in a forked process, what this one selects on; its links are the store's to close."""
        for each in (self._selector, self._poked, self._poker):
            each.close()

    def descriptors(self) -> tuple[int, int, int]:
        """Return the numbers of what a wait needs, beside the connections."""
        return self._selector.fileno(), self._poked.fileno(), self._poker.fileno()

    def poke(self) -> None:
        """End the current wait; from any thread."""
        try:
            self._poker.send(b"!")
        except (BlockingIOError, OSError):  # full: it is awake already; closed: it has ended
            return

    def arm(self, queues: Sequence[str]) -> None:
        """Arm the bells of these queues that are not armed yet.  Raises StoreError."""
        now = self._clock.monotonic()
        self._drop_dead(now)
        for queue in queues[:MOST_BELLS]:
            if queue in self._armed or self._not_before.get(queue, 0.0) > now:
                continue
            link = self._links.setdefault(queue, self._store.link())
            try:
                self._learn_client_id(queue, link)
                link.send(self._command(queue))
            except StoreError:
                self._not_before[queue] = now + RECONNECT_PAUSE
                raise
            self._armed[queue] = link
            self._armed_at[queue] = now
            self._selector.register(link.fileno(), selectors.EVENT_READ, queue)

    def wait(self, seconds: float) -> list[str]:
        """Return the queues whose bells have rung, after `seconds` at most or when poked."""
        rung = []
        for key, _ in self._selector.select(seconds):
            if key.data is None:
                self._drain_pokes()
            elif self._has_rung(key.data, key.fd):
                rung.append(key.data)
        return rung

    def close(self) -> None:
        """End every wait, on the server too: afterwards nothing is moved to a wake list on our behalf."""
        try:
            self.end_on_server()
        finally:
            for link in self._armed.values():
                self._selector.unregister(link.fileno())
            for link in self._links.values():
                link.close()
            for state in (self._armed, self._links, self._armed_at, self._client_ids):
                state.clear()

    def end_on_server(self) -> None:
        """Have the server forget our waits; from any thread.  Raises StoreError."""
        ids = [known[1] for queue in list(self._armed) if (known := self._client_ids.get(queue))]
        if ids:
            with self._store.borrowed() as link:
                link.exchange([("CLIENT", "KILL", "ID", each) for each in ids])  # a refusal means that it has ended

    def _drop_dead(self, now: float) -> None:
        """Give up waits that the server should have ended long ago: their connection is half open."""
        for queue, armed_at in list(self._armed_at.items()):
            if queue in self._armed and now > armed_at + LONGEST_WAIT + GRACE:
                link = self._armed[queue]
                self._disarm(queue, link.fileno())
                link.close()

    def _learn_client_id(self, queue: str, link: Link) -> None:
        link.connect()
        if self._client_ids.get(queue, (0, 0))[0] != link.connections:
            (client_id,) = link.exchange([("CLIENT", "ID")])
            if isinstance(client_id, RedisRefused):
                self._client_ids.pop(queue, None)
            else:
                self._client_ids[queue] = (link.connections, client_id)

    def _command(self, queue: str) -> tuple[str | int, ...]:
        keys = self._store.keys
        return ("BLMOVE", keys.queue(queue), keys.wake(queue), "RIGHT", "LEFT", LONGEST_WAIT)

    def _has_rung(self, queue: str, fd: int) -> bool:
        """Read what has arrived of a reply; return whether it is whole and brought something."""
        link = self._armed[queue]
        try:
            for reply in link.receive():
                self._disarm(queue, fd)
                if isinstance(reply, RedisRefused):
                    self._not_before[queue] = self._clock.monotonic() + RECONNECT_PAUSE
                    return is_outage(reply)  # a primary that is a replica now: who leads finds that out and says so
                return reply is not None
        except ReplyLost:
            self._disarm(queue, fd)
            self._not_before[queue] = self._clock.monotonic() + RECONNECT_PAUSE
            return True  # it may have moved something: a sweep looks
        if link.arriving > MAX_BELL_BYTES:
            self._disarm(queue, fd)
            link.close()  # it has rung, and on a slow line the reserve is not to wait behind its bell
            return True
        return False

    def _disarm(self, queue: str, fd: int) -> None:
        self._armed.pop(queue)
        self._selector.unregister(fd)

    def _drain_pokes(self) -> None:
        try:
            while self._poked.recv(4_096):
                continue
        except BlockingIOError:
            return
