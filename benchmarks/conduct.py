"""Conduct: what a worker is like when it is idle, is killed, or gets long jobs among short ones."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random

from benchmarks import processes
from benchmarks.ledger import Entry
from benchmarks.measure import Figures, Scale, disturbance, quantiles, run_first_jobs
from benchmarks.peers import Peer, Shape
from benchmarks.stage import Failed, Pusher, Stage, Workers, wait_until
from kiqcluster.sidekiq.keys import Keys

__all__ = [
    "KILLED_JOB_SECONDS",
    "LONG_JOB_SECONDS",
    "SHORT_JOB_SECONDS",
    "fairness",
    "idle",
    "kill",
    "latency",
    "memory",
]

PUSH_PAUSE_SECONDS = 0.005, 0.045  # shortest and longest seconds between two pushes to an idle worker
KILLED_JOB_SECONDS = 0.02  # that the jobs beside a kill take
RECOVERY_TIMEOUT_SECONDS = 60.0  # after which units that are not back count as stranded
SHORT_JOB_SECONDS, LONG_JOB_SECONDS = 0.001, 5.0  # seconds that the jobs of the fairness run take
BURST_JOBS = 200  # short jobs that come at once in it, with a long one among them
BURST_PAUSE_SECONDS = 0.2, 0.8  # shortest and longest seconds between two bursts
WARM_UP_BURSTS = 3  # without a long job, so that workers learn to prefetch first
SPARE_THREADS = 4  # that never have a long job


@contextmanager
def idle_workers(stage: Stage, peer: Peer, scale: Scale, shape: Shape) -> Iterator[tuple[Pusher, Workers]]:
    """Run a pusher and workers for a `with` block; it begins when these have run a few jobs and are idle."""
    stage.clear()
    with stage.pusher(peer) as pusher, stage.workers(peer, shape) as workers:
        run_first_jobs(stage, pusher, workers)
        time.sleep(scale.settle)
        yield pusher, workers


def latency(stage: Stage, peer: Peer, scale: Scale) -> Figures:
    """From the beginning of a push to the first line of the job, in milliseconds."""
    rng = Random(scale.samples)
    with idle_workers(stage, peer, scale, Shape()) as (pusher, workers), disturbance() as figures:
        for _ in range(scale.samples):
            time.sleep(rng.uniform(*PUSH_PAUSE_SECONDS))
            pusher.stamp()
        stage.wait_for_lines(1 + scale.samples, workers)
    return {**quantiles(waits(stage)), **figures}


def waits(stage: Stage) -> list[float]:
    """Return the milliseconds between the push and the start of every `stamp` job."""
    return [1e3 * (entry.time - entry.facts[0]) for entry in stage.ledger.entries("stamp")]


def idle(stage: Stage, peer: Peer, scale: Scale) -> Figures:
    """What a worker without work asks of Redis and of the machine, per second."""
    with idle_workers(stage, peer, scale, Shape()) as (_, workers):
        cpu, counters, began = processes.cpu_seconds(workers.processes()), stage.server.counters(), time.monotonic()
        time.sleep(scale.idle)
        cpu = processes.cpu_seconds(workers.processes()) - cpu
        counters, seconds = stage.server.counters().since(counters), time.monotonic() - began
    return {"commands": counters.commands / seconds, "reads": counters.reads / seconds, "cpu": 100 * cpu / seconds}


def memory(stage: Stage, peer: Peer, scale: Scale) -> Figures:
    """PSS in megabytes after a few jobs; what each further worker adds, of three."""
    alone = resident(stage, peer, scale, 1)
    three = resident(stage, peer, scale, 3)
    return {**alone, "further": (three["total"] - alone["total"]) / 2}


def resident(stage: Stage, peer: Peer, scale: Scale, count: int) -> Figures:
    stage.clear()
    with stage.workers(peer, Shape(processes=count)) as workers:
        with stage.pusher(peer) as pusher:  # gone when it is measured: it would share its pages with the workers
            run_first_jobs(stage, pusher, workers)
        time.sleep(scale.settle)
        sizes = [processes.proportional_memory(process) for process in workers.processes()]
    if not peer.supervised:
        return {"total": sum(sizes), "worker": sum(sizes)}
    return {"total": sum(sizes), "worker": sum(sizes[1:]), "supervisor": sizes[0]}


def kill(stage: Stage, peer: Peer, scale: Scale) -> Figures:
    """Kill the workers when half of the jobs are done; start them again, unless a supervisor does."""
    stage.clear()
    with stage.pusher(peer) as pusher:
        for number in range(scale.doomed):
            pusher.push("tick", number, KILLED_JOB_SECONDS)
    with stage.workers(peer, Shape()) as workers:
        stage.wait_for_lines(scale.doomed + 1, workers)  # each job writes two: half of them have ended, and one runs
        killed = time.monotonic()
        if peer.supervised:
            figures = kill_supervised(stage, workers)
        else:
            figures = {}
            workers.kill()
            workers.start()
        ended = wait_for_rest(stage, scale.doomed, scale.patience)
    ends = stage.ledger.entries("end")
    return {
        **figures,
        "lost": scale.doomed - len(ended),
        "started_twice": repeated(stage.ledger.entries("start")),
        "ended_twice": repeated(ends),
        **({"done": ends[-1].time - killed} if ends[-1].time > killed else {}),
    }


def repeated(entries: Sequence[Entry]) -> int:
    """Return how many jobs have more than one of these lines."""
    return sum(count > 1 for count in Counter(entry.facts[0] for entry in entries).values())


def kill_supervised(stage: Stage, workers: Workers) -> Figures:
    """Kill a supervisor's children; return the seconds until what they held is back in the queues."""
    keys, redis = Keys(), stage.server.redis
    held = [keys.inflight(str(identity)) for identity in redis.hkeys(keys.members)]
    killed = time.monotonic()
    for process in workers.processes()[1:]:
        process.kill()
    if not wait_until(lambda: not redis.exists(*held), RECOVERY_TIMEOUT_SECONDS):
        raise Failed(f"what the killed worker held was not back within {RECOVERY_TIMEOUT_SECONDS:g} s")
    return {"back": time.monotonic() - killed}


def wait_for_rest(stage: Stage, jobs: int, patience: float) -> set[float]:
    """Return the numbers of the jobs that have ended: once all have, or none has had anything to say for a while."""
    lines, since = -1, time.monotonic()
    while True:
        if stage.ledger.lines() != lines:
            lines, since = stage.ledger.lines(), time.monotonic()
            ended = {entry.facts[0] for entry in stage.ledger.entries("end")}
        if len(ended) == jobs or time.monotonic() - since > patience:
            return ended
        time.sleep(0.05)


def fairness(stage: Stage, peer: Peer, scale: Scale) -> Figures:
    """Bursts of short jobs with a long one among them, in two processes that always have idle threads."""
    rng, shape = Random(BURST_JOBS), Shape(processes=2)
    most_long = shape.processes * shape.concurrency - SPARE_THREADS
    with idle_workers(stage, peer, scale, shape) as (pusher, workers):
        ends, bursts, longs = time.monotonic() + scale.fair, 0, 0
        while time.monotonic() < ends:
            before = rng.randrange(1, BURST_JOBS)
            pusher.push_bulk("stamp", time.monotonic(), SHORT_JOB_SECONDS, count=before)
            if bursts >= WARM_UP_BURSTS and longs - len(stage.ledger.entries("end")) < most_long:
                pusher.push("tick", longs, LONG_JOB_SECONDS)
                longs += 1
            pusher.push_bulk("stamp", time.monotonic(), SHORT_JOB_SECONDS, count=BURST_JOBS - before)
            bursts += 1
            time.sleep(rng.uniform(*BURST_PAUSE_SECONDS))
        stage.wait_for_lines(1 + bursts * BURST_JOBS + 2 * longs, workers)
    return {**quantiles(waits(stage)), "shorts": bursts * BURST_JOBS, "longs": longs}
