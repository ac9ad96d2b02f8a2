"""Measure: what the workloads share: how much is run, how a rate and its costs are taken, how idleness is reached.

A rate is taken inside the worker: among the jobs, one in `every` is a `mark`, which does the same as the others and
writes down when.  Jobs between the first and the last mark, over the time between them, are the rate; start-up is not
in it, and no job pays for the measuring.  All jobs are enqueued before the workers start.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks import processes
from benchmarks.ledger import Entry
from benchmarks.stage import Pusher, Stage, Workers

__all__ = [
    "FULL",
    "QUICK",
    "Figures",
    "Filled",
    "Scale",
    "disturbance",
    "fill",
    "observe",
    "quantiles",
    "rate_of",
    "run_first_jobs",
]

Figures = dict[str, float]

MAX_JOBS_BETWEEN_MARKS = 1_000  # jobs between two marks
MIN_MARKS = 100
WARM_UP_JOBS = 20  # that a worker has run before it is called idle


@dataclass(frozen=True, slots=True)
class Scale:
    """How long things go on.

    seconds: that a run for a rate takes, roughly.  samples: of latency.  settle: seconds until a worker is called idle.
    idle: seconds that it is watched.  doomed: jobs beside a kill.  patience: seconds that lost ones are waited for.
    fair: seconds of bursts.  depth: the deep queue.  fleet: seconds that a fleet is watched.
    """

    seconds: float
    samples: int
    settle: float
    idle: float
    doomed: int
    patience: float
    fair: float
    depth: int
    fleet: float


FULL = Scale(
    seconds=4.0, samples=400, settle=3.0, idle=10.0, doomed=2_000, patience=20.0, fair=30.0, depth=1_000_000, fleet=20.0
)
QUICK = Scale(
    seconds=0.1, samples=20, settle=0.3, idle=1.0, doomed=200, patience=2.0, fair=2.0, depth=20_000, fleet=1.0
)


@dataclass(frozen=True, slots=True)
class Filled:
    """What was enqueued: so many marks, and so many jobs from one mark to the next."""

    marks: int
    every: int

    def jobs(self, marks: int) -> int:
        """Return the number of jobs between the first and the last of so many marks."""
        return self.every * (marks - 1)


def fill(pusher: Pusher, job: str, *arguments: float | str, count: int, mark: str = "mark") -> Filled:
    """Enqueue about `count` jobs in order: a mark, jobs, a mark, jobs, …, a mark."""
    every = max(2, min(MAX_JOBS_BETWEEN_MARKS, count // MIN_MARKS))
    chunks = max(1, count // every)
    for _ in range(chunks):
        pusher.push(mark, *arguments)
        pusher.push_bulk(job, *arguments, count=every - 1)
    pusher.push(mark, *arguments)
    return Filled(chunks + 1, every)


def rate_of(filled: Filled, marks: Sequence[Entry]) -> float:
    """Return jobs per second from the moment that every process works, unless one came too late for that."""
    first_by_pid: dict[int, float] = {}
    for mark in marks:
        first_by_pid.setdefault(mark.pid, mark.time)
    all_work = max(first_by_pid.values())
    counted = [mark.time for mark in marks if mark.time >= all_work]
    if len(counted) <= len(marks) / 2:
        counted = [mark.time for mark in marks]
    return filled.jobs(len(counted)) / (counted[-1] - counted[0])


def observe(stage: Stage, workers: Workers, first: int, last: int, jobs: int) -> Figures:
    """Return what jobs cost: milliseconds of CPU per 1 000 of them, commands and reads per job.

    first, last: the lines of the ledger between which they run.
    """
    stage.wait_for_lines(first, workers)
    with disturbance() as figures:
        worker_cpu, counters = processes.cpu_seconds(workers.processes()), stage.server.counters()
        stage.wait_for_lines(last, workers)
        worker_cpu = processes.cpu_seconds(workers.processes()) - worker_cpu
        counters = stage.server.counters().since(counters)
    return {
        **figures,
        "worker_cpu": 1e6 * worker_cpu / jobs,
        "redis_cpu": 1e6 * counters.cpu / jobs,
        "commands": counters.commands / jobs,
        "round_trips": counters.reads / jobs,
    }


@contextmanager
def disturbance() -> Iterator[Figures]:
    """Yield figures that will hold how much of a core processes of others used in the `with` block.

    Ours must live to its end: nobody knows what those have used that are killed in it.
    """
    figures: Figures = {}
    began, before = time.monotonic(), processes.foreign_cpu_seconds()
    yield figures
    figures["foreign"] = (processes.foreign_cpu_seconds() - before) / (time.monotonic() - began)


def quantiles(values: Sequence[float]) -> Figures:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {"p50": cuts[49], "p95": cuts[94], "p99": cuts[98], "worst": max(values)}


def run_first_jobs(stage: Stage, pusher: Pusher, workers: Workers) -> None:
    """Return once the workers have run a few jobs and have nothing left to do; the ledger has one line then."""
    pusher.push("noop", count=WARM_UP_JOBS)
    pusher.push("mark")
    stage.wait_for_lines(1, workers)
