"""Who is dead in the fleet, walked at random: no process is recovered that lives, and each dead one is, in time.

Processes beat and recover as in the product, on the real scripts; time is the test's (recovery_fleet.py).  It does not
matter how shortly they live.  With a rule taken out, some process is recovered that lives, or a dead one is not.
KIQ_SEED=<n> repeats a run; the long form goes on for longer.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from statistics import median

import pytest

from kiqcluster.store import Store
from kiqcluster.store.engine import engine as engine_module
from kiqcluster.store.scripts import BEAT
from kiqcluster.worker.maintenance import failure_detector
from kiqcluster.worker.maintenance.membership_beat import MembershipBeat
from tests.chaos.scale import sized
from tests.kit import RedisServer
from tests.properties.limits import Violation
from tests.properties.recovery_fleet import RECOVER_AFTER, RecoveryFleet
from tests.server_clock import ServerClock, on_server_clock

DISTURBANCES = sized(12, 400)
CALM_SECONDS = 4 * RECOVER_AFTER  # at the end, in which the last dead are found
MAX_WAIT_SECONDS = RECOVER_AFTER + RECOVER_AFTER / 3  # of a dead process, where nothing else happens
LIVES = {"lives of 3 s": 3.0, "lives of 30 s": 30.0, "long lives": float("inf")}


@pytest.fixture
def fleet(kiq_redis: RedisServer, store: Store, seed: str, monkeypatch: pytest.MonkeyPatch) -> RecoveryFleet:
    print(f"KIQ_SEED={seed}")
    ServerClock(store).use(monkeypatch, engine_module)
    return RecoveryFleet(kiq_redis, store, Random(seed))


def disturb(fleet: RecoveryFleet, life: float) -> None:
    rng = fleet.rng
    match rng.choice(["kill", "kill", "away", "fail over", "clock", "still"]):
        case "kill":
            fleet.kill(rng.choice([0.1, 0.5]), life)
        case "away":
            fleet.be_away(rng.uniform(1.0, 90.0))
        case "fail over":
            fleet.fail_over(rng.uniform(0.0, 20.0), rng.choice([0.0, 5.0, 30.0]))
        case "clock":
            fleet.server.ahead += rng.choice([-1, 1]) * rng.choice([5.0, 15.0, 60.0, 3_600.0])
        case "still":
            fleet.stand_still(rng.choice([0.2, 0.5]), rng.choice([15.0, 50.0, 70.0, 200.0]))


def walk(fleet: RecoveryFleet, life: float, disturbances: int = DISTURBANCES) -> None:
    fleet.start(10, life)
    fleet.run(20.0)
    for _ in range(disturbances):
        disturb(fleet, life)
        fleet.run(fleet.rng.uniform(1.0, 150.0))
    fleet.run(CALM_SECONDS)


@pytest.mark.timeout(sized(120, 3_600))
@pytest.mark.parametrize("name", LIVES)
def test_the_dead_are_recovered_in_time_while_nothing_else_happens(name: str, fleet: RecoveryFleet) -> None:
    fleet.start(6, LIVES[name])
    fleet.run(1.2 * RECOVER_AFTER)

    fleet.kill(0.5, LIVES[name])
    fleet.run(1.5 * RECOVER_AFTER)

    print(f"{name}: {len(fleet.waits)} dead, recovered after {max(fleet.waits):.1f} s at most")
    assert fleet.left() == []
    assert max(fleet.waits) <= MAX_WAIT_SECONDS


@pytest.mark.timeout(sized(120, 3_600))
@pytest.mark.parametrize("name", ["lives of 30 s", "long lives"])
def test_whatever_happens_nobody_is_recovered_that_lives(name: str, fleet: RecoveryFleet) -> None:
    walk(fleet, LIVES[name])

    waits = sorted(fleet.waits) or [0.0]
    print(f"{name}: {len(fleet.waits)} dead recovered, after {median(waits):.0f} s, {waits[-1]:.0f} s at most")
    assert fleet.left() == []


def fail_over_again_and_again(fleet: RecoveryFleet) -> None:
    """Each loses too little to be a gap."""
    fleet.start(40)
    fleet.run(2 * RECOVER_AFTER)
    for _ in range(4):
        fleet.fail_over(lag=1.0)
        fleet.server.ahead += 19.0  # the clock of the replica
        fleet.run(0.6)
    fleet.run(RECOVER_AFTER)


def have_an_outage(fleet: RecoveryFleet) -> None:
    fleet.start(6, LIVES["lives of 30 s"])
    fleet.run(1.5 * RECOVER_AFTER)
    fleet.be_away(1.5 * RECOVER_AFTER)
    fleet.at(1.5 * RECOVER_AFTER, fleet.boot)  # the first of all that beats afterwards
    fleet.run(2.5 * RECOVER_AFTER)


def set_the_clock_back(fleet: RecoveryFleet) -> None:
    fleet.start(6, LIVES["lives of 30 s"])
    fleet.run(1.5 * RECOVER_AFTER)
    fleet.server.ahead -= 3_600.0
    lose_a_host(fleet)


def lose_a_host(fleet: RecoveryFleet) -> None:
    fleet.start(6, LIVES["lives of 30 s"])
    fleet.run(RECOVER_AFTER)
    fleet.kill(0.5, LIVES["lives of 30 s"])
    fleet.run(2 * RECOVER_AFTER)


SCENES = (have_an_outage, set_the_clock_back, lose_a_host, fail_over_again_and_again)


@pytest.mark.parametrize("play", SCENES)
def test_nobody_is_recovered_that_lives_and_no_dead_one_is_left(
    play: Callable[[RecoveryFleet], None], fleet: RecoveryFleet
) -> None:
    play(fleet)

    assert fleet.left() == []


# rules taken out


def change(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    monkeypatch.setattr(engine_module, "BEAT", on_server_clock(BEAT, (old, new)))


def bear_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row goes on after a gap."""
    change(monkeypatch, "or now - last > silence / 3 ", "")


def bear_a_clock_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row goes on when the clock was set back: it would end in an hour."""
    change(monkeypatch, "or now < last ", "")


def bear_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row goes on after a fail-over, and so does that of a process."""
    change(monkeypatch, "server ~= ARGV[4] or ", "not since or ")
    monkeypatch.setattr(failure_detector, "is_disturbed", lambda *_: False)


def wait_for_own_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only whose own beats have come for long enough recovers others."""
    send = MembershipBeat.send
    monkeypatch.setattr(
        MembershipBeat,
        "send",
        lambda beat, identity, asked, most: send(beat, identity, asked, most if ready(beat, asked) else 0),
    )


def ready(beat: MembershipBeat, asked: float) -> bool:
    return failure_detector.may_recover(beat._window, asked, beat.recover_after)


@pytest.mark.parametrize(
    ("take_out", "play", "harm"),
    [
        (bear_gaps, have_an_outage, "lives, and was recovered"),
        (bear_a_clock_set_back, set_the_clock_back, "left"),
        (bear_another_server, fail_over_again_and_again, "lives, and was recovered"),
        (wait_for_own_beats, lose_a_host, "left"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_without_one_rule_somebody_is_recovered_that_lives_or_nobody_is(
    take_out: Callable[[pytest.MonkeyPatch], None],
    play: Callable[[RecoveryFleet], None],
    harm: str,
    fleet: RecoveryFleet,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take_out(monkeypatch)

    with pytest.raises(Violation, match=harm):
        play(fleet)
        if left := fleet.left():
            raise Violation(f"{len(left)} dead are left")
