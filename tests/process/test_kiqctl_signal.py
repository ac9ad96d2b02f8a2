"""kiqctl signal and dump: who is told what, ours by messages and Ruby's by signals; and what really happens."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from kiqcluster.control import process_registry
from kiqcluster.store import Store
from tests.fake_supervisor import FakeSupervisor, publish
from tests.kit import is_alive, wait_until
from tests.process.kiqctl import Kiqctl
from tests.stage import Stage

RUBY = "rails-1:7:cccccccccccc"
Put = Callable[..., FakeSupervisor]


def signals(store: Store, identity: str = RUBY) -> list[bytes]:
    sent: list[bytes] = store.call("LRANGE", f"{identity}-signals", 0, -1)
    return sent


class TestWhom:
    @pytest.mark.parametrize(
        ("name", "action"), [("TSTP", "quiet"), ("CONT", "resume"), ("USR2", "roll"), ("sighup", "reload")]
    )
    def test_a_supervisor_does_it_with_all_of_its_cluster(
        self, kiqctl: Kiqctl, fake_supervisor: Put, name: str, action: str
    ) -> None:
        here, there = fake_supervisor("app-1", pid=100), fake_supervisor("app-1", pid=200)

        done = kiqctl("signal", name, here.name)

        assert done.returncode == 0, done.stderr
        assert [(message.action, message.scope) for _, message in here.received] == [(action, "cluster")]
        assert there.received == []
        assert here.name in done.stdout  # and what it will do, in words

    def test_a_worker_does_it_alone(self, kiqctl: Kiqctl, fake_supervisor: Put) -> None:
        here = fake_supervisor(workers=3)
        here.obeys_alone = True

        done = kiqctl("signal", "TSTP", here.workers[1].rpartition(":")[0])

        assert done.returncode == 0, done.stderr
        ((worker, message),) = here.received
        assert (worker, message.action, message.scope) == (here.workers[1], "quiet", "process")

    def test_the_stacks_of_a_worker_that_reads_nothing_are_asked_of_its_supervisor(
        self, kiqctl: Kiqctl, fake_supervisor: Put
    ) -> None:
        here = fake_supervisor(workers=2)
        here.deafen(here.workers[0])
        here.change(children=[{"slot": 0, "pid": 101, "state": "unresponsive"}, {"slot": 1, "pid": 102}])

        done = kiqctl("dump", "app-1:101")

        assert done.returncode == 0, done.stderr
        assert "log its stacks" in done.stdout
        assert {(message.action, message.scope, message.pid) for _, message in here.received} == {
            ("dump", "cluster", 101)
        }

    @pytest.mark.parametrize("identity", ["app-1:101", "app-1:100"])
    def test_where_no_worker_can_pass_it_on_it_says_what_can(
        self, kiqctl: Kiqctl, fake_supervisor: Put, identity: str
    ) -> None:
        here = fake_supervisor(workers=1)
        here.deafen(*here.workers)
        here.change(children=[{"slot": 0, "pid": 101, "state": "unresponsive"}])

        done = kiqctl("dump", identity)

        assert done.returncode == 1
        assert "on app-1, `kill -TTIN 100`" in done.stderr

    @pytest.mark.parametrize("name", ["TSTP", "TERM", "TTIN"])
    def test_a_process_of_rubys_finds_the_signal_in_its_list(self, kiqctl: Kiqctl, store: Store, name: str) -> None:
        publish(store, RUBY, labels=[])

        done = kiqctl("signal", name, RUBY)

        assert done.returncode == 0, done.stderr
        assert "resumed" not in done.stdout, "it cannot be"
        assert signals(store) == [name.encode()]
        assert 0 < store.call("TTL", f"{RUBY}-signals") <= 60

    @pytest.mark.parametrize("name", ["CONT", "USR2", "HUP"])
    def test_what_ruby_has_no_signal_for_is_refused(self, kiqctl: Kiqctl, store: Store, name: str) -> None:
        publish(store, RUBY, labels=[])

        done = kiqctl("signal", name, RUBY)

        assert done.returncode == 2
        assert "TSTP, TERM and TTIN" in done.stderr
        assert signals(store) == []

    def test_what_is_for_clusters_names_the_supervisor_of_a_worker(self, kiqctl: Kiqctl, fake_supervisor: Put) -> None:
        here = fake_supervisor()

        done = kiqctl("signal", "USR2", here.workers[0])

        assert done.returncode == 2
        assert here.name in done.stderr

    def test_all_are_all_clusters_and_rubys(self, kiqctl: Kiqctl, fake_supervisor: Put, store: Store) -> None:
        here, there = fake_supervisor("app-1"), fake_supervisor("app-2")
        publish(store, RUBY, labels=[])

        done = kiqctl("signal", "TSTP", "--all", "--json")

        assert done.returncode == 0, done.stderr
        assert here.actions == there.actions == ["quiet"]
        assert signals(store) == [b"TSTP"]
        assert {each["name"] for each in json.loads(done.stdout)["clusters"]} == {here.name, there.name, RUBY}

    def test_all_of_a_host_are_those(self, kiqctl: Kiqctl, fake_supervisor: Put, store: Store) -> None:
        here, there = fake_supervisor("app-1"), fake_supervisor("app-2")
        publish(store, RUBY, labels=[])

        assert kiqctl("signal", "TSTP", "--all", "--host", "app-1").returncode == 0

        assert (here.actions, there.actions, signals(store)) == (["quiet"], [], [])

    def test_where_ruby_cannot_the_others_do_and_it_is_said(
        self, kiqctl: Kiqctl, fake_supervisor: Put, store: Store
    ) -> None:
        here = fake_supervisor("app-1")
        publish(store, RUBY, labels=[])

        done = kiqctl("signal", "CONT", "--all")

        assert done.returncode == 0
        assert "1 process of Ruby's Sidekiq left out" in done.stderr
        assert (here.actions, signals(store)) == (["resume"], [])

    def test_everything_is_not_stopped_by_accident(self, kiqctl: Kiqctl, fake_supervisor: Put, store: Store) -> None:
        here = fake_supervisor("app-1", workers=2)
        publish(store, RUBY, labels=[])

        done = kiqctl("signal", "TERM", "--all")

        assert done.returncode == 2
        assert "1 cluster, 2 worker processes, 1 process of Ruby's Sidekiq" in done.stderr
        assert "--yes" in done.stderr
        assert (here.received, signals(store)) == ([], [])

    @pytest.mark.parametrize(
        "words",
        [[], ["TSTP"], ["KILL", "app-1:1"], ["TSTP", "app-1:1", "--all"], ["TSTP", "app-1:1", "--host", "app-1"]],
    )
    def test_what_cannot_be_meant_is_exit_2(self, kiqctl: Kiqctl, words: list[str]) -> None:
        assert kiqctl("signal", *words).returncode == 2

    @pytest.mark.parametrize("identity", ["app-1", "app-1:999", "nobody:1", ""])
    def test_nobody_or_several_of_that_name_is_exit_1(
        self, kiqctl: Kiqctl, fake_supervisor: Put, identity: str
    ) -> None:
        here = fake_supervisor("app-1")

        done = kiqctl("signal", "TSTP", identity)

        assert done.returncode == 1
        assert here.name in done.stderr
        assert here.received == []


class TestDump:
    def test_without_an_identity_all_are_asked(self, kiqctl: Kiqctl, fake_supervisor: Put, store: Store) -> None:
        here = fake_supervisor("app-1")
        publish(store, RUBY, labels=[])

        assert kiqctl("dump").returncode == 0

        assert (here.actions, signals(store)) == (["dump"], [b"TTIN"])

    def test_nobody_there_is_exit_1(self, kiqctl: Kiqctl) -> None:
        assert kiqctl("dump").returncode == 1
        assert kiqctl("dump", "--host", "app-1").returncode == 1

    def test_a_process_writes_its_threads_to_its_log(self, stage: Stage, kiqctl: Kiqctl) -> None:
        cluster = stage.run_cluster("default", "other", "-c", "1")
        first, second = (listed(stage.store, pid) for pid in cluster.wait_ready(2).values())

        done = kiqctl("dump", first.identity)

        assert done.returncode == 0, done.stderr
        assert "kiq.heartbeat" in cluster.wait_for("threads", pid=first.pid)["stacks"]
        assert cluster.seen("threads", pid=second.pid) == []


class TestStop:
    def test_a_worker_that_is_stopped_is_replaced(self, stage: Stage, kiqctl: Kiqctl) -> None:
        cluster = stage.run_cluster("default", "-c", "1")
        worker = listed(stage.store, cluster.wait_ready()[0])

        done = kiqctl("signal", "TERM", worker.identity)

        assert done.returncode == 0, done.stderr
        wait_until(lambda: cluster.pids()[0] != worker.pid, "a replacement")
        assert not is_alive(worker.pid)

    def test_a_supervisor_that_is_stopped_ends_with_its_workers(self, stage: Stage, kiqctl: Kiqctl) -> None:
        cluster, other = stage.run_cluster("default", "-c", "1"), stage.run_cluster("other", "-c", "1")
        worker = listed(stage.store, cluster.wait_ready()[0])
        listed(stage.store, other.wait_ready()[0])

        done = kiqctl("signal", "TERM", worker.supervisor or "")

        assert done.returncode == 0, done.stderr
        assert cluster.wait() == 0
        assert other.process.poll() is None

    def test_it_does_not_wait_for_jobs_that_run(self, stage: Stage, kiqctl: Kiqctl) -> None:
        cluster = stage.run_cluster("default", "-c", "1")
        worker = listed(stage.store, stage.occupy(cluster)[0])

        done = kiqctl("signal", "TERM", worker.supervisor or "")

        assert done.returncode == 0, done.stderr
        assert is_alive(worker.pid)
        stage.release()
        assert cluster.wait() == 0


def listed(store: Store, pid: int) -> process_registry.RegisteredProcess:
    """Wait until a process shows in Redis with its supervisor."""

    def found() -> process_registry.RegisteredProcess | None:
        return next(
            (each for each in process_registry.list_processes(store) if each.pid == pid and each.supervisor), None
        )

    return wait_until(found, f"process {pid} to be listed")
