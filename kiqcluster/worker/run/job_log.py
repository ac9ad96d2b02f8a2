"""Job log: the lines of jobs that are done, written by a thread of their own.

Runs in: processor threads (`log_done`), its own thread (the loop), the main thread (end).
1. log_done    keep the values of the line; formatting and writing are not on the job's path
2. gather      for a moment, so that many lines share one write
3. write       the bytes of our handler, in pieces that a pipe takes as a whole
4. drop        and count lines while the buffer is full, because nobody reads, or the disk is full

Only this thread waits for the reader of the log.  A process that is killed loses the lines of the last moment.
"""

from __future__ import annotations

import os
import select
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from threading import Condition, Event, get_ident

from kiqcluster.process.clock import Clock
from kiqcluster.process.events import Events
from kiqcluster.process.logs.handlers import encoded, put, record_of_dropped
from kiqcluster.process.logs.log import DoneLine, Shortcut
from kiqcluster.process.service import Service
from kiqcluster.sidekiq.payload import CORRELATION_ID, Payload

__all__ = ["MAX_WAITING_LINES", "JobLog"]

GATHER_SECONDS = 0.03  # that a line may wait for others to share its write
MAX_WAITING_LINES = 5_000  # to be written; as many again may be on their way
MAX_ROOM_WAIT_SECONDS = 0.5  # of a job, once; until a write has made room, later lines are dropped without a wait
LAST_WRITE_SECONDS = 0.5  # that the end of the process waits for the last lines to be read
# One write to a file.  One to a pipe takes PIPE_BUF: others write to it, and lines stay whole.
MAX_FILE_WRITE_BYTES = 1 << 18


class JobLog(Service):
    """Says job_done: by the shortcut where there is one, else as an event like any other.

    `_lines` is added to by processors and taken from by this thread alone, without a lock: a deque's appends and pops
    are atomic.  `_room` guards `_is_stalled` and `_dropped`.
    """

    def __init__(self, events: Events, clock: Clock, on_crash: Callable[[str, Exception], None]) -> None:
        super().__init__("joblog", on_crash)
        self._events = events
        self._clock = clock
        self._shortcut = Shortcut.find(events)
        self._lines: deque[DoneLine] = deque()
        self._has_lines = Event()
        self._full = Event()  # there is no room for more, or it is time to end
        self._is_notified = False
        self._room = Condition()
        self._is_stalled = False
        self._dropped = 0
        self._is_torn = False  # the last line was cut off, without its end

    # processors

    def log_done(self, payload: Payload, name: str, queue: str, elapsed: float) -> None:
        """Have it logged that a job is done.  Waits only while lines come faster than they are written."""
        shortcut, jid = self._shortcut, payload.get("jid")
        if shortcut is None or type(jid) is not str or not shortcut.is_open():
            self._events.emit("job_done", elapsed=elapsed)
        elif shortcut.wants(payload.get("log_level")) and (len(self._lines) < MAX_WAITING_LINES or self._has_room()):
            request = payload.get(CORRELATION_ID)
            self._lines.append((self._clock.now(), get_ident(), jid, name, queue, elapsed, request))
            if not self._is_notified:  # looked at after the line is there: see _take
                self._is_notified = True
                self._has_lines.set()

    def _has_room(self) -> bool:
        """Wait for room; count the line as dropped, and return False, when there is none."""
        self._full.set()
        with self._room:
            if not self._is_stalled:
                self._is_stalled = not self._room.wait_for(
                    lambda: len(self._lines) < MAX_WAITING_LINES, MAX_ROOM_WAIT_SECONDS
                )
            self._dropped += self._is_stalled
            return not self._is_stalled

    # the thread

    def start(self) -> None:
        """Start the thread, if there is anything to write."""
        if self._shortcut is not None:
            super().start()

    def run(self) -> None:
        assert self._shortcut is not None, "there is no thread without it"
        while not self.stopping.is_set():
            self._has_lines.wait()
            self._full.wait(GATHER_SECONDS)
            self._write(self._shortcut)
        self._write(self._shortcut)  # what came in during the last one

    def wake(self) -> None:
        self._has_lines.set()
        self._full.set()

    def end(self) -> None:
        """Write the lines that wait, if somebody reads them; for the end of the process."""
        if not self.stopping.is_set():
            self.stop()
            self.join(LAST_WRITE_SECONDS)

    def _write(self, shortcut: Shortcut) -> None:
        lines, dropped = self._take()
        descriptor = shortcut.handler.descriptor
        for piece in _pieces(shortcut.formatter.done(lines), _piece_size(descriptor)):
            if not self._put(descriptor, piece):
                self._drop(piece.count(b"\n"))
        if dropped and not self._put(descriptor, encoded(shortcut.formatter.format(record_of_dropped(dropped)))):
            self._drop(dropped)

    def _drop(self, lines: int) -> None:
        with self._room:
            self._dropped += lines

    def _take(self) -> tuple[list[DoneLine], int]:
        """Return the lines that wait, and how many were dropped since the last time."""
        self._full.clear()
        self._has_lines.clear()
        # Before they are taken: a processor that adds a line and finds it true has added one that is taken.
        self._is_notified = False
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        with self._room:
            dropped, self._dropped = self._dropped, 0
            self._is_stalled = False
            self._room.notify_all()
        return lines, dropped

    def _put(self, descriptor: int, piece: bytes) -> bool:
        """Write a piece, however long that takes; return whether it could be written."""
        left = put(descriptor, b"\n" * self._is_torn + piece, self.stopping.is_set)
        if len(left) < len(piece):
            self._is_torn = bool(left)
        return not left


def _piece_size(descriptor: int) -> int:
    return MAX_FILE_WRITE_BYTES if stat.S_ISREG(os.fstat(descriptor).st_mode) else select.PIPE_BUF


def _pieces(texts: Iterable[str], size: int) -> Iterator[bytes]:
    """Yield lines as bytes, as many whole ones together as a piece holds; a longer one by itself."""
    piece, length = list[bytes](), 0
    for text in texts:
        line = encoded(text)
        if piece and length + len(line) > size:
            yield b"".join(piece)
            piece, length = [], 0
        piece.append(line)
        length += len(line)
    if piece:
        yield b"".join(piece)
