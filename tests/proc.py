"""What /proc says of a process: its children, its open files, whether it is there."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

from tests.kit import is_alive, wait_until


def wait_exited(*pids: int) -> None:
    """Wait until none of these processes is alive."""
    wait_until(lambda: not any(is_alive(pid) for pid in pids), f"the processes {pids} to exit")


def kill(pid: int) -> bool:
    """Kill a process; return whether it was there: it may have died by itself, or of an earlier kill."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def children(pid: int) -> list[int]:
    """Return the pids of a process' children, zombies included."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def open_files(pid: int) -> set[str]:
    """Return what a process holds open: paths, `socket:[inode]`, `pipe:[inode]`."""
    targets = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            targets.add(str(fd.readlink()))
        except FileNotFoundError:  # closed since it was listed
            continue
    return targets


def sockets(pid: int) -> set[str]:
    """Return the sockets and pipes that a process holds open, as `socket:[inode]`."""
    return {target for target in open_files(pid) if target.startswith(("socket:", "pipe:"))}


def count_descriptors(pid: int) -> int:
    """Return how many file descriptors a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def fill_output(pid: int) -> None:
    """Fill the pipe that a process writes its log to."""
    writer = os.open(f"/proc/{pid}/fd/1", os.O_WRONLY | os.O_NONBLOCK)
    try:
        while True:
            os.write(writer, b"x" * select.PIPE_BUF)
    except BlockingIOError:
        os.close(writer)
