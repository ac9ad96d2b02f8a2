"""Exit handlers: the functions that the application, or a library of it, has registered with `atexit`.

A worker ends by os._exit, which runs none: its threads may hold anything.  So they are run before that, by the main
thread and within a deadline: the last spans, error reports and coverage data leave the process there.
Those are among them that were registered before the worker was forked, as --preload and wrapper commands do.
Output that stays in the buffers of standard streams is flushed within the same deadline: nobody may read it.
Finalizers made before it (weakref.finalize, TemporaryDirectory) are not: what they remove is the supervisor's, and
every worker's.
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable
from functools import partial

from kiqcluster.ipc.exits import exit_at_once
from kiqcluster.ipc.stdio import flush_output
from kiqcluster.process.service import Service

__all__ = ["disown_finalizers", "run_exit_handlers"]

LAST_LINE_SECONDS = 0.5  # for the line that says that the deadline has passed


def disown_finalizers() -> None:
    """Have the finalizers of the process that this one was forked off not run at its end."""
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):  # Python has no public way to them
        finalizer.atexit = False


def run_exit_handlers(seconds: float, code: int, on_overdue: Callable[[float], None]) -> None:
    """Run all of them, the latest first; Python prints the errors.  They are over afterwards, and do not run again.

    Then flush what was printed.  If both take longer than so many seconds, the process ends there, with that code.
    """
    deadline = _Deadline(seconds, code, on_overdue)
    deadline.start()
    try:
        atexit._run_exitfuncs()
        flush_output()
    finally:
        deadline.stop()


class _Deadline(Service):
    """Ends the process in time.  A function that holds the interpreter meets the supervisor's deadline instead."""

    def __init__(self, seconds: float, code: int, on_overdue: Callable[[float], None]) -> None:
        super().__init__("exit handlers", lambda _name, _error: None)
        self._seconds = seconds
        self._code = code
        self._on_overdue = on_overdue

    def run(self) -> None:
        if self.pause(self._seconds):
            telling = _Telling(partial(self._on_overdue, self._seconds))
            telling.start()
            telling.join(LAST_LINE_SECONDS)
            exit_at_once(self._code)


class _Telling(Service):
    """Tells that the deadline has passed, in a thread of its own: nobody may read the log."""

    def __init__(self, tell: Callable[[], None]) -> None:
        super().__init__("last line", lambda _name, _error: None)
        self._tell = tell

    def run(self) -> None:
        self._tell()
