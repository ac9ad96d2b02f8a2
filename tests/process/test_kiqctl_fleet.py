"""kiqctl and real clusters: what it asks for comes true in every slot, and ends when it should."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from kiqcluster.control import process_registry, redis_transport
from kiqcluster.store import Store
from tests.kit import Cluster, wait_until
from tests.process.kiqctl import Kiqctl
from tests.redis.kiqctl import Kiqctl as KiqctlHere
from tests.stage import Stage, pid_of


def listed(kiqctl: Kiqctl) -> list[Any]:
    """Return what ps shows of the clusters."""
    clusters: list[Any] = json.loads(kiqctl("ps", "--json").stdout)["clusters"]
    return clusters


def identity_of(stage: Stage, pid: int) -> str:
    return next(name for name in stage.members() if pid_of(name) == pid)


def quiet_workers(kiqctl: Kiqctl) -> list[tuple[int, bool]]:
    """Return pid of every worker that ps shows, and whether it is quiet."""
    return [(worker["pid"], worker["quiet"]) for cluster in listed(kiqctl) for worker in cluster["workers"]]


def wait_queued(stage: Stage, word: str, queue: str = "default") -> None:
    """Wait until that job, and no other, is in the queue: a wake list of the quiet worker may hold it for a moment."""
    wait_until(lambda: stage.queued_args(queue) == [word], f"{word} to lie in {queue}")


def wait_listed(cluster: Cluster, store: Store, slots: int = 1) -> dict[int, int]:
    """Wait until every slot is ready and has said so in Redis, where kiqctl looks; return slot → pid."""
    pids = cluster.wait_ready(slots)
    wait_until(
        lambda: {each.pid for each in process_registry.list_processes(store)} >= set(pids.values()), "all to be listed"
    )
    return pids


class TestQuiet:
    def test_it_reaches_every_slot_and_resume_ends_it(self, stage: Stage, kiqctl: Kiqctl) -> None:
        cluster = stage.run_cluster("default", "other", "-c", "1")
        wait_listed(cluster, stage.store, 2)

        assert kiqctl("quiet", "--lease", "10m").returncode == 0
        (shown,) = listed(kiqctl)
        assert shown["quiet_by"].startswith("kiqctl@")
        assert 580 < shown["lease_remaining"] <= 600
        wait_until(lambda: listed(kiqctl)[0]["quiet"], "both workers to show that they are quiet")
        for queue in ("default", "other"):
            stage.push("record", queue, queue=queue)
        assert cluster.metric("kiqcluster_quiet") == 1
        for queue in ("default", "other"):
            wait_queued(stage, queue, queue)
        assert stage.notes() == []

        assert kiqctl("resume").returncode == 0

        stage.wait_noted("ran default", "ran other")
        assert listed(kiqctl)[0]["quiet_by"] == ""

    def test_a_worker_that_is_replaced_meanwhile_boots_quiet(self, stage: Stage, kiqctl: Kiqctl) -> None:
        cluster = stage.run_cluster("default", "-c", "1")
        first = wait_listed(cluster, stage.store)[0]
        assert kiqctl("quiet").returncode == 0

        os.kill(first, signal.SIGKILL)
        second = cluster.wait_for("child_ready", count=2)["child"]
        stage.push("record", "a")

        wait_until(lambda: (second, True) in quiet_workers(kiqctl), "the replacement to show that it is quiet")
        wait_queued(stage, "a")

    def test_it_ends_by_itself_with_its_lease(self, stage: Stage, kiqctl: Kiqctl) -> None:
        """As when the script that began it was killed half-way."""
        cluster = stage.run_cluster("default", "-c", "1")
        wait_listed(cluster, stage.store)

        assert kiqctl("quiet", "--lease", "1s").returncode == 0
        stage.push("record", "a")

        stage.wait_noted("ran a")
        cluster.wait_for("quiet_expired")

    def test_with_wait_it_ends_when_the_last_job_has(self, stage: Stage, kiqctl: Kiqctl) -> None:
        cluster = stage.run_cluster("default", "-c", "2")
        stage.occupy(cluster)

        running = kiqctl.start("quiet", "--wait")
        kiqctl.wait_printed(running, "1 job still runs")
        stage.push("record", "b")
        stage.release()

        assert kiqctl.end(running).returncode == 0
        assert stage.notes() == ["began a", "ended a"]
        wait_queued(stage, "b")

    def test_one_process_alone_is_quiet_until_its_lease_ends(self, stage: Stage, kiqctl: Kiqctl) -> None:
        cluster = stage.run_cluster("default", "other", "-c", "1")
        pids = wait_listed(cluster, stage.store, 2)

        done = kiqctl("quiet", "--identity", identity_of(stage, pids[0]), "--lease", "6s")
        assert done.returncode == 0, done.stderr
        stage.push("record", "a")
        stage.push("record", "b", queue="other")

        stage.wait_noted("ran b")
        assert stage.notes() == ["ran b"]
        stage.wait_noted("ran a")
        assert cluster.pids() == pids

    def test_every_cluster_on_the_redis_is_reached(self, stage: Stage, kiqctl: Kiqctl) -> None:
        clusters = [stage.run_cluster("default", "-c", "1"), stage.run_cluster("other", "-c", "1")]
        for cluster in clusters:
            wait_listed(cluster, stage.store)

        assert kiqctl("quiet").returncode == 0

        assert [cluster.metric("kiqcluster_quiet") for cluster in clusters] == [1, 1]

    def test_a_cluster_that_stops_says_that_it_does(self, stage: Stage, kiqctl: Kiqctl) -> None:
        cluster = stage.run_cluster("default", "-c", "1")
        stage.occupy(cluster)
        cluster.signal(signal.SIGTERM)
        cluster.wait_for("worker_stopping")

        done = kiqctl("quiet")

        assert done.returncode == 1
        assert "stopping" in done.stderr
        stage.release()
        assert cluster.wait() == 0


class TestRoll:
    def test_every_worker_is_replaced_and_no_job_is_lost(self, stage: Stage, kiqctl: Kiqctl) -> None:
        cluster = stage.run_cluster("default", "other", "-c", "1")
        before = wait_listed(cluster, stage.store, 2)
        for number in range(50):
            stage.push("record", str(number))

        done = kiqctl("roll", "--wait")

        assert done.returncode == 0, done.stderr
        assert not set(before.values()) & set(cluster.pids().values())
        wait_until(lambda: len(stage.notes()) == 50, "every job to run")
        assert len(set(stage.notes())) == 50

    def test_a_release_that_does_not_boot_is_an_error_and_the_one_before_goes_on(
        self, stage: Stage, kiqctl: Kiqctl
    ) -> None:
        app = stage.write_application("")
        cluster = stage.run_cluster("default", "-c", "1", "--directory", str(Path(app).parent), app=app)
        before = wait_listed(cluster, stage.store)
        stage.write_application("raise RuntimeError('a broken release')")

        done = kiqctl("deploy", "commit")

        assert done.returncode == 1
        assert listed(kiqctl)[0]["roll"]["state"] == "failed"
        reason = listed(kiqctl)[0]["roll"]["error"].splitlines()
        assert len(reason) > 1
        assert [line for line in reason if line not in done.stderr] == []
        stage.push("record", "a")
        stage.wait_noted("ran a")
        assert cluster.pids() == before

    def test_the_quiet_of_a_deploy_ends_with_its_roll(self, stage: Stage, kiqctl: Kiqctl) -> None:
        cluster = stage.run_cluster("default", "-c", "1")
        before = wait_listed(cluster, stage.store)
        assert kiqctl("deploy", "begin", "--wait").returncode == 0
        stage.push("record", "a")
        wait_queued(stage, "a")

        assert kiqctl("deploy", "commit").returncode == 0

        stage.wait_noted("ran a")
        assert cluster.pids() != before
        assert listed(kiqctl)[0]["quiet_by"] == ""

    def test_a_deploy_that_is_called_off_resumes(self, stage: Stage, kiqctl: Kiqctl) -> None:
        cluster = stage.run_cluster("default", "-c", "1")
        before = wait_listed(cluster, stage.store)
        assert kiqctl("deploy", "begin").returncode == 0
        stage.push("record", "a")

        assert kiqctl("deploy", "abort").returncode == 0

        stage.wait_noted("ran a")
        assert cluster.pids() == before

    def test_calling_a_deploy_off_ends_no_quiet_of_somebody_else(self, stage: Stage, kiqctl: Kiqctl) -> None:
        cluster = stage.run_cluster("default", "-c", "1")
        wait_listed(cluster, stage.store)
        assert kiqctl("quiet", "--lease", "10m").returncode == 0
        assert kiqctl("deploy", "begin", "--lease", "bogus").returncode == 2

        done = kiqctl("deploy", "abort")

        assert done.returncode == 0
        assert "quiet by kiqctl@" in done.stdout
        assert cluster.metric("kiqcluster_quiet") == 1
        assert kiqctl("resume").returncode == 0
        assert cluster.metric("kiqcluster_quiet") == 0

    def test_reload_is_done_or_says_why_not(self, stage: Stage, kiqctl: Kiqctl, tmp_path: Path) -> None:
        file = tmp_path / "kiqcluster.toml"
        file.write_text('groups = ["default"]\n')
        cluster = stage.run_cluster("-C", str(file), "-c", "1")
        pids = wait_listed(cluster, stage.store)

        file.write_text('groups = ["default", "other"]\n')
        assert kiqctl("reload").returncode == 0
        wait_listed(cluster, stage.store, 2)
        assert cluster.pids()[0] == pids[0]

        file.write_text("groups = [\n")
        done = kiqctl("reload")

        assert done.returncode == 1
        assert "TOML" in done.stderr

    def test_with_wait_a_reload_says_whether_the_application_could_be_loaded(
        self, stage: Stage, kiqctl: Kiqctl, tmp_path: Path
    ) -> None:
        file, path = tmp_path / "kiqcluster.toml", tmp_path / "control.sock"
        file.write_text('groups = ["default"]\n')
        cluster = stage.run_cluster("-C", str(file), "-c", "1", KIQ_CONTROL=str(path))
        pids = wait_listed(cluster, stage.store)

        file.write_text('groups = ["default", "other"]\n')
        assert kiqctl("reload", "--wait").returncode == 0
        assert cluster.seen("reloaded")
        file.write_text('groups = ["nobody*"]\n')  # shows once the application has told its queues
        failures = [kiqctl("reload", "--wait"), kiqctl("reload", "--wait", "--socket", str(path))]

        for done in failures:
            assert done.returncode == 1, done.stdout
            assert "nobody*" in done.stderr
        assert listed(kiqctl)[0]["reload"]["state"] == "failed"
        assert cluster.pids()[0] == pids[0]

    def test_one_that_waits_for_a_roll_is_waited_for(self, stage: Stage, kiqctl: Kiqctl, tmp_path: Path) -> None:
        file = tmp_path / "kiqcluster.toml"
        file.write_text('groups = ["default"]\n')
        cluster = stage.run_cluster("-C", str(file), "-c", "1")
        stage.occupy(cluster)
        assert kiqctl("roll").returncode == 0

        running = kiqctl.start("reload", "--wait")
        wait_until(lambda: (listed(kiqctl)[0]["reload"] or {}).get("state") == "reloading", "it to be asked for")
        assert running.process.poll() is None
        stage.release()

        assert kiqctl.end(running).returncode == 0
        assert [cluster.seen(event) != [] for event in ("roll_done", "reloaded")] == [True, True]

    def test_an_order_to_a_supervisor_that_stands_still_is_said_to_be_possible_yet_and_is(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(redis_transport, "ANSWER_TIMEOUT_SECONDS", 1.0)
        cluster = stage.run_cluster("default", "-c", "1")
        wait_listed(cluster, stage.store)
        cluster.signal(signal.SIGSTOP)

        done = KiqctlHere(stage.redis.url)("quiet", "--lease", "10m")
        cluster.signal(signal.SIGCONT)

        assert done.exit_code == 1
        assert "may still be done" in done.stderr
        wait_until(lambda: cluster.metric("kiqcluster_quiet") == 1, "it to be quiet after all")


class TestSocket:
    @pytest.mark.own_redis
    def test_quiet_and_resume_work_while_redis_is_away(self, stage: Stage, tmp_path: Path) -> None:
        path = tmp_path / "control.sock"
        cluster = stage.run_cluster("default", "-c", "1", KIQ_CONTROL=str(path))
        cluster.wait_ready()
        stage.redis.kill()
        kiqctl = Kiqctl(stage.redis.url)

        done = kiqctl("quiet", "--lease", "5m", "--wait", "--socket", str(path))
        assert done.returncode == 0, done.stderr
        assert cluster.metric("kiqcluster_quiet") == 1

        done = kiqctl("resume", "--socket", str(path))

        assert done.returncode == 0, done.stderr
        assert cluster.metric("kiqcluster_quiet") == 0

    def test_roll_and_ps_work_there_too(self, stage: Stage, kiqctl: Kiqctl, tmp_path: Path) -> None:
        path = tmp_path / "control.sock"
        cluster = stage.run_cluster("default", "-c", "1", KIQ_CONTROL=str(path))
        before = wait_listed(cluster, stage.store)

        done = kiqctl("roll", "--wait", "--socket", str(path))

        assert done.returncode == 0, done.stderr
        assert cluster.pids() != before
        (shown,) = json.loads(kiqctl("ps", "--json", "--socket", str(path)).stdout)["clusters"]
        assert [worker["pid"] for worker in shown["workers"]] == list(cluster.pids().values())
