"""Pidfile: holds the supervisor's pid and is locked while it runs, so no stale one can stand in the way."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from kiqcluster.errors import ExitCode, UsageError

__all__ = ["Pidfile"]


MAX_BYTES = 32  # of a file that is a pidfile


class Pidfile:
    """The lock counts; the number is for people and scripts.

    It overwrites neither the target of a link nor a file with other content.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._fd: int | None = None

    def acquire(self) -> None:
        """Lock the file and write our pid.  Raises UsageError (exit 6) when another process holds it."""
        while not self._lock():
            continue  # its holder removed it between our opening and locking it

    def _lock(self) -> bool:
        """Lock the file; return False if the file at that path is another by now."""
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise self._cannot_be_written(error) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(fd, MAX_BYTES).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise UsageError(
                f"--pidfile {self._path} is held by a running supervisor (pid {holder}); stop it, or name another file",
                ExitCode.PIDFILE_HELD,
            ) from None
        if not os.path.lexists(self._path) or os.fstat(fd).st_ino != os.lstat(self._path).st_ino:
            os.close(fd)
            return False
        held = os.pread(fd, MAX_BYTES + 1, 0).strip()
        if held and (len(held) > MAX_BYTES or not held.isdigit()):
            os.close(fd)
            raise UsageError(f"--pidfile {self._path} contains something other than a pid; choose another path")
        self._fd = fd
        try:
            os.ftruncate(fd, 0)
            os.write(fd, f"{os.getpid()}\n".encode())
        except OSError as error:  # the disk is full
            self.release()
            raise self._cannot_be_written(error) from error
        return True

    def _cannot_be_written(self, error: OSError) -> UsageError:
        why = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        return UsageError(f"--pidfile {self._path} cannot be written ({why}); choose another path")

    def release(self) -> None:
        """Remove the file and give up the lock."""
        if self._fd is not None:
            self._path.unlink(missing_ok=True)
            self.close_in_child()

    def close_in_child(self) -> None:
        """Close our copy, in a child: the lock stays with the supervisor as long as that holds the file open."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
