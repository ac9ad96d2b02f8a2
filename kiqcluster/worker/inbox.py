"""Inbox: what reaches a worker's main loop from outside of it: signals, and actions posted by its threads.

Handlers do nothing; a wakeup descriptor carries the signal's number to the loop (invariant 3).
"""

from __future__ import annotations

import signal
import socket
from collections import deque
from collections.abc import Callable
from types import FrameType

__all__ = ["REMOTE_ACTIONS", "SIGNAL_ACTIONS", "Inbox", "be_killed_in"]

SIGNAL_ACTIONS = {
    signal.SIGTERM: "stop",
    signal.SIGINT: "stop",
    signal.SIGQUIT: "stop_now",
    signal.SIGTSTP: "quiet",
    signal.SIGUSR1: "quiet",
    signal.SIGCONT: "resume",
    signal.SIGTTIN: "dump",
    signal.SIGUSR2: "not_yet",
    signal.SIGHUP: "not_yet",
}
DEADLY_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})
REMOTE_ACTIONS = {"TERM": "stop", "INT": "stop", "TSTP": "quiet", "USR1": "quiet", "CONT": "resume", "TTIN": "dump"}


class Inbox:
    """Readable, for a selector, when there is something to `take` or to `run_posted`."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._posted: deque[Callable[[], None]] = deque()

    def open(self) -> None:
        """Hear signals from now on, but let those that end a process still do so (docs/adr/0005).

        Until the application is loaded a worker holds nothing, and an import that hangs must not outlive its
        supervisor.
        """
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in SIGNAL_ACTIONS.keys() - DEADLY_SIGNALS:
            signal.signal(number, _do_nothing)
        for number in (*DEADLY_SIGNALS, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def trap(self) -> None:
        """Hear those as well; also those that the application has set handlers for."""
        for number in SIGNAL_ACTIONS:
            signal.signal(number, _do_nothing)

    def fileno(self) -> int:
        return self._reader.fileno()

    def take(self) -> list[tuple[str, str]]:
        """Return the signals that have arrived, as (action, name)."""
        try:
            numbers = [signal.Signals(number) for number in self._reader.recv(4_096) if number]
        except BlockingIOError:
            return []
        return [(SIGNAL_ACTIONS[number], number.name) for number in numbers if number in SIGNAL_ACTIONS]

    def post(self, action: Callable[[], None]) -> None:
        """Have the main thread do something soon; from any thread."""
        self._posted.append(action)
        try:
            self._writer.send(b"\0")
        except (BlockingIOError, OSError):  # full: the loop is awake already
            return

    def run_posted(self) -> None:
        while self._posted:
            self._posted.popleft()()


def be_killed_in(seconds: float) -> None:
    """Have the kernel end this process unless this is called again in time; 0 calls it off.

    It needs neither the interpreter, which a job may hold, nor the supervisor, which may be gone.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """Handle a signal: the wakeup descriptor has the number already."""
