"""One thing comes in the middle of another: quiet, respawn, roll, reload, drain.  Nothing is stranded by that."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.kit import Cluster, http_get, wait_until
from tests.stage import Stage

APPLICATION = """
from kiqcluster import job, on

@job()
def first(): pass

@job(queue="other")
def second(): pass
"""
BREAKS_AT_STARTUP = """
@on("startup")
def fail():
    raise RuntimeError("broken")
"""


def status(cluster: Cluster) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(http_get(cluster.port, "/status")[2])
    return document


def post(socket: Path, target: str) -> int:
    return http_get(socket, target, "POST")[0]  # type: ignore[arg-type]  # a path, or a port


@pytest.fixture
def control(tmp_path: Path) -> Path:
    """Where the control socket is."""
    return tmp_path / "control.sock"


@pytest.mark.own_redis
def test_a_quiet_that_ends_while_a_new_worker_waits_for_redis_has_ended_for_it_too(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1")
    pids = cluster.wait_ready()
    cluster.signal(signal.SIGTSTP)
    cluster.wait_for("worker_quiet")
    stage.redis.kill()
    os.kill(pids[0], signal.SIGKILL)
    wait_until(lambda: status(cluster)["slots"][0]["waits_for"], "the new worker to wait for Redis")

    cluster.signal(signal.SIGCONT)
    cluster.wait_for("cluster_resumed")
    stage.redis.start()

    stage.push("record", "a")
    stage.wait_noted("ran a")
    assert cluster.metric("kiqcluster_quiet") == 0


def test_a_quiet_that_is_asked_for_during_a_roll_outlives_it(stage: Stage, control: Path) -> None:
    cluster = stage.run_cluster("default", "other", "-c", "1", KIQ_CONTROL=str(control))
    cluster.wait_ready(2)
    cluster.signal(signal.SIGTSTP)
    cluster.wait_for("worker_quiet", count=2)
    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("child_replaced")

    assert post(control, "/quiet?by=incident&lease=1h") == 200
    cluster.wait_for("roll_done")

    wait_until(lambda: all(slot["quiet"] for slot in status(cluster)["slots"]), "every slot to be quiet")
    assert status(cluster)["quiet"]["by"] == "incident"


def test_a_second_quiet_reaches_who_was_resumed_alone(stage: Stage, control: Path) -> None:
    cluster = stage.run_cluster("default", "-c", "1", KIQ_CONTROL=str(control))
    pids = cluster.wait_ready()
    cluster.signal(signal.SIGTSTP)
    cluster.wait_for("worker_quiet")
    os.kill(pids[0], signal.SIGCONT)
    cluster.wait_for("worker_resumed")

    assert post(control, "/quiet?by=me") == 200

    cluster.wait_for("worker_quiet", count=2)
    wait_until(lambda: status(cluster)["slots"][0]["quiet"], "the slot to be quiet again")


def test_a_reload_whose_new_workers_do_not_boot_does_not_end_the_cluster(stage: Stage, tmp_path: Path) -> None:
    folder = _folder(tmp_path, ["default"])
    cluster = stage.run_cluster("--directory", str(folder), "-C", str(folder / "kiqcluster.toml"), app="")
    cluster.wait_ready()
    _configure(folder, ["other"], APPLICATION + BREAKS_AT_STARTUP)

    cluster.signal(signal.SIGHUP)
    cluster.wait_for("child_backoff", count=2)
    assert cluster.process.poll() is None

    _configure(folder, ["other"], APPLICATION)
    cluster.wait_for("child_ready", count=2)


def test_the_counters_of_a_slot_that_goes_and_comes_back_do_not_go_back(stage: Stage, tmp_path: Path) -> None:
    folder = _folder(tmp_path, ["default", "other"])
    cluster = stage.run_cluster("--directory", str(folder), "-C", str(folder / "kiqcluster.toml"), app="")
    os.kill(cluster.wait_ready(2)[1], signal.SIGKILL)
    cluster.wait_for("child_ready", slot=1, count=2)
    assert cluster.restarts("killed", slot=1) == 1

    _configure(folder, ["default"])
    cluster.signal(signal.SIGHUP)
    wait_until(lambda: len(status(cluster)["slots"]) == 1, "the slot to be gone")
    _configure(folder, ["default", "other"])
    cluster.signal(signal.SIGHUP)
    cluster.wait_for("child_ready", slot=1, count=3)

    assert cluster.restarts("killed", slot=1) == 1


def test_a_reload_during_a_roll_is_done_after_it(stage: Stage, tmp_path: Path) -> None:
    folder = _folder(tmp_path, ["default"])
    cluster = stage.run_cluster("--directory", str(folder), "-C", str(folder / "kiqcluster.toml"), app="")
    cluster.wait_ready()
    _configure(folder, ["default", "other"])

    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("roll_started")
    cluster.signal(signal.SIGHUP)

    cluster.wait_for("reloaded")
    assert len(cluster.seen("roll_done")) == 1
    cluster.wait_for("child_ready", slot=1)


def test_draining_waits_for_what_a_replaced_process_still_runs(stage: Stage) -> None:
    stage.push("nap", "a", 6.0)  # the new process is calm for longer than --drain wants before this has ended
    cluster = stage.run_cluster("default", "-c", "1", "--drain")
    cluster.wait_ready()
    stage.wait_noted("began a")

    cluster.signal(signal.SIGUSR2)

    assert cluster.wait() == 0
    assert stage.notes() == ["began a", "ended a"]
    assert [len(cluster.seen(name)) for name in ("roll_done", "roll_failed")] == [1, 0]


def test_the_same_order_without_a_name_is_obeyed_each_time(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1")
    cluster.wait_ready()

    for count in (1, 2):
        (identity,) = wait_until(lambda: stage.members() if len(stage.members()) == 1 else None, "one process")
        stage.store.call("RPUSH", stage.store.keys.control(identity), '{"action":"roll","scope":"cluster"}')
        cluster.wait_for("roll_done", count=count)

    assert len(cluster.seen("child_ready")) == 3


def _folder(place: Path, groups: list[str]) -> Path:
    folder = place / "application"
    folder.mkdir()
    _configure(folder, groups)
    return folder


def _configure(folder: Path, groups: list[str], source: str = APPLICATION) -> None:
    (folder / "application.py").write_text(source)
    (folder / "kiqcluster.toml").write_text(
        f'groups = {json.dumps(groups)}\nrequire = ["application"]\nconcurrency = 1\n'
    )
