"""A Ruby client enqueues, Python jobs receive exactly what it gave them."""

from __future__ import annotations

import time

import pytest

from tests.interop.programs import exact
from tests.interop.values import ALL_KINDS, ARGUMENTS
from tests.kit import wait_until

pytestmark = pytest.mark.ruby


@pytest.fixture
def cluster(stage):
    return stage.run_cluster("default,low", "-c", "3", KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL="0.1")


@pytest.mark.parametrize("verb", ["perform_async", "perform_in", "perform_at", "perform_bulk"])
def test_python_receives_the_arguments_that_ruby_enqueued(verb, cluster, ruby_client, stage):
    arguments = {
        "perform_async": ALL_KINDS,
        "perform_in": [0.3, *ALL_KINDS],
        "perform_at": [time.time() + 0.3, *ALL_KINDS],
        "perform_bulk": [[ALL_KINDS]],
    }

    answer = ruby_client(verb, *arguments[verb])

    (jid,) = answer if verb == "perform_bulk" else [answer]
    assert exact(stage.echo_of(jid)["args"]) == exact(ALL_KINDS)


def test_each_kind_of_argument_arrives_unchanged_on_its_own(cluster, ruby_client, stage):
    jids = {kind: ruby_client("perform_async", *arguments) for kind, arguments in ARGUMENTS.items()}

    for kind, jid in jids.items():
        assert exact(stage.echo_of(jid)["args"]) == exact(ARGUMENTS[kind]), kind


def test_no_job_of_a_bulk_push_is_lost_or_doubled(cluster, ruby_client, stage):
    jids = ruby_client("perform_bulk", [[number] for number in range(1_200)])

    wait_until(lambda: len(stage.echoes()) >= 1_200, "all jobs of the bulk to run")
    assert {each["jid"]: each["args"] for each in stage.echoes()} == {jid: [at] for at, jid in enumerate(jids)}
    assert len(stage.echoes()) == 1_200


def test_options_that_ruby_set_travel_with_the_job(cluster, ruby_client, stage):
    options = {"queue": "low", "retry": 3, "tags": ["vip", "é"], "backtrace": 5, "dead": False, "custom": {"key": [1]}}

    jid = ruby_client("perform_async", "x", set=options)

    payload = stage.echo_of(jid)["payload"]
    assert {key: payload[key] for key in options} == options


def test_a_payload_that_ruby_pushed_by_hand_keeps_its_keys(cluster, ruby_client, stage):
    item = {"class": "Echo", "args": [{}], "jid": "0123456789abcdef01234567", "queue": "low", "cattr": {"user": 7}}

    jid = ruby_client.push(item)

    assert jid == item["jid"]
    assert {key: stage.echo_of(jid)["payload"][key] for key in item} == item
