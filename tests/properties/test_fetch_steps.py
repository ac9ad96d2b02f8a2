"""The coordinator under every order of steps that chance finds: nothing is lost, run twice, or left when all is calm.

Where test_fetch_threads.py depends on the luck of real threads, this one chooses who goes on after each step, and so
repeats a failure exactly.  No wakeup of a taker may be lost: nobody sweeps.  KIQ_SEED=<n> repeats the choices.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from kiqcluster.worker.fetch.batch import BatchState
from kiqcluster.worker.fetch.concurrency_limit import ConcurrencyLimit
from kiqcluster.worker.fetch.coordinator import FetchCoordinator
from kiqcluster.worker.fetch.prefetch import Prefetch
from tests.chaos.scale import sized
from tests.unit.worker.fetch.stage import LONG, Stage

pytestmark = pytest.mark.timeout(sized(120, 3_600))
WALKS = sized(15, 1_000)  # for each kind
STEPS = 150  # of a walk, until it becomes calm


class Walk:
    """Random steps of a process, with pushes and faults in between."""

    def __init__(self, rng: Random, takers: int, *, is_faulty: bool) -> None:
        self.rng = rng
        self.stage = Stage(rng)
        self.stage.is_faulty = is_faulty
        self.stage.add_takers(takers)
        self.stage.add_manager()
        self.limited = 0  # steps at which fewer takers could run than there are

    def go(self) -> None:
        for _ in range(STEPS):
            self._happen(self.rng.random())
            if enabled := self.stage.enabled():
                self.stage.step(self.rng.choice(enabled))
            self.limited += self.stage.coordinator.supply.is_watched
        self._become_calm()

    def _happen(self, luck: float) -> None:
        coordinator = self.stage.coordinator
        if luck < 0.10:
            self.stage.push(self.rng.choice((1, 1, 1, 20)))
        elif luck < 0.12:
            coordinator.quiet()
        elif luck < 0.14:
            coordinator.resume()
        elif luck < 0.16:
            coordinator.mark_uncertain()
        elif luck < 0.18:
            coordinator.on_wakeup(None)
        elif luck < 0.25:
            self.stage.pass_time()
        elif luck < 0.26:
            self.stage.clock.time += 1.0  # units at hand have waited too long

    def _become_calm(self) -> None:
        """Let everything come to rest, push once more, and end."""
        stage = self.stage
        stage.is_faulty = False
        stage.coordinator.resume()
        stage.run()
        stage.push(3)  # the takers are idle: only an armed wakeup can tell them
        stage.run()
        self._be_busy()
        assert stage.redis.done == Counter(stage.pushed), f"left behind: {stage.describe()}"
        assert not len(stage.in_flight)
        assert stage.coordinator.is_drained()
        stage.end()
        stage.run()
        assert stage.is_over()

    def _be_busy(self) -> None:
        """Give every taker a long job: what has finished is settled all the same."""
        stage = self.stage
        stage.push(2)
        stage.push(len(stage.takers), LONG)
        stage.push(2)
        stage.run()
        assert not stage.in_flight.finished, f"not settled: {stage.describe()}"
        assert not stage.coordinator.supply.units, f"kept from others: {stage.describe()}"
        stage.end_long_jobs()
        stage.run()


@pytest.fixture(autouse=True)
def _random_depth_and_limit(monkeypatch: pytest.MonkeyPatch, seed: str) -> None:
    rng = Random(seed)

    def set_depth(prefetch: Prefetch, *_: object) -> None:
        prefetch.depth = rng.choice((0, 2, 4, 8, 16))

    def set_limit(limit: ConcurrencyLimit, _taken: int) -> None:
        limit.current = rng.choice((1, limit.current, limit.most))

    monkeypatch.setattr(Prefetch, "record_finished", set_depth)
    monkeypatch.setattr(ConcurrencyLimit, "lower", set_limit)


@pytest.mark.parametrize("is_faulty", [False, True], ids=["fine", "faulty"])
@pytest.mark.parametrize("takers", [1, 2, 5])
def test_every_job_is_settled_once_and_every_taker_ends(takers: int, is_faulty: bool, seed: str) -> None:
    print(f"KIQ_SEED={seed}")
    ahead = limited = 0
    for number in range(WALKS):
        walk = Walk(Random(f"{seed} {takers} {is_faulty} {number}"), takers, is_faulty=is_faulty)
        walk.go()
        ahead += walk.stage.sent_ahead
        limited += walk.limited

    assert ahead
    assert limited or takers == 1


@pytest.mark.parametrize("without", ["resync", "wake"])
def test_without_one_part_the_walks_fail(without: str, seed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost reply that is not followed by a resync; and one in ten wakeups of takers that is lost."""
    if without == "resync":
        fail = FetchCoordinator.on_failure
        monkeypatch.setattr(FetchCoordinator, "on_failure", lambda *given, is_lost: fail(*given, is_lost=False))
    else:
        wake, rng = Stage._wake_taker, Random(seed)
        monkeypatch.setattr(Stage, "_wake_taker", lambda stage: rng.random() < 0.1 or wake(stage))

    with pytest.raises(AssertionError):
        for number in range(10 * WALKS):
            Walk(Random(f"{seed} {number}"), 3, is_faulty=True).go()


def test_the_states_of_a_batch_follow_the_diagram(seed: str) -> None:
    """docs/engine/fetching.md draws it."""
    seen: set[tuple[BatchState, BatchState]] = set()

    class Watched(Stage):
        def check(self, before: BatchState) -> None:
            super().check(before)
            seen.add((before, self.coordinator.batches.state))

    for number in range(WALKS):
        rng = Random(f"{seed} {number}")
        walk = Walk(rng, 3, is_faulty=True)
        walk.stage.__class__ = Watched
        walk.go()

    none, flushing, in_transit = BatchState
    moves = {pair for pair in seen if pair[0] is not pair[1]}
    assert moves == {(none, flushing), (flushing, none), (flushing, in_transit), (in_transit, flushing)}
