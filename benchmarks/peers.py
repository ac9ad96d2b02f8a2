"""Peers: who takes part, and how each is started, as its documentation advises for production.

A peer has jobs and a way to enqueue them: apps/<app>.py, or ruby/ for Sidekiq.  A new peer is a row in PEERS and such
a file.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from benchmarks.server import free_port

__all__ = ["AWAITING", "FEATURELESS", "GROUPED", "GUARDED", "PEERS", "REAL", "SPREAD", "Peer", "Shape", "exporting"]

OLDER = str(Path(sys.prefix) / "older/bin/python")  # an environment with an older redis-py (Makefile)
RUBY = Path(__file__).resolve().parent / "ruby"
Command = list[str]


@dataclass(frozen=True, slots=True)
class Shape:
    """How many workers of which size: processes, jobs at once in each.

    queues: those that each process serves.  cpus: the cores that it is bound to, as taskset takes them, "" for all.
    """

    processes: int = 1
    concurrency: int = 10
    log_level: str = "warning"
    queues: str = "default"
    cpus: str = ""


@dataclass(frozen=True, slots=True)
class Peer:
    """One job system, configured.

    commands: what starts its workers.  pusher: what starts the program that enqueues.
    queue: the Redis key of the queue that all jobs go to.
    pace: no-op jobs a second and process, roughly: it sizes the runs.  bulk_pace: the same of its bulk interface,
    0 for none.
    supervised: whether the first process is a supervisor that replaces killed workers.
    """

    name: str
    commands: Callable[[Shape], Sequence[Command]]
    pace: int
    configuration: str
    queue: str
    app: str = ""
    pusher: Command = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    supervised: bool = False
    bulk_pace: int = 0

    def start_commands(self, shape: Shape) -> list[Command]:
        bound = ["taskset", "--cpu-list", shape.cpus] if shape.cpus else []
        return [[*bound, *command] for command in self.commands(shape)]

    def pusher_command(self) -> Command:
        return self.pusher or python("benchmarks.pusher", self.app or self.name)


def python(module: str, *arguments: object) -> Command:
    return [sys.executable, "-m", module, *map(str, arguments)]


def kiqcluster(shape: Shape, app: str = "kiqcluster") -> list[Command]:
    return supervised(shape, f"benchmarks.apps.{app}")


def exporting(shape: Shape) -> list[Command]:
    return supervised(shape, "examples.import_export")


def supervised(shape: Shape, application: str) -> list[Command]:
    options = ["-r", application, "-c", shape.concurrency, "--log-level", shape.log_level]
    groups = [shape.queues] * shape.processes
    return [python("kiqcluster", *options, "--listen", f"127.0.0.1:{free_port()}", *groups)]


def bare_loop(shape: Shape) -> list[Command]:
    return [python("benchmarks.apps.bare")] * shape.processes


def sidekiq(shape: Shape, file: str = "jobs.rb") -> list[Command]:
    program = shutil.which("sidekiq") or "sidekiq"
    options = ["-r", str(RUBY / file), "-c", str(shape.concurrency), "-q", "default", "-e", "production"]
    return [["env", f"BENCH_LOG_LEVEL={shape.log_level}", program, *options]] * shape.processes


def dramatiq(shape: Shape, app: str = "dramatiq") -> list[Command]:
    return [python("dramatiq", f"benchmarks.apps.{app}", "-p", shape.processes, "-t", shape.concurrency)]


def huey(shape: Shape) -> list[Command]:
    options = ["-w", shape.concurrency, "-k", "thread", "--quiet"]
    return [python("huey.bin.huey_consumer", "benchmarks.apps.huey.huey", *options)] * shape.processes


def celery(shape: Shape, app: str = "celery") -> list[Command]:
    options = ["-P", "threads", "-c", shape.concurrency, "--loglevel", "WARNING"]
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    start = [python("celery", "-A", f"benchmarks.apps.{app}", "worker", *options, *quiet)]
    return [[*command, "-n", f"worker{number}@%h"] for number, command in enumerate(start * shape.processes)]


def rq(shape: Shape) -> list[Command]:
    """One job at once per process: its way to more is more processes."""
    options = ["--worker-class", "rq.SimpleWorker", "--results-ttl", 0, "--quiet"]
    return [python("rq.cli", "worker", *options, "default")] * shape.processes


def taskiq(shape: Shape, app: str = "taskiq") -> list[Command]:
    options = ["--workers", shape.processes, "--max-async-tasks", shape.concurrency, "--log-level", "WARNING"]
    return [python("taskiq", "worker", f"benchmarks.apps.{app}:broker", *options)]


def awaiting(shape: Shape) -> list[Command]:
    """Few threads begin the async jobs; those have places of their own."""
    (command,) = kiqcluster(replace(shape, concurrency=10), "awaiting")
    return [[*command, "--async-concurrency", str(shape.concurrency)]]


def arq(shape: Shape) -> list[Command]:
    worker = [OLDER, "-m", "arq", "benchmarks.apps.arq.WorkerSettings"]
    return [["env", f"BENCH_CONCURRENCY={shape.concurrency}", *worker]]


def saq(shape: Shape) -> list[Command]:
    worker = [OLDER, "-m", "saq", "benchmarks.apps.saq.settings"]
    return [["env", f"BENCH_CONCURRENCY={shape.concurrency}", *worker]]


KIQCLUSTER = Peer(
    "kiqcluster",
    kiqcluster,
    pace=150_000,
    configuration="supervisor, reliable mode, -c 10, log level warning",
    bulk_pace=300_000,
    queue="queue:default",
    supervised=True,
)
SPREAD = replace(KIQCLUSTER, app="spread", commands=partial(kiqcluster, app="spread"))  # of many classes and queues
REAL = replace(KIQCLUSTER, app="real", commands=partial(kiqcluster, app="real"))  # with the jobs `lock` and `usual`

PEERS = {
    peer.name: peer
    for peer in (
        KIQCLUSTER,
        Peer(
            "bare-loop",
            bare_loop,
            pace=300_000,
            configuration="reserve 100 by script and release those before, decode, call; one thread, nothing else",
            queue="queue:default",
            app="kiqcluster",
        ),
        Peer(
            "sidekiq",
            sidekiq,
            pace=13_000,
            configuration="-c 10, log level WARN, MALLOC_ARENA_MAX=2",
            queue="queue:default",
            pusher=["ruby", str(RUBY / "pusher.rb")],
            environment={"MALLOC_ARENA_MAX": "2", "LANG": "C.UTF-8"},
            bulk_pace=150_000,
        ),
        Peer(
            "dramatiq",
            dramatiq,
            pace=2_600,
            configuration="RedisBroker, default middleware, 10 threads",
            queue="dramatiq:default",
        ),
        Peer(
            "huey",
            huey,
            pace=2_700,
            configuration="RedisHuey(results=False), 10 threads",
            queue="huey.redis.benchmarks",
        ),
        Peer(
            "celery",
            celery,
            pace=1_000,
            configuration="10 threads, prefetch multiplier 64, results ignored, no gossip, mingle or heartbeat",
            queue="celery",
        ),
        Peer(
            "rq",
            rq,
            pace=230,
            configuration="SimpleWorker (no fork), results dropped, one job at once per process",
            queue="rq:queue:default",
            bulk_pace=15_000,
        ),
        Peer(
            "taskiq",
            taskiq,
            pace=3_400,
            configuration="RedisStreamBroker (acknowledges), async jobs, 10 at once",
            queue="taskiq",
        ),
        Peer(
            "arq",
            arq,
            pace=1_200,
            configuration="async jobs, poll_delay=0.01, results dropped",
            queue="arq:queue",
            pusher=[OLDER, "-m", "benchmarks.pusher", "arq"],
        ),
        Peer(
            "saq",
            saq,
            pace=3_000,
            configuration="async jobs, results dropped",
            queue="saq:default:queued",
            pusher=[OLDER, "-m", "benchmarks.pusher", "saq"],
        ),
    )
}

# Those that run async jobs, each with many at once.
AWAITING = {
    "kiqcluster": replace(KIQCLUSTER, app="awaiting", commands=awaiting, pace=20_000),
    **{name: PEERS[name] for name in ("arq", "saq", "taskiq")},
}

# Those that have guarantees to compare, with jobs that use them; and kiqcluster without the seams for them.
GUARDED = {
    "kiqcluster": replace(KIQCLUSTER, app="guarded", commands=partial(kiqcluster, app="guarded")),
    "sidekiq": replace(
        PEERS["sidekiq"],
        commands=partial(sidekiq, file="guarded.rb"),
        pusher=[*PEERS["sidekiq"].pusher, "guarded"],
    ),
    "dramatiq": replace(PEERS["dramatiq"], app="guarded_dramatiq", commands=partial(dramatiq, app="guarded_dramatiq")),
}
# Those that have batches, or what comes near to them.
GROUPED = {
    name: replace(PEERS[name], app=app, commands=partial(commands, app=app))
    for name, app, commands in (
        ("kiqcluster", "grouped", kiqcluster),
        ("celery", "grouped_celery", celery),
        ("dramatiq", "grouped_dramatiq", dramatiq),
        ("taskiq", "grouped_taskiq", taskiq),
    )
}
FEATURELESS = replace(KIQCLUSTER, app="featureless", commands=partial(kiqcluster, app="featureless"))
