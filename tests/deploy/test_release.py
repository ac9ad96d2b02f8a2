"""deploy/rolling-deploy with the real kiqctl and a real cluster: whatever becomes of a release, jobs run."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from kiqcluster.store import Store
from tests import forkserver
from tests.kit import ROOT, Cluster, require, wait_until
from tests.stage import Stage

SCRIPT = ROOT / "deploy" / "rolling-deploy"
APPLICATION = """
from kiqcluster import job
from tests.apps.basic import note

@job()
def tell(word):
    note(word, {release!r})
"""
BROKEN = "raise RuntimeError('this release does not boot')\n"

HELD_UP = """
import os, pathlib, time
while os.environ.get("KIQ_SLOT") == "1" and not pathlib.Path("../../go on").exists():
    time.sleep(0.02)
"""


class Site:
    """Releases in folders, a link to the current one, and a cluster of two workers that runs it."""

    def __init__(self, folder: Path, cluster: Cluster, redis: str) -> None:
        self.folder = folder
        self.cluster = cluster
        kiqctl = folder / "kiqctl"
        forkserver.install(kiqctl, "kiqcluster.ctl")
        self._environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "REDIS_URL": redis, "KIQCTL": str(kiqctl)}

    def deploy(self, *words: str) -> subprocess.Popen[str]:
        """Start the script."""
        return subprocess.Popen(
            [SCRIPT, *words], cwd=self.folder, env=self._environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def release(self, name: str) -> tuple[str, ...]:
        """Return the command that makes a release the current one, and holds on until there is a file `go`."""
        return "sh", "-c", f"touch begun; while [ ! -e go ]; do sleep 0.05; done; ln -sfn releases/{name} current"

    def running(self) -> list[str]:
        """Return the name of the release that each slot runs."""
        return [Path(slot["release"]).name for slot in self.cluster.slots()]

    def current(self) -> str:
        return (self.folder / "current").resolve().name

    def is_quiet(self) -> bool:
        return self.cluster.metric("kiqcluster_quiet") == 1


def finish(script: subprocess.Popen[str], code: int) -> None:
    """Wait for the script to end, and see with which code."""
    output, _ = script.communicate(timeout=120)
    assert script.returncode == code, output


@pytest.fixture
def site(stage: Stage, tmp_path: Path) -> Site:
    """Release 1 runs; 2 is there too; 3 does not boot; 4 does in slot 0, and in slot 1 once there is a file `go on`."""
    require("bash", "bash")
    for name in "1234":
        (tmp_path / "releases" / name).mkdir(parents=True)
        source = BROKEN if name == "3" else APPLICATION.format(release=f"release {name}")
        source += HELD_UP if name == "4" else ""
        (tmp_path / "releases" / name / "app.py").write_text(source)
    (tmp_path / "current").symlink_to("releases/1")
    words = ["default", "default", "-c", "1", "--directory", str(tmp_path / "current")]
    cluster = stage.run_cluster(*words, app="app", PYTHONPATH=str(ROOT))
    cluster.wait_ready(2)
    return Site(tmp_path, cluster, stage.redis.url)


def test_jobs_wait_during_the_release_and_run_with_the_new_code(site: Site, stage: Stage) -> None:
    script = site.deploy("--", *site.release("2"))
    wait_until((site.folder / "begun").exists, "the release to begin")
    assert site.is_quiet()
    stage.push("tell", "pushed during the deploy")

    (site.folder / "go").touch()

    finish(script, 0)
    stage.wait_noted("pushed during the deploy release 2")
    assert not site.is_quiet()
    assert site.cluster.metric('kiqcluster_rolls_total{result="done"}') == 1
    assert site.cluster.stop() == 0


def test_a_release_that_fails_leaves_the_old_code_running_in_the_same_processes(site: Site, stage: Stage) -> None:
    before = site.cluster.pids()

    finish(site.deploy("--", "sh", "-c", "exit 7"), 7)

    stage.push("tell", "after")
    stage.wait_noted("after release 1")
    assert not site.is_quiet()
    assert site.cluster.pids() == before


def test_a_release_that_does_not_boot_takes_no_slot_and_is_undone(site: Site, stage: Stage) -> None:
    before = site.cluster.pids()
    (site.folder / "go").touch()

    finish(site.deploy("--undo", "ln -sfn releases/1 current", "--", *site.release("3")), 1)

    stage.push("tell", "after")
    stage.wait_noted("after release 1")
    assert not site.is_quiet()
    assert site.cluster.pids() == before
    assert (site.folder / "current").resolve().name == "1"


def test_a_script_that_is_terminated_resumes_the_fleet(site: Site, stage: Stage) -> None:
    script = site.deploy("--", *site.release("2"))
    wait_until((site.folder / "begun").exists, "the release to begin")
    stage.push("tell", "pushed during the deploy")

    script.send_signal(signal.SIGTERM)

    finish(script, 128 + signal.SIGTERM)
    stage.wait_noted("pushed during the deploy release 1")
    assert not site.is_quiet()


def test_a_script_that_is_killed_strands_nobody(site: Site, stage: Stage) -> None:
    script = site.deploy("--lease", "5s", "--", *site.release("2"))
    wait_until((site.folder / "begun").exists, "the release to begin")
    stage.push("tell", "pushed during the deploy")
    assert site.is_quiet()

    script.kill()
    (site.folder / "go").touch()  # what it had started goes on by itself

    stage.wait_noted("pushed during the deploy release 1")
    wait_until(lambda: site.cluster.is_ready(), "the cluster to be ready again")
    assert site.cluster.metric("kiqcluster_quiet_lease_expirations_total") == 1
    script.communicate()


def test_a_script_that_is_terminated_during_the_commit_leaves_one_release_everywhere(site: Site, store: Store) -> None:
    (site.folder / "go").touch()
    script = site.deploy("--undo", "ln -sfn releases/1 current", "--", *site.release("4"))
    wait_until(lambda: site.running() == ["4", "1"], "the first slot to be replaced", 60)

    script.send_signal(signal.SIGTERM)

    finish(script, 128 + signal.SIGTERM)
    assert (site.current(), site.running()) == ("1", ["1", "1"])
    assert not site.is_quiet()
    assert store.call("EXISTS", store.keys.deploy) == 0
    assert site.cluster.metric('kiqcluster_rolls_total{result="superseded"}') == 1


def test_without_undo_it_rolls_back_all_the_same_and_says_where_the_link_leads(site: Site, store: Store) -> None:
    (site.folder / "go").touch()
    script = site.deploy("--", *site.release("4"))
    wait_until(lambda: site.running() == ["4", "1"], "the first slot to be replaced", 60)

    script.send_signal(signal.SIGINT)

    output, _ = script.communicate(timeout=120)
    assert script.returncode == 128 + signal.SIGINT, output
    assert (site.current(), site.running()) == ("4", ["1", "1"])
    assert "roll needed" in output


def test_a_second_deploy_is_refused_and_touches_nothing(site: Site, store: Store) -> None:
    first = site.deploy("--undo", "ln -sfn releases/1 current", "--owner", "the first", "--", *site.release("2"))
    wait_until((site.folder / "begun").exists, "the release to begin")

    second = site.deploy("--undo", "touch undone", "--", "touch", "released")

    output, _ = second.communicate(timeout=120)
    assert second.returncode == 6, output
    assert "the first" in output
    assert not any((site.folder / name).exists() for name in ("undone", "released"))
    assert site.is_quiet()
    (site.folder / "go").touch()
    finish(first, 0)
    assert (site.current(), site.running()) == ("2", ["2", "2"])
    finish(site.deploy("--", "true"), 0)  # the lock is free again


def test_a_deploy_whose_lock_was_taken_by_force_undoes_nothing(site: Site, store: Store) -> None:
    first = site.deploy("--undo", "touch undone", "--", *site.release("2"))
    wait_until((site.folder / "begun").exists, "the release to begin")

    second = site.deploy(
        "--force", "--owner", "the second", "--", "sh", "-c", "while [ ! -e end ]; do sleep 0.05; done"
    )
    wait_until(lambda: store.call("GET", store.keys.deploy) == b"the second", "the lock to change hands")
    (site.folder / "go").touch()

    finish(first, 6)
    assert not (site.folder / "undone").exists()
    assert store.call("GET", store.keys.deploy) == b"the second"
    (site.folder / "end").touch()
    finish(second, 0)
    assert site.running() == ["2", "2"]  # where the link leads


def test_an_abort_by_somebody_else_does_not_bring_back_what_was_there_before_a_deploy(site: Site, store: Store) -> None:
    (site.folder / "go").touch()
    finish(site.deploy("--owner", "yesterday", "--", *site.release("2")), 0)

    finish(site.deploy("--", "sh", "-c", "exit 7"), 7)

    assert (site.current(), site.running()) == ("2", ["2", "2"])
