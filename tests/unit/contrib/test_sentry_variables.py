"""Sentry: events that have a stack, and none of the variables that hold the payload or a secret."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.integrations.logging import EventHandler
from sentry_sdk.scope import global_event_processors

from kiqcluster import Client, job
from kiqcluster.application.registry import Registry
from kiqcluster.contrib import statsd
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.process.metrics import JobMetrics
from kiqcluster.process.runtime import Push, Runtime, Setup
from kiqcluster.sidekiq import ruby_json
from kiqcluster.store.engine.units import Unit
from kiqcluster.testing import fake
from kiqcluster.worker.run.execution import Execution
from kiqcluster.worker.run.job_run import JobRun
from tests.kit import ManualClock
from tests.sentry import reporting

pytestmark = pytest.mark.usefixtures("setup")

SECRET = "4711-of-ann"
Perform = Callable[..., None]


class Broken:
    """A client of StatsD that raises."""

    def incr(self, name: str) -> None:
        raise OSError(f"no route for {name}")

    def timing(self, name: str, _milliseconds: float) -> None:
        raise OSError(f"no route for {name}")


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """A logger whose errors are events."""
    logger, handler = logging.getLogger("shop"), EventHandler()
    logger.addHandler(handler)
    yield logger
    logger.removeHandler(handler)


@pytest.fixture
def perform(setup: Setup, registry: Registry) -> Perform:
    """Execute a job as a processor thread does."""
    runtime = Runtime(Config(), setup.current_store(), setup, Events(), ManualClock())
    execution = Execution(runtime, registry, JobMetrics(1, list), threading.Event())

    def perform(name: str, *, encrypt: bool) -> None:
        payload = {"class": name, "args": [SECRET], "jid": "a" * 24, "queue": "mailers", "retry": True}
        keys = {"encrypt": True} if encrypt else {}
        execution.execute(JobRun(Unit("mailers", ruby_json.encode({**payload, **keys}), "token", "me"), 0.0))

    return perform


@pytest.fixture(autouse=True)
def jobs(registry: Registry, logger: logging.Logger) -> None:
    @job(name="logs")
    def logs(own: str) -> None:
        logger.error("on purpose", stack_info=True)

    @job(name="tells")
    def tells(own: str) -> None:
        sentry_sdk.capture_message("on purpose")

    @job(name="tells_in_thread")
    def tells_in_thread(own: str) -> None:
        scope = sentry_sdk.get_isolation_scope()

        def tell(own: str) -> None:
            with sentry_sdk.scope.use_isolation_scope(scope):
                sentry_sdk.capture_message("on purpose")

        thread = threading.Thread(target=tell, args=(own,))
        thread.start()
        thread.join()

    @job(name="fails")
    def fails(own: str) -> None:
        raise ZeroDivisionError


def frames(event: Any) -> list[Any]:
    parts = [part for key in ("exception", "threads") for part in event.get(key, {}).get("values", ())]
    return [frame for part in parts for frame in part.get("stacktrace", {}).get("frames", ())]


def check(event: Any, *, encrypt: bool) -> None:
    """Check that only frames of the application have variables, and none if the job has a secret."""
    with_variables = {str(frame["module"]) for frame in frames(event) if "vars" in frame}
    assert [module for module in with_variables if module.startswith("kiqcluster")] == []
    if encrypt:
        assert with_variables == set()
        assert SECRET not in json.dumps(event)


@pytest.mark.parametrize("encrypt", [False, True], ids=["plain", "encrypted"])
class TestJobs:
    def test_of_a_stack_in_the_log(self, perform: Perform, encrypt: bool) -> None:
        with reporting() as received:
            perform("logs", encrypt=encrypt)

        event = received.one("event")
        assert any(frame["module"] == __name__ for frame in frames(event))
        check(event, encrypt=encrypt)

    @pytest.mark.parametrize("name", ["tells", "tells_in_thread"])
    def test_of_the_stack_of_a_message(self, perform: Perform, encrypt: bool, name: str) -> None:
        with reporting(attach_stacktrace=True) as received:
            perform(name, encrypt=encrypt)

        check(received.one("event"), encrypt=encrypt)

    def test_of_an_error_in_middleware_around_ours(self, perform: Perform, encrypt: bool) -> None:
        with reporting() as received:
            statsd.instrument(Broken())
            perform("fails", encrypt=encrypt)

        contexts = [event["tags"]["kiqcluster.context"] for event in received.of("event")]
        assert sorted(contexts) == ["job", "statsd", "statsd"]
        chained = [each["type"] for event in received.of("event") for each in event["exception"]["values"]]
        assert chained.count("ZeroDivisionError") == 2  # its frames are in the event of statsd too
        for event in received.of("event"):
            check(event, encrypt=encrypt)


class TestOthers:
    def test_of_an_error_of_a_service(self, setup: Setup) -> None:
        with reporting() as received:
            try:
                ruby_json.decode(f'["{SECRET}"'.encode())
            except ruby_json.Undecodable as error:
                setup.notify_error_handlers(error, {"context": "poller"})

        event = received.one("event")
        assert any(frame["module"].startswith("kiqcluster.") for frame in frames(event))
        check(event, encrypt=False)

    def test_of_a_message_in_client_middleware(self, setup: Setup) -> None:
        def tell(push: Push, proceed: Callable[[], Push | None]) -> Push | None:
            sentry_sdk.capture_message("on purpose")
            return proceed()

        setup.client_middleware.prepend(tell)
        with reporting(attach_stacktrace=True) as received, fake():
            Client().push({"class": "logs", "args": [SECRET]})

        check(received.one("event"), encrypt=True)

    def test_a_message_of_the_application_keeps_its_stack(self) -> None:
        with reporting(attach_stacktrace=True) as received:
            own = SECRET
            sentry_sdk.capture_message("on purpose")

        assert own in json.dumps(received.one("event"))

    def test_after_uninstrument_events_are_as_they_were(self) -> None:
        before = list(global_event_processors)
        with reporting():
            assert len(global_event_processors) == len(before) + 1
        assert global_event_processors == before
