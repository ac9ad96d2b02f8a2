"""Prefetch: how many units are taken at once, and from which queues."""

from __future__ import annotations

import pytest

from kiqcluster.store.engine.wait_lists import MAX_QUEUES
from kiqcluster.worker.fetch.prefetch import (
    MAX_PENALTY_SECONDS,
    MAX_PREFETCHED,
    MAX_QUEUES_AT_FULL_PACE,
    MIN_PENALTY_SECONDS,
    PREFETCH_SECONDS,
    Prefetch,
    ReserveSize,
)

BATCH_INTERVAL_SECONDS = 0.01  # between batches


def deepened(prefetch: Prefetch, batches: int, finished: int, idle: int = 4) -> int:
    """Return how many units are wanted after that many batches in which so many jobs finished."""
    for number in range(1, batches + 1):
        prefetch.record_finished(finished, number * BATCH_INTERVAL_SECONDS)
        wanted = prefetch.reserve_size(idle, 0).total
    return wanted


class TestReserveSize:
    def test_before_anything_is_known_it_is_the_unmet_demand(self) -> None:
        assert Prefetch().reserve_size(10, 0) == ReserveSize(10, 10)
        assert Prefetch().reserve_size(10, 4) == ReserveSize(6, 6)
        assert Prefetch().reserve_size(3, 8) == ReserveSize(0, 0)

    def test_it_doubles_from_there_while_jobs_are_short(self) -> None:
        prefetch = Prefetch()
        prefetch.reserve_size(4, 0)

        assert [deepened(prefetch, 1, 10_000)] + [deepened(prefetch, 1, 10_000) for _ in range(3)] == [8, 16, 32, 64]

    def test_it_is_never_more_than_is_done_in_a_moment(self) -> None:
        assert deepened(Prefetch(), 20, finished=3) == pytest.approx(
            3 / BATCH_INTERVAL_SECONDS * PREFETCH_SECONDS, abs=1
        )

    def test_it_is_never_more_than_the_limit_however_short_jobs_are(self) -> None:
        assert deepened(Prefetch(), 20, finished=100_000) == MAX_PREFETCHED

    def test_slow_jobs_are_not_prefetched(self) -> None:
        prefetch = Prefetch()
        prefetch.reserve_size(4, 0)

        prefetch.record_finished(4, 5.0)

        assert prefetch.reserve_size(4, 0) == ReserveSize(4, 4)

    def test_a_pause_begins_it_anew(self) -> None:
        prefetch = Prefetch()
        assert deepened(prefetch, 20, finished=1_000) == MAX_PREFETCHED

        prefetch.record_finished(0, 60.0)

        assert prefetch.reserve_size(4, 0).total == 4

    def test_a_batch_without_outcomes_soon_after_another_changes_nothing(self) -> None:
        prefetch = Prefetch()
        assert deepened(prefetch, 20, finished=1_000) == MAX_PREFETCHED

        prefetch.record_finished(0, 20 * BATCH_INTERVAL_SECONDS + 0.001)

        assert prefetch.reserve_size(4, 0).total == MAX_PREFETCHED

    def test_units_at_hand_are_not_reserved_again(self) -> None:
        prefetch = Prefetch()
        deepened(prefetch, 20, finished=1_000)

        assert prefetch.reserve_size(0, 400) == ReserveSize(0, MAX_PREFETCHED - 400)

    def test_fewer_queues_share_a_batch_when_the_next_one_comes_soon(self) -> None:
        fast, slow = Prefetch(), Prefetch()
        deepened(fast, 20, finished=1_000)
        deepened(slow, 20, finished=20)

        assert (fast.max_queues(), slow.max_queues()) == (MAX_QUEUES_AT_FULL_PACE, MAX_QUEUES)


class TestLimits:
    def test_each_queue_may_give_its_share_and_then_the_rest(self) -> None:
        limits = Prefetch().limits({"often": 0.9, "seldom": 0.1}, ReserveSize(5, 100), 0.0)

        assert limits == {"often": (90, 100), "seldom": (100, 100)}

    def test_in_strict_order_the_first_may_give_all(self) -> None:
        limits = Prefetch().limits({"high": 1.0, "low": 1.0}, ReserveSize(5, 100), 0.0)

        assert limits == {"high": (100, 100), "low": (100, 100)}

    def test_of_many_queues_some_fill_a_batch(self) -> None:
        """A batch of one unit from each of a thousand queues would cost a thousand visits."""
        limits = Prefetch().limits({f"q{number}": 0.001 for number in range(1_000)}, ReserveSize(5, 1_000), 0.0)

        assert list(limits.values())[:3] == [(10, 1_000), (20, 1_000), (30, 1_000)]
        assert list(limits.values())[100] == (1_000, 1_000)

    def test_a_queue_with_a_penalty_meets_the_demand_only(self) -> None:
        prefetch = Prefetch()
        prefetch.penalize(["slow"], 10.0)

        limits = prefetch.limits({"slow": 0.5, "fast": 0.5}, ReserveSize(4, 100), 10.0)

        assert limits == {"slow": (2, 4), "fast": (52, 100)}


class TestPenalty:
    def test_it_begins_anew_with_all_queues(self) -> None:
        prefetch = Prefetch()
        deepened(prefetch, 20, finished=1_000)

        prefetch.penalize([], 1.0)

        assert prefetch.reserve_size(4, 0) == ReserveSize(4, 4)

    def test_it_lasts_longer_each_time_and_is_forgotten_in_the_end(self) -> None:
        prefetch, now, lengths = Prefetch(), 0.0, []
        for _ in range(5):
            prefetch.penalize(["slow"], now)
            length = next(after for after in range(1, 100) if not self.is_penalized(prefetch, now + after))
            lengths.append(length)
            now += length

        prefetch.penalize(["slow"], now + MAX_PENALTY_SECONDS + 1)
        assert lengths == [1, 4, 16, 60, 60]
        assert not self.is_penalized(prefetch, now + MAX_PENALTY_SECONDS + 1 + MIN_PENALTY_SECONDS)

    def is_penalized(self, prefetch: Prefetch, now: float) -> bool:
        return prefetch.limits({"slow": 1.0}, ReserveSize(1, 9), now)["slow"][1] == 1
