"""An application with spans: they are written to the file KIQ_SPANS, a JSON line each, and not before the end.

With KIQ_EXPORT=hangs nothing of the last export comes through.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from kiqcluster import job, on
from kiqcluster.contrib import otel
from tests.apps.basic import note
from tests.apps.basic import stubborn as stubborn
from tests.apps.interop import Echo as Echo

NEVER_MS = 600_000  # what is exported is so because somebody asked for it


class FileExporter(SpanExporter):
    def __init__(self, path: Path) -> None:
        self._path = path

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if os.environ.get("KIQ_EXPORT") == "hangs":
            note("hangs")
            threading.Event().wait()
        lines = [json.dumps({**json.loads(span.to_json()), "pid": os.getpid()}) + "\n" for span in spans]
        with self._path.open("a") as file:
            file.write("".join(lines))
        return SpanExportResult.SUCCESS


@on("fork")
def set_up() -> None:
    """Set up in each worker: the processor has a thread, and with --preload none may run before the fork."""
    provider = TracerProvider()
    exporter = FileExporter(Path(os.environ["KIQ_SPANS"]))
    provider.add_span_processor(
        BatchSpanProcessor(exporter, max_queue_size=10_000, schedule_delay_millis=NEVER_MS, max_export_batch_size=5_000)
    )
    otel.instrument(provider)


@job()
def outer(number: int) -> None:
    inner.perform_async(number)


@job(queue="low")
def inner(number: int) -> None:
    note("inner", number)


@job(retry=False)
def failing() -> None:
    note("failing")
    raise ValueError("on purpose")
