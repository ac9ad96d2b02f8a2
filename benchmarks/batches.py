"""Batches: what a job costs that is part of one, beside the same job that is not.

Ours is a batch with a status for each job and a callback; Celery's a chord, Dramatiq's a group with a completion
callback.  taskiq has no groups: it keeps the result of each job, which a caller would wait for.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.measure import Figures, Scale, fill
from benchmarks.peers import GROUPED, Peer, Shape
from benchmarks.stage import Stage
from benchmarks.throughput import run_filled

__all__ = ["PACES", "batches"]

# How many plain jobs, and jobs of a batch, one process runs in a second, roughly.
PACES = {"kiqcluster": (80_000, 12_000), "celery": (1_000, 300), "dramatiq": (2_500, 1_200), "taskiq": (3_000, 1_500)}


def batches(stage: Stage, peer: Peer, scale: Scale) -> Figures:
    """Return the rates of both in jobs a second, and what one job more costs in a batch, in microseconds."""
    grouped = GROUPED[peer.name]
    plain_pace, grouped_pace = PACES[peer.name]
    plain = run(stage, grouped, "plain", int(plain_pace * scale.seconds))
    batch = run(stage, with_results(grouped), "grouped", int(grouped_pace * scale.seconds))
    return {
        **batch,
        "plain": plain["rate"],
        "kept": batch["rate"] / plain["rate"],
        "added": 1e6 / batch["rate"] - 1e6 / plain["rate"],
        "added_commands": batch["commands"] - plain["commands"],
    }


def run(stage: Stage, peer: Peer, job: str, count: int) -> Figures:
    stage.clear()
    with stage.pusher(peer) as pusher:
        filled = fill(pusher, job, count=count)
    return run_filled(stage, peer, Shape(), filled)


def with_results(peer: Peer) -> Peer:
    return replace(peer, environment={**peer.environment, "BENCH_RESULTS": "1"})
