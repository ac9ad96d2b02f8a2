"""Concurrency limits in a real cluster: how many run, in which order, whatever becomes of processes and limits."""

from __future__ import annotations

import json
import os
import signal

import pytest

from kiqcluster.api import ParkedJobs, concurrency_limits, end_override, override_limit
from kiqcluster.store import Store
from tests.chaos.scale import sized
from tests.kit import TIMEOUT_SECONDS, freeze, wait_until
from tests.process.test_idle import wait_calm
from tests.stage import Stage, pid_of

APP = "tests.apps.limits"
RECOVER_AFTER = "2"  # seconds
PARKED_JOBS = sized(300, 100_000)
PARKING_SECONDS = sized(TIMEOUT_SECONDS, 600.0)  # until all of them are parked
WATCHED_SECONDS = sized(3, 15)


def noted(stage: Stage, what: str) -> list[str]:
    """Return what has begun or ended, in order."""
    return [line.removeprefix(f"{what} ") for line in stage.notes() if line.startswith(f"{what} ")]


def wait_parked(store: Store, name: str, count: int, seconds: float = TIMEOUT_SECONDS) -> None:
    wait_until(lambda: len(ParkedJobs(name, store=store)) == count, f"{count} jobs of {name} to be parked", seconds)


def wait_over(stage: Stage) -> None:
    """Wait until nothing is held or parked."""
    wait_until(
        lambda: not any(each.holders or each.parked for each in concurrency_limits(store=stage.store)),
        "all places to be free and no job to be parked",
    )


@pytest.mark.parametrize("kills", [0, 4])
def test_never_do_more_run_and_all_end_though_processes_are_killed(stage: Stage, kills: int) -> None:
    cluster = stage.run_cluster("default", "default", "-c", "5", app=APP, KIQ_HEALTH_RESPAWN_BURST="100")
    cluster.wait_ready(2)
    words = [str(number) for number in range(100)]
    stage.push_many("quick", [[word] for word in words])

    for number in range(kills):
        wait_until(lambda number=number: len(set(noted(stage, "ended"))) >= 10 * (number + 1), "some of them")
        slot = number % 2
        pid = cluster.pids()[slot]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda slot=slot, pid=pid: cluster.pids().get(slot, pid) != pid, "the next process")

    wait_until(lambda: set(noted(stage, "ended")) == set(words), "all of them")
    wait_over(stage)
    assert max(int(line.split()[1]) for line in noted(stage, "began")) <= 2
    wait_until(lambda: stage.store.call("KEYS", "kiq:held:*") == [], "nothing to be held")


def test_parked_jobs_go_on_in_the_order_in_which_they_came_also_across_processes(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "other", "-c", "4", app=APP)
    cluster.wait_ready(2)
    stage.push("held", "0")
    stage.wait_noted("began 0")
    for number in range(1, 12):
        stage.push("held", str(number), queue=("default", "other")[number % 2])
        wait_parked(stage.store, "held", number)

    stage.release()

    wait_until(lambda: len(noted(stage, "ended")) == 12, "all of them")
    assert noted(stage, "began") == noted(stage, "ended") == [str(number) for number in range(12)]


def test_each_key_has_a_limit_of_its_own(stage: Stage) -> None:
    stage.run_cluster("default", "-c", "5", app=APP).wait_ready()
    stage.push_many("keyed", [[account, str(number)] for number in range(3) for account in "ab"])

    wait_until(lambda: {word[0] for word in noted(stage, "began")} == {"a", "b"}, "one of each key")
    wait_parked(stage.store, "keyed", 4)
    line = [" ".join(job.display_args) for job in ParkedJobs("keyed", store=stage.store)]
    stage.release()

    wait_until(lambda: len(noted(stage, "ended")) == 6, "all of them")
    assert {*line[:2]} == {word for word in line if word[0] == "a"}, "shown key by key"
    assert [word for word in noted(stage, "began")[2:] if word[0] == "a"] == line[:2]
    assert [word for word in noted(stage, "began")[2:] if word[0] == "b"] == line[2:]


def test_a_limit_in_percent_counts_the_threads_of_the_fleet(stage: Stage) -> None:
    """Of eight threads; a process counts them before its first job."""
    first = stage.run_cluster("default", "-c", "2", app=APP)
    first.wait_ready()
    stage.run_cluster("default", "-c", "6", app=APP).wait_ready()
    first.signal(signal.SIGTSTP)
    first.wait_for("worker_quiet")

    stage.push_many("half", [[str(number)] for number in range(6)])

    wait_until(lambda: len(noted(stage, "began")) == 4, "half of eight")
    wait_parked(stage.store, "half", 2)
    assert len(noted(stage, "began")) == 4


def test_the_jobs_of_a_killed_process_give_their_places_back_at_once(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "default", "-c", "2", app=APP)
    cluster.wait_ready(2)
    stage.push("held", "a")
    stage.wait_noted("began a")
    stage.push("held", "b")
    wait_parked(stage.store, "held", 1)
    ((holder,),) = (each.holders for each in concurrency_limits(store=stage.store))

    os.kill(pid_of(holder.identity), signal.SIGKILL)

    stage.wait_noted("began b")
    wait_parked(stage.store, "held", 1)  # a, which was given back to its queue
    stage.release()
    stage.wait_noted("ended a", "ended b")
    wait_over(stage)
    assert noted(stage, "began") == ["a", "b", "a"]


def test_a_process_that_slept_through_its_recovery_has_lost_its_place_and_takes_none(stage: Stage) -> None:
    environ = {"KIQ_HEALTH_SILENCE_TIMEOUT": "0", "KIQ_HEALTH_RECOVER_AFTER": RECOVER_AFTER}
    sleeper = stage.run_cluster("default", "-c", "2", app=APP, **environ)
    pid = sleeper.wait_ready()[0]
    stage.push("held", "a")
    stage.wait_noted("began a")
    stage.run_cluster("default", "-c", "2", app=APP, **environ).wait_ready()
    stage.push("held", "b")
    wait_parked(stage.store, "held", 1)

    freeze(pid)
    stage.wait_noted("began b")
    ((holder,),) = (each.holders for each in concurrency_limits(store=stage.store))
    assert pid_of(holder.identity) != pid
    wait_parked(stage.store, "held", 1)  # a again

    os.kill(pid, signal.SIGCONT)
    sleeper.wait_for("worker_fenced")
    stage.release()  # a of the sleeper ends as well; its settle changes nothing
    wait_until(lambda: noted(stage, "ended").count("a") == 2, "a to end twice")
    stage.wait_noted("ended b")
    wait_over(stage)


@pytest.mark.timeout(sized(120, 1_200))
def test_parked_jobs_cost_redis_nothing_while_they_wait(stage: Stage) -> None:
    stage.run_cluster("default", "-c", "3", app=APP, KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL="5").wait_ready()
    stage.push("asleep", "first")
    stage.wait_noted("began first")

    stage.push_many("asleep", [[str(number)] for number in range(PARKED_JOBS)])
    wait_parked(stage.store, "asleep", PARKED_JOBS, PARKING_SECONDS)

    wait_calm(stage.store, WATCHED_SECONDS)


def test_an_override_lets_more_run_at_once_and_its_end_fewer(stage: Stage) -> None:
    stage.run_cluster("default", "-c", "8", app=APP).wait_ready()
    stage.push_many("held", [[str(number)] for number in range(6)])
    wait_parked(stage.store, "held", 5)

    override_limit("held", 4, store=stage.store)

    wait_until(lambda: len(noted(stage, "began")) == 4, "four to run")
    wait_parked(stage.store, "held", 2)
    assert end_override("held", store=stage.store)
    stage.push("held", "6")
    wait_parked(stage.store, "held", 3)
    stage.release()
    wait_until(lambda: len(noted(stage, "ended")) == 7, "all of them")
    wait_over(stage)


def test_jobs_that_an_earlier_release_has_parked_run_in_one_without_limits(stage: Stage) -> None:
    words = [str(number) for number in range(12)]
    for place, word in enumerate(words):
        payload = json.dumps({"class": "record", "args": [word], "jid": word, "queue": "default"})
        stage.store.call("ZADD", "kiq:slots:record:parked", place, f"queue:default\0{payload}")
    stage.store.call("SADD", "kiq:parked", "kiq:slots:record")
    stage.store.call("HSET", "kiq:limits", "record", 1)

    stage.run_cluster("default", "-c", "2", KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL="0.2")

    wait_until(lambda: set(noted(stage, "ran")) == set(words), "all of them to run")
    assert len(ParkedJobs("record", store=stage.store)) == 0


def test_the_end_of_a_pause_by_time_starts_the_parked_jobs(stage: Stage) -> None:
    """No job of the limit runs, and nobody enqueues one: the end itself is the event."""
    stage.run_cluster("default", "-c", "4", app=APP, KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL="1").wait_ready()
    override_limit("quick", -1, 3.0, store=stage.store)
    stage.push_many("quick", [[str(number)] for number in range(20)])
    wait_parked(stage.store, "quick", 20)
    assert noted(stage, "began") == []

    wait_until(lambda: len(noted(stage, "ended")) == 20, "all of them")

    assert max(int(line.split()[1]) for line in noted(stage, "began")) <= 2
    assert stage.store.call("ZCARD", "kiq:limits:ends") == 0


def test_a_limit_that_a_function_returns_is_read_when_a_job_begins(stage: Stage) -> None:
    stage.run_cluster("default", "-c", "8", app=APP).wait_ready()
    stage.push_many("adjustable", [[str(number)] for number in range(3)])
    wait_parked(stage.store, "adjustable", 2)

    stage.store.call("SET", "limit", "3")
    stage.push("adjustable", "3")

    wait_until(lambda: set(noted(stage, "began")) == {"0", "1", "2"}, "those that waited for longer")
    wait_parked(stage.store, "adjustable", 1)
    assert set(noted(stage, "began")) == {"0", "1", "2"}
