"""Log handlers: how a line gets to the descriptor, whole, and what happens when nobody reads.

They go past the stream's buffer: what a job is about to print stays there until its line is complete, so that neither
stands in the middle of the other.
"""

from __future__ import annotations

import logging
import os
import select
import stat
from collections.abc import Callable
from typing import TextIO

__all__ = ["DroppingHandler", "LineHandler", "encoded", "has_descriptor", "put", "record_of_dropped"]

READER_GRACE_SECONDS = (
    0.1  # seconds that a reader gets to take the next piece, once; until it has, later lines wait for nothing
)
READER_CHECK_SECONDS = 0.5  # seconds between two looks whether waiting for a reader has become useless


class LineHandler(logging.StreamHandler[TextIO]):
    """Writes each line at once, however long its reader takes: a worker's lines.

    In UTF-8, whatever the stream's encoding: another one's bytes are no JSON.  Lines for which a disk has no room are
    dropped, and counted in a line of their own once it has.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.descriptor = stream.fileno()
        self._torn = False  # the last line was cut off, without its end
        self._dropped = 0

    def handle(self, record: logging.LogRecord) -> bool:
        """Emit what passes, under a lock that an exception from outside leaves free (as Python 3.13 does it)."""
        found: bool | logging.LogRecord = self.filter(record)
        if found and self.lock is not None:
            with self.lock:
                self.emit(found if isinstance(found, logging.LogRecord) else record)
        return bool(found)

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(self.stream, "closed", False):  # its descriptor may be somebody else's by now
            return
        try:
            self._send(record)
        except Exception:  # noqa: BLE001  # what cannot be formatted: told on stderr, as by any handler of logging
            self.handleError(record)

    def _send(self, record: logging.LogRecord) -> None:
        if self._dropped and self._write(record_of_dropped(self._dropped)):
            self._dropped = 0
        if not self._write(record):
            self._dropped += 1

    def _write(self, record: logging.LogRecord) -> bool:
        """Write a line; return whether somebody, or the disk, has taken it all."""
        data = self._line(record)
        left = put(self.descriptor, data)
        self._note(data, left)
        return not left

    def _line(self, record: logging.LogRecord) -> bytes:
        return self._torn * b"\n" + encoded(self.format(record))

    def _note(self, data: bytes, left: bytes) -> None:
        """Remember whether the reader waits for the end of a line."""
        if len(left) < len(data):
            self._torn = bool(left)


class DroppingHandler(LineHandler):
    """Never waits for a reader that has stopped reading: the supervisor's loop must turn (invariant 3).

    A pipe that is writable takes PIPE_BUF bytes at once.  What it does not take is dropped, and counted in a line of
    its own once it takes something again.  A longer line is offered as a whole first: between two pieces another
    process may write.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._poll = select.poll()
        self._poll.register(self.descriptor, select.POLLOUT)

    def _write(self, record: logging.LogRecord) -> bool:
        left = data = self._line(record)
        if len(data) > select.PIPE_BUF and not self._dropped:
            left = _offer(self.descriptor, data)
        try:
            while left and self._poll.poll(0 if self._dropped else READER_GRACE_SECONDS * 1_000):
                left = left[os.write(self.descriptor, left[: select.PIPE_BUF]) :]
        except OSError:  # the reader has gone, or the disk is full
            pass
        self._note(data, left)
        return not left


def encoded(line: str) -> bytes:
    """Return a line as it is written, with its end."""
    return f"{line}\n".encode(errors="backslashreplace")  # half a surrogate pair, which JSON can say so


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


def _offer(pipe: int, data: bytes) -> bytes:
    """Write to a pipe without waiting; return what it did not take: all of it, where this cannot be done.

    Whoever shares the descriptor goes on blocking: it is opened anew, which only Linux can do.
    """
    try:
        if not stat.S_ISFIFO(os.fstat(pipe).st_mode):
            return data
        descriptor = os.open(f"/proc/self/fd/{pipe}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return data
    try:
        return data[os.write(descriptor, data) :]
    except OSError:  # no room at all
        return data
    finally:
        os.close(descriptor)


def record_of_dropped(lines: int) -> logging.LogRecord:
    """Return the record that tells of lines which were not written."""
    fields = {"event": "lines_dropped", "lines": lines}
    text = f"{lines} lines were dropped: nobody read them, or the disk was full; jobs are not affected"
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
    poll.poll(1_000 * READER_CHECK_SECONDS)
