"""Typed arguments: what a push and a run of a typed job cost in this process, beside an untyped one; without Redis."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from statistics import median
from typing import Any

from benchmarks.measure import FULL, Figures, Scale
from benchmarks.peers import Peer
from benchmarks.stage import Stage
from kiqcluster import job
from kiqcluster.client.draft import Draft, Drafts
from kiqcluster.client.preparation import prepare, prepare_all
from kiqcluster.job import JobFunction
from kiqcluster.process.runtime import current_setup

__all__ = ["JOBS", "STEPS", "typed_arguments"]

ROUNDS, CALLS = 15, 2_000
FEW_ROUNDS, FEW_CALLS = 3, 100


@dataclass
class Line:
    article: str
    price: Decimal
    count: int = 1


@dataclass
class Order:
    id: int
    placed_at: datetime
    lines: list[Line]


@job
def untyped(order: dict[str, Any], due: str) -> None: ...


@job
def one_date(order: dict[str, Any], due: date) -> None: ...


@job
def one_order(order: Order, due: str) -> None: ...


STORED: dict[str, Any] = {
    "id": 7,
    "placed_at": "2026-11-20T12:00:00Z",
    "lines": [{"article": "a", "price": "1.50", "count": 1}] * 3,
}
ORDER = Order(7, datetime(2026, 11, 20, 12, tzinfo=UTC), [Line("a", Decimal("1.50"))] * 3)
# what it has → the job
JOBS: dict[str, tuple[JobFunction[..., Any], Sequence[Any]]] = {
    "untyped": (untyped, (STORED, "2026-12-01")),
    "date": (one_date, (STORED, date(2026, 12, 1))),
    "order": (one_order, (ORDER, "2026-12-01")),
}


# figure → what it is the cost of, in microseconds a job
STEPS = {"push": "push", "bulk": "push in a bulk", "run": "run"}


def typed_arguments(_stage: Stage, _peer: Peer, scale: Scale) -> Figures:
    """Return the microseconds that a job costs here: its preparation for a push, for one of many, and its call."""
    rounds, calls = (ROUNDS, CALLS) if scale.seconds >= FULL.seconds else (FEW_ROUNDS, FEW_CALLS)
    figures: Figures = {}
    for name, (function, arguments) in JOBS.items():
        for step, action in actions(function, tuple(arguments), calls).items():
            figures[f"{step}_{name}"] = cost(action, rounds, calls)
    return figures


def actions(function: JobFunction[..., Any], given: tuple[Any, ...], calls: int) -> dict[str, Callable[[], None]]:
    """Return each step of STEPS, done so many times."""
    definition, setup = function.definition, current_setup()
    stored = definition.positional(given, {})

    def push() -> None:
        for _ in range(calls):
            prepare(setup, Draft(definition.name, definition.options, definition.positional(given, {}), definition))

    def bulk() -> None:
        prepare_all(setup, Drafts(definition.name, definition.options, [given] * calls, definition))

    def run() -> None:
        for _ in range(calls):
            _, perform = definition.prepare()
            perform(*stored)

    return {"push": push, "bulk": bulk, "run": run}


def cost(action: Callable[[], None], rounds: int, calls: int) -> float:
    """Return the median cost of a call, in microseconds."""
    costs = []
    for _ in range(rounds):
        began = time.perf_counter()
        action()
        costs.append((time.perf_counter() - began) / calls * 1e6)
    return median(costs)
