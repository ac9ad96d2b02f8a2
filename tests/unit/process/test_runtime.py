"""The set-up of an application: handlers that fail, hooks that fail, settings."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from kiqcluster.errors import ApplicationError, UsageError
from kiqcluster.process.config import Config
from kiqcluster.process.config_sources import with_configured
from kiqcluster.process.events import Events
from kiqcluster.process.job_context import JobContext, current_job
from kiqcluster.process.runtime import Push, Run, Runtime, Setup, current_setup, using_setup
from kiqcluster.store import Store


@pytest.fixture
def runtime(setup: Setup) -> Runtime:
    """A runtime on the test's set-up."""
    return Runtime(setup.current_config(), setup.current_store(), setup, Events())


def fail(*_: object) -> None:
    raise ZeroDivisionError("on purpose")


class TestHandlers:
    def test_an_error_handler_that_fails_does_not_silence_the_next(self, setup: Setup) -> None:
        reports: list[tuple[Exception, dict[str, Any]]] = []
        setup.error_handler(fail)
        setup.error_handler(lambda error, context: reports.append((error, context)))
        error = ValueError("x")

        setup.notify_error_handlers(error, {"context": "job"})

        assert reports == [(error, {"context": "job"})]

    def test_a_death_handler_that_fails_is_reported_and_does_not_silence_the_next(self, setup: Setup) -> None:
        reported: list[str] = []
        deaths: list[Any] = []
        setup.error_handler(lambda error, context: reported.append(f"{context['context']}: {error}"))
        setup.death_handler(fail)
        setup.death_handler(lambda payload, error: deaths.append((payload, error)))
        error = ValueError("x")

        setup.notify_death_handlers({"class": "X"}, error)

        assert deaths == [({"class": "X"}, error)]
        assert reported == ["death handler: on purpose"]

    def test_registering_a_handler_leaves_the_function_as_it_is(self, setup: Setup) -> None:
        assert setup.error_handler(fail) is fail
        assert setup.death_handler(fail) is fail

    @pytest.mark.parametrize("wrong", [lambda error: None, lambda: None, "report"])
    def test_a_handler_that_cannot_be_called_is_refused(self, setup: Setup, wrong: Any) -> None:
        with pytest.raises(UsageError, match="an error handler"):
            setup.error_handler(wrong)
        with pytest.raises(UsageError, match="a death handler"):
            setup.death_handler(wrong)

        assert (setup.error_handlers, setup.death_handlers) == ([], [])


class TestFire:
    @pytest.mark.parametrize("event", ["ready", "quiet", "shutdown", "exit", "heartbeat"])
    def test_a_hook_that_fails_is_reported_and_the_next_one_runs(
        self, setup: Setup, runtime: Runtime, event: str
    ) -> None:
        ran: list[str] = []
        setup.error_handler(lambda error, context: ran.append(f"reported {context['context']}"))
        for hook in (lambda: ran.append("one"), fail, lambda: ran.append("two")):
            setup.hooks.on(event)(hook)

        runtime.run_hooks(event)

        assert sorted(ran) == ["one", f"reported {event}", "two"]

    def test_a_startup_hook_that_fails_keeps_the_worker_from_starting(self, setup: Setup, runtime: Runtime) -> None:
        setup.hooks.on("startup")(fail)

        with pytest.raises(ApplicationError, match="does not start"):
            runtime.run_hooks("startup")


class TestConfigure:
    @pytest.fixture(autouse=True)
    def no_other_source(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.chdir(tmp_path)
        for variable in [name for name in os.environ if name.startswith("KIQ_") or name == "REDIS_URL"]:
            monkeypatch.delenv(variable)

    def test_settings_hold_where_no_other_source_says_otherwise(self) -> None:
        setup = Setup()

        setup.configure(max_retries=3)
        setup.configure(strict_args="warn")

        assert (setup.current_config().max_retries, setup.current_config().strict_args) == (3, "warn")

    @pytest.mark.parametrize("settings", [{"max_retires": 3}, {"max_retries": -1}, {"redis": "http://x"}])
    def test_what_cannot_work_is_refused_and_changes_nothing(self, settings: dict[str, Any]) -> None:
        setup = Setup()

        with pytest.raises(UsageError):
            setup.configure(**settings)

        assert setup.settings == {}
        assert setup.current_config().max_retries == Config.max_retries

    def test_a_shard_of_the_environment_may_be_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("KIQ_SHARDS", '{"eu": "redis://127.0.0.1:1/1"}')
        setup = Setup()

        setup.configure(routing=[["*", "far", "eu"]])

        assert [rule.shard for rule in setup.current_config().routing] == ["eu"]

    def test_a_shard_that_no_source_has_is_refused_once_all_are_read(self) -> None:
        setup = Setup()
        setup.configure(routing=[["*", "far", "eu"]])

        with pytest.raises(UsageError, match="routing, rule 1: there is no shard 'eu'"):
            setup.current_config()
        with pytest.raises(UsageError, match="routing, rule 1: there is no shard 'eu'"):
            with_configured(Config(), setup.settings)  # as a worker does

    def test_a_new_address_opens_a_new_store(self) -> None:
        setup = Setup()
        before = setup.current_store()

        setup.configure(redis="redis://elsewhere/1")

        assert setup.current_store() is not before
        assert "elsewhere" in setup.current_store().address

    def test_the_store_is_opened_once(self) -> None:
        setup = Setup()

        assert setup.current_store() is setup.current_store()

    def test_a_worker_goes_by_its_own_configuration(self) -> None:
        setup = Setup(config=Config(max_retries=7), store=Store())

        setup.configure(max_retries=3)

        assert setup.current_config().max_retries == 7


def test_another_setup_is_in_force_within_its_block_only() -> None:
    before = current_setup()

    with pytest.raises(ZeroDivisionError), using_setup(Setup()) as inner:
        assert current_setup() is inner
        fail()

    assert current_setup() is before


def test_outside_of_jobs_there_is_no_current_job() -> None:
    assert current_job() is None


def test_a_push_and_a_run_show_queue_and_jid() -> None:
    assert Push({"queue": "mails"}).queue == "mails"
    assert Run({"jid": "a1"}, "mails", None, None).jid == "a1"
    assert Run({}, "mails", None, None).jid == ""


class TestProgress:
    @pytest.mark.parametrize(
        ("done", "total"),
        [(-1, None), (float("nan"), 1), (1, float("inf")), (1, -1), (True, None), ("1", 2), (None, 2), (10**400, None)],
    )
    def test_what_is_no_amount_is_refused(self, done: Any, total: Any) -> None:
        context = JobContext({"class": "A", "jid": "j", "args": []}, "default", "A", threading.Event())

        with pytest.raises(UsageError, match="numbers from 0 on"):
            context.progress(done, total)
        assert context.progressed is None

    def test_the_latest_call_counts(self) -> None:
        context = JobContext({"class": "A", "jid": "j", "args": []}, "default", "A", threading.Event())

        context.progress(1, 10)
        context.progress(2.5)

        assert context.progressed == (2.5, None)
