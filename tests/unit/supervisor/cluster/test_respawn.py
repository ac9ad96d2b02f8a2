"""Respawn: when a slot gets its next process, and when the cluster gives up."""

from __future__ import annotations

from random import Random

import pytest

from kiqcluster.errors import ExitCode
from kiqcluster.supervisor.cluster.respawn import (
    BOOT_CODES,
    BURST_WINDOW_SECONDS,
    HEALTHY_SECONDS,
    MAX_BACKOFF_SECONDS,
    History,
    after_death,
    after_ready,
    give_up_code,
)


def died(
    history: History, now: float = 1_000.0, *, ready_for: float | None, code: int | None = 1, burst: int = 200
) -> History:
    return after_death(history, ready_for=ready_for, code=code, now=now, burst=burst, rng=Random(1))


class TestReadyOnce:
    @pytest.mark.parametrize("code", [None, 0, 1, 9, 139])
    @pytest.mark.parametrize("ready_for", [0.0, 5.0, 10_000.0])
    def test_a_child_that_had_become_ready_is_replaced_at_once(self, ready_for: float, code: int | None) -> None:
        history = died(History(), ready_for=ready_for, code=code)

        assert history.not_before == 1_000.0
        assert history.failures == 0

    def test_that_happens_as_often_a_minute_as_the_burst_says_and_then_waits_for_the_minute(self) -> None:
        history = History()
        for second in range(3):
            history = died(history, 1_000.0 + second, ready_for=1.0, burst=3)
            assert history.not_before == 1_000.0 + second

        history = died(history, 1_003.0, ready_for=1.0, burst=3)

        assert history.not_before == 1_000.0 + BURST_WINDOW_SECONDS

    def test_a_loop_of_deaths_never_starts_more_than_the_burst_in_any_minute(self) -> None:
        history, now, starts = History(), 1_000.0, []
        for _ in range(50):
            history = died(history, now, ready_for=0.1, burst=2)
            starts.append(history.not_before)
            now = history.not_before + 0.1

        for start in starts:
            assert sum(start <= other < start + BURST_WINDOW_SECONDS for other in starts) <= 2

    def test_what_it_remembers_does_not_grow(self) -> None:
        history, now = History(), 1_000.0
        for _ in range(500):
            history = died(history, now, ready_for=1.0, burst=5)
            now = max(now + 1, history.not_before + 1)

        assert len(history.respawned) <= 10

    @pytest.mark.parametrize("code", sorted(BOOT_CODES))
    def test_one_that_leaves_with_a_boot_code_backs_off_although_it_was_ready(self, code: int) -> None:
        assert died(History(), ready_for=5.0, code=code).not_before > 1_000.0

    @pytest.mark.parametrize("code", sorted(BOOT_CODES))
    def test_a_minute_of_health_makes_it_forget_also_when_it_leaves_with_a_boot_code(self, code: int) -> None:
        failed = History(failures=5)

        assert died(failed, ready_for=HEALTHY_SECONDS - 0.1, code=code).failures == 6
        healthy = died(failed, ready_for=HEALTHY_SECONDS, code=code)
        assert (healthy.failures, healthy.not_before) == (0, 1_000.0)
        assert len(healthy.respawned) == 1


class TestNeverReady:
    def test_it_waits_twice_as_long_each_time_up_to_thirty_seconds(self) -> None:
        history, waits = History(), []
        for _ in range(8):
            history = died(history, ready_for=None)
            waits.append(history.not_before - 1_000.0)

        for wait, full in zip(waits, (1, 2, 4, 8, 16, 30, 30, 30), strict=True):
            assert full * 0.75 <= wait <= full
        assert history.failures == 8

    def test_slots_do_not_move_in_step(self) -> None:
        waits = {
            after_death(History(), ready_for=None, code=1, now=0.0, burst=1, rng=Random(seed)).not_before
            for seed in range(20)
        }

        assert len(waits) == 20

    def test_a_minute_of_health_makes_it_forget(self) -> None:
        failed = History(failures=5)

        assert died(failed, ready_for=HEALTHY_SECONDS - 0.1).failures == 5
        assert died(failed, ready_for=HEALTHY_SECONDS).failures == 0
        assert died(died(failed, ready_for=HEALTHY_SECONDS), ready_for=None).not_before <= 1_001.0

    def test_a_thousand_failures_wait_no_longer_than_the_cap(self) -> None:
        history = History(failures=1_000)

        assert died(history, ready_for=None).not_before <= 1_000.0 + MAX_BACKOFF_SECONDS


class TestHurry:
    """A new release may have mended what stood in the way."""

    def test_the_wait_is_over_and_nothing_else_is_forgotten(self) -> None:
        waiting = died(died(after_ready(History()), ready_for=None, code=3), ready_for=None, code=3)

        without_wait = waiting.without_wait()

        assert waiting.not_before > 1_000.0 >= without_wait.not_before
        assert (without_wait.failures, without_wait.ever_ready, without_wait.last_code) == (2, True, 3)

    def test_what_fails_again_waits_longer_than_before(self) -> None:
        waiting = died(died(History(), ready_for=None), ready_for=None)

        again = died(waiting.without_wait(), ready_for=None)

        assert again.not_before - 1_000.0 >= 4 * 0.75
        assert again.failures == 3

    def test_nobody_gets_more_respawns_a_minute_by_it(self) -> None:
        history = History()
        for second in range(3):
            history = died(history, 1_000.0 + second, ready_for=1.0, burst=3)

        history = died(history.without_wait(), 1_003.0, ready_for=1.0, burst=3)

        assert history.not_before == 1_000.0 + BURST_WINDOW_SECONDS


class TestGivingUp:
    def failed(self, code: int | None = 1, *, ever_ready: bool = False) -> History:
        return History(failures=1, last_code=code, ever_ready=ever_ready)

    @pytest.mark.parametrize(
        ("codes", "expected"),
        [
            ([1], ExitCode.NEVER_READY),
            ([None], ExitCode.NEVER_READY),
            ([0, 9], ExitCode.NEVER_READY),
            ([3], ExitCode.APPLICATION),
            ([3, 3], ExitCode.APPLICATION),
            ([5, None], ExitCode.REDIS_REFUSED),
            ([2], ExitCode.USAGE),
            ([1, 3], ExitCode.APPLICATION),
        ],
    )
    def test_when_no_slot_was_ever_ready_the_code_says_why(self, codes: list[int | None], expected: ExitCode) -> None:
        assert give_up_code([self.failed(code) for code in codes]) is expected

    def test_while_a_slot_has_not_failed_there_is_hope(self) -> None:
        assert give_up_code([self.failed(), History()]) is None

    def test_once_a_slot_was_ready_the_cluster_goes_on(self) -> None:
        ready_once = after_ready(History())

        assert give_up_code([self.failed(), died(ready_once, ready_for=None)]) is None
        assert give_up_code([self.failed(3, ever_ready=True)]) is None

    def test_without_slots_there_is_nothing_to_give_up(self) -> None:
        assert give_up_code([]) is None
