"""Operating system: the calls and files that Linux has and macOS lacks, and what stands in for them there.

die_with_parent, name_process     prctl; elsewhere nothing: the end of the socketpair tells a child that its parent died
count_threads                     /proc/self/task, with those that are not Python's; elsewhere Python's only
resident_bytes                    /proc/<pid>/statm; elsewhere None, and the series is absent
proportional_bytes                /proc/self/smaps_rollup; elsewhere None, and the resident size is compared
created, boot_id, pid_namespace   what tells one process from every other; elsewhere by psutil, and no namespace

Others that ask for the platform, each for one thing that is theirs: `forks` (madvise), `thread_stacks` (memfd),
`worker/orphan_alarm` (timers in C), `process/logs/handlers` (/proc/self/fd), `process/boundary/process_state` (umask),
`testing/server`, `store/wire` (Windows).
Runs in: any process.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
import threading
from pathlib import Path

__all__ = [
    "boot_id",
    "count_threads",
    "created",
    "die_with_parent",
    "name_process",
    "pid_namespace",
    "proportional_bytes",
    "resident_bytes",
]

PROC = Path("/proc")
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
LIBC = ctypes.CDLL(None)  # loaded before any fork, so that children share it
PAGE_BYTES = resource.getpagesize()
START_FIELD = 19  # of /proc/<pid>/stat, behind the name: ticks from boot to the start


def die_with_parent(number: int) -> None:
    """Ask the kernel for a signal when the parent dies.  Linux only; elsewhere EOF on the socketpair has to do."""
    if sys.platform == "linux":
        LIBC.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def name_process(name: str) -> None:
    """Have `ps -o comm`, top and the kernel's own messages tell this process from the others.  Linux only.

    The name has 15 bytes.  The command line stays that of the supervisor.
    """
    if sys.platform == "linux":
        LIBC.prctl(PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def count_threads() -> int:
    """Return how many threads this process has."""
    try:
        return len(list((PROC / "self/task").iterdir()))
    except OSError:
        return threading.active_count()


def resident_bytes(pid: int) -> int | None:
    """Return the bytes that a process uses; None if that cannot be read, as after its death."""
    try:
        fields = (PROC / str(pid) / "statm").read_text(encoding="utf-8").split()
    except OSError:
        return None
    return int(fields[1]) * PAGE_BYTES


def proportional_bytes() -> int | None:
    """Return the proportional set size (PSS) of this process; None where the system does not tell it."""
    try:
        lines = (PROC / "self/smaps_rollup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1_024 for line in lines if line.startswith("Pss:")), None)


def created(pid: int) -> str:
    """Return when a process began: ticks since boot on Linux, which no step of the clock changes, else seconds.

    Raises psutil's errors for a process that is not there.
    """
    try:
        return (PROC / str(pid) / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[START_FIELD]
    except OSError:
        import psutil  # the supervisor, on Linux, has no use for it

        return f"{psutil.Process(pid).create_time():.2f}"


def boot_id() -> str:
    """Return a text that another boot of this host does not have."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        import psutil  # as above

        return f"{psutil.boot_time():.0f}"


def pid_namespace() -> str:
    """Return the namespace that pids of this process belong to; `-` where there are none."""
    try:
        return os.readlink(PROC / "self/ns/pid")  # noqa: PTH115  # Path.readlink would make a path of `pid:[…]`
    except OSError:
        return "-"
