"""The holder of a lock is killed or freezes while it hands the lock on: the settle is on its way, or its reply is.

A late settle hands on nothing: the job has run elsewhere meanwhile, or another one has its lock.
"""

from __future__ import annotations

import os
import signal

import pytest

from kiqcluster.api import LockSet
from kiqcluster.store.scripts import SETTLE
from tests.apps.deduplicated import refresh
from tests.kit import freeze, wait_until
from tests.proxy import Proxy
from tests.stage import Stage

APP = "tests.apps.deduplicated"
ENVIRON = {"KIQ_HEALTH_SILENCE_TIMEOUT": "0", "KIQ_HEALTH_RECOVER_AFTER": "2"}
SETTLES = 1_000  # that suffer: no other one of the process gets through


def began(stage: Stage) -> list[str]:
    return [line.split()[-1] for line in stage.notes() if line.startswith("began a")]


def held_by(stage: Stage) -> list[str]:
    return [lock.jid for lock in LockSet(store=stage.store)]


@pytest.mark.parametrize(
    ("fault", "end"),
    [
        ("hold", "frozen"),
        ("lose_replies", "killed"),
        pytest.param("hold", "killed", marks=pytest.mark.full),
        pytest.param("lose_replies", "frozen", marks=pytest.mark.full),
    ],
)
def test_a_lock_is_handed_on_once_whatever_becomes_of_its_holder(stage: Stage, fault: str, end: str) -> None:
    with Proxy(("127.0.0.1", stage.redis.port)) as proxy:
        holder = stage.run_cluster("default", "-c", "1", "--redis", proxy.url, app=APP, **ENVIRON)
        pid = holder.wait_ready()[0]
        first = stage.push(refresh, "a", "one")
        wait_until(lambda: began(stage) == [first], "the first to run")
        assert stage.push(refresh, "a", "one") == first, "it is dropped, and has a run to come"
        suffering = getattr(proxy, fault)(SETTLE.digest.encode(), times=SETTLES)
        stage.store.call("SET", "open:one", 1)
        wait_until(lambda: suffering.hits, "the settle to be on its way")

        if end == "killed":
            holder.signal(signal.SIGKILL)  # its supervisor: nobody but the neighbour goes on
            os.kill(pid, signal.SIGKILL)
        else:
            freeze(pid)
        neighbour = stage.run_cluster("default", "-c", "1", app=APP, **ENVIRON)
        neighbour.wait_ready()

        wait_until(lambda: len(began(stage)) == 2, "the run to come")
        assert began(stage)[1] == first if fault == "hold" else began(stage)[1] != first
        wait_until(lambda: held_by(stage) == [], "the lock to be free")
        second = stage.push(refresh, "a", "two")
        wait_until(lambda: began(stage)[2:] == [second], "the next one to run")
        proxy.release(suffering)
        proxy.forget()
        if end == "frozen":
            os.kill(pid, signal.SIGCONT)
            holder.wait_for("worker_fenced")
        stage.store.call("PING")

        assert held_by(stage) == [second]
        assert stage.push(refresh, "a", "two") == second
        stage.store.call("SET", "open:two", 1)
        wait_until(lambda: len(began(stage)) == 4 and held_by(stage) == [], "its run to come")
        stage.wait_settled()
        assert stage.queued() == []
        assert len(set(began(stage))) == len(began(stage)) - (fault == "hold")
