"""Throughput: jobs per second and what they cost, of workers and of clients; and how the cost grows."""

from __future__ import annotations

import os
from collections.abc import Sequence

from benchmarks.measure import Figures, Filled, Scale, disturbance, fill, observe, rate_of
from benchmarks.peers import AWAITING, REAL, SPREAD, Peer, Shape
from benchmarks.stage import Failed, Stage

__all__ = [
    "ASYNC_JOBS",
    "LATENCY_SECONDS",
    "SLEEP_JOB_SECONDS",
    "SPREAD_CLASSES",
    "SPREAD_QUEUES",
    "async_naps",
    "cpu",
    "enqueue",
    "growth",
    "lock",
    "lock_bound",
    "naps",
    "noop",
    "noop_bound",
    "noop_far",
    "noop_in_two",
    "noop_logged",
    "usual",
    "usual_bound",
]

LATENCY_SECONDS = 0.001  # that the slow way to Redis adds to a round trip
SLEEP_JOB_SECONDS = 0.005  # that a `sleep` job takes
ASYNC_JOBS = 1_000  # at once, in one process
BURN_STEPS, BURN_PACE = 100_000, 150  # of a `cpu` job: 5 to 10 ms · jobs a second of one core, roughly
WARM_UP_PUSHES = 20  # pushes that are not counted: the first ones pay for connections
SPREAD_QUEUES, SPREAD_CLASSES = 1_000, 200
JOBS_IN_A_ROW = 10  # jobs of one kind in a row, where there are many kinds
ORDER = '{"id": 4711, "customer": "Ada Lovelace", "at": "2026-11-23T01:15:03Z", "items": [17, 4, 9], "total": 129.9}'
ARGUMENTS: dict[str, tuple[str, ...]] = {"lock": (), "usual": (ORDER,)}  # of the jobs that do something
PACES = {"kiqcluster": {"lock": 70_000, "usual": 15_000}, "sidekiq": {"lock": 8_000, "usual": 6_000}}  # of one process


def enqueued(stage: Stage, peer: Peer, job: str, *arguments: float | str, count: int, mark: str = "mark") -> Filled:
    """Enqueue about `count` jobs of one kind, with marks among them, and nothing else; no worker runs yet."""
    stage.clear()
    with stage.pusher(peer) as pusher:
        return fill(pusher, job, *arguments, count=count, mark=mark)


def run_filled(stage: Stage, peer: Peer, shape: Shape, filled: Filled, url: str | None = None) -> Figures:
    """Run what was enqueued; return its rate and costs."""
    with stage.workers(peer, shape, url) as workers:
        costs = observe(stage, workers, 1, filled.marks, filled.jobs(filled.marks))
    return {"rate": rate_of(filled, stage.ledger.entries("mark")), **costs}


def noop_jobs(stage: Stage, peer: Peer, scale: Scale, shape: Shape, url: str | None = None) -> Figures:
    filled = enqueued(stage, peer, "noop", count=int(peer.pace * scale.seconds * shape.processes))
    return run_filled(stage, peer, shape, filled, url)


def noop(stage: Stage, peer: Peer, scale: Scale) -> Figures:
    return noop_jobs(stage, peer, scale, Shape())


def noop_in_two(stage: Stage, peer: Peer, scale: Scale) -> Figures:
    return noop_jobs(stage, peer, scale, Shape(processes=2))


def noop_bound(stage: Stage, peer: Peer, scale: Scale) -> Figures:
    return noop_jobs(stage, peer, scale, bound())


def bound() -> Shape:
    """Return the shape of one process that is bound to the last core."""
    return Shape(cpus=str(max(os.sched_getaffinity(0))))


def noop_logged(stage: Stage, peer: Peer, scale: Scale) -> Figures:
    return noop_jobs(stage, peer, scale, Shape(log_level="info"))


def noop_far(stage: Stage, peer: Peer, scale: Scale) -> Figures:
    """The same jobs close to Redis, through a proxy, and through one that takes its time."""
    near = noop_jobs(stage, peer, scale, Shape())
    with stage.server.far_away(0.0) as url:
        proxied = noop_jobs(stage, peer, scale, Shape(), url)
    with stage.server.far_away(LATENCY_SECONDS) as url:
        far = noop_jobs(stage, peer, scale, Shape(), url)
    return {
        **far,
        "near": near["rate"],
        "proxied": proxied["rate"],
        "kept": far["rate"] / near["rate"],
        "kept_of_proxied": far["rate"] / proxied["rate"],
    }


def real_jobs(job: str, stage: Stage, peer: Peer, scale: Scale, shape: Shape) -> Figures:
    """Run jobs that do something."""
    count = int(PACES[peer.name][job] * scale.seconds)
    runner = REAL if peer.name == REAL.name else peer
    filled = enqueued(stage, runner, job, *ARGUMENTS[job], count=count, mark=f"mark_{job}")
    return run_filled(stage, runner, shape, filled)


def lock(stage: Stage, peer: Peer, scale: Scale) -> Figures:
    return real_jobs("lock", stage, peer, scale, Shape())


def lock_bound(stage: Stage, peer: Peer, scale: Scale) -> Figures:
    return real_jobs("lock", stage, peer, scale, bound())


def usual(stage: Stage, peer: Peer, scale: Scale) -> Figures:
    return real_jobs("usual", stage, peer, scale, Shape())


def usual_bound(stage: Stage, peer: Peer, scale: Scale) -> Figures:
    return real_jobs("usual", stage, peer, scale, bound())


def naps(stage: Stage, peer: Peer, scale: Scale) -> Figures:
    shape = Shape(concurrency=25)
    ideal = shape.concurrency / SLEEP_JOB_SECONDS
    filled = enqueued(stage, peer, "sleep", SLEEP_JOB_SECONDS, count=int(min(peer.pace, ideal) * scale.seconds))
    figures = run_filled(stage, peer, shape, filled)
    return {**figures, "of_ideal": figures["rate"] / ideal}


def async_naps(stage: Stage, peer: Peer, scale: Scale) -> Figures:
    """Run async jobs that wait, many at once in one process."""
    peer = AWAITING[peer.name]
    filled = enqueued(stage, peer, "sleep", SLEEP_JOB_SECONDS, count=int(peer.pace * scale.seconds))
    return run_filled(stage, peer, Shape(concurrency=ASYNC_JOBS), filled)


def cpu(stage: Stage, peer: Peer, scale: Scale) -> Figures:
    """Run jobs that compute: in one thread, in two threads of one process, in two processes."""
    shapes = {
        "one": Shape(concurrency=1),
        "threads": Shape(concurrency=2),
        "processes": Shape(processes=2, concurrency=1),
    }
    figures: Figures = {}
    for name, shape in shapes.items():
        filled = enqueued(stage, peer, "burn", BURN_STEPS, count=int(BURN_PACE * scale.seconds), mark="mark_burn")
        figures[name] = run_filled(stage, peer, shape, filled)["rate"]
    return {
        **figures,
        "threads_gain": figures["threads"] / figures["one"],
        "processes_gain": figures["processes"] / figures["one"],
    }


def enqueue(stage: Stage, peer: Peer, scale: Scale) -> Figures:
    """Push while no worker runs, and make sure that all has arrived."""
    stage.clear()
    single, bulk = int(6_000 * scale.seconds), int(peer.bulk_pace * scale.seconds)
    with stage.pusher(peer) as pusher:
        pusher.push_bulk("noop", count=WARM_UP_PUSHES)
        pusher.push("noop", count=WARM_UP_PUSHES)
        with disturbance() as figures:
            figures["single"] = single / pusher.push("noop", count=single)
            if bulk:
                figures["bulk"] = bulk / pusher.push_bulk("noop", count=bulk)
    if (stored := stage.queued(peer)) != 2 * WARM_UP_PUSHES + single + bulk:
        raise Failed(f"only {stored} of {2 * WARM_UP_PUSHES + single + bulk} jobs were enqueued")
    return figures


def growth(stage: Stage, peer: Peer, scale: Scale) -> Figures:
    """CPU per job, the worker's and Redis' together: over that of a short queue, of one queue, of one class."""
    count = int(peer.pace * scale.seconds)
    queues = [(f"noop@queue{number}", f"mark@queue{number}") for number in range(SPREAD_QUEUES)]
    # As many entries in each, and so as many marks: these cost more than what they stand among.
    classes = [(f"noop_{number % SPREAD_CLASSES}", "mark") for number in range(SPREAD_QUEUES)]
    one = spread(stage, classes[:1] * SPREAD_QUEUES, count, Shape())
    return {
        "depth": deep(stage, peer, scale),
        "queues": spread(stage, queues, count, Shape(queues=",".join(f"queue{n}" for n in range(SPREAD_QUEUES)))) / one,
        "classes": spread(stage, classes, count, Shape()) / one,
        "one": one,
    }


def deep(stage: Stage, peer: Peer, scale: Scale) -> float:
    """Return what a job costs while the queue is deepest, over what it costs in the last tenth of it."""
    filled = enqueued(stage, peer, "noop", count=scale.depth)
    tenth = filled.marks // 10
    with stage.workers(peer, Shape()) as workers:
        deepest = observe(stage, workers, 1, 1 + tenth, filled.every * tenth)
        shallow = observe(stage, workers, filled.marks - tenth, filled.marks, filled.every * tenth)
    return cost(deepest) / cost(shallow)


def spread(stage: Stage, kinds: Sequence[tuple[str, str]], count: int, shape: Shape) -> float:
    """Return what a job costs when `count` of them are of many kinds, well mixed.

    kinds: names of no-op jobs, and of the mark that goes first and last where the job goes.
    """
    stage.clear()
    with stage.pusher(SPREAD) as pusher:
        for _, mark in kinds:
            pusher.push(mark)
        rounds = max(1, count // (len(kinds) * JOBS_IN_A_ROW))
        for _ in range(rounds):
            for job, _ in kinds:
                pusher.push_bulk(job, count=JOBS_IN_A_ROW)
        for _, mark in kinds:
            pusher.push(mark)
    with stage.workers(SPREAD, shape) as workers:
        marks = 2 * len(kinds)
        return cost(observe(stage, workers, 1, marks, rounds * len(kinds) * JOBS_IN_A_ROW + marks))


def cost(figures: Figures) -> float:
    return figures["worker_cpu"] + figures["redis_cpu"]
