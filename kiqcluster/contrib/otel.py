"""OpenTelemetry: a span for each job that is pushed and each that runs, linked across processes and languages.

Runs in: threads that push (client), processor threads (server), the worker's main thread (the last flush).
1. instrument    add both middleware outermost; uninstrument removes them
2. PublishSpans  client middleware: a PRODUCER span; the payload carries its context (traceparent, tracestate, baggage)
3. ProcessSpans  server middleware: a CONSUMER span, linked to that context, or its child
4. flush         at the worker's end, which runs no exit handlers: what the exporter still holds goes out

Keys, span names, options and their defaults are those of opentelemetry-instrumentation-sidekiq, so that traces of a
mixed fleet look alike; attributes have its names and those of the messaging conventions (docs/guides/tracing.md).
Never: imported by the rest of the package, which passes the keys on and knows nothing of what they mean.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args

from kiqcluster.contrib.job_names import job_class
from kiqcluster.contrib.run_errors import SuppressErrors
from kiqcluster.errors import Interrupted, UsageError
from kiqcluster.process.runtime import Push, Run, current_setup
from kiqcluster.process.service import Service
from kiqcluster.process.version import __version__
from kiqcluster.sidekiq.outcome import Outcome
from kiqcluster.sidekiq.payload import Payload, seconds
from kiqcluster.sidekiq.ruby_json import is_unicode

try:
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context, attach, detach, get_current
    from opentelemetry.propagators.textmap import Getter
    from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, Tracer, TracerProvider
except ImportError as error:
    raise ImportError(
        "kiqcluster.contrib.otel needs OpenTelemetry, which is not installed: pip install 'kiqcluster[otel]', "
        "and opentelemetry-sdk with an exporter to have the spans sent anywhere"
    ) from error

__all__ = ["ProcessSpans", "PublishSpans", "instrument", "uninstrument"]

Propagation = Literal["link", "child", "none"]
Naming = Literal["queue", "job_class"]

FLUSH_TIMEOUT_SECONDS = (
    2.0  # seconds for the last spans; a part of the supervisor's grace, the rest of a stop needs the others
)
LOGGER = logging.getLogger("kiqcluster")
SUPPRESS = SuppressErrors("otel")  # a sampler, processor or propagator that fails is not a failure of a job


def instrument(
    tracer_provider: TracerProvider | None = None,
    *,
    propagation: Propagation = "link",
    span_naming: Naming = "queue",
) -> None:
    """Have every push and every run of this process make a span; call it where the application declares its jobs.

    tracer_provider: None means the global one, which may be set later.  propagation: whether a run's span links to
    the push's, is its child, or neither.  span_naming: what spans are named after.  Called again, it replaces what
    it did before.  Raises UsageError for any other word.
    """
    _check("propagation", propagation, Propagation)
    _check("span_naming", span_naming, Naming)
    uninstrument()
    setup = current_setup()
    tracer = trace.get_tracer("kiqcluster", __version__, tracer_provider)
    setup.client_middleware.prepend(PublishSpans(tracer, span_naming))
    setup.server_middleware.prepend(ProcessSpans(tracer, span_naming, propagation, tracer_provider))
    if _end not in setup.hooks.of("exit"):
        setup.hooks.on("exit")(_end)


def uninstrument() -> None:
    """Make no more spans; nothing happens where `instrument` was not called."""
    setup = current_setup()
    setup.client_middleware.discard(PublishSpans)
    setup.server_middleware.discard(ProcessSpans)


def _check(option: str, value: object, words: Any) -> None:
    if value not in get_args(words):
        raise UsageError(f"{option} = {value!r} does not fit; it takes {', '.join(map(repr, get_args(words)))}")


# The two middleware


class PublishSpans:
    """Client middleware: a span per job, and its context in the payload, unless there is one already.

    There is one when the poller, the API or a web page enqueues a job again, and when the caller gave one: the job
    keeps it, and gets no second span.  In a bulk push each job has a span of its own; the write is in none of them.
    """

    def __init__(self, tracer: Tracer, naming: Naming) -> None:
        self._tracer = tracer
        self._naming = naming

    def __call__(self, push: Push, proceed: Callable[[], Push | None]) -> Push | None:
        begun = None
        with SUPPRESS:
            begun = self._begin(push)
        if begun is None:
            return proceed()
        span, context = begun
        with _running(span, context):
            with SUPPRESS:
                _mark(span, push.payload, "created_at")
                propagate.inject(push.payload, context)
            return proceed()

    def _begin(self, push: Push) -> tuple[Span, Context] | None:
        """Return a push's span, begun, and the context that has it; None for a job that has one already."""
        context, origin = _extract(push.payload)
        if origin is not None:
            return None
        span = self._tracer.start_span(
            _name(push.payload, push.queue, self._naming, "publish"),
            context,
            SpanKind.PRODUCER,
            # It ends before the job is written: of the conventions' operations that is "create", not "send".
            _attributes(push.payload, push.queue, "publish", "create"),
        )
        return span, trace.set_span_in_context(span, context)


class ProcessSpans:
    """Server middleware: a span per run, current while the job runs, with the payload's baggage.

    A span of an attempt that fails has the error; the next attempt's span links to the same push.
    Shared by all processor threads; open spans are added and removed by single steps of a set.
    """

    def __init__(
        self, tracer: Tracer, naming: Naming, propagation: Propagation, provider: TracerProvider | None
    ) -> None:
        self._tracer = tracer
        self._naming = naming
        self._propagation = propagation
        self._provider = provider
        self._open: set[Span] = set()

    def __call__(self, run: Run, proceed: Callable[[], Outcome | None]) -> Outcome | None:
        begun = None
        with SUPPRESS:
            begun = self._begin(run)
        if begun is None:
            return proceed()
        with self._around(run, *begun):
            return proceed()

    async def acall(self, run: Run, proceed: Callable[[], Awaitable[Outcome | None]]) -> Outcome | None:
        """Do the same around an async job."""
        begun = None
        with SUPPRESS:
            begun = self._begin(run)
        if begun is None:
            return await proceed()
        with self._around(run, *begun):
            return await proceed()

    @contextmanager
    def _around(self, run: Run, span: Span, context: Context) -> Iterator[None]:
        self._open.add(span)
        try:
            with _running(span, context):
                with SUPPRESS:
                    _mark(span, run.payload, "created_at")
                    _mark(span, run.payload, "enqueued_at")
                yield
        finally:
            self._open.discard(span)

    def _begin(self, run: Run) -> tuple[Span, Context]:
        """Return a run's span, begun, and the context that has it."""
        ambient = trace.get_current_span()  # none in a worker; perform_inline may have one
        context, origin = _extract(run.payload)
        if self._propagation != "child":
            context = trace.set_span_in_context(ambient, context)
        span = self._tracer.start_span(
            _name(run.payload, run.queue, self._naming, "process"),
            context,
            SpanKind.CONSUMER,
            {**_attributes(run.payload, run.queue, "process", "process"), "messaging.operation": "process"},
            [Link(origin)] if origin is not None and self._propagation == "link" else None,
        )
        return span, trace.set_span_in_context(span, context)

    def end(self) -> None:
        """End the spans of jobs that this process leaves unfinished, and send all that are not sent."""
        for span in list(self._open):
            with SUPPRESS:
                span.add_event("interrupted")
                span.end()
        flush = _Flush(self._provider or trace.get_tracer_provider())
        flush.start()
        if not flush.join(FLUSH_TIMEOUT_SECONDS):
            LOGGER.warning("tracing: the exporter took more than %g s; the last spans are lost", FLUSH_TIMEOUT_SECONDS)


class _Flush(Service):
    """A thread, for an exporter may hang: not every SDK heeds the time that force_flush is given."""

    def __init__(self, provider: TracerProvider) -> None:
        super().__init__("otel", lambda name, error: current_setup().notify_error_handlers(error, {"context": name}))
        self._provider = provider

    def run(self) -> None:
        force_flush = getattr(self._provider, "force_flush", None)  # the SDK's has it, the API's has not
        if force_flush is not None:
            force_flush(int(FLUSH_TIMEOUT_SECONDS * 1_000))


def _end() -> None:
    """Handler of `exit`, after all others: jobs have ended or were put back."""
    for middleware in current_setup().server_middleware:
        if isinstance(middleware, ProcessSpans):
            middleware.end()


# Spans


@contextmanager
def _running(span: Span, context: Context) -> Iterator[None]:
    """Make a context current until the block ends, and end the span with what came of it."""
    token = attach(context)
    try:
        yield
    except Interrupted:
        with SUPPRESS:
            span.add_event("interrupted")
        raise
    except BaseException as raised:
        with SUPPRESS:
            _note_error(span, raised)
        raise
    finally:
        detach(token)
        with SUPPRESS:
            if span.is_recording():  # a forced stop may have ended it
                span.end()


def _note_error(span: Span, raised: BaseException) -> None:
    span.set_attribute("error.type", _type_name(raised))
    span.set_status(Status(StatusCode.ERROR, f"Unhandled exception of type: {type(raised).__name__}"))
    try:
        span.record_exception(raised)
    except Exception as failure:  # noqa: BLE001  # its text cannot be had
        span.add_event("exception", {"exception.type": _type_name(raised), "exception.message": repr(type(failure))})


def _name(payload: Payload, queue: str, naming: Naming, operation: str) -> str:
    return f"{queue if naming == 'queue' else job_class(payload)} {operation}"


def _attributes(payload: Payload, queue: str, operation: str, kind: str) -> dict[str, str]:
    jid = (
        str(payload.get("jid", "")).encode(errors="replace").decode()
    )  # one that is not text would spoil a whole export
    return {
        "messaging.system": "sidekiq",
        "messaging.sidekiq.job_class": job_class(payload),
        # Messaging conventions, 1.27 and later
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": queue,
        "messaging.message.id": jid,
        # Ruby's instrumentation, which keeps to older ones
        "messaging.destination": queue,
        "messaging.destination_kind": "queue",
        "messaging.message_id": jid,
    }


def _mark(span: Span, payload: Payload, key: str) -> None:
    """Add a time of the payload as an event."""
    at = seconds(payload.get(key))
    if at is not None:
        span.add_event(key, timestamp=int(at * 1e9))


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


# Payloads as carriers


class _Keys(Getter[Payload]):
    """Reads a payload's top-level keys; what is not text is none of a propagator's, and may have it fail."""

    def get(self, carrier: Payload, key: str) -> list[str] | None:
        value = carrier.get(key)
        return [value] if isinstance(value, str) and is_unicode(value) else None

    def keys(self, carrier: Payload) -> list[str]:
        return list(carrier)


CARRIER_KEYS = _Keys()


def _extract(payload: Payload) -> tuple[Context, SpanContext | None]:
    """Return the current context with what the payload carries, and the context of the span that it names, if any."""
    ambient = trace.get_current_span()
    context = propagate.extract(payload, get_current(), CARRIER_KEYS)
    carried = trace.get_current_span(context)
    origin = carried.get_span_context()
    return context, None if carried is ambient or not origin.is_valid else origin
