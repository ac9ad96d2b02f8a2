"""Fencing: what a process knows about its membership while it cannot ask Redis."""

from __future__ import annotations

from kiqcluster.worker.fetch.fencing import Fencing
from tests.kit import ManualClock

SILENCE_LIMIT_SECONDS = 60.0


def fencing(clock: ManualClock) -> Fencing:
    made = Fencing(clock, SILENCE_LIMIT_SECONDS)
    made.begin("a")
    return made


def test_it_holds_its_units_from_its_join_until_redis_has_not_heard_of_it_for_long() -> None:
    clock = ManualClock()
    ours = fencing(clock)
    assert not ours.is_fenced("a")

    clock.time += 50.0
    assert not ours.is_fenced("a")
    clock.time += 0.1

    assert ours.is_fenced("a")


def test_a_beat_counts_from_when_it_was_sent() -> None:
    clock = ManualClock()
    ours = fencing(clock)
    asked = clock.time = clock.time + 40.0
    clock.time += 20.0

    ours.confirm("a", asked)

    assert not ours.is_fenced("a")
    clock.time = asked + 50.1
    assert ours.is_fenced("a")


def test_a_lost_identity_stays_lost_and_a_new_one_begins_anew() -> None:
    clock = ManualClock()
    ours = fencing(clock)

    ours.lose("a")
    assert ours.is_fenced("a")
    ours.begin("b")

    assert ours.is_fenced("a")
    assert not ours.is_fenced("b")


def test_late_news_of_an_old_identity_change_nothing() -> None:
    clock = ManualClock()
    ours = fencing(clock)
    ours.begin("b")

    ours.confirm("a", clock.time)
    ours.lose("a")

    assert ours.is_fenced("a")
    assert not ours.is_fenced("b")
