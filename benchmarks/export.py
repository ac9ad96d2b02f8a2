"""Export: half a million rows in parts, as jobs of one batch in two processes, beside a program that writes them all.

The jobs are those of examples/import_export: each part is a file, and the callback of the batch joins them.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import FULL, Figures, Scale
from benchmarks.peers import Peer, Shape, exporting
from benchmarks.stage import Failed, Stage, Workers
from examples.import_export.__main__ import start_export
from examples.import_export.jobs import PART_ROWS, rows
from kiqcluster.process.runtime import Setup, using_setup
from kiqcluster.store import Store

__all__ = ["ROWS", "export"]

ROWS, FEW_ROWS = 500_000, 20_000
PROCESSES = 2
TIMEOUT_SECONDS = 120.0
POLL_SECONDS = 0.005


def export(stage: Stage, peer: Peer, scale: Scale) -> Figures:
    """Return the seconds of both, from the creation of the batch until the file is complete."""
    count = ROWS if scale.seconds >= FULL.seconds else FEW_ROWS
    stage.clear()
    with TemporaryDirectory() as folder:
        alone, target = Path(folder) / "alone.csv", Path(folder) / "batch.csv"
        began = time.monotonic()
        write_alone(alone, count)
        seconds_alone = time.monotonic() - began
        shape = Shape(processes=PROCESSES, concurrency=1)
        with stage.workers(replace(peer, commands=exporting), shape) as workers:
            wait(lambda: stage.server.redis.hlen("kiq:members") == PROCESSES, workers)
            with using_setup(Setup(store=Store(stage.server.url))):
                began = time.monotonic()
                start_export(target, count)
                wait(target.exists, workers)
            seconds = time.monotonic() - began
        if alone.read_bytes() != target.read_bytes():
            raise Failed("the two files differ")
    return {"seconds": seconds, "alone": seconds_alone, "gain": seconds_alone / seconds, "rate": count / seconds}


def write_alone(target: Path, count: int) -> None:
    """Write the same file as a plain program does, part by part, so that it keeps no more rows in memory."""
    with target.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        for first in range(0, count, PART_ROWS):
            writer.writerows(rows(first, min(PART_ROWS, count - first)))


def wait(condition: Callable[[], object], workers: Workers) -> None:
    until = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        workers.check()
        if time.monotonic() > until:
            raise Failed(f"it takes longer than {TIMEOUT_SECONDS:g} s; {workers.tail()}")
        time.sleep(POLL_SECONDS)
