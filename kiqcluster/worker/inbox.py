"""Inbox: the signals of a worker, and the actions that its threads post, for its main loop."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable

from kiqcluster.ipc.signal_pipe import COMMON_ACTIONS, Actions, SignalPipe, catch, release

__all__ = ["REMOTE_ACTIONS", "SIGNAL_ACTIONS", "Inbox"]

SIGNAL_ACTIONS: Actions = {
    **COMMON_ACTIONS,
    signal.SIGUSR2: "not_yet",
    signal.SIGHUP: "not_yet",
}
DEADLY_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})
REMOTE_ACTIONS = {"TERM": "stop", "INT": "stop", "TSTP": "quiet", "USR1": "quiet", "CONT": "resume", "TTIN": "dump"}


class Inbox(SignalPipe):
    """Readable, for a selector, when there is something to `take` or to `run_posted`."""

    def __init__(self) -> None:
        super().__init__()
        self._posted: deque[Callable[[], None]] = deque()

    def open(self) -> None:
        """Hear signals from now on, but let those that end a process still do so (docs/adr/0005).

        Until the application is loaded a worker holds nothing, and an import that hangs must not outlive its
        supervisor.
        """
        self.listen()
        catch(SIGNAL_ACTIONS.keys() - DEADLY_SIGNALS)
        for number in (*DEADLY_SIGNALS, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def trap(self) -> None:
        """Hear those as well, whatever code of the application has changed.

        Called again after such code has run in the main thread: an event loop with signal handlers takes the wakeup
        descriptor, and leaves none.
        """
        self.listen()
        catch(SIGNAL_ACTIONS)

    def close_after_fork(self) -> None:
        """Catch no signals in a forked process: its signals are its own."""
        self.close()
        release(SIGNAL_ACTIONS)

    def take(self) -> list[tuple[str, str]]:
        """Return the signals that have arrived, as (action, name)."""
        return self.read(SIGNAL_ACTIONS)

    def post(self, action: Callable[[], None]) -> None:
        """Have the main thread do something soon; from any thread."""
        self._posted.append(action)
        self.wake()

    def run_posted(self) -> None:
        while self._posted:
            self._posted.popleft()()
