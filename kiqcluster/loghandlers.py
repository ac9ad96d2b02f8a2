"""Log handlers: how a line gets to the descriptor, whole, and what happens when nobody reads.

They go past the stream's buffer: what a job is about to print stays there until its line is complete, so that neither
stands in the middle of the other.
"""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Callable
from typing import TextIO

__all__ = ["DroppingHandler", "LineHandler", "dropped", "has_descriptor", "put"]

PATIENCE = 0.1  # seconds that a reader gets to take the next piece, once; until it has, later lines wait for nothing
LOOK = 0.5  # seconds between two looks whether waiting for a reader has become useless


class LineHandler(logging.StreamHandler[TextIO]):
    """Writes each line at once, however long its reader takes: a worker's lines."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.descriptor = stream.fileno()
        self.encoding = stream.encoding or "utf-8"

    def emit(self, record: logging.LogRecord) -> None:
        try:
            put(self.descriptor, self.line(record))
        except Exception:  # noqa: BLE001  # what cannot be formatted: told on stderr, as by any handler of logging
            self.handleError(record)

    def line(self, record: logging.LogRecord) -> bytes:
        """Return what is written for a record."""
        return f"{self.format(record)}{self.terminator}".encode(self.encoding, "backslashreplace")


class DroppingHandler(LineHandler):
    """Never waits for a reader that has stopped reading: the supervisor's loop must turn (invariant 3).

    A pipe that is writable takes PIPE_BUF bytes at once.  What it does not take is dropped, and counted in a line of
    its own once it takes something again.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._poll = select.poll()
        self._poll.register(self.descriptor, select.POLLOUT)
        self._dropped = 0
        self._torn = False  # the last line was cut off, without its end

    def emit(self, record: logging.LogRecord) -> None:
        if self._dropped and self._write(dropped(self._dropped)):
            self._dropped = 0
        if not self._write(record):
            self._dropped += 1

    def _write(self, record: logging.LogRecord) -> bool:
        data = self.terminator.encode() * self._torn + self.line(record)
        left = data
        try:
            while left and self._poll.poll(0 if self._dropped else PATIENCE * 1_000):
                left = left[os.write(self.descriptor, left[: select.PIPE_BUF]) :]
        except OSError:  # the reader has gone
            pass
        if len(left) < len(data):
            self._torn = bool(left)
        return not left


def put(descriptor: int, data: bytes, is_over: Callable[[], bool] = lambda: False) -> bytes:
    """Write it all, waiting for the reader; return what nobody will take: the reader has gone, the disk is full.

    is_over: whether to give up on a reader that does not read; asked only where the descriptor does not block.
    """
    left = data
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:  # somebody who shares it has made it so
            if is_over():
                break
            _wait_until_writable(descriptor)
        except OSError:
            break
    return left


def dropped(lines: int) -> logging.LogRecord:
    """Return the record that tells of lines which were not written."""
    fields = {"event": "lines_dropped", "lines": lines}
    text = f"{lines} lines were dropped: nobody read them; jobs are not affected"
    return logging.makeLogRecord({
        "levelno": logging.WARNING,
        "levelname": "WARNING",
        "msg": text,
        "event_fields": fields,
    })  # fmt: skip


def has_descriptor(stream: TextIO) -> bool:
    """Return whether a stream leads out of the process; one in memory, or a closed one, does not."""
    try:
        stream.fileno()
    except (OSError, ValueError):
        return False
    return True


def _wait_until_writable(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    poll.poll(1_000 * LOOK)
