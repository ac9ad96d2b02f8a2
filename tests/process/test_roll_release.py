"""Which release a roll brings, and which one a worker that dies is replaced from, while the link `current` moves."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

from kiqcluster.sidekiq import ruby_json
from tests.kit import Cluster, http_get, wait_until
from tests.process.releases import Releases
from tests.stage import Stage

GATE = "while 'KIQ_SLOT' in os.environ and not pathlib.Path('../../go').exists(): time.sleep(0.01)"


def running(cluster: Cluster) -> list[str]:
    """Return the release of each slot."""
    return [Path(slot["release"]).name for slot in cluster.slots()]


def status(cluster: Cluster) -> dict[str, Any]:
    document: dict[str, Any] = ruby_json.decode(http_get(cluster.port, "/status")[2])
    return document


def kill(cluster: Cluster, slot: int) -> None:
    """Kill the worker of a slot and wait for the next one."""
    ready = len(cluster.seen("child_ready", slot=slot))
    os.kill(cluster.slots()[slot]["pid"], signal.SIGKILL)
    cluster.wait_for("child_ready", slot=slot, count=ready + 1)


def begin_roll(cluster: Cluster) -> None:
    """Begin a roll, and wait until the successor of slot 0 boots."""
    started = len(cluster.seen("child_started", slot=0))
    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("child_started", slot=0, count=started + 1)


def test_every_worker_gets_the_release_that_its_roll_has_begun_with_and_so_does_who_replaces_it(
    stage: Stage, releases: Releases
) -> None:
    gate = releases.current.parent / "go"
    cluster = releases.run(stage, "default", "other", "-c", "1")
    cluster.wait_ready(2)

    releases.deploy("2", f"{GATE}\n@job()\ndef late():\n    import only_in_2\n    note(only_in_2.WORD)")
    (releases.current / "only_in_2.py").write_text("WORD = 'of release 2'")
    kill(cluster, 1)
    assert running(cluster) == ["1", "1"]  # the link was moved, and no roll has come yet

    begin_roll(cluster)
    releases.deploy("1")  # somebody moves the link back
    gate.touch()
    cluster.wait_for("roll_done")
    assert running(cluster) == ["2", "2"]
    assert releases.path("1") in status(cluster)["roll_needed"]
    assert releases.path("1") in cluster.wait_for("release_moved")["wanted"]

    kill(cluster, 0)
    assert running(cluster) == ["2", "2"]
    stage.push("late")
    stage.push("late", queue="other")
    stage.wait_noted("of release 2")  # what is imported later is of the same release, wherever the link leads

    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("roll_done", count=2)
    assert running(cluster) == ["1", "1"]
    assert status(cluster)["roll_needed"] == ""


def test_a_release_that_is_removed_during_its_roll_ends_the_roll_and_the_old_workers_stay(
    stage: Stage, releases: Releases
) -> None:
    cluster = releases.run(stage, "default", "other", "-c", "1")
    before = stage.occupy(cluster, 2)
    releases.deploy("2")
    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("child_replaced", slot=0)  # the next slot waits for the job of the one that was replaced
    gone = Path(releases.path("2"))
    releases.deploy("1")
    shutil.rmtree(gone)
    stage.release()

    report = stage.wait_roll("failed")

    assert f"{gone} is gone" in report["error"]
    assert running(cluster)[1] == "1"
    assert cluster.pids()[1] == before[1]
    kill(cluster, 0)
    assert running(cluster) == ["1", "1"]
    wait_until(lambda: cluster.is_ready(), "all to serve")


def test_a_release_that_is_removed_ends_a_roll_that_waits_for_an_empty_slot(stage: Stage, releases: Releases) -> None:
    cluster = releases.run(stage, "default", "other", "-c", "1")
    before = stage.occupy(cluster, 2)
    releases.deploy("2")
    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("child_replaced", slot=0)
    shutil.rmtree(releases.path("2"))
    os.kill(before[1], signal.SIGKILL)
    cluster.wait_for("fork_failed", slot=1)
    stage.release()

    report = stage.wait_roll("failed")

    assert "is gone" in report["error"]
    wait_until(lambda: cluster.is_ready(), "all to serve")
    assert running(cluster)[1] == "1"


def test_without_its_link_a_cluster_replaces_workers_and_refuses_a_roll(stage: Stage, releases: Releases) -> None:
    cluster = releases.run(stage, "default", "-c", "1")
    cluster.wait_ready()
    releases.current.unlink()

    kill(cluster, 0)
    assert running(cluster) == ["1"]
    cluster.signal(signal.SIGUSR2)

    assert "current is gone" in stage.wait_roll("failed")["error"]
    releases.deploy("2")
    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("roll_done")
    assert running(cluster) == ["2"]


def test_a_reload_says_that_new_slots_have_another_release(stage: Stage, releases: Releases, tmp_path: Path) -> None:
    file = tmp_path / "kiqcluster.toml"
    file.write_text('groups = ["default"]\nconcurrency = 1')
    cluster = releases.run(stage, "-C", str(file))
    cluster.wait_ready(1)
    releases.deploy("2")
    file.write_text('groups = ["default", "other"]\nconcurrency = 1')

    cluster.signal(signal.SIGHUP)
    cluster.wait_for("child_ready", slot=1)

    assert running(cluster) == ["1", "2"]
    assert releases.path("2") in status(cluster)["roll_needed"]


def test_a_release_that_a_reload_brings_and_that_does_not_boot_gives_way_to_the_one_before(
    stage: Stage, releases: Releases
) -> None:
    cluster = releases.run(stage, "default", "other", "-c", "1")
    cluster.wait_ready(2)
    releases.deploy("2", "assert 'KIQ_SLOT' not in os.environ")
    cluster.signal(signal.SIGHUP)
    cluster.wait_for("reloaded")

    kill(cluster, 0)
    assert cluster.wait_for("child_backoff", slot=0)  # it was tried
    assert running(cluster) == ["1", "1"]

    cluster.signal(signal.SIGHUP)
    cluster.wait_for("reloaded", count=2)
    cluster.signal(signal.SIGUSR2)
    assert stage.wait_roll("failed")["done"] == 0
    kill(cluster, 1)
    assert running(cluster) == ["1", "1"]


def test_after_a_roll_that_fails_a_reload_before_it_does_not_keep_its_release_in_use(
    stage: Stage, releases: Releases
) -> None:
    cluster = releases.run(stage, "default", "-c", "1")
    cluster.wait_ready()
    releases.deploy("2", "assert 'KIQ_SLOT' not in os.environ")
    cluster.signal(signal.SIGHUP)
    cluster.wait_for("reloaded")
    cluster.signal(signal.SIGUSR2)
    stage.wait_roll("failed")

    kill(cluster, 0)

    assert running(cluster) == ["1"]
    assert not cluster.seen("child_backoff")
