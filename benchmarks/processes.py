"""Processes: CPU time, memory and the end of a process tree."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil
from psutil import Process

__all__ = ["Process", "cpu_seconds", "foreign_cpu_seconds", "kill_trees", "proportional_memory", "tree"]


def tree(root: subprocess.Popen[bytes]) -> list[Process]:
    """Return a process and all that descend from it, itself first."""
    process = Process(root.pid)
    return [process, *process.children(recursive=True)]


def cpu_seconds(processes: Iterable[Process]) -> float:
    """Return user and system seconds of processes, with those of their children that have ended."""
    total = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])
    return total


def foreign_cpu_seconds() -> float:
    """Return the seconds that processes of others have used: what is busy, less ours and our descendants'."""
    times = psutil.cpu_times()
    busy: float = times.user + times.nice + times.system + times.softirq + times.irq + times.steal
    ours = Process()
    return busy - cpu_seconds([ours, *ours.children(recursive=True)])


def proportional_memory(process: Process) -> float:
    """Return the PSS in megabytes: pages that n processes share count 1/n for each."""
    for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="utf-8").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise LookupError(f"no PSS of process {process.pid}")


def kill_trees(roots: Iterable[subprocess.Popen[bytes]]) -> None:
    """End processes and all that descend from them as a power cut does: parents first, so that none is replaced."""
    for root in roots:
        if root.poll() is not None:
            continue
        doomed = tree(root)
        for process in doomed:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        root.wait()
        psutil.wait_procs(doomed, timeout=5)
