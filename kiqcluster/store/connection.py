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

redis-py makes the connections (TLS, passwords, database); what goes over them is packed and parsed by hiredis, whose
caller here is Wire: redis-py's layers in between would make an exchange a third dearer.
"""

from __future__ import annotations

import os
import re
import select
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from ssl import SSLWantReadError
from types import TracebackType
from typing import Any, NoReturn
from urllib.parse import parse_qsl, unquote, urlencode

import hiredis
import redis
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, parse_url
from redis.retry import Retry

from kiqcluster.clock import SystemClock
from kiqcluster.errors import RedisRefused, RedisUnavailable, ReplyLost, StoreError, UsageError
from kiqcluster.keys import Keys
from kiqcluster.store import embedded

__all__ = [
    "PRIMARY_ONLY",
    "Command",
    "Link",
    "Node",
    "Service",
    "Store",
    "is_outage",
    "masked",
    "parse_address",
    "risks",
]

Command = Sequence[str | bytes | int | float]
Reply = Any  # bytes, int, None, list of these, or RedisRefused
Node = dict[str, Any]  # keyword arguments of redis-py's connection class, itself among them
Place = tuple[str, int]  # host and port

PRIMARY_ONLY = "primary_only"  # key of a Node: to be connected to only if it is a primary
DEFAULT_TIMEOUT = 5.0  # seconds that one exchange, or the making of a connection, may take
SENTINEL_TIMEOUT = 1.0  # seconds that one sentinel may take to answer, before the next one is asked
READ_SIZE = 65_536  # bytes that one read takes at most
INCOMPLETE = object()  # what the parser returns while a reply has not arrived whole
SENTINEL_PORT = 26_379  # where an address has none
# After `//user:` up to the last @ (a password may hold any character), or in the query (unix://PATH?password=…).
PASSWORD = re.compile(r"(?<=//)([^:@/]*:).*(?=@)|([?&](?:\w+_)?password=)[^&]*")
SENTINEL_ADDRESS = re.compile(
    r"(?P<scheme>rediss?)\+sentinel://((?P<login>[^/?#]*)@)?(?P<hosts>[^/?#@]+)"
    r"/(?P<service>[^/?#]+)(/(?P<db>[0-9]*))?(\?(?P<options>.*))?"
)
HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[^:\[\]\s]+)(:(?P<port>[0-9]+))?")
# Of a server that is no primary, or not any more: another one may be.
NO_PRIMARY_CODES = frozenset({"LOADING", "READONLY", "MASTERDOWN", "NOREPLICAS", "UNBLOCKED"})
TRY_AGAIN_CODES = NO_PRIMARY_CODES | {"CLUSTERDOWN", "BUSY", "TRYAGAIN"}


@dataclass(slots=True)
class Service:
    """A primary that sentinels know by a name.

    hosts: the sentinels.  options: how to connect to them.  node: how to connect to the primary, but for its place.
    first: the sentinel that is asked first, since it was right the last time.
    """

    name: str
    hosts: tuple[Place, ...]
    options: Node
    node: Node
    first: Place | None = None

    def locate(self) -> Iterator[Node]:
        """Yield where the primary is, by one sentinel after the other as long as they are wrong.

        Raises RedisUnavailable when none knows, RedisRefused when one wants another password.  A round trip on a
        connection of its own for each that is asked.
        """
        found: set[Place] = set()
        complaints = []
        for sentinel in sorted(self.hosts, key=lambda host: host != self.first):
            try:
                place = self._ask(sentinel)
            except (RedisUnavailable, ReplyLost) as error:
                complaints.append(str(error))
                continue
            if place is None:
                complaints.append(f"{sentinel[0]}:{sentinel[1]} knows no {self.name!r}")
            elif place not in found:
                found.add(place)
                self.first = sentinel  # it stays so, if the caller asks for no other
                yield {**self.node, "host": place[0], "port": place[1], PRIMARY_ONLY: True}
        if not found:
            said = f"no sentinel says where {self.name!r} is ({'; '.join(complaints)}); nothing was sent"
            raise RedisUnavailable(said)

    def _ask(self, sentinel: Place) -> Place | None:
        host, port = sentinel
        link = Link(lambda: [{**self.options, "host": host, "port": port}], SENTINEL_TIMEOUT)
        try:
            (found,) = link.exchange([("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name)])
        finally:
            link.close()
        if isinstance(found, RedisRefused):
            raise found
        return None if found is None else (found[0].decode(), int(found[1]))


def parse_address(address: str) -> Node | Service:
    """Return what it takes to connect to redis://, rediss://, unix:// or embedded:DIR, or the service of sentinels.

    Sentinels: redis+sentinel://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]…]/SERVICE[/DB][?sentinel_password=…].
    Raises UsageError that names the forms which work.
    """
    if "+sentinel:" in address:
        return _parse_service(address)
    if address.startswith(embedded.SCHEME):
        address = embedded.url_of(embedded.directory_of(address))
    try:
        node: Node = parse_url(address)  # type: ignore[no-untyped-call]  # redis-py has no types here
    except ValueError as error:
        raise UsageError(
            f"{masked(address)!r} is no Redis address ({error}); write redis://HOST:PORT/DB, rediss://…, "
            "unix:///PATH?db=N, redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB or embedded:DIR"
        ) from error
    return node


def _parse_service(address: str) -> Service:
    """Return the service of redis+sentinel:// (rediss+sentinel://: TLS to sentinels and servers alike)."""
    found = SENTINEL_ADDRESS.fullmatch(address)
    hosts = [HOST.fullmatch(host) for host in (found["hosts"] if found else "").split(",")]
    if found is None or None in hosts or any(int(host["port"] or 1) > 65_535 for host in hosts if host):
        raise UsageError(
            f"{masked(address)!r} is no address of sentinels; "
            "write redis+sentinel://[USER:PASSWORD@]HOST:PORT,HOST:PORT/SERVICE/DB"
        )
    options: Node = {}
    others = []
    for name, value in parse_qsl(found["options"] or "", keep_blank_values=True):
        if name in ("sentinel_username", "sentinel_password"):
            options[name.removeprefix("sentinel_")] = value
        elif name.startswith("sentinel"):
            raise UsageError(
                f"there is no option {name!r}; those of sentinels are sentinel_username, sentinel_password"
            )
        else:
            others.append((name, value))
    login = f"{found['login']}@" if found["login"] else ""
    node = parse_address(f"{found['scheme']}://{login}localhost/{found['db'] or 0}?{urlencode(others)}")
    assert isinstance(node, dict)
    del node["host"]
    if node.get("connection_class") is SSLConnection:
        options |= {name: value for name, value in node.items() if name.startswith(("ssl_", "connection_class"))}
    places = tuple((host["name"].strip("[]"), int(host["port"] or SENTINEL_PORT)) for host in hosts if host)
    return Service(unquote(found["service"]), places, options, node)


def masked(address: str) -> str:
    """Return the address with its password hidden, for logs and error messages; it need not be a sound one."""
    return PASSWORD.sub(r"\1\2***", address)


class Garbled(ConnectionError):
    """What has arrived is no reply: the connection is of no use any more."""


class Wire:
    """An open connection: commands are written to it, replies are read from it in their order.

    connection: redis-py's, which made the socket and ends it.  poll: tells whether there is something to read.
    """

    __slots__ = ("_reader", "_socket", "connection", "poll")

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.poll = select.poll()
        self._socket = connection._get_socket()
        self.poll.register(self._socket, select.POLLIN)
        self._reader = hiredis.Reader(protocolError=Garbled, replyError=_refusal, notEnoughData=INCOMPLETE)

    def fileno(self) -> int:
        number: int = self._socket.fileno()
        return number

    def write(self, packed: bytes) -> None:
        self._socket.sendall(packed)

    def read(self, count: int, timeout: float | None) -> list[Reply]:
        """Return so many replies, after waiting for them.  timeout: seconds between two pieces; None: the usual."""
        if timeout is not None:
            with self._patience(timeout):
                return self.read(count, None)
        replies: list[Reply] = []
        while len(replies) < count:
            reply = self._reader.gets()
            if reply is INCOMPLETE:
                self._feed()
            else:
                replies.append(reply)
        return replies

    def read_arrived(self) -> Reply:
        """Return the next reply if it has arrived whole, else INCOMPLETE."""
        with self._patience(0):
            try:
                while (reply := self._reader.gets()) is INCOMPLETE:
                    self._feed()
            except (BlockingIOError, SSLWantReadError):
                return INCOMPLETE
            return reply

    def _feed(self) -> None:
        data = self._socket.recv(READ_SIZE)
        if not data:
            raise ConnectionResetError("the server has closed the connection")
        self._reader.feed(data)

    @contextmanager
    def _patience(self, seconds: float) -> Iterator[None]:
        usual = self._socket.gettimeout()
        self._socket.settimeout(seconds)
        try:
            yield
        finally:
            self._socket.settimeout(usual)


class Link:
    """One connection to Redis, used by one thread at a time.

    connections: how many were made so far; when it grows, the one before had broken.
    trust: seconds after an exchange for which the socket is taken to be open.  The look whether it is lets other
    threads run, and under load the command would wait for its turn behind them.
    """

    def __init__(self, locate: Callable[[], Iterable[Node]], timeout: float, trust: float = 0.0) -> None:
        self._locate = locate
        self._timeout = timeout
        self.connections = 0
        self._wire: Wire | None = None
        self._trust = trust
        self._trusted_until = 0.0
        self._begun: tuple[Wire, int] | None = None  # how many replies are awaited, and where

    def exchange(self, commands: Sequence[Command], timeout: float | None = None) -> list[Reply]:
        """Send all commands in one write, and return their replies in order.

        timeout: seconds to wait for the replies, when a blocking command needs longer than usual.
        Error replies are returned as RedisRefused.  Raises RedisUnavailable, ReplyLost.  One round trip.
        """
        self.begin(commands)
        return self.finish(timeout)

    def begin(self, commands: Sequence[Command]) -> None:
        """Send all commands in one write; `finish` comes next, from whichever thread.  Raises as exchange does."""
        packed = b"".join(map(_packed, commands))
        if self._begun is not None:
            self.close()  # whoever began it was torn away by an exception, and its replies would be taken for ours
        wire = self._ready()
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
            self._begun = None
        except OSError as error:
            self._lose(error)
        except BaseException:
            self.close()  # replies of this exchange must not be taken for those of the next one
            raise
        if any(map(_says_no_primary, replies)):
            self.close()
        self._trusted_until = SystemClock.monotonic() + self._trust
        return replies

    def _lose(self, error: Exception) -> NoReturn:
        self.close()
        raise ReplyLost(f"Redis did not answer ({error}); the command may or may not have run") from error

    def send(self, command: Command) -> None:
        """Send one command whose reply is read later, by `receive`.  Raises RedisUnavailable, ReplyLost."""
        wire = self._ready()
        try:
            wire.write(_packed(command))
        except OSError as error:
            self.close()
            raise ReplyLost(f"Redis closed the connection ({error})") from error

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
            if _says_no_primary(reply):
                self.close()
            yield reply

    def connect(self) -> None:
        """Connect now, if not connected.  Raises RedisUnavailable, or RedisRefused (authentication)."""
        self._ready()

    def fileno(self) -> int:
        """Return the socket's descriptor, for a selector; -1 when not connected."""
        return -1 if self._wire is None else self._wire.fileno()

    def close(self) -> None:
        """Close the socket; the next exchange connects anew.  From another thread, it wakes the one that waits here."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.connection.disconnect()

    def _ready(self) -> Wire:
        wire = self._wire
        if wire is not None and self._trusted_until <= SystemClock.monotonic() and wire.poll.poll(0):
            self.close()  # readable with nothing asked: closed by the server, or out of step
            wire = None
        if wire is None:
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
            make = node.pop("connection_class", Connection)
            node.setdefault("socket_timeout", self._timeout)
            node.setdefault("socket_connect_timeout", self._timeout)
            connection = make(**node, protocol=2, retry=Retry(NoBackoff(), 0), health_check_interval=0)
            connection.connect()
            if is_primary_wanted:
                _check_primary(connection)
        except (redis.AuthenticationError, redis.ResponseError) as error:
            if _code(_wording(error)) in TRY_AGAIN_CODES:
                raise RedisUnavailable(f"Redis is not ready ({error}); nothing was sent") from error
            raise RedisRefused(_wording(error)) from error
        except (redis.RedisError, OSError) as error:
            raise RedisUnavailable(f"cannot reach Redis ({error}); nothing was sent") from error
        return Wire(connection)


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


def _packed(command: Command) -> bytes:
    packed: bytes = hiredis.pack_command(tuple(command))  # type: ignore[arg-type]  # its types know of one argument
    return packed


def _refusal(message: str) -> RedisRefused:
    """Return the error reply that says this; a code is put before the words of one that has none."""
    return RedisRefused(message if message.split(" ", 1)[0].isupper() else f"ERR {message}")


def _says_no_primary(reply: Reply) -> bool:
    """Return whether this reply makes its connection useless: the server is no primary, or not any more."""
    return isinstance(reply, RedisRefused) and reply.code in NO_PRIMARY_CODES


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
        sentinels say.  timeout: seconds that one exchange may take.
        """
        self.name = name
        self.keys = Keys(prefix)
        self.address = masked(address)
        self.timeout = timeout
        place = parse_address(address)
        self._locate = locate or (place.locate if isinstance(place, Service) else lambda: [place])
        self._free: deque[Link] = deque()
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"<Store {self.name} {self.address}>"

    def link(self, timeout: float | None = None, trust: float = 0.0) -> Link:
        """Return a connection of the caller's own, not yet connected.  timeout: seconds per exchange.

        trust: see Link.
        """
        return Link(self._locate, self.timeout if timeout is None else timeout, trust)

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
