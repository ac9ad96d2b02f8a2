"""The chaos tests' jobs, and some that take all the memory that there is."""

from __future__ import annotations

import resource
import time
from pathlib import Path

from kiqcluster import job
from tests.apps import chaos  # its jobs run beside them

ALLOWANCE = 100 << 20  # bytes that a process may have beside what it has when the first hog begins
FIRST_BITE = 16 << 20  # bytes
MOST = 1 << 30  # bytes after which a hog gives up: something is wrong with the test, and the machine is ours no more
STEP, PAUSE = 8 << 20, 0.005  # bytes that `gorge` takes at a time, and seconds that it takes for it


@job(retry=5, retry_in=lambda *_: 3_600)
def hog(smallest: int, seconds: float) -> None:
    """Takes all memory that the process may have, down to pieces of some bytes, and holds it while others run."""
    with chaos.noted():
        limit_memory()
        taken, size, bite = [], 0, FIRST_BITE
        while bite >= smallest and size < MOST:
            try:
                taken.append(bytearray(bite))
                size += bite
            except MemoryError:
                bite //= 4
        time.sleep(seconds)
        raise MemoryError


@job()
def gorge() -> None:
    """Takes more and more memory, as long as nobody kills the process for it."""
    with chaos.noted():
        taken = []
        while len(taken) * STEP < MOST:
            taken.append(bytearray(b"x") * STEP)
            time.sleep(PAUSE)
        raise AssertionError("nobody minds")


def limit_memory() -> None:
    """Let the process have no more than ALLOWANCE from now on, as `ulimit -v` would; later calls change nothing."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ALLOWANCE, limit))
