"""kiqctl enqueue: what lies in Redis afterwards, what runs, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kiqcluster.sidekiq import ruby_json
from kiqcluster.store import Store
from tests.fake_supervisor import publish
from tests.process.kiqctl import Kiqctl
from tests.stage import Stage


def scheduled(store: Store) -> list[tuple[Any, float]]:
    flat = store.call("ZRANGE", "schedule", 0, -1, "WITHSCORES")
    return [(ruby_json.decode(raw), float(score)) for raw, score in zip(flat[::2], flat[1::2], strict=True)]


def test_a_job_of_any_class_is_enqueued_and_its_jid_printed(kiqctl: Kiqctl, stage: Stage) -> None:
    done = kiqctl("enqueue", "Reports::Yearly", "2026")

    assert done.returncode == 0, done.stderr
    (payload,) = stage.queued()
    assert done.stdout == f"{payload['jid']}\n"
    assert list(payload) == ["retry", "queue", "args", "class", "jid", "created_at", "enqueued_at"]
    assert (payload["class"], payload["args"], payload["retry"]) == ("Reports::Yearly", [2026], True)
    assert stage.store.call("SMEMBERS", "queues") == [b"default"]


def test_it_runs(stage: Stage, kiqctl: Kiqctl) -> None:
    stage.run_cluster("default", "-c", "1").wait_ready()

    assert kiqctl("enqueue", "record", "a").returncode == 0

    stage.wait_noted("ran a")


def test_each_argument_is_json_where_it_is_that_and_text_where_it_is_not(kiqctl: Kiqctl, stage: Stage) -> None:
    words = ["7", "7.5", "true", "null", "seven", '"7"', '{"a": [1]}', "{a}", "007", "NaN", "", "é 🚀", "1e3", "[1"]
    digits = "9" * 30

    assert kiqctl("enqueue", "A", *words, digits, "--", "-5", "--queue").returncode == 0

    (payload,) = stage.queued()
    assert payload["args"] == [
        7, 7.5, True, None, "seven", "7", {"a": [1]}, "{a}", "007", "NaN", "", "é 🚀", 1000.0, "[1",
        int(digits), -5, "--queue",
    ]  # fmt: skip


def test_options_become_keys_of_the_payload(kiqctl: Kiqctl, stage: Stage) -> None:
    options = ("--queue", "low", "--retry", "3", "--set", 'tags=["vip"]', "--set", "trace=a=b", "--set", "backtrace=5")

    assert kiqctl("enqueue", "A", *options).returncode == 0

    (payload,) = stage.queued("low")
    assert (payload["retry"], payload["tags"], payload["trace"], payload["backtrace"]) == (3, ["vip"], "a=b", 5)


def test_a_delay_and_a_time_schedule_it(kiqctl: Kiqctl, stage: Stage) -> None:
    done = kiqctl("enqueue", "A", "--in", "15m", "--json")
    assert kiqctl("enqueue", "B", "--at", "2096-11-20T09:59+02:00").returncode == 0
    assert kiqctl("enqueue", "C", "--at", "5003545600.5").returncode == 0

    first, second, third = scheduled(stage.store)
    assert 890 < first[1] - first[0]["created_at"] <= 900
    assert (second[0]["class"], second[1]) == ("B", 4004236740.0)
    assert (third[0]["class"], third[1]) == ("C", 5_003_545_600.5)
    assert "enqueued_at" not in first[0]
    assert json.loads(done.stdout)["at"] == first[1]
    assert stage.queued() == []


def test_a_time_that_is_over_means_at_once(kiqctl: Kiqctl, stage: Stage) -> None:
    done = kiqctl("enqueue", "A", "--at", "2020-01-01T00:00Z", "--json")

    assert json.loads(done.stdout)["at"] is None
    assert [each["class"] for each in stage.queued()] == ["A"]


def test_the_document_says_what_was_enqueued(kiqctl: Kiqctl, stage: Stage) -> None:
    document = json.loads(kiqctl("enqueue", "A", "1", "b", "--queue", "low", "--json").stdout)

    (payload,) = stage.queued("low")
    assert document["jid"] == payload["jid"]
    assert (document["class"], document["args"], document["queue"], document["at"]) == ("A", [1, "b"], "low", None)
    assert "no process listens to the queue low" in document["warning"]


def test_an_active_job_travels_in_its_envelope(kiqctl: Kiqctl, stage: Stage) -> None:
    done = kiqctl("enqueue", "RubyAj", '{"a": 1}', "x", "--active-job", "--queue", "low", "--json")

    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["class"], document["args"]) == ("RubyAj", [{"a": 1}, "x"])
    (payload,) = stage.queued("low")
    assert payload["class"] == "ActiveJob::QueueAdapters::SidekiqAdapter::JobWrapper"
    assert (payload["wrapped"], payload["jid"]) == ("RubyAj", document["jid"])
    (envelope,) = payload["args"]
    assert (envelope["job_class"], envelope["queue_name"]) == ("RubyAj", "low")
    assert envelope["arguments"] == [{"a": 1, "_aj_symbol_keys": []}, "x"]


def test_a_paused_queue_and_a_class_that_breaks_pages_are_warnings(kiqctl: Kiqctl, stage: Stage) -> None:
    publish(stage.store, "app-1:1:aaaaaaaaaaaa", queues=["low"])
    stage.store.call("SADD", "paused", "low")

    done = kiqctl("enqueue", "A/B", "--queue", "low")

    assert done.returncode == 0
    assert "is paused" in done.stderr
    assert "A/B" in done.stderr
    assert len(stage.queued("low")) == 1


def test_a_queue_that_nobody_listens_to_is_a_warning(kiqctl: Kiqctl, stage: Stage) -> None:
    publish(stage.store, "app-1:1:aaaaaaaaaaaa", queues=["default", "low"])

    warned, fine = kiqctl("enqueue", "A", "--queue", "lwo"), kiqctl("enqueue", "A", "--queue", "low")

    assert (warned.returncode, fine.returncode) == (0, 0)
    assert "lwo" in warned.stderr
    assert "default, low" in warned.stderr
    assert fine.stderr == ""
    assert len(stage.queued("lwo")) == 1


def test_an_integer_of_any_length_hides_no_jid(kiqctl: Kiqctl, store: Store) -> None:
    done = kiqctl("enqueue", "A", "9" * 5_000, "--json")

    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout, parse_int=len)
    payload = json.loads(store.call("LINDEX", "queue:default", 0), parse_int=len)
    assert (document["jid"], document["args"]) == (payload["jid"], [5_000])


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["A", "--retry", "often"],
        ["A", "--retry", "-1"],
        ["A", "--set", "tags"],
        ["A", "--set", "=1"],
        ["A", "--set", "args=[1]"],
        ["A", "--set", "at=5"],
        ["A", "--set", 'queue="low"'],
        ["A", "--set", "tags=vip"],
        ["A", "--at", "soon"],
        ["A", "--at", "2096-11-20T09:59"],
        ["A", "--at", "nan"],
        ["A", "--at", "1893456000000"],
        ["A", "--at", "1e300"],
        ["A", "--at", "9999-12-31T00:00Z"],
        ["A", "--in", "soon"],
        ["A", "--in", "5m", "--at", "2096-11-20T09:59Z"],
        ["A", "--queue", "a b"],
        ["A", "--qeue", "low"],
        ["A", "-5"],
        ["", "1"],
    ],
)
def test_what_cannot_be_enqueued_is_exit_2_and_nothing_is(kiqctl: Kiqctl, store: Store, words: list[str]) -> None:
    done = kiqctl("enqueue", *words)

    assert done.returncode == 2, done.stdout
    assert done.stderr
    assert "Traceback" not in done.stderr
    assert store.call("DBSIZE") == 0


def test_arguments_are_checked_by_the_annotations_of_a_job_that_the_application_has(
    kiqctl: Kiqctl, stage: Stage
) -> None:
    order = '{"id": 7, "placed_at": "2026-11-20T13:00:00+01:00", "lines": [{"article": "a", "price": 1.5}]}'
    application = ("-r", "tests.apps.typed")

    assert kiqctl("enqueue", "Typed::SendInvoice", order, "2026-12-01", *application).returncode == 0
    refused = kiqctl("enqueue", "Typed::SendInvoice", order.replace("1.5", "[]"), *application)
    unknown = kiqctl("enqueue", "Typed::Unknown", *application)

    assert refused.returncode == unknown.returncode == 2
    assert "order.lines[0].price: expected decimal, got array" in refused.stderr
    (payload,) = stage.queued()
    assert payload["args"][0]["lines"] == [{"article": "a", "price": "1.5", "count": 1}]
    assert payload["args"][1] == "2026-12-01"
