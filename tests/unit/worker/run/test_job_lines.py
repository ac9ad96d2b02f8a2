"""The lines of a job where log.jobs is full: which there are, and GitLab's fields in them."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from kiqcluster import Client, Interrupted, Job, current_job, job, limits
from kiqcluster.application.argument_filter import HIDDEN_ARGUMENT, shown_arguments
from kiqcluster.application.registry import Registry, current_registry
from kiqcluster.errors import JobDefinitionError, NormalFailure, OverLimit
from kiqcluster.process.config import Config
from kiqcluster.process.job_context import JobContext
from kiqcluster.process.logs.log import JsonFormatter
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.active_job import WRAPPER, enveloped
from kiqcluster.sidekiq.outcome import Effect
from kiqcluster.sidekiq.ruby_json import encode
from kiqcluster.store.engine.units import BeginVerdict
from kiqcluster.worker.run.job_lines import extra_fields
from tests.unit.features.test_size_limiter import Written
from tests.unit.worker.run.test_execution import Feature, Worker

NOW = 1_795_168_740.5  # of the clock
TIMES = {"created_at": NOW - 60, "enqueued_at": NOW - 2.5, "scheduled_at": NOW - 3}


@pytest.fixture
def full(setup: Setup, registry: Registry) -> Worker:
    return Worker(setup, registry, Config(log_jobs="full"), slot=3)


def lines(worker: Worker) -> list[tuple[str, Any]]:
    """Return the names of the events, and their status."""
    return [(event, fields.get("job_status")) for event, fields in worker.events]


def fields_of(worker: Worker, event: str) -> dict[str, Any]:
    (fields,) = [fields for name, fields in worker.events if name == event]
    return fields


def record_of(event: str, fields: dict[str, Any]) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": event, "levelname": "INFO", "event_fields": {"event": event, **fields}})


def raising(error: BaseException) -> Callable[..., None]:
    def perform(*_: Any) -> None:
        raise error

    return perform


class TestLines:
    def test_a_job_has_a_line_at_its_start_and_one_at_its_end(self, full: Worker) -> None:
        job(name="sync")(lambda account: None)

        full.run("sync", 7)

        assert lines(full) == [("job_start", "start"), ("job_done", "done")]

    @pytest.mark.parametrize(
        ("error", "event", "status"),
        [
            (ValueError("no"), "job_failed", "fail"),
            (NormalFailure("no"), "job_normal_failure", "failed"),
            (Interrupted(), "job_deferred", "deferred"),
            (OverLimit("crm", 5.0), "job_deferred", "deferred"),
        ],
    )
    def test_each_end_has_its_status(self, full: Worker, error: BaseException, event: str, status: str) -> None:
        job(name="sync")(raising(error))

        full.run("sync")

        assert lines(full) == [("job_start", "start"), (event, status)]

    def test_at_a_stop_it_gives_way(self, full: Worker) -> None:
        job(name="sync")(raising(Interrupted()))
        full.stopping.set()

        full.run("sync")

        assert lines(full) == [("job_start", "start"), ("job_interrupted", "interrupted")]

    @pytest.mark.parametrize(
        ("verdict", "line"),
        [
            (BeginVerdict("defer", 5.0), ("job_deferred", "deferred")),
            (BeginVerdict("drop"), ("job_dropped", "dropped")),
            (BeginVerdict("lost"), None),
        ],
    )
    def test_one_that_may_not_begin_has_no_start(self, full: Worker, verdict: BeginVerdict, line: Any) -> None:
        job(name="sync")(lambda: None)
        full.play(Feature(verdict))

        full.run("sync")

        assert lines(full) == ([] if line is None else [line])

    def test_a_parked_one_names_its_limit(self, full: Worker) -> None:
        row = Effect("enter", "kiq:slots:sync", (1, "sync:while_executing", "park"))
        job(name="sync")(lambda: None)
        full.play(Feature([row]))
        full.verdict = BeginVerdict("park", row=row)

        full.run("sync")

        assert lines(full) == [("job_parked", "concurrency_limit")]
        assert fields_of(full, "job_parked")["limit"] == "sync:while_executing"

    def test_a_deferral_says_why_and_for_how_long(self, full: Worker) -> None:
        job(name="sync")(raising(OverLimit("crm", 5.0)))

        full.run("sync")

        said = fields_of(full, "job_deferred")
        assert (said["reason"], said["seconds"]) == ("rate_limit", pytest.approx(5.0))

    @pytest.mark.parametrize(
        ("reason", "by"), [("health_signal", "database_health_check"), ("feature_flag", "feature_flag")]
    )
    def test_a_deferral_has_gitlabs_reason_besides(self, full: Worker, reason: str, by: str) -> None:
        job(name="sync")(lambda: None)
        full.play(Feature(BeginVerdict("defer", 5.0, reason=reason)))

        full.run("sync")

        said = fields_of(full, "job_deferred")
        assert (said["reason"], said["job_deferred_by"]) == (reason, by)

    def test_of_an_unknown_class_there_is_one_line(self, full: Worker) -> None:
        full.run("Newcomer", 7, "secret")

        assert lines(full) == [("job_failed", "deferred")]
        assert fields_of(full, "job_failed")["args"] == [7, HIDDEN_ARGUMENT]

    def test_bytes_that_are_no_job_have_a_line_without_fields(self, full: Worker) -> None:
        full.run_bytes(b"[]")

        assert lines(full) == [("job_failed", None)]

    def test_each_job_has_its_own_fields(self, full: Worker) -> None:
        job(name="sync")(lambda number: None)

        full.run("sync", 1)
        full.run("Newcomer", 2)
        full.run("sync", 3)

        assert [fields["args"] for _, fields in full.events] == [[1], [1], [2], [3], [3]]


class TestDeferralsInTheDefaultLog:
    def test_they_have_a_line_a_minute_for_each_class(self, setup: Setup, registry: Registry) -> None:
        for name in ("sync", "mail"):
            job(name=name)(lambda: None)
        worker = Worker(setup, registry, Config())
        worker.play(Feature(BeginVerdict("defer", 5.0, reason="feature_flag")))

        for name in ("sync", "sync", "mail", "sync"):
            worker.run(name)

        assert worker.events == [("job_deferred", {"seconds": 5.0, "reason": "feature_flag"})] * 2

    def test_a_job_of_an_unknown_class_has_its_one_line(self, setup: Setup, registry: Registry) -> None:
        worker = Worker(setup, registry, Config())

        worker.run("Newcomer")

        assert [event for event, _ in worker.events] == ["job_failed"]


class TestFields:
    def test_a_field_of_an_event_and_of_its_job_is_shown_once_and_said_once(self, full: Worker) -> None:
        @job(name="telling")
        def tell() -> None:
            for _ in range(2):
                full.execution._lines.emit("job_overdue", args=["its own"], elapsed=1.0)

        full.run("telling")

        assert [fields["args"] for event, fields in full.events if event == "job_overdue"] == [["its own"]] * 2
        assert [fields for event, fields in full.events if event == "log_field_twice"] == [{"field": "args"}]

    def test_a_start_has_what_is_known_of_the_job(self, full: Worker) -> None:
        job(name="sync", loggable_arguments=["path"])(lambda account, path, token: None)
        keys = {"correlation_id": "r-1", "meta.user": "ann", "tags": ["vip"], "idempotency_key": "k", "version": 0}

        full.run("sync", 7, "a.png", "secret", **keys, **TIMES)

        assert fields_of(full, "job_start") == {
            "job_status": "start",
            "args": [7, "a.png", HIDDEN_ARGUMENT],
            "job_size_bytes": len('[7,"a.png","secret"]'),
            "retry": 25,
            "version": 0,
            "idempotency_key": "k",
            "tags": ["vip"],
            "meta.user": "ann",
            "created_at": "2026-11-20T09:58:00.500Z",
            "enqueued_at": "2026-11-20T09:58:58.000Z",
            "scheduled_at": "2026-11-20T09:58:57.500Z",
            "scheduling_latency_s": 2.5,
            "enqueue_latency_s": 0.5,
            "worker_id": "sidekiq_3",
        }

    def test_an_end_has_the_same_and_what_it_took(self, full: Worker) -> None:
        def work(number: int) -> None:
            full.clock.time += 1.25
            full.clock.used += 0.25

        job(name="sync")(work)

        full.run("sync", 7, **TIMES)

        start, done = fields_of(full, "job_start"), fields_of(full, "job_done")
        assert done.items() >= {**start, "job_status": "done", "elapsed": 1.25, "duration_s": 1.25}.items()
        assert done["completed_at"] == "2026-11-20T09:59:01.750Z"
        assert done["cpu_s"] == 0.25
        assert done["scheduling_latency_s"] == 2.5

    def test_the_cpu_of_a_very_short_run_is_not_measured(self, full: Worker) -> None:
        job(name="sync")(lambda: None)

        full.run("sync")

        assert "cpu_s" not in fields_of(full, "job_done")

    def test_a_failure_keeps_its_fields_and_has_gitlabs_too(self, full: Worker) -> None:
        job(name="sync")(raising(ValueError("no")))

        full.run("sync", error_message="of before", error_class="X", retry_count=2, failed_at=NOW - 9)

        start, failed = fields_of(full, "job_start"), fields_of(full, "job_failed")
        assert start.keys().isdisjoint({"error_message", "error_class"})
        assert (failed["error_class"], failed["error_message"], failed["error"]) == (
            "ValueError",
            "no",
            "ValueError: no",
        )
        assert (failed["outcome"], failed["retry_count"]) == ("failed, will be retried", 2)
        assert "raise error" in failed["traceback"]

    @pytest.mark.parametrize(
        ("option", "shown"), [(True, 25), (False, 0), (None, 0), (0, 0), (3, 3), ("often", -1), ([], -1)]
    )
    def test_retry_is_a_number(self, full: Worker, option: Any, shown: int) -> None:
        job(name="sync")(lambda: None)

        full.run("sync", retry=option)

        assert fields_of(full, "job_start")["retry"] == shown

    @pytest.mark.parametrize("key", ["retry_count", "deferred_count", "interrupted_count"])
    def test_the_latency_of_a_schedule_is_that_of_the_first_run(self, full: Worker, key: str) -> None:
        job(name="sync")(lambda: None)

        full.run("sync", **TIMES, **{key: 1})

        assert "enqueue_latency_s" not in fields_of(full, "job_start")

    @pytest.mark.parametrize(
        "key",
        [
            *("retry", "created_at", "enqueued_at", "scheduled_at", "tags", "bid", "version", "retry_count"),
            *("idempotency_key", "encrypt", "correlation_id", "meta.user", "deferred_count"),
        ],
    )
    @pytest.mark.parametrize("value", [None, True, -1, 1e300, "odd", "\ud800", [[]], {"a": [1]}])
    def test_no_value_of_a_key_makes_a_job_fail(self, full: Worker, key: str, value: Any) -> None:
        ran: list[Any] = []
        job(name="sync")(lambda *args: ran.append(args))

        raw = encode({"class": "sync", "args": [], key: value})
        full.run_bytes(raw.replace(b'"args":[]', b'"args":[1e400,"\\ud800",%s,{"a":[]}]' % (b"1" * 5_000)))
        formatted = [JsonFormatter().format(record_of(*event)) for event in full.events]

        assert len(ran) == 1 or key == "version"  # a newer one waits
        assert all("[FILTERED]" in json.loads(line, parse_int=str)["args"] for line in formatted)

    def test_what_is_known_of_the_caller_has_a_limit(self, full: Worker) -> None:
        job(name="sync")(lambda: None)

        full.run("sync", **{f"meta.{number}": number for number in range(1_000)})

        assert len([key for key in fields_of(full, "job_start") if key.startswith("meta.")]) == 100

    def test_without_times_there_are_no_latencies(self, full: Worker) -> None:
        job(name="sync")(lambda: None)

        full.run("sync", enqueued_at="odd")

        assert not [key for key in fields_of(full, "job_start") if key.endswith(("_at", "_latency_s"))]

    def test_scheduled_jobs_carry_their_due_time_where_it_is_full(self, setup: Setup, registry: Registry) -> None:
        for word in ("done", "full"):
            setup.config, setup.delivery = Config(log_jobs=word), Written()
            Client().push({"class": "X", "args": [], "at": 4e9})
            Client().push_bulk({"class": "X", "args": [[]], "at": 4e9})
            Client().push({"class": "X", "args": []})

            *scheduled, due = [each.get("scheduled_at") for each in setup.delivery.payloads()]
            assert (scheduled, due) == ([4e9, 4e9] if word == "full" else [None, None], None)


class TestArguments:
    def shown(self, *arguments: Any, **keys: Any) -> list[Any]:
        return shown_arguments({"args": list(arguments), **keys}, current_registry().get("sync"))

    def test_numbers_are_shown_and_nothing_else(self, registry: Registry) -> None:
        assert self.shown(1, -2.5, "a", True, None, [1], {"a": 1}) == [1, -2.5, *[HIDDEN_ARGUMENT] * 5]

    def test_a_class_declares_others_by_position_or_name(self, registry: Registry) -> None:
        job(name="sync", loggable_arguments=(0, "width"))(lambda path, token, width=None, *more: None)

        assert self.shown("a", "b", ["c"], "d") == ["a", HIDDEN_ARGUMENT, ["c"], HIDDEN_ARGUMENT]

    def test_subclasses_inherit_them(self, registry: Registry) -> None:
        class Base(Job, loggable_arguments=["path"]): ...

        class Sync(Base, name="sync"):
            def perform(self, token: str, path: str) -> None: ...

        assert self.shown("secret", "a.png") == [HIDDEN_ARGUMENT, "a.png"]

    def test_all_together_have_a_limit(self, registry: Registry) -> None:
        job(name="sync", loggable_arguments=[0, 1, 2, 3])(lambda a, b, c, d: None)

        assert self.shown("x" * 5_000, "y" * 5_000, "z" * 5_000, 4) == ["x" * 5_000, "y" * 5_000, "..."]

    def test_an_encrypted_argument_is_never_shown(self, registry: Registry) -> None:
        job(name="sync", loggable_arguments=[0, 1])(lambda a, b: None)

        assert self.shown("a", 7, encrypt=True) == ["a", HIDDEN_ARGUMENT]

    def test_of_an_envelope_its_own_arguments_are_meant(self, registry: Registry) -> None:
        job(name="sync", active_job=True, loggable_arguments=["path"])(lambda path, token: None)
        payload = {
            "class": WRAPPER,
            "wrapped": "sync",
            "args": [enveloped("sync", "default", ["a.png", "secret"], NOW)],
        }
        _, definition = registry.find(payload)

        assert shown_arguments(payload, definition) == ["a.png", HIDDEN_ARGUMENT]

    @pytest.mark.parametrize("value", ["path", 0, [-1], [True], [1.5], [""], {"path": 1}])
    def test_places_are_numbers_or_names(self, registry: Registry, value: Any) -> None:
        with pytest.raises(JobDefinitionError, match="loggable_arguments = "):
            job(name="sync", loggable_arguments=value)(lambda path: None)

    def test_a_name_that_no_parameter_has_is_refused(self, registry: Registry) -> None:
        with pytest.raises(JobDefinitionError, match=r"'pth', which has no position; .* are path"):
            job(name="sync", loggable_arguments=["pth"])(lambda path, *more: None)


class TestExtras:
    @pytest.mark.parametrize("job_log", ["done", "full"])
    @pytest.mark.parametrize(("error", "event"), [(None, "job_done"), (ValueError(), "job_failed")])
    def test_what_a_job_adds_is_in_its_last_line(
        self, setup: Setup, registry: Registry, job_log: str, error: Any, event: str
    ) -> None:
        worker = Worker(setup, registry, Config(log_jobs=job_log))

        @job(name="Acme::SyncHTMLJob")
        def sync() -> None:
            running = current_job()
            assert running is not None
            running.log_extra_metadata_on_done("rows", 1)
            running.log_extra_metadata_on_done("rows", 2)
            if error is not None:
                raise error

        worker.run("Acme::SyncHTMLJob")

        assert fields_of(worker, event)["extra.acme_sync_html_job.rows"] == 2

    def test_they_have_a_limit(self) -> None:
        context = JobContext({}, "default", "sync", threading.Event())
        for number in range(200):
            context.log_extra_metadata_on_done(str(number), number)
        context.log_extra_metadata_on_done("0", "again")

        assert len(extra_fields(context)) == 100
        assert extra_fields(context)["extra.sync.0"] == "again"

    def test_most_jobs_have_none(self) -> None:
        assert extra_fields(None) == extra_fields(JobContext({}, "q", "sync", threading.Event())) == {}


class TestOtherWords:
    def test_done_is_the_line_that_there_was_always(self, setup: Setup, registry: Registry) -> None:
        worker = Worker(setup, registry)
        job(name="sync", rate_limit=limits.sliding_window(1, 60))(lambda: None)

        worker.run("sync", **TIMES)

        assert [(event, list(fields)) for event, fields in worker.events] == [("job_done", ["elapsed"])]

    def test_off_leaves_failures(self, setup: Setup, registry: Registry) -> None:
        worker = Worker(setup, registry, Config(log_jobs="off"))
        job(name="sync")(lambda: None)
        job(name="broken")(raising(ValueError()))

        worker.run("sync")
        worker.run("broken")

        assert [(event, list(fields)) for event, fields in worker.events] == [
            ("job_failed", ["outcome", "detail", "elapsed", "error", "traceback"])
        ]
