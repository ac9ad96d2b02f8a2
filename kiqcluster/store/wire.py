"""What goes over a connection: commands and replies as bytes, and what an error reply means.

pack         a command → bytes
Wire         an open connection: write bytes, read replies in their order
refusal_of   what redis-py raised while it connected → the refusal, in the server's own words
is_outage    whether an error goes away when Redis is back

Packed and parsed by hiredis, without redis-py's layers in between: they would make an exchange a third dearer.
"""

from __future__ import annotations

import select
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ssl import SSLWantReadError
from typing import Any

import hiredis
import redis

from kiqcluster.errors import RedisRefused, StoreError

__all__ = ["INCOMPLETE", "Command", "Reply", "Wire", "about_keys", "is_outage", "pack", "refusal_of", "says_no_primary"]

Command = Sequence[str | bytes | int | float]
Reply = Any  # bytes, int, None, list of these, or RedisRefused

READ_SIZE = 65_536  # bytes that one read takes at most
INCOMPLETE = object()  # what the parser returns while a reply has not arrived whole
# Of a server that is no primary, or not any more: another one may be.
NO_PRIMARY_CODES = frozenset({"LOADING", "READONLY", "MASTERDOWN", "NOREPLICAS", "UNBLOCKED"})
TRY_AGAIN_CODES = NO_PRIMARY_CODES | {"CLUSTERDOWN", "BUSY", "TRYAGAIN"}


def pack(command: Command) -> bytes:
    """Return the command as it is sent.  Raises TypeError or UnicodeEncodeError for what cannot be."""
    packed: bytes = hiredis.pack_command(tuple(command))  # type: ignore[arg-type]  # its types know of one argument
    return packed


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


def _refusal(message: str) -> RedisRefused:
    """Return the error reply that says this; a code is put before the words of one that has none."""
    return RedisRefused(message if message.split(" ", 1)[0].isupper() else f"ERR {message}")


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
    """Return whether this reply makes its connection useless: the server is no primary, or not any more."""
    return isinstance(reply, RedisRefused) and reply.code in NO_PRIMARY_CODES


def about_keys(refusal: RedisRefused, keys: Sequence[object]) -> RedisRefused:
    """Return a refusal with the keys in its words, where it is about their types: Redis does not say which."""
    if refusal.code != "WRONGTYPE" or not keys:
        return refusal
    names = [key.decode(errors="replace") if isinstance(key, bytes) else str(key) for key in keys]
    return RedisRefused(f"{refusal} (key {', '.join(names)})")


def is_outage(error: StoreError) -> bool:
    """Return whether the error is one that goes away when Redis is back: no answer, or one that says not now."""
    return not isinstance(error, RedisRefused) or error.code in TRY_AGAIN_CODES
