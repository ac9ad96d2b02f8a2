"""Jobs with guarantees on a queue that Ruby serves: it knows none of them, and runs what it is given."""

from __future__ import annotations

from typing import Any

import pytest

from kiqcluster import Client, Job, RetryError, application_context, limits
from kiqcluster.api import StrikeSet, concurrency_limits, rate_limits
from kiqcluster.limited_capacity import LimitedCapacityJob
from kiqcluster.policies import Drop
from tests.kit import wait_until

pytestmark = [pytest.mark.ruby, pytest.mark.usefixtures("setup")]

OF_PYTHON: dict[str, dict[str, Any]] = {  # here none of these would run, or only one of two
    "concurrency limit": {"concurrency_limit": -1},
    "rate limit": {"rate_limit": limits.sliding_window(1, 3_600)},
    "concurrent": {"rate_limit": limits.concurrent(1)},
    "policy": {"policy": lambda _run: Drop()},
    "version": {"version": 9},
    "timeouts": {"timeout": 0.001, "timeout_hard": 0.002},
    "interruptions": {"max_retries_after_interruption": 0},
    "attributes": {
        "urgency": "throttled",
        "feature_category": "mail",
        "resource_boundary": "memory",
        "weight": 9,
        "tags": ["heavy"],
        "idempotent": True,
        "external_dependencies": True,
        "data_consistency": "sticky",
    },
    "job log": {"loggable_arguments": [0]},
}
ON_THE_WIRE = {"version", "tags"}


@pytest.mark.parametrize("guarantee", OF_PYTHON)
def test_ruby_runs_jobs_whatever_their_class_guarantees_here(stage, ruby_server, guarantee):
    options = OF_PYTHON[guarantee]

    class Guarded(Job, name="Echo", queue="ruby", **options):
        def perform(self, *args: Any) -> None: ...

    jids = [Guarded.perform_async(number) for number in range(2)]
    stage.wait_ran(jids)

    payload = stage.echo_of(jids[0])["payload"]
    assert options.keys() & payload.keys() == options.keys() & ON_THE_WIRE
    assert (concurrency_limits(), rate_limits(), stage.store.call("EXISTS", "kiq:dropped")) == ([], [], 0)


def test_ruby_runs_jobs_that_are_routed_to_its_queue_and_that_have_a_context(stage, ruby_server, setup):
    setup.configure(routing=[["tags=heavy", "ruby"], ["*", ""]])

    class Routed(Job, name="Echo", queue="nobodys", tags=["heavy"]):
        def perform(self, *args: Any) -> None: ...

    with application_context(correlation_id="r-1", user="ann"):
        jid = Routed.perform_async(7)

    payload = stage.echo_of(jid)["payload"]
    assert (payload["queue"], payload["tags"]) == ("ruby", ["heavy"])
    assert (payload["correlation_id"], payload["meta.user"]) == ("r-1", "ann")
    assert stage.store.call("EXISTS", "queue:nobodys") == 0


def test_ruby_runs_jobs_that_are_struck_that_have_expired_or_were_interrupted_too_often(stage, ruby_server):
    strikes = StrikeSet()
    strikes.add("drop", 60, name="Echo")
    kinds: list[dict[str, Any]] = [{}, {"expires_in": 1, "expiry": 1.5}, {"interrupted_count": 99}]

    jids = [Client().push({"class": "Echo", "args": [7], "queue": "ruby", **each}) for each in kinds]

    stage.wait_ran(jids)
    assert [count for _, count in strikes.list()] == [0]
    assert stage.store.call("EXISTS", "kiq:dropped", "dead") == 0


def test_ruby_cannot_run_jobs_of_limited_capacity(stage, ruby_server):
    class Drain(LimitedCapacityJob, queue="ruby"):
        def max_running_jobs(self) -> int:
            return 1

        def remaining_work_count(self) -> int:
            return 5

        def perform_work(self) -> None: ...

    Drain.perform_with_capacity()

    (buried,) = wait_until(lambda: stage.dead(), "it to be buried")
    assert (buried["class"], buried["error_class"]) == ("Drain", "NameError")


def test_ruby_takes_a_retry_error_for_an_error_like_any_other(stage, ruby_server):
    """One that failed in Python, and whose retry Ruby runs."""
    error = f"{RetryError.__module__}.{RetryError.__qualname__}"
    failed = {"retry_count": 0, "error_class": error, "error_message": "not yet", "failed_at": 1.5}

    jid = Client().push({"class": "Echo", "args": [7], "queue": "ruby", "retry": 3, **failed})

    assert stage.echo_of(jid)["payload"]["error_class"] == error
