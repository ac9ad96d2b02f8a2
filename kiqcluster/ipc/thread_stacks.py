"""Thread stacks: where the threads of a child are.  A handler in C writes them; the supervisor reads them.

This works while a job holds the interpreter lock, when no Python code runs: Python's faulthandler writes the stacks to
an anonymous file that both processes have open.  The stack of a crash (SIGSEGV and the like) goes to the same file.
1. create             supervisor, before the fork
2. install_handlers   child, first of all
3. request, read      supervisor; the answer takes a moment, and never comes from a process that is stopped
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import signal
import tempfile

__all__ = ["DUMP_SIGNAL", "ThreadStacks"]

DUMP_SIGNAL = signal.SIGRTMAX - 2 if hasattr(signal, "SIGRTMAX") else signal.SIGEMT  # type: ignore[attr-defined]
MAX_STACK_CHARACTERS = 50_000


class ThreadStacks:
    """The file of one child."""

    def __init__(self) -> None:
        """Raises OSError."""
        if hasattr(os, "memfd_create"):
            self._fd = os.memfd_create("kiq-stacks", os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile() as file:
                self._fd = os.dup(file.fileno())
        self._open_for_append()

    def _open_for_append(self) -> None:
        """Set O_APPEND: the file is truncated between two writes."""
        fcntl.fcntl(self._fd, fcntl.F_SETFL, fcntl.fcntl(self._fd, fcntl.F_GETFL) | os.O_APPEND)

    def install_handlers(self) -> None:
        """Write all stacks on DUMP_SIGNAL, and the stack of a crash.  Runs in the child, with signals blocked."""
        faulthandler.register(DUMP_SIGNAL, file=self._fd, all_threads=True, chain=False)
        if not faulthandler.is_enabled():  # else the application wants crashes somewhere else
            faulthandler.enable(file=self._fd, all_threads=True)

    def request(self, pid: int) -> None:
        """Ask a child for its stacks.  Raises OSError if it is dead."""
        os.ftruncate(self._fd, 0)
        os.kill(pid, DUMP_SIGNAL)

    def read(self) -> str:
        """Return the text that has been written so far."""
        return os.pread(self._fd, 4 * MAX_STACK_CHARACTERS, 0).decode(errors="replace")[:MAX_STACK_CHARACTERS].rstrip()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
