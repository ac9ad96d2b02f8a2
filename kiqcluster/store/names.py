"""Names: connections that resolve host names with a timeout.

getaddrinfo has no timeout: when the name server does not answer, it blocks its thread for 10 to 30 seconds and more,
although a connection or a reply is abandoned after five.  So the look-up runs in a thread of its own.  A caller stops
waiting after its timeout; the next caller waits for the same look-up.
Counterpart: redis-py's Connection._connect, which this replaces.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
from collections.abc import Sequence
from time import monotonic
from typing import Any

from redis.connection import Connection as TcpConnection
from redis.connection import SSLConnection

__all__ = ["TIMED_CLASSES", "TimedConnection", "TimedSSLConnection"]

DEFAULT_TIMEOUT_SECONDS = 5.0  # for a connection without a timeout of its own
Address = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]


class LookUp:
    """One call of getaddrinfo, running or finished."""

    pending: dict[tuple[int, str, int], LookUp] = {}  # by pid: a fork does not copy threads

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._ended = threading.Event()
        self._found: Sequence[Address] = ()
        self._error: Exception | None = None

    @classmethod
    def join(cls, host: str, port: int) -> LookUp:
        """Return the running look-up, or start one.  Takes no lock, because the process may fork at any time."""
        key = (os.getpid(), host, port)
        new = cls(host, port)
        found = cls.pending.setdefault(key, new)
        if found is new:
            new._start(key)
        return found

    def _start(self, key: tuple[int, str, int]) -> None:
        try:
            threading.Thread(target=self._run, args=(key,), name="kiq.look-up", daemon=True).start()
        except RuntimeError as error:
            self._error = OSError(f"no thread could be started for the look-up of {self._host} ({error})")
            self._end(key)

    def _run(self, key: tuple[int, str, int]) -> None:
        try:
            self._found = socket.getaddrinfo(self._host, self._port, 0, socket.SOCK_STREAM)
        except Exception as error:  # noqa: BLE001  # raised by `wait`
            self._error = error
        finally:
            self._end(key)

    def _end(self, key: tuple[int, str, int]) -> None:
        self.pending.pop(key, None)
        self._ended.set()

    def wait(self, seconds: float) -> Sequence[Address]:
        """Return the addresses.  Raises OSError; redis-py would hide the message of a TimeoutError."""
        if not self._ended.wait(seconds):
            raise OSError(f"the look-up of {self._host} takes more than {seconds:g} s")
        if self._error is not None:
            raise self._error
        return self._found


def addresses(host: str, port: int, seconds: float) -> Sequence[Address]:
    """Return the addresses of a host.  Raises OSError."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return LookUp.join(host, port).wait(seconds)
    return socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)  # numbers need no look-up


class TimedConnection(TcpConnection):
    """A connection over TCP.  socket_connect_timeout: seconds for the look-up and all tries together."""

    def _connect(self) -> socket.socket:
        seconds = float(self.socket_connect_timeout or DEFAULT_TIMEOUT_SECONDS)
        deadline = monotonic() + seconds
        failure: OSError = OSError("the look-up found no address")
        for family, kind, protocol, _, address in addresses(self.host, self.port, seconds):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._keep_alive(sock)
                sock.settimeout(max(0.001, deadline - monotonic()))
                sock.connect(address)
                sock.settimeout(self.socket_timeout)
            except OSError as error:
                failure = error
                sock.close()
            else:
                return sock
        raise failure

    def _keep_alive(self, sock: socket.socket) -> None:
        if self.socket_keepalive:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in self.socket_keepalive_options.items():
                sock.setsockopt(socket.IPPROTO_TCP, option, value)


class TimedSSLConnection(SSLConnection, TimedConnection):
    """A connection with TLS: redis-py's class wraps the socket that the next class in the MRO has connected."""


TIMED_CLASSES: dict[Any, Any] = {TcpConnection: TimedConnection, SSLConnection: TimedSSLConnection}
