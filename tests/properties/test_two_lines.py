"""Jobs with both a limit of their class and a place among their equals wait in two lines, and all get through.

1. Never do more jobs hold a place than the limit allows, and never two equal ones.
2. All jobs run, each once.
3. A job begins a few times only: it does not go from one line to the other and back while others run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from kiqcluster import Job
from kiqcluster.application.registry import Definition, Registry
from kiqcluster.features.stacks import current_stacks
from kiqcluster.process.runtime import Run, Setup
from kiqcluster.sidekiq.outcome import Done, Effect, Parked
from kiqcluster.store import Store
from kiqcluster.store.engine.units import Unit
from tests.chaos.scale import sized
from tests.in_process_worker import Worker

pytestmark = pytest.mark.timeout(sized(120, 3_600))
WALKS = sized(2, 40)
EQUALS = OTHERS = sized(40, 100)
LIMIT, THREADS = 2, 10
MAX_BEGINS = 8  # of a job, on average: seldom 5, and 12 to 42 where jobs go to and fro


class Walk:
    """One walk.  The jobs of a queue are taken, begin, and end, in a random order."""

    def __init__(self, report: type[Job], worker: Worker, rng: Random) -> None:
        self.definition: Definition = report.definition
        self.worker, self.rng = worker, rng
        self.taken: list[Unit] = []
        self.running: list[Unit] = []
        self.ended: list[Any] = []
        self.begins = 0

    def take(self) -> None:
        if len(self.taken) + len(self.running) < THREADS:
            self.taken += self.worker.take_any()

    def begin(self) -> None:
        if not self.taken:
            return
        unit = self.taken.pop(self.rng.randrange(len(self.taken)))
        rows = self.rows(unit)
        verdict = self.worker.engine.begin_run(unit, rows)
        self.begins += 1
        if verdict.action == "go":
            self.running.append(unit)
            return
        assert verdict.action == "park"
        assert verdict.row is not None
        largest, name, _ = verdict.row.arguments
        self.worker.settle(unit, Parked(verdict.row.key, int(largest), str(name)))

    def end(self) -> None:
        if self.running:
            unit = self.running.pop(self.rng.randrange(len(self.running)))
            assert self.worker.settle(unit, Done()) == 1
            self.ended.append(number_of(unit))

    def rows(self, unit: Unit) -> list[Effect]:
        payload = json.loads(unit.payload)
        run = Run(payload, unit.queue, self.definition, None)
        rows: list[Effect] = []
        for feature in current_stacks().run.of(self.definition, payload).begins:
            found = feature.on_begin(run)
            assert isinstance(found, list | tuple)
            rows += found
        return rows

    def check(self) -> None:
        assert len(self.running) <= LIMIT, "law 1"
        numbers = [number_of(unit) for unit in self.running]
        assert len(set(numbers)) == len(numbers), "law 1: equal jobs"


def number_of(unit: Unit) -> Any:
    return json.loads(unit.payload)["args"][0]


ORDERS: dict[str, Callable[[list[int], Random], object]] = {
    "equal ones first": lambda numbers, _: numbers.sort(),
    "equal ones last": lambda numbers, _: numbers.sort(reverse=True),
    "mixed": lambda numbers, rng: rng.shuffle(numbers),
}


@pytest.mark.parametrize("order", ORDERS)
def test_jobs_of_two_lines_all_run_after_a_few_begins(
    store: Store, setup: Setup, registry: Registry, seed: str, order: str
) -> None:
    print(f"KIQ_SEED={seed}")

    class Report(Job, name="Report", concurrency_limit=LIMIT, deduplicate="while_executing"):
        def perform(self, number: int) -> None: ...

    for walk in range(WALKS):
        rng = Random(f"{seed} {order} {walk}")
        wanted = [0] * EQUALS + list(range(1, OTHERS + 1))
        ORDERS[order](wanted, rng)
        Report.perform_bulk([[number] for number in wanted])
        walker = Walk(Report, Worker(store, setup, registry, f"host:{walk}:aaaaaaaaaaaa"), rng)
        weights = (5, 5, (0.1, 3)[walk % 2])  # long jobs, short ones
        idle = 0
        while len(walker.ended) < len(wanted):
            before = (walker.begins, len(walker.taken), len(walker.ended))
            rng.choices([walker.take, walker.begin, walker.end], weights)[0]()
            walker.check()
            idle = idle + 1 if before == (walker.begins, len(walker.taken), len(walker.ended)) else 0
            assert idle < 5_000, f"law 2: {len(walker.ended)} have ended, the others are stranded"
        assert sorted(walker.ended) == sorted(wanted), "law 2"
        print(f"{weights}: {walker.begins / len(wanted):.2f} begins per job")
        assert walker.begins <= MAX_BEGINS * len(wanted), f"law 3: {walker.begins} begins"
