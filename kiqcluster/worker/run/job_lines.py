"""JobLines: GitLab's fields in the log lines of jobs, and a line at their start, where `log.jobs` is full.

Runs in: processor threads; each has one.
1. take      a unit is about to begin, or to be put off
2. start     the line job_start
3. emit      an event of the execution, with the fields of the job that runs
4. put_off   the line of a job that was deferred or parked, if no other line has said so

Arguments are filtered (application/argument_filter.py).
Price: two lines and their fields, in the job's thread; nothing where `log.jobs` is something else.
Source: GitLab's sidekiq_logging (reference of fields: docs/guides/logs.md).
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Any

from kiqcluster.application.argument_filter import json_size, shown_arguments
from kiqcluster.application.registry import Definition
from kiqcluster.process.events import Fields
from kiqcluster.process.job_context import JobContext, current_job
from kiqcluster.process.logs.log import iso_time
from kiqcluster.process.runtime import Runtime
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.outcome import Deferred, Outcome, Parked
from kiqcluster.sidekiq.payload import META, SCHEDULED_AT, Payload, seconds
from kiqcluster.sidekiq.ruby_json import JSON

__all__ = ["JobLines", "extra_fields"]

MAX_META_KEYS = 100  # of the context, in a line
SECONDS_DECIMALS = 6
TIME_KEYS = ("created_at", "enqueued_at", SCHEDULED_AT)
COPIED_KEYS = ("retry_count", "version", "interrupted_count", "deferred_count", "idempotency_key", "tags", "bid")
STATUS_OF_EVENT = {
    "job_start": "start",
    "job_done": "done",
    "job_failed": "fail",
    "job_normal_failure": "failed",
    "job_interrupted": "interrupted",
    "job_dropped": "dropped",
    "job_deferred": "deferred",
    "job_parked": "concurrency_limit",
}
DEFERRED_BY = {"health_signal": "database_health_check"}  # in `job_deferred_by`: GitLab's word; others are the same
# Keys of jobs that have run or waited before: their time in the schedule is not that of this run.
KEYS_OF_LATER_RUNS = frozenset({"retry_count", "deferred_count", "interrupted_count"})


class JobLines:
    """Says what happens to the jobs of one thread."""

    def __init__(self, runtime: Runtime) -> None:
        self._events = runtime.events
        self._clock = runtime.clock
        self._max_retries = runtime.config.max_retries
        self._worker = {} if runtime.slot is None else {"worker_id": f"sidekiq_{runtime.slot}"}
        self._job: JobContext | None = None  # the last one that was taken
        self._fields: Fields = {}  # of all its lines
        self._has_begun = False
        self._is_ended = False  # whether its last line was written
        self._told_twice: set[str] = set()  # fields of which was said that an event has one of the same name
        self.used: float | None = None  # CPU seconds of its run; None where it was too short to measure

    def take(self, job: JobContext, definition: Definition | None) -> None:
        """Take note of the job whose lines come next."""
        self._job, self._has_begun, self._is_ended, self.used = job, False, False, None
        self._fields = {**self._fields_of(job.payload, definition), **self._worker}

    def start(self) -> None:
        """Say that the job begins now."""
        self.emit("job_start")
        self._has_begun, self._is_ended = True, False

    def go_on(self) -> None:
        """Take note that the job has begun in another thread."""
        self._has_begun, self._is_ended = True, False

    def release(self) -> None:
        """Let go of a job that has ended."""
        self._job, self._fields = None, {}

    def emit(self, event: str, **fields: Any) -> None:
        """Emit an event; within a job, with its fields.  An event's own fields come first."""
        job = current_job()
        if job is None:  # by the main thread, about a job of another one
            self._events.emit(event, **fields)
            return
        if job is not self._job:
            self.take(job, None)
        status = STATUS_OF_EVENT.get(event, event.removeprefix("job_"))
        if fields.get("outcome") == "deferred":  # of an unknown class, or key
            status = "deferred"
        self._is_ended = True
        of_job = {"job_status": status, **self._fields, **self._end(event, fields)}
        for name in fields.keys() & of_job.keys() - self._told_twice:
            self._told_twice.add(name)
            self._events.emit("log_field_twice", field=name)
        self._events.emit(event, **{**fields, **of_job, **fields})  # the event's own first, in order and value

    def put_off(self, outcome: Outcome) -> None:
        """Say of a job that was deferred or parked why."""
        if self._is_ended:
            return
        if isinstance(outcome, Deferred):
            reason = str(ruby_json.decode(outcome.payload).get("deferred_by") or "it gave way")
            self.emit(
                "job_deferred",
                reason=reason,
                seconds=round(outcome.at - self._clock.now(), SECONDS_DECIMALS),
                job_deferred_by=DEFERRED_BY.get(reason, reason),
            )
        elif isinstance(outcome, Parked):
            self.emit("job_parked", limit=outcome.name or outcome.key)

    def _end(self, event: str, fields: Fields) -> Fields:
        """Return the fields of a job's last line."""
        if event == "job_start":
            return {}
        now = self._clock.now()
        end: Fields = {"completed_at": iso_time(now)}
        if self._has_begun and "elapsed" in fields:
            end["duration_s"] = round(fields["elapsed"], SECONDS_DECIMALS)
            if self.used is not None:
                end["cpu_s"] = round(self.used, SECONDS_DECIMALS)
        return end

    def _fields_of(self, payload: Payload, definition: Definition | None) -> Fields:
        now = self._clock.now()
        fields: Fields = {
            "args": shown_arguments(payload, definition),
            "job_size_bytes": json_size(payload["args"]),
            "retry": _retries(payload.get("retry"), self._max_retries),
        }
        fields.update((key, payload[key]) for key in COPIED_KEYS if key in payload)
        fields.update(islice(((key, value) for key, value in payload.items() if key.startswith(META)), MAX_META_KEYS))
        times = {key: at for key in TIME_KEYS if (at := seconds(payload.get(key))) is not None}
        fields.update((key, iso_time(at)) for key, at in times.items())
        if (queued_at := times.get("enqueued_at", times.get("created_at"))) is not None:
            fields["scheduling_latency_s"] = _since(queued_at, now)
        if "enqueued_at" in times and SCHEDULED_AT in times and KEYS_OF_LATER_RUNS.isdisjoint(payload):
            fields["enqueue_latency_s"] = _since(times[SCHEDULED_AT], times["enqueued_at"])
        return fields


def extra_fields(job: JobContext | None) -> Fields:
    """Return what the job has added to its last line, under GitLab's names: extra.<class>.<key>."""
    if job is None or not job.extras:
        return {}
    name = re.sub(r"([a-z\d])([A-Z])", r"\1_\2", re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", job.name.replace("::", "_")))
    return {f"extra.{name.lower()}.{key}": value for key, value in job.extras.items()}


def _retries(option: JSON, max_retries: int) -> int:
    """Return the option `retry` as a number, -1 for a value that is not valid."""
    if isinstance(option, bool) or option is None:
        return max_retries if option else 0
    return option if isinstance(option, int) else -1


def _since(then: float, now: float) -> float:
    return round(max(0.0, now - then), SECONDS_DECIMALS)
