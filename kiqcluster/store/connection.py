"""Connections: a Store is one Redis (a shard), a Link is one connection to it.

Connection policy (docs/engine.md): no command is ever sent twice by this module.  redis-py alone would send a
timed-out LPUSH again (two copies of a job), so its retries are off, and every exchange ends in one of
- replies                  Redis ran the commands; an error reply is a RedisRefused among the replies
- RedisUnavailable         nothing was sent
- ReplyLost                sent, but nobody knows whether it ran

Links are kept for reuse, checked before each use (a closed socket is seen without a round trip), never shared
by threads, and forgotten after a fork.
"""

from __future__ import annotations

import os
import re
import select
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.connection import Connection, parse_url
from redis.retry import Retry

from kiqcluster.errors import RedisRefused, RedisUnavailable, ReplyLost, StoreError, UsageError
from kiqcluster.keys import Keys
from kiqcluster.store import embedded

__all__ = ["Command", "Link", "Node", "Store", "is_outage", "masked", "parse_address", "risks"]

Command = Sequence[str | bytes | int | float]
Reply = Any  # bytes, int, None, list of these, or RedisRefused
Node = dict[str, Any]  # keyword arguments of redis-py's connection class, itself among them

DEFAULT_TIMEOUT = 5.0  # seconds that one exchange, or the making of a connection, may take
# After `//user:` up to the last @ (a password may hold any character), or in the query (unix://PATH?password=…).
PASSWORD = re.compile(r"(?<=//)([^:@/]*:).*(?=@)|([?&]password=)[^&]*")
TRY_AGAIN_CODES = frozenset({"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "BUSY", "TRYAGAIN"})


def parse_address(address: str) -> Node:
    """Return what redis-py needs to connect to redis://, rediss://, unix:// or embedded:DIR.

    Raises UsageError that names the forms which work.
    """
    if address.startswith(embedded.SCHEME):
        address = embedded.url_of(embedded.directory_of(address))
    try:
        node: Node = parse_url(address)  # type: ignore[no-untyped-call]  # redis-py has no types here
    except ValueError as error:
        raise UsageError(
            f"{masked(address)!r} is no Redis address ({error}); write redis://HOST:PORT/DB, rediss://…, "
            "unix:///PATH?db=N or embedded:DIR"
        ) from error
    return node


def masked(address: str) -> str:
    """Return the address with its password hidden, for logs and error messages; it need not be a sound one."""
    return PASSWORD.sub(r"\1\2***", address)


class Link:
    """One connection to Redis, used by one thread at a time."""

    def __init__(self, locate: Callable[[], Node], timeout: float) -> None:
        self._locate = locate
        self._timeout = timeout
        self._connection: Any = None
        self._poll: Any = None

    def exchange(self, commands: Sequence[Command], timeout: float | None = None) -> list[Reply]:
        """Send all commands in one write, and return their replies in order.

        timeout: seconds to wait for the replies, when a blocking command needs longer than usual.
        Error replies are returned as RedisRefused.  Raises RedisUnavailable, ReplyLost.  One round trip.
        """
        connection = self._ready()
        try:
            connection.send_packed_command(connection.pack_commands(commands), check_health=False)
            replies = [_read(connection, timeout) for _ in commands]
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            self.close()
            raise ReplyLost(f"Redis did not answer ({error}); the command may or may not have run") from error
        except BaseException:
            self.close()  # replies of this exchange must not be taken for those of the next one
            raise
        return replies

    def send(self, command: Command) -> None:
        """Send one command whose reply is read later, by `receive`.  Raises RedisUnavailable, ReplyLost."""
        connection = self._ready()
        try:
            connection.send_packed_command(connection.pack_command(*command), check_health=False)
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            self.close()
            raise ReplyLost(f"Redis closed the connection ({error})") from error

    def receive(self) -> Iterator[Reply]:
        """Yield the replies that have arrived whole, without waiting.  Raises ReplyLost when the other side is gone."""
        while self._connection is not None:
            try:
                yield _read(self._connection, 0)
            except redis.TimeoutError:
                return
            except (redis.ConnectionError, OSError) as error:
                self.close()
                raise ReplyLost(f"Redis closed the connection ({error})") from error

    def connect(self) -> None:
        """Connect now, if not connected.  Raises RedisUnavailable, or RedisRefused (authentication)."""
        self._ready()

    def fileno(self) -> int:
        """Return the socket's descriptor, for a selector; -1 when not connected."""
        return -1 if self._connection is None else int(self._connection._get_socket().fileno())

    def close(self) -> None:
        """Close the socket; the next exchange connects anew."""
        connection, self._connection, self._poll = self._connection, None, None
        if connection is not None:
            connection.disconnect()

    def _ready(self) -> Any:
        poll = self._poll  # another thread may close this link to wake the one that waits here
        if self._connection is not None and poll is not None and poll.poll(0):
            self.close()  # readable with nothing asked: closed by the server, or out of step
        if self._connection is None:
            self._connection, self._poll = self._connect()
        return self._connection

    def _connect(self) -> tuple[Any, Any]:
        node = {**self._locate()}
        make = node.pop("connection_class", Connection)
        node.setdefault("socket_timeout", self._timeout)
        node.setdefault("socket_connect_timeout", self._timeout)
        connection = make(**node, protocol=2, retry=Retry(NoBackoff(), 0), health_check_interval=0)
        try:
            connection.connect()
        except (redis.AuthenticationError, redis.ResponseError) as error:
            if _code(_wording(error)) in TRY_AGAIN_CODES:
                raise RedisUnavailable(f"Redis is not ready ({error}); nothing was sent") from error
            raise RedisRefused(_wording(error)) from error
        except (redis.RedisError, OSError) as error:
            raise RedisUnavailable(f"cannot reach Redis ({error}); nothing was sent") from error
        poll = select.poll()
        poll.register(connection._get_socket().fileno(), select.POLLIN)
        return connection, poll


def _read(connection: Any, timeout: float | None) -> Reply:
    try:
        if timeout is None:
            return connection.read_response(disable_decoding=True)
        return connection.read_response(disable_decoding=True, timeout=timeout, disconnect_on_error=False)
    except (redis.ResponseError, redis.AuthenticationError, redis.exceptions.BusyLoadingError) as error:
        return RedisRefused(_wording(error))  # the latter two are ConnectionErrors to redis-py


# redis-py cuts these codes off the server's words when it chooses a class for them.
CODES: dict[type[Exception], str] = {
    redis.exceptions.AuthenticationError: "NOAUTH",
    redis.exceptions.AuthorizationError: "NOPERM",
    redis.exceptions.BusyLoadingError: "LOADING",
    redis.exceptions.ClusterDownError: "CLUSTERDOWN",
    redis.exceptions.MasterDownError: "MASTERDOWN",
    redis.exceptions.NoPermissionError: "NOPERM",
    redis.exceptions.NoScriptError: "NOSCRIPT",
    redis.exceptions.OutOfMemoryError: "OOM",
    redis.exceptions.ReadOnlyError: "READONLY",
    redis.exceptions.TryAgainError: "TRYAGAIN",
}


def _wording(error: Exception) -> str:
    """Return the server's own words, code first."""
    message = str(error)
    code = next((CODES[kind] for kind in type(error).__mro__ if kind in CODES), None)
    if code is None and not message.split(" ", 1)[0].isupper():
        code = "ERR"
    return f"{code} {message}" if code and not message.startswith(code) else message


def _code(message: str) -> str:
    return message.split(" ", 1)[0]


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
        locate: Callable[[], Node] | None = None,
    ) -> None:
        """address: see parse_address.  name: how a routing rule calls it.  prefix: see Keys.

        locate: returns the node to connect to, asked at each connection; None means the address itself.
        """
        self.name = name
        self.keys = Keys(prefix)
        self.address = masked(address)
        self._timeout = timeout
        node = parse_address(address)
        self._locate = locate or (lambda: node)
        self._free: deque[Link] = deque()
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"<Store {self.name} {self.address}>"

    def link(self, timeout: float | None = None) -> Link:
        """Return a connection of the caller's own, not yet connected.  timeout: seconds per exchange."""
        return Link(self._locate, self._timeout if timeout is None else timeout)

    def call(self, *command: str | bytes | int | float) -> Reply:
        """Run one command and return its reply.  One round trip.  Raises StoreError."""
        return self.pipeline([command])[0]

    def pipeline(self, commands: Sequence[Command]) -> list[Reply]:
        """Run commands in one round trip, not in a transaction; return all replies.

        Raises StoreError; when Redis refused one of the commands, the others have run all the same.
        """
        with self.borrowed() as link:
            replies = link.exchange(commands)
        for reply in replies:
            if isinstance(reply, RedisRefused):
                raise reply
        return replies

    def transaction(self, commands: Sequence[Command]) -> list[Reply]:
        """Run commands in MULTI/EXEC and return their replies.  One round trip.  Raises StoreError."""
        replies: list[Reply] = self.pipeline([("MULTI",), *commands, ("EXEC",)])[-1]
        return replies

    @contextmanager
    def borrowed(self) -> Iterator[Link]:
        """Lend a link that is kept for reuse afterwards."""
        if self._pid != os.getpid():
            self._pid, self._free = os.getpid(), deque()
        try:
            link = self._free.pop()
        except IndexError:
            link = self.link()
        try:
            yield link
        finally:
            self._free.append(link)

    def check(self) -> dict[str, str]:
        """Return INFO's fields, after making sure that this server will do.

        Raises RedisRefused for a server that is too old, StoreError when it cannot be asked.  One round trip.
        """
        try:
            reply: bytes = self.call("INFO")
        except RedisRefused as error:
            if error.code in ("NOAUTH", "WRONGPASS"):
                raise
            return {}  # some hosts rename or forbid INFO; Sidekiq goes on as well
        fields = dict(line.split(":", 1) for line in reply.decode().splitlines() if ":" in line)
        version = fields.get("redis_version", "")
        if version and int(version.split(".")[0]) < 7:
            raise RedisRefused(
                f"VERSION this server is Redis {version}; kiqcluster needs Redis 7.0 or Valkey 7.2, or newer"
            )
        return fields

    def close(self) -> None:
        """Close all links that nobody uses."""
        while self._free:
            self._free.pop().close()


def is_outage(error: StoreError) -> bool:
    """Return whether the error is one that goes away when Redis is back: no answer, or one that says not now."""
    return not isinstance(error, RedisRefused) or error.code in TRY_AGAIN_CODES


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
