"""run_twice: a job that may run twice passes, one that may not fails with the difference."""

from __future__ import annotations

import asyncio

import pytest

from kiqcluster import Job, job
from kiqcluster.process.job_context import current_job
from kiqcluster.process.runtime import Setup
from kiqcluster.testing import enqueued, fake, run_twice

pytestmark = pytest.mark.usefixtures("setup")


def test_a_job_that_sets_passes_and_one_that_adds_fails_with_the_difference() -> None:
    balance = {"alice": 0}

    @job
    def put(name: str, amount: int) -> None:
        balance[name] = amount

    @job
    def add(name: str, amount: int) -> None:
        balance[name] += amount

    run_twice(put, "alice", 5, state=lambda: balance)

    with pytest.raises(AssertionError) as caught:
        run_twice(add, "alice", 5, state=lambda: balance)
    assert str(caught.value) == (
        "add('alice', 5) is not idempotent: its second run has changed the state\n"
        "--- after the first run\n+++ after the second run\n@@ -1 +1 @@\n-{'alice': 10}\n+{'alice': 15}"
    )


def test_both_runs_have_one_jid_and_arguments_of_their_own() -> None:
    seen = []

    class Look(Job, queue="low"):
        def perform(self, value: list) -> None:
            seen.append((current_job().jid, list(value), current_job().queue))
            value.append("changed")

    run_twice(Look, [1], state=lambda: None)

    assert seen[0] == seen[1]
    assert seen[0][1:] == ([1], "low")


def test_a_test_that_is_a_coroutine_runs_jobs_that_have_a_loop_of_their_own() -> None:
    rows = {}

    @job
    def save(key: str) -> None:
        async def write() -> None:
            rows[key] = 1

        asyncio.run(write())

    async def test() -> None:
        run_twice(save, "a", state=lambda: rows)

    asyncio.run(test())

    assert rows == {"a": 1}


def test_a_job_that_pushes_a_job_each_time_is_found_out() -> None:
    @job
    def mail(user_id: int) -> None: ...

    @job
    def sign_up(user_id: int) -> None:
        mail.perform_async(user_id)

    with fake():
        run_twice(sign_up, 7, state=lambda: None)
        with pytest.raises(AssertionError, match="sign_up"):
            run_twice(sign_up, 7, state=enqueued)


def test_an_error_is_raised_and_says_in_which_run_it_was() -> None:
    rows = set()

    @job
    def insert(key: int) -> None:
        if key in rows:
            raise KeyError("duplicate key")
        rows.add(key)

    with pytest.raises(KeyError, match="duplicate key") as caught:
        run_twice(insert, 1, state=lambda: rows)

    assert caught.value.__notes__ == ["raised by the second run of insert(1)"]


def test_options_of_a_push_and_middleware_hold(setup: Setup) -> None:
    seen = []

    @job
    def look() -> None:
        seen.append(current_job().payload["tenant"])

    def middleware(push, proceed):
        push.payload["tenant"] = push.queue
        return proceed()

    setup.client_middleware.add(middleware)
    run_twice(look.set(queue="low"), state=lambda: None)

    assert seen == ["low", "low"]


def test_a_push_that_middleware_stops_proves_nothing(setup: Setup) -> None:
    @job
    def never() -> None: ...

    setup.client_middleware.add(lambda push, proceed: None)

    with pytest.raises(AssertionError, match="client middleware has stopped it"):
        run_twice(never, state=lambda: None)


def test_what_does_not_compare_by_value_is_said_to() -> None:
    class Opaque:
        def __repr__(self) -> str:
            return "opaque"

    @job
    def nothing() -> None: ...

    with pytest.raises(AssertionError, match="do their types compare by value"):
        run_twice(nothing, state=Opaque)


def test_a_long_difference_is_cut() -> None:
    rows: list[int] = []

    @job
    def extend() -> None:
        rows.extend(range(1_000))

    with pytest.raises(AssertionError, match=r"… and \d+ lines more"):
        run_twice(extend, state=lambda: rows)
