"""Rolling restarts that fail: what works goes on working, the roll says why it stopped, and nothing of it is left."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from kiqcluster.sidekiq import ruby_json
from kiqcluster.supervisor.http.status import HIDDEN
from tests.kit import ROOT, http_get, is_alive, wait_until
from tests.kit import cluster as run
from tests.proc import children
from tests.process.capacity import Capacity
from tests.process.releases import Releases
from tests.stage import Stage

BROKEN = {
    "does not import": "raise RuntimeError('no database')",
    "imports in no worker": "assert 'KIQ_SLOT' not in os.environ",
    "ends while it imports": "if 'KIQ_SLOT' in os.environ: os._exit(0)",
    "has a startup handler that fails": "@on('startup')\ndef fail(): raise RuntimeError('no database')",
    "dies when it is ready": "@on('ready')\ndef die(): os._exit(1)",
}
IN_THE_LONG_FORM = {"imports in no worker", "ends while it imports"}


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(source, id=name, marks=[pytest.mark.full] if name in IN_THE_LONG_FORM else [])
        for name, source in BROKEN.items()
    ],
)
def test_a_release_that_does_not_boot_never_takes_a_slot(stage: Stage, releases: Releases, source: str) -> None:
    cluster = releases.run(stage, "default", "other", "-c", "1")
    pids = cluster.wait_ready(2)
    stage.wait_members(*pids.values())
    releases.deploy("2", source)

    with Capacity(cluster) as capacity:
        cluster.signal(signal.SIGUSR2)
        cluster.wait_for("roll_failed")

    report = stage.wait_roll("failed")
    assert (report["done"], report["of"]) == (0, 2)
    first_line = report["error"].partition("\n")[0]
    assert "no database" in first_line or "no database" not in source
    assert all(is_alive(pid) for pid in pids.values())
    assert capacity.fewest_ready == 2
    stage.push("release")
    stage.wait_noted("release 1")
    stage.wait_members(*pids.values())
    cluster.wait_children(*pids.values())


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("@on('startup')\ndef fail(): raise RuntimeError('no database')", "a startup handler failed (RuntimeError: "),
        ("if 'KIQ_SLOT' in os.environ: import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("if 'KIQ_SLOT' in os.environ:\n  @on('startup')\n  def leave(): raise SystemExit('gone')", "SystemExit: gone"),
        ("if 'KIQ_SLOT' in os.environ: time.sleep(60)", "health.boot_timeout"),
    ],
)
def test_a_worker_that_does_not_boot_says_why(
    stage: Stage, releases: Releases, tmp_path: Path, source: str, why: str
) -> None:
    control = tmp_path / "control"
    cluster = releases.run(stage, "default", "-c", "1", KIQ_HEALTH_BOOT_TIMEOUT="3", KIQ_CONTROL=str(control))
    cluster.wait_ready()
    releases.deploy("2", source)

    cluster.signal(signal.SIGUSR2)

    assert why in stage.wait_roll("failed")["error"].partition("\n")[0]
    for_owner, for_everybody = (ruby_json.decode(http_get(each, "/status")[2]) for each in (control, cluster.port))
    assert why in for_owner["slots"][0]["last_death"]["error"]
    assert for_owner["slots"][0]["last_death"]["release"] == releases.path("2")
    assert why not in ruby_json.encode(for_everybody).decode()
    assert for_everybody["roll"]["error"] == for_everybody["slots"][0]["last_death"]["error"] == HIDDEN


def test_a_release_whose_configuration_is_broken_is_refused_before_anything_is_replaced(
    stage: Stage, releases: Releases
) -> None:
    (releases.current / "kiqcluster.toml").write_text('groups = ["default"]\nrequire = ["shop"]')
    environ = {"PYTHONPATH": str(ROOT), "PWD": str(releases.current)}
    with run("--redis", stage.redis.url, cwd=releases.current, environ=environ) as cluster:
        pids = cluster.wait_ready()
        releases.deploy("2")
        (releases.current / "kiqcluster.toml").write_text('groups = ["default"]\nconcurency = 2\nrequire = ["shop"]')

        cluster.signal(signal.SIGUSR2)

        report = stage.wait_roll("failed")
        assert "'concurency'" in report["error"]
        assert report["done"] == 0
        assert len(cluster.seen("child_started")) == 1
        stage.push("release")
        stage.wait_noted("release 1")
        stage.wait_members(*pids.values())
        (releases.current / "kiqcluster.toml").write_text('groups = ["default"]\nrequire = ["shop"]')
        cluster.signal(signal.SIGUSR2)
        cluster.wait_for("roll_done")
        stage.push("release")
        stage.wait_noted("release 2")


def test_after_a_failed_roll_each_process_shows_which_release_it_runs(stage: Stage, releases: Releases) -> None:
    cluster = releases.run(stage, "default", "other", "-c", "1")
    cluster.wait_ready(2)
    releases.deploy("2", "assert os.environ.get('KIQ_SLOT') != '1'")
    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("roll_failed")
    old, new = releases.path("1"), releases.path("2")
    assert [(slot["release"], slot["generation"]) for slot in cluster.slots()] == [(new, 1), (old, 0)]

    os.kill(cluster.slots()[0]["pid"], signal.SIGKILL)
    behind = cluster.wait_for("child_behind", slot=0)
    cluster.wait_for("child_ready", child=behind["child"])

    assert (behind["release"], behind["wanted"]) == (old, new)
    assert [(slot["release"], slot["generation"]) for slot in cluster.slots()] == [(old, 0), (old, 0)]
    stage.wait_document(
        "each process to be shown", lambda each: [row["release"] for row in each["children"]] == [old, old]
    )
    for slot in range(2):
        stage.push("release", queue=("default", "other")[slot])
    wait_until(lambda: stage.notes() == ["release 1"] * 2, "both to run the old release")


def test_after_a_failed_roll_a_killed_worker_is_replaced_by_one_of_the_old_release(
    stage: Stage, releases: Releases
) -> None:
    cluster = releases.run(stage, "default", "other", "-c", "1")
    pids = cluster.wait_ready(2)
    releases.deploy("2", BROKEN["imports in no worker"])
    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("roll_failed")

    os.kill(pids[1], signal.SIGKILL)
    stage.push("release", queue="other")

    stage.wait_noted("release 1")
    assert cluster.restarts("killed", 1) == 1
    releases.deploy("3")
    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("roll_done")
    stage.push("release", queue="other")
    stage.wait_noted("release 3")


def test_a_roll_that_fails_half_way_leaves_what_it_has_replaced(stage: Stage, releases: Releases) -> None:
    cluster = releases.run(stage, "default", "other", "-c", "1")
    pids = cluster.wait_ready(2)
    releases.deploy("2", "assert os.environ.get('KIQ_SLOT') != '1'")

    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("roll_failed")

    assert stage.wait_roll("failed")["done"] == 1
    assert is_alive(pids[1])
    stage.push("release")
    stage.push("release", queue="other")
    stage.wait_noted("release 2", "release 1")


def test_a_release_whose_workers_die_in_their_bake_time_takes_one_slot_and_that_goes_back(
    stage: Stage, releases: Releases
) -> None:
    cluster = releases.run(stage, "default", "other", "-c", "1", KIQ_ROLL_BAKE_TIME="60")
    pids = cluster.wait_ready(2)
    releases.deploy("2", "@on('ready')\ndef die_later(): threading.Timer(1.5, os._exit, [1]).start()")

    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("child_replaced", slot=0)

    report = stage.wait_roll("failed")
    assert (report["done"], report["of"]) == (0, 2)
    assert "exited with 1" in report["error"]
    cluster.wait_for("child_ready", slot=0, count=3)
    assert [Path(slot["release"]).name for slot in cluster.slots()] == ["1", "1"]
    assert cluster.pids()[1] == pids[1]
    assert cluster.restarts("crash") == 1


def test_a_successor_that_is_killed_ends_the_roll_and_the_old_process_stays(stage: Stage, releases: Releases) -> None:
    cluster = releases.run(stage, "default", "-c", "1")
    pids = cluster.wait_ready()
    releases.deploy("2", "if 'KIQ_SLOT' in os.environ: time.sleep(60)")
    cluster.signal(signal.SIGUSR2)
    successor = cluster.wait_for("child_started", count=2)["child"]

    os.kill(successor, signal.SIGKILL)
    cluster.wait_for("roll_failed")

    stage.push("release")
    stage.wait_noted("release 1")
    stage.wait_members(*pids.values())
    assert cluster.pids() == pids


def test_a_successor_that_never_becomes_ready_is_given_up_after_the_boot_timeout(
    stage: Stage, releases: Releases
) -> None:
    cluster = releases.run(stage, "default", "-c", "1", KIQ_HEALTH_BOOT_TIMEOUT="3")
    pids = cluster.wait_ready()
    releases.deploy("2", "@on('startup')\ndef hang(): threading.Event().wait()")

    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("roll_failed")

    stage.push("release")
    stage.wait_noted("release 1")
    stage.wait_members(*pids.values())
    assert cluster.pids() == pids
    wait_until(lambda: sorted(children(cluster.pid)) == sorted(pids.values()), "the hanging one to be gone")


def test_a_slot_that_backs_off_and_cannot_boot_the_new_release_either_ends_the_roll(
    stage: Stage, releases: Releases
) -> None:
    releases.deploy("1", "assert os.environ.get('KIQ_SLOT') != '0'")
    cluster = releases.run(stage, "default", "other", "-c", "1")
    other = cluster.wait_for("child_ready", slot=1)["child"]
    cluster.wait_for("child_backoff", slot=0)
    releases.deploy("2", "assert os.environ.get('KIQ_SLOT') != '0'")

    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("roll_failed")

    assert stage.wait_roll("failed")["done"] == 0
    stage.push("release", queue="other")
    stage.wait_noted("release 1")
    assert is_alive(other)
