"""Memory: the bytes that the end of this process would free.

Shared pages count in part: after a fork, what each process seems to use is mostly the same memory.  The worker reads
that itself, since the kernel walks all its pages for it, some 30 ms for a gigabyte: too long for the supervisor's loop.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["proportional_bytes"]


def proportional_bytes() -> int | None:
    """Return the proportional set size (PSS); None where the system does not tell it."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1_024 for line in lines if line.startswith("Pss:")), None)
