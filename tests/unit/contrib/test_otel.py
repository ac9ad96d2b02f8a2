"""Spans of pushes and runs: their names, attributes and relations, and what they never change."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, DEFAULT_ON
from opentelemetry.semconv._incubating.attributes import messaging_attributes as conventions
from opentelemetry.semconv.attributes import error_attributes
from opentelemetry.trace import SpanKind, StatusCode

from kiqcluster import Client, Interrupted, Job, Outcome, Push, Run, current_job, job
from kiqcluster.application.registry import Registry
from kiqcluster.client.draft import Draft
from kiqcluster.client.preparation import push_of
from kiqcluster.contrib import otel
from kiqcluster.errors import UsageError
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.process.metrics import JobMetrics
from kiqcluster.process.runtime import Runtime, Setup, current_setup
from kiqcluster.sidekiq.outcome import Discard, Done, Retry
from kiqcluster.sidekiq.payload import Payload
from kiqcluster.sidekiq.ruby_json import decode
from kiqcluster.store.engine.units import Unit
from kiqcluster.worker.run.execution import Execution
from kiqcluster.worker.run.job_run import JobRun
from tests.kit import ManualClock, wait_until
from tests.tracing import SPAN_ID, TRACE_ID, TRACEPARENT, Spans, instrumented, spelt, traceparent

pytestmark = pytest.mark.usefixtures("setup")

Perform = Callable[[bytes], Outcome]


@pytest.fixture
def spans(setup: Setup) -> Iterator[Spans]:
    """Instrumented as by default."""
    with instrumented() as spans:
        yield spans


@pytest.fixture
def perform(setup: Setup, registry: Registry) -> Perform:
    """Execute a payload as a processor thread does."""
    runtime = Runtime(Config(), setup.current_store(), setup, Events(), ManualClock())
    execution = Execution(runtime, registry, JobMetrics(1, list), threading.Event())
    return lambda raw: execution.execute(JobRun(Unit("default", raw, "token", "me"), 0.0))


@pytest.fixture
def noted() -> list[Any]:
    """What the jobs of a test have seen."""
    return []


@pytest.fixture(autouse=True)
def jobs(registry: Registry, noted: list[Any]) -> None:
    @job(queue="mailers", name="Acme::Welcome")
    def welcome(user: int) -> None:
        noted.append(trace.get_current_span().get_span_context())

    @job(name="broken")
    def broken() -> None:
        raise ZeroDivisionError("on purpose")


def draft(name: str = "Acme::Welcome", queue: str = "mailers", at: float | None = None, **keys: Any) -> Payload:
    """Return a payload as it would be written."""
    push = push_of(current_setup(), Draft(name, {"retry": True, "queue": queue, **keys}, [7], at=at))
    assert push is not None
    return push.payload


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


class TestPublish:
    def test_a_push_is_a_producer_span_whose_context_travels_in_the_payload(self, spans: Spans) -> None:
        payload = draft()

        span = spans.one("mailers publish")
        assert span.kind is SpanKind.PRODUCER
        assert payload["traceparent"] == traceparent(span.context)
        assert span.status.status_code is StatusCode.UNSET

    def test_it_says_what_the_conventions_and_ruby_say(self, spans: Spans) -> None:
        payload = draft()

        assert attributes(spans.one("mailers publish")) == {
            conventions.MESSAGING_SYSTEM: "sidekiq",
            conventions.MESSAGING_OPERATION_NAME: "publish",
            conventions.MESSAGING_OPERATION_TYPE: conventions.MessagingOperationTypeValues.CREATE.value,
            conventions.MESSAGING_DESTINATION_NAME: "mailers",
            conventions.MESSAGING_MESSAGE_ID: payload["jid"],
            "messaging.sidekiq.job_class": "Acme::Welcome",
            "messaging.destination": "mailers",
            "messaging.destination_kind": "queue",
            "messaging.message_id": payload["jid"],
        }

    def test_it_is_part_of_the_trace_that_pushes(self, spans: Spans) -> None:
        with spans.tracer.start_as_current_span("GET /") as request:
            draft()

        assert spans.one("mailers publish").parent == request.get_span_context()

    def test_baggage_travels_beside_it(self, spans: Spans) -> None:
        token = otel.attach(baggage.set_baggage("user", "7"))
        try:
            payload = draft()
        finally:
            otel.detach(token)

        assert payload["baggage"] == "user=7"

    def test_its_event_is_when_the_job_was_created(self, spans: Spans) -> None:
        payload = draft()

        (event,) = spans.one("mailers publish").events
        assert event.name == "created_at"
        assert event.timestamp == pytest.approx(payload["created_at"] * 1e9)

    def test_a_bulk_push_has_a_span_per_job_for_each_needs_a_context_of_its_own(
        self, spans: Spans, setup: Setup
    ) -> None:
        pushed: list[Payload] = []
        setup.client_middleware.add(lambda push, proceed: pushed.append(push.payload))

        Client().push_bulk({"class": "Acme::Welcome", "args": [[1], [2], [3]]})

        assert [payload["traceparent"] for payload in pushed] == [
            traceparent(span.context) for span in spans.named("mailers publish")
        ]
        assert len({payload["traceparent"] for payload in pushed}) == 3

    def test_without_it_a_bulk_push_has_no_link_and_stays_quick(self, spans: Spans, setup: Setup) -> None:
        otel.uninstrument()

        assert setup.client_middleware.stack == ()

    def test_one_that_is_enqueued_again_keeps_the_context_that_it_has(self, spans: Spans, setup: Setup) -> None:
        payload = decode(spelt("Acme::Welcome", "7", queue='"mailers"'))
        before = dict(payload)
        push = Push(payload)

        assert setup.client_middleware.invoke(push, lambda: push) is push

        assert payload == before
        assert spans.all() == []

    def test_a_context_that_the_caller_gives_is_kept(self, spans: Spans) -> None:
        assert draft(traceparent=TRACEPARENT)["traceparent"] == TRACEPARENT
        assert spans.all() == []

    def test_baggage_that_the_caller_gives_is_kept_beside_the_trace(self, spans: Spans) -> None:
        payload = draft(baggage="tier=gold")

        assert payload["baggage"] == "tier=gold"
        assert payload["traceparent"] == traceparent(spans.one("mailers publish").context)

    @pytest.mark.parametrize("value", [5, None, [], {}, "", "nonsense", f"00-{'0' * 32}-{'0' * 16}-01"])
    def test_what_is_no_context_is_none(self, spans: Spans, value: Any) -> None:
        payload = draft(traceparent=value)

        assert payload["traceparent"] == traceparent(spans.one("mailers publish").context)

    def test_a_link_that_stops_the_push_ends_the_span(self, spans: Spans, setup: Setup) -> None:
        setup.client_middleware.add(lambda push, proceed: None)

        assert push_of(current_setup(), Draft("X", {"queue": "q"}, [])) is None

        assert spans.one("q publish").status.status_code is StatusCode.UNSET

    def test_a_link_that_fails_is_its_error(self, spans: Spans, setup: Setup) -> None:
        @setup.client_middleware.add
        def refuse(push: Push, proceed: Callable[[], Push | None]) -> Push | None:
            raise KeyError("no tenant")

        with pytest.raises(KeyError):
            draft()

        span = spans.one("mailers publish")
        assert span.status.status_code is StatusCode.ERROR
        assert attributes(span)[error_attributes.ERROR_TYPE] == "KeyError"

    def test_what_is_not_sampled_says_so_in_the_payload_and_runs_all_the_same(self, perform: Perform) -> None:
        with instrumented(ALWAYS_OFF) as spans:
            flags = int(draft()["traceparent"][-2:], 16)
            outcome = perform(spelt("Acme::Welcome", "7"))

        assert not flags & 1
        assert isinstance(outcome, Done)
        assert spans.all() == []

    def test_without_a_provider_nothing_is_added(self, setup: Setup) -> None:
        otel.instrument(trace.NoOpTracerProvider())

        assert "traceparent" not in draft()


class TestProcess:
    def test_a_run_is_a_consumer_span_and_current_while_the_job_runs(
        self, spans: Spans, perform: Perform, noted: list[Any]
    ) -> None:
        outcome = perform(spelt("Acme::Welcome", "7"))

        span = spans.one("default process")
        assert span.kind is SpanKind.CONSUMER
        assert noted == [span.context]
        assert isinstance(outcome, Done)
        assert trace.get_current_span() is trace.INVALID_SPAN

    def test_it_says_what_the_conventions_and_ruby_say(self, spans: Spans, perform: Perform) -> None:
        perform(spelt("Acme::Welcome", "7"))

        assert attributes(spans.one("default process")) == {
            conventions.MESSAGING_SYSTEM: "sidekiq",
            conventions.MESSAGING_OPERATION_NAME: "process",
            conventions.MESSAGING_OPERATION_TYPE: conventions.MessagingOperationTypeValues.PROCESS.value,
            conventions.MESSAGING_DESTINATION_NAME: "default",
            conventions.MESSAGING_MESSAGE_ID: "a" * 24,
            "messaging.sidekiq.job_class": "Acme::Welcome",
            "messaging.destination": "default",
            "messaging.destination_kind": "queue",
            "messaging.message_id": "a" * 24,
            "messaging.operation": "process",
        }

    def test_its_events_are_the_times_of_the_payload_whichever_sidekiq_wrote_them(
        self, spans: Spans, perform: Perform
    ) -> None:
        perform(spelt("Acme::Welcome", "7", created_at="1795168740500", enqueued_at="1795168741.5"))

        events = {event.name: event.timestamp for event in spans.one("default process").events}
        assert events == {"created_at": 1_795_168_740_500_000_000, "enqueued_at": 1_795_168_741_500_000_000}

    def test_it_links_to_the_push_and_begins_a_trace_of_its_own(self, spans: Spans, perform: Perform) -> None:
        perform(spelt("Acme::Welcome", "7"))

        span = spans.one("default process")
        (link,) = span.links
        assert (f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") == (TRACE_ID, SPAN_ID)
        assert span.parent is None
        assert span.context is not None
        assert span.context.trace_id != link.context.trace_id

    def test_it_may_be_a_child_of_the_push(self, perform: Perform) -> None:
        with instrumented(propagation="child") as spans:
            perform(spelt("Acme::Welcome", "7"))

        span = spans.one("default process")
        assert span.parent is not None
        assert traceparent(span.parent) == TRACEPARENT
        assert span.links == ()

    def test_it_may_have_nothing_to_do_with_the_push(self, perform: Perform) -> None:
        with instrumented(propagation="none") as spans:
            perform(spelt("Acme::Welcome", "7"))

        span = spans.one("default process")
        assert (span.parent, span.links) == (None, ())

    @pytest.mark.parametrize("propagation", ["link", "child", "none"])
    @pytest.mark.parametrize("value", ["5", "null", "[]", '["a"]', '"nonsense"', '"\\ud800"', "{}"])
    def test_what_is_no_context_costs_the_job_nothing(self, perform: Perform, propagation: str, value: str) -> None:
        keys = ",".join(f'"{key}":{value}' for key in ("traceparent", "tracestate", "baggage", "created_at"))

        with instrumented(propagation=propagation) as spans:
            outcome = perform(f'{{"class":"Acme::Welcome","args":[7],{keys}}}'.encode())

        assert isinstance(outcome, Done)
        span = spans.one("default process")
        assert (span.parent, span.links) == (None, ())

    @pytest.mark.parametrize("propagation", ["link", "child", "none"])
    def test_the_job_has_the_baggage_of_the_push(self, registry: Registry, perform: Perform, propagation: str) -> None:
        seen: list[object] = []

        @job(name="look")
        def look() -> None:
            seen.append(dict(baggage.get_all()))

        with instrumented(propagation=propagation):
            perform(b'{"class":"look","args":[],"baggage":"user=7"}')

        assert seen == [{"user": "7"}]
        assert baggage.get_all() == {}

    def test_what_the_job_pushes_is_its_child(self, spans: Spans, registry: Registry, perform: Perform) -> None:
        @job(name="outer")
        def outer() -> None:
            draft()

        perform(spelt("outer"))

        assert spans.one("mailers publish").parent == spans.one("default process").context

    def test_a_failure_is_its_error_with_the_exception_as_an_event(self, spans: Spans, perform: Perform) -> None:
        outcome = perform(spelt("broken"))

        assert isinstance(outcome, Retry)
        span = spans.one("default process")
        assert span.status.status_code is StatusCode.ERROR
        assert span.status.description == "Unhandled exception of type: ZeroDivisionError"
        assert attributes(span)["error.type"] == "ZeroDivisionError"
        (event,) = (event for event in span.events if event.name == "exception")
        assert event.attributes is not None
        assert event.attributes["exception.message"] == "on purpose"
        assert event.attributes["exception.type"] == "ZeroDivisionError"

    def test_an_async_job_has_its_own_while_others_run(self, spans: Spans, setup: Setup, jobs: None) -> None:
        (middleware,) = (each for each in setup.server_middleware if isinstance(each, otel.ProcessSpans))
        seen: dict[str, int] = {}
        turn = asyncio.Barrier(2)

        async def run_job(user: str) -> None:
            async def proceed() -> None:
                await turn.wait()
                seen[user] = trace.get_current_span().get_span_context().span_id
                if user == "8":
                    raise ZeroDivisionError

            payload = decode(spelt("Acme::Welcome", user))
            await middleware.acall(Run(payload, "default", None, None), proceed)

        async def both() -> None:
            await asyncio.gather(run_job("7"), run_job("8"), return_exceptions=True)

        asyncio.run(both())

        spans_of = spans.named("default process")
        found = {span.context.span_id: span.status.status_code for span in spans_of if span.context}
        assert found == {seen["7"]: StatusCode.UNSET, seen["8"]: StatusCode.ERROR}

    def test_each_attempt_has_a_span_and_all_link_to_the_one_push(self, spans: Spans, perform: Perform) -> None:
        raw = spelt("broken")
        for _ in range(3):
            outcome = perform(raw)
            assert isinstance(outcome, Retry)
            raw = outcome.payload

        links = [link.context.span_id for span in spans.named("default process") for link in span.links]
        assert links == [int(SPAN_ID, 16)] * 3

    def test_an_error_whose_text_fails_fails_as_it_would(
        self, spans: Spans, registry: Registry, perform: Perform
    ) -> None:
        class Unspeakable(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no words")

        @job(name="mute")
        def mute() -> None:
            raise Unspeakable

        outcome = perform(spelt("mute"))

        assert isinstance(outcome, Retry)
        assert decode(outcome.payload)["error_class"].endswith("Unspeakable")
        span = spans.one("default process")
        assert str(attributes(span)["error.type"]).endswith("Unspeakable")

    @pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
    def test_whatever_ends_a_job_ends_its_span(
        self, spans: Spans, registry: Registry, perform: Perform, error: type[BaseException]
    ) -> None:
        @job(name="leaves")
        def leaves() -> None:
            raise error

        perform(spelt("leaves"))

        assert spans.one("default process").status.status_code is StatusCode.ERROR
        assert trace.get_current_span() is trace.INVALID_SPAN

    def test_a_job_that_gives_way_to_a_stop_has_not_failed(
        self, spans: Spans, registry: Registry, perform: Perform
    ) -> None:
        @job(name="polite")
        def polite() -> None:
            raise Interrupted

        perform(spelt("polite"))

        span = spans.one("default process")
        assert span.status.status_code is StatusCode.UNSET
        assert [event.name for event in span.events] == ["interrupted"]

    def test_an_outcome_of_an_inner_link_passes(self, spans: Spans, setup: Setup, perform: Perform) -> None:
        setup.server_middleware.add(lambda run, proceed: Discard())

        assert perform(spelt("Acme::Welcome", "7")) == Discard()
        assert spans.one("default process").status.status_code is StatusCode.UNSET

    def test_a_context_that_a_job_leaves_behind_is_none_of_the_next(
        self, spans: Spans, registry: Registry, perform: Perform
    ) -> None:
        @job(name="untidy")
        def untidy() -> None:
            otel.attach(trace.set_span_in_context(spans.tracer.start_span("left behind")))

        perform(spelt("untidy"))
        perform(spelt("Acme::Welcome", "7"))

        assert [span.parent for span in spans.named("default process")] == [None, None]

    def test_a_job_of_an_unknown_class_does_not_run_and_has_none(self, spans: Spans, perform: Perform) -> None:
        perform(spelt("Nobody"))

        assert spans.all() == []


class TestNames:
    def test_spans_may_be_named_after_the_job(self, perform: Perform) -> None:
        with instrumented(span_naming="job_class") as spans:
            draft()
            perform(spelt("Acme::Welcome", "7"))

        assert {span.name for span in spans.all()} == {"Acme::Welcome publish", "Acme::Welcome process"}

    def test_a_job_of_activejob_has_the_name_inside_its_envelope(self, setup: Setup) -> None:
        with instrumented(span_naming="job_class") as spans:
            draft("Sidekiq::ActiveJob::Wrapper", wrapped="WelcomeJob")

        assert attributes(spans.one("WelcomeJob publish"))["messaging.sidekiq.job_class"] == "WelcomeJob"

    @pytest.mark.parametrize("options", [{"propagation": "parent"}, {"span_naming": "class"}, {"propagation": None}])
    def test_other_words_are_refused_with_those_that_fit(self, setup: Setup, options: dict[str, Any]) -> None:
        with pytest.raises(UsageError, match="it takes '"):
            otel.instrument(**options)

        assert setup.server_middleware.stack == ()


class TestInline:
    def test_a_job_that_runs_at_once_is_in_the_trace_that_runs_it(self, spans: Spans) -> None:
        class Inline(Job):
            def perform(self, word: str) -> str:
                return word.upper()

        with spans.tracer.start_as_current_span("GET /") as request:
            assert Inline.perform_inline("word") == "WORD"

        publish, process = spans.one("default publish"), spans.one("default process")
        assert publish.parent == process.parent == request.get_span_context()
        assert [link.context.span_id for link in process.links] == [getattr(publish.context, "span_id", None)]

    def test_its_error_comes_out_as_it_is(self, spans: Spans) -> None:
        @job(name="inline_broken")
        def broken() -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            broken.perform_inline()

        assert spans.one("default process").status.status_code is StatusCode.ERROR


class TestInstrument:
    def test_its_links_are_outermost(self, setup: Setup) -> None:
        seen: list[bool] = []

        @setup.client_middleware.add
        def look(push: Push, proceed: Callable[[], Push | None]) -> Push | None:
            seen.append("traceparent" in push.payload)
            return proceed()

        with instrumented():
            draft()

        assert seen == [True]

    def test_called_again_it_replaces_what_it_did(self, setup: Setup) -> None:
        otel.instrument()
        with instrumented(span_naming="job_class") as spans:
            draft()
            assert len(setup.client_middleware) == len(setup.server_middleware) == 1
            assert len(setup.hooks.of("exit")) == 1

        assert len(spans.named("Acme::Welcome publish")) == 1

    def test_uninstrument_leaves_other_links_alone(self, setup: Setup) -> None:
        def other(run: Run, proceed: Callable[[], Outcome | None]) -> Outcome | None:
            return proceed()

        setup.server_middleware.add(other)
        otel.uninstrument()
        otel.instrument()

        otel.uninstrument()

        assert setup.server_middleware.stack == (other,)
        assert setup.client_middleware.stack == ()

    def test_a_global_provider_may_come_later(self) -> None:
        source = """
            from opentelemetry import trace
            from opentelemetry.sdk.trace import TracerProvider
            from kiqcluster.client.draft import Draft
            from kiqcluster.client.preparation import push_of
            from kiqcluster.contrib import otel
            from kiqcluster.process.runtime import current_setup
            otel.instrument()
            trace.set_tracer_provider(TracerProvider())
            push = push_of(current_setup(), Draft("X", {"queue": "q"}, []))
            print(push.payload["traceparent"][:3])
        """

        assert python(source).stdout == "00-\n"

    def test_without_the_extra_it_says_what_to_install(self) -> None:
        done = python("""
            import sys
            sys.modules["opentelemetry"] = None
            import kiqcluster
            from kiqcluster.contrib import otel
        """)

        assert done.returncode == 1
        assert "pip install 'kiqcluster[otel]'" in done.stderr

    def test_the_package_itself_does_not_import_it(self) -> None:
        done = python("""
            import sys
            import kiqcluster, kiqcluster.cli, kiqcluster.ctl.command, kiqcluster.worker.launcher
            print("kiqcluster.contrib.otel" in sys.modules)
        """)

        assert done.stdout == "False\n"


def python(source: str) -> subprocess.CompletedProcess[str]:
    """Run a program of its own."""
    lines = "\n".join(line.strip() for line in source.splitlines())
    return subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=False)


class TestTracingThatFails:
    """It is never the job's failure: one without retries would be lost, one that has run would run again."""

    @pytest.fixture(params=[RuntimeError, SystemExit])
    def kind(self, request: pytest.FixtureRequest) -> Any:
        return request.param

    @pytest.fixture(params=["sampler", "on_start", "on_end", "extract", "inject"])
    def reports(
        self, request: pytest.FixtureRequest, setup: Setup, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
    ) -> Iterator[list[str]]:
        """What the error handlers are told, where that part of OpenTelemetry fails."""

        def fail(*_args: Any, **_keywords: Any) -> Any:
            raise kind(request.param)

        reports: list[str] = []
        setup.error_handler(lambda error, context: reports.append(f"{context['context']}: {error}"))
        with instrumented() as spans:
            processor = SpanProcessor()
            spans.provider.add_span_processor(processor)
            owner = {"sampler": DEFAULT_ON, "extract": otel.propagate, "inject": otel.propagate}.get(
                request.param, processor
            )
            name = "should_sample" if request.param == "sampler" else request.param
            monkeypatch.setattr(owner, name, fail)
            yield reports
            monkeypatch.undo()

    def test_a_push_goes_through(self, reports: list[str]) -> None:
        assert draft()["args"] == [7]

        assert [each.partition(": ")[0] for each in reports] == ["otel"]

    def test_a_job_runs_once_and_is_done(
        self, reports: list[str], noted: list[Any], perform: Perform, request: pytest.FixtureRequest
    ) -> None:
        outcome = perform(spelt("Acme::Welcome", "7", retry="false"))

        assert isinstance(outcome, Done)
        assert len(noted) == 1
        assert len(reports) == (0 if request.node.callspec.params["reports"] == "inject" else 1)

    def test_a_jobs_own_error_stays_its_own(self, reports: list[str], perform: Perform) -> None:
        outcome = perform(spelt("broken"))

        assert isinstance(outcome, Retry)
        assert decode(outcome.payload)["error_class"] == "ZeroDivisionError"


class TestEnd:
    def test_a_job_that_is_left_running_has_a_span_that_says_so(
        self, spans: Spans, setup: Setup, registry: Registry, perform: Perform
    ) -> None:
        goes_on = threading.Event()

        @job(name="endless")
        def endless() -> None:
            goes_on.wait(20)

        thread = threading.Thread(target=perform, args=(spelt("endless"),))
        thread.start()
        (link,) = setup.server_middleware
        assert isinstance(link, otel.ProcessSpans)
        wait_until(lambda: link._open, "the job to run")

        for hook in setup.hooks.of("exit"):
            hook()

        span = spans.one("default process")
        assert [event.name for event in span.events] == ["interrupted"]
        goes_on.set()
        thread.join()
        assert spans.all() == [span]

    def test_an_exporter_that_hangs_is_not_waited_for(self, setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(otel, "FLUSH_TIMEOUT_SECONDS", 0.05)
        goes_on, has_ended = threading.Event(), threading.Event()

        class Hanging(trace.NoOpTracerProvider):
            def force_flush(self, milliseconds: int) -> None:
                goes_on.wait(20)
                has_ended.set()

        otel.instrument(Hanging())
        for hook in setup.hooks.of("exit"):
            hook()

        assert not has_ended.is_set()
        goes_on.set()
        has_ended.wait(20)

    def test_the_running_job_is_known_within_its_span(self, spans: Spans, registry: Registry, perform: Perform) -> None:
        jids: list[str] = []

        @job(name="known")
        def known() -> None:
            running = current_job()
            assert running is not None
            jids.append(running.jid)

        perform(spelt("known"))

        assert jids == [attributes(spans.one("default process"))["messaging.message.id"]]
