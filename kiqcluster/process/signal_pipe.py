"""Wakeup: how signals reach a main loop: by a descriptor that it selects on.  Handlers do nothing (invariant 3).

Runs in: the main thread of the supervisor and of every worker; `ring` in any thread.
COMMON_ACTIONS is what a signal asks of either.  What it asks of one alone stands there: supervisor/signals,
worker/inbox.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterable, Mapping
from types import FrameType

__all__ = ["COMMON_ACTIONS", "Actions", "Wakeup", "catch", "release"]

Actions = Mapping[signal.Signals, str]

COMMON_ACTIONS: Actions = {
    signal.SIGTERM: "stop",
    signal.SIGINT: "stop",
    signal.SIGQUIT: "stop_now",
    signal.SIGTSTP: "quiet",
    signal.SIGUSR1: "quiet",
    signal.SIGCONT: "resume",
    signal.SIGTTIN: "dump",
}


class Wakeup:
    """Readable, for a selector, once a signal has arrived or somebody has rung."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def listen(self) -> None:
        """Have the numbers of all signals arrive here that are handled in Python."""
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)

    def fileno(self) -> int:
        return self._reader.fileno()

    def descriptors(self) -> tuple[int, int]:
        """Return the numbers of both ends."""
        return self._reader.fileno(), self._writer.fileno()

    def ring(self) -> None:
        try:
            self._writer.send(b"\0")
        except OSError:  # full: the loop is awake already
            return

    def read(self, actions: Actions) -> list[tuple[str, str]]:
        """Return what the signals that have arrived ask for, in order, as (action, name of the signal).

        One that comes twice before it is read may be there once.  Of a CONT and a TSTP or TTIN that come together the
        kernel keeps the later one; if it keeps both, the later one's handler may still be the first.  Those without an
        action are somebody else's: the application may handle signals of its own, real-time ones among them, which
        have no name.
        """
        try:
            numbers = self._reader.recv(4_096)
        except BlockingIOError:
            return []
        arrived = [signal.Signals(number) for number in numbers if number in actions]
        return [(actions[number], number.name) for number in arrived]

    def was_rung(self) -> bool:
        """Return whether somebody has rung since the last time; for a wakeup that no signals arrive at."""
        try:
            return bool(self._reader.recv(4_096))
        except BlockingIOError:
            return False

    def close(self) -> None:
        """Stop listening; in a child this leaves its parent's wakeup alone."""
        signal.set_wakeup_fd(-1)
        self._reader.close()
        self._writer.close()


def release(numbers: Iterable[signal.Signals]) -> None:
    """Give signals that were caught what they do in any Python program; in a forked process, for its own code."""
    for number in numbers:
        if signal.getsignal(number) is _do_nothing:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def catch(numbers: Iterable[signal.Signals]) -> None:
    """Give signals a handler that does nothing: without one their numbers would not arrive."""
    for number in numbers:
        signal.signal(number, _do_nothing)


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """Handle a signal: the wakeup has its number already."""
