"""Results: what Redis keeps of a job that has ended, and of the progress of one that runs.

Written by features/results, features/chains and worker/maintenance/progress.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Literal, TypeGuard

from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.ruby_json import JSON

__all__ = ["Progress", "Result", "read_progress", "read_result"]

TEXTS = ("error_class", "error_message", "reason", "job", "jid")  # of what is kept

State = Literal["pending", "done", "failed", "dropped"]


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


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a job.

    state: pending while it has not ended, or nothing is kept of it any more.  value: what it returned.
    error_class, error_message: why it failed, or why what it returned could not be kept.  reason: why it was dropped.
    progress: how far it has come, as long as it runs and has said so.
    ended_by, ended_by_jid: the job of its chain that has failed or was dropped before it, "" if it is the job itself.
    """

    state: State
    value: JSON = None
    error_class: str = ""
    error_message: str = ""
    reason: str = ""
    progress: Progress | None = None
    ended_by: str = ""
    ended_by_jid: str = ""


def read_result(raw: bytes) -> Result:
    """Return what Redis keeps.  Raises ValueError for other bytes."""
    fields = ruby_json.decode(raw)
    if not isinstance(fields, dict) or fields.get("state") not in ("done", "failed", "dropped"):
        raise ValueError(f"it is not the result of a job: {raw[:50]!r}")
    error_class, message, reason, job, jid = (str(fields.get(key, "")) for key in TEXTS)
    return Result(fields["state"], fields.get("value"), error_class, message, reason, ended_by=job, ended_by_jid=jid)


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
