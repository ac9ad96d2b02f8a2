"""Progress: how far a job that runs has come, as it says by `current_job().progress(done, total)`.

The job writes an attribute of its context.  Once a second the worker writes what is new to `kiq:progress:<jid>`
(worker/maintenance/progress.py), for `result_ttl` seconds, or a day; it is renewed while the job runs.  The end of the
run deletes the key, so that a retry begins anew.

encoded, read_progress   what Redis keeps
on_end                   the effect `forget`, of runs that have said something (`is_used_in`)

Price: a call in a job writes one attribute.  Of all jobs of a process together, one script a second while they say
something new; at the end of such a run one effect with one Redis call.  Other jobs pay for one look at an attribute.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from typing import TypeGuard

from kiqcluster.application.registry import Definition
from kiqcluster.features.hooks.job_end import JobEnd
from kiqcluster.process.job_context import JobContext
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.outcome import Effect

__all__ = ["PROGRESS", "PROGRESS_TTL_SECONDS", "Progress", "ProgressEnds", "encoded", "read_progress"]

PROGRESS_TTL_SECONDS = 86_400  # of the progress of a class without `result_ttl`


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job has come.  total: None where the job does not know it."""

    done: float
    total: float | None = None

    @property
    def percent(self) -> float | None:
        """From 0 to 100; None without a total."""
        if self.total is None:
            return None
        return min(100.0, 100.0 * self.done / self.total) if self.total else 100.0

    def as_json(self) -> dict[str, float | None]:
        """Return what a document says of it."""
        return {"done": self.done, "total": self.total, "percent": self.percent}


class ProgressEnds:
    """The server half."""

    name = "progress"
    keys: frozenset[str] = frozenset()

    def is_used_by(self, _definition: Definition, /) -> bool:
        return False  # what counts is what the run has said

    def is_used_in(self, context: JobContext) -> bool:
        return context.progressed is not None

    def on_end(self, end: JobEnd) -> Iterable[Effect]:
        """Return the row that deletes the progress of the run."""
        jid = end.payload.get("jid")
        return (Effect("forget", end.keys.progress(jid)),) if isinstance(jid, str) else ()

    def on_end_failed(self, end: JobEnd, _error: BaseException) -> Iterable[Effect]:
        return self.on_end(end)


PROGRESS = ProgressEnds()


def encoded(done: float, total: float | None) -> bytes:
    """Return what Redis keeps."""
    return ruby_json.encode({"done": done, "total": total})


def read_progress(raw: bytes | None) -> Progress | None:
    """Return what `encoded` has written; None for nothing, and for other bytes."""
    try:
        fields = ruby_json.decode(raw) if raw else None
    except ruby_json.Undecodable:
        return None
    if not isinstance(fields, dict):
        return None
    done, total = fields.get("done"), fields.get("total")
    if not _is_finite(done) or (total is not None and not _is_finite(total)):
        return None
    return Progress(done, total)


def _is_finite(value: object) -> TypeGuard[float]:
    """Return whether a value is a number that a float can be."""
    try:
        return isinstance(value, int | float) and isfinite(value)
    except OverflowError:
        return False
