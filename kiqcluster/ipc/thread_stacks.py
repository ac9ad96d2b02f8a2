"""Stacks: what the threads of a child are at, written by a handler in C, and read by the supervisor.

It works while a job holds the interpreter lock, when no Python runs: Python's own faulthandler writes the stacks to a
file without a name that both have.  The same file gets the stack of a crash (SIGSEGV and its kin).
1. make      by the supervisor, before the fork
2. receive   by the child, as its first act: from then on it may be asked
3. ask, read by the supervisor; the answer takes the child a moment, and never comes from one that is stopped
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import signal
import tempfile

__all__ = ["DUMP_SIGNAL", "Stacks"]

DUMP_SIGNAL = signal.SIGRTMAX - 2 if hasattr(signal, "SIGRTMAX") else signal.SIGEMT  # type: ignore[attr-defined]
MAX_CHARACTERS = 50_000


class Stacks:
    """The file of one child."""

    def __init__(self) -> None:
        """Raises OSError."""
        if hasattr(os, "memfd_create"):
            self._fd = os.memfd_create("kiq-stacks", os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile() as file:
                self._fd = os.dup(file.fileno())
        self._keep_at_end()

    def _keep_at_end(self) -> None:
        """Have each writer write at the end, wherever it was before: the file is cut in between."""
        fcntl.fcntl(self._fd, fcntl.F_SETFL, fcntl.fcntl(self._fd, fcntl.F_GETFL) | os.O_APPEND)

    def receive(self) -> None:
        """Write all stacks when DUMP_SIGNAL comes, and the stack of a crash.  In the child, with signals blocked."""
        faulthandler.register(DUMP_SIGNAL, file=self._fd, all_threads=True, chain=False)
        if not faulthandler.is_enabled():  # else somebody wants to have that elsewhere
            faulthandler.enable(file=self._fd, all_threads=True)

    def ask(self, pid: int) -> None:
        """Have a child that has received this write its stacks."""
        os.ftruncate(self._fd, 0)
        os.kill(pid, DUMP_SIGNAL)

    def read(self) -> str:
        """Return what is there so far."""
        return os.pread(self._fd, 4 * MAX_CHARACTERS, 0).decode(errors="replace")[:MAX_CHARACTERS].rstrip()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
