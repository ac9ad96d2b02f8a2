"""Local HTTP: one request to a supervisor on this host, over TCP or a unix socket.  For probes and kiqctl."""

from __future__ import annotations

import http.client
import socket

__all__ = ["Place", "request"]

Place = tuple[str, int] | str  # host and port, or the path of a unix socket

ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # who listens everywhere is asked here
LARGEST_ANSWER = 64_000_000  # bytes


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def request(place: Place, method: str, target: str, timeout: float) -> tuple[int, bytes]:
    """Return status and body.  timeout: seconds without progress.  Raises OSError, http.client.HTTPException."""
    if isinstance(place, str):
        connection: http.client.HTTPConnection = UnixConnection(place, timeout)
    else:
        host, port = place
        connection = http.client.HTTPConnection(ANYWHERE.get(host, host), port, timeout=timeout)
    try:
        connection.request(method, target, headers={"Content-Length": "0"} if method == "POST" else {})
        response = connection.getresponse()
        return response.status, response.read(LARGEST_ANSWER)
    finally:
        connection.close()
