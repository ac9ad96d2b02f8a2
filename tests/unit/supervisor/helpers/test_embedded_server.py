"""The guardian of the embedded server: when what keeps dying is started again."""

from __future__ import annotations

from random import Random

from kiqcluster.supervisor.cluster.respawn import HEALTHY_SECONDS, MAX_BACKOFF_SECONDS
from kiqcluster.supervisor.helpers.embedded_server import RestartBackoff
from tests.kit import ManualClock


def test_what_dies_again_and_again_is_started_ever_more_seldom() -> None:
    clock = ManualClock()
    restarts = RestartBackoff(clock, Random(1))
    waits = []
    for _ in range(8):
        assert restarts.is_due()
        restarts.begin()
        waits.append(restarts.end())
        assert not restarts.is_due()
        clock.time += waits[-1]

    for wait, full in zip(waits, (1, 2, 4, 8, 16, 30, 30, 30), strict=True):
        assert full * 0.75 <= wait <= full
    assert max(waits) <= MAX_BACKOFF_SECONDS


def test_what_has_lived_for_a_minute_is_started_again_at_once() -> None:
    clock = ManualClock()
    restarts = RestartBackoff(clock, Random(1))
    restarts.begin()
    restarts.end()
    restarts.begin()
    clock.time += HEALTHY_SECONDS

    assert restarts.end() == 0.0
    assert restarts.is_due()
