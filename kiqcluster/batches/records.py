"""Records: a batch and its jobs as they are in Redis.  Values; batch.py reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.ruby_json import JSON
from kiqcluster.store.batches import StoredJob

__all__ = ["STATUS_FIELDS", "BatchChange", "BatchJob", "BatchParts", "BatchStatus", "read_job", "read_status"]

COUNTS = ("total", "enqueue", "working", "finish", "failed", "error", "cancelled", "expected", "open")
TIMES = ("created_at", "completed_at", "succeeded_at", "cancelled_at")
TEXTS = ("name", "worker", "parent", "reason", "problem")
DOCUMENTED = (
    *("id", "name", "worker", "parent", "state", "percent", "total", "enqueue", "working", "finish", "failed", "error"),
    *("cancelled", "expected", "open_children", "is_complete", "is_open", "reason", "problem", *TIMES),
)
STATUS_BY_LETTER = {"e": "enqueue", "w": "working", "f": "finish", "F": "failed", "E": "error"}
CHANGE = re.compile(r"(?P<status>[ewfFE])(?P<at>[0-9]{1,12}\.[0-9]{3})(:(?P<end>[0-9]{1,6}))?")  # lua/batches
UNPRINTABLE = "[cannot be printed]"
MAX_DIGITS = 9  # of a count: a database takes no more
STATUS_FIELDS = (*COUNTS, *TIMES, *TEXTS, "is_open")


@dataclass(frozen=True, slots=True)
class BatchChange:
    """A change of the status of a job.  at: epoch seconds.  messages: those that came with it."""

    status: str
    at: float
    messages: tuple[str, ...] = ()

    def as_json(self) -> dict[str, JSON]:
        """Return the change as a front end gets it."""
        return {"status": self.status, "at": self.at, "messages": list(self.messages)}


@dataclass(frozen=True, slots=True)
class BatchJob:
    """A job of a batch.

    status: enqueue, working, finish, failed or error.  params: its arguments; None where they are not kept, because
    they are large or encrypted.  messages: of all its runs, the oldest first.  worker: its class, "" for that of the
    batch, None where its arguments are not kept; `BatchStatus.class_of` tells it.  changes: of its status, the
    oldest first; of more than 20 the middle ones are left out, and their messages are those of the next change.
    """

    jid: str
    status: str
    params: JSON
    messages: tuple[str, ...]
    worker: str | None = None
    changes: tuple[BatchChange, ...] = ()

    def as_json(self) -> dict[str, JSON]:
        """Return the job as a front end gets it."""
        return {
            "jid": self.jid,
            "status": self.status,
            "params": self.params,
            "messages": list(self.messages),
            "changes": [each.as_json() for each in self.changes],
        }


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """The state of a batch at one moment.

    total: jobs; each is in one of `enqueue` (waits, also for a retry), `working`, `finish`, `failed` (NormalFailure)
    and `error` (it will not run again).  cancelled: those in `error` that were dropped because the batch was cancelled.
    expected: rows that Batch.create was given, also those that were not enqueued.  open_children: child batches that
    are not complete.
    created_at, …: epoch seconds, None while that is not so.  is_open: whether jobs are still being added; a batch stays
    so if its creator dies, until `close` or `cancel`.  problem: why a callback could not be pushed, or "".
    reason: of the cancellation.  failures: the latest jobs in `failed` and `error`, the youngest first.
    """

    id: str
    name: str
    worker: str
    parent: str
    total: int
    enqueue: int
    working: int
    finish: int
    failed: int
    error: int
    cancelled: int
    expected: int
    open_children: int
    created_at: float
    completed_at: float | None
    succeeded_at: float | None
    cancelled_at: float | None
    is_open: bool
    reason: str
    problem: str
    failures: tuple[BatchJob, ...] = ()

    @property
    def done(self) -> int:
        """Number of jobs that have ended."""
        return self.finish + self.failed + self.error

    @property
    def percent(self) -> float:
        """Share of the jobs that have ended, 0 to 100, rounded down to a tenth; 100 only if all have."""
        most = max(self.total, self.expected) if self.is_open else self.total
        return 100.0 if not most else self.done * 1_000 // most / 10

    @property
    def is_complete(self) -> bool:
        """Whether all jobs and child batches have ended, however they did."""
        return self.completed_at is not None

    @property
    def state(self) -> str:
        """`open` while jobs are added, `running`, `cancelled`, `succeeded`, `complete` (not all jobs have finished)."""
        if self.cancelled_at is not None:
            return "cancelled"
        if self.succeeded_at is not None:
            return "succeeded"
        return "complete" if self.is_complete else "open" if self.is_open else "running"

    def class_of(self, job: BatchJob) -> str:
        """Return the class of a job of this batch, "" where it is not kept."""
        return self.worker if job.worker == "" else job.worker or ""

    def as_json(self) -> dict[str, JSON]:
        """Return the status as a front end gets it; times are epoch seconds."""
        document: dict[str, JSON] = {name: getattr(self, name) for name in DOCUMENTED}
        return {**document, "failures": [each.as_json() for each in self.failures]}


@dataclass(frozen=True, slots=True)
class BatchParts:
    """What belongs to a batch besides its status.

    callbacks: event → queue and payload.  children: child batches, `child_count` in all.  failures: a page of those
    jobs that are `failed` or `error`, `failed` in all.
    """

    callbacks: Mapping[str, tuple[str, bytes]]
    children: list[BatchStatus]
    child_count: int
    failed: int
    failures: list[BatchJob]


def read_status(identifier: str, fields: Mapping[str, str], failures: tuple[BatchJob, ...] = ()) -> BatchStatus:
    """Return the status of a batch of these fields (STATUS_FIELDS); what somebody else has written counts as 0."""
    counts = {name: _count(fields.get(name)) for name in COUNTS}
    times = {name: _time(fields.get(name)) for name in TIMES}
    texts = {name: fields.get(name, "") for name in TEXTS}
    created_at, is_open = times.pop("created_at") or 0.0, fields.get("is_open") == "1"
    open_children = counts.pop("open")
    found: dict[str, Any] = {**counts, **times, **texts}
    return BatchStatus(
        id=identifier,
        created_at=created_at,
        is_open=is_open,
        open_children=open_children,
        failures=failures,
        **found,
    )


def read_job(stored: StoredJob) -> BatchJob:
    """Return a job of a batch; what is not JSON is left out."""
    messages = stored.messages or b""
    arguments, newline, name = (stored.arguments or b"").partition(b"\n")
    worker = name.decode(errors="replace") if newline else None
    changes = tuple(_changes(stored.changes, messages))
    return BatchJob(stored.jid, stored.status, _decoded(arguments), _messages(messages), worker, changes)


def _changes(raw: bytes, messages: bytes) -> Iterator[BatchChange]:
    """Yield the changes of a status; what somebody else has written is left out.  raw, messages: as in Redis."""
    begin = 0
    for change in raw.decode(errors="replace").split(","):
        found = CHANGE.fullmatch(change)
        if found is None:
            continue
        end = int(found["end"] or begin)
        yield BatchChange(STATUS_BY_LETTER[found["status"]], float(found["at"]), _messages(messages[begin:end]))
        begin = end


def _messages(raw: bytes) -> tuple[str, ...]:
    """Return JSON values with commas between them, and perhaps one before, as texts."""
    values = _decoded(b"[%b]" % raw.removeprefix(b","))
    return tuple(map(_message, values)) if isinstance(values, list) else ()


def _message(value: JSON) -> str:
    """Return a message as text; of an integer of thousands of digits, that."""
    try:
        return str(value)
    except ValueError:
        return UNPRINTABLE


def _decoded(raw: bytes | None) -> JSON:
    try:
        return ruby_json.decode(raw) if raw else None
    except ruby_json.Undecodable:
        return None


def _count(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() and len(text) <= MAX_DIGITS else 0


def _time(text: str | None) -> float | None:
    try:
        found = None if text is None else float(text)
    except ValueError:
        return None
    return found if found is None or isfinite(found) else None
