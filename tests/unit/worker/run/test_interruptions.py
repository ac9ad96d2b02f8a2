"""Interruptions: which hook is asked, and limits that are none."""

from __future__ import annotations

from typing import Any

import pytest

from kiqcluster import DISCARD, Job, job
from kiqcluster.application.registry import Registry
from kiqcluster.errors import JobDefinitionError, UsageError
from kiqcluster.process.config import Config
from kiqcluster.process.config_checks import check
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.outcome import Dead, Discard, Done, Dropped, Interrupted
from kiqcluster.sidekiq.ruby_json import encode
from kiqcluster.store.engine.units import Unit
from kiqcluster.worker.fetch.in_flight import InFlight
from kiqcluster.worker.run.job_run import JobRun
from tests.unit.worker.run.test_execution import Worker


@pytest.fixture
def worker(setup: Setup, registry: Registry) -> Worker:
    return Worker(setup, registry)


@pytest.fixture
def asked() -> list[Any]:
    return []


def a_run(deaths: int = 0, **keys: Any) -> JobRun:
    raw = encode({"class": "long", "args": [], "jid": "a" * 24, "retry": True, **keys})
    return JobRun(Unit("default", raw, "token", "me", deaths=deaths), 0.0)


def declare(asked: list[Any], answer: Any = None, **options: Any) -> None:
    def exhausted(payload: Any, error: Exception) -> Any:
        asked.append(("interruptions", payload["interrupted_count"], str(error)))
        return answer

    options.setdefault("retries_exhausted", lambda *_: asked.append("retries"))
    job(name="long", interruptions_exhausted=exhausted, **options)(lambda: None)


def test_deaths_too_many_ask_it_in_place_of_the_other(worker: Worker, asked: list[Any]) -> None:
    declare(asked)

    outcome = worker.execution.execute(a_run(deaths=3))

    assert isinstance(outcome, Dead)
    ((which, count, reason),) = asked
    assert (which, count) == ("interruptions", 3)
    assert "3 processes died while they ran this job" in reason
    assert len(worker.told_of_deaths) == 1


@pytest.mark.parametrize("where", ["a hook", "a death handler"])
def test_deaths_too_many_are_logged_before_code_runs_that_may_kill_this_process_too(worker: Worker, where: str) -> None:
    logged: list[list[str]] = []

    def note(*_: object) -> None:
        logged.append([name for name, _ in worker.events])

    hooks = {"retries_exhausted": note} if where == "a hook" else {}
    job(name="long", **hooks)(lambda: None)
    if where == "a death handler":
        worker.setup.death_handler(note)

    worker.execution.execute(a_run(deaths=3))

    assert logged == [["job_failed"]]
    assert [name for name, _ in worker.events] == ["job_failed"], "once"


def test_forced_stops_too_many_ask_it_as_well(worker: Worker, asked: list[Any]) -> None:
    declare(asked, max_retries_after_interruption=2)

    assert isinstance(worker.execution.interrupt(a_run(interrupted_count=0)), Interrupted)
    assert asked == []
    assert isinstance(worker.execution.interrupt(a_run(interrupted_count=1)), Dead)
    assert [each[:2] for each in asked] == [("interruptions", 2)]


def test_it_may_discard_the_job(worker: Worker, asked: list[Any]) -> None:
    declare(asked, DISCARD)

    assert isinstance(worker.execution.execute(a_run(deaths=3)), Discard)


def test_a_job_without_it_is_asked_the_other(worker: Worker, asked: list[Any]) -> None:
    job(name="long", retries_exhausted=lambda *_: asked.append("retries"))(lambda: None)

    worker.execution.execute(a_run(deaths=3))

    assert asked == ["retries"]


def test_a_failure_asks_only_the_other(worker: Worker, asked: list[Any]) -> None:
    def fail() -> None:
        raise ValueError("on purpose")

    job(
        name="long",
        interruptions_exhausted=lambda *_: asked.append("interruptions"),
        retries_exhausted=lambda *_: asked.append("retries"),
    )(fail)

    worker.execution.execute(a_run(retry=0))

    assert asked == ["retries"]


def test_a_limit_of_minus_one_is_none(worker: Worker, asked: list[Any]) -> None:
    declare(asked, max_retries_after_interruption=-1)

    assert isinstance(worker.execution.execute(a_run(deaths=1_000)), Done)  # it has run
    assert isinstance(worker.execution.interrupt(a_run(interrupted_count=1_000)), Interrupted)
    assert asked == []


def test_the_setting_may_be_minus_one_and_nothing_else_below_one() -> None:
    check(Config(max_retries_after_interruption=-1))
    for value in (0, -2):
        with pytest.raises(UsageError, match="at least 1, or -1"):
            check(Config(max_retries_after_interruption=value))


def test_without_a_limit_suspects_need_not_start_apart_from_all_others() -> None:
    assert InFlight(-1).most_deaths([], 1_000.0) > 1_000


@pytest.mark.parametrize("value", [-2, 1.5, "3"])
def test_what_is_no_limit_is_refused(value: Any) -> None:
    with pytest.raises(JobDefinitionError, match="max_retries_after_interruption"):
        job(name="long", max_retries_after_interruption=value)(lambda: None)


def test_a_hook_with_a_typo_is_refused() -> None:
    with pytest.raises(JobDefinitionError, match="the hook is 'interruptions_exhausted'"):

        class Long(Job):
            def perform(self) -> None: ...

            def sidekiq_interruptions_exhausted(self) -> None: ...


def test_a_job_that_was_cancelled_and_fails_is_dropped_also_if_its_process_must_go_while_handlers_are_told(
    worker: Worker,
) -> None:
    run, outcomes = a_run(), list[object]()

    @job(name="long")
    def long() -> None:
        assert run.context is not None
        run.context.cancelled_by = "an operator"
        raise ValueError("on purpose")

    worker.setup.error_handler(lambda *_: outcomes.append(worker.execution.interrupt(run)))

    outcomes.append(worker.execution.execute(run))

    assert [type(each) for each in outcomes] == [Dropped, Dropped]
