"""Rate limits in real clusters: every job runs, and never too many in a period, though processes are killed."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from math import floor

import pytest

from tests.apps.rated import LARGEST, SECONDS
from tests.kit import freeze, wait_until
from tests.stage import Stage, pid_of

APP = "tests.apps.rated"
REFUSED = 'sidekiq_jobs_rate_limited_total{queue="default",worker="within"}'
JOBS = 15
CLOCK_SECONDS = 0.05  # between the count of a start and the line that the job notes


def fits_any_period(times: list[float]) -> bool:
    return all(after - first > SECONDS - CLOCK_SECONDS for first, after in zip(times, times[LARGEST:], strict=False))


def fits_windows(times: list[float]) -> bool:
    """Return whether each start finds room in its window, or in the one before if it may have been counted there."""
    counted: Counter[int] = Counter()
    for time in times:
        windows = {floor((time - CLOCK_SECONDS) / SECONDS), floor(time / SECONDS)}
        window = next((each for each in sorted(windows) if counted[each] < LARGEST), None)
        if window is None:
            return False
        counted[window] += 1
    return True


def fits_bucket(times: list[float]) -> bool:
    return all(
        number <= LARGEST + (last - first + CLOCK_SECONDS) * LARGEST / SECONDS
        for at, first in enumerate(times)
        for number, last in enumerate(times[at:], 1)
    )


FITS: dict[str, Callable[[list[float]], bool]] = {
    "by_option": fits_any_period,
    "in_block": fits_any_period,
    "in_window": fits_windows,
    "leaking": fits_bucket,
}


@pytest.mark.quiet
@pytest.mark.parametrize("names", [("by_option", "in_window", "leaking"), ("in_block",)])
def test_each_job_runs_once_and_never_too_many_in_a_period(stage: Stage, names: tuple[str, ...]) -> None:
    """The holder of some starts is killed: these count as starts, and their jobs run again."""
    cluster = stage.run_cluster("default", "default", "-c", "5", app="tests.apps.rated", KIQ_HEALTH_RESPAWN_BURST="100")
    cluster.wait_ready(2)
    words = [f"job-{number}" for number in range(JOBS)]
    for name in names:
        stage.push_many(name, [[f"{name}/{word}"] for word in words])

    wait_until(lambda: len(stage.notes()) >= LARGEST, "the first ones to run")
    os.kill(cluster.pids()[0], signal.SIGKILL)
    expected = {f"{name}/{word}" for name in names for word in words}
    wait_until(lambda: {line.split()[0] for line in stage.notes()} == expected, "all of them to run")

    for name in names:
        times = sorted(float(line.split()[1]) for line in stage.notes() if line.startswith(f"{name}/"))
        assert FITS[name](times), name
    wait_until(lambda: stage.remaining() == {}, "all to be settled")
    assert stage.store.call("GET", "stat:failed") in (None, b"0")


def noted(stage: Stage, what: str) -> list[str]:
    """Return what has begun, left or ended, in order."""
    return [line.split()[1] for line in stage.notes() if line.startswith(f"{what} ")]


def within(stage: Stage) -> list[int]:
    """Return the pids of those that are within."""
    members = stage.store.call("SMEMBERS", stage.store.keys.running("door"))
    return [pid_of(member.decode().rpartition("/")[0]) for member in members]


def test_the_place_of_a_job_comes_back_with_its_unit_when_its_process_is_killed(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "default", "-c", "2", app=APP)
    cluster.wait_ready(2)
    stage.push("within", "a")
    stage.wait_noted("began a")
    stage.push("within", "b")
    wait_until(lambda: cluster.metric(REFUSED) >= 1, "the job that was put off to be counted")
    assert noted(stage, "began") == ["a"]
    (pid,) = within(stage)

    os.kill(pid, signal.SIGKILL)

    wait_until(lambda: len(noted(stage, "began")) == 2, "the next one within")
    wait_until(lambda: len(within(stage)) == 1 and within(stage) != [pid], "its place")
    stage.release()
    wait_until(lambda: set(noted(stage, "left")) == {"a", "b"}, "all to leave the block, though none has ended")
    wait_until(lambda: within(stage) == [], "the place to be free at once")
    assert noted(stage, "ended") == []
    stage.store.call("LPUSH", "end", "1")
    wait_until(lambda: set(noted(stage, "ended")) == {"a", "b"}, "all to end")
    wait_until(lambda: stage.remaining() == {}, "all to be settled")
    assert stage.store.call("KEYS", "kiq:held:*") == []


def test_a_process_that_slept_through_its_recovery_has_lost_its_place(stage: Stage) -> None:
    environ = {"KIQ_HEALTH_SILENCE_TIMEOUT": "0", "KIQ_HEALTH_RECOVER_AFTER": "2"}
    sleeper = stage.run_cluster("default", "-c", "2", app=APP, **environ)
    pid = sleeper.wait_ready()[0]
    stage.push("within", "a")
    stage.wait_noted("began a")
    stage.run_cluster("default", "-c", "2", app=APP, **environ).wait_ready()

    freeze(pid)
    wait_until(lambda: noted(stage, "began") == ["a", "a"], "the job to run again")
    wait_until(lambda: len(within(stage)) == 1 and within(stage) != [pid], "the place of the other process only")

    os.kill(pid, signal.SIGCONT)
    sleeper.wait_for("worker_fenced")
    stage.store.call("LPUSH", "end", "1")
    stage.release()  # the sleeper leaves its block as well, and so takes no place from anybody
    wait_until(lambda: noted(stage, "ended") == ["a", "a"], "both to end")
    wait_until(lambda: stage.remaining() == {}, "all to be settled")
    assert within(stage) == []


def test_never_do_more_run_at_once_and_all_end_though_a_process_is_killed(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "default", "-c", "4", app=APP, KIQ_HEALTH_RESPAWN_BURST="100")
    cluster.wait_ready(2)
    words = [str(number) for number in range(JOBS)]
    stage.push_many("counted", [[word] for word in words])

    wait_until(lambda: len(set(noted(stage, "ended"))) >= 5, "some of them")
    os.kill(cluster.pids()[0], signal.SIGKILL)

    wait_until(lambda: set(noted(stage, "ended")) == set(words), "all of them")
    wait_until(lambda: stage.remaining() == {}, "all to be settled")
    assert max(int(line.split()[2]) for line in stage.notes() if line.startswith("began")) <= 2
    assert stage.store.call("KEYS", "kiq:rate:*:running") == []
