"""Reloads: configuration and queues are read anew; who is still wanted goes on, and what is broken changes nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from kiqcluster.sidekiq import ruby_json
from kiqcluster.store import Store
from tests.kit import ROOT, Cluster, is_alive, wait_until
from tests.kit import cluster as run
from tests.proc import children, wait_exited
from tests.process.releases import Releases
from tests.stage import Stage, pid_of


class Configured:
    """A cluster whose groups are in its configuration file."""

    def __init__(self, stage: Stage, directory: Path, *arguments: str) -> None:
        self.file = directory / "kiqcluster.toml"
        self._run = lambda: stage.run_cluster("-C", str(self.file), *arguments)

    def write(self, *groups: str, **settings: Any) -> None:
        lines = [f"{name} = {ruby_json.encode(value).decode()}" for name, value in settings.items()]
        self.file.write_text("\n".join([f"groups = {list(groups)!r}", *lines]))

    def start(self, *groups: str, **settings: Any) -> Cluster:
        self.write(*groups, **settings)
        return self._run()


@pytest.fixture
def configured(stage: Stage, tmp_path: Path) -> Configured:
    return Configured(stage, tmp_path)


def reload(cluster: Cluster, count: int = 1) -> dict[str, Any]:
    """Send HUP and wait for its end."""
    cluster.signal(signal.SIGHUP)
    return cluster.wait_for("reloaded", count=count)


def listened(stage: Stage, pid: int) -> set[str]:
    """Return the queues that a process' heartbeat shows."""
    infos = [stage.store.call("HGET", name, "info") for name in stage.members() if pid_of(name) == pid]
    return set(ruby_json.decode(infos[0])["queues"]) if infos and infos[0] else set()


def reloads(cluster: Cluster, result: str) -> float:
    return cluster.metric(f'kiqcluster_reloads_total{{result="{result}"}}')


# what may change


def test_a_slot_that_is_added_serves_and_the_others_keep_their_processes(configured: Configured, stage: Stage) -> None:
    cluster = configured.start("default", "other")
    before = stage.occupy(cluster, 2)
    stage.push("record", "b", queue="third")
    configured.write("other", "third", "default")  # in whatever order

    reload(cluster)

    stage.wait_noted("ran b")
    assert {slot: pid for slot, pid in cluster.pids().items() if slot in before} == before
    assert stage.notes() == ["began a", "ran b"]
    stage.wait_members(*cluster.wait_ready(3).values())


def test_a_slot_that_is_removed_finishes_what_it_runs_and_leaves(configured: Configured, stage: Stage) -> None:
    cluster = configured.start("default", "other")
    pids = stage.occupy(cluster, 2)
    configured.write("other")

    reload(cluster)
    cluster.wait_for("worker_quiet", pid=pids[0])
    stage.push("record", "b")
    stage.release()

    wait_exited(pids[0])
    stage.wait_members(pids[1])
    assert stage.notes() == ["began a", "ended a"]
    assert stage.queued_args() == ["b"]
    wait_until(lambda: children(cluster.pid) == [pids[1]], "the process to be reaped")
    assert cluster.metric('kiqcluster_children{state="ready"}') == 1
    configured.write("other", "default")
    reload(cluster, 2)
    stage.wait_noted("ran b")  # the number of the slot that went may be had again


def test_a_slot_with_another_number_of_threads_gets_a_new_process_and_keeps_its_number(
    configured: Configured, stage: Stage
) -> None:
    cluster = configured.start("default", concurrency=1)
    first = stage.occupy(cluster)[0]
    configured.write("default", concurrency=2)

    reload(cluster)

    cluster.wait_for("worker_ready", concurrency=2)
    stage.push("stubborn", "b")
    stage.push("stubborn", "c")
    stage.wait_noted("began b", "began c")  # while the one before finishes what it runs
    assert is_alive(first)
    stage.release()
    wait_exited(first)
    assert {each["slot"] for each in cluster.seen("child_ready")} == {0}
    assert cluster.metric('kiqcluster_children{state="ready"}') == 1
    assert stage.notes().count("began a") == 1
    stage.wait_members(cluster.pids()[0])


def test_limits_of_the_supervisor_hold_from_then_on(configured: Configured, store: Store) -> None:
    cluster = configured.start("default", concurrency=1, quiet_lease=600)
    pids = cluster.wait_ready()
    configured.write("default", concurrency=1, quiet_lease=0.2)

    reload(cluster)
    cluster.signal(signal.SIGTSTP)

    cluster.wait_for("quiet_expired")
    assert cluster.pids() == pids


def test_new_queues_of_the_application_reach_running_workers(stage: Stage, releases: Releases) -> None:
    """Redis, which a worker asks now and then, has not heard of them."""
    cluster = releases.run(stage, "cronjob", "-c", "1")
    pid = cluster.wait_ready()[0]
    releases.deploy("2", "@job(queue='cronjob:new')\ndef nightly(): pass")

    reload(cluster)

    cluster.wait_for("queues_changed", pid=pid)
    stage.store.call("LPUSH", "queue:cronjob:new", '{"class":"record","args":["a"],"jid":"aaaaaaaaaaaaaaaaaaaaaaaa"}')
    stage.wait_noted("ran a")
    assert cluster.pids() == {0: pid}


def test_a_quiet_stays_and_holds_for_added_slots_too(configured: Configured, stage: Stage) -> None:
    cluster = configured.start("default")
    cluster.wait_ready()
    cluster.signal(signal.SIGTSTP)
    cluster.wait_for("worker_quiet")
    stage.push("record", "a")
    stage.push("record", "b", queue="other")
    configured.write("default", "other")

    reload(cluster)

    cluster.wait_for("worker_quiet", count=2)
    cluster.wait_ready(2)
    wait_until(lambda: stage.queued_args() == ["a"] and stage.queued_args("other") == ["b"], "the jobs to stay")
    assert stage.notes() == []
    cluster.signal(signal.SIGCONT)
    stage.wait_noted("ran a", "ran b")


# what may not


def test_settings_that_are_read_once_wait_for_a_new_supervisor(stage: Stage, tmp_path: Path) -> None:
    """A worker that dies meanwhile must not serve another Redis than the rest."""
    file = tmp_path / "kiqcluster.toml"
    file.write_text(f'groups = ["default"]\nredis = "{stage.redis.url}"')
    with run("-r", "tests.apps.basic", "-C", str(file), "-c", "1") as cluster:
        first = cluster.wait_ready()[0]
        file.write_text(f'groups = ["default", "other"]\nredis = "redis://127.0.0.1:{stage.redis.port}/1"')

        assert "redis" in reload(cluster)["restart"]
        os.kill(first, signal.SIGKILL)
        stage.push("record", "a")
        stage.push("record", "b", queue="other")

        stage.wait_noted("ran a", "ran b")
        assert "redis" in reload(cluster, 2)["restart"]  # it still is what is asked for


def test_what_waits_for_a_roll_is_told_until_there_was_one(configured: Configured, stage: Stage) -> None:
    cluster = configured.start("default", concurrency=1)
    cluster.wait_ready()
    configured.write("default", concurrency=1, max_retries=3)
    assert "max_retries" in reload(cluster)["roll"]
    configured.write("default", concurrency=1, max_retries=3, control="elsewhere.sock")

    again = reload(cluster, 2)

    assert "max_retries" in again["roll"]
    assert "control" in again["restart"]
    shown = stage.wait_document("what waits", lambda each: each["roll_needed"] and each["restart_needed"])
    assert shown["roll_needed"] == "max_retries"
    assert "control" in shown["restart_needed"]
    assert cluster.metric("kiqcluster_restart_needed") == 1
    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("roll_done")
    assert "max_retries" not in reload(cluster, 3)["roll"]
    document = stage.wait_document("the roll to be over", lambda each: not each["roll_needed"])
    assert "control" in document["restart_needed"]
    configured.write("default", concurrency=1, max_retries=3)
    reload(cluster, 4)
    stage.wait_document("nothing to wait", lambda each: not each["restart_needed"])


def test_groups_of_the_command_line_stay(stage: Stage, tmp_path: Path) -> None:
    configured = Configured(stage, tmp_path, "default")
    cluster = configured.start("never")
    pids = cluster.wait_ready()
    configured.write("other", "third")

    reload(cluster)

    assert cluster.pids() == pids
    stage.push("record", "a")
    stage.wait_noted("ran a")
    assert len(cluster.seen("child_started")) == 1


@pytest.mark.parametrize(
    "text",
    [
        "groups = [",
        'groups = ["other"]\nconcurency = 2',
        'groups = ["other"]\nstop.timeout = -1',
        pytest.param("groups = []", marks=pytest.mark.full),
        pytest.param("groups = ['a=x']", marks=pytest.mark.full),
    ],
)
def test_a_configuration_that_cannot_be_used_changes_nothing(configured: Configured, stage: Stage, text: str) -> None:
    cluster = configured.start("default")
    pids = cluster.wait_ready()
    configured.file.write_text(text)

    cluster.signal(signal.SIGHUP)
    cluster.wait_for("reload_failed")

    stage.push("record", "a")
    stage.wait_noted("ran a")
    assert cluster.pids() == pids
    configured.write("default", "other")
    reload(cluster)
    assert cluster.wait_ready(2)[0] == pids[0]


def test_a_configuration_file_that_is_gone_changes_nothing(configured: Configured, stage: Stage) -> None:
    cluster = configured.start("default")
    pids = cluster.wait_ready()
    configured.file.unlink()

    cluster.signal(signal.SIGHUP)
    failed = cluster.wait_for("reload_failed")

    stage.push("record", "a")
    stage.wait_noted("ran a")
    assert cluster.pids() == pids
    assert str(configured.file) in failed["error"]
    assert cluster.seen("command_refused") == []  # it is said once


def test_a_release_without_a_configuration_file_says_that_no_group_is_left(stage: Stage, releases: Releases) -> None:
    (releases.current / "kiqcluster.toml").write_text('groups = ["default"]')
    environ = {"PYTHONPATH": str(ROOT), "PWD": str(releases.current)}
    with run("-r", "shop", "--redis", stage.redis.url, cwd=releases.current, environ=environ) as cluster:
        cluster.wait_ready()
        releases.deploy("2")

        cluster.signal(signal.SIGHUP)

        error = cluster.wait_for("reload_failed")["error"]
        assert f"no queue group is left: {releases.current}/kiqcluster.toml is gone" in error


@pytest.mark.parametrize("source", ["raise RuntimeError('no database')", "os._exit(0)", "def broken(:"])
def test_an_application_that_does_not_load_changes_nothing(stage: Stage, releases: Releases, source: str) -> None:
    cluster = releases.run(stage, "default", "-c", "1")
    pids = cluster.wait_ready()
    releases.deploy("2", source)

    cluster.signal(signal.SIGHUP)
    cluster.wait_for("reload_failed")

    stage.push("release")
    stage.wait_noted("release 1")
    assert cluster.pids() == pids


# beside rolls and stops


def test_a_reload_within_a_roll_is_done_after_it(configured: Configured, stage: Stage) -> None:
    cluster = configured.start("default", concurrency=1)
    stage.occupy(cluster)
    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("child_replaced")
    configured.write("default", "other", concurrency=1)

    cluster.signal(signal.SIGHUP)
    stage.push("nap", "b", 0.3)
    stage.wait_noted("ended b")
    assert cluster.seen("reloaded") == []
    stage.release()

    cluster.wait_for("reloaded")
    assert len(cluster.seen("roll_done")) == 1
    stage.push("record", "c", queue="other")
    stage.wait_noted("ran c")


def test_a_roll_right_after_a_reload_comes_first_and_the_reload_after_it(stage: Stage, releases: Releases) -> None:
    releases.deploy("1", "while pathlib.Path('../../hold').exists(): time.sleep(0.01)")
    cluster = releases.run(stage, "default", "-c", "1")
    pids = cluster.wait_ready()
    wait_until(lambda: children(cluster.pid) == [*pids.values()], "the catalogue child to be reaped")
    hold = releases.current.parent / "hold"
    hold.touch()

    cluster.signal(signal.SIGHUP)
    wait_until(lambda: len(children(cluster.pid)) == 2, "the application to be asked")
    cluster.signal(signal.SIGUSR2)

    cluster.wait_for("reload_superseded")
    assert stage.wait_roll("rolling")["of"] == 1
    rolling = stage.wait_document("the roll and the reload", lambda each: each["roll"] and each["reload"])
    assert rolling["reload"]["state"] == "reloading"  # it goes on after the roll, for whoever waits for it
    hold.unlink()
    cluster.wait_for("roll_done")
    cluster.wait_for("reloaded")
    done = stage.wait_document("the reload to be done", lambda each: each["reload"]["state"] == "done")
    assert done["reload"]["id"] == rolling["reload"]["id"]
    assert [reloads(cluster, result) for result in ("done", "failed", "superseded")] == [1, 0, 1]


def test_a_stop_while_a_reload_asks_the_application_leaves_nothing_behind(stage: Stage, releases: Releases) -> None:
    cluster = releases.run(stage, "default", "-c", "1")
    pids = cluster.wait_ready()
    wait_until(lambda: children(cluster.pid) == [*pids.values()], "the catalogue child to be reaped")
    releases.deploy("2", "time.sleep(60)")
    cluster.signal(signal.SIGHUP)
    wait_until(lambda: len(children(cluster.pid)) == 2, "the application to be asked")
    asked = {*children(cluster.pid)} - {*pids.values()}

    assert cluster.stop() == 0

    wait_exited(*asked, *pids.values())
    assert stage.members() == stage.holders() == set()


# where files are


def test_paths_mean_what_they_meant_at_the_start(stage: Stage, tmp_path: Path) -> None:
    """The supervisor has moved to --directory since."""
    (tmp_path / "work").mkdir()
    file = tmp_path / "kiq.toml"
    file.write_text('groups = ["default"]\npidfile = "run.pid"')
    words = ("-C", "kiq.toml", "--directory", "work", "--redis", stage.redis.url)
    with run("-r", "tests.apps.basic", *words, cwd=tmp_path, environ={"PYTHONPATH": str(ROOT)}) as cluster:
        pids = cluster.wait_ready()
        file.write_text('groups = ["default", "other"]\npidfile = "run.pid"')

        reloaded = reload(cluster)

        assert (reloaded["kept"], reloaded["added"], reloaded["restart"]) == (1, 1, "")
        assert cluster.wait_ready(2)[0] == pids[0]


@pytest.mark.parametrize("named", ["by PWD", "by --directory"])
def test_the_configuration_of_a_new_release_is_found_where_the_link_leads(
    stage: Stage, releases: Releases, named: str
) -> None:
    """Whoever starts us without a shell, as systemd does, may set no PWD."""
    (releases.current / "kiqcluster.toml").write_text('groups = ["default"]\nrequire = ["shop"]')
    by_shell = named == "by PWD"
    environ = {"PYTHONPATH": str(ROOT), "PWD": str(releases.current) if by_shell else ""}
    words = () if by_shell else ("--directory", str(releases.current))
    with run("--redis", stage.redis.url, *words, cwd=releases.current, environ=environ) as cluster:
        pids = cluster.wait_ready()
        releases.deploy("2")
        (releases.current / "kiqcluster.toml").write_text('groups = ["default", "other"]\nrequire = ["shop"]')

        reloaded = reload(cluster)

        assert (reloaded["kept"], reloaded["added"], reloaded["restart"]) == (1, 1, "")
        assert cluster.wait_ready(2)[0] == pids[0]
