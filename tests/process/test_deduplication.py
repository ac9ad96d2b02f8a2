"""Deduplication in real clusters: a lock ends with its job, whatever becomes of processes, and is never shared."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter

import pytest

from kiqcluster.api import LockSet
from tests import forkserver
from tests.apps.deduplicated import announce, refresh, single
from tests.kit import ROOT, freeze, wait_until
from tests.stage import Stage, pid_of

APP = "tests.apps.deduplicated"
RACERS, KEYS = 3, 200


def counts(stage: Stage, *words: str) -> Counter[str]:
    """Return jid → how often a job has noted these words with it."""
    lines = [line.split() for line in stage.notes()]
    return Counter(line[-1] for line in lines if tuple(line[:-1]) == words)


def held_by(stage: Stage) -> list[str]:
    return [lock.jid for lock in LockSet(store=stage.store)]


def wait_begun(stage: Stage, jid: str, times: int = 1) -> None:
    wait_until(lambda: counts(stage, "began", "a")[jid] == times, f"{jid} to begin")


def test_the_lock_of_a_job_that_is_killed_stays_with_it_until_it_has_run(stage: Stage) -> None:
    cluster = stage.run_cluster("default", app=APP)
    pid = cluster.wait_ready()[0]
    jid = stage.push(refresh, "a", "gate")
    wait_begun(stage, jid)

    os.kill(pid, signal.SIGKILL)
    assert stage.push(refresh, "a", "gate") == jid
    wait_begun(stage, jid, times=2)
    assert stage.push(refresh, "a", "gate") == jid, "it is dropped while the second try runs"
    assert held_by(stage) == [jid]
    stage.store.call("SET", "open:gate", 1)

    wait_until(lambda: not held_by(stage), "the lock to be released")
    stage.wait_settled()
    began = counts(stage, "began", "a")
    assert began.pop(jid) == 2
    assert list(began.values()) == [1], "and once more, for the push that was dropped"
    assert stage.queued() == []


def test_a_job_that_is_killed_after_it_gave_up_its_lock_takes_no_lock_of_the_next(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1", app=APP)
    pid = cluster.wait_ready()[0]
    first = stage.push(announce, "a", "gate")
    wait_begun(stage, first)
    second = stage.push(announce, "a", "gate")
    assert second != first, "the first one runs, and holds nothing back"

    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: sum(counts(stage, "began", "a").values()) == 2, "one of them to run")

    running = next(jid for jid in (first, second) if counts(stage, "began", "a")[jid] == (2 if jid == first else 1))
    assert held_by(stage) == ([second] if running == first else [])
    if running == first:
        assert stage.push(announce, "a", "gate") == second
    stage.store.call("SET", "open:gate", 1)
    wait_until(lambda: counts(stage, "ended", "a") == {first: 1, second: 1}, "both to end")
    stage.wait_settled()
    assert (stage.queued(), held_by(stage)) == ([], [])


def test_a_frozen_holder_that_others_have_recovered_releases_nothing_when_it_wakes(stage: Stage) -> None:
    environ = {"KIQ_HEALTH_SILENCE_TIMEOUT": "0", "KIQ_HEALTH_RECOVER_AFTER": "2"}
    sleeper, neighbour = (stage.run_cluster("default", "-c", "2", app=APP, **environ) for _ in range(2))
    pid = sleeper.wait_ready()[0]
    neighbour.wait_ready()
    neighbour.signal(signal.SIGTSTP)
    neighbour.wait_for("worker_quiet")
    first = stage.push(refresh, "a", "one")
    wait_begun(stage, first)
    (old,) = (name for name in stage.members() if pid_of(name) == pid)

    freeze(pid)
    neighbour.signal(signal.SIGCONT)
    wait_begun(stage, first, times=2)  # by its neighbour
    assert stage.push(refresh, "a", "one") == first
    stage.store.call("SET", "open:one", 1)
    wait_until(lambda: len(counts(stage, "ended", "a")) == 2, "it to run, and once more")
    wait_until(lambda: not held_by(stage), "the lock to be released")
    second = stage.push(refresh, "a", "two")
    wait_begun(stage, second)
    os.kill(pid, signal.SIGCONT)
    sleeper.wait_for("worker_fenced", old=old)
    wait_until(lambda: counts(stage, "ended", "a")[first] == 2, "the first to end there, too")

    assert held_by(stage) == [second]
    assert stage.push(refresh, "a", "three") == second
    stage.store.call("SET", "open:two", 1)
    wait_until(lambda: not held_by(stage), "the lock to be released")
    stage.wait_settled()
    assert len(counts(stage, "began", "a")) == 4  # first, once more, second, once more


RACE = """
import json, sys
from random import Random
from kiqcluster import configure
import tests.apps.deduplicated as app
names = [f"key {number}" for number in range(int(sys.argv[1]))]
Random(int(sys.argv[2])).shuffle(names)
print("ready", flush=True)
sys.stdin.readline()
print(json.dumps({name: app.notify.perform_async(name) for name in names}))
"""


def test_of_equal_pushes_of_many_processes_one_is_written_and_all_return_its_jid(stage: Stage) -> None:
    environ = {**os.environ, "REDIS_URL": stage.redis.url}
    racers = [
        forkserver.Popen(
            [sys.executable, "-c", RACE, str(KEYS), str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=environ,
            text=True,
        )
        for seed in range(RACERS)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    results = [json.loads(racer.communicate("go\n")[0]) for racer in racers]

    queued = {payload["args"][0]: payload["jid"] for payload in stage.queued()}
    assert results == [queued] * RACERS
    assert len(stage.queued()) == len(queued) == KEYS
    assert stage.store.call("HGET", "kiq:deduplicated", "notify") == str(KEYS * (RACERS - 1)).encode()
    cluster = stage.run_cluster("default", "default", app=APP)
    cluster.wait_ready(2)
    wait_until(lambda: len(counts_of_all(stage)) == KEYS, "all of them to run")
    wait_until(lambda: not held_by(stage), "the locks to be released")
    assert set(counts_of_all(stage).values()) == {1}


def counts_of_all(stage: Stage) -> Counter[str]:
    return Counter(line.split()[-1] for line in stage.notes() if line.startswith("ran"))


@pytest.mark.parametrize("kills", [0, 4])
def test_equal_jobs_run_one_after_the_other_though_processes_are_killed(stage: Stage, kills: int) -> None:
    cluster = stage.run_cluster("default", "default", "-c", "5", app=APP, KIQ_HEALTH_RESPAWN_BURST="100")
    cluster.wait_ready(2)
    jids = set(stage.push_many(single, [["a", number % 2] for number in range(80)]))

    def ended() -> set[str]:
        return {line.split()[-1] for line in stage.notes() if line.startswith("ended")}

    for number in range(kills):
        wait_until(lambda number=number: len(ended()) >= 10 * (number + 1), "some of them")
        slot = number % 2
        pid = cluster.pids()[slot]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda slot=slot, pid=pid: cluster.pids().get(slot, pid) != pid, "the next process")

    wait_until(lambda: ended() == jids, "all of them")
    stage.wait_settled()
    assert {line.split()[-1] for line in stage.notes() if line.startswith("began")} == {"1"}
    wait_until(lambda: stage.store.call("KEYS", "kiq:held:*") == [], "nothing to be held")
