"""Connections: a Store is one Redis (a shard), a Link is one connection to it.

Connection policy (docs/engine.md): no command is ever sent twice by this module.  redis-py alone would send a
timed-out LPUSH again (two copies of a job), so its retries are off, and every exchange ends in one of
- replies                  Redis ran the commands; an error reply is a RedisRefused among the replies
- RedisUnavailable         nothing was sent
- ReplyLost                sent, but nobody knows whether it ran

Links are kept for reuse, checked before each use (a closed socket is seen without a round trip), never shared
by threads, and forgotten after a fork.

Behind Sentinel, the node is asked for at each connection, and believed only if it says itself that it is the primary.
A server that turns out to be none any more (READONLY) is left: the connection is closed, and the next one finds the
new primary.

redis-py makes the connections (TLS, passwords, database); what goes over them is in wire.py, and what an address says
in address.py.
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
from redis.connection import Connection, SSLConnection
from redis.retry import Retry

from kiqcluster.clock import SystemClock
from kiqcluster.errors import RedisRefused, RedisUnavailable, ReplyLost
from kiqcluster.ipc.forks import hold_forks
from kiqcluster.sidekiq.keys import Keys
from kiqcluster.store.address import PRIMARY_ONLY, Node, Place, Service, masked, parse_address
from kiqcluster.store.names import CONNECTIONS
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

__all__ = ["Link", "Store", "risks"]

DEFAULT_TIMEOUT = 5.0  # seconds without a byte in either direction, or for the making of a connection
PROBE = "#!lua flags=no-writes,allow-oom\nreturn redis.sha1hex('')"  # flags of scripts came with Redis 7.0
NEEDED = ("BLMOVE", "LMOVE", "SMISMEMBER")  # commands that other servers may lack
SOCKET_ADVICE = "a server, or `kiqcluster --embedded`, has to run there"
# Of a TLS connection that ends early: a server says so only after the handshake, and its words may be lost by then.
TLS_ADVICE = "does it want a client certificate (ssl_certfile, ssl_keyfile), or does it not speak TLS?"
SENTINEL_TIMEOUT = 1.0  # seconds that one sentinel may take to answer, before the next one is asked


class Link:
    """One connection to Redis, used by one thread at a time.

    connections: how many were made so far; when it grows, the one before had broken.
    trust: seconds after an exchange for which the socket is taken to be open.  The look whether it is lets other
    threads run, and under load the command would wait for its turn behind them.
    timeout: seconds for which nothing may move on the socket; who sends or receives much over a slow line is not cut
    off.  total: seconds after which an exchange is given up all the same.
    """

    def __init__(
        self, locate: Callable[[], Iterable[Node]], timeout: float, trust: float = 0.0, total: float = inf
    ) -> None:
        self._locate = locate
        self._timeout = timeout
        self._total = total
        self.connections = 0
        self._wire: Wire | None = None
        self._trust = trust
        self._trusted_until = 0.0
        self._has_talked = False  # this connection has brought a reply
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
        """Send all commands in one write; `finish` comes next, from whichever thread.  Raises as exchange does."""
        packed = b"".join(map(pack, commands))
        if self._begun is not None or self._unread:
            self.close()  # whoever began it was torn away by an exception, and its replies would be taken for ours
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
        """Return the replies to what was begun, in order.  See exchange."""
        assert self._begun is not None
        wire, awaited = self._begun
        try:
            replies = wire.read(awaited, timeout)
            self._begun, self._has_talked = None, True
        except OSError as error:
            self._lose(error)
        except BaseException:
            self.close()  # replies of this exchange must not be taken for those of the next one
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
        """Yield the replies that have arrived whole, without waiting.  Raises ReplyLost when the other side is gone."""
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
        """The bytes that have come of a reply which is not whole yet, as of the last `receive`."""
        return 0 if self._wire is None else self._wire.arriving

    @property
    def used_at(self) -> float:
        """When the last exchange ended, monotonic seconds."""
        return self._trusted_until - self._trust

    def fileno(self) -> int:
        """Return the socket's descriptor, for a selector; -1 when not connected."""
        return -1 if self._wire is None else self._wire.fileno()

    def let_go(self) -> None:
        """Close the socket in a forked process: the server must hear of it when the process that uses it ends."""
        if self._wire is not None:
            self._wire.close()

    def close(self) -> None:
        """Close the socket; the next exchange connects anew.  From another thread, it wakes the one that waits here."""
        wire, self._wire = self._wire, None
        self._unread = 0
        if wire is not None:
            wire.connection.disconnect()

    def _ready(self) -> Wire:
        wire = self._wire
        if wire is not None and self._trusted_until <= SystemClock.monotonic() and wire.has_input():
            self.close()  # readable with nothing asked: closed by the server, or out of step
            wire = None
        if wire is None:
            self._has_talked = False
            with hold_forks():  # a child could not know of a socket that is being made
                wire = self._wire = self._connect()
            self.connections += 1
        return wire

    def _connect(self) -> Wire:
        """Connect to the first of the nodes that will do.  Raises the last one's RedisUnavailable."""
        trouble = None
        for node in self._locate():
            try:
                return self._connect_to({**node})
            except RedisUnavailable as error:
                trouble = error
        assert trouble is not None  # where there is no node, locate raises
        raise trouble

    def _connect_to(self, node: Node) -> Wire:
        try:
            is_primary_wanted = node.pop(PRIMARY_ONLY, False)
            kind = node.pop("connection_class", Connection)
            make: Any = CONNECTIONS.get(kind, kind)
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
            raise RedisRefused(f"{refusal} ({_place(node)})") from error  # it may be a sentinel's word, or a server's
        except (redis.RedisError, OSError) as error:
            over = ", over TLS" if issubclass(make, SSLConnection) else ""
            advice = TLS_ADVICE if over and has_ended(error) else ""
            if isinstance(error.__context__, FileNotFoundError):
                advice = SOCKET_ADVICE
            said = f"cannot reach Redis{over} ({error}); nothing was sent"
            raise RedisUnavailable(f"{said}; {advice}" if advice else said) from error
        return Wire(connection)


def has_ended(error: Exception) -> bool:
    """Return whether an error says that the other side has ended a connection; redis-py wraps the reason."""
    causes = (error, error.__cause__, error.__context__)
    ends = ssl.SSLError | ConnectionResetError | ConnectionAbortedError | BrokenPipeError
    return any(isinstance(each, ends) for each in causes) or "closed" in str(error)


def _place(node: Node) -> str:
    """Return where a node is, for messages."""
    return str(node.get("path") or f"{node.get('host', 'localhost')}:{node.get('port', 6379)}")


def _check_primary(connection: Any) -> None:
    """Raise redis-py's ConnectionError when the server is a replica: sentinels may be behind.  One round trip."""
    connection.send_command("ROLE", check_health=False)
    try:
        role, *_ = connection.read_response(disable_decoding=True)
    except redis.ResponseError:
        return  # it is forbidden; then the refusal of the first write tells
    if role != b"master":
        connection.disconnect()
        raise redis.ConnectionError(f"{connection.host}:{connection.port} is a {role.decode()} now, not the primary")


def _ask_sentinel(sentinel: Node, service: str) -> Place | None:
    """Return where the primary of a service is, None if the sentinel knows none of this name.

    Raises StoreError.  One round trip, on a connection of its own.
    """
    link = Link(lambda: [sentinel], SENTINEL_TIMEOUT)
    try:
        (found,) = link.exchange([("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)])
    finally:
        link.close()
    if isinstance(found, RedisRefused):
        raise RedisRefused(f"{found} ({_place(sentinel)})")
    return None if found is None else (found[0].decode(), int(found[1]))


class Loan:
    """A link that goes back to where the free ones are.  Written out, since each push pays for a generator."""

    __slots__ = ("_home", "_link")

    def __init__(self, link: Link, home: deque[Link]) -> None:
        self._link = link
        self._home = home

    def __enter__(self) -> Link:
        return self._link

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._home.append(self._link)


class Store:
    """One Redis: its address, its keys, and links to it.

    Thread-safe: free links are kept in a deque, whose append and pop are atomic.  After a fork the child
    starts with none.
    """

    def __init__(
        self,
        address: str = "redis://127.0.0.1:6379/0",
        *,
        name: str = "default",
        prefix: str = "",
        timeout: float = DEFAULT_TIMEOUT,
        locate: Callable[[], Iterable[Node]] | None = None,
    ) -> None:
        """address: see parse_address.  name: how a routing rule calls it.  prefix: see Keys.

        locate: returns the nodes to try, asked at each connection; None means the address itself, or what its
        sentinels say.  timeout: seconds for which nothing may move on a connection that waits for an answer.
        """
        self.name = name
        self.keys = Keys(prefix)
        self.address = masked(address)
        self.timeout = timeout
        place = parse_address(address)
        self._locate = locate or (
            partial(place.locate, _ask_sentinel) if isinstance(place, Service) else lambda: [place]
        )
        self._free: deque[Link] = deque()
        self._links: WeakSet[Link] = WeakSet()
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"<Store {self.name} {self.address}>"

    def link(self, timeout: float | None = None, trust: float = 0.0, total: float = inf) -> Link:
        """Return a connection of the caller's own, not yet connected.  See Link."""
        link = Link(self._locate, self.timeout if timeout is None else timeout, trust, total)
        self._links.add(link)
        return link

    def call(self, *command: str | bytes | int | float) -> Reply:
        """Run one command and return its reply.  One round trip.  Raises StoreError."""
        return self.pipeline([command])[0]

    def pipeline(self, commands: Sequence[Command]) -> list[Reply]:
        """Run commands in one round trip, not in a transaction; return all replies.

        Raises StoreError; when Redis refused one of the commands, the others have run all the same.
        """
        with self.borrowed() as link:
            replies = link.exchange(commands)
        for at, reply in enumerate(replies):
            if isinstance(reply, RedisRefused):
                raise about_keys(reply, commands[at][1:2])
        return replies

    def transaction(self, commands: Sequence[Command]) -> list[Reply]:
        """Run commands in MULTI/EXEC and return their replies.  One round trip.

        Raises StoreError; when Redis refused one of the commands as it ran, the others have run all the same.
        """
        replies: list[Reply] = self.pipeline([("MULTI",), *commands, ("EXEC",)])[-1]
        for reply in replies:
            if isinstance(reply, RedisRefused):
                raise reply
        return replies

    def borrowed(self) -> AbstractContextManager[Link]:
        """Lend a link that is kept for reuse afterwards."""
        if self._pid != os.getpid():
            self._pid, self._free = os.getpid(), deque()
        try:
            link = self._free.pop()
        except IndexError:
            link = self.link()
        return Loan(link, self._free)

    def check(self) -> dict[str, str]:
        """Return INFO's fields, after making sure that this server will do.

        Raises RedisRefused for one that is too old, is a node of a cluster, or lacks what the engine needs; StoreError
        when it cannot be asked.  One round trip.
        """
        with self.borrowed() as link:
            reply, number, found = link.exchange([("INFO",), ("EVAL", PROBE, 0), ("COMMAND", "INFO", *NEEDED)])
        if isinstance(reply, RedisRefused):
            if reply.code in ("NOAUTH", "WRONGPASS"):
                raise reply
            reply = b""  # some hosts rename or forbid INFO; Sidekiq goes on as well
        fields = dict(line.split(":", 1) for line in reply.decode().splitlines() if ":" in line)
        version = fields.get("redis_version", "")
        if version and int(version.split(".")[0]) < 7:
            raise RedisRefused(
                f"VERSION this server is Redis {version}; kiqcluster needs Redis 7.0 or Valkey 7.2, or newer"
            )
        if "cluster" in (fields.get("redis_mode"), fields.get("server_mode")):  # the second is Valkey's
            raise RedisRefused(f"CLUSTER {NO_CLUSTER}")
        if isinstance(number, RedisRefused) and number.code == "ERR":  # others go away, or are about permissions
            raise RedisRefused(f"SCRIPT this server does not run scripts as Redis 7.0 does ({number})")
        lacking = [name for name, row in zip(NEEDED, found, strict=False) if not row] if isinstance(found, list) else []
        if lacking:
            raise RedisRefused(f"COMMAND this server has no {', '.join(lacking)}, which kiqcluster needs")
        return fields

    def let_go(self) -> None:
        """Close, in a forked process, every link of the one that it was forked off."""
        for link in list(self._links):
            link.let_go()

    def close_idle(self, seconds: float) -> None:
        """Close links that nobody has used for so long.

        The link that was used last is lent first, so those that a crowd has needed once stay unused.
        """
        unused_since = SystemClock.monotonic() - seconds
        for _ in range(len(self._free)):
            try:
                link = self._free.popleft()
            except IndexError:  # others were faster
                return
            if link.used_at > unused_since:
                self._free.appendleft(link)
                return
            link.close()

    def close(self) -> None:
        """Close all links that nobody uses."""
        while self._free:
            self._free.pop().close()


def risks(info: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return (problem, remedy) of server settings under which jobs can be lost inside Redis.  info: Store.check's."""
    found = []
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        problem = f"Redis evicts keys when its memory is full (maxmemory-policy {policy})"
        found.append((problem, "maxmemory-policy noeviction"))
    if info.get("aof_enabled") == "0":
        problem = "Redis forgets what came after its last snapshot when it is killed (appendonly is off)"
        found.append((problem, "appendonly yes"))
    return found
