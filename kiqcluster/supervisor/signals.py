"""Signals: caught by a wakeup descriptor, named, and acted upon by the loop.  Handlers do nothing (invariant 3)."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["SIGNAL_ACTIONS", "SignalInbox", "blocked", "reset_in_child"]

# What the supervisor does; docs/running.md explains.  Signals without an action only wake the loop.
SIGNAL_ACTIONS: dict[signal.Signals, str] = {
    signal.SIGTERM: "stop",
    signal.SIGINT: "stop",
    signal.SIGQUIT: "stop_now",
    signal.SIGTSTP: "quiet",
    signal.SIGUSR1: "quiet",
    signal.SIGCONT: "resume",
    signal.SIGTTIN: "dump",
    signal.SIGHUP: "reload",
    signal.SIGUSR2: "roll",
    signal.SIGCHLD: "reap",
}
IGNORED = (signal.SIGPIPE, signal.SIGTTOU, signal.SIGWINCH)


class SignalInbox:
    """The signals that have arrived, in order; a signal that comes twice before it is read may be there once."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def install(self) -> None:
        """Take signals from now on."""
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in SIGNAL_ACTIONS:
            signal.signal(number, _do_nothing)
        for number in IGNORED:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNAL_ACTIONS)  # whoever started us may have blocked some

    def fileno(self) -> int:
        return self._reader.fileno()

    def read(self) -> list[signal.Signals]:
        """Return the signals that have arrived."""
        try:
            return [signal.Signals(number) for number in self._reader.recv(4_096)]
        except BlockingIOError:
            return []

    def close(self) -> None:
        """Stop taking signals; in a child this leaves the supervisor's own inbox alone."""
        signal.set_wakeup_fd(-1)
        self._reader.close()
        self._writer.close()


@contextmanager
def blocked() -> Iterator[None]:
    """Hold all signals back: a child forked here gets none before its own handlers are set.

    Without this, 200 of 200 just-forked children swallowed a TERM through the inherited handler.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def reset_in_child() -> None:
    """Give every signal its default action, but one; the mask stays as it is.

    SIGTTOU stays ignored: to a terminal children are background, and under `stty tostop` their first line would
    suspend them.
    """
    for number in {*SIGNAL_ACTIONS, *IGNORED} - {signal.SIGTTOU}:
        signal.signal(number, signal.SIG_DFL)


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """Handle a signal: the wakeup descriptor has its number already."""
