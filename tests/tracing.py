"""What tests of tracing share: keys that a payload carries through everything, and spans that tests can look at.

The keys are spelt as another producer may: with escapes, spaces and numbers that a decoder would write otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import DEFAULT_ON, Sampler
from opentelemetry.trace import SpanContext

from kiqcluster.contrib import otel

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"

SPELT = (
    f'"traceparent":"{TRACEPARENT}"',
    '"tracestate":"rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"',
    r'"baggage":"user=\u00e9l\u00e8ve,tier=gold;since=2020"',
    '"x_vendor":{"price": 1.50,"far":1E5,"id":123456789012345678901234567890,"list":[1 , null]}',
    r'"trace_propagation_headers":{"sentry-trace":"a\/b"}',
)


def spelt(name: str, *args: str, **keys: str) -> bytes:
    """Return a payload with those keys.  args, keys: as JSON."""
    more = "".join(f',"{key}":{value}' for key, value in keys.items())
    return f'{{"class":"{name}",{",".join(SPELT)},"args":[{",".join(args)}],"jid":"{"a" * 24}"{more}}}'.encode()


def lost(raw: bytes) -> list[str]:
    """Return which of the keys a payload does not carry any more, byte for byte."""
    return [each for each in SPELT if each.encode() not in raw]


class Spans:
    """The spans that ended, of a provider of the test's own."""

    def __init__(self, sampler: Sampler = DEFAULT_ON) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    def all(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


@contextmanager
def instrumented(sampler: Sampler = DEFAULT_ON, **options: Any) -> Iterator[Spans]:
    """Have this process' pushes and runs make spans for a `with` block."""
    spans = Spans(sampler)
    otel.instrument(spans.provider, **options)
    try:
        yield spans
    finally:
        otel.uninstrument()
        spans.provider.shutdown()


def traceparent(context: SpanContext | None) -> str:
    """Return a span's context as payloads carry it."""
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
