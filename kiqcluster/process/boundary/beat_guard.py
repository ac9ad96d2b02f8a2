"""BeatGuard: keeps code of the application out of the threads on which a beat depends.

Others recover a worker that does not beat, and its supervisor kills it.  So an error handler, a hook or a log handler
that hangs must not hold up a thread that beats.  Such a thread hands its calls over:
hooks    error handlers, and the hooks `beat` and `heartbeat`
lines    lines of the log, to whatever handlers, filters and formatters there are; apart from the hooks, so that a hook
         that hangs can still be seen in the log

Runs in: one thread for each kind, from the first call on; a call has the context variables of the thread that hands it
over.  In all other threads such code runs where it is called.  Hooks of the main thread (ready, quiet, shutdown…) stay
there: the deadlines of its supervisor are for them as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from threading import Condition, local

from kiqcluster.process.service import OnCrash, Service

__all__ = ["BeatGuard", "Calls"]

MAX_WAITING_CALLS = 1_000  # of each kind; further ones are dropped while a call hangs


class BeatGuard:
    """on_crash: called in the thread of a call that has raised an error, which should have handled it itself."""

    def __init__(self, on_crash: OnCrash) -> None:
        self._hooks, self._lines = Calls("hooks", on_crash), Calls("lines", on_crash)
        self._here = local()

    def enter(self) -> None:
        """Have the calling thread hand over from now on: it beats."""
        self._here.beats = True

    def leave(self) -> None:
        """Have it hand over no more."""
        self._here.beats = False

    def hand_over(self, call: Callable[[], object], key: str = "") -> bool:
        """Take a call if this thread beats; return whether it was taken, else the caller makes it.

        key: of calls of which no second one needs to wait.
        """
        return self._is_here() and self._hooks.add(call, key)

    def hand_over_line(self, call: Callable[[], object]) -> bool:
        """Do the same with a call that writes a line."""
        return self._is_here() and self._lines.add(call)

    def finish(self, seconds: float) -> bool:
        """Wait until all calls have been made; return whether they were in time.  Each kind has half of the time."""
        return self._hooks.wait_idle(seconds / 2) & self._lines.wait_idle(seconds / 2)

    def _is_here(self) -> bool:
        return getattr(self._here, "beats", False)


class Calls(Service):
    """A thread that makes calls, one after the other; it starts with the first one.  `_change` guards all else."""

    def __init__(self, name: str, on_crash: OnCrash) -> None:
        super().__init__(name, on_crash)
        self._change = Condition()
        self._waiting: deque[tuple[str, Callable[[], object]]] = deque()
        self._is_calling = False

    def add(self, call: Callable[[], object], key: str = "") -> bool:
        """Have a call made; return True."""
        context = copy_context()
        with self._change:
            is_needed = not key or all(key != other for other, _ in self._waiting)
            if is_needed and len(self._waiting) < MAX_WAITING_CALLS:
                self._waiting.append((key, partial(context.run, call)))
            self._change.notify_all()
        if not self.is_alive:
            self.start()
        return True

    def wake(self) -> None:
        with self._change:
            self._change.notify_all()

    def run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._waiting or self.stopping.is_set())
                if self.stopping.is_set():
                    return
                _, call = self._waiting.popleft()
                self._is_calling = True
            try:
                call()
            finally:
                with self._change:
                    self._is_calling = False
                    self._change.notify_all()

    def wait_idle(self, seconds: float) -> bool:
        """Wait until no call waits or is being made, for so long at most; return whether none is."""
        with self._change:
            return self._change.wait_for(lambda: not self._waiting and not self._is_calling, seconds)
