"""The rules of docs/engine.md, walked by workers with the real coordinator, fetch and scripts.

Takers and the manager go on in any order, and in the middle of each other's round trips.  Replies are lost, late,
refused or forbidden; processes are killed, frozen, stopped and recovered.  No job is lost, left, or run twice while
both processes live, and never do too many limited jobs run.
KIQ_SEED=<n> repeats a run, KIQ_CHAOS=full walks further.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from kiqcluster.store import Store
from kiqcluster.worker.fetch import coordinator as coordinator_module
from kiqcluster.worker.fetch.coordinator import FetchCoordinator
from kiqcluster.worker.fetch.fetch import ReliableFetch
from tests.chaos.scale import sized
from tests.properties.fleet import MOVES, Fleet, Worker
from tests.properties.limits import CLOSED, Violation
from tests.properties.model import QUEUES, SMALL_BATCH

pytestmark = pytest.mark.timeout(sized(120, 3_600))
WALK = 150  # choices of a walk, until the faults end; most of them are steps of a worker
MORE_WALKS = 100  # at most, until each move was seen
FLEET = 3  # workers that are awake at the most
BUDGET = 900  # walks within which a missing rule must show
CHECK = 5  # choices between two looks at the whole


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kiqcluster.store.engine.engine.MAX_RETURNED", SMALL_BATCH)
    monkeypatch.setattr("kiqcluster.store.engine.settle_calls.MAX_OUTCOMES", SMALL_BATCH)


class Walk:
    """One row of random choices from an empty server."""

    def __init__(self, store: Store, rng: Random, lost_wakes: float = 0.0) -> None:
        self.rng = rng
        self.fleet = Fleet(store, rng, lost_wakes)
        self.names: list[str] = []
        self.choices: dict[Callable[[], object], float] = {
            self.step: 100,
            self.push: 8,
            self.ring: 8,
            self.pass_time: 8,
            self.spawn: 3,
            self.arrive: 3,
            self.freeze: 1,
            self.thaw: 2,
            self.freeze_for_too_long: 1,
            self.kill: 1,
            self.stop: 0.7,
            self.recover: 3,
            self.quiet: 0.7,
            self.resume: 2,
            self.make_uncertain: 1,
            self.outage: 0.5,
            self.forbid: 0.5,
            self.close_or_open: 0.5,
            self.poll: 2,
        }

    def go(self, steps: int) -> None:
        """Walk, and come to rest.  Raises Violation."""
        self.fleet.spawn()
        self.fleet.happen = self.choose
        choices = self.rng.choices(list(self.choices), list(self.choices.values()), k=steps)
        for number, choice in enumerate(choices):
            self.names.append(choice.__name__)
            choice()
            if number % CHECK == 0:
                self.fleet.check()
        self.names.append("calm")
        self.fleet.calm()

    def somebody(self) -> Worker | None:
        awake = self.fleet.awake()
        return self.rng.choice(awake) if awake else None

    # choices

    def choose(self) -> None:
        """Make one choice, in the middle of a round trip."""
        (choice,) = self.rng.choices(list(self.choices), list(self.choices.values()))
        choice()

    def step(self) -> None:
        self.fleet.step()

    def push(self) -> None:
        count = self.rng.choice((1, 1, 3, 12))
        self.fleet.world.push(count, self.rng.choice(QUEUES), self.rng.choice(("job", "job", "limited")))

    def ring(self) -> None:
        if not self.fleet.world.is_away:
            self.fleet.ring()

    def pass_time(self) -> None:
        self.fleet.pass_time(self.rng.choice((0.005, 0.02, 0.1, 1.0)))

    def spawn(self) -> None:
        if len(self.fleet.awake()) < FLEET:
            self.fleet.spawn()

    def arrive(self) -> None:
        if late := self.fleet.world.late:
            self.fleet.world.arrive(self.rng.randrange(len(late)))

    def freeze(self) -> None:
        if worker := self.somebody():
            worker.is_frozen = True
            worker.clock.time += self.rng.choice((0.1, 1.0, 7.0, 12.0))

    def freeze_for_too_long(self) -> None:
        """Freeze a worker until others recover it."""
        if (worker := self.somebody()) and not self.fleet.world.is_away:
            worker.is_frozen = True
            self.fleet.recover(worker)

    def thaw(self) -> None:
        frozen = [worker for worker in self.fleet.workers if worker.is_alive and worker.is_frozen]
        if frozen:
            self.rng.choice(frozen).is_frozen = False

    def kill(self) -> None:
        if worker := self.somebody():
            worker.die()

    def stop(self) -> None:
        if worker := self.somebody():
            worker.step(worker.stop)

    def recover(self) -> None:
        if not self.fleet.world.is_away:
            self.fleet.recover_somebody()

    def quiet(self) -> None:
        if worker := self.somebody():
            worker.fetch.coordinator.quiet()

    def resume(self) -> None:
        if worker := self.somebody():
            worker.fetch.coordinator.resume()

    def make_uncertain(self) -> None:
        if worker := self.somebody():
            worker.fetch.coordinator.mark_uncertain()

    def outage(self) -> None:
        self.fleet.world.is_away = not self.fleet.world.is_away

    def forbid(self) -> None:
        """Have the ACL forbid a queue, or allow it again."""
        queue = QUEUES[1]
        self.fleet.forbidden ^= {f"queue:{queue}"}

    def close_or_open(self) -> None:
        self.fleet.world.raw(("SET", CLOSED, "1") if self.rng.random() < 0.5 else ("DEL", CLOSED))

    def poll(self) -> None:
        if not self.fleet.world.is_away:
            self.fleet.helper.poll()


def walk(store: Store, seed: str, walks: int, lost_wakes: float = 0.0) -> tuple[int, set[tuple[Any, Any, str]]]:
    """Walk so often; return the number of steps, and the moves between states.  Raises Violation."""
    steps, moves = 0, set()
    for number in range(walks):
        each = Walk(store, Random(f"{seed} {number}"), lost_wakes)
        try:
            each.go(WALK)
        except Violation as error:
            raise Violation(f"{error} (walk {number}; the last choices: {', '.join(each.names[-12:])})") from error
        steps += each.fleet.stepped
        moves |= each.fleet.moves
    return steps, moves


def test_workers_lose_double_and_strand_nothing(store: Store, seed: str) -> None:
    print(f"KIQ_SEED={seed}")

    steps, moves = walk(store, seed, sized(15, 5_000))
    for more in range(MORE_WALKS):  # the few walks of the short form may miss a move
        if moves >= MOVES:
            break
        moves |= walk(store, f"{seed} {more}", 1)[1]

    print(f"{steps} steps")
    assert moves >= MOVES


def lose_wakes(_: pytest.MonkeyPatch) -> float:
    """One in ten wakeups of takers is lost."""
    return 0.1


def start_stale_units(monkeypatch: pytest.MonkeyPatch) -> float:
    """A unit starts however long ago it was reserved."""
    monkeypatch.setattr(Worker, "stale_seconds", 1e9)
    return 0


def believe_slow_replies(monkeypatch: pytest.MonkeyPatch) -> float:
    """A reply counts however long it took."""
    monkeypatch.setattr(ReliableFetch, "_confirm", lambda *_: True)
    return 0


def keep_waiting_units(monkeypatch: pytest.MonkeyPatch) -> float:
    """Units at hand wait behind running jobs for ever."""
    monkeypatch.setattr(coordinator_module, "MAX_UNIT_WAIT_SECONDS", 1e9)
    return 0


def report_no_starvation(monkeypatch: pytest.MonkeyPatch) -> float:
    """The manager does not learn that takers wait before empty queues."""
    monkeypatch.setattr(FetchCoordinator, "_report_starvation", lambda _: None)
    return 0


@pytest.mark.parametrize(
    ("take_out", "harm"),
    [
        (lose_wakes, "stranded|not drained"),
        (start_stale_units, "does not hold it any more|stranded"),
        pytest.param(believe_slow_replies, "does not hold it any more|stranded", marks=pytest.mark.full),
        pytest.param(keep_waiting_units, "stranded|not drained", marks=pytest.mark.full),
        pytest.param(report_no_starvation, "stranded|not drained", marks=pytest.mark.full),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_without_one_part_a_job_is_stranded_or_run_by_two(
    store: Store,
    seed: str,
    monkeypatch: pytest.MonkeyPatch,
    take_out: Callable[[pytest.MonkeyPatch], float],
    harm: str | None,
) -> None:
    print(f"KIQ_SEED={seed}")
    lost_wakes = take_out(monkeypatch)

    with pytest.raises(Violation, match=harm) as caught:
        walk(store, seed, BUDGET, lost_wakes)

    print(f"{take_out.__doc__}: {str(caught.value)[:200]} … {str(caught.value)[-200:]}")
