"""How many takers run at once: few while the jobs are short, more when the others are blocked."""

from __future__ import annotations

import pytest

from kiqcluster.worker.fetch.concurrency_limit import (
    LOWER_WINDOW_SECONDS,
    MAX_LOWER_DELAY_SECONDS,
    MIN_LOWER_DELAY_SECONDS,
    TRIAL_SECONDS,
    WATCH_SECONDS,
    ConcurrencyLimit,
)
from tests.kit import ManualClock


class Process:
    """A process with ten takers, and what they have done so far."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.limit = ConcurrencyLimit(10, self.clock)
        self.taken = self.received = 0

    def work(self, seconds: float, *, pace: float, share: float) -> None:
        """Let time pass in which units are taken.  pace: units a second.  share: of a core that is used."""
        self.clock.time += seconds
        self.clock.used += share * seconds
        self.taken += round(pace * seconds)

    def lower(self, *, pace: float = 50_000, share: float = 0.9) -> int:
        self.work(LOWER_WINDOW_SECONDS, pace=pace, share=share)
        self.limit.lower(self.taken)
        return self.limit.current

    def watch(
        self, *, pace: float, share: float, seconds: float = WATCH_SECONDS, active: int = 2, is_flushing: bool = False
    ) -> int:
        self.limit.begin_watch(self.taken, self.received)
        self.work(seconds, pace=pace, share=share)
        self.limit.end_watch(self.taken, self.received, active, is_flushing=is_flushing)
        return self.limit.current


@pytest.fixture
def process() -> Process:
    return Process()


class TestLower:
    def test_all_may_run_at_first(self, process: Process) -> None:
        assert process.limit.current == 10

    def test_short_jobs_that_need_the_interpreter_run_one_at_a_time(self, process: Process) -> None:
        assert process.lower() == 1

    @pytest.mark.parametrize(
        ("pace", "share"), [(1_000, 0.9), (50_000, 0.1), (50_000, 1.6)], ids=["long", "blocked", "in C code"]
    )
    def test_other_jobs_do_not(self, process: Process, pace: float, share: float) -> None:
        assert process.lower(pace=pace, share=share) == 10

    def test_a_moment_is_too_short_to_judge(self, process: Process) -> None:
        process.work(LOWER_WINDOW_SECONDS / 2, pace=50_000, share=0.9)

        process.limit.lower(process.taken)

        assert process.limit.current == 10


class TestWatch:
    @pytest.fixture(autouse=True)
    def _one_runs(self, process: Process) -> None:
        process.lower()

    def test_one_that_keeps_up_stays_alone(self, process: Process) -> None:
        assert [process.watch(pace=50_000, share=1.0) for _ in range(5)] == [1] * 5

    def test_when_nothing_is_taken_another_one_runs(self, process: Process) -> None:
        assert process.watch(pace=0, share=0.0) == 2

    def test_when_many_are_blocked_the_watcher_runs_beside_them(self, process: Process) -> None:
        assert process.watch(pace=0, share=0.0, active=6) == 6

    def test_no_more_run_than_there_are(self, process: Process) -> None:
        assert [process.watch(pace=0, share=0.0) for _ in range(5)] == [2, 4, 8, 10, 10]

    def test_a_large_batch_is_not_taken_for_a_blocked_job(self, process: Process) -> None:
        assert [process.watch(pace=0, share=0.9, is_flushing=True) for _ in range(3)] == [1, 1, 1]

    def test_while_whoever_flushes_is_blocked_all_run(self, process: Process) -> None:
        assert [process.watch(pace=0, share=0.0, is_flushing=True) for _ in range(2)] == [1, 10]

    def test_jobs_that_block_for_a_short_time_run_in_all_threads(self, process: Process) -> None:
        assert [process.watch(pace=8_000, share=0.2) for _ in range(2)] == [1, 10]

    def test_so_do_jobs_that_take_long(self, process: Process) -> None:
        assert [process.watch(pace=1_000, share=1.0) for _ in range(2)] == [1, 10]

    def test_a_watcher_that_waits_for_the_interpreter_sees_no_blocked_jobs(self, process: Process) -> None:
        assert [process.watch(pace=8_000, share=0.2, seconds=3 * WATCH_SECONDS) for _ in range(3)] == [1, 1, 1]

    def test_a_watcher_that_was_woken_has_seen_nothing(self, process: Process) -> None:
        assert process.watch(pace=0, share=0.0, seconds=WATCH_SECONDS / 2) == 1

    def test_units_that_have_just_come_were_not_left_lying(self, process: Process) -> None:
        process.limit.begin_watch(process.taken, process.received)
        process.work(WATCH_SECONDS, pace=0, share=0.0)

        process.limit.end_watch(process.taken, process.received + 100, 2, is_flushing=False)

        assert process.limit.current == 1


class TestDelay:
    def raise_and_lower(self, process: Process) -> float:
        """Return the seconds between a raise and the next time that one runs alone."""
        process.watch(pace=0, share=0.0)
        raised_at = process.clock.time
        while process.lower() > 1:
            assert process.clock.time < raised_at + 10
        return process.clock.time - raised_at

    def test_the_limit_is_lowered_again_after_a_while(self, process: Process) -> None:
        process.lower()
        process.work(TRIAL_SECONDS, pace=50_000, share=0.9)

        assert self.raise_and_lower(process) == pytest.approx(MIN_LOWER_DELAY_SECONDS, abs=LOWER_WINDOW_SECONDS)

    def test_each_trial_that_fails_doubles_the_delay(self, process: Process) -> None:
        process.lower()

        delays = [self.raise_and_lower(process) for _ in range(8)]

        doubled = [min(MIN_LOWER_DELAY_SECONDS * 2**number, MAX_LOWER_DELAY_SECONDS) for number in range(1, 9)]
        assert delays == pytest.approx(doubled, abs=1.5 * LOWER_WINDOW_SECONDS)

    def test_a_trial_that_succeeds_makes_it_short_again(self, process: Process) -> None:
        process.lower()
        for _ in range(4):
            self.raise_and_lower(process)
        process.work(TRIAL_SECONDS, pace=50_000, share=0.9)

        assert self.raise_and_lower(process) == pytest.approx(MIN_LOWER_DELAY_SECONDS, abs=1.5 * LOWER_WINDOW_SECONDS)
