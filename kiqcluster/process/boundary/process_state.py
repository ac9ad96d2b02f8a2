"""ProcessState: what all threads of a process share, and a job can change for the others and for later jobs.

read      the state of this moment
changes   what is another one now

Nothing is put back: another thread may rely on it by now.  A worker says that it has changed, and which jobs run
(worker/maintenance/job_watch).  Price: 40 µs for a reading.
"""

from __future__ import annotations

import locale
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kiqcluster.process.clock import zone

__all__ = ["ProcessState", "changes", "read"]

STATUS = Path("/proc/self/status")  # Linux; elsewhere the umask could only be read by changing it


class ProcessState(NamedTuple):
    """A field is "" where it cannot be read."""

    directory: str
    umask: str
    zone: str
    locale: str


WORDS = ProcessState("working directory", "umask", "time zone", "locale")


def read() -> ProcessState:
    """Return the state of this moment."""
    return ProcessState(_directory(), _umask(), zone(), locale.setlocale(locale.LC_ALL))


def changes(before: ProcessState, now: ProcessState) -> Iterator[tuple[str, str, str]]:
    """Yield what has changed, in words, with its value before and now."""
    for what, old, new in zip(WORDS, before, now, strict=True):
        if old != new:
            yield what, old, new


def _directory() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # it was removed
        return ""


def _umask() -> str:
    try:
        lines = STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("Umask:")), "")
