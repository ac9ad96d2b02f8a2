"""Pidfile: holds the supervisor's pid and is locked while it runs, so no stale one can stand in the way."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from kiqcluster.errors import ExitCode, UsageError

__all__ = ["Pidfile"]


class Pidfile:
    """The lock is the truth; the number in it is for people and scripts."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._fd: int | None = None

    def acquire(self) -> None:
        """Lock the file and write our pid.  Raises UsageError (exit 6) when another process holds it."""
        while not self._lock():
            continue  # its holder removed it between our opening and locking it

    def _lock(self) -> bool:
        """Lock the file of that name; return False when it is not of that name any more."""
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UsageError(
                f"--pidfile {self._path} cannot be written ({error.strerror}); choose another place"
            ) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(fd, 32).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise UsageError(
                f"--pidfile {self._path} is held by a running supervisor (pid {holder}); stop it, or name another file",
                ExitCode.PIDFILE_HELD,
            ) from None
        if not self._path.exists() or os.fstat(fd).st_ino != self._path.stat().st_ino:
            os.close(fd)
            return False
        os.ftruncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())
        self._fd = fd
        return True

    def release(self) -> None:
        """Remove the file and give up the lock."""
        if self._fd is not None:
            self._path.unlink(missing_ok=True)
            self.forget()

    def forget(self) -> None:
        """Close our copy, in a child: the lock stays with the supervisor as long as that holds the file open."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
