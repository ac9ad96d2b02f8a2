"""Pace: how many units are taken at once, and from which queues."""

from __future__ import annotations

import pytest

from kiqcluster.store.engine import MAX_QUEUES
from kiqcluster.worker.fetch.prefetch import (
    AHEAD,
    LONGEST_GRUDGE,
    MOST,
    SHORTEST_GRUDGE,
    Appetite,
    Pace,
)
from kiqcluster.worker.fetch.queue_order import FEW_QUEUES

STEP = 0.01  # seconds between rounds


def deepened(pace: Pace, rounds: int, finished: int, idle: int = 4) -> int:
    """Return how many units are wanted after that many rounds in which so many jobs finished."""
    for number in range(1, rounds + 1):
        pace.note(finished, number * STEP)
        wanted = pace.appetite(idle, 0).in_all
    return wanted


class TestAppetite:
    def test_before_anything_is_known_it_is_what_idle_processors_wait_for(self) -> None:
        assert Pace().appetite(10, 0) == Appetite(10, 10)
        assert Pace().appetite(10, 4) == Appetite(6, 6)
        assert Pace().appetite(3, 8) == Appetite(0, 0)

    def test_it_doubles_from_there_while_jobs_are_short(self) -> None:
        pace = Pace()
        pace.appetite(4, 0)

        assert [deepened(pace, 1, 10_000)] + [deepened(pace, 1, 10_000) for _ in range(3)] == [8, 16, 32, 64]

    def test_it_is_never_more_than_is_done_in_a_moment(self) -> None:
        assert deepened(Pace(), 20, finished=3) == pytest.approx(3 / STEP * AHEAD, abs=1)

    def test_it_is_never_more_than_the_limit_however_short_jobs_are(self) -> None:
        assert deepened(Pace(), 20, finished=100_000) == MOST

    def test_slow_jobs_are_not_taken_ahead_at_all(self) -> None:
        pace = Pace()
        pace.appetite(4, 0)

        pace.note(4, 5.0)

        assert pace.appetite(4, 0) == Appetite(4, 4)

    def test_a_pause_begins_it_anew(self) -> None:
        pace = Pace()
        assert deepened(pace, 20, finished=1_000) == MOST

        pace.note(0, 60.0)

        assert pace.appetite(4, 0).in_all == 4

    def test_a_round_with_nothing_finished_soon_after_another_says_nothing(self) -> None:
        pace = Pace()
        assert deepened(pace, 20, finished=1_000) == MOST

        pace.note(0, 20 * STEP + 0.001)

        assert pace.appetite(4, 0).in_all == MOST

    def test_what_waits_already_is_not_wanted_again(self) -> None:
        pace = Pace()
        deepened(pace, 20, finished=1_000)

        assert pace.appetite(0, 400) == Appetite(0, MOST - 400)

    def test_fewer_queues_share_a_batch_when_the_next_one_comes_soon(self) -> None:
        fast, slow = Pace(), Pace()
        deepened(fast, 20, finished=1_000)
        deepened(slow, 20, finished=20)

        assert (fast.most_queues(), slow.most_queues()) == (FEW_QUEUES, MAX_QUEUES)


class TestLimits:
    def test_each_queue_may_give_its_share_and_then_what_is_left(self) -> None:
        limits = Pace().limits({"often": 0.9, "seldom": 0.1}, Appetite(5, 100), 0.0)

        assert limits == {"often": (90, 100), "seldom": (100, 100)}

    def test_in_strict_order_the_first_may_give_all(self) -> None:
        limits = Pace().limits({"high": 1.0, "low": 1.0}, Appetite(5, 100), 0.0)

        assert limits == {"high": (100, 100), "low": (100, 100)}

    def test_of_many_queues_some_fill_a_batch(self) -> None:
        """A batch of one unit from each of a thousand queues would cost a thousand visits."""
        limits = Pace().limits({f"q{number}": 0.001 for number in range(1_000)}, Appetite(5, 1_000), 0.0)

        assert list(limits.values())[:3] == [(10, 1_000), (20, 1_000), (30, 1_000)]
        assert list(limits.values())[100] == (1_000, 1_000)

    def test_a_queue_that_is_to_blame_gives_idle_processors_theirs_only(self) -> None:
        pace = Pace()
        pace.blame(["slow"], 10.0)

        limits = pace.limits({"slow": 0.5, "fast": 0.5}, Appetite(4, 100), 10.0)

        assert limits == {"slow": (2, 4), "fast": (52, 100)}


class TestBlame:
    def test_it_begins_anew_with_all_queues(self) -> None:
        pace = Pace()
        deepened(pace, 20, finished=1_000)

        pace.blame([], 1.0)

        assert pace.appetite(4, 0) == Appetite(4, 4)

    def test_it_lasts_longer_each_time_and_is_forgotten_in_the_end(self) -> None:
        pace, now, lengths = Pace(), 0.0, []
        for _ in range(5):
            pace.blame(["slow"], now)
            length = next(after for after in range(1, 100) if not self.is_blamed(pace, now + after))
            lengths.append(length)
            now += length

        pace.blame(["slow"], now + LONGEST_GRUDGE + 1)
        assert lengths == [1, 4, 16, 60, 60]
        assert not self.is_blamed(pace, now + LONGEST_GRUDGE + 1 + SHORTEST_GRUDGE)

    def is_blamed(self, pace: Pace, now: float) -> bool:
        return pace.limits({"slow": 1.0}, Appetite(1, 9), now)["slow"][1] == 1
