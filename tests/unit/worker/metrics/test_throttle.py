"""Throttle: what costs much is done less often."""

from __future__ import annotations

import pytest

from kiqcluster.worker.metrics.throttle import Throttle


class Hands:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.wall = self.used = 100.0

    def now(self) -> float:
        return self.wall

    def monotonic(self) -> float:
        return self.wall

    def cpu(self) -> float:
        return self.used


@pytest.mark.parametrize(("took", "wait"), [(0.01, 0.2), (0.25, 5.0), (3.0, 10.0)])
def test_the_next_go_is_due_once_this_one_is_but_a_share_of_the_time(took: float, wait: float) -> None:
    clock = Hands()
    throttle = Throttle(clock, share=0.05, longest=10.0)
    assert throttle.is_due

    with throttle:
        clock.wall += 0.1 + took
        clock.used += took

    clock.wall = 100.0 + wait - 0.001
    assert not throttle.is_due
    clock.wall += 0.002
    assert throttle.is_due


def test_waiting_for_the_interpreter_costs_nothing() -> None:
    clock = Hands()
    throttle = Throttle(clock, share=0.05, longest=10.0)

    with throttle:
        clock.wall += 5.0

    assert throttle.is_due


def test_a_go_that_fails_counts_as_well() -> None:
    clock = Hands()
    throttle = Throttle(clock, share=0.05, longest=10.0)

    with pytest.raises(ValueError, match="broken"), throttle:
        clock.used += 0.1
        raise ValueError("broken")

    assert not throttle.is_due
