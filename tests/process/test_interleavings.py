"""One thing comes in the middle of another: quiet, respawn, roll, reload, drain.  Nothing is stranded by that."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kiqcluster.store import Store
from tests.kit import Cluster, RedisServer, http_get, wait_until
from tests.process.stage import identities, ledger, push, restarts, wait_noted

Run = Callable[..., Cluster]

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


def test_a_quiet_that_ends_while_a_new_worker_waits_for_redis_has_ended_for_it_too(
    own_server: RedisServer, run_cluster: Run
) -> None:
    cluster = run_cluster("default", "-c", "1", "--redis", own_server.url)
    pids = cluster.wait_ready()
    cluster.signal(signal.SIGTSTP)
    cluster.wait_for("worker_quiet")
    own_server.kill()
    os.kill(pids[0], signal.SIGKILL)
    wait_until(lambda: status(cluster)["slots"][0]["waits_for"], "the new worker to wait for Redis")

    cluster.signal(signal.SIGCONT)
    cluster.wait_for("cluster_resumed")
    own_server.start()

    store = own_server.store()
    push(store, "record", "a")
    wait_noted(store, "ran a")


def test_a_quiet_that_is_asked_for_during_a_roll_outlives_it(run_cluster: Run, store: Store, control: Path) -> None:
    cluster = run_cluster("default", "other", "-c", "1", KIQ_CONTROL=str(control))
    cluster.wait_ready(2)
    cluster.signal(signal.SIGTSTP)
    cluster.wait_for("worker_quiet", count=2)
    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("child_replaced")

    assert post(control, "/quiet?by=incident&lease=1h") == 200
    cluster.wait_for("roll_done")

    wait_until(lambda: all(slot["quiet"] for slot in status(cluster)["slots"]), "every slot to be quiet")
    assert status(cluster)["quiet"]["by"] == "incident"


def test_a_second_quiet_reaches_who_was_resumed_alone(run_cluster: Run, store: Store, control: Path) -> None:
    cluster = run_cluster("default", "-c", "1", KIQ_CONTROL=str(control))
    pids = cluster.wait_ready()
    cluster.signal(signal.SIGTSTP)
    cluster.wait_for("worker_quiet")
    os.kill(pids[0], signal.SIGCONT)
    cluster.wait_for("worker_resumed")

    assert post(control, "/quiet?by=me") == 200

    cluster.wait_for("worker_quiet", count=2)
    wait_until(lambda: status(cluster)["slots"][0]["quiet"], "the slot to be quiet again")


def test_a_reload_whose_new_workers_do_not_boot_does_not_end_the_cluster(run_cluster: Run, tmp_path: Path) -> None:
    folder = _folder(tmp_path, ["default"])
    cluster = run_cluster("--directory", str(folder), "-C", str(folder / "kiqcluster.toml"), app="")
    cluster.wait_ready()
    _configure(folder, ["other"], APPLICATION + BREAKS_AT_STARTUP)

    cluster.signal(signal.SIGHUP)
    cluster.wait_for("child_backoff", count=2)
    assert cluster.process.poll() is None

    _configure(folder, ["other"], APPLICATION)
    cluster.wait_for("child_ready", count=2)


def test_the_counters_of_a_slot_that_goes_and_comes_back_do_not_go_back(run_cluster: Run, tmp_path: Path) -> None:
    folder = _folder(tmp_path, ["default", "other"])
    cluster = run_cluster("--directory", str(folder), "-C", str(folder / "kiqcluster.toml"), app="")
    os.kill(cluster.wait_ready(2)[1], signal.SIGKILL)
    cluster.wait_for("child_ready", slot=1, count=2)
    assert restarts(cluster, "killed", slot=1) == 1

    _configure(folder, ["default"])
    cluster.signal(signal.SIGHUP)
    wait_until(lambda: len(status(cluster)["slots"]) == 1, "the slot to be gone")
    _configure(folder, ["default", "other"])
    cluster.signal(signal.SIGHUP)
    cluster.wait_for("child_ready", slot=1, count=3)

    assert restarts(cluster, "killed", slot=1) == 1


def test_a_reload_during_a_roll_is_done_after_it(run_cluster: Run, tmp_path: Path) -> None:
    folder = _folder(tmp_path, ["default"])
    cluster = run_cluster("--directory", str(folder), "-C", str(folder / "kiqcluster.toml"), app="")
    cluster.wait_ready()
    _configure(folder, ["default", "other"])

    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("roll_started")
    cluster.signal(signal.SIGHUP)

    cluster.wait_for("reloaded")
    assert len(cluster.seen("roll_done")) == 1
    cluster.wait_for("child_ready", slot=1)


def test_draining_waits_for_what_a_replaced_process_still_runs(run_cluster: Run, store: Store) -> None:
    push(store, "nap", "a", 6.0)  # the new process is calm for longer than --drain wants before this has ended
    cluster = run_cluster("default", "-c", "1", "--drain")
    cluster.wait_ready()
    wait_noted(store, "began a")

    cluster.signal(signal.SIGUSR2)

    assert cluster.wait() == 0
    assert ledger(store) == ["began a", "ended a"]
    assert [len(cluster.seen(name)) for name in ("roll_done", "roll_failed")] == [1, 0]


def test_the_same_order_without_a_name_is_obeyed_each_time(run_cluster: Run, store: Store) -> None:
    cluster = run_cluster("default", "-c", "1")
    cluster.wait_ready()

    for count in (1, 2):
        (identity,) = wait_until(lambda: identities(store) if len(identities(store)) == 1 else None, "one process")
        store.call("RPUSH", store.keys.control(identity), '{"action":"roll","scope":"cluster"}')
        cluster.wait_for("roll_done", count=count)


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
