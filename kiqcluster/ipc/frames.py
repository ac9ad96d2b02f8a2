"""Frames: what supervisor and child say to each other over their socketpair.

A frame is a JSON object with a `type`, preceded by its length (4 bytes, big-endian).  Writing never blocks:
what the socket does not take stays in the buffer until `flush` is called again.

Up:   hello(identity)  booting(reason)  ready(queues, concurrency, pss)
      beat(progress, busy, redis, quiet, processed, prefetched, round_trips, round_trip_seconds, drained, pss)
      metrics(see worker/metrics)  quiet(quiet, own, lease, by)  control(message)  recovered(identity, units)
      last_words(reason)  bye()
      catalogue(jobs, version, outlook | error)
Down: quiet(until)  resume()  stop(seconds)  recover(orphans)  queues(known)  dump()  cluster(state)

quiet, up: own says that it was not the supervisor who asked for it; lease and by are those of a message, or None and
the name of a signal.  last_words: why the process ends, when nobody has told it to.  control: a fleet.Message for the
supervisor.  cluster: what the supervisor is doing, published by the worker's heartbeat.
"""

from __future__ import annotations

import socket
import struct
from typing import Any

import msgspec

from kiqcluster.sidekiq import ruby_json

__all__ = ["Channel", "Frame"]

Frame = dict[str, Any]
HEADER = struct.Struct("!I")
LARGEST_FRAME = 64 * 1024 * 1024  # bytes; a longer announcement means that the two are out of step
READ_SIZE = 65_536
LATER = b'{"type":"metrics",'  # how frames begin that are handed on as they came: their reader decodes them in its time


encode_fast = msgspec.json.Encoder().encode


def _encode(frame: Frame) -> bytes:
    """Return a frame as JSON, in no particular form: floats as Ruby prints them would take time that nobody needs."""
    try:
        return encode_fast(frame)
    except (ValueError, OverflowError):  # lone surrogates, integers without end
        return ruby_json.encode(frame)


class Channel:
    """One end of a socketpair; used by one thread."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.socket = sock
        self.closed = False
        self._incoming = bytearray()
        self._outgoing = bytearray()

    def fileno(self) -> int:
        return self.socket.fileno()

    @property
    def pending(self) -> int:
        """Bytes that wait for the other side to read."""
        return len(self._outgoing)

    def send(self, kind: str, **fields: Any) -> None:
        """Queue a frame and write what the socket takes.  After the other side is gone it does nothing."""
        if self.closed:
            return
        body = _encode({"type": kind, **fields})
        self._outgoing += HEADER.pack(len(body)) + body
        self.flush()

    def flush(self) -> None:
        """Write what the socket takes."""
        try:
            while self._outgoing and not self.closed:
                sent = self.socket.send(self._outgoing)
                del self._outgoing[:sent]
        except BlockingIOError:
            return
        except OSError:  # the other side is gone; the reader of this end sees EOF and acts on it
            self._outgoing.clear()

    def receive(self) -> list[Frame]:
        """Return the frames that have arrived; sets `closed` when the other side is gone."""
        while not self.closed:
            try:
                data = self.socket.recv(READ_SIZE)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.closed = True
            self._incoming += data
            if len(data) < READ_SIZE:
                break
        return self._take()

    def close(self) -> None:
        self.closed = True
        self.socket.close()

    def _take(self) -> list[Frame]:
        frames: list[Frame] = []
        while len(self._incoming) >= HEADER.size:
            (length,) = HEADER.unpack_from(self._incoming)
            if length > LARGEST_FRAME:
                self.closed = True  # out of step: the owner treats it as the death of the other side
                break
            end = HEADER.size + length
            if len(self._incoming) < end:
                break
            body = bytes(self._incoming[HEADER.size : end])
            frames.append({"type": "metrics", "raw": body} if body.startswith(LATER) else ruby_json.decode(body))
            del self._incoming[:end]
        return frames
