"""Connections: a Store is one Redis (a shard), a Connection is one connection to it.

Connection policy (docs/engine.md): this module never sends a command twice.  redis-py alone would send a
timed-out LPUSH again (two copies of a job), so its retries are off.  Every exchange ends in one of
- replies                  Redis ran the commands; an error reply is a RedisRefused among the replies
- RedisUnavailable         nothing was sent
- ReplyLost                the commands were sent, and may or may not have run

Connections are kept for reuse and checked before each use (without a round trip).  Threads do not share them, and a
forked process starts without any.

Behind Sentinel, each new connection asks for the primary, and the server has to confirm that it is one.
If a server stops being the primary (READONLY), its connection is closed, and the next one finds the new primary.

redis-py opens the connections (TLS, passwords, database).  wire.py reads and writes, address.py parses addresses.
"""

from __future__ import annotations

import os
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from math import inf
from types import TracebackType
from typing import Any, NoReturn
from weakref import WeakSet

import redis
from redis.backoff import NoBackoff
from redis.connection import Connection as TcpConnection
from redis.connection import SSLConnection
from redis.retry import Retry

from kiqcluster.clock import SystemClock
from kiqcluster.errors import RedisRefused, RedisUnavailable, ReplyLost
from kiqcluster.ipc.forks import hold_forks
from kiqcluster.sidekiq.keys import Keys
from kiqcluster.store.address import PRIMARY_ONLY, Node, Place, Service, masked, parse_address
from kiqcluster.store.names import TIMED_CLASSES
from kiqcluster.store.wire import (
    INCOMPLETE,
    NO_CLUSTER,
    Command,
    Reply,
    Wire,
    about_keys,
    is_outage,
    pack,
    refusal_of,
    says_no_primary,
)

__all__ = ["Connection", "Store", "risks"]

DEFAULT_TIMEOUT_SECONDS = 5.0  # without a byte in either direction, or to connect
PROBE = "#!lua flags=no-writes,allow-oom\nreturn redis.sha1hex('')"  # flags of scripts came with Redis 7.0
REQUIRED_COMMANDS = ("BLMOVE", "LMOVE", "SMISMEMBER")  # other servers may lack them
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
        self, locate: Callable[[], Iterable[Node]], timeout: float, trust: float = 0.0, total: float = inf
    ) -> None:
        self._locate = locate
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
        Error replies are returned as RedisRefused.  Raises RedisUnavailable, ReplyLost.  One round trip.
        """
        self.begin(commands)
        return self.finish(timeout)

    def begin(self, commands: Sequence[Command]) -> None:
        """Send all commands in one write; call `finish` next, from any thread.  Raises as exchange does."""
        packed = b"".join(map(pack, commands))
        if self._begun is not None or self._unread:
            self.close()  # an exception interrupted the previous exchange; its replies must not be taken for ours
        wire = self._ready()
        if self._total != inf:
            wire.deadline = SystemClock.monotonic() + self._total
        self._begun = wire, len(commands)
        try:
            wire.write(packed)
        except OSError as error:
            self._lose(error)
        except BaseException:
            self.close()
            raise

    def finish(self, timeout: float | None = None) -> list[Reply]:
        """Return the replies to the commands that `begin` sent, in order.  See exchange."""
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
        if any(map(says_no_primary, replies)):
            self.close()
        self._trusted_until = SystemClock.monotonic() + self._trust
        return replies

    def _lose(self, error: Exception) -> NoReturn:
        is_first = self._wire is not None and isinstance(self._wire.connection, SSLConnection) and not self._has_talked
        self.close()
        if is_first and has_ended(error):
            raise ReplyLost(f"Redis ended the connection, over TLS ({error}); {TLS_ADVICE}") from error
        raise ReplyLost(f"Redis did not answer ({error}); the command may or may not have run") from error

    def send(self, command: Command) -> None:
        """Send one command whose reply is read later, by `receive`.  Raises RedisUnavailable, ReplyLost."""
        wire = self._ready()
        try:
            wire.write(pack(command))
        except OSError as error:
            self.close()
            raise ReplyLost(f"Redis closed the connection ({error})") from error
        self._unread += 1

    def receive(self) -> Iterator[Reply]:
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
            if says_no_primary(reply):
                self.close()
            yield reply

    def connect(self) -> None:
        """Connect now, if not connected.  Raises RedisUnavailable, or RedisRefused (authentication)."""
        self._ready()

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
        if wire is not None and self._trusted_until <= SystemClock.monotonic() and wire.has_input():
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
        failure = None
        for node in self._locate():
            try:
                return self._connect_to({**node})
            except RedisUnavailable as error:
                failure = error
        assert failure is not None  # without a node, locate raises
        raise failure

    def _connect_to(self, node: Node) -> Wire:
        try:
            is_primary_wanted = node.pop(PRIMARY_ONLY, False)
            kind = node.pop("connection_class", TcpConnection)
            make: Any = TIMED_CLASSES.get(kind, kind)
            node.setdefault("socket_timeout", self._timeout)
            node.setdefault("socket_connect_timeout", self._timeout)
            connection = make(**node, protocol=2, retry=Retry(NoBackoff(), 0), health_check_interval=0)
            connection.connect()
            if is_primary_wanted:
                _check_primary(connection)
        except (redis.AuthenticationError, redis.ResponseError) as error:
            refusal = refusal_of(error)
            if is_outage(refusal):
                raise RedisUnavailable(f"Redis is not ready ({error}); nothing was sent") from error
            raise RedisRefused(f"{refusal} ({_place(node)})") from error  # a sentinel's or a server's
        except (redis.RedisError, OSError) as error:
            over = ", over TLS" if issubclass(make, SSLConnection) else ""
            advice = TLS_ADVICE if over and has_ended(error) else ""
            if isinstance(error.__context__, FileNotFoundError):
                advice = SOCKET_ADVICE
            said = f"cannot reach Redis{over} ({error}); nothing was sent"
            raise RedisUnavailable(f"{said}; {advice}" if advice else said) from error
        return Wire(connection)


def has_ended(error: Exception) -> bool:
    """Return whether an error means that the server closed the connection (redis-py wraps the reason)."""
    causes = (error, error.__cause__, error.__context__)
    ends = ssl.SSLError | ConnectionResetError | ConnectionAbortedError | BrokenPipeError
    return any(isinstance(each, ends) for each in causes) or "closed" in str(error)


def _place(node: Node) -> str:
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


def _ask_sentinel(sentinel: Node, service: str) -> Place | None:
    """Return the address of the primary of a service, None if the sentinel does not know the service.

    Raises StoreError.  One round trip, on a connection of its own.
    """
    connection = Connection(lambda: [sentinel], SENTINEL_TIMEOUT_SECONDS)
    try:
        (found,) = connection.exchange([("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)])
    finally:
        connection.close()
    if isinstance(found, RedisRefused):
        raise RedisRefused(f"{found} ({_place(sentinel)})")
    return None if found is None else (found[0].decode(), int(found[1]))


class Loan:
    """Lends a connection and keeps it for reuse.  A class, because a generator would slow down each push."""

    __slots__ = ("_connection", "_home")

    def __init__(self, connection: Connection, home: deque[Connection]) -> None:
        self._connection = connection
        self._home = home

    def __enter__(self) -> Connection:
        return self._connection

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._home.append(self._connection)


class Store:
    """One Redis: its address, its keys, and connections to it.

    Thread-safe: free connections are kept in a deque, whose append and pop are atomic.  A forked process starts
    with none.
    """

    def __init__(
        self,
        address: str = "redis://127.0.0.1:6379/0",
        *,
        name: str = "default",
        prefix: str = "",
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        locate: Callable[[], Iterable[Node]] | None = None,
    ) -> None:
        """address: see parse_address.  name: for routing rules.  prefix: see Keys.

        locate: returns the nodes to try, called for each connection; None means the address itself, or the primary
        that its sentinels name.  timeout: seconds without progress while an answer is awaited.
        """
        self.name = name
        self.keys = Keys(prefix)
        self.address = masked(address)
        self.timeout = timeout
        place = parse_address(address)
        self._locate = locate or (
            partial(place.locate, _ask_sentinel) if isinstance(place, Service) else lambda: [place]
        )
        self._free: deque[Connection] = deque()
        self._connections: WeakSet[Connection] = WeakSet()
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"<Store {self.name} {self.address}>"

    def connection(self, timeout: float | None = None, trust: float = 0.0, total: float = inf) -> Connection:
        """Return a new connection for the caller alone, not yet connected.  See Connection."""
        connection = Connection(self._locate, self.timeout if timeout is None else timeout, trust, total)
        self._connections.add(connection)
        return connection

    link = connection  # the former name, which applications may use

    def call(self, *command: str | bytes | int | float) -> Reply:
        """Run one command and return its reply.  One round trip.  Raises StoreError."""
        return self.pipeline([command])[0]

    def pipeline(self, commands: Sequence[Command]) -> list[Reply]:
        """Run commands in one round trip, not in a transaction; return all replies.

        Raises StoreError; if Redis refused one of the commands, the others have run anyway.
        """
        with self.borrowed() as connection:
            replies = connection.exchange(commands)
        for at, reply in enumerate(replies):
            if isinstance(reply, RedisRefused):
                raise about_keys(reply, commands[at][1:2])
        return replies

    def transaction(self, commands: Sequence[Command]) -> list[Reply]:
        """Run commands in MULTI/EXEC and return their replies.  One round trip.

        Raises StoreError; if a command failed while it ran, the others have run anyway.
        """
        replies: list[Reply] = self.pipeline([("MULTI",), *commands, ("EXEC",)])[-1]
        for reply in replies:
            if isinstance(reply, RedisRefused):
                raise reply
        return replies

    def borrowed(self) -> AbstractContextManager[Connection]:
        """Return a context manager that lends a connection and keeps it for reuse afterwards."""
        if self._pid != os.getpid():
            self._pid, self._free = os.getpid(), deque()
        try:
            connection = self._free.pop()
        except IndexError:
            connection = self.connection()
        return Loan(connection, self._free)

    def check(self) -> dict[str, str]:
        """Check that the server is supported; return the fields of INFO.

        Raises RedisRefused if it is too old, is a node of a Redis Cluster, or lacks commands that the engine needs;
        StoreError if it does not answer.  One round trip.
        """
        with self.borrowed() as connection:
            reply, number, found = connection.exchange(
                [("INFO",), ("EVAL", PROBE, 0), ("COMMAND", "INFO", *REQUIRED_COMMANDS)]
            )
        if isinstance(reply, RedisRefused):
            if reply.code in ("NOAUTH", "WRONGPASS"):
                raise reply
            reply = b""  # some hosts rename or forbid INFO; Sidekiq does not need it either
        fields = dict(line.split(":", 1) for line in reply.decode().splitlines() if ":" in line)
        version = fields.get("redis_version", "")
        if version and int(version.split(".")[0]) < 7:
            raise RedisRefused(
                f"VERSION this server is Redis {version}; kiqcluster needs Redis 7.0 or Valkey 7.2, or newer"
            )
        if "cluster" in (fields.get("redis_mode"), fields.get("server_mode")):  # the second is Valkey's
            raise RedisRefused(f"CLUSTER {NO_CLUSTER}")
        if isinstance(number, RedisRefused) and number.code == "ERR":  # other codes are temporary, or about permissions
            raise RedisRefused(f"SCRIPT this server does not run scripts as Redis 7.0 does ({number})")
        lacking = (
            [name for name, row in zip(REQUIRED_COMMANDS, found, strict=False) if not row]
            if isinstance(found, list)
            else []
        )
        if lacking:
            raise RedisRefused(f"COMMAND this server has no {', '.join(lacking)}, which kiqcluster needs")
        return fields

    def close_after_fork(self) -> None:
        """Close, in a forked process, every connection of the parent."""
        for connection in list(self._connections):
            connection.close_after_fork()

    def close_idle(self, seconds: float) -> None:
        """Close connections that were unused for at least `seconds`.

        The store lends the connection used last first, so connections that only a peak needed stay unused.
        """
        unused_since = SystemClock.monotonic() - seconds
        for _ in range(len(self._free)):
            try:
                connection = self._free.popleft()
            except IndexError:  # other threads took the rest
                return
            if connection.used_at > unused_since:
                self._free.appendleft(connection)
                return
            connection.close()

    def close(self) -> None:
        """Close all unused connections."""
        while self._free:
            self._free.pop().close()


def risks(info: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return (problem, remedy) pairs for settings that can lose jobs inside Redis.  info: from Store.check."""
    found = []
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        problem = f"Redis evicts keys when its memory is full (maxmemory-policy {policy})"
        found.append((problem, "maxmemory-policy noeviction"))
    if info.get("aof_enabled") == "0":
        problem = "Redis forgets what came after its last snapshot when it is killed (appendonly is off)"
        found.append((problem, "appendonly yes"))
    return found
