"""Wire: commands and replies as bytes, and the meaning of error replies.

pack         a command → bytes
Wire         an open connection: write bytes, read replies in their order
refusal_of   an error that redis-py raised while it connected → the refusal, with the server's own message
is_outage    whether an error goes away when Redis is back

hiredis packs and parses, without redis-py's layers in between: these would make an exchange a third slower.
"""

from __future__ import annotations

import select
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from ssl import SSLWantReadError
from time import monotonic
from typing import Any

import hiredis
import redis

from kiqcluster.errors import RedisRefused, StoreError
from kiqcluster.words import page

__all__ = [
    "INCOMPLETE",
    "NO_CLUSTER",
    "Command",
    "ErrorReply",
    "Reply",
    "Wire",
    "WrongType",
    "about_keys",
    "is_outage",
    "pack",
    "refusal_of",
    "says_lost_slot",
    "says_no_primary",
    "server_time",
]

Command = Sequence[str | bytes | int | float]
Reply = Any  # to a command that has run: bytes, int, None, or a list of these
ErrorReply = RedisRefused  # in place of a reply; see replies.py

MAX_READ_BYTES = 65_536  # of one read
MAX_WRITE_BYTES = 65_536  # of one write: each part of a large command has the time limit of a small command
SLOW_TRANSFER_SECONDS = 30.0  # a reply, or a large command, may take this long at any speed
MIN_BYTES_PER_SECOND = 1_000  # of a longer transfer: a byte now and then must not block a thread forever
INCOMPLETE = object()  # the parser's result while a reply has not arrived completely
# Codes of a server that is not, or no longer, a primary: another server may be.
NO_PRIMARY_CODES = frozenset({"LOADING", "READONLY", "MASTERDOWN", "NOREPLICAS", "UNBLOCKED"})
KEY_ERROR_CODES = frozenset({"WRONGTYPE", "NOPERM"})  # codes of refusals that may be about a key and do not name it
ABOUT_KEYS = " key"  # in the words of those that are: a NOPERM may be about a command, and then names it
MOVED_CODES = frozenset({"MOVED", "ASK"})  # another node of the cluster has the key; nothing was done
LOST_SLOT_CODES = frozenset({"TRYAGAIN", "CLUSTERDOWN"})  # of a cluster's node that has not, or not all of, the slot
CLUSTER_CODES = frozenset({"MOVED", "ASK", "CROSSSLOT"})  # of a node of a Redis Cluster
NO_CLUSTER = (
    "this is a node of a Redis Cluster, whose keys are spread over several nodes: write its address as "
    "redis+cluster://HOST:PORT,HOST:PORT, so that all keys of a shard are on one node. Or use one primary, with "
    f"replicas and Sentinel where it must not fail; {page('guides/redis')} says how"
)
# MISCONF: the server cannot write its snapshot, and refuses writes until it can.  OOM is not here: scripts that drain
# queues run then.
TRY_AGAIN_CODES = NO_PRIMARY_CODES | {"CLUSTERDOWN", "BUSY", "TRYAGAIN", "MISCONF"}
MAX_CLIENTS_MESSAGE = "max number of clients reached"  # an ERR; the connection is closed behind it


def pack(command: Command) -> bytes:
    """Return the command as it is sent.  Raises TypeError or UnicodeEncodeError for an argument that cannot be sent."""
    packed: bytes = hiredis.pack_command(tuple(command))  # type: ignore[arg-type]  # its types know of one argument
    return packed


class WrongType(RedisRefused):
    """The key holds a value of another type than the command is for.  key: "" where it is not known."""

    key = ""


class Garbled(ConnectionError):
    """The bytes that arrived are not a reply: the connection is no longer usable."""


class Wire:
    """An open connection: writes commands, and reads replies in their order.

    connection: redis-py's, which opened the socket and closes it.
    on_lost_slot: of a node of a Redis Cluster; called when it says that it does not have the slot.
    deadline: monotonic seconds at which an exchange is abandoned even if it makes progress.
    arriving: bytes of a reply that `read_arrived` has not returned yet.

    The socket's timeout limits the time without progress: it restarts with each piece received or sent.
    A transfer that takes longer than SLOW_TRANSFER_SECONDS has to reach MIN_BYTES_PER_SECOND.
    """

    __slots__ = ("_poll", "_reader", "_socket", "_unsent", "arriving", "connection", "deadline", "on_lost_slot")

    def __init__(self, connection: Any, on_lost_slot: Callable[[], None] | None = None) -> None:
        self.connection = connection
        self.on_lost_slot = on_lost_slot
        self._socket = connection._sock  # not public; `make test-versions` tries the lowest and the newest
        self._poll = poll_of(self._socket)
        self.deadline = inf
        self.arriving = 0
        self._unsent = 0  # bytes of a large command that the server had not taken at the last check
        self._reader = hiredis.Reader(
            protocolError=Garbled,
            replyError=_refusal if on_lost_slot is None else _cluster_refusal,
            notEnoughData=INCOMPLETE,
        )

    def fileno(self) -> int:
        number: int = self._socket.fileno()
        return number

    def has_input(self) -> bool:
        """Return whether data, or the end of the stream, can be read without waiting."""
        if self._poll is None:
            return bool(select.select([self._socket], [], [], 0)[0])
        return bool(self._poll.poll(0))

    def close(self) -> None:
        """Close the socket in this process; another process may keep using the connection."""
        self._socket.close()

    def write(self, packed: bytes) -> None:
        self._unsent = 0
        if len(packed) <= MAX_WRITE_BYTES:
            self._socket.sendall(packed)
            return
        rest, begun_at = memoryview(packed), monotonic()
        while rest:
            self._check_deadline()
            check_pace(len(packed) - len(rest), begun_at)
            rest = rest[self._socket.send(rest[:MAX_WRITE_BYTES]) :]
        self._unsent = len(packed)

    def read(self, count: int, timeout: float | None) -> list[Reply | ErrorReply]:
        """Wait for `count` replies and return them.  timeout: seconds between two pieces; None: the default."""
        if timeout is not None:
            with self._patience(timeout):
                return self.read(count, None)
        replies: list[Reply | ErrorReply] = []
        arrived, begun_at = 0, 0.0  # of the next reply: bytes, and the time of its first piece
        while len(replies) < count:
            reply = self._reader.gets()
            if reply is not INCOMPLETE:
                replies.append(reply)
                arrived, begun_at = 0, 0.0
                continue
            if arrived:
                begun_at = begun_at or monotonic()
                check_pace(arrived, begun_at)
            arrived += self._feed()
        return replies

    def read_arrived(self) -> Reply | ErrorReply:
        """Return the next reply if it has arrived completely, else INCOMPLETE."""
        with self._patience(0):
            try:
                while (reply := self._reader.gets()) is INCOMPLETE:
                    self.arriving += self._feed()
            except (BlockingIOError, SSLWantReadError):
                return INCOMPLETE
            self.arriving = 0
            return reply

    def _feed(self) -> int:
        """Wait for bytes and parse them; return their number.  0: the server is still reading our command."""
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
        """Return whether the server has taken a part of a large command since the last check."""
        before = self._unsent
        if before:
            self._unsent = unsent_bytes(self._socket.fileno())
        enough = MIN_BYTES_PER_SECOND * (self._socket.gettimeout() or 0.0)
        return before - self._unsent >= max(1.0, min(enough, before))

    def _check_deadline(self) -> None:
        if monotonic() > self.deadline:
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
    """Raise TimeoutError when `count` bytes since `begun_at` (monotonic seconds) are too few."""
    seconds = monotonic() - begun_at
    if seconds > SLOW_TRANSFER_SECONDS and count < MIN_BYTES_PER_SECOND * seconds:
        raise TimeoutError(f"too slow: {count} bytes in {seconds:.0f} s")


def poll_of(wanted: socket.socket) -> select.poll | None:
    """Return a poll object for reads of a socket; None on Windows, which has only select()."""
    if not hasattr(select, "poll"):
        return None
    poll = select.poll()
    poll.register(wanted, select.POLLIN)
    return poll


def unsent_bytes(descriptor: int) -> int:
    """Return how many sent bytes of a socket the other side has not taken; 0 if the kernel cannot tell."""
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
    """Return an error reply with this message; a message without a code gets one in front."""
    code = message.split(" ", 1)[0]
    if code in CLUSTER_CODES:
        message = f"{message} ({NO_CLUSTER})"
    return _error(message, code)


def _cluster_refusal(message: str) -> RedisRefused:
    """Return an error reply of a node of a Redis Cluster; one that has lost the hash slot was not asked in vain."""
    if message.split(" ", 1)[0] in MOVED_CODES:
        message = f"TRYAGAIN another node of the cluster has the keys now ({message})"
    return _error(message, message.split(" ", 1)[0])


def _error(message: str, code: str) -> RedisRefused:
    if code == "WRONGTYPE":
        return WrongType(message)
    return RedisRefused(message if code.isupper() else f"ERR {message}")


# redis-py removes these codes from the server's message when it chooses an exception class.
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
    """Return the refusal behind an error of redis-py, with the server's own message, code first."""
    message = str(error)
    code = next((CODES[kind] for kind in type(error).__mro__ if kind in CODES), None)
    if code is None and not message.split(" ", 1)[0].isupper():
        code = "ERR"
    return RedisRefused(f"{code} {message}" if code and not message.startswith(code) else message)


def says_no_primary(reply: Reply | ErrorReply) -> bool:
    """Return whether this reply makes its connection useless: the server is not, or no longer, a primary."""
    return isinstance(reply, RedisRefused) and reply.code in NO_PRIMARY_CODES


def says_lost_slot(reply: Reply | ErrorReply) -> bool:
    """Return whether a node of a Redis Cluster is not, or no longer, the primary of the slot."""
    return isinstance(reply, RedisRefused) and reply.code in NO_PRIMARY_CODES | LOST_SLOT_CODES


def about_keys(refusal: RedisRefused, keys: Sequence[object]) -> RedisRefused:
    """Return a refusal that names the keys, if it is about keys: Redis does not say which."""
    if refusal.code not in KEY_ERROR_CODES or ABOUT_KEYS not in str(refusal) or not keys:
        return refusal
    names = [key.decode(errors="replace") if isinstance(key, bytes) else str(key) for key in keys]
    told = type(refusal)(f"{refusal} (key {', '.join(names)})")
    if isinstance(told, WrongType):
        told.key = names[0]
    return told


def is_outage(error: StoreError) -> bool:
    """Return whether the error goes away when Redis is back: no answer, or a temporary refusal."""
    return not isinstance(error, RedisRefused) or error.code in TRY_AGAIN_CODES or MAX_CLIENTS_MESSAGE in str(error)


def server_time(reply: Reply | ErrorReply) -> float:
    """Return the reply to TIME, in epoch seconds."""
    if isinstance(reply, ErrorReply):
        raise reply
    seconds, microseconds = reply
    return int(seconds) + int(microseconds) / 1e6
