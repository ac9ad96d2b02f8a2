"""SignalPipe: delivers signals to a main loop through a descriptor that the loop selects on.

Runs in: the main thread of the supervisor and of every worker; `wake` in any thread.
COMMON_ACTIONS maps signals to actions that both have.  supervisor/signals and worker/inbox add their own.
Signal handlers do nothing (invariant 3).
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterable, Mapping
from types import FrameType

__all__ = ["COMMON_ACTIONS", "Actions", "SignalPipe", "catch", "release"]

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


class SignalPipe:
    """A socket pair that is readable, for a selector, once a signal has arrived or `wake` was called."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def listen(self) -> None:
        """Receive the numbers of all signals that have a handler in Python."""
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)

    def fileno(self) -> int:
        return self._reader.fileno()

    def descriptors(self) -> tuple[int, int]:
        """Return the numbers of both ends."""
        return self._reader.fileno(), self._writer.fileno()

    def wake(self) -> None:
        try:
            self._writer.send(b"\0")
        except OSError:  # full: the loop is awake already
            return

    def read(self, actions: Actions) -> list[tuple[str, str]]:
        """Return the actions of the signals that have arrived, in order, as (action, name of the signal).

        A signal that arrives twice before it is read may be listed once.  When a CONT and a TSTP or TTIN arrive
        together, the kernel keeps the later one; if it keeps both, the later one's handler may run first.  Signals
        without an action are skipped: the application may handle its own, among them real-time signals, which have no
        name.
        """
        try:
            numbers = self._reader.recv(4_096)
        except BlockingIOError:
            return []
        arrived = [signal.Signals(number) for number in numbers if number in actions]
        return [(actions[number], number.name) for number in arrived]

    def was_woken(self) -> bool:
        """Return whether `wake` was called since the last time; for a pipe that does not `listen` to signals."""
        try:
            return bool(self._reader.recv(4_096))
        except BlockingIOError:
            return False

    def close(self) -> None:
        """Stop listening; in a forked child this leaves the parent's pipe alone."""
        signal.set_wakeup_fd(-1)
        self._reader.close()
        self._writer.close()


def release(numbers: Iterable[signal.Signals]) -> None:
    """Restore Python's default handlers of signals that were caught; for the code of a forked process."""
    for number in numbers:
        if signal.getsignal(number) is _do_nothing:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def catch(numbers: Iterable[signal.Signals]) -> None:
    """Give signals a handler that does nothing: without one their numbers would not arrive."""
    for number in numbers:
        signal.signal(number, _do_nothing)


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """Handle a signal: the pipe has its number already."""
