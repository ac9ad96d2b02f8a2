"""Exit handlers: the functions that the application, or a library of it, has registered with `atexit`.

A worker ends by os._exit, which runs none: its threads may hold anything.  So they are run before that, by the main
thread and within a deadline: the last spans, error reports and coverage data leave the process there.
Those are among them that were registered before the worker was forked, as --preload and wrapper commands do.
Finalizers made before it (weakref.finalize, TemporaryDirectory) are not: what they remove is the supervisor's, and
every worker's.
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable

from kiqcluster.ipc.exits import exit_process
from kiqcluster.process.service import Service

__all__ = ["disown_finalizers", "run_exit_handlers"]


def disown_finalizers() -> None:
    """Have the finalizers of the process that this one was forked off not run at its end."""
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):  # Python has no public way to them
        finalizer.atexit = False


def run_exit_handlers(seconds: float, code: int, on_overdue: Callable[[float], None]) -> None:
    """Run all of them, the latest first; Python prints the errors.  They are over afterwards, and do not run again.

    If that takes longer than so many seconds, the process ends there, with that code.
    """
    if not atexit._ncallbacks():
        return
    deadline = _Deadline(seconds, code, on_overdue)
    deadline.start()
    try:
        atexit._run_exitfuncs()
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
            self._on_overdue(self._seconds)
            exit_process(self._code)
