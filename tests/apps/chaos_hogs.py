"""The chaos tests' jobs, and some that take all the memory that there is."""

from __future__ import annotations

import resource
import time
from pathlib import Path

from kiqcluster import job
from tests.apps import chaos  # its jobs run beside them

ALLOWANCE_BYTES = 100 << 20  # that a process may have beside what it has when the first hog begins
FIRST_BLOCK_BYTES = 16 << 20
MAX_BYTES = 1 << 30  # a hog that has taken more gives up: the limit did not work
STEP_BYTES, STEP_SECONDS = 8 << 20, 0.005  # bytes that `gorge` takes at a time, and seconds that it takes for it


@job(retry=5, retry_in=lambda *_: 3_600)
def hog(smallest: int, seconds: float) -> None:
    """Takes all memory that the process may have, down to pieces of some bytes, and holds it while others run."""
    with chaos.noted():
        limit_memory()
        taken, size, bite = [], 0, FIRST_BLOCK_BYTES
        while bite >= smallest and size < MAX_BYTES:
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
        while len(taken) * STEP_BYTES < MAX_BYTES:
            taken.append(bytearray(b"x") * STEP_BYTES)
            time.sleep(STEP_SECONDS)
        raise AssertionError("nobody minds")


def limit_memory() -> None:
    """Let the process have ALLOWANCE_BYTES more and no more, as `ulimit -v` does; later calls change nothing."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ALLOWANCE_BYTES, limit))
