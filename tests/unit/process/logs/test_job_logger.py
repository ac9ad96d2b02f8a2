"""Job loggers: a class of the application around every run, and what it cannot do wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from kiqcluster import Interrupted, job, job_logger
from kiqcluster.application.registry import Registry
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.outcome import Dead, Deferred, Discard, Done, Retry
from tests.unit.worker.run.test_execution import Worker

Proceed = Callable[[], None]


@pytest.fixture
def worker(setup: Setup, registry: Registry) -> Worker:
    return Worker(setup, registry)


@pytest.fixture
def said(registry: Registry) -> list[Any]:
    """Two jobs, one of which fails, and what was said."""
    said: list[Any] = []
    job(name="sync")(lambda number: said.append(f"run {number}"))

    @job(name="broken")
    def broken() -> None:
        raise ValueError("no")

    return said


def declare(said: list[Any], **methods: Any) -> type[Any]:
    """Declare a job logger that says what it is called with."""

    class Lines:
        def __init__(self) -> None:
            said.append("made")

        def prepare(self, item: dict[str, Any], proceed: Proceed) -> None:
            said.append(f"prepare {item['class']}")
            proceed()

        def call(self, item: dict[str, Any], queue: str, proceed: Proceed) -> None:
            said.append(f"start {item['jid'][:1]} {queue}")
            try:
                proceed()
            except ValueError:
                said.append("fail")
                raise
            said.append("done")

    for name, method in methods.items():
        setattr(Lines, name, method)
    return Lines


def test_it_is_around_every_run(worker: Worker, said: list[Any]) -> None:
    job_logger(declare(said))

    assert worker.run("sync", 1) == Done()
    assert isinstance(worker.run("broken"), Retry)

    assert said == [
        *("made", "prepare sync", "start a default", "run 1", "done"),
        *("prepare broken", "start a default", "fail"),
    ]


def test_it_is_outside_of_other_middleware_and_the_last_one_counts(
    setup: Setup, worker: Worker, said: list[Any]
) -> None:
    job_logger(declare(said, prepare=None))

    @setup.server_middleware.add
    def middleware(_run: Any, proceed: Any) -> Any:
        said.append("middleware")
        return Discard() if proceed() is None else None

    job_logger(declare(said))

    assert worker.run("sync", 1) == Discard()
    assert said == ["made", "prepare sync", "start a default", "middleware", "run 1", "done"]


def test_each_thread_has_its_own(worker: Worker, said: list[Any]) -> None:
    job_logger(declare(said))
    thread = threading.Thread(target=worker.run, args=["sync", 1])

    worker.run("sync", 2)
    thread.start()
    thread.join()

    assert said.count("made") == 2


def late(_self: object, _item: Any, _queue: str, proceed: Proceed) -> None:
    proceed()
    raise KeyError("of the logger")


def twice(_self: object, _item: Any, _queue: str, proceed: Proceed) -> None:
    proceed()
    proceed()


@pytest.mark.parametrize("call", [late, twice])
def test_its_own_errors_after_the_job_are_reported_and_the_job_is_done(
    worker: Worker, said: list[Any], call: Any
) -> None:
    job_logger(declare(said, call=call))

    assert worker.run("sync", 1) == Done()

    assert said.count("run 1") == 1
    ((_, context),) = worker.reported
    assert context == {"context": "job_logger"}


def swallow(_self: object, _item: Any, _queue: str, proceed: Proceed) -> None:
    try:
        proceed()
    except BaseException:
        return


def replace(_self: object, _item: Any, _queue: str, proceed: Proceed) -> None:
    try:
        proceed()
    except ValueError as error:
        raise KeyError("of the logger") from error


@pytest.mark.parametrize("call", [swallow, replace])
def test_an_error_of_the_job_stays_one(worker: Worker, said: list[Any], call: Any) -> None:
    job_logger(declare(said, call=call))

    assert isinstance(worker.run("broken", retry=0), Dead)

    assert "ValueError: no" in [fields.get("error") for _, fields in worker.events]


def test_a_job_that_gives_way_does_so(worker: Worker, said: list[Any]) -> None:
    @job(name="polite")
    def polite() -> None:
        raise Interrupted

    job_logger(declare(said, call=swallow))

    assert isinstance(worker.run("polite"), Deferred)


@pytest.mark.parametrize(
    "methods", [{"call": lambda *_: None}, {"prepare": lambda *_: None}, {"__init__": lambda _self: 1 / 0}]
)
def test_a_job_that_it_does_not_run_has_failed(worker: Worker, said: list[Any], methods: Any) -> None:
    job_logger(declare(said, **methods))

    assert isinstance(worker.run("sync", 1), Retry)
    assert "run 1" not in said
