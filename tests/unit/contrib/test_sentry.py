"""Sentry: what is reported of failed jobs, transactions and spans, and what payloads carry."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sentry_sdk

from kiqcluster import Client, Interrupted, Outcome, RetryError, job
from kiqcluster.application.registry import Registry
from kiqcluster.contrib import sentry
from kiqcluster.errors import JobKilled
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.process.metrics import JobMetrics
from kiqcluster.process.runtime import Runtime, Setup
from kiqcluster.sidekiq import ruby_json
from kiqcluster.store.engine.units import Unit
from kiqcluster.testing import drain, enqueued, fake
from kiqcluster.worker.run.execution import Execution
from kiqcluster.worker.run.job_run import JobRun
from tests.kit import ManualClock
from tests.sentry import Received, reporting

pytestmark = pytest.mark.usefixtures("setup")

Perform = Callable[..., Outcome | None]
TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def received(setup: Setup) -> Iterator[Received]:
    with reporting() as received:
        yield received


@pytest.fixture
def perform(setup: Setup, registry: Registry) -> Perform:
    """Execute a job as a processor thread does."""
    runtime = Runtime(Config(), setup.current_store(), setup, Events(), ManualClock())
    execution = Execution(runtime, registry, JobMetrics(1, list), threading.Event())

    def perform(name: str, *args: Any, **keys: Any) -> Outcome | None:
        payload = {"class": name, "args": list(args), "jid": "a" * 24, "queue": "mailers", "retry": True, **keys}
        return execution.execute(JobRun(Unit("mailers", ruby_json.encode(payload), "token", "me"), 0.0))

    return perform


@pytest.fixture(autouse=True)
def jobs(registry: Registry) -> None:
    @job(queue="mailers", name="welcome")
    def welcome(user: int, mail: str = "") -> None:
        sentry_sdk.add_breadcrumb(message=f"about to welcome {user}")

    @job(name="broken")
    def broken(user: int, mail: str = "") -> None:
        sentry_sdk.add_breadcrumb(message=f"about to fail {user}")
        raise ZeroDivisionError("on purpose")

    @job(name="broken_async")
    async def broken_async() -> None:
        sentry_sdk.set_tag("of", "its own")
        raise ZeroDivisionError("on purpose")

    @job(name="raises")
    def raises(kind: str) -> None:
        raise {"Interrupted": Interrupted, "RetryError": RetryError}[kind]


def trace_of(event: Any) -> dict[str, Any]:
    return dict(event["contexts"]["trace"])


class TestErrors:
    def test_an_error_has_the_scope_of_its_run(self, received: Received, perform: Perform) -> None:
        perform("broken", 7, tags=["vip"], sentry_user={"id": 3}, correlation_id="r-1")

        event = received.one("event")
        assert event["exception"]["values"][-1]["type"] == "ZeroDivisionError"
        assert event["exception"]["values"][-1]["mechanism"]["handled"] is False
        assert event["transaction"] == "broken"
        assert event["tags"] == {
            "class": "broken",
            "queue": "mailers",
            "jid": "a" * 24,
            "sidekiq.vip": "true",
            "kiqcluster.context": "job",
        }
        assert event["user"] == {"id": 3}
        assert event["contexts"]["job"]["correlation_id"] == "r-1"
        assert [crumb["message"] for crumb in event["breadcrumbs"]["values"]] == ["about to fail 7"]
        assert trace_of(event)["trace_id"] == trace_of(received.one("transaction"))["trace_id"]
        assert trace_of(event)["span_id"] == trace_of(received.one("transaction"))["span_id"]

    def test_the_next_job_of_the_thread_has_a_scope_of_its_own(self, received: Received, perform: Perform) -> None:
        sentry_sdk.add_breadcrumb(message="of the process")
        perform("broken", 7, tags=["vip"])
        perform("broken", 8, jid="b" * 24)

        event = received.of("event")[1]
        assert event["tags"]["jid"] == "b" * 24
        assert "sidekiq.vip" not in event["tags"]
        assert [crumb["message"] for crumb in event["breadcrumbs"]["values"]] == ["about to fail 8"]

    def test_so_has_an_async_job(self, received: Received, perform: Perform) -> None:
        perform("broken_async")

        assert received.one("event")["tags"]["of"] == "its own"
        assert trace_of(received.one("transaction"))["status"] == "internal_error"

    @pytest.mark.parametrize("kind", ["Interrupted", "RetryError"])
    def test_a_job_that_was_put_off_is_no_error(self, received: Received, perform: Perform, kind: str) -> None:
        perform("raises", kind)

        assert received.of("event") == []
        assert trace_of(received.one("transaction"))["status"] == "aborted"

    def test_a_transaction_asks_the_type_of_an_error_and_not_the_error(self) -> None:
        class Lying(Exception):
            __class__ = property(lambda _: 1 // 0)  # type: ignore[assignment]

        assert sentry._status(Lying()) == "internal_error"

    def test_without_tracing_errors_are_in_the_trace_of_the_push(self, setup: Setup, perform: Perform) -> None:
        with reporting(traces=None) as received:
            perform("broken", 7, trace_propagation_headers={"sentry-trace": f"{TRACE}-b7ad6b7169203331-1"})

        assert trace_of(received.one("event"))["trace_id"] == TRACE
        assert received.of("transaction") == []

    def test_a_job_that_cannot_run_is_reported_by_class(self, received: Received, setup: Setup) -> None:
        for name in ("broken", "welcome"):
            setup.notify_error_handlers(
                RuntimeError("3 processes died"), {"context": "job", "job": {"class": name, "args": [], "jid": name}}
            )

        assert [event["fingerprint"][1] for event in received.of("event")] == ["broken", "welcome"]
        assert [event["tags"]["class"] for event in received.of("event")] == ["broken", "welcome"]

    def test_an_error_of_a_service_is_reported(self, received: Received, setup: Setup) -> None:
        setup.notify_error_handlers(RuntimeError("no heartbeat"), {"context": "heartbeat"})

        assert received.one("event")["tags"] == {"kiqcluster.context": "heartbeat"}


class TestLastFailures:
    @pytest.fixture
    def received(self, setup: Setup) -> Iterator[Received]:
        with reporting(report_after_job_retries=True) as received:
            yield received

    def test_only_the_last_failure_is_reported(self, received: Received, perform: Perform) -> None:
        perform("broken", 7, retry=1)
        assert received.of("event") == []

        perform("broken", 7, retry=1, retry_count=1, failed_at=1.0)

        event = received.one("event")
        assert event["tags"]["class"] == "broken"
        assert [crumb["message"] for crumb in event["breadcrumbs"]["values"]] == ["about to fail 7"]

    def test_so_is_that_of_a_job_without_retries(self, received: Received, perform: Perform) -> None:
        perform("broken", 7, retry=False)

        assert received.one("event")["tags"]["class"] == "broken"

    def test_a_job_killed_by_hand_is_no_error(self, received: Received, setup: Setup) -> None:
        setup.notify_death_handlers({"class": "broken", "args": [], "jid": "a"}, JobKilled("by hand"))

        assert received.of("event") == []


class TestArguments:
    def args(self, received: Received) -> Any:
        return received.one("event")["contexts"]["job"].get("args")

    def test_they_are_not_sent(self, received: Received, perform: Perform) -> None:
        perform("broken", 7, "ann@example.com")

        assert self.args(received) is None
        frames = received.one("event")["exception"]["values"][-1]["stacktrace"]["frames"]
        assert {frame["module"] for frame in frames if "vars" in frame} == {__name__}  # those of the job itself

    @pytest.mark.parametrize(("queues", "option"), [(True, None), (False, True)])
    def test_on_demand_they_are_as_in_logs(
        self, setup: Setup, perform: Perform, queues: bool, option: bool | None
    ) -> None:
        with reporting(queues=queues, send_arguments=option) as received:
            perform("broken", 7, "ann@example.com")

        assert self.args(received) == [7, "[FILTERED]"]

    def test_a_job_with_an_encrypted_argument_sends_no_variables(self, received: Received, perform: Perform) -> None:
        perform("broken", 7, "secret", encrypt=True)

        assert "secret" not in str(received.one("event"))


class TestRuns:
    def test_a_run_is_a_transaction(self, received: Received, perform: Perform) -> None:
        perform("welcome", 7, enqueued_at=1.0, retry_count=1)

        transaction = received.one("transaction")
        assert transaction["transaction"] == "welcome"
        assert transaction["transaction_info"] == {"source": "task"}
        trace = trace_of(transaction)
        assert (trace["op"], trace["status"], trace["origin"]) == ("queue.process", "ok", "auto.queue.kiqcluster")
        data = trace["data"]
        assert data["messaging.message.id"] == "a" * 24
        assert data["messaging.destination.name"] == "mailers"
        assert data["messaging.message.body.size"] == 3
        assert data["messaging.message.retry.count"] == 2
        assert data["messaging.message.receive.latency"] > 1_000

    def test_it_continues_the_trace_of_its_push(self, received: Received, perform: Perform) -> None:
        with fake(), sentry_sdk.start_transaction(name="GET /", op="http.server") as request:
            sentry_sdk.set_user({"id": 3, "groups": ["a"]})
            Client().push({"class": "welcome", "args": [7], "queue": "mailers"})
            (waiting,) = enqueued()
            payload = waiting.payload
            drain()

        web, run = (
            next(t for t in received.of("transaction") if t["transaction"] == name) for name in ("GET /", "welcome")
        )
        (span,) = web["spans"]
        assert (span["op"], span["description"]) == ("queue.publish", "welcome")
        assert span["data"]["messaging.message.id"] == payload["jid"]
        assert payload["trace_propagation_headers"]["sentry-trace"] == f"{request.trace_id}-{span['span_id']}-1"
        assert "sentry-trace_id" in payload["trace_propagation_headers"]["baggage"]
        assert payload["sentry_user"] == {"id": 3}
        assert trace_of(run)["parent_span_id"] == span["span_id"]
        assert trace_of(run)["trace_id"] == request.trace_id
        assert run["user"] == {"id": 3}

    def test_a_payload_that_has_a_trace_keeps_it(self, received: Received) -> None:
        mine = {"sentry-trace": f"{TRACE}-b7ad6b7169203331-1"}
        with fake(), sentry_sdk.start_transaction(name="GET /"):
            Client().push({"class": "welcome", "args": [7], "trace_propagation_headers": mine})
            assert enqueued()[0].payload["trace_propagation_headers"] == mine
        assert received.one("transaction")["spans"] == []

    def test_runs_that_a_process_leaves_are_ended(self, received: Received, setup: Setup) -> None:
        (middleware,) = [each for each in setup.server_middleware if isinstance(each, sentry.ProcessSpans)]

        @job(name="left")
        def left() -> None:
            middleware.end()

        left.perform_inline()

        assert trace_of(received.one("transaction"))["status"] == "aborted"
        assert received.one("transaction")["tags"]["class"] == "left"

    @pytest.mark.parametrize("headers", [None, 7, [], {"sentry-trace": 7}, {"sentry-trace": "x", "baggage": "\ud800"}])
    def test_nonsense_in_a_payload_stops_no_job(self, received: Received, perform: Perform, headers: Any) -> None:
        perform("welcome", 7, trace_propagation_headers=headers, tags=7, sentry_user="ann", enqueued_at="x")

        assert trace_of(received.one("transaction"))["status"] == "ok"
        assert received.of("event") == []

    def test_without_init_nothing_happens(self, setup: Setup, perform: Perform) -> None:
        sentry.instrument()

        with fake():
            Client().push({"class": "welcome", "args": [7]})
            assert "trace_propagation_headers" not in enqueued()[0].payload
        perform("broken", 7)


class TestCrons:
    def test_runs_of_an_entry_check_in(self, setup: Setup, registry: Registry, perform: Perform) -> None:
        @job(cron="0 9 * * *", tz="Europe/Zurich", name="MorningReport")
        def report() -> None: ...

        with reporting(monitor_crons=True) as received:
            perform("MorningReport", cron="MorningReport")
            perform("broken", 7, cron="nightly")
            perform("welcome", 7)

        found = received.of("check_in")
        assert [(each["monitor_slug"], each["status"]) for each in found] == [
            ("morningreport", "in_progress"),
            ("morningreport", "ok"),
            ("nightly", "in_progress"),
            ("nightly", "error"),
        ]
        assert found[0]["check_in_id"] == found[1]["check_in_id"]
        assert found[0]["monitor_config"] == {
            "schedule": {"type": "crontab", "value": "0 9 * * *"},
            "timezone": "Europe/Zurich",
        }
        assert "monitor_config" not in found[2]


def test_again_replaces_and_undoing_removes(setup: Setup) -> None:
    sentry.instrument()
    sentry.instrument()
    assert (len(setup.server_middleware), len(setup.client_middleware)) == (1, 1)
    assert (len(setup.error_handlers), len(setup.death_handlers), len(setup.hooks.of("exit"))) == (1, 1, 1)

    sentry.uninstrument()

    assert (len(setup.server_middleware), len(setup.client_middleware)) == (0, 0)
    assert (len(setup.error_handlers), len(setup.death_handlers)) == (0, 0)


def test_without_the_sdk_it_names_the_extra() -> None:
    source = "import sys; sys.modules['sentry_sdk'] = None; import kiqcluster.contrib.sentry"

    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)

    assert "pip install 'kiqcluster[sentry]'" in done.stderr
