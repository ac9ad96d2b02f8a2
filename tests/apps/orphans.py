"""Jobs that leave processes behind, as careless programs do."""

from __future__ import annotations

import subprocess

from kiqcluster import job

# Outlives its parent, and notes who its parent is then.
ORPHAN = 'while [ ! -e "$1/go" ]; do sleep 0.05; done; cut -d" " -f4 "/proc/$$/stat" >> "$1/parents"'


@job()
def leave_behind(folder: str, count: int) -> None:
    """Start processes whose parent ends before they do; they write to a file `parents` once there is a file `go`."""
    for _ in range(count):
        subprocess.run(["sh", "-c", f"sh -c '{ORPHAN}' sh '{folder}' &"], check=True)
