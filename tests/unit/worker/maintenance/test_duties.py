"""When a process looks for duties of the fleet again."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiqcluster.application.registry import Registry, using_registry
from kiqcluster.job import job
from kiqcluster.worker.maintenance import duties
from kiqcluster.worker.maintenance.duties import MARGIN_SECONDS, due_after, longest_gap, pause, scope

MAINTENANCE = Path(duties.__file__).parent
intervals = st.floats(0.05, 1e5)
fleets = st.integers(1, 100_000)


@given(intervals, fleets, st.booleans(), st.floats(0, 1), st.integers())
def test_whoever_is_left_of_a_fleet_looks_before_the_longest_gap_is_over(
    interval: float, processes: int, in_vain: bool, passed: float, seed: int
) -> None:
    """However many others there were when it looked: it may be the only one that is left."""
    since = passed * due_after(interval)  # since somebody has begun the duty
    until_due = due_after(interval) - since

    seconds = pause(until_due, interval, processes, Random(seed), in_vain=in_vain)

    assert until_due < seconds <= longest_gap(interval) + MARGIN_SECONDS - since


@given(intervals, fleets, st.floats(0, 10), st.integers())
def test_whoever_has_begun_a_duty_looks_again_when_it_is_due(
    interval: float, processes: int, until_due: float, seed: int
) -> None:
    seconds = pause(until_due, interval, processes, Random(seed), in_vain=False)

    assert until_due < seconds <= until_due + 0.1 * interval + MARGIN_SECONDS + 1e-6


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_in_a_small_fleet_nobody_leaves_a_round_to_others(processes: int) -> None:
    assert max(pause(1.0, 5.0, processes, Random(seed), in_vain=True) for seed in range(200)) < 1.1


@pytest.mark.parametrize(("interval", "most"), [(5.0, 120), (0.5, 120), (60.0, 12)])
def test_a_fleet_of_a_thousand_looks_seldom(interval: float, most: float) -> None:
    """Looks a second, of processes that find that another one has just begun the duty."""
    pauses = [pause(due_after(interval), interval, 1_000, Random(seed), in_vain=True) for seed in range(500)]

    assert 1_000 * len(pauses) / sum(pauses) <= most


def test_the_looks_of_a_large_fleet_are_spread() -> None:
    pauses = sorted(pause(4.5, 5.0, 1_000, Random(seed), in_vain=True) for seed in range(1_000))

    assert pauses[-1] - pauses[0] == pytest.approx(0.5, rel=0.05)
    assert max(pauses[at + 50] - pauses[at] for at in range(950)) < 0.1


OWN_TIMERS = {
    "cron_ticks": "which entries this process could not enqueue",
    "duties": "when this process looks",
    "limit_upkeep": "how old its count of the fleet's threads is",
    "membership_beat": "when its beat was answered",
    "outside_sources": "when it has last looked into a database",
    "poller": "what becomes due that it knows of, and which keys it is refused",
    "poller_inbox": "what it has written that becomes due",
    "progress": "what its own jobs have said",
    "recovery": "its own beat, and the dead that its supervisor has told it of",
}


def test_a_timer_beside_the_duties_concerns_only_its_process() -> None:
    """What the fleet does from time to time is a duty: a process may end before its timer does."""
    with_timers = {path.stem for path in MAINTENANCE.glob("*.py") if "monotonic()" in path.read_text("utf-8")}

    assert with_timers == OWN_TIMERS.keys()


def test_processes_share_the_duties_of_an_application_if_they_have_the_same_jobs() -> None:
    def registry(*names: str) -> Registry:
        with using_registry(Registry()) as found:
            for name in names:
                job(name=name)(lambda: None)
        return found

    one = scope("shop", registry("Mail", "Invoice"))

    assert one == scope("shop", registry("Invoice", "Mail"))
    assert one != scope("blog", registry("Mail", "Invoice"))
    assert one != scope("shop", registry("Mail"))
