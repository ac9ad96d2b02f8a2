"""kiqctl by Redis: whom it asks, what it makes of the answers, and how it ends; its supervisors are fakes."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kiqcluster.control import redis_transport
from kiqcluster.store import Store
from tests.fake_supervisor import FakeSupervisor, publish
from tests.kit import ROOT, RedisServer, free_port, wait_until
from tests.process.kiqctl import Kiqctl, all_commands, examples
from tests.redis.kiqctl import Kiqctl as KiqctlHere

RUBY = "rails-1:7:cccccccccccc"


@pytest.fixture
def impatient(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> KiqctlHere:
    """Run kiqctl in this process, where it waits a tenth as long for answers."""
    monkeypatch.setattr(redis_transport, "ANSWER_TIMEOUT_SECONDS", redis_transport.ANSWER_TIMEOUT_SECONDS / 10)
    monkeypatch.setattr(redis_transport, "CARRIER_TIMEOUT_SECONDS", redis_transport.CARRIER_TIMEOUT_SECONDS / 10)
    monkeypatch.setattr(redis_transport, "SUPERVISOR_UNKNOWN_SECONDS", redis_transport.SUPERVISOR_UNKNOWN_SECONDS / 10)
    return KiqctlHere(redis_server.url)


def unread(store: Store) -> list[str]:
    """Return the lists that still hold messages."""
    return [key.decode() for key in store.call("KEYS", "kiq:control:*")]


class TestWhom:
    def test_every_supervisor_is_asked_once_by_one_of_its_processes(
        self, kiqctl: Kiqctl, fake_supervisor: Callable[..., FakeSupervisor]
    ) -> None:
        here, there = fake_supervisor("app-1", workers=3), fake_supervisor("app-2", workers=3)

        done = kiqctl("quiet", "--lease", "15m")

        assert done.returncode == 0, done.stderr
        assert here.actions == there.actions == ["quiet"]
        ((_, message),) = here.received
        assert (message.scope, message.lease) == ("cluster", 900.0)
        assert message.by.startswith("kiqctl@")
        assert here.state["quiet_by"] == message.by

    def test_two_supervisors_of_one_host_are_two(
        self, kiqctl: Kiqctl, fake_supervisor: Callable[..., FakeSupervisor]
    ) -> None:
        one, other = fake_supervisor("app-1", pid=100), fake_supervisor("app-1", pid=200)

        assert kiqctl("resume").returncode == 0

        assert one.actions == other.actions == ["resume"]

    def test_without_a_lease_the_supervisors_own_holds(
        self, kiqctl: Kiqctl, fake_supervisor: Callable[..., FakeSupervisor]
    ) -> None:
        here = fake_supervisor()

        kiqctl("quiet")

        assert here.received[0][1].lease is None

    def test_zero_is_a_quiet_without_an_end(
        self, kiqctl: Kiqctl, fake_supervisor: Callable[..., FakeSupervisor]
    ) -> None:
        here = fake_supervisor()

        kiqctl("quiet", "--lease", "0")

        assert here.received[0][1].lease == 0

    @pytest.mark.parametrize("name", ["app-1.example.com", "app-1"])
    def test_a_host_narrows_it_to_its_supervisors(
        self, kiqctl: Kiqctl, fake_supervisor: Callable[..., FakeSupervisor], name: str
    ) -> None:
        here, there = fake_supervisor("app-1.example.com"), fake_supervisor("app-2.example.com")

        assert kiqctl("quiet", "--host", name).returncode == 0

        assert (here.actions, there.actions) == (["quiet"], [])

    def test_several_hosts_may_be_named(self, kiqctl: Kiqctl, fake_supervisor: Callable[..., FakeSupervisor]) -> None:
        hosts = [fake_supervisor(f"app-{number}", workers=1) for number in (1, 2, 3)]

        kiqctl("quiet", "--host", "app-1", "--host", "app-3")

        assert [each.actions for each in hosts] == [["quiet"], [], ["quiet"]]

    def test_a_host_without_processes_is_an_error_that_names_those_that_have_some(
        self, kiqctl: Kiqctl, fake_supervisor: Callable[..., FakeSupervisor]
    ) -> None:
        here = fake_supervisor("app-1")

        done = kiqctl("quiet", "--host", "app-7")

        assert done.returncode == 1
        assert "app-7" in done.stderr
        assert "app-1" in done.stderr
        assert here.received == []

    def test_an_identity_is_that_one_process(
        self, kiqctl: Kiqctl, fake_supervisor: Callable[..., FakeSupervisor]
    ) -> None:
        here = fake_supervisor(workers=3)
        here.obeys_alone = True

        done = kiqctl("quiet", "--identity", here.workers[1], "--lease", "60")

        assert done.returncode == 0, done.stderr
        ((worker, message),) = here.received
        assert (worker, message.action, message.scope, message.lease) == (here.workers[1], "quiet", "process", 60.0)

    def test_host_and_pid_are_enough(self, kiqctl: Kiqctl, fake_supervisor: Callable[..., FakeSupervisor]) -> None:
        here = fake_supervisor(workers=2)
        here.obeys_alone = True

        done = kiqctl("quiet", "--identity", here.workers[1].rpartition(":")[0], "--json")

        assert done.returncode == 0, done.stderr
        assert [each["name"] for each in json.loads(done.stdout)["clusters"]] == [here.workers[1]]

    @pytest.mark.parametrize("identity", ["app-1:10", "app-1:999", "nobody", "", "app-1"])
    def test_an_identity_that_is_no_process_or_several_is_an_error(
        self, kiqctl: Kiqctl, fake_supervisor: Callable[..., FakeSupervisor], identity: str
    ) -> None:
        here = fake_supervisor(workers=2)

        done = kiqctl("quiet", "--identity", identity)

        assert done.returncode == 1
        assert here.workers[0] in done.stderr
        assert here.received == []

    def test_a_process_of_rubys_is_not_asked(self, kiqctl: Kiqctl, store: Store) -> None:
        publish(store, RUBY, labels=[])

        done = kiqctl("quiet", "--identity", RUBY)

        assert done.returncode == 1
        assert "Ruby" in done.stderr
        assert unread(store) == []

    def test_nobody_there_is_an_error(self, kiqctl: Kiqctl, store: Store) -> None:
        publish(store, RUBY, labels=[])

        for words in (["quiet"], ["resume"], ["roll", "--wait"], ["reload"], ["deploy", "begin"]):
            done = kiqctl(*words)
            assert done.returncode == 1, words
            assert "no kiqcluster process" in done.stderr, words
        assert unread(store) == []

    def test_a_process_that_has_not_been_told_of_its_supervisor_is_waited_for(
        self, kiqctl: Kiqctl, fake_supervisor: Callable[..., FakeSupervisor], store: Store
    ) -> None:
        here = fake_supervisor(workers=1)
        store.call("HDEL", here.workers[0], "kiq_cluster")

        looks = kiqctl.looks(store)
        running = kiqctl.start("quiet")
        wait_until(lambda: kiqctl.looks(store) > looks + 1, "kiqctl to have looked")
        here.publish()

        assert kiqctl.end(running).returncode == 0
        assert here.actions == ["quiet"]

    def test_one_that_never_is_is_named(
        self, impatient: KiqctlHere, fake_supervisor: Callable[..., FakeSupervisor], store: Store
    ) -> None:
        here = fake_supervisor()
        publish(store, "app-9:1:dddddddddddd")

        done = impatient("quiet")

        assert done.exit_code == 1
        assert "app-9:1:dddddddddddd" in done.stderr
        assert here.actions == ["quiet"]  # the others are


class TestAnswers:
    def test_a_process_that_reads_nothing_is_passed_over_and_its_message_taken_back(
        self, impatient: KiqctlHere, fake_supervisor: Callable[..., FakeSupervisor], store: Store
    ) -> None:
        here = fake_supervisor(workers=2)
        here.deafen(here.workers[0])

        done = impatient("quiet")

        assert done.exit_code == 0, done.stderr
        assert [worker for worker, _ in here.received] == [here.workers[1]]
        assert unread(store) == []

    def test_a_process_that_dies_of_the_message_is_replaced_by_another(
        self, kiqctl: Kiqctl, fake_supervisor: Callable[..., FakeSupervisor]
    ) -> None:
        here = fake_supervisor(workers=3)
        here.mortal = {here.workers[0]}

        done = kiqctl("quiet")

        assert done.returncode == 0, done.stderr
        assert here.actions == ["quiet"]

    def test_a_refusal_is_an_error_with_its_reason_and_the_others_go_on(
        self, kiqctl: Kiqctl, fake_supervisor: Callable[..., FakeSupervisor]
    ) -> None:
        here, there = fake_supervisor("app-1"), fake_supervisor("app-2")
        here.answer = lambda _: "the cluster is stopping"

        done = kiqctl("roll", "--json")

        assert done.returncode == 1
        document = json.loads(done.stdout)
        assert {each["name"]: each["error"] for each in document["clusters"]} == {
            here.name: "the cluster is stopping",
            there.name: None,
        }
        assert document["ok"] is False

    def test_who_does_not_answer_is_named_and_reads_nothing_later(
        self, impatient: KiqctlHere, fake_supervisor: Callable[..., FakeSupervisor], store: Store
    ) -> None:
        deaf, silent, sound = fake_supervisor("app-1"), fake_supervisor("app-2", workers=1), fake_supervisor("app-3")
        deaf.deafen(*deaf.workers)
        silent.is_silent = True

        done = impatient("quiet")

        assert done.exit_code == 1
        for each in (deaf, silent):
            assert f"{each.name}: did not answer" in done.stderr
        assert sound.name not in done.stderr
        assert sound.actions == ["quiet"]
        assert unread(store) == []
        assert len({message.id for _, message in silent.received}) == 1  # asked again, but for one thing
        (of_deaf,) = [line for line in done.stderr.splitlines() if deaf.name in line]
        (of_silent,) = [line for line in done.stderr.splitlines() if silent.name in line]
        assert "may still be done" in of_silent  # it was read
        assert "may be" not in of_deaf

    def test_a_process_that_has_read_its_message_and_does_not_obey_may_yet(
        self, impatient: KiqctlHere, fake_supervisor: Callable[..., FakeSupervisor]
    ) -> None:
        here = fake_supervisor(workers=1)

        done = impatient("quiet", "--identity", here.workers[0])

        assert done.exit_code == 1
        assert "may still be done" in done.stderr


class TestWaiting:
    def test_it_ends_when_nothing_runs_and_says_how_much_does(
        self, kiqctl: Kiqctl, fake_supervisor: Callable[..., FakeSupervisor]
    ) -> None:
        here = fake_supervisor(workers=2)
        here.run_jobs(2, 1)

        running = kiqctl.start("quiet", "--wait")
        kiqctl.wait_printed(running, "3 jobs still run")
        here.run_jobs(1, 0)
        kiqctl.wait_printed(running, "1 job still runs")
        here.run_jobs(0, 0)

        assert kiqctl.end(running).returncode == 0

    def test_a_timeout_is_an_error_and_the_cluster_stays_quiet(
        self, kiqctl: Kiqctl, fake_supervisor: Callable[..., FakeSupervisor]
    ) -> None:
        here = fake_supervisor(workers=1)
        here.run_jobs(1)

        done = kiqctl("quiet", "--wait", "--timeout", "0.5s")

        assert done.returncode == 1
        assert f"{here.name}: not within" in done.stderr
        assert here.state["quiet_by"]

    def test_one_process_is_waited_for_alone(
        self, kiqctl: Kiqctl, fake_supervisor: Callable[..., FakeSupervisor]
    ) -> None:
        here = fake_supervisor(workers=2)
        here.obeys_alone = True
        here.run_jobs(0, 3)

        assert kiqctl("quiet", "--identity", here.workers[0], "--wait").returncode == 0

    def test_redis_may_be_away_meanwhile(self, own_server: RedisServer) -> None:
        kiqctl, here = Kiqctl(own_server.url), FakeSupervisor(own_server.store(), workers=1)
        here.run_jobs(1)
        running = kiqctl.start("quiet", "--wait")
        kiqctl.wait_printed(running, "1 job still runs")

        own_server.kill()
        own_server.start()
        here.run_jobs(0)  # it publishes all anew

        assert kiqctl.end(running).returncode == 0
        here.close()


class TestRoll:
    def test_it_is_asked_for_and_not_waited_for(
        self, kiqctl: Kiqctl, fake_supervisor: Callable[..., FakeSupervisor]
    ) -> None:
        here = fake_supervisor()

        assert kiqctl("roll").returncode == 0

        assert here.state["roll"]["state"] == "rolling"

    def test_with_wait_it_ends_with_the_last_of_them(
        self, kiqctl: Kiqctl, fake_supervisor: Callable[..., FakeSupervisor]
    ) -> None:
        here, there = fake_supervisor("app-1"), fake_supervisor("app-2")
        running = kiqctl.start("roll", "--wait")
        wait_until(lambda: here.state["roll"] and there.state["roll"], "both to roll")

        here.end_roll()
        there.change(roll={**there.state["roll"], "done": 1})
        kiqctl.wait_printed(running, f"{there.name}: 1 of 2 workers replaced")
        there.end_roll()

        assert kiqctl.end(running).returncode == 0

    def test_one_that_fails_is_an_error_and_the_others_are_waited_for(
        self, kiqctl: Kiqctl, fake_supervisor: Callable[..., FakeSupervisor]
    ) -> None:
        here, there = fake_supervisor("app-1"), fake_supervisor("app-2")
        running = kiqctl.start("roll", "--wait", "--json")
        wait_until(lambda: here.state["roll"] and there.state["roll"], "both to roll")

        here.end_roll("failed", "slot 0: pid 5 exited with 3")
        there.end_roll()
        done = kiqctl.end(running)

        assert done.returncode == 1
        errors = {each["name"]: each["error"] for each in json.loads(done.stdout)["clusters"]}
        assert errors == {here.name: "slot 0: pid 5 exited with 3", there.name: None}

    def test_reload_is_answered(self, kiqctl: Kiqctl, fake_supervisor: Callable[..., FakeSupervisor]) -> None:
        here = fake_supervisor()

        assert kiqctl("reload").returncode == 0
        here.answer = lambda _: "kiqcluster.toml is not valid TOML"
        done = kiqctl("reload")

        assert (done.returncode, here.actions) == (1, ["reload", "reload"])
        assert "kiqcluster.toml is not valid TOML" in done.stderr


class TestReload:
    def test_with_wait_it_ends_when_all_have_reloaded(
        self, kiqctl: Kiqctl, fake_supervisor: Callable[..., FakeSupervisor]
    ) -> None:
        here, there = fake_supervisor("app-1"), fake_supervisor("app-2")
        running = kiqctl.start("reload", "--wait", "--json")
        wait_until(lambda: here.state["reload"] and there.state["reload"], "both to reload")

        here.end_reload()
        there.end_reload("failed", "there is no module appx\nTraceback")
        done = kiqctl.end(running)

        assert done.returncode == 1
        errors = {each["name"]: each["error"] for each in json.loads(done.stdout)["clusters"]}
        assert errors == {here.name: None, there.name: "there is no module appx\nTraceback"}

    def test_one_that_a_roll_holds_up_is_waited_for(
        self, kiqctl: Kiqctl, fake_supervisor: Callable[..., FakeSupervisor]
    ) -> None:
        here = fake_supervisor()
        here.change(roll={"id": "1", "state": "rolling", "done": 1, "of": 3, "error": ""})

        running = kiqctl.start("reload", "--wait")
        kiqctl.wait_printed(running, f"{here.name}: reloads when its roll has ended")
        here.end_roll()
        here.end_reload()

        assert kiqctl.end(running).returncode == 0

    def test_a_timeout_is_an_error(self, kiqctl: Kiqctl, fake_supervisor: Callable[..., FakeSupervisor]) -> None:
        here = fake_supervisor()

        done = kiqctl("reload", "--wait", "--timeout", "0.3s")

        assert done.returncode == 1
        assert f"{here.name}: not within" in done.stderr

    def test_a_reason_of_many_lines_is_told_whole(
        self, kiqctl: Kiqctl, fake_supervisor: Callable[..., FakeSupervisor]
    ) -> None:
        here = fake_supervisor()
        here.answer = lambda _: "no TOML\nat line 3"

        done = kiqctl("reload")

        assert [line.strip() for line in done.stderr.splitlines()] == [
            f"kiqctl: {here.name}: no TOML",
            "kiqctl:   at line 3",
        ]


class TestDeploy:
    def test_begin_is_a_quiet_with_a_lease_and_a_mark(
        self, kiqctl: Kiqctl, fake_supervisor: Callable[..., FakeSupervisor], store: Store
    ) -> None:
        """The mark's keys and values are those of Sidekiq's Deploy (reference: deploy.rb of 7.0)."""
        here = fake_supervisor()

        done = kiqctl("deploy", "begin", "--label", "v42")

        assert done.returncode == 0, done.stderr
        assert [(each.action, each.lease) for _, each in here.received] == [("quiet", 900.0)]
        (key,) = store.call("KEYS", "*-marks")
        ((minute, label),) = marks(store, key).items()
        assert key == f"{minute[:10].replace('-', '')}-marks".encode()
        assert (minute[13:14], minute[16:]) == (":", ":00Z")
        assert label == "v42"
        assert 0 < 7_776_000 - store.call("TTL", key) + 1 < 60
        assert store.call("GET", "deploylock-v42").decode() == minute
        assert 0 < store.call("TTL", "deploylock-v42") <= 60

    def test_a_deploy_that_many_begin_is_marked_once(
        self, kiqctl: Kiqctl, fake_supervisor: Callable[..., FakeSupervisor], store: Store
    ) -> None:
        fake_supervisor()

        for _ in range(2):
            assert kiqctl("deploy", "begin", "--label", "v42").returncode == 0

        assert sum(len(marks(store, key)) for key in store.call("KEYS", "*-marks")) == 1

    def test_without_a_label_it_is_gits_last_commit(
        self, kiqctl: Kiqctl, fake_supervisor: Callable[..., FakeSupervisor], store: Store, tmp_path: Path
    ) -> None:
        fake_supervisor()
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
        subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
        subprocess.run(["git", *identity, "commit", "-qm", "Ship it", "--allow-empty"], cwd=tmp_path, check=True)

        kiqctl("deploy", "begin", cwd=tmp_path)

        (key,) = store.call("KEYS", "*-marks")
        assert next(iter(marks(store, key).values())).endswith(" Ship it")

    def test_one_that_does_not_begin_everywhere_is_no_deploy(
        self, kiqctl: Kiqctl, fake_supervisor: Callable[..., FakeSupervisor], store: Store
    ) -> None:
        fake_supervisor("app-1").answer = lambda _: "the cluster is stopping"
        fake_supervisor("app-2")

        assert kiqctl("deploy", "begin").returncode == 1

        assert store.call("KEYS", "*-marks") == []

    def test_begin_can_wait_until_nothing_runs(
        self, kiqctl: Kiqctl, fake_supervisor: Callable[..., FakeSupervisor]
    ) -> None:
        here = fake_supervisor(workers=1)
        here.run_jobs(1)

        running = kiqctl.start("deploy", "begin", "--wait", "--lease", "5m")
        kiqctl.wait_printed(running, "1 job still runs")
        here.run_jobs(0)

        assert kiqctl.end(running).returncode == 0

    def test_commit_rolls_every_supervisor_and_fails_when_one_does(
        self, kiqctl: Kiqctl, fake_supervisor: Callable[..., FakeSupervisor]
    ) -> None:
        here, there = fake_supervisor("app-1"), fake_supervisor("app-2")

        running = kiqctl.start("deploy", "commit")
        wait_until(lambda: here.state["roll"] and there.state["roll"], "both to roll")
        here.end_roll()
        there.end_roll("failed", "it did not boot")
        done = kiqctl.end(running)

        assert done.returncode == 1
        assert f"{there.name}: it did not boot" in done.stderr

    def test_commit_is_fine_when_all_are(self, kiqctl: Kiqctl, fake_supervisor: Callable[..., FakeSupervisor]) -> None:
        here = fake_supervisor()

        running = kiqctl.start("deploy", "commit")
        wait_until(lambda: here.state["roll"], "it to roll")
        here.end_roll()

        assert kiqctl.end(running).returncode == 0

    def test_abort_resumes(self, kiqctl: Kiqctl, fake_supervisor: Callable[..., FakeSupervisor]) -> None:
        here, there = fake_supervisor("app-1"), fake_supervisor("app-2")
        kiqctl("deploy", "begin", "--host", "app-1")

        assert kiqctl("deploy", "abort").returncode == 0

        assert (here.actions, there.actions) == (["quiet", "resume", "rollback"], ["resume", "rollback"])
        assert here.state["quiet_by"] == ""

    def test_while_one_deploys_another_is_refused_at_each_step(
        self, kiqctl: Kiqctl, fake_supervisor: Callable[..., FakeSupervisor]
    ) -> None:
        here = fake_supervisor()
        kiqctl("deploy", "begin", "--owner", "mira")

        for step in ("begin", "commit", "abort", "status"):
            done = kiqctl("deploy", step, "--json", KIQCTL_OWNER="juri")
            assert done.returncode == 6
            assert "mira" in str(json.loads(done.stdout))
        assert here.actions == ["quiet"]

        done = kiqctl("deploy", "begin", "--owner", "juri", "--force")
        assert (done.returncode, here.actions) == (0, ["quiet", "quiet"])
        assert "taken from mira" in done.stdout
        assert kiqctl("deploy", "commit", "--owner", "mira").returncode == 6
        assert kiqctl("deploy", "abort", "--owner", "juri").returncode == 0
        assert kiqctl("deploy", "status").stdout == "no deploy is in progress\n"

    @pytest.mark.parametrize(
        ("line", "last"),
        [
            ("begin && true && {0} commit", "roll"),
            pytest.param("begin && false && {0} commit || {0} abort", "resume", marks=pytest.mark.full),
        ],
    )
    def test_the_last_command_of_bash_c_is_of_the_same_deploy(
        self, fake_supervisor: Callable[..., FakeSupervisor], redis_server: RedisServer, line: str, last: str
    ) -> None:
        here = fake_supervisor("app-1")
        deploy = f"{shlex.quote(sys.executable)} -m kiqcluster.ctl deploy"
        command = ["bash", "-c", f"{deploy} {line.format(deploy)}"]  # which executes the last one in its own process

        with subprocess.Popen(command, cwd=ROOT, env={**os.environ, "REDIS_URL": redis_server.url}) as running:
            if last == "roll":
                wait_until(lambda: here.state["roll"], "it to roll")
                here.end_roll()

        assert running.returncode == 0
        assert last in here.actions

    def test_an_abort_that_belongs_to_no_open_deploy_rolls_nothing_back(
        self, kiqctl: Kiqctl, fake_supervisor: Callable[..., FakeSupervisor]
    ) -> None:
        here = fake_supervisor()

        done = kiqctl("deploy", "abort", "--json")

        assert (done.returncode, here.actions) == (0, ["resume"])
        assert json.loads(done.stdout)["is_rolled_back"] is False

    def test_where_nobody_is_there_the_lock_is_left_free(self, kiqctl: Kiqctl) -> None:
        assert kiqctl("deploy", "begin").returncode == 1

        assert kiqctl("deploy", "status", "--owner", "juri").returncode == 0


class TestPs:
    def test_processes_are_shown_by_supervisor(
        self, kiqctl: Kiqctl, fake_supervisor: Callable[..., FakeSupervisor], store: Store
    ) -> None:
        here, there = fake_supervisor("app-1", workers=2), fake_supervisor("app-2", workers=1)
        here.run_jobs(2, 1)
        here.change(quiet_by="kiqctl@x", lease_remaining=900.0)
        there.change(
            roll={"id": "1", "state": "rolling", "done": 1, "of": 3, "error": ""}, restart_needed="0.2 is there"
        )
        publish(store, RUBY, labels=[])

        done = kiqctl("ps", "--json")
        shown, plain = json.loads(done.stdout), kiqctl("ps").stdout

        assert done.returncode == 0
        first, second = shown["clusters"]
        assert (first["name"], first["slots"], first["busy"], first["concurrency"]) == (here.name, 2, 3, 10)
        assert (first["quiet_by"], first["quiet"]) == ("kiqctl@x", True)
        assert 880 < first["lease_remaining"] <= 900
        assert [worker["identity"] for worker in first["workers"]] == here.workers
        assert (second["roll"]["done"], second["restart_needed"], second["quiet"]) == (1, "0.2 is there", False)
        assert [each["identity"] for each in shown["others"]] == [RUBY]
        for word in (here.name, there.name, "quiet by kiqctl@x", "rolling 1 of 3", "0.2 is there", "101", "2/5"):
            assert word in plain

    def test_what_is_left_of_a_lease_runs_down_with_the_age_of_the_news(
        self, kiqctl: Kiqctl, fake_supervisor: Callable[..., FakeSupervisor], store: Store
    ) -> None:
        here = fake_supervisor(workers=1)
        here.change(quiet_by="kiqctl@x", lease_remaining=900.0)
        store.call("EXPIRE", here.workers[0], 20)  # it has beaten 40 s ago

        (shown,) = json.loads(kiqctl("ps", "--json").stdout)["clusters"]

        assert 840 < shown["lease_remaining"] <= 860
        assert 40 <= shown["workers"][0]["age"] < 60

    def test_a_host_narrows_it(self, kiqctl: Kiqctl, fake_supervisor: Callable[..., FakeSupervisor]) -> None:
        fake_supervisor("app-1")
        there = fake_supervisor("app-2")

        shown = json.loads(kiqctl("ps", "--json", "--host", "app-2").stdout)

        assert [each["name"] for each in shown["clusters"]] == [there.name]

    def test_lines_fit_the_terminal(self, kiqctl: Kiqctl, store: Store) -> None:
        queues = [f"queue-{number}" for number in range(200)]
        publish(store, RUBY, labels=[], queues=queues)

        lines = kiqctl("ps", COLUMNS="90").stdout.splitlines()

        assert max(map(len, lines)) <= 90
        assert any(line.endswith("…") for line in lines)


class TestFailures:
    @pytest.mark.parametrize(
        "words",
        [
            ["quiet", "--lease", "soon"],
            ["quiet", "--lease", "-5"],
            ["quiet", "--timeout", "5m"],
            ["quiet", "--wait", "--timeout", "5m", "--lease", "4m"],
            ["deploy", "begin", "--wait", "--timeout", "16m"],
            ["roll", "--timeout", "5m"],
            ["reload", "--timeout", "5m"],
            ["roll", "--identity", "app-1:1:a"],
            ["quiet", "--socket", "x.sock", "--host", "app-1"],
            ["ps", "--socket", "x.sock", "--host", "app-1"],
            ["quiet", "--redis", "http://x"],
            ["quiet", "-C", "missing.toml"],
            ["deploy", "start"],
            ["explode"],
        ],
    )
    def test_what_cannot_be_used_is_exit_2(self, kiqctl: Kiqctl, words: list[str]) -> None:
        done = kiqctl(*words)

        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr

    def test_a_redis_that_is_away_is_exit_1_and_says_so(self) -> None:
        done = Kiqctl(f"redis://127.0.0.1:{free_port()}/0")("ps")

        assert done.returncode == 1
        assert "cannot reach Redis" in done.stderr
        assert "Traceback" not in done.stderr

    def test_a_password_that_is_wrong_is_exit_5(self, own_server: RedisServer) -> None:
        own_server.store().call("CONFIG", "SET", "requirepass", "secret")

        done = Kiqctl(own_server.url)("ps")

        assert done.returncode == 5
        assert "NOAUTH" in done.stderr

    def test_redis_is_found_as_kiqcluster_finds_it(
        self, redis_server: RedisServer, fake_supervisor: Callable[..., FakeSupervisor], tmp_path: Path
    ) -> None:
        fake_supervisor()
        (tmp_path / "kiqcluster.toml").write_text(f'[env.staging]\nredis = "{redis_server.url}"\n')
        elsewhere = Kiqctl(None)

        assert elsewhere("ps", cwd=tmp_path, REDIS_URL=redis_server.url).returncode == 0
        assert elsewhere("ps", "--redis", redis_server.url, cwd=tmp_path).returncode == 0
        assert elsewhere("ps", "-e", "staging", cwd=tmp_path).returncode == 0
        assert elsewhere("ps", cwd=tmp_path, REDIS_URL=f"redis://127.0.0.1:{free_port()}/0").returncode == 1

    @pytest.mark.parametrize("words", [["ps"], ["quiet"], ["resume"], ["deploy", "abort"]])
    def test_a_slip_in_a_setting_that_it_does_not_need_does_not_take_it_away(
        self,
        redis_server: RedisServer,
        fake_supervisor: Callable[..., FakeSupervisor],
        tmp_path: Path,
        words: list[str],
    ) -> None:
        fake_supervisor()
        (tmp_path / "kiqcluster.toml").write_text("max_concurency = 2\n")

        done = Kiqctl(None)(*words, cwd=tmp_path, REDIS_URL=redis_server.url)

        assert done.returncode == 0, done.stderr
        assert "max_concurrency" in done.stderr


def marks(store: Store, key: bytes) -> dict[str, str]:
    words = [word.decode() for word in store.call("HGETALL", key)]
    return dict(zip(words[::2], words[1::2], strict=True))


# help


@pytest.mark.parametrize("words", sorted(all_commands()))
def test_the_help_of_every_command_has_examples_that_it_takes(words: str) -> None:
    each = all_commands()[words]
    calls = examples(words)

    assert calls
    for call in calls:
        each.make_context("kiqctl", call[len(words.split()) :])  # raises for what the command does not know


@pytest.mark.parametrize("words", ["", "queues", "deploy", "retries", "scheduled", "dead"])
def test_the_listing_of_commands_cuts_no_summary_off(words: str) -> None:
    done = Kiqctl(None)(*words.split(), "--help", COLUMNS="80")

    listing = done.stdout.partition("Commands:\n")[2].splitlines()
    assert len(listing) >= 3
    assert [line for line in listing if not line.endswith(".") or line.endswith("...")] == []


def test_the_help_of_a_deploy_says_how_long_its_quiet_lasts() -> None:
    assert "[15m]" in Kiqctl(None)("deploy", "begin", "--help").stdout


PAGES = sorted({*(ROOT / "docs").rglob("*.md")} - {*(ROOT / "docs/adr").glob("*.md")})  # ADRs tell of what was


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_commands_on_the_pages_are_such_that_it_takes(page: Path) -> None:
    known = all_commands()
    # after a prompt to the end of its line, within a sentence to the end of its code, over a line's end as well
    commands = re.findall(r"^\$ (kiqctl [a-z][^`\n]+)|`(kiqctl [a-z][^`]+)`", page.read_text(), re.MULTILINE)
    for at_prompt, in_text in commands:
        line = at_prompt or " ".join(in_text.split())
        words = shlex.split(line, comments=True)[1:]
        name = " ".join(words[:2]) if " ".join(words[:2]) in known else words[0]
        if name == " ".join(words):  # named only, as a command or a group
            assert any(f"{each} ".startswith(f"{name} ") for each in known), line
        else:
            known[name].make_context("kiqctl", words[1 + name.count(" ") :])


def test_kiqctl_is_a_module_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kiqcluster.ctl", "--version"], capture_output=True, text=True, cwd=ROOT
    )

    assert (done.returncode, done.stdout.split()[0]) == (0, "kiqctl")
