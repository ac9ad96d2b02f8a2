"""--queue-selector: which queues a selector stands for, at the start, after a reload and after a rolling restart."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from kiqcluster.sidekiq import ruby_json
from tests.kit import Cluster, wait_until
from tests.process.releases import Releases
from tests.process.test_command import kiqcluster
from tests.stage import Stage, pid_of

APPLICATION = """
from kiqcluster import job

@job(queue="mail", urgency="high", feature_category="mail", weight=5)
def send(): ...

@job(queue="mail:bulk", feature_category="mail", tags=["heavy"])
def newsletter(): ...

@job(queue="reports", resource_boundary="memory", tags=["heavy"])
def report(): ...

@job(queue_namespace="cronjob", external_dependencies=True, urgency="throttled")
def nightly(): ...
"""
QUEUES = ["cronjob:nightly", "mail", "mail:bulk", "reports"]


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """Write an application whose jobs have attributes; return its folder."""
    (tmp_path / "jobs.py").write_text(APPLICATION)
    return tmp_path


def run(app: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return kiqcluster("-r", "jobs", *arguments, cwd=app, **environ)


class TestCommands:
    @pytest.mark.parametrize(
        ("arguments", "queues"),
        [
            (["urgency=high"], [["mail"]]),
            (["urgency=high", "urgency!=high"], [["mail"], ["cronjob:nightly", "mail:bulk", "reports"]]),
            (["tags=heavy&resource_boundary!=memory"], [["mail:bulk"]]),
            (["(urgency=high|tags=heavy)&feature_category=mail"], [["mail", "mail:bulk"]]),
            (["*"], [QUEUES]),
            (["--negate", "tags=heavy"], [["cronjob:nightly", "mail"]]),
            (["--negate", "worker_name=send", "queue_namespace=cronjob"], [[*QUEUES[:1], *QUEUES[2:]], QUEUES[1:]]),
            (["urgency=throttled", "feature_category=mail&tags!=heavy"], [["cronjob:nightly"], ["mail"]]),
        ],
    )
    def test_dryrun_shows_the_queues_of_the_jobs_that_match(
        self, app: Path, arguments: list[str], queues: list[list[str]]
    ) -> None:
        done = run(app, "--queue-selector", "--dryrun", "--json", *arguments)

        slots = json.loads(done.stdout)
        assert [list(slot["queues"]) for slot in slots] == queues
        assert [slot["selector"] for slot in slots] == [word for word in arguments if word != "--negate"]

    def test_list_queues_prints_their_union(self, app: Path) -> None:
        done = run(app, "--queue-selector", "--list-queues", "tags=heavy", "urgency=high|tags=heavy")

        assert (done.returncode, done.stdout) == (0, "mail\nmail:bulk\nreports\n")

    def test_weights_are_those_that_the_jobs_declare(self, app: Path) -> None:
        (slot,) = json.loads(run(app, "--queue-selector", "--dryrun", "--json", "feature_category=mail").stdout)

        assert (slot["queues"], slot["mode"]) == ({"mail": 5, "mail:bulk": 1}, "weighted")

    def test_a_configuration_file_and_variables_have_selectors_as_well(self, app: Path) -> None:
        (app / "kiqcluster.toml").write_text('queue_selector = true\ngroups = ["urgency=high", "tags=heavy"]')
        plain = run(app, "--list-queues")
        variables = run(app, "--list-queues", KIQ_GROUPS="urgency=high urgency=throttled", KIQ_NEGATE="true")

        assert plain.stdout == "mail\nmail:bulk\nreports\n"
        assert variables.stdout.split() == QUEUES
        assert run(app, "--list-queues", "--no-queue-selector", "mail").stdout == "mail\nmail:bulk\n"

    def test_queues_of_the_configuration_are_jobs_that_declare_nothing(self, app: Path) -> None:
        listed = [
            run(app, "--queue-selector", "--list-queues", text, KIQ_QUEUES="ruby mail").stdout.split()
            for text in ("*", "name=ruby", "urgency=low")
        ]

        assert listed == [sorted([*QUEUES, "ruby"]), ["ruby"], ["mail:bulk", "reports", "ruby"]]

    def test_a_value_that_no_job_has_is_noted_beside_the_slots(self, app: Path) -> None:
        done = run(app, "--queue-selector", "--dryrun", "feature_category=mial", "tags=heavy")

        assert done.returncode == 0
        assert done.stdout.splitlines() == [
            "slot 0: 5 threads, random: (no job matches)  [feature_category=mial]",
            "slot 1: 5 threads, random: mail:bulk, reports  [tags=heavy]",
        ]
        assert "no registered job has feature_category=mial; did you mean feature_category=mail?" in done.stderr

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["urgncy=high"], "character 1: there is no attribute 'urgncy'; did you mean 'urgency'?"),
            (["urgency=high", "tags=a b"], "selector 'tags=a b', character 8"),
            (["urgency=hihg"], "did you mean 'high'?"),
            (["urgency=high\ntags=a"], "line break"),
            (["default,mailers"], "there is no attribute 'default'"),
            (["feature_category=mial", "tags=x"], "no registered job matches"),  # nothing at all
            (["--negate", "*"], "leaves no queue"),
            (["--strict", "*"], "--strict"),
            (["-q", "mail"], "name=mail"),
            ([], "no selector given"),
        ],
    )
    def test_a_selector_that_cannot_be_used_is_exit_2(self, app: Path, arguments: list[str], words: str) -> None:
        shown = run(app, "--queue-selector", "--dryrun", *arguments)
        started = run(app, "--queue-selector", *arguments, KIQ_LISTEN="127.0.0.1:0")

        assert (shown.returncode, started.returncode) == (2, 2)
        assert words in shown.stderr
        assert words in started.stderr + started.stdout
        assert "child_started" not in started.stdout


def served(stage: Stage, pid: int) -> set[str]:
    """Return the queues that a process' heartbeat shows."""
    infos = [stage.store.call("HGET", name, "info") for name in stage.members() if pid_of(name) == pid]
    return set(ruby_json.decode(infos[0])["queues"]) if infos and infos[0] else set()


def queues_of(cluster: Cluster) -> list[list[str]]:
    return [sorted(slot["queues"]) for slot in cluster.slots()]


MAIL = "@job(queue='mail', feature_category='mail')\ndef send(word): note('sent', word)"
BULK = "@job(queue='bulk', feature_category={category!r})\ndef bulk(word): note('bulk', word)"


class TestCluster:
    def test_each_slot_serves_the_queues_of_its_selector_and_no_others(self, stage: Stage, releases: Releases) -> None:
        releases.deploy("1", f"{MAIL}\n{BULK.format(category='ads')}")
        stage.push("record", "other", queue="elsewhere")
        stage.push("record", "deeper", queue="mail:deeper")

        cluster = releases.run(
            stage, "--queue-selector", "feature_category=mail", "feature_category=ads", "tags=none", "-c", "1"
        )
        pids = cluster.wait_ready(3)
        stage.push("send", "a", queue="mail")
        stage.push("bulk", "b", queue="bulk")

        stage.wait_noted("sent a", "bulk b")
        assert queues_of(cluster) == [["mail"], ["bulk"], []]
        assert [slot["selector"] for slot in cluster.slots()][:2] == ["feature_category=mail", "feature_category=ads"]
        assert served(stage, pids[0]) == {"mail"}
        assert cluster.wait_for("selector_unmatched")["values"] == "tags=none"
        assert cluster.wait_for("no_queues")["group"] == "tags=none"
        assert (stage.queued_args("elsewhere"), stage.queued_args("mail:deeper")) == (["other"], ["deeper"])

    def test_a_reload_evaluates_again_for_running_workers(self, stage: Stage, releases: Releases) -> None:
        releases.deploy("1", f"{MAIL}\n{BULK.format(category='ads')}")
        cluster = releases.run(stage, "--queue-selector", "feature_category=mail", "-c", "1")
        pid = cluster.wait_ready()[0]

        releases.deploy("2", f"{MAIL}\n{BULK.format(category='mail')}")
        cluster.signal(signal.SIGHUP)
        cluster.wait_for("reloaded")

        assert set(cluster.wait_for("queues_changed", pid=pid)["queues"].split(",")) == {"bulk", "mail"}
        stage.push("bulk", "b", queue="bulk")
        stage.wait_noted("bulk b")
        assert queues_of(cluster) == [["bulk", "mail"]]

        releases.deploy("3", f"{MAIL}\n{BULK.format(category='ads')}")
        cluster.signal(signal.SIGHUP)
        cluster.wait_for("reloaded", count=2)
        assert cluster.wait_for("queues_changed", pid=pid, count=2)["queues"] == "mail"
        stage.push_many("bulk", [["c"], ["d"], ["e"]], queue="bulk")
        stage.push("send", "f", queue="mail")
        stage.wait_noted("sent f")
        stage.wait_settled()
        assert cluster.pids() == {0: pid}
        assert len(stage.queued_args("bulk")) >= 2  # the wait that was armed already may bring one

    def test_a_roll_evaluates_again_by_the_new_release(self, stage: Stage, releases: Releases) -> None:
        releases.deploy("1", f"{MAIL}\n{BULK.format(category='ads')}")
        cluster = releases.run(
            stage,
            "--queue-selector",
            "feature_category=mail",
            "feature_category!=mail",
            "-c",
            "1",
            KIQ_ROLL_BAKE_TIME="0",
        )
        cluster.wait_ready(2)
        assert queues_of(cluster) == [["mail"], ["bulk", "cronjob:nightly", "default"]]

        releases.deploy("2", f"{MAIL}\n{BULK.format(category='mail')}")
        cluster.signal(signal.SIGUSR2)
        cluster.wait_for("roll_done")

        assert queues_of(cluster) == [["bulk", "mail"], ["cronjob:nightly", "default"]]
        new = cluster.pids()[0]
        wait_until(lambda: served(stage, new) == {"bulk", "mail"}, "the new worker to serve both")

    def test_a_release_that_leaves_the_selectors_nothing_ends_the_roll(self, stage: Stage, releases: Releases) -> None:
        releases.deploy("1", MAIL)
        cluster = releases.run(stage, "--queue-selector", "feature_category=mail", "-c", "1")
        before = cluster.wait_ready()

        releases.deploy("2", MAIL.replace("'mail')", "'ads')"))
        cluster.signal(signal.SIGUSR2)

        assert "no registered job matches 'feature_category=mail'" in cluster.wait_for("roll_failed")["error"]
        assert (cluster.pids(), queues_of(cluster)) == (before, [["mail"]])

    def test_a_negated_selector_takes_no_queue_that_only_redis_knows(self, stage: Stage, releases: Releases) -> None:
        releases.deploy("1", f"{MAIL}\n{BULK.format(category='ads')}")
        stage.push("record", "a", queue="elsewhere")
        cluster = releases.run(stage, "--queue-selector", "--negate", "feature_category=ads", "-c", "1")
        cluster.wait_ready()

        stage.push("send", "b", queue="mail")

        stage.wait_noted("sent b")
        assert queues_of(cluster) == [["cronjob:nightly", "default", "mail"]]
        assert stage.queued_args("elsewhere") == ["a"]
