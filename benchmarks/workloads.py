"""Workloads: the table of what is measured, for whom, and what of it is shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks import conduct, throughput
from benchmarks.batches import PACES, batches
from benchmarks.cron import ENTRIES, cron
from benchmarks.export import ROWS, export
from benchmarks.fleet import FLEET_SIZES, fleet
from benchmarks.guarantees import guarantees, own_guarantees
from benchmarks.measure import FULL, Figures, Scale
from benchmarks.peers import AWAITING, PEERS, Peer
from benchmarks.stage import Stage
from benchmarks.typed_arguments import JOBS, STEPS, typed_arguments
from benchmarks.web import SHARED, web
from benchmarks.web import WHOLE as WEB_SIZE

__all__ = ["WORKLOADS", "Column", "Workload"]

WHOLE = ",.0f"


@dataclass(frozen=True, slots=True)
class Column:
    """A figure in the report.  form: how it is printed, as format() takes it."""

    figure: str
    heading: str
    form: str


@dataclass(frozen=True, slots=True)
class Workload:
    """What is run for whom, and what of it is shown."""

    title: str
    run: Callable[[Stage, Peer, Scale], Figures]
    peers: Sequence[str]
    columns: Sequence[Column]


def columns(form: str, **headings: str) -> tuple[Column, ...]:
    """Return columns of one form: `columns(".1f", figure="heading")`."""
    return tuple(Column(figure, heading, form) for figure, heading in headings.items())


def waits(form: str) -> tuple[Column, ...]:
    """Return the columns of what measure.quantiles returns."""
    return tuple(Column(name, name, form) for name in ("p50", "p95", "p99", "worst"))


def with_share(**headings: str) -> tuple[Column, ...]:
    """Return for each figure a column of it, and one of its share of the plain one."""
    return tuple(
        column
        for figure, heading in headings.items()
        for column in (Column(figure, heading, WHOLE), Column(f"{figure}_kept", "÷", ".2f"))
    )


RATE = Column("rate", "jobs/s", WHOLE)
COSTS = (
    Column("worker_cpu", "worker CPU ms/1 000", ".1f"),
    Column("redis_cpu", "Redis CPU ms/1 000", ".1f"),
    Column("commands", "commands/job", ".2f"),
    Column("round_trips", "round trips/job", ".3f"),
)
EVERYBODY = tuple(name for name in PEERS if name not in ("arq", "saq"))  # which run nothing but async jobs
SYSTEMS = tuple(name for name in EVERYBODY if name != "bare-loop")
TWO = ("kiqcluster", "sidekiq")
OURS = ("kiqcluster",)

WORKLOADS = {
    "noop": Workload("No-op jobs, 1 process, concurrency 10", throughput.noop, EVERYBODY, (RATE, *COSTS)),
    "noop-2": Workload("No-op jobs, 2 processes", throughput.noop_in_two, EVERYBODY, (RATE, *COSTS)),
    "noop-bound": Workload(
        "No-op jobs, 1 process bound to one core",
        throughput.noop_bound,
        ("kiqcluster", "bare-loop", "sidekiq"),
        (RATE, *COSTS),
    ),
    "noop-far": Workload(
        f"No-op jobs, {1e3 * throughput.LATENCY_SECONDS:g} ms further from Redis",
        throughput.noop_far,
        TWO,
        (
            RATE,
            *columns(WHOLE, near="jobs/s directly", proxied="jobs/s, proxy without latency"),
            *columns(".2f", kept="÷ directly", kept_of_proxied="÷ proxy"),
        ),
    ),
    "noop-logged": Workload("No-op jobs, INFO logs on, to a file", throughput.noop_logged, TWO, (RATE, *COSTS[:2])),
    "lock": Workload(
        "Jobs that take one shared lock and read the clock twice", throughput.lock, TWO, (RATE, *COSTS[:2])
    ),
    "lock-bound": Workload("The same, the worker bound to one core", throughput.lock_bound, TWO, (RATE, *COSTS[:2])),
    "usual": Workload(
        "Jobs that parse, count, log a line and compute for 20 µs", throughput.usual, TWO, (RATE, *COSTS[:2])
    ),
    "usual-bound": Workload("The same, the worker bound to one core", throughput.usual_bound, TWO, (RATE, *COSTS[:2])),
    "sleep": Workload(
        f"{1e3 * throughput.SLEEP_JOB_SECONDS:g} ms sleep, concurrency 25",
        throughput.naps,
        SYSTEMS,
        (RATE, Column("of_ideal", "of ideal", ".1%"), *COSTS[:2]),
    ),
    "cpu": Workload(
        f"Jobs that compute ({throughput.BURN_STEPS:,} steps in Python)",
        throughput.cpu,
        OURS,
        (
            *columns(WHOLE, one="1 thread, jobs/s", threads="2 threads, 1 process", processes="2 processes"),
            *columns(".2f", threads_gain="2 threads ÷ 1", processes_gain="2 processes ÷ 1"),
        ),
    ),
    "async": Workload(
        f"Async jobs that wait {1e3 * throughput.SLEEP_JOB_SECONDS:g} ms, {throughput.ASYNC_JOBS:,} at once, 1 process",
        throughput.async_naps,
        tuple(AWAITING),
        (RATE, *COSTS),
    ),
    "enqueue": Workload(
        "Enqueue",
        throughput.enqueue,
        SYSTEMS,
        columns(WHOLE, single="one by one, jobs/s", bulk="bulk of 1 000, jobs/s"),
    ),
    "latency": Workload("Idle enqueue → start, ms", conduct.latency, SYSTEMS, waits(".2f")),
    "idle": Workload(
        "An idle worker",
        conduct.idle,
        SYSTEMS,
        columns(".1f", commands="Redis commands/s", reads="round trips/s", cpu="CPU %"),
    ),
    "memory": Workload(
        "Memory of idle workers, PSS in MB",
        conduct.memory,
        SYSTEMS,
        columns(".1f", worker="worker", supervisor="supervisor", total="together", further="each further worker"),
    ),
    "kill": Workload(
        "kill -9 at half of 2 000 jobs of 20 ms",
        conduct.kill,
        SYSTEMS,
        (
            *columns(
                WHOLE,
                lost=f"not done after {FULL.patience:g} s of silence",
                started_twice="started twice",
                ended_twice="ended twice",
            ),
            Column("back", "back in the queue, s", ".2f"),
            Column("done", "last job done, s", ".1f"),
        ),
    ),
    "fairness": Workload(
        f"Wait of {1e3 * conduct.SHORT_JOB_SECONDS:g} ms jobs beside {conduct.LONG_JOB_SECONDS:g} s jobs, "
        "2 processes, idle threads, ms",
        conduct.fairness,
        OURS,
        (*waits(".0f"), *columns(WHOLE, shorts="short jobs", longs="long jobs")),
    ),
    "growth": Workload(
        "Growth: CPU per job, over that of the small case",
        throughput.growth,
        OURS,
        columns(
            ".2f",
            depth=f"first tenth of a queue of {FULL.depth:,} / last",
            queues=f"{throughput.SPREAD_QUEUES:,} queues / 1",
            classes=f"{throughput.SPREAD_CLASSES} classes / 1",
        ),
    ),
    "batches": Workload(
        "No-op jobs of a batch (chord, group; taskiq: with results), 1 process, beside plain ones",
        batches,
        tuple(PACES),
        (
            Column("rate", "jobs/s", WHOLE),
            Column("plain", "plain", WHOLE),
            Column("kept", "÷ plain", ".2f"),
            Column("added", "added µs/job", ".0f"),
            Column("commands", "commands/job", ".2f"),
            Column("added_commands", "added", ".2f"),
            Column("redis_cpu", "Redis CPU ms/1 000", ".1f"),
        ),
    ),
    "guarantees": Workload(
        "No-op jobs with a guarantee, jobs/s and ÷ the plain one",
        guarantees,
        ("kiqcluster", "sidekiq", "dramatiq"),
        (
            *columns(WHOLE, plain="plain"),
            *columns(".2f", kept="÷ without the seams"),
            *with_share(
                once="until_executed",
                once_starting="until_executing",
                limited="concurrency limit",
                rated="rate limit",
                timed="timeouts",
                encrypted="encryption",
                everything="all of them",
            ),
            *columns(WHOLE, push="pushes/s, plain", push_once="pushes/s, until_executed"),
        ),
    ),
    "guarantees-own": Workload(
        "No-op jobs with a guarantee that no peer has, jobs/s ÷ the plain one",
        own_guarantees,
        ("kiqcluster",),
        (
            *columns(WHOLE, plain="plain, jobs/s"),
            *columns(
                ".2f",
                single_kept="while_executing",
                keyed_kept="limit per key",
                sliding_kept="sliding window",
                leaky_kept="leaky bucket",
                concurrent_kept="concurrent",
                governed_kept="policy",
                expiring_kept="expires_in",
                versioned_kept="version",
                interruptible_kept="interruption limit",
                compressed_kept="compressed (3 KB)",
            ),
        ),
    ),
    "cron": Workload(
        f"Cron: {ENTRIES:,} entries that are due at once, one process",
        cron,
        TWO,
        (Column("seconds", "seconds", ".2f"), RATE, *COSTS),
    ),
    "export": Workload(
        f"Export of {ROWS:,} rows in parts, as a batch in two processes, beside one program",
        export,
        OURS,
        (
            Column("seconds", "seconds", ".2f"),
            Column("alone", "one program", ".2f"),
            Column("gain", "times as fast", ".2f"),
            Column("rate", "rows/s", WHOLE),
        ),
    ),
    "web": Workload(
        f"Web pages with {WEB_SIZE.dead:,} dead jobs, {WEB_SIZE.queues:,} queues, {WEB_SIZE.processes} processes: "
        "ms of server time",
        web,
        TWO,
        (
            *(Column(f"{page}_ms", page.replace("_", " "), ".1f") for page in SHARED),
            Column("slowest_ms", "slowest of all", ".1f"),
            Column("most_trips", "most round trips", WHOLE),
            Column("largest_kb", "largest, KB by gzip", ".1f"),
        ),
    ),
    "fleet": Workload(
        "What idle processes cost one Redis",
        fleet,
        OURS,
        [
            column
            for size in FLEET_SIZES
            for column in (
                Column(f"cpu_{size}", f"{size:,}: cores", ".3f"),
                Column(f"commands_{size}", "commands/s", WHOLE),
                Column(f"bytes_{size}", "bytes/s", WHOLE),
                Column(f"connections_{size}", "connections", WHOLE),
            )
        ],
    ),
    "typed": Workload(
        "Arguments without types, with a date, and with an order of three lines (a dataclass), µs/job in our code",
        typed_arguments,
        OURS,
        [Column(f"{step}_{name}", f"{name}: {heading}", ".1f") for name in JOBS for step, heading in STEPS.items()],
    ),
}
