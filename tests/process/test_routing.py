"""Routing rules on real clusters: who pushes where, who serves it, and what a node with other rules looks like."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from kiqcluster.sidekiq.routing import digest, parse_rules
from tests.kit import Cluster, http_get, wait_until
from tests.process.releases import Releases
from tests.process.test_command import kiqcluster
from tests.stage import Stage

JOBS = """
@job(queue="mail", urgency="high")
def send(word): note("sent", word)

@job(queue="start")
def start(word):
    send.perform_async(word)
    send.perform_in(0.01, f"{word} later")
    send.set(queue="elsewhere").perform_async("explicit")

@job(queue="flaky", tags=["flaky"], retry=1, retry_in=lambda *_: 0.01)
def flaky():
    note("flaky")
    raise ValueError
"""
RULES = [["name=start", ""], ["urgency=high", "urgent"], ["tags=none", "never"]]


def configuration(folder: Path, rules: list[list[str]]) -> str:
    (folder / "kiq.toml").write_text(f"routing = {json.dumps(rules)}\nroll.bake_time = 0")
    return str(folder / "kiq.toml")


def test_selectors_serve_the_queues_that_classes_are_routed_to(
    stage: Stage, releases: Releases, tmp_path: Path
) -> None:
    releases.deploy("1", JOBS)
    cluster = releases.run(
        stage, "-C", configuration(tmp_path, RULES), "--queue-selector", "urgency=high", "name=start", "-c", "1"
    )
    cluster.wait_ready(2)
    assert [sorted(slot["queues"]) for slot in cluster.slots()] == [["urgent"], ["start"]]
    assert cluster.wait_for("routing_rule_unused")["number"] == 3

    stage.push("start", "a", queue="start")

    stage.wait_noted("sent a", "sent a later")
    stage.wait_settled()
    assert stage.queued_args("elsewhere") == ["explicit"]
    assert json.loads(http_get(cluster.port, "/status")[2])["routing"] == digest(parse_rules(RULES))
    assert cluster.metric(f'kiqcluster_routing_rules_info{{digest="{digest(parse_rules(RULES))}"}}') == 1

    configuration(tmp_path, [["urgency=high", "now"], ["tags=flaky", ""], ["*", "rest"]])
    cluster.signal(signal.SIGHUP)
    assert cluster.wait_for("reloaded")["roll"] == "; roll (USR2) for routing, the application's jobs"
    assert [sorted(slot["queues"]) for slot in cluster.slots()] == [["now"], []]


def test_a_node_with_other_rules_is_seen(stage: Stage, releases: Releases, tmp_path: Path) -> None:
    releases.deploy("1", JOBS)
    one = releases.run(stage, "-C", configuration(tmp_path, RULES), "*", "-c", "1")
    one.wait_ready()
    releases.deploy("2", f"{JOBS}\nfrom kiqcluster import configure\nconfigure(routing=[['*', 'all']])")
    two = releases.run(stage, "*", "-c", "1")
    two.wait_ready()

    seen = two.wait_for("routing_differs")

    assert (seen["theirs"], seen["ours"]) == (digest(parse_rules(RULES)), digest(parse_rules([["*", "all"]])))


def test_another_application_with_another_shard_of_one_name_is_seen(stage: Stage) -> None:
    def run(application: str) -> Cluster:
        shards = json.dumps({"eu": f"redis://{application}:6379/0"})
        return stage.run_cluster("default", "-c", "1", KIQ_CRON_APPLICATION=application, KIQ_SHARDS=shards)

    run("shop").wait_ready()
    wait_until(lambda: bool(stage.store.call("KEYS", "kiq:declared:*")), "the first one to say what it declares")
    blog = run("blog")

    seen = blog.wait_for("declarations_differ")

    assert (seen["name"], seen["application"], seen["other"]) == ("shard eu", "blog", "shop")
    assert (seen["declared"], seen["theirs"]) == ("blog:6379/0", "shop:6379/0")


def test_what_was_pushed_keeps_its_queue(stage: Stage, releases: Releases, tmp_path: Path) -> None:
    releases.deploy("1", JOBS)
    stage.push("flaky", queue="old", retry=1)
    cluster = releases.run(stage, "-C", configuration(tmp_path, [["*", "new"]]), "old,new", "-c", "1")
    cluster.wait_ready()

    cluster.wait_for("job_failed", count=2)
    wait_until(lambda: bool(stage.dead()), "the job to die")
    assert [payload["queue"] for payload in stage.dead()] == ["old"]


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ('[["urgncy=high", "u"]]', "there is no attribute 'urgncy'; did you mean 'urgency'?"),
        ('[["*", "a"], ["urgency=high", "u"]]', "rule 2: no job ever comes to 'urgency=high'"),
        ('[["*", "two words"]]', "queue name 'two words'"),
        ("[[", "it is no JSON"),
    ],
)
def test_a_rule_that_cannot_be_used_is_exit_2(rules: str, words: str) -> None:
    done = kiqcluster("-r", "tests.apps.basic", "default", KIQ_ROUTING=rules)

    assert (done.returncode, "routing from environment (KIQ_ROUTING) cannot be used: " in done.stderr) == (2, True)
    assert words in done.stderr


def test_list_queues_and_print_config_know_the_rules(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(f"from kiqcluster import job\nfrom tests.apps.basic import note\n{JOBS}")
    rules = json.dumps(RULES[:2])

    listed = kiqcluster(
        "-r", "jobs", "--list-queues", "--queue-selector", "urgency=high", cwd=tmp_path, KIQ_ROUTING=rules
    )
    shown = kiqcluster("--print-config", KIQ_ROUTING=rules)

    assert listed.stdout == "urgent\n"
    assert '["name=start", ""] ["urgency=high", "urgent"]' in shown.stdout
