"""Guarantees: what each costs a no-op job, beside the same job without; and what their seams cost a job that uses none.

No push is a duplicate, and no limit is reached: what is measured is the price of asking.  Sidekiq has the middleware of
ruby/guarded.rb, Dramatiq its own limiters.
"""

from __future__ import annotations

from benchmarks.measure import Figures, Scale, fill
from benchmarks.peers import FEATURELESS, GUARDED, Peer, Shape
from benchmarks.stage import Stage
from benchmarks.throughput import run_filled

__all__ = ["GUARANTEES", "OWN_GUARANTEES", "guarantees", "own_guarantees"]

# The jobs of each peer, and how many of them a process runs in a second, roughly.
GUARANTEES: dict[str, dict[str, int]] = {
    "kiqcluster": {
        "once": 16_000,
        "once_starting": 4_000,
        "limited": 16_000,
        "rated": 6_000,
        "everything": 4_000,
        "timed": 60_000,
        "encrypted": 40_000,
    },
    "sidekiq": {"once": 4_000, "limited": 2_000, "rated": 4_000, "everything": 1_000},
    "dramatiq": {"limited": 1_000, "rated": 1_000},
}
# Those that no peer here has.
OWN_GUARANTEES: dict[str, int] = {
    "single": 12_000,
    "keyed": 9_000,
    "sliding": 5_000,
    "leaky": 5_000,
    "concurrent": 4_000,
    "governed": 30_000,
    "expiring": 40_000,
    "versioned": 50_000,
    "interruptible": 60_000,
    "compressed": 15_000,
}
PLAIN_PACES = {"kiqcluster": 80_000, "sidekiq": 8_000, "dramatiq": 2_000}
PUSHES_PER_SECOND = 3_000  # one by one, roughly


def guarantees(stage: Stage, peer: Peer, scale: Scale) -> Figures:
    """Return the rates of jobs with each guarantee, in jobs a second, and over that of a plain one."""
    guarded = GUARDED[peer.name]
    plain = rate(stage, guarded, "plain", PLAIN_PACES[peer.name], scale)
    figures = {"plain": plain}
    for job, pace in GUARANTEES[peer.name].items():
        figures[job] = rate(stage, guarded, job, pace, scale)
        figures[f"{job}_kept"] = figures[job] / plain
    if peer.name == FEATURELESS.name:
        figures["featureless"] = rate(stage, FEATURELESS, "plain", PLAIN_PACES[peer.name], scale)
        figures["kept"] = plain / figures["featureless"]
    return {**figures, **pushes(stage, guarded, scale)}


def own_guarantees(stage: Stage, peer: Peer, scale: Scale) -> Figures:
    """Return the rates of jobs with guarantees that no peer has, over that of a plain one, in jobs a second."""
    guarded = GUARDED[peer.name]
    plain = rate(stage, guarded, "plain", PLAIN_PACES[peer.name], scale)
    rates = {job: rate(stage, guarded, job, pace, scale) for job, pace in OWN_GUARANTEES.items()}
    return {"plain": plain, **rates, **{f"{job}_kept": each / plain for job, each in rates.items()}}


def rate(stage: Stage, peer: Peer, job: str, pace: int, scale: Scale) -> float:
    stage.clear()
    with stage.pusher(peer) as pusher:
        filled = fill(pusher, job, count=int(pace * scale.seconds))
    return run_filled(stage, peer, Shape(), filled)["rate"]


def pushes(stage: Stage, peer: Peer, scale: Scale) -> Figures:
    """Return how many pushes a second one client makes, one by one: plain ones, and those that take a lock."""
    stage.clear()
    count = int(PUSHES_PER_SECOND * scale.seconds)
    with stage.pusher(peer) as pusher:
        pusher.push("mark", count=20)
        figures = {"push": count / pusher.push("plain", count=count)}
        if "once" in GUARANTEES[peer.name]:
            figures["push_once"] = count / pusher.push("once", count=count)
    return figures
