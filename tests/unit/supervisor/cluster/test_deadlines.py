"""Deadlines: which one a process has passed."""

from __future__ import annotations

import pytest

from kiqcluster.process.config import Config
from kiqcluster.sidekiq.queue_groups import parse_group
from kiqcluster.supervisor.cluster.child import Child, Ending, LastBeat
from kiqcluster.supervisor.cluster.deadlines import Deadline, passed_deadline
from kiqcluster.supervisor.cluster.expansion import SlotPlan
from kiqcluster.supervisor.cluster.slots import Slot

CONFIG = Config(health_boot_timeout=60.0, health_silence_timeout=30.0)
NOW = 1_000.0


@pytest.fixture
def child() -> Child:
    """A ready process that beats."""
    return Child(1, None, 0.0, LastBeat(NOW), ready_at=1.0)  # type: ignore[arg-type]  # it has no socket


@pytest.fixture
def slot(child: Child) -> Slot:
    return Slot(SlotPlan(0, parse_group("*"), {}, "random", 1), child)


def test_a_process_that_beats_has_passed_none(slot: Slot, child: Child) -> None:
    assert passed_deadline(slot, child, CONFIG, None, NOW) is None


def test_a_process_has_boot_timeout_to_be_ready(slot: Slot, child: Child) -> None:
    child.ready_at = None

    assert passed_deadline(slot, child, CONFIG, None, NOW + 59.9) is None
    assert passed_deadline(slot, child, CONFIG, None, NOW + 60.0) is Deadline.BOOT


def test_a_replacement_has_the_same_time_to_fetch(slot: Slot, child: Child) -> None:
    slot.child, slot.replacement = None, child

    assert passed_deadline(slot, child, Config(health_boot_timeout=20.0), None, NOW + 20.0) is Deadline.BOOT


def test_a_process_without_progress_is_silent(slot: Slot, child: Child) -> None:
    assert passed_deadline(slot, child, CONFIG, None, NOW + 29.9) is None
    assert passed_deadline(slot, child, CONFIG, None, NOW + 30.0) is Deadline.SILENCE
    assert passed_deadline(slot, child, Config(health_silence_timeout=0.0), None, NOW + 9_999.0) is None


@pytest.mark.parametrize("stop_by", [None, NOW + 40.0])
def test_a_process_that_stops_may_be_silent_until_its_deadline(slot: Slot, child: Child, stop_by: float | None) -> None:
    if stop_by is None:
        child.ending = Ending(stop_deadline=NOW + 40.0)

    assert passed_deadline(slot, child, CONFIG, stop_by, NOW + 39.9) is None
    assert passed_deadline(slot, child, CONFIG, stop_by, NOW + 40.0) is Deadline.STOP


def test_the_quiet_of_a_process_ends_with_its_lease(slot: Slot, child: Child) -> None:
    child.quiet_until = NOW + 5.0

    assert passed_deadline(slot, child, CONFIG, None, NOW + 4.9) is None
    assert passed_deadline(slot, child, CONFIG, None, NOW + 5.0) is Deadline.QUIET
