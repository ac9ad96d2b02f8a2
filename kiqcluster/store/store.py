"""Store: one Redis (a shard): its address, its keys, and connections that are kept for reuse.

Runs in: any thread.  A forked process starts without connections.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from math import inf
from time import monotonic
from types import TracebackType
from typing import Any
from weakref import WeakSet

from kiqcluster.errors import RedisRefused
from kiqcluster.sidekiq.keys import Keys
from kiqcluster.store.address import Node, Service, masked, parse_address
from kiqcluster.store.cluster_address import is_cluster_address, parse_cluster, prefix_of
from kiqcluster.store.connection import Connection, ask_cluster, ask_sentinel
from kiqcluster.store.replies import readable, unwrapped
from kiqcluster.store.wire import NO_CLUSTER, Command, ErrorReply, Reply, WrongType

__all__ = ["Store", "literal_pattern", "risks", "scan"]

DEFAULT_TIMEOUT_SECONDS = 5.0  # without a byte in either direction, or to connect
# A process closes the connections that only its largest burst needed, as others are given back after use.
IDLE_SECONDS, MAX_CLOSED_AT_ONCE = 20.0, 8
PROBE = "#!lua flags=no-writes,allow-oom\nreturn redis.sha1hex('')"  # flags of scripts came with Redis 7.0
REQUIRED_COMMANDS = ("BLMOVE", "LMOVE", "SMISMEMBER")  # other servers may lack them


class Loan:
    """Lends a connection and keeps it for reuse.  A class, because a generator would slow down each push."""

    __slots__ = ("_connection", "_home")

    def __init__(self, connection: Connection, home: deque[Connection]) -> None:
        self._connection = connection
        self._home = home

    def __enter__(self) -> Connection:
        return self._connection

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        home, connection = self._home, self._connection
        home.append(connection)
        try:
            if home[0].used_at < (since := connection.used_at - IDLE_SECONDS):
                _close_unused(home, since, MAX_CLOSED_AT_ONCE)
        except IndexError:  # other threads have taken them
            return


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
        advice: str = "",
    ) -> None:
        """address: see parse_address and parse_cluster.  name: for routing rules.  prefix: see Keys; in a Redis Cluster
        it has a hash tag, and is `{name}:` by default.

        locate: returns the nodes to try, called for each connection; None means the address itself, or the primary
        that its sentinels name.  timeout: seconds without progress while an answer is awaited.
        advice: what to do if the server cannot be reached, as the end of a sentence.
        """
        self.name = name
        self.address = masked(address)
        self.timeout = timeout
        self._advice = advice
        self._is_cluster = is_cluster_address(address)
        if self._is_cluster:
            prefix = prefix_of(name, prefix)
            self._locate = locate or partial(parse_cluster(address).locate, prefix, ask_cluster)
        else:
            self._locate = locate or _locate_of(address)
        self.keys = Keys(prefix)
        self._free: deque[Connection] = deque()
        self._connections: WeakSet[Connection] = WeakSet()
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"<Store {self.name} {self.address}>"

    def connection(self, timeout: float | None = None, trust: float = 0.0, total: float = inf) -> Connection:
        """Return a new connection for the caller alone, not yet connected.  See Connection."""
        seconds = self.timeout if timeout is None else timeout
        connection = Connection(self._locate, seconds, trust, total, self._advice)
        self._connections.add(connection)
        return connection

    def call(self, *command: str | bytes | int | float) -> Reply:
        """Run one command and return its reply.  One round trip.  Raises StoreError."""
        return self.pipeline([command])[0]

    def pipeline(self, commands: Sequence[Command]) -> list[Reply]:
        """Run commands in one round trip, not in a transaction; return all replies.

        Raises StoreError; if Redis refused one of the commands, the others have run anyway.
        """
        with self.borrowed() as connection:
            return connection.exchange(commands)

    def read_each(self, commands: Sequence[Command], per_trip: int = sys.maxsize) -> list[Reply | WrongType]:
        """Read keys, `per_trip` commands in a round trip; return all replies, a WrongType for each key of another type.

        One broken key hides no other, and is noted for `broken_keys`.  Raises StoreError for what else is refused.
        """
        answers: list[Reply | WrongType] = []
        for at in range(0, len(commands), per_trip):
            some = commands[at : at + per_trip]
            with self.borrowed() as connection:
                answers += readable(some, connection.exchange_each(some))
        return answers

    def transaction(self, commands: Sequence[Command]) -> list[Reply]:
        """Run commands in MULTI/EXEC and return their replies.  One round trip.

        Raises StoreError; if a command failed while it ran, the others have run anyway.
        """
        return unwrapped(commands, self.pipeline([("MULTI",), *commands, ("EXEC",)])[-1])

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
            reply, number, found = connection.exchange_each(
                [("INFO",), ("EVAL", PROBE, 0), ("COMMAND", "INFO", *REQUIRED_COMMANDS)]
            )
        if isinstance(reply, ErrorReply):
            if reply.code in ("NOAUTH", "WRONGPASS"):
                raise reply
            reply = b""  # some hosts rename or forbid INFO; Sidekiq does not need it either
        fields = dict(line.split(":", 1) for line in reply.decode().splitlines() if ":" in line)
        version = fields.get("redis_version", "")
        if version and int(version.split(".")[0]) < 7:
            raise RedisRefused(
                f"VERSION this server is Redis {version}; kiqcluster needs Redis 7.0 or Valkey 7.2, or newer"
            )
        is_node = "cluster" in (fields.get("redis_mode"), fields.get("server_mode"))  # the second is Valkey's
        if is_node and not self._is_cluster:
            raise RedisRefused(f"CLUSTER {NO_CLUSTER}")
        if isinstance(number, ErrorReply) and number.code == "ERR":  # other codes are temporary, or about permissions
            raise RedisRefused(f"SCRIPT this server does not run scripts as Redis 7.0 does ({number})")
        known = zip(REQUIRED_COMMANDS, [] if isinstance(found, ErrorReply) else found, strict=False)  # may be forbidden
        if lacking := [name for name, row in known if not row]:
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
        _close_unused(self._free, monotonic() - seconds, len(self._free))

    def close(self) -> None:
        """Close all unused connections."""
        with suppress(IndexError):  # there is none, also when another thread has taken the last
            while True:
                self._free.pop().close()


def _close_unused(free: deque[Connection], since: float, most: int) -> None:
    """Close free connections that were unused since then, those first that have waited longest.

    since: monotonic seconds.
    """
    with suppress(IndexError):  # other threads have taken the rest
        while most and free[0].used_at <= since:
            connection = free.popleft()
            if connection.used_at > since:  # another thread has taken the one that was looked at
                free.appendleft(connection)
                return
            connection.close()
            most -= 1


def _locate_of(address: str) -> Callable[[], Iterable[Node]]:
    """Return the function that finds the nodes to try, for an address that is not a cluster's."""
    parsed = parse_address(address)
    return partial(parsed.locate, ask_sentinel) if isinstance(parsed, Service) else lambda: [parsed]


def scan(store: Store, verb: str, key: str | None, *options: str | int) -> Iterator[list[Any]]:
    """Yield the parts of a set, hash or sorted set, or (SCAN, without a key) of the names of all keys.

    verb: SSCAN, HSCAN, ZSCAN or SCAN.  What changes meanwhile may come twice.  One round trip a part.
    Raises StoreError.
    """
    cursor, keys = b"0", () if key is None else (key,)
    while True:
        cursor, part = store.call(verb, *keys, cursor, *options)
        yield part
        if cursor == b"0":
            return


def literal_pattern(text: str) -> str:
    """Return a pattern for MATCH, in which every character of a text stands for itself."""
    return "".join(f"\\{character}" if character in "*?[]\\" else character for character in text)


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
