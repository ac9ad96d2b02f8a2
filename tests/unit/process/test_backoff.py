"""Delays."""

from __future__ import annotations

from random import Random

import pytest

from kiqcluster.process.backoff import jittered, retry_delay, retry_jitter


@pytest.mark.parametrize(("count", "base"), [(0, 15), (1, 16), (2, 31), (3, 96), (4, 271), (24, 331_791)])
def test_the_curve_is_sidekiqs(count: int, base: int) -> None:
    delays = {retry_delay(count, Random(seed)) for seed in range(300)}

    assert min(delays) >= base
    assert max(delays) < base + 10 * (count + 1)
    assert len(delays) > 5, "no two failures at the same second should come back together"


def test_the_first_jitter_is_each_of_ten_whole_seconds() -> None:
    assert {retry_jitter(0, Random(seed)) for seed in range(300)} == set(range(10))


@pytest.mark.parametrize("count", [10_000, 10**9, 10**400])
def test_absurd_counts_wait_no_longer_than_ruby_can_show(count: int) -> None:
    assert retry_delay(count, Random(1)) < 1_001**4


@pytest.mark.parametrize(("attempt", "expected"), [(0, 1), (1, 2), (2, 4), (4, 16), (5, 30), (6, 30), (10**6, 30)])
def test_the_wait_doubles_up_to_its_cap_less_a_quarter_at_most(attempt: int, expected: float) -> None:
    delays = [jittered(attempt, 1.0, 30.0, Random(seed)) for seed in range(200)]

    assert expected * 0.75 <= min(delays) < expected * 0.8
    assert expected * 0.95 < max(delays) <= expected
