"""No duty of the fleet starves: fleets of any size, with lives of any length, that shrink at the worst moment.

Each process decides as in the product, and asks the real script; time is the test's (duty_fleet.py).  A job is late by
less than ten seconds at the default interval, though only polls move it here: a process that knows its time would do
so at once.  With any one rule taken out, some fleet breaks that.
KIQ_SEED=<n> repeats a run; the long form has more time and more fleets.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

import pytest

from kiqcluster.store import Store
from kiqcluster.store.engine import duties as claims_module
from kiqcluster.store.scripts import CLAIM_DUTIES, Script
from kiqcluster.worker.maintenance import duties as duties_module
from kiqcluster.worker.maintenance.duties import longest_gap
from tests.chaos.scale import sized
from tests.properties.duty_fleet import BOOT_SECONDS, INTERVALS, POLL, DutyFleet, Report
from tests.server_clock import on_server_clock

SEED_OF_RULES = "1"  # a walk that shows what each rule is for; another one may do without it
MAX_LATE_SECONDS = 10.0
MAX_LOOKS_PER_SECOND = 135  # of a thousand processes; the price of one: tests/redis/test_duties.py
SEEDS = sized(2, 40)

Scene = Callable[[DutyFleet], None]


@pytest.fixture(autouse=True)
def _clock_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims_module, "CLAIM_DUTIES", on_server_clock(CLAIM_DUTIES))


# fleets


def steady(processes: int, seconds: float) -> Scene:
    def act(fleet: DutyFleet) -> None:
        fleet.start(processes)
        fleet.run(seconds)

    return act


def short_lives(slots: int, seconds: float = 150.0) -> Scene:
    """Each process lives for three seconds."""

    def act(fleet: DutyFleet) -> None:
        for _ in range(slots):
            fleet.at(fleet.rng.uniform(0.0, 3.0 + BOOT_SECONDS), lambda: fleet.start(1, life=3.0))
        fleet.run(seconds)

    return act


def shrinks(processes: int, end: Callable[[DutyFleet, int], None]) -> Scene:
    """All end but the one that has just decided to look last."""

    def act(fleet: DutyFleet) -> None:
        numbers = fleet.start(processes)
        fleet.run(fleet.rng.uniform(20.0, 30.0))
        last = max(numbers, key=lambda number: fleet.next_looks[number])
        for number in numbers:
            if number != last:
                end(fleet, number)
        fleet.run(40.0)

    return act


def surge(fleet: DutyFleet) -> None:
    """A deploy starts a new process beside each old one, and then ends the old ones."""
    old = fleet.start(20)
    for _ in range(4):
        fleet.run(fleet.rng.uniform(15.0, 25.0))
        new = fleet.start(20)
        fleet.run(fleet.rng.uniform(1.0, 10.0))
        for number in old:
            fleet.stop(number)
        old = new


def disturbed(disturb: Callable[[DutyFleet], None], processes: int = 10) -> Scene:
    def act(fleet: DutyFleet) -> None:
        fleet.start(processes)
        for number in range(8):
            fleet.at(20.0 * number + fleet.rng.uniform(5.0, 25.0), lambda: disturb(fleet))
        fleet.run(180.0)

    return act


def restart_empty(fleet: DutyFleet) -> None:
    fleet.lose_everything()


def restart(fleet: DutyFleet) -> None:
    """Redis is away for a while, and has forgotten some of it, or nothing."""
    fleet.be_away(fleet.rng.uniform(0.1, 12.0))
    if fleet.rng.random() < 0.5:
        fleet.lose_everything()


def set_clock(fleet: DutyFleet) -> None:
    """Not back by less than the time since a duty was begun: nobody can tell that from one that was begun later."""
    fleet.server.ahead += fleet.rng.choice([3_600.0, -3_600.0, 7.0, 0.3])


SCENES: dict[str, Scene] = {
    "1 process": steady(1, 150.0),
    "10 processes": steady(10, 150.0),
    "1 000 processes": steady(1_000, sized(55.0, 600.0)),
    "1 slot with lives of 3 s": short_lives(1),
    "10 slots with lives of 3 s": short_lives(10),
    "300 processes, of which all leave but 1": shrinks(300, DutyFleet.stop),
    "300 processes, of which all die but 1": shrinks(300, DutyFleet.kill),
    "41 processes, of which all die but 1": shrinks(41, DutyFleet.kill),
    "5 processes, of which all die but 1": shrinks(5, DutyFleet.kill),
    "20 processes that deploys replace": surge,
    "a Redis that comes back empty": disturbed(restart_empty),
    "a Redis that restarts": disturbed(restart),
    "a clock that is set": disturbed(set_clock),
    "a clock that is set, and 1 process": disturbed(set_clock, 1),
}


def play(scene: Scene, store: Store, seed: str) -> Report:
    store.call("FLUSHDB")
    fleet = DutyFleet(store, Random(seed))
    scene(fleet)
    return fleet.report()


def usec_per_look(store: Store) -> float:
    """Return the microseconds that Redis needs for a look; the script has another source of time here."""
    found = re.search(r"cmdstat_evalsha:.*usec_per_call=([\d.]+)", store.call("INFO", "commandstats").decode())
    assert found
    return float(found[1])


@pytest.mark.timeout(sized(120, 3_600))
@pytest.mark.parametrize("name", SCENES)
def test_no_job_is_late_and_no_duty_starves(name: str, store: Store, seed: str) -> None:
    print(f"KIQ_SEED={seed}")
    store.call("CONFIG", "RESETSTAT")
    seeds = 1 if "1 000" in name else SEEDS

    reports = [play(SCENES[name], store, f"{seed} {number}") for number in range(seeds)]

    late = sorted(each for report in reports for each in report.late())
    gaps = {duty: max(report.gap(duty) for report in reports) for duty in INTERVALS}
    looks = max(report.looks_per_second for report in reports)
    print(
        f"{name}: late p99 {late[len(late) * 99 // 100]:.1f} s, max {late[-1]:.1f} s; gap {gaps[POLL]:.1f} s; "
        f"{looks:.1f} looks/s of {usec_per_look(store):.1f} µs"
    )
    assert late[-1] <= MAX_LATE_SECONDS
    assert {duty: gap for duty, gap in gaps.items() if gap > longest_gap(INTERVALS[duty])} == {}
    assert looks <= MAX_LOOKS_PER_SECOND


# rules taken out


def look_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look comes ten seconds after the boot, as Sidekiq's first poll."""
    begin = DutyFleet._look
    seen: set[object] = set()

    def look(fleet: DutyFleet, number: int, duties: duties_module.Duties) -> None:
        if duties not in seen:
            seen.add(duties)
            fleet.at(10.0, lambda: begin(fleet, number, duties))
        else:
            begin(fleet, number, duties)

    monkeypatch.setattr(DutyFleet, "_look", look)


def pause_by_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process waits as long as the fleet had processes when it looked, as Sidekiq's pollers."""

    def pause(until_due: float, interval: float, processes: int, rng: Random, *, in_vain: bool) -> float:
        return interval * processes * 2 * rng.random()

    monkeypatch.setattr(duties_module, "pause", pause)


def leave_any_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look in vain leaves as many rounds to others as the fleet is large."""
    monkeypatch.setattr(duties_module, "MAX_GAP_SECONDS", 1e9)


def leave_no_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process looks in each round."""
    monkeypatch.setattr(duties_module, "PROCESSES_PER_ROUND", 10**9)


def believe_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A duty that was begun later than now is not due."""
    monkeypatch.setattr(claims_module, "CLAIM_DUTIES", changed("at and at <= now and", "at and"))


def claim_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script does not write what it has claimed, so everybody does everything."""
    monkeypatch.setattr(claims_module, "CLAIM_DUTIES", changed("if claimed then", "if false then"))


def await_a_first_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A duty that nobody has begun yet is not due."""
    monkeypatch.setattr(claims_module, "CLAIM_DUTIES", changed("- now or 0", "- now or 30000"))


def changed(old: str, new: str) -> Script:
    return on_server_clock(CLAIM_DUTIES, (old, new))


@pytest.mark.parametrize(
    ("take_out", "name"),
    [
        (look_late, "10 slots with lives of 3 s"),
        pytest.param(pause_by_processes, "300 processes, of which all leave but 1", marks=pytest.mark.full),
        pytest.param(leave_any_rounds, "300 processes, of which all die but 1", marks=pytest.mark.full),
        pytest.param(leave_no_rounds, "1 000 processes", marks=pytest.mark.full),
        (believe_any_time, "a clock that is set"),
        pytest.param(claim_nothing, "1 000 processes", marks=pytest.mark.full),
        (await_a_first_time, "a Redis that comes back empty"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_without_one_rule_jobs_are_late_or_looks_too_many(
    take_out: Callable[[pytest.MonkeyPatch], None],
    name: str,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take_out(monkeypatch)

    report = play(SCENES[name], store, SEED_OF_RULES)

    late = report.late()[-1]
    print(f"{take_out.__doc__}  Late by {late:.1f} s; {report.looks_per_second:.1f} looks/s")
    assert late > MAX_LATE_SECONDS or report.looks_per_second > MAX_LOOKS_PER_SECOND
