"""A process that sleeps past its recovery holds places no more, and takes none from those who have them by then.

Of limits, rate limits and locks: test_limits, test_rate_limits, test_deduplication.
"""

from __future__ import annotations

import os
import signal

import pytest

from tests.apps.counting import FROZEN
from tests.apps.deduplicated import alone
from tests.kit import freeze, wait_until
from tests.stage import Stage, pid_of

ITEMS = 8


@pytest.mark.full
def test_limited_capacity_and_equal_jobs_go_on_without_a_frozen_process(stage: Stage) -> None:
    environ = {"KIQ_HEALTH_SILENCE_TIMEOUT": "0", "KIQ_HEALTH_RECOVER_AFTER": "2"}
    sleeper, neighbour = (
        stage.run_cluster("default,starts", "-c", "4", app="tests.apps.frozen", **environ) for _ in range(2)
    )
    pid = sleeper.wait_ready()[0]
    neighbour.wait_ready()
    neighbour.signal(signal.SIGTSTP)
    neighbour.wait_for("worker_quiet")
    stage.store.call("RPUSH", "work", *range(ITEMS))
    stage.push("start", queue="starts")
    wait_until(lambda: stage.store.call("LLEN", "taken") == 2, "two to run")
    first = stage.push(alone, "a", "gate")
    wait_until(lambda: began(stage) == [("1", first)], "the first of the equal ones to run")
    second = stage.push(alone, "a", "gate")
    (old,) = (name for name in stage.members() if pid_of(name) == pid)

    freeze(pid)
    stage.store.call("SADD", FROZEN, old)
    neighbour.signal(signal.SIGCONT)
    wait_until(
        lambda: stage.store.call("LLEN", "taken") == 3, "the neighbour to have a place"
    )  # suspects come one by one
    wait_until(lambda: len(began(stage)) == 2, "one of the equal ones to run there")
    os.kill(pid, signal.SIGCONT)
    sleeper.wait_for("worker_fenced", old=old)
    places = [stage.store.call("SMEMBERS", key) for key in stage.store.call("KEYS", "kiq:slots:*")]
    assert [{pid_of(place.decode().partition("/")[0]) == pid for place in each if b"/" in place} for each in places]
    stage.store.call("MSET", "open", 1, "open:gate", 1)

    wait_until(lambda: len(did(stage)) == ITEMS, "all the work to be done")
    wait_until(lambda: sorted(ended(stage)) == sorted([first, first, second]), "the first to end twice")
    stage.wait_settled()
    assert {int(words[-1]) for words in did(stage)} <= {-1, 0, 1}, "beside itself one at most; -1: it was frozen"
    assert {running for running, _ in began(stage)} == {"1"}
    wait_until(lambda: stage.remaining() == {}, "nothing to be left")
    assert stage.store.call("KEYS", "kiq:held:*") + stage.store.call("KEYS", "kiq:lock:*") == []


def did(stage: Stage) -> list[list[str]]:
    return [line.split() for line in stage.notes() if line.startswith("did")]


def began(stage: Stage) -> list[tuple[str, str]]:
    """Return how many of the equal jobs ran, and the jid, for each that has begun."""
    return [(words[2], words[3]) for words in map(str.split, stage.notes()) if words[0] == "began"]


def ended(stage: Stage) -> list[str]:
    return [line.split()[-1] for line in stage.notes() if line.startswith("ended")]
