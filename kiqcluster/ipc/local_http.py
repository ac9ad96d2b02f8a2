"""Local HTTP: one request to a supervisor on this host, over TCP or a unix socket.  Health checks and kiqctl use it."""

from __future__ import annotations

import http.client
import socket

__all__ = ["Address", "request"]

Address = tuple[str, int] | str  # host and port, or the path of a unix socket

LOOPBACK_BY_WILDCARD = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # for a server on all interfaces
MAX_RESPONSE_BYTES = 64_000_000


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def request(address: Address, method: str, target: str, timeout: float) -> tuple[int, bytes]:
    """Send a request; return status and body.

    timeout: seconds without progress.  Raises OSError, http.client.HTTPException.
    """
    if isinstance(address, str):
        connection: http.client.HTTPConnection = UnixConnection(address, timeout)
    else:
        host, port = address
        connection = http.client.HTTPConnection(LOOPBACK_BY_WILDCARD.get(host, host), port, timeout=timeout)
    try:
        connection.request(method, target, headers={"Content-Length": "0"} if method == "POST" else {})
        response = connection.getresponse()
        return response.status, response.read(MAX_RESPONSE_BYTES)
    finally:
        connection.close()
