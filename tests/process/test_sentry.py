"""Events of a real cluster reach a server of Sentry's protocol before its processes are gone."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from sentry_sdk.envelope import Envelope

from tests.kit import wait_until
from tests.stage import Stage

APP = "tests.apps.reported"


class Collector(ThreadingHTTPServer):
    """Keeps the items that it receives; with `hangs` it answers nobody."""

    daemon_threads = True

    def __init__(self) -> None:
        self.items: list[tuple[str, Any]] = []
        self.hangs = threading.Event()
        self.asked = threading.Event()
        super().__init__(("127.0.0.1", 0), Answer)

    @property
    def dsn(self) -> str:
        return f"http://key@127.0.0.1:{self.server_port}/1"

    def of(self, kind: str) -> list[Any]:
        return [item for found, item in self.items if found == kind]


class Answer(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.set()
        if self.server.hangs.is_set():
            threading.Event().wait(60)
        raw = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        self.server.items += [(str(item.type), item.payload.json) for item in Envelope.deserialize(raw).items]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever, args=(0.05,))
        thread.start()
        yield collector
        collector.shutdown()
        thread.join()


def test_the_error_of_a_django_task_is_reported_once_and_with_its_job(stage: Stage, collector: Collector) -> None:
    cluster = stage.run_cluster("default", "-c", "1", app=APP, KIQ_SENTRY=collector.dsn)
    jid = stage.push("failing_as_task", retry=0)
    stage.wait_noted("failing as task")

    assert cluster.stop() == 0

    (event,) = collector.of("event")
    assert event["tags"]["jid"] == jid
    assert event["contexts"]["job"]["class"] == "failing_as_task"


@pytest.mark.parametrize(
    "more", [(), pytest.param(("--preload",), marks=pytest.mark.full)], ids=["each loads it", "preload"]
)
def test_every_event_arrives_before_the_process_ends(stage: Stage, collector: Collector, more: tuple[str, ...]) -> None:
    cluster = stage.run_cluster("default", "-c", "3", "-t", "0.3", *more, app=APP, KIQ_SENTRY=collector.dsn)
    stage.push_many("failing", [[number] for number in range(20)])
    stage.push("failing_async")
    stage.push("stubborn", "a")
    stage.wait_noted(*(f"failing {number}" for number in range(20)), "failing async", "began a")

    assert cluster.stop() == 0

    values = [event["exception"]["values"][-1]["value"] for event in collector.of("event")]
    assert sorted(values) == sorted([*(f"on purpose {number}" for number in range(20)), "on purpose, async"])
    transactions = {each["tags"]["jid"]: each for each in collector.of("transaction")}
    statuses = {(each["transaction"], each["contexts"]["trace"]["status"]) for each in transactions.values()}
    assert statuses == {("failing", "internal_error"), ("failing_async", "internal_error"), ("stubborn", "aborted")}
    for event in collector.of("event"):
        own = transactions[event["tags"]["jid"]]
        assert event["contexts"]["trace"]["trace_id"] == own["contexts"]["trace"]["trace_id"]
        assert event["transaction"] == own["transaction"]


@pytest.mark.full
def test_a_server_that_does_not_answer_holds_up_no_stop(stage: Stage, collector: Collector) -> None:
    collector.hangs.set()
    cluster = stage.run_cluster("default", "-c", "1", app=APP, KIQ_SENTRY=collector.dsn)
    stage.push("failing", 1)
    wait_until(collector.asked.is_set, "an event to be sent")

    assert cluster.stop() == 0  # a worker that waits for it is killed in the end, which is another code
