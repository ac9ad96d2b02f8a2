"""Frames: the messages between supervisor and child, on their socketpair.

A frame is a JSON object with a `type`, preceded by its length (4 bytes, big-endian).  Writing never blocks:
bytes that the socket does not take stay in the buffer until `flush` is called again.

Up:   hello(identity)  booting(reason)  ready(queues, concurrency, pss)
      beat(progress, busy, redis, quiet, processed, prefetched, round_trips, round_trip_seconds, drained, pss)
      metrics(see worker/metrics)  quiet(quiet, own, lease, by)  control(message)  recovered(identity, units)
      last_words(reason)  bye()
      catalogue(jobs, version, outlook | error)
Down: quiet(until)  resume()  stop(seconds)  recover(orphans)  queues(known)  dump()  cluster(state)
      stacks(identity, stacks)

quiet, up: `own` is true if the supervisor did not ask for it; `lease` and `by` come from a message, or are None and the
name of a signal.  last_words: why the process ends, if nobody told it to.  control: a control_messages.Message for the
supervisor.  cluster: the state of the cluster, which the worker's heartbeat publishes.  stacks: of another process of
the cluster that does not respond; published likewise.
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
MAX_FRAME_BYTES = 64 * 1024 * 1024  # a greater length means that the two ends are out of step
READ_BYTES = 65_536
UNDECODED_PREFIX = b'{"type":"metrics",'  # frames that begin so are handed on as bytes; metrics/page decodes them

encode_fast = msgspec.json.Encoder().encode


def _encode(frame: Frame) -> bytes:
    """Return a frame as JSON.  Floats need not look as in Ruby here, which would take longer."""
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
        """Bytes that the socket has not taken yet."""
        return len(self._outgoing)

    def send(self, kind: str, **fields: Any) -> None:
        """Queue a frame and write as much as the socket takes.  Does nothing once the channel is closed."""
        if self.closed:
            return
        body = _encode({"type": kind, **fields})
        self._outgoing += HEADER.pack(len(body)) + body
        self.flush()

    def flush(self) -> None:
        """Write as much as the socket takes."""
        try:
            while self._outgoing and not self.closed:
                sent = self.socket.send(self._outgoing)
                del self._outgoing[:sent]
        except BlockingIOError:
            return
        except OSError:  # the other end is closed; `receive` sees EOF, and its caller acts on it
            self._outgoing.clear()

    def receive(self) -> list[Frame]:
        """Return the frames that have arrived; set `closed` when the other end is closed."""
        while not self.closed:
            try:
                data = self.socket.recv(READ_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.closed = True
            self._incoming += data
            if len(data) < READ_BYTES:
                break
        return self._split()

    def close(self) -> None:
        self.closed = True
        self.socket.close()

    def _split(self) -> list[Frame]:
        frames: list[Frame] = []
        while len(self._incoming) >= HEADER.size:
            (length,) = HEADER.unpack_from(self._incoming)
            if length > MAX_FRAME_BYTES:
                self.closed = True  # out of step: the owner treats this as the death of the other process
                break
            end = HEADER.size + length
            if len(self._incoming) < end:
                break
            body = bytes(self._incoming[HEADER.size : end])
            frames.append(
                {"type": "metrics", "raw": body} if body.startswith(UNDECODED_PREFIX) else ruby_json.decode(body)
            )
            del self._incoming[:end]
        return frames
