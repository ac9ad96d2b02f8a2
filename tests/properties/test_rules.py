"""The rules of docs/engine.md under walks at random: freeze of a process and of a host, kill, lost reply, late command,
outage, fail-over, a step of the server's clock, beats and sweeps.

They strand, lose and double nothing; with any one of R1, R2, R3, R4 and R6 taken out, they do.  Other walks have
limited jobs too: never do too many run, and no place and no parked job is left; without a rule of limits.py, some are.
KIQ_SEED=<n> repeats a run, KIQ_CHAOS=full walks further.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

import pytest

from kiqcluster.store import Store
from tests.chaos.scale import sized
from tests.properties.limits import CLOSED, GRANTS, RULES, SLOTS, Violation, taken_out
from tests.properties.model import KINDS, QUEUES, SILENCE, SMALL_BATCH, Fault, Process, Wire, World

pytestmark = pytest.mark.timeout(sized(120, 3_600))
WALK = 100  # steps until the faults end and everything must come to rest
FLEET = 3  # processes that are awake at the most
BUDGET = 100_000  # steps within which a missing rule must show; it does after some hundred, R1 after some thousand
CHECK = 5  # steps between two looks at the whole
NO_CHANGE: Mapping[str, float] = {}
LIMITED = {  # steps that have other weights where limited jobs are looked at
    "begin": 30,
    "release": 4,
    "finish": 8,
    "outage": 0.2,
    "fail_over": 1,
    "replicate": 3,
    "cancel": 3,
    "close_or_open": 1,
    "set_limit": 1,
}


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kiqcluster.store.engine.engine.MAX_RETURNED", SMALL_BATCH)
    monkeypatch.setattr("kiqcluster.store.engine.settle_calls.MAX_OUTCOMES", SMALL_BATCH)


class Walk:
    """One row of random steps from an empty server."""

    def __init__(self, store: Store, rng: Random, without: str = "", more: Mapping[str, float] = NO_CHANGE) -> None:
        self.rng = rng
        self.world = World(store, without)
        self.client = Wire(self.world)
        self.world.largest = rng.choice((1, 2))
        self.has_limits = bool(more)
        self.names: list[str] = []
        self.steps: dict[Callable[[], None], float] = {
            self.push: 8,
            self.push_unique: 3,
            self.round: 34,
            self.begin: 0,
            self.release: 0,
            self.finish: 24,
            self.cancel: 0,
            self.close_or_open: 0,
            self.set_limit: 0,
            self.expire: 2,
            self.arm: 4,
            self.ring: 7,
            self.arrive: 6,
            self.forget: 6,
            self.freeze: 2,
            self.thaw: 3,
            self.kill: 1.5,
            self.stop: 1.5,
            self.spawn: 4,
            self.sweep: 4,
            self.look: 4,
            self.step_clock: 1,
            self.freeze_host: 0.4,
            self.quiet: 1,
            self.resume: 2,
            self.make_uncertain: 4,
            self.poll: 3,
            self.outage: 1,
            self.replicate: 2,
            self.fail_over: 0.3,
        }

        self.steps.update({step: more[step.__name__] for step in self.steps if step.__name__ in more})
        if without == "R4":  # a settle that ignores who holds what brings back what a fail-over has lost, too
            del self.steps[self.fail_over]

    def go(self, steps: int) -> None:
        """Walk, and come to rest.  Raises Violation."""
        choices = self.rng.choices(list(self.steps), list(self.steps.values()), k=steps)
        for number, step in enumerate(choices):
            self.names.append(step.__name__)
            step()
            if number % CHECK == 0:
                self.world.check()
        self.names.append("calm")
        self.world.calm(self.rng)

    def somebody(self) -> Process | None:
        awake = self.world.awake()
        return self.rng.choice(awake) if awake else None

    def fault(self) -> Fault:
        return self.rng.choice(list(Fault)) if self.rng.random() < 0.2 else Fault.NONE

    # steps

    def push(self) -> None:
        kind = self.rng.choice(("job", "limited")) if self.has_limits else "job"
        self.world.push(self.rng.randint(1, 4), self.rng.choice(QUEUES), kind)

    def push_unique(self) -> None:
        self.client.fault = self.fault()
        self.world.push_unique(self.client, self.rng.choice(QUEUES))
        self.client.fault = Fault.NONE

    def begin(self) -> None:
        process = self.somebody()
        if process and (tokens := [token for token in process.unfinished() if not process.has_begun(token)]):
            process.begin(self.rng.choice(tokens), self.fault())

    def release(self) -> None:
        if process := self.somebody():
            process.release(self.fault())

    def cancel(self) -> None:
        self.world.cancel(self.rng.randint(1, 4))

    def close_or_open(self) -> None:
        """Have limited jobs deferred for a while."""
        self.world.raw(("SET", CLOSED, "1") if self.rng.random() < 0.3 else ("DEL", CLOSED))

    def set_limit(self) -> None:
        """Have another limit in force for a while."""
        self.world.set_limit(self.rng.choice((None, None, -1, 0, 1, 3)))

    def expire(self) -> None:
        self.world.expire()

    def round(self) -> None:
        if process := self.somebody():
            process.round(self.rng.choice((None, 0, 1, 2, 4)), self.fault())

    def finish(self) -> None:
        process = self.somebody()
        if process and (tokens := process.unfinished()):
            process.finish(self.rng.choice(tokens), self.rng.choice(KINDS), self.fault())

    def arm(self) -> None:
        if process := self.somebody():
            process.arm(self.rng.choice(QUEUES))

    def ring(self) -> None:
        if self.world.armed:
            self.world.ring(self.rng.randrange(len(self.world.armed)))

    def arrive(self) -> None:
        if self.world.late:
            self.world.arrive(self.rng.randrange(len(self.world.late)))

    def forget(self) -> None:
        if self.world.to_forget:
            self.world.forget(self.rng.randrange(len(self.world.to_forget)))

    def freeze(self) -> None:
        if process := self.somebody():
            process.is_frozen = True

    def freeze_host(self) -> None:
        """Freeze several at once."""
        for process in self.world.awake()[::2]:
            process.is_frozen = True

    def look(self) -> None:
        if process := self.somebody():
            process.look(self.fault())

    def step_clock(self) -> None:
        """Set the server's clock: forward, so that everybody looks silent, or back."""
        self.world.pass_time(self.rng.choice((2 * SILENCE, 2 * SILENCE, -3_600.0)))

    def thaw(self) -> None:
        frozen = [process for process in self.world.processes if process.is_alive and process.is_frozen]
        if frozen:
            self.rng.choice(frozen).is_frozen = False

    def kill(self) -> None:
        if process := self.somebody():
            process.die()

    def stop(self) -> None:
        if process := self.somebody():
            process.stop(self.fault())

    def spawn(self) -> None:
        if len(self.world.awake()) < FLEET:
            self.world.spawn()

    def sweep(self) -> None:
        """Recover a member: one that is gone or frozen, sometimes one that is only slow."""
        process = self.somebody()
        if not process:
            return
        awake = {each.member.identity for each in self.world.awake()}
        everybody = self.world.scores() if not self.world.is_away else {}
        candidates = [name for name in everybody if name not in awake or self.rng.random() < 0.25]
        if candidates:
            identity = self.rng.choice(candidates)
            process.sweep(identity, self.fault(), self.rng.choice((None, everybody[identity], 0)))

    def quiet(self) -> None:
        if process := self.somebody():
            process.give_back()

    def resume(self) -> None:
        if process := self.somebody():
            process.quiet = False

    def make_uncertain(self) -> None:
        if process := self.somebody():
            process.unsure = True

    def poll(self) -> None:
        if process := self.somebody():
            process.poll(self.fault())

    def outage(self) -> None:
        self.world.is_away = not self.world.is_away

    def replicate(self) -> None:
        self.world.replicate()

    def fail_over(self) -> None:
        if self.world.replica:
            self.world.fail_over()
            for process in self.world.awake():
                process.unsure |= self.rng.random() < 0.5  # its heartbeat has found another server


def begun(world: World, count: int) -> tuple[Process, list[str]]:
    """Return a process with so many limited jobs, and the tokens of those that run; the others are parked."""
    process = world.spawn()
    world.push(count, QUEUES[0], "limited")
    for wanted in (0, count):
        process.round(wanted)
    running = [token for token in process.unfinished() if process.begin(token)]
    process.round(None)
    world.check()
    return process, running


def fail_over_after_a_settle(world: World) -> None:
    """A fail-over brings settled units back, with their places; their process has one of them given back."""
    process, running = begun(world, 3)
    world.replicate()
    process.finish(running[0], "done")
    process.round(None)
    world.fail_over()
    process.unsure = True
    process.round(0)
    world.check()
    world.calm(Random(1))


def cancel_who_is_next(world: World) -> None:
    """The parked jobs that are granted a place are cancelled; the next one must not wait for them."""
    process, running = begun(world, 5)
    world.cancel(2)
    for token in running:
        process.finish(token, "done")
    world.calm(Random(1))


def end_before_another_is_parked(world: World) -> None:
    """The last place is free again before the job is parked that did not find one."""
    world.largest = 1
    process, (running,) = begun(world, 1)
    world.push(1, QUEUES[0], "limited")
    process.round(1)
    assert not process.begin(process.unfinished()[-1])
    parking, process.outcomes = process.outcomes, []
    process.finish(running, "done")
    process.round(None)
    process.outcomes = parking
    process.round(None)
    world.calm(Random(1))


def park_again(world: World) -> None:
    """Two are on their way when the limit is lowered: the one that finds no room stands where it has stood."""
    process, running = begun(world, 6)
    line = world.line()
    for token in running:
        process.finish(token, "done")
    process.round(None)
    world.set_limit(1)
    process.round(2)
    assert sorted(process.begin(token) for token in process.unfinished()) == [False, True]
    process.round(None)
    if world.line() != [job for job in line if job in world.line()]:
        raise Violation(f"others are overtaken by those in front: {world.line()}")
    world.calm(Random(1))


def overtake(world: World) -> None:
    """The next of those that wait has not come back for long; a job that comes later is there first."""
    world.largest = 1
    process, (running,) = begun(world, 4)
    process.finish(running, "done")
    process.round(None)
    for digest in world.raw(("ZRANGE", GRANTS, 0, -1))[0]:
        world.raw(("ZADD", GRANTS, 1, digest))
    world.push(1, QUEUES[1], "limited")
    process.round(4)
    later = max(process.unfinished(), key=lambda token: process.held[token].payload)
    assert process.held[later].payload not in world.line()
    process.begin(later)
    world.calm(Random(1))


SCENES = {
    "who comes later parks behind": overtake,
    "a job that is parked again keeps its position": park_again,
    "parking looks for room": end_before_another_is_parked,
    "resync releases": fail_over_after_a_settle,
    "a job that is refused lets another have its grant": cancel_who_is_next,
}


def walk_until(store: Store, seed: str, steps: int, without: str = "", more: Mapping[str, float] = NO_CHANGE) -> int:
    """Walk so many steps in all, from an empty server each time; return how many.  Raises Violation.

    more: other weights of steps.
    """
    walked = 0
    while walked < steps:
        walk = Walk(store, Random(f"{seed} {walked}"), without, more)
        try:
            walk.go(WALK)
        except Violation as error:
            walked += len(walk.names)
            raise Violation(f"{error} (after {walked} steps; the last ones: {', '.join(walk.names[-12:])})") from error
        walked += len(walk.names)
    return walked


def test_the_rules_strand_lose_and_double_nothing(store: Store, seed: str) -> None:
    print(f"KIQ_SEED={seed}")

    walked = walk_until(store, seed, sized(6_000, 2_000_000))

    print(f"{walked} steps")


@pytest.mark.parametrize(
    ("rule", "harm"),
    [
        ("R1", "stranded"),
        pytest.param("R2", "stranded", marks=pytest.mark.full),
        pytest.param("R3", "stranded", marks=pytest.mark.full),
        ("R4", "in several places|are gone"),
        pytest.param("R6", "stranded", marks=pytest.mark.full),
    ],
)
def test_without_one_rule_something_is_stranded_lost_or_doubled(store: Store, seed: str, rule: str, harm: str) -> None:
    print(f"KIQ_SEED={seed}")

    with pytest.raises(Violation, match=harm) as caught:
        walk_until(store, seed, BUDGET, without=rule)

    print(f"without {rule}: {caught.value}")


def test_no_more_limited_jobs_run_than_may_and_none_stays_parked(store: Store, seed: str) -> None:
    print(f"KIQ_SEED={seed}")

    walked = walk_until(store, seed, sized(3_000, 1_000_000), more=LIMITED)

    print(f"{walked} steps")


def test_a_place_whose_release_a_fail_over_has_lost_is_free_after_the_next_resync(store: Store) -> None:
    world = World(store)
    process, (first, *_) = begun(world, 2)
    process.finish(first, "done")
    world.replicate()
    process.release()
    world.fail_over()
    process.round(None)
    holder = f"{process.member.identity}/{first}".encode()
    assert holder in world.raw(("SMEMBERS", SLOTS))[0]

    process.unsure = True
    process.round(0)

    assert holder not in world.raw(("SMEMBERS", SLOTS))[0]
    world.calm(Random(1))


WALKED = [rule for rule in RULES if rule not in SCENES]


@pytest.mark.parametrize("rule", [*WALKED[:4], *(pytest.param(rule, marks=pytest.mark.full) for rule in WALKED[4:])])
def test_without_one_rule_of_limits_too_many_run_or_something_is_left(store: Store, seed: str, rule: str) -> None:
    print(f"KIQ_SEED={seed}")

    with taken_out(rule), pytest.raises(Violation, match=RULES[rule][-1]) as caught:
        walk_until(store, seed, BUDGET, more=LIMITED)

    print(f"without this: {rule}: {caught.value}")


@pytest.mark.parametrize("rule", SCENES)
def test_a_rule_of_limits_that_chance_seldom_needs(store: Store, rule: str) -> None:
    SCENES[rule](World(store))

    with taken_out(rule), pytest.raises(Violation, match=RULES[rule][-1]):
        SCENES[rule](World(store))
