"""Log handlers: write whole lines to a descriptor, also when the reader is slow or gone.

They bypass the stream's buffer.  Output of a job stays in that buffer until its line is complete, so that neither line
splits the other.
"""

from __future__ import annotations

import logging
import os
import select
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from kiqcluster.process.clock import SystemClock

__all__ = ["DroppingHandler", "LineHandler", "encoded", "has_descriptor", "put", "record_of_dropped"]

READER_GRACE_SECONDS = 0.1  # for a reader to take the next piece, once; until it has taken it, later lines do not wait
READER_CHECK_SECONDS = 0.5  # between two checks whether to stop waiting for a reader


class LineHandler(logging.StreamHandler[TextIO]):
    """Writes each line at once, and waits for its reader: for workers.

    Lines are UTF-8 whatever the stream's encoding, because JSON has to be.  When the disk is full, the handler drops
    lines; once there is room, a line tells how many.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.descriptor = stream.fileno()
        self._torn = False  # whether the last line was cut off before its end
        self._dropped = 0
        self._is_given_up = False

    def handle(self, record: logging.LogRecord) -> bool:
        """Emit a record that passes the filters, under a lock that an asynchronous exception releases.

        `for` takes the lock: from Python 3.14 on, the exception may come when `with` has taken it and does not release
        it yet.
        """
        found: bool | logging.LogRecord = self.filter(record)
        lock = self.lock
        if found and lock is not None:
            for _ in iter(lock.acquire, None):
                try:
                    self.emit(found if isinstance(found, logging.LogRecord) else record)
                    break
                finally:
                    lock.release()
        return bool(found)

    def flush(self) -> None:
        """Do nothing: lines are not in the stream's buffer, and output of jobs is not ours to wait for."""

    def give_up_if_stuck(self, seconds: float) -> None:
        """Write no more lines if a thread still writes one in so many seconds: nobody reads them.

        For the end of a process: Python's `logging.shutdown` waits for the lock of each handler.
        """
        lock = self.lock
        if lock is None or lock.acquire(timeout=seconds):
            if lock is not None:
                lock.release()
            return
        self._is_given_up = True
        self.createLock()

    def emit(self, record: logging.LogRecord) -> None:
        # The descriptor of a closed stream may belong to another file by now.
        if self._is_given_up or getattr(self.stream, "closed", False):
            return
        try:
            self._send(record)
        except Exception:  # noqa: BLE001  # a record that cannot be formatted is reported on stderr, as by all handlers
            self.handleError(record)

    def _send(self, record: logging.LogRecord) -> None:
        if self._dropped and self._write(record_of_dropped(self._dropped)):
            self._dropped = 0
        if not self._write(record):
            self._dropped += 1

    def _write(self, record: logging.LogRecord) -> bool:
        """Write a line; return whether the reader, or the disk, has taken all of it."""
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
    """Never waits for a reader that has stopped reading: the supervisor's loop must go on (invariant 3).

    Other processes write to the same pipe: one that is writable now may be full at the write, which would wait then.
    The handler drops lines that the pipe does not take; once it takes lines again, a line tells how many.  A longer
    line is first offered as a whole, because another process may write between two pieces.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._poll = select.poll()
        self._poll.register(self.descriptor, select.POLLOUT)

    def _write(self, record: logging.LogRecord) -> bool:
        left = data = self._line(record)
        grace = 0.0 if self._dropped else READER_GRACE_SECONDS
        give_up_at = SystemClock.monotonic() + grace
        try:
            while left:
                taken = self._offer(left)
                left = left[taken:]
                now = SystemClock.monotonic()
                if taken:
                    give_up_at = now + grace
                elif now >= give_up_at or not self._poll.poll(1_000 * (give_up_at - now)):
                    break
        except OSError:  # the reader has gone, or the disk is full
            pass
        self._note(data, left)
        return not left

    def _offer(self, data: bytes) -> int:
        """Write without waiting; return how many bytes were taken.

        A file takes them all.  A pipe is opened anew, so that processes that share the descriptor keep blocking.  Where
        this is not possible, as outside of Linux, a writable descriptor is given PIPE_BUF bytes.
        """
        mode = os.fstat(self.descriptor).st_mode
        if stat.S_ISREG(mode):
            return os.write(self.descriptor, data)
        if stat.S_ISFIFO(mode):
            with suppress(OSError):
                pipe = os.open(f"/proc/self/fd/{self.descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    return os.write(pipe, data)
                except BlockingIOError:
                    return 0
                finally:
                    os.close(pipe)
        return os.write(self.descriptor, data[: select.PIPE_BUF]) if self._poll.poll(0) else 0


def encoded(line: str) -> bytes:
    """Return a line as it is written, with its end."""
    return f"{line}\n".encode(errors="backslashreplace")  # JSON text may have half a surrogate pair


def put(descriptor: int, data: bytes, is_over: Callable[[], bool] = lambda: False) -> bytes:
    """Write all bytes, waiting for the reader; return those not written: the reader has gone, or the disk is full.

    is_over: returns whether to stop waiting for the reader; called only if the descriptor is non-blocking.
    """
    left = data
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:  # another process that shares it made it non-blocking
            if is_over():
                break
            _wait_until_writable(descriptor)
        except OSError:
            break
    return left


def record_of_dropped(lines: int) -> logging.LogRecord:
    """Return the record that reports dropped lines."""
    fields = {"event": "lines_dropped", "lines": lines}
    text = f"{lines} lines were dropped: nobody read them, or the disk was full; jobs are not affected"
    return logging.makeLogRecord({
        "levelno": logging.WARNING,
        "levelname": "WARNING",
        "msg": text,
        "event_fields": fields,
    })  # fmt: skip


def has_descriptor(stream: TextIO) -> bool:
    """Return whether a stream has a descriptor; a stream in memory, or a closed one, has none."""
    try:
        stream.fileno()
    except (OSError, ValueError):
        return False
    return True


def _wait_until_writable(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    poll.poll(1_000 * READER_CHECK_SECONDS)
