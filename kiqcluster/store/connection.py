"""Connection: one connection to a Redis, with its failures told apart.

Connection policy (docs/engine.md): this module never sends a command twice.  redis-py alone would send a
timed-out LPUSH again (two copies of a job), so its retries are off.  Every exchange ends in one of
- replies                  Redis ran the commands
- RedisRefused             Redis refused one of them, and may have run the others; `exchange_each` returns it instead
- RedisUnavailable         nothing was sent
- ReplyLost                the commands were sent, and may or may not have run

A connection is checked before each use, without a round trip.  Threads do not share one.

Behind Sentinel, each new connection asks for the primary, and the server has to confirm that it is one.
If a server stops being the primary (READONLY), its connection is closed, and the next one finds the new primary.

redis-py opens the connections (TLS, passwords, database).  wire.py reads and writes, address.py parses addresses.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from time import monotonic
from typing import Any, NoReturn

import redis
from redis.backoff import NoBackoff
from redis.connection import Connection as TcpConnection
from redis.connection import SSLConnection
from redis.retry import Retry

from kiqcluster.errors import RedisRefused, RedisUnavailable, ReplyLost
from kiqcluster.ipc.forks import hold_forks
from kiqcluster.ipc.stdio import NUMBERS, occupy
from kiqcluster.store.address import CLUSTER_NODE, NO_CLIENT_INFO, PRIMARY_ONLY, Endpoint, Node
from kiqcluster.store.names import TIMED_CLASSES
from kiqcluster.store.replies import unwrapped
from kiqcluster.store.wire import (
    INCOMPLETE,
    Command,
    ErrorReply,
    Reply,
    Wire,
    is_outage,
    pack,
    refusal_of,
    says_lost_slot,
    says_no_primary,
)

__all__ = ["Connection", "ask_cluster", "ask_sentinel"]

SOCKET_ADVICE = "a server, or `kiqcluster --embedded`, has to run there"
# For a TLS connection that ends early: a server refuses only after the handshake, and its message may be lost by then.
TLS_ADVICE = "does it want a client certificate (ssl_certfile, ssl_keyfile), or does it not speak TLS?"
SENTINEL_TIMEOUT_SECONDS = 1.0  # for one sentinel, before the next one


class Connection:
    """One connection to Redis, used by one thread at a time.

    connect_count: how often it connected; it grows when the socket before had broken.
    trust: seconds after an exchange during which the socket is assumed to be open.  Checking it lets other threads
    run, and under load the command would wait behind them.
    timeout: seconds without progress on the socket; a large transfer over a slow line is not cut off.
    total: seconds after which an exchange is abandoned even if it makes progress.
    """

    def __init__(
        self,
        locate: Callable[[], Iterable[Node]],
        timeout: float,
        trust: float = 0.0,
        total: float = inf,
        advice: str = "",
    ) -> None:
        self._locate = locate
        self._advice = advice
        self._timeout = timeout
        self._total = total
        self.connect_count = 0
        self._wire: Wire | None = None
        self._trust = trust
        self._trusted_until = 0.0
        self._has_talked = False  # whether a reply has arrived on this socket
        self._begun: tuple[Wire, int] | None = None  # how many replies are awaited, and where
        self._unread = 0  # replies to `send` that `receive` has not yielded

    def exchange(self, commands: Sequence[Command], timeout: float | None = None) -> list[Reply]:
        """Send all commands in one write, and return their replies in order.

        timeout: seconds to wait for the replies, when a blocking command needs longer than usual.
        Raises StoreError; if Redis refused one of the commands, the others have run anyway.  One round trip.
        """
        return unwrapped(commands, self.exchange_each(commands, timeout))

    def exchange_each(self, commands: Sequence[Command], timeout: float | None = None) -> list[Reply | ErrorReply]:
        """Do what `exchange` does, for a caller that handles the error of each command by itself.

        Raises RedisUnavailable, ReplyLost.
        """
        self.begin(commands)
        return self.finish(timeout)

    def begin(self, commands: Sequence[Command]) -> None:
        """Send all commands in one write; call `finish` next, from any thread.  Raises as exchange_each does."""
        packed = b"".join(map(pack, commands))
        if self._begun is not None or self._unread:
            self.close()  # an exception interrupted the previous exchange; its replies must not be taken for ours
        wire = self._ready()
        if self._total != inf:
            wire.deadline = monotonic() + self._total
        self._begun = wire, len(commands)
        try:
            wire.write(packed)
        except OSError as error:
            self._lose(error)
        except BaseException:
            self.close()
            raise

    def finish(self, timeout: float | None = None) -> list[Reply | ErrorReply]:
        """Return the replies to the commands that `begin` sent, in order.  See exchange_each."""
        assert self._begun is not None
        wire, awaited = self._begun
        try:
            replies = wire.read(awaited, timeout)
            self._begun, self._has_talked = None, True
        except OSError as error:
            self._lose(error)
        except BaseException:
            self.close()  # the next exchange must not read the replies of this one
            raise
        self._check_server(wire, replies)
        self._trusted_until = monotonic() + self._trust
        return replies

    def _lose(self, error: Exception) -> NoReturn:
        is_first = self._wire is not None and isinstance(self._wire.connection, SSLConnection) and not self._has_talked
        self.close()
        if is_first and has_ended(error):
            raise ReplyLost(f"Redis ended the connection, over TLS ({error}); {TLS_ADVICE}") from error
        raise ReplyLost(f"Redis did not answer ({error}); the command may or may not have run") from error

    def _check_server(self, wire: Wire, replies: Sequence[Reply | ErrorReply]) -> None:
        """Close the connection if a reply says that another server is the primary by now."""
        on_lost_slot = wire.on_lost_slot
        if any(map(says_no_primary if on_lost_slot is None else says_lost_slot, replies)):
            if on_lost_slot is not None:
                on_lost_slot()
            self.close()

    def send(self, command: Command) -> None:
        """Send one command whose reply is read later, by `receive`.  Raises RedisUnavailable, ReplyLost."""
        wire = self._ready()
        try:
            wire.write(pack(command))
        except OSError as error:
            self.close()
            raise ReplyLost(f"Redis closed the connection ({error})") from error
        self._unread += 1

    def receive(self) -> Iterator[Reply | ErrorReply]:
        """Yield the replies that have arrived completely, without waiting.  Raises ReplyLost if the server closed."""
        while (wire := self._wire) is not None:
            try:
                reply = wire.read_arrived()
            except OSError as error:
                self.close()
                raise ReplyLost(f"Redis closed the connection ({error})") from error
            if reply is INCOMPLETE:
                return
            self._unread -= 1
            self._check_server(wire, (reply,))
            yield reply

    def connect(self) -> None:
        """Connect now, if not connected.  Raises RedisUnavailable, or RedisRefused (authentication)."""
        self._ready()

    def server_id(self, timeout: float | None = None) -> str:
        """Return an id of the Redis process that answers, "" when it does not tell (a host may forbid INFO).

        Raises StoreError.  One round trip.
        """
        (reply,) = self.exchange_each([("INFO", "server")], timeout)
        found = None if isinstance(reply, ErrorReply) else re.search(rb"^run_id:(\w+)", reply, re.MULTILINE)
        return "" if found is None else found[1].decode()

    @property
    def arriving(self) -> int:
        """Bytes of an incomplete reply that had arrived at the last `receive`."""
        return 0 if self._wire is None else self._wire.arriving

    @property
    def used_at(self) -> float:
        """Monotonic seconds at which the last exchange ended."""
        return self._trusted_until - self._trust

    def fileno(self) -> int:
        """Return the descriptor of the socket, for a selector; -1 when not connected."""
        return -1 if self._wire is None else self._wire.fileno()

    def close_after_fork(self) -> None:
        """Close the copy of the socket in a forked process, so that the server notices when the parent ends."""
        if self._wire is not None:
            self._wire.close()

    def close(self) -> None:
        """Close the socket; the next exchange reconnects.  Called from another thread, it wakes a waiting exchange."""
        wire, self._wire = self._wire, None
        self._unread = 0
        if wire is not None:
            wire.connection.disconnect()

    def _ready(self) -> Wire:
        wire = self._wire
        if wire is not None and self._trusted_until <= monotonic() and wire.has_input():
            self.close()  # readable without a request: the server closed it, or replies do not match requests
            wire = None
        if wire is None:
            self._has_talked = False
            with hold_forks():  # a child could not close a socket that is being opened
                wire = self._wire = self._connect()
            self.connect_count += 1
        return wire

    def _connect(self) -> Wire:
        """Connect to the first node that can be reached.  Raises the last one's RedisUnavailable."""
        failure = RedisUnavailable("`locate` names no server to connect to; nothing was sent")
        for node in self._locate():
            try:
                return self._connect_to({**node})
            except RedisUnavailable as error:
                failure = error
        raise failure

    def _connect_to(self, node: Node) -> Wire:
        try:
            is_primary_wanted = node.pop(PRIMARY_ONLY, False)
            on_lost_slot = node.pop(CLUSTER_NODE, None)
            kind = node.pop("connection_class", TcpConnection)
            make: Any = TIMED_CLASSES.get(kind, kind)
            node.setdefault("socket_timeout", self._timeout)
            node.setdefault("socket_connect_timeout", self._timeout)
            options = {**node, **NO_CLIENT_INFO}
            connection = make(**options, protocol=2, retry=Retry(NoBackoff(), 0), health_check_interval=0)
            _open(connection)
            if is_primary_wanted:
                _check_primary(connection)
        except (redis.AuthenticationError, redis.ResponseError) as error:
            refusal = refusal_of(error)
            if is_outage(refusal):
                raise RedisUnavailable(f"Redis is not ready ({error}); nothing was sent") from error
            raise RedisRefused(f"{refusal} ({_shown(node)})") from error  # a sentinel's or a server's
        except (redis.RedisError, OSError) as error:
            over = ", over TLS" if issubclass(make, SSLConnection) else ""
            advice = TLS_ADVICE if over and has_ended(error) else self._advice
            if isinstance(error.__context__, FileNotFoundError):
                advice = SOCKET_ADVICE
            said = f"cannot reach Redis{over} ({error}); nothing was sent"
            raise RedisUnavailable(f"{said}; {advice}" if advice else said) from error
        return Wire(connection, on_lost_slot)


def _open(connection: Any) -> None:
    """Connect, and take no number of a standard stream, which a job may close at any time."""
    while True:
        occupy()
        connection.connect()
        if connection._sock.fileno() not in NUMBERS:
            return
        connection.disconnect()


def has_ended(error: Exception) -> bool:
    """Return whether an error means that the server closed the connection (redis-py wraps the reason)."""
    causes = (error, error.__cause__, error.__context__)
    ends = ssl.SSLError | ConnectionResetError | ConnectionAbortedError | BrokenPipeError
    return any(isinstance(each, ends) for each in causes) or "closed" in str(error)


def _shown(node: Node) -> str:
    """Return the address of a node, for messages."""
    return str(node.get("path") or f"{node.get('host', 'localhost')}:{node.get('port', 6379)}")


def _check_primary(connection: Any) -> None:
    """Raise redis-py's ConnectionError when the server is a replica: sentinels may be outdated.  One round trip."""
    connection.send_command("ROLE", check_health=False)
    try:
        role, *_ = connection.read_response(disable_decoding=True)
    except redis.ResponseError:
        return  # ROLE is forbidden; then the first write is refused
    if role != b"master":
        connection.disconnect()
        raise redis.ConnectionError(f"{connection.host}:{connection.port} is a {role.decode()} now, not the primary")


def ask_sentinel(sentinel: Node, service: str) -> Endpoint | None:
    """Return the address of the primary of a service, None if the sentinel does not know the service.

    Raises StoreError.  One round trip, on a connection of its own.
    """
    connection = Connection(lambda: [sentinel], SENTINEL_TIMEOUT_SECONDS)
    try:
        (found,) = connection.exchange_each([("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)])
    finally:
        connection.close()
    if isinstance(found, ErrorReply):
        raise RedisRefused(f"{found} ({_shown(sentinel)})")
    return None if found is None else (found[0].decode(), int(found[1]))


def ask_cluster(node: Node, slot: int) -> tuple[Endpoint | None, list[Endpoint]]:
    """Return the primary of a hash slot by a node of a Redis Cluster, None if no node has the slot, and all nodes.

    Raises StoreError.  One round trip, on a connection of its own.
    """
    connection = Connection(lambda: [node], SENTINEL_TIMEOUT_SECONDS)
    try:
        (ranges,) = connection.exchange_each([("CLUSTER", "SLOTS")])
    finally:
        connection.close()
    if isinstance(ranges, ErrorReply):
        if is_outage(ranges):
            raise RedisUnavailable(f"{ranges} ({_shown(node)})")
        raise RedisRefused(f"{ranges} ({_shown(node)})")
    primary: Endpoint | None = None
    nodes: dict[Endpoint, None] = {}
    for first, last, *owners in ranges:
        endpoints = [((host or b"").decode() or node["host"], int(port)) for host, port, *_ in owners]
        nodes |= dict.fromkeys(endpoints)
        if first <= slot <= last:
            primary = endpoints[0]
    return primary, list(nodes)
