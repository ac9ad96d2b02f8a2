"""--watch: a source file that changes rolls the workers; for development."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit import is_alive, wait_until
from tests.proc import children, wait_exited
from tests.process.releases import Releases
from tests.stage import Stage


def change(releases: Releases, before: str, after: str) -> None:
    """Edit the application in place."""
    file = releases.current / "shop.py"
    file.write_text(file.read_text().replace(before, after))


def test_a_changed_file_renews_the_workers(stage: Stage, releases: Releases) -> None:
    cluster = releases.run(stage, "default", "-c", "1", "--watch")
    first = cluster.wait_ready()[0]
    stage.push("release")
    stage.wait_noted("release 1")

    change(releases, "'1'", "'edited'")
    cluster.wait_for("roll_done")
    stage.push("release")

    stage.wait_noted("release edited")
    assert stage.notes() == ["release 1", "release edited"]
    wait_exited(first)
    (releases.current / "new_module.py").write_text("")
    cluster.wait_for("roll_done", count=2)


def test_all_slots_run_the_new_code_while_an_old_worker_ends_its_job(stage: Stage, releases: Releases) -> None:
    cluster = releases.run(stage, "default", "default", "-c", "1", "--watch", KIQ_ROLL_BAKE_TIME="3600")
    before = stage.occupy(cluster, 2)

    change(releases, "'1'", "'edited'")
    cluster.wait_for("roll_done")

    assert set(before.values()).isdisjoint(cluster.pids().values())
    stage.push("release")
    stage.wait_noted("release edited")
    stage.release()
    wait_exited(*before.values())
    assert stage.notes() == ["began a", "release edited", "ended a"]


@pytest.mark.full
def test_a_file_that_is_broken_while_it_is_edited_stops_nothing(stage: Stage, releases: Releases) -> None:
    cluster = releases.run(stage, "default", "-c", "1", "--watch")
    first = cluster.wait_ready()[0]

    change(releases, "def release", "def rel(")
    cluster.wait_for("roll_failed")
    stage.push("record", "a")
    stage.wait_noted("ran a")
    assert is_alive(first)
    change(releases, "def rel(", "def release")

    cluster.wait_for("roll_done")
    stage.push("release")
    stage.wait_noted("release 1")


def test_what_is_no_source_renews_nothing(stage: Stage, releases: Releases) -> None:
    cluster = releases.run(stage, "default", "-c", "1", "--watch")
    cluster.wait_ready()
    environment = releases.current / "venv"
    for place in (releases.current, releases.current / ".git", environment, releases.current / "node_modules"):
        place.mkdir(exist_ok=True)
    (environment / "pyvenv.cfg").touch()
    (releases.current / "data.json").write_text("{}")
    for place in (releases.current / ".git", environment, releases.current / "node_modules"):
        (place / "some.py").write_text("")
    (releases.current / "last.py").write_text("")

    assert Path(cluster.wait_for("file_changed")["path"]).name == "last.py"
    cluster.wait_for("roll_done")
    assert len(cluster.seen("roll_started")) == 1


def test_the_process_that_watches_ends_with_the_cluster(stage: Stage, releases: Releases) -> None:
    cluster = releases.run(stage, "default", "-c", "1", "--watch")
    worker = cluster.wait_ready()[0]
    wait_until(lambda: len(children(cluster.pid)) == 2, "a worker and the one that watches")
    processes = children(cluster.pid)

    assert cluster.stop() == 0

    assert worker in processes
    wait_exited(*processes)
    assert stage.notes() == []


def test_the_process_that_watches_ends_with_a_killed_supervisor(stage: Stage, releases: Releases) -> None:
    cluster = releases.run(stage, "default", "-c", "1", "--watch")
    cluster.wait_ready()
    wait_until(lambda: len(children(cluster.pid)) == 2, "a worker and the one that watches")
    processes = children(cluster.pid)

    cluster.process.kill()

    wait_exited(*processes)
