"""Cron: which ticks get a job, and which entries an application declares."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiqcluster.application.registry import Registry
from kiqcluster.errors import JobDefinitionError, UsageError
from kiqcluster.features.cron import MAX_STEPS, declared_entries, plan
from kiqcluster.job import Job, job
from kiqcluster.process.config import Config
from kiqcluster.sidekiq.cron_entries import CronEntry, CronRun, Missed, Step, parse_entries
from kiqcluster.sidekiq.schedules import Schedule

MINUTE = 60
NOON = 1_763_726_400  # 2025-11-21 12:00:00 UTC


def entry(missed: Missed = "once", grace: float = 60.0, text: str = "* * * * *") -> CronEntry:
    return CronEntry("e", Schedule.parse(text), "Job", missed=missed, grace=grace)


@pytest.mark.parametrize("missed", ["once", "skip", "all"])
def test_a_tick_in_time_gets_a_job(missed: Missed) -> None:
    assert plan(entry(missed), NOON, NOON + 0.05) == [Step(NOON, NOON, NOON + MINUTE)]


@pytest.mark.parametrize("missed", ["once", "skip", "all"])
def test_each_tick_within_the_grace_period_gets_a_job(missed: Missed) -> None:
    steps = plan(entry(missed, text="*/20 * * * * *"), NOON, NOON + 45)

    assert [(step.awaited, step.at, step.following) for step in steps] == [
        (NOON, NOON, NOON + 20),
        (NOON + 20, NOON + 20, NOON + 40),
        (NOON + 40, NOON + 40, NOON + 60),
    ]


def test_missed_ticks_get_one_job_together() -> None:
    now = NOON + 3_630.0

    assert plan(entry("once", grace=10.0), NOON, now) == [Step(NOON, NOON + 3_600, NOON + 3_660)]


def test_missed_ticks_get_none_of_their_own_where_a_tick_is_in_time() -> None:
    now = NOON + 3_605.0

    assert plan(entry("once", grace=10.0), NOON, now) == [Step(NOON, NOON + 3_600, NOON + 3_660)]
    assert plan(entry("skip", grace=10.0), NOON, now) == [Step(NOON, NOON + 3_600, NOON + 3_660)]


def test_missed_ticks_are_skipped() -> None:
    assert plan(entry("skip", grace=10.0), NOON, NOON + 3_630.0) == [Step(NOON, None, NOON + 3_660)]


def test_all_missed_ticks_get_a_job_some_at_a_time() -> None:
    first = plan(entry("all"), NOON, NOON + MINUTE * 250 + 1)
    second = plan(entry("all"), first[-1].following, NOON + MINUTE * 250 + 1)
    third = plan(entry("all"), second[-1].following, NOON + MINUTE * 250 + 1)

    assert [len(first), len(second), len(third)] == [MAX_STEPS, MAX_STEPS, 51]
    assert [step.at for step in first + second + third] == [NOON + MINUTE * n for n in range(251)]
    assert third[-1].following == NOON + MINUTE * 251


def test_a_daily_tick_that_was_missed_by_hours_runs_once() -> None:
    day = NOON - NOON % 86_400

    assert plan(entry("once", text="@daily"), day, NOON) == [Step(day, day, day + 86_400)]


class TestDeclared:
    def test_a_class_declares_an_entry_and_lands_in_cronjob_without_retries(self, registry: Registry) -> None:
        class CleanUpWorker(Job, cron="0 9 * * *", tz="Asia/Shanghai"):
            def perform(self, limit: int = 3) -> None: ...

        (found,) = declared_entries(Config(), registry, Path())

        assert found == CronEntry("CleanUpWorker", Schedule("0 9 * * *", "Asia/Shanghai"), "CleanUpWorker")
        assert CleanUpWorker.definition.queue == "cronjob:clean_up"
        assert CleanUpWorker.definition.options["retry"] == 0

    def test_what_it_declares_otherwise_goes_before(self, registry: Registry) -> None:
        @job(cron="@daily", queue="reports", retry=5)
        def report() -> None: ...

        assert registry.get("report") is not None
        assert (report.definition.queue, report.definition.options["retry"]) == ("reports", 5)

    def test_the_configuration_may_replace_it(self, registry: Registry, tmp_path: Path) -> None:
        @job(cron="@daily")
        def report() -> None: ...

        (tmp_path / "cron.yml").write_text("cleanup:\n  cron: '*/5 * * * *'\n  class: report\n")
        config = Config(cron=parse_entries({"report": {"schedule": "@hourly", "job": "report"}}), cron_file="cron.yml")

        found = declared_entries(config, registry, tmp_path)

        assert [(each.name, each.schedule.text) for each in found] == [
            ("report", "@hourly"),
            ("cleanup", "*/5 * * * *"),
        ]

    @pytest.mark.parametrize(
        ("table", "words"),
        [
            ({"job": "reprot"}, "did you mean report"),
            ({"job": "report", "args": [1]}, "args do not fit"),
        ],
    )
    def test_an_entry_that_nobody_could_run_is_refused(
        self, registry: Registry, table: dict[str, object], words: str
    ) -> None:
        @job
        def report() -> None: ...

        with pytest.raises(UsageError, match=words):
            declared_entries(Config(cron=parse_entries({"x": {"schedule": "@daily", **table}})), registry, Path())

    def test_a_job_of_another_application_needs_a_queue(self, registry: Registry) -> None:
        entries = parse_entries({"x": {"schedule": "@daily", "job": "RubyJob", "queue": "ruby"}})

        assert declared_entries(Config(cron=entries), registry, Path()) == list(entries)

    def test_an_entry_is_in_one_place(self, registry: Registry, tmp_path: Path) -> None:
        (tmp_path / "cron.toml").write_text('[x]\nschedule = "@daily"\njob = "J"\nqueue = "q"\n')
        entries = parse_entries({"x": {"schedule": "@daily", "job": "J", "queue": "q"}})

        with pytest.raises(UsageError, match=r"in cron\.toml; remove one"):
            declared_entries(Config(cron=entries, cron_file="cron.toml"), registry, tmp_path)

    @pytest.mark.parametrize("text", ["x: [", "- 5", "x: 5"])
    def test_a_broken_file_is_named(self, registry: Registry, tmp_path: Path, text: str) -> None:
        (tmp_path / "cron.yml").write_text(text)

        with pytest.raises(UsageError, match=r"cron_file .*cron\.yml"):
            declared_entries(Config(cron_file="cron.yml"), registry, tmp_path)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"cron": "61 * * * *"}, "bad minute"),
            ({"cron": "@daily", "tz": "Mars/Base"}, "not a time zone"),
            ({"tz": "Europe/Berlin"}, "tz has no effect without cron"),
        ],
    )
    def test_a_schedule_is_checked_at_import(self, registry: Registry, options: dict[str, str], words: str) -> None:
        with pytest.raises(JobDefinitionError, match=words):

            @job(**options)  # type: ignore[call-overload, untyped-decorator, unused-ignore]
            def report() -> None: ...

        assert list(registry) == []

    def test_a_job_with_arguments_is_refused_at_import(self, registry: Registry) -> None:
        with pytest.raises(JobDefinitionError, match="day has no default"):

            @job(cron="@daily")
            def report(day: str) -> None: ...

        assert list(registry) == []


class TestHistory:
    def test_a_run_survives_redis(self) -> None:
        run = CronRun("a", 5.0, 6.5)

        assert CronRun.read(run.encoded()) == run
        assert CronRun.read(run.encoded() + b"\nheld") == run._replace(refused_for="held")

    @pytest.mark.parametrize("raw", [None, b"", b"5", b"[]", b'{"jid":5}', b'{"jid":"a","tick":"x","at":1}'])
    def test_what_is_not_one_is_told_apart(self, raw: bytes | None) -> None:
        assert CronRun.read(raw) is None


def test_a_step_wider_than_its_field_is_refused(registry: Registry) -> None:
    (wide,) = parse_entries({"wide": {"schedule": "*/120 * * * *", "job": "Job", "queue": "q"}})

    with pytest.raises(UsageError, match=r"cron entry wide: .*has the step 120"):
        declared_entries(Config(require=("app",), cron=(wide,)), registry, Path())
    with pytest.raises(JobDefinitionError, match="the step 120"):

        @job(cron="*/120 * * * *")
        def report() -> None: ...
