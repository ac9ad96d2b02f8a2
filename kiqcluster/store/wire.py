"""What goes over a connection: commands and replies as bytes, and what an error reply means.

pack         a command → bytes
Wire         an open connection: write bytes, read replies in their order
refusal_of   what redis-py raised while it connected → the refusal, in the server's own words
is_outage    whether an error goes away when Redis is back

Packed and parsed by hiredis, without redis-py's layers in between: they would make an exchange a third dearer.
"""

from __future__ import annotations

import select
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from ssl import SSLWantReadError
from typing import Any

import hiredis
import redis

from kiqcluster.clock import SystemClock
from kiqcluster.errors import RedisRefused, StoreError

__all__ = [
    "INCOMPLETE",
    "NO_CLUSTER",
    "Command",
    "Reply",
    "Wire",
    "about_keys",
    "is_outage",
    "pack",
    "refusal_of",
    "says_no_primary",
]

Command = Sequence[str | bytes | int | float]
Reply = Any  # bytes, int, None, list of these, or RedisRefused

MAX_READ_BYTES = 65_536  # bytes that one read takes at most
MAX_WRITE_BYTES = 65_536  # of a large command that one write hands over: each has the time that a small command has
SLOW_TRANSFER_SECONDS = 30.0  # that a reply, or a large command, may take however slow it is
MIN_BYTES_PER_SECOND = 1_000  # of one that takes longer: a byte now and then must not hold anybody for ever
INCOMPLETE = object()  # what the parser returns while a reply has not arrived whole
# Of a server that is not a primary, or not any more: another one may be.
NO_PRIMARY_CODES = frozenset({"LOADING", "READONLY", "MASTERDOWN", "NOREPLICAS", "UNBLOCKED"})
KEY_ERROR_CODES = frozenset(
    {"WRONGTYPE", "NOPERM"}
)  # codes of refusals that a key brings about, and that do not name it
CLUSTER_CODES = frozenset({"MOVED", "ASK", "CROSSSLOT"})  # of a node of a Redis Cluster
NO_CLUSTER = (
    "this is a node of a Redis Cluster, which kiqcluster does not support: its scripts move jobs between keys of "
    "several slots. Use one primary, with replicas and Sentinel where it must not fail; docs/running.md says how"
)
# MISCONF: it cannot write its snapshot, and takes no writes until it can.  Not OOM: scripts that drain run then.
TRY_AGAIN_CODES = NO_PRIMARY_CODES | {"CLUSTERDOWN", "BUSY", "TRYAGAIN", "MISCONF"}
MAX_CLIENTS_MESSAGE = "max number of clients reached"  # an ERR; the connection is closed behind it


def pack(command: Command) -> bytes:
    """Return the command as it is sent.  Raises TypeError or UnicodeEncodeError for what cannot be."""
    packed: bytes = hiredis.pack_command(tuple(command))  # type: ignore[arg-type]  # its types know of one argument
    return packed


class Garbled(ConnectionError):
    """What has arrived is not a reply: the connection is of no use any more."""


class Wire:
    """An open connection: commands are written to it, replies are read from it in their order.

    connection: redis-py's, which made the socket and ends it.
    deadline: monotonic seconds at which an exchange is given up, however steadily it goes on.
    arriving: bytes of a reply that `read_arrived` has not returned yet.

    The socket's timeout is for a want of progress: it begins anew with each piece that comes, and with each that goes.
    What takes longer than SLOW_TRANSFER_SECONDS in all has to go at MIN_BYTES_PER_SECOND.
    """

    __slots__ = ("_poll", "_reader", "_socket", "_unsent", "arriving", "connection", "deadline")

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._socket = connection._sock  # no public way to it; `make test-versions` tries the lowest and the newest
        self._poll = poll_of(self._socket)
        self.deadline = inf
        self.arriving = 0
        self._unsent = 0  # bytes of a large command that the other side had not taken at the last look
        self._reader = hiredis.Reader(protocolError=Garbled, replyError=_refusal, notEnoughData=INCOMPLETE)

    def fileno(self) -> int:
        number: int = self._socket.fileno()
        return number

    def has_input(self) -> bool:
        """Return whether something can be read without waiting, be it the end."""
        if self._poll is None:
            return bool(select.select([self._socket], [], [], 0)[0])
        return bool(self._poll.poll(0))

    def close(self) -> None:
        """Close this process' hold on the socket; another one may go on with the connection."""
        self._socket.close()

    def write(self, packed: bytes) -> None:
        self._unsent = 0
        if len(packed) <= MAX_WRITE_BYTES:
            self._socket.sendall(packed)
            return
        rest, begun_at = memoryview(packed), SystemClock.monotonic()
        while rest:
            self._check_deadline()
            check_pace(len(packed) - len(rest), begun_at)
            rest = rest[self._socket.send(rest[:MAX_WRITE_BYTES]) :]
        self._unsent = len(packed)

    def read(self, count: int, timeout: float | None) -> list[Reply]:
        """Return so many replies, after waiting for them.  timeout: seconds between two pieces; None: the usual."""
        if timeout is not None:
            with self._patience(timeout):
                return self.read(count, None)
        replies: list[Reply] = []
        arrived, begun_at = 0, 0.0  # of the next reply: bytes, and when it was seen to come in pieces
        while len(replies) < count:
            reply = self._reader.gets()
            if reply is not INCOMPLETE:
                replies.append(reply)
                arrived, begun_at = 0, 0.0
                continue
            if arrived:
                begun_at = begun_at or SystemClock.monotonic()
                check_pace(arrived, begun_at)
            arrived += self._feed()
        return replies

    def read_arrived(self) -> Reply:
        """Return the next reply if it has arrived whole, else INCOMPLETE."""
        with self._patience(0):
            try:
                while (reply := self._reader.gets()) is INCOMPLETE:
                    self.arriving += self._feed()
            except (BlockingIOError, SSLWantReadError):
                return INCOMPLETE
            self.arriving = 0
            return reply

    def _feed(self) -> int:
        """Take in what has arrived, after waiting for it; return how many bytes.  0: it still takes our command."""
        if self.deadline != inf:
            self._check_deadline()
        try:
            data = self._socket.recv(MAX_READ_BYTES)
        except TimeoutError:
            if self._is_taking():
                return 0
            raise
        if not data:
            raise ConnectionResetError("the server has closed the connection")
        self._reader.feed(data)
        return len(data)

    def _is_taking(self) -> bool:
        """Return whether the other side has taken some of a large command since the last look."""
        before = self._unsent
        if before:
            self._unsent = unsent_bytes(self._socket.fileno())
        enough = MIN_BYTES_PER_SECOND * (self._socket.gettimeout() or 0.0)
        return before - self._unsent >= max(1.0, min(enough, before))

    def _check_deadline(self) -> None:
        if SystemClock.monotonic() > self.deadline:
            raise TimeoutError("it took too long")

    @contextmanager
    def _patience(self, seconds: float) -> Iterator[None]:
        usual = self._socket.gettimeout()
        self._socket.settimeout(seconds)
        try:
            yield
        finally:
            self._socket.settimeout(usual)


def check_pace(count: int, begun_at: float) -> None:
    """Raise TimeoutError when so many bytes, since then, are too few.  begun_at: monotonic seconds."""
    seconds = SystemClock.monotonic() - begun_at
    if seconds > SLOW_TRANSFER_SECONDS and count < MIN_BYTES_PER_SECOND * seconds:
        raise TimeoutError(f"too slow: {count} bytes in {seconds:.0f} s")


def poll_of(wanted: socket.socket) -> select.poll | None:
    """Return what tells whether a socket can be read; None on Windows, where select() has to."""
    if not hasattr(select, "poll"):
        return None
    poll = select.poll()
    poll.register(wanted, select.POLLIN)
    return poll


def unsent_bytes(descriptor: int) -> int:
    """Return how many bytes the kernel holds that the other side of a socket has not taken; 0 where it cannot tell."""
    if sys.platform == "win32":
        return 0
    import fcntl
    import termios

    count = bytearray(4)
    try:
        fcntl.ioctl(descriptor, termios.TIOCOUTQ, count)
    except OSError:
        return 0
    return int.from_bytes(count, sys.byteorder)


def _refusal(message: str) -> RedisRefused:
    """Return the error reply that says this; a code is put before the words of one that has none."""
    code = message.split(" ", 1)[0]
    if code in CLUSTER_CODES:
        message = f"{message} ({NO_CLUSTER})"
    return RedisRefused(message if code.isupper() else f"ERR {message}")


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


def refusal_of(error: Exception) -> RedisRefused:
    """Return the refusal behind an error of redis-py, in the server's own words, code first."""
    message = str(error)
    code = next((CODES[kind] for kind in type(error).__mro__ if kind in CODES), None)
    if code is None and not message.split(" ", 1)[0].isupper():
        code = "ERR"
    return RedisRefused(f"{code} {message}" if code and not message.startswith(code) else message)


def says_no_primary(reply: Reply) -> bool:
    """Return whether this reply makes its connection useless: the server is not a primary, or not any more."""
    return isinstance(reply, RedisRefused) and reply.code in NO_PRIMARY_CODES


def about_keys(refusal: RedisRefused, keys: Sequence[object]) -> RedisRefused:
    """Return a refusal with the keys in its words, where it is about them: Redis does not say which."""
    if refusal.code not in KEY_ERROR_CODES or not keys:
        return refusal
    names = [key.decode(errors="replace") if isinstance(key, bytes) else str(key) for key in keys]
    return RedisRefused(f"{refusal} (key {', '.join(names)})")


def is_outage(error: StoreError) -> bool:
    """Return whether the error is one that goes away when Redis is back: no answer, or one that says not now."""
    return not isinstance(error, RedisRefused) or error.code in TRY_AGAIN_CODES or MAX_CLIENTS_MESSAGE in str(error)
