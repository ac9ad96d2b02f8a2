"""The rules of hand lists (docs/engine.md, H1 to H6) in scenarios, and under walks at random.

Faults: replies that are lost or late, commands that arrive long after the death of their sender or its recovery, kill,
freeze, beats that fail, quiet, stop, pause, suspects, queues that refuse what is put back.
With all rules no job is lost, stranded, started by who does not hold it or run twice without a cause, and no key of a
hand list stays.  With any part of a rule taken out, its scenario does harm.  KIQ_SEED=<n> repeats a run.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from kiqcluster.store import Store
from tests.chaos.scale import sized
from tests.properties.hand_lists_model import BEATS_ARE_OLD, LOOK, MEMORY, PARTS, HandProcess, HandWorld
from tests.properties.limits import Violation
from tests.properties.model import QUEUES, SILENCE, SMALL_BATCH, Fault

pytestmark = pytest.mark.timeout(sized(120, 3_600))
WALK = 150  # steps until the faults end and everything must come to rest
FLEET = 3  # processes that are awake at the most
CHECK = 10  # steps between two looks at the whole
KINDS = ("done", "done", "done with effects", "retry", "interrupt")


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kiqcluster.store.engine.engine.MAX_RETURNED", SMALL_BATCH)
    monkeypatch.setattr("kiqcluster.store.engine.settle_calls.MAX_OUTCOMES", SMALL_BATCH)
    for name in ("store.engine.wait_lists.HANDS_MEMORY_SECONDS", "worker.fetch.hand_lists.HANDS_MEMORY_SECONDS"):
        monkeypatch.setattr(f"kiqcluster.{name}", MEMORY)
    monkeypatch.setattr("kiqcluster.store.engine.wait_lists.HANDS_LOOK_SECONDS", LOOK)


class Walk:
    """One row of random steps from an empty server."""

    def __init__(self, store: Store, rng: Random, without: str = "") -> None:
        self.rng = rng
        self.world = HandWorld(store, rng, without)
        self.names: list[str] = []
        self.steps: dict[Callable[[], None], float] = {
            self.push: 20,
            self.round: 26,
            self.arm: 28,
            self.read: 12,
            self.start: 20,
            self.finish: 20,
            self.beat: 4,
            self.look: 2,
            self.wait: 12,
            self.wait_long: 2,
            self.arrive: 3,
            self.freeze: 1.5,
            self.thaw: 2,
            self.kill: 1.5,
            self.stop: 1,
            self.spawn: 9,
            self.quiet: 0.7,
            self.resume: 1.5,
            self.make_uncertain: 1,
            self.mute: 0.5,
            self.unmute: 0.5,
            self.pause: 0.7,
            self.unpause: 1,
            self.outage: 0.3,
            self.spoil: 0.6,
            self.mend: 1.5,
        }

    def go(self, steps: int) -> None:
        """Walk, and come to rest.  Raises Violation."""
        self.spawn()
        for number, step in enumerate(self.rng.choices(list(self.steps), list(self.steps.values()), k=steps)):
            self.names.append(step.__name__)
            step()
            if number % CHECK == 0:
                self.world.check()
        self.names.append("calm")
        self.world.calm(self.rng)

    def somebody(self) -> HandProcess | None:
        awake = self.world.awake()
        return self.rng.choice(awake) if awake else None

    def fault(self) -> Fault:
        return self.rng.choice(list(Fault)) if self.rng.random() < 0.15 else Fault.NONE

    # steps of a process

    def round(self) -> None:
        if process := self.somebody():
            process.round(self.rng.choice((None, None, 0, 0, 0, 2)), self.fault())

    def arm(self) -> None:
        if process := self.somebody():
            process.arm_waits(self.fault())
            if process.pending and self.rng.random() < 0.03:
                process.is_frozen = True
            else:
                process.send_waits()

    def read(self) -> None:
        if process := self.somebody():
            process.read_replies()

    def start(self) -> None:
        if process := self.somebody():
            process.start()

    def finish(self) -> None:
        process = self.somebody()
        if process and (tokens := process.unfinished()):
            process.finish(self.rng.choice(tokens), self.rng.choice(KINDS))

    def beat(self) -> None:
        if process := self.somebody():
            process.beat_and_look(self.fault())

    def look(self) -> None:
        if process := self.somebody():
            process.sweep_hands(self.fault())

    def quiet(self) -> None:
        if process := self.somebody():
            process.give_back()

    def resume(self) -> None:
        if process := self.somebody():
            process.quiet = False

    def make_uncertain(self) -> None:
        if process := self.somebody():
            process.unsure = True

    def stop(self) -> None:
        if process := self.somebody():
            process.stop(self.fault())

    # steps of the world

    def push(self) -> None:
        self.world.push(1, self.rng.choice(QUEUES))

    def wait(self) -> None:
        self._pass(self.rng.choice((0.1, 1.0, 3.0, 8.0)))

    def wait_long(self) -> None:
        self._pass(self.rng.choice((20.0, 45.0, 70.0)))

    def _pass(self, seconds: float) -> None:
        """Let time go by; who is awake beats meanwhile."""
        while seconds > 0:
            self.world.pass_seconds(min(seconds, BEATS_ARE_OLD))
            seconds -= BEATS_ARE_OLD
            for process in self.world.awake():
                if self.world.now > process.beat_at + BEATS_ARE_OLD:
                    process.beat_and_look()

    def arrive(self) -> None:
        if self.world.late:
            self.world.arrive(self.rng.randrange(len(self.world.late)))

    def freeze(self) -> None:
        if process := self.somebody():
            process.is_frozen = True

    def thaw(self) -> None:
        frozen = [process for process in self.world.fleet() if process.is_alive and process.is_frozen]
        if frozen:
            process = self.rng.choice(frozen)
            process.is_frozen = False
            process.send_waits()

    def kill(self) -> None:
        """Kill a process; its supervisor may tell another one at once."""
        if process := self.somebody():
            running = process.unfinished()
            process.kill()
            other = self.somebody()
            if other and self.rng.random() < 0.6:
                other.recover(process.member.identity, running, self.fault())

    def spawn(self) -> None:
        if len(self.world.awake()) < FLEET:
            self.world.spawn().round(None, self.fault())

    def mute(self) -> None:
        """Let the beats of a process fail, which works."""
        if process := self.somebody():
            process.is_mute = True

    def unmute(self) -> None:
        if process := self.somebody():
            process.is_mute = False

    def pause(self) -> None:
        self.world.pause(self.rng.choice(QUEUES))

    def unpause(self) -> None:
        self.world.resume(self.rng.choice(QUEUES))

    def spoil(self) -> None:
        """Have a queue refuse what is put back."""
        self.world.spoil(self.rng.choice(("queue:high", "queue:low", "kiq:wake:high")))

    def mend(self) -> None:
        self.world.mend()

    def outage(self) -> None:
        self.world.is_away = not self.world.is_away


def walk_until(store: Store, seed: str, steps: int, without: str = "") -> int:
    """Walk so many steps in all, from an empty server each time; return how many.  Raises Violation."""
    walked = 0
    while walked < steps:
        walk = Walk(store, Random(f"{seed} {walked}"), without)
        try:
            walk.go(WALK)
        except Violation as error:
            walked += len(walk.names)
            raise Violation(f"{error} (after {walked} steps; the last ones: {', '.join(walk.names[-12:])})") from error
        walked += len(walk.names)
    return walked


def test_hand_lists_strand_lose_and_double_nothing(store: Store, seed: str) -> None:
    print(f"KIQ_SEED={seed}")

    walked = walk_until(store, seed, sized(600, 300_000))

    print(f"{walked} steps")


class NoFaults(Random):
    """Chance never strikes: a scenario plans its faults."""

    def random(self) -> float:
        return 0.99

    def choice(self, seq: Any) -> Any:
        return seq[0]


class Scenario:
    """Three processes, and what happens to them.  `idle` waits with hand lists for both queues."""

    def __init__(self, store: Store, without: str) -> None:
        self.world = HandWorld(store, NoFaults(), without)
        self.idle = self.joined()

    def joined(self) -> HandProcess:
        process = self.world.spawn()
        process.round(None)
        return process

    def arm(self, **plan: float) -> None:
        self.world.plan.update(plan)
        self.idle.arm_waits()
        self.idle.send_waits()
        self.world.plan.clear()

    def push(self, **plan: float) -> None:
        self.world.plan.update(plan)
        self.world.push(1, "high")
        self.world.plan.clear()

    def run_what_came(self) -> None:
        self.idle.read_replies()
        self.idle.start_all()

    def pass_seconds(self, seconds: float) -> None:
        """Let time go by; who can, beats."""
        for _ in range(round(seconds)):
            self.world.pass_seconds(1.0)
            for process in self.world.awake():
                if self.world.now >= process.beat_at + BEATS_ARE_OLD:
                    process.beat_and_look()

    def freeze_for(self, seconds: float) -> None:
        self.idle.is_frozen = True
        self.pass_seconds(seconds)
        self.idle.is_frozen = False
        self.idle.send_waits()

    def die_running(self) -> HandProcess:
        """A process dies with a job, and another one recovers it: the job is suspect."""
        victim, witness = self.joined(), self.joined()
        self.world.push(1, "high")
        victim.round(1)
        victim.start()
        (running,) = victim.unfinished()
        victim.kill()
        witness.recover(victim.member.identity, [running])
        self.world.serve()
        return witness

    # one for each part of a rule

    def registered(self) -> None:
        other = self.joined()
        self.arm()
        self.push()
        self.idle.kill()
        other.recover(self.idle.member.identity, [])

    def member(self) -> None:
        self.joined().recover(self.idle.member.identity, [])
        self.arm()
        self.push()
        self.run_what_came()

    def beat(self) -> None:
        self.joined()
        self.idle.is_mute = True
        self.pass_seconds(50)
        self.arm()
        self.pass_seconds(5)
        self.push()
        self.idle.read_replies()
        self.pass_seconds(9)
        self.run_what_came()

    def ends(self) -> None:
        self.joined()
        self.arm()
        self.freeze_for(80)
        self.push()
        self.run_what_came()

    def late_reply(self) -> None:
        self.joined()
        self.arm()
        self.push()
        self.freeze_for(80)
        self.run_what_came()

    def asked(self) -> None:
        self.joined()
        self.idle.arm_waits()
        self.freeze_for(80)
        self.push()
        self.run_what_came()

    def sent_late(self) -> None:
        self.joined()
        self.idle.arm_waits()
        self.freeze_for(SILENCE + MEMORY + 5 * LOOK)
        self.push()
        self.run_what_came()

    def generation(self) -> None:
        self.arm()
        self.push(delay=2.0)
        self.idle.unsure = True
        self.idle.round(None)
        self.pass_seconds(3)
        self.run_what_came()

    def uncertain(self) -> None:
        self.arm()
        self.push()
        self.idle.unsure = True
        self.idle.round(None, Fault.LOST)
        self.run_what_came()

    def lost_reply(self) -> None:
        self.arm()
        self.push(is_lost=1)
        self.run_what_came()

    def late_command(self) -> None:
        self.arm(late=50.0, is_lost=1)
        self.run_what_came()
        self.idle.round(None)
        self.idle.sweep_hands()
        self.pass_seconds(49)
        self.push()
        self.pass_seconds(2)

    def one_wait(self) -> None:
        self.arm()
        self.push(delay=2.0)
        self.world.spoil("queue:high")
        self.idle.unsure = True
        self.idle.round(None)
        self.world.plan.update(is_killed=1)
        self.idle.drop_old_waits()
        self.idle.round(None)
        self.world.mend()
        self.arm()
        self.arm()
        self.push()
        self.run_what_came()
        for token in self.idle.unfinished():
            self.idle.finish(token, "done")
        self.idle.round(None)

    def late_after_death(self, seconds: float = 30.0) -> None:
        other = self.joined()
        self.arm(late=seconds)
        self.idle.kill()
        other.recover(self.idle.member.identity, [])
        self.pass_seconds(seconds - 1)
        self.push()
        self.pass_seconds(2)

    def arm_behind_victim(self) -> None:
        """The victim takes its job before anybody waits; then it dies."""
        victim, witness = self.joined(), self.joined()
        self.push()
        victim.round(1)
        victim.start()
        (running,) = victim.unfinished()
        self.arm()
        victim.kill()
        witness.recover(victim.member.identity, [running])
        self.world.serve()
        self.run_what_came()
        witness.beat_and_look()
        self.world.serve()
        self.run_what_came()

    def armed_beside_suspect(self) -> None:
        witness = self.die_running()
        self.pass_seconds(15)
        self.arm()
        for _ in range(20):
            self.pass_seconds(1)
            self.run_what_came()
        witness.beat_and_look()

    def paused(self) -> None:
        self.world.pause("high")
        self.pass_seconds(1)
        self.arm()
        self.push()
        self.run_what_came()

    def stopped(self) -> None:
        self.joined()
        self.arm()
        self.idle.stop()
        self.push()


SCENARIOS: dict[str, Callable[[Scenario], None]] = {
    "H1 registered": Scenario.registered,
    "H1 member": Scenario.member,
    "H1 beat": Scenario.beat,
    "H2 ends": Scenario.ends,
    "H2 late reply": Scenario.late_reply,
    "H2 send": Scenario.sent_late,
    "H2 asked": Scenario.asked,
    "H2 generation": Scenario.generation,
    "H2 uncertain": Scenario.uncertain,
    "H3 take over": Scenario.lost_reply,
    "H3 look": Scenario.late_command,
    "H3 one wait": Scenario.one_wait,
    "H4 take over": Scenario.registered,
    "H4 look": Scenario.late_after_death,
    "H4 memory": Scenario.late_after_death,
    "H5 wake list": Scenario.arm_behind_victim,
    "H5 stay": Scenario.arm_behind_victim,
    "H5 refuse": Scenario.armed_beside_suspect,
    "H5 pause": Scenario.paused,
    "H6": Scenario.stopped,
}


def test_every_part_of_a_rule_has_a_scenario() -> None:
    assert SCENARIOS.keys() == PARTS.keys()


@pytest.mark.parametrize("part", SCENARIOS)
def test_with_all_rules_a_scenario_does_no_harm(store: Store, part: str) -> None:
    scenario = Scenario(store, "")

    SCENARIOS[part](scenario)

    scenario.world.calm(NoFaults())


@pytest.mark.parametrize("part", SCENARIOS)
def test_without_one_part_of_a_rule_it_does(store: Store, part: str) -> None:
    scenario = Scenario(store, part)

    def play() -> None:
        SCENARIOS[part](scenario)
        scenario.world.calm(NoFaults())

    with pytest.raises(Violation) as caught:
        play()

    print(f"without {part}: {caught.value}")


@pytest.mark.parametrize("without", ["", "H3 resync"])
def test_the_resync_after_a_lost_reply_only_has_the_unit_back_sooner(store: Store, without: str) -> None:
    scenario = Scenario(store, without)
    scenario.lost_reply()

    scenario.idle.round(None)
    is_back_at_once = store.call("LLEN", "queue:high") == 1
    scenario.idle.sweep_hands()  # the next one, within a second
    scenario.idle.round(None)

    assert is_back_at_once == (not without)
    assert store.call("LLEN", "queue:high") == 1
    scenario.world.calm(NoFaults())
