"""RetryError: a retry that no error handler is told of."""

from __future__ import annotations

from typing import Any

import pytest

from kiqcluster import RetryError, job
from kiqcluster.application.registry import Registry
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.outcome import Dead, Discard, Outcome, Retry
from kiqcluster.testing import fake
from tests.unit.worker.run.test_execution import Worker, entry


class NotReady(RetryError):
    pass


@pytest.fixture
def worker(setup: Setup, registry: Registry) -> Worker:
    return Worker(setup, registry)


@pytest.fixture
def early(registry: Registry) -> Any:
    @job
    def early() -> None:
        raise NotReady("later")

    return early


def test_a_retry_error_is_retried_and_no_error_handler_is_told(worker: Worker, early: Any) -> None:
    outcome = worker.run("early")

    payload = entry(outcome)
    assert isinstance(outcome, Retry)
    assert (payload["error_message"], payload["retry_count"]) == ("later", 0)
    assert worker.reported == []
    assert worker.sample("failed_total", "early") == 1
    ((_, fields),) = [each for each in worker.events if each[0] == "job_failed"]
    assert ("NotReady: later" in fields["error"], fields["traceback"]) == (True, "")


@pytest.mark.parametrize(("retry", "kind"), [(0, Dead), (False, Discard)])
def test_a_retry_error_that_is_not_retried_is_reported(
    worker: Worker, early: Any, retry: bool | int, kind: type[Outcome]
) -> None:
    assert type(worker.run("early", retry=retry)) is kind

    ((error, context),) = worker.reported
    assert (type(error), context["context"]) == (NotReady, "job")
    assert [type(error) for _, error in worker.told_of_deaths] == [NotReady]


def test_another_error_is_reported_as_ever(worker: Worker) -> None:
    def fails() -> None:
        raise KeyError("no") from NotReady("later")

    job(fails)

    assert isinstance(worker.run("fails"), Retry)
    assert [type(error) for error, _ in worker.reported] == [KeyError]


def test_a_test_that_drains_gets_the_error_itself(early: Any, setup: Setup) -> None:
    with fake() as jobs:
        early.perform_async()

        with pytest.raises(NotReady):
            jobs.drain()

        assert [type(each.error) for each in jobs.performed()] == [NotReady]
