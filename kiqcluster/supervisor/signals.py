"""Signals: those that the supervisor's loop acts upon, and what becomes of them around a fork."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from kiqcluster.ipc.signal_pipe import COMMON_ACTIONS, Actions, SignalPipe, catch

__all__ = ["SIGNAL_ACTIONS", "SignalInbox", "blocked", "reset_in_child"]

# What the supervisor does; docs/reference/signals.md explains.
SIGNAL_ACTIONS: Actions = {
    **COMMON_ACTIONS,
    signal.SIGHUP: "reload",
    signal.SIGUSR2: "roll",
    signal.SIGCHLD: "reap",
}
IGNORED = (signal.SIGPIPE, signal.SIGTTOU, signal.SIGWINCH)


class SignalInbox(SignalPipe):
    """Readable, for a selector, when there is something to `take`."""

    def install(self) -> None:
        """Take signals from now on."""
        self.listen()
        catch(SIGNAL_ACTIONS)
        for number in IGNORED:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNAL_ACTIONS)  # whoever started us may have blocked some

    def take(self) -> list[tuple[str, str]]:
        """Return the signals that have arrived, as (action, name)."""
        return self.read(SIGNAL_ACTIONS)


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
