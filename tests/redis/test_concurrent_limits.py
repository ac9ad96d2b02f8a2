"""Concurrent limits: who has a place, when it comes back, and what a refused job becomes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from kiqcluster import current_job, job, limits
from kiqcluster.api import rate_limits
from kiqcluster.application.registry import Registry
from kiqcluster.errors import Interrupted, OverLimit, ReplyLost, UsageError
from kiqcluster.limits import ConcurrentLimit
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.outcome import Deferred, Done, Outcome
from kiqcluster.sidekiq.ruby_json import decode
from kiqcluster.store import Store
from kiqcluster.worker.run.job_run import JobRun
from tests.conformance.test_scripts import calls_of_scripts
from tests.in_process_worker import Worker
from tests.kit import wait_until

NAME, OTHER = "crm", "mail"
CRM = limits.concurrent(1, wait=0, delay=10, name=NAME)


@pytest.fixture
def worker(store: Store, setup: Setup, registry: Registry) -> Worker:
    return Worker(store, setup, registry)


@pytest.fixture
def other(store: Store, setup: Setup, registry: Registry) -> Worker:
    """Another process of the fleet."""
    return Worker(store, setup, registry, name="host:2:bbbbbbbbbbbb")


def running(store: Store, name: str = NAME) -> set[str]:
    return {member.decode() for member in store.call("SMEMBERS", store.keys.running(name))}


def seconds_put_off(store: Store, outcome: Outcome) -> float:
    assert isinstance(outcome, Deferred)
    assert decode(outcome.payload)["deferred_by"] == "rate_limit"
    return outcome.at - float(store.call("TIME")[0])


def somebody_takes_a_place(store: Store, worker: Worker) -> None:
    store.call("SADD", store.keys.running(NAME), f"{worker.name}/somebody")
    store.call("HSET", store.keys.inflight(worker.name), "somebody:default", "{}")


def is_all_free(store: Store) -> bool:
    return not store.call("KEYS", "kiq:held:*") and not store.call("KEYS", "kiq:rate:*:running")


ENTERED, REFUSED, FAILED = range(3)


def exit_code_of_a_fork(limit: ConcurrentLimit) -> int:
    """Return whether a process that is forked here may enter a block."""
    if (pid := os.fork()) == 0:
        code = FAILED
        try:
            with limit:
                code = ENTERED
        except UsageError:
            code = REFUSED
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class TestOption:
    @pytest.fixture
    def sync(self, registry: Registry, worker: Worker) -> Any:
        @job(name="Sync", rate_limit=limits.concurrent(1, delay=20))
        def sync(word: str) -> None:
            worker.perform(word)

        return sync

    def test_of_two_processes_one_runs_and_the_others_job_comes_back_later(
        self, worker: Worker, other: Worker, sync: Any, store: Store
    ) -> None:
        outcomes: list[Outcome] = []
        worker.during = lambda _: outcomes.append(other.run())
        sync.perform_bulk([["a"], ["b"], ["c"]])

        first = worker.run()
        worker.during = lambda _: None
        third = other.run()

        assert (type(first), type(third)) == (Done, Done)
        assert 19 <= seconds_put_off(store, outcomes[0]) <= 41
        assert store.call("ZCARD", "schedule") == 1
        assert is_all_free(store)

    def test_its_place_comes_back_with_the_unit_of_a_dead_process(
        self, worker: Worker, other: Worker, sync: Any, store: Store
    ) -> None:
        outcomes: list[Outcome] = []

        def die(_: str) -> None:
            assert running(store, "Sync") == {f"{worker.name}/{worker.member.padded_epoch}.0000000001.00001"}
            other.recover(worker.name)
            worker.during = lambda _: None
            outcomes.append(other.run())

        worker.during = die
        sync.perform_async("a")

        unit = worker.take()
        outcome = worker.execute(unit)

        assert isinstance(outcomes[0], Done), "it ran again, in the place that came back"
        assert worker.settle(unit, outcome) == 0
        assert is_all_free(store)

    def test_a_block_of_the_same_name_uses_the_place_of_the_option(
        self, worker: Worker, registry: Registry, store: Store
    ) -> None:
        @job(name="Both", rate_limit=CRM)
        def both() -> None:
            with CRM:
                pass
            assert len(running(store)) == 1, "the job has it to its end"

        both.perform_async()

        assert isinstance(worker.run(), Done)
        assert is_all_free(store)


class TestInsideOfAJob:
    """The job `block` runs the steps of a test within its block."""

    @pytest.fixture
    def block(self, registry: Registry, worker: Worker) -> Any:
        @job(name="block")
        def block(word: str) -> None:
            with CRM:
                worker.perform(word)

        return block

    def test_only_so_many_are_within_and_a_place_is_free_once_it_is_left(
        self, worker: Worker, other: Worker, registry: Registry, store: Store
    ) -> None:
        outcomes: list[Outcome] = []

        @job(name="outer")
        def outer() -> None:
            with CRM:
                outcomes.append(other.run("low"))
            assert is_all_free(store)
            outcomes.append(other.run("low"))

        @job(name="inner", queue="low")
        def inner() -> None:
            with CRM:
                pass

        outer.perform_async()
        inner.perform_bulk([[], []])

        assert isinstance(worker.run(), Done)
        assert 9 <= seconds_put_off(store, outcomes[0]) <= 21
        assert isinstance(outcomes[1], Done)
        assert is_all_free(store)

    def test_a_job_has_several_places_and_one_of_each_name(
        self, worker: Worker, registry: Registry, store: Store
    ) -> None:
        @job(name="several")
        def several() -> None:
            with CRM, limits.concurrent(2, name=OTHER):
                with CRM:
                    pass
                assert len(running(store)) == len(running(store, OTHER)) == 1
            assert is_all_free(store)

        several.perform_async()

        assert isinstance(worker.run(), Done)

    @pytest.mark.parametrize("is_first", [True, False])
    def test_a_process_that_the_job_forks_gets_no_place(
        self, worker: Worker, registry: Registry, store: Store, is_first: bool
    ) -> None:
        """The worker would not know of it, and its end would not give it back: also where the job has no place yet."""

        @job(name="forks")
        def forks() -> None:
            if not is_first:
                with CRM:
                    pass
            assert exit_code_of_a_fork(limits.concurrent(5, name=OTHER)) == REFUSED

        forks.perform_async()

        assert isinstance(worker.run(), Done)
        assert is_all_free(store)

    def test_a_process_that_the_job_forks_is_within_the_places_of_the_job(
        self, worker: Worker, block: Any, store: Store
    ) -> None:
        """Its further blocks take nothing, and their ends give nothing back."""

        def fork(_: str) -> None:
            assert exit_code_of_a_fork(CRM) == ENTERED
            assert len(running(store)) == 1

        worker.during = fork
        block.perform_async("a")

        assert isinstance(worker.run(), Done)
        assert is_all_free(store)

    def test_an_error_leaves_the_block_as_well(self, worker: Worker, block: Any, store: Store) -> None:
        def fail(_: str) -> None:
            raise OverLimit("another", 7.0)

        worker.during = fail
        block.perform_async("a")

        assert 6 <= seconds_put_off(store, worker.run()) <= 8
        assert is_all_free(store)

    def test_a_job_that_others_have_recovered_gets_no_place(
        self, worker: Worker, other: Worker, block: Any, store: Store
    ) -> None:
        raised: list[BaseException] = []

        def recovered(_: str) -> None:
            other.recover(worker.name)
            assert is_all_free(store)
            try:
                with limits.concurrent(5, name=OTHER):
                    pytest.fail("it got a place")
            except Interrupted as error:
                raised.append(error)
                raise

        worker.during = recovered
        block.perform_async("a")
        unit = worker.take()

        assert worker.settle(unit, worker.execute(unit)) == 0
        assert raised
        assert is_all_free(store)

    def test_the_end_of_a_frozen_process_block_takes_no_place_from_the_next_run(
        self, worker: Worker, other: Worker, block: Any, store: Store
    ) -> None:
        """It was frozen past its recovery; the job runs again elsewhere when it leaves its block."""
        again: list[Outcome] = []

        def recovered(_: str) -> None:
            other.recover(worker.name)
            worker.during = lambda _: again.append(Done()) if len(running(store)) == 1 else None
            assert isinstance(other.run(), Done)

        worker.during = recovered
        block.perform_async("a")
        unit = worker.take()

        outcome = worker.execute(unit)

        assert again
        assert worker.settle(unit, outcome) == 0
        assert is_all_free(store)

    def test_a_hard_stop_gives_the_place_back_with_the_unit(self, worker: Worker, block: Any, store: Store) -> None:
        """Also where the thread takes its place after the main thread has decided."""
        runs: list[JobRun] = []

        @job(name="late")
        def late() -> None:
            outcome = worker.execution.interrupt(runs[0])
            assert runs[0].unit.holds, "a settle that is made now releases what the thread takes meanwhile"
            with CRM:
                assert worker.settle(runs[0].unit, outcome) == 1
                assert is_all_free(store)

        late.perform_async()
        runs.append(JobRun(worker.take(), 0.0))

        assert worker.settle(runs[0].unit, worker.execution.execute(runs[0])) == 0
        assert is_all_free(store)
        assert store.call("LLEN", store.keys.queue("default")) == 1

    def test_where_redis_does_not_answer_the_end_of_the_job_gives_the_place_back(
        self, worker: Worker, block: Any, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def lose(*_: Any) -> bool:
            raise ReplyLost("gone")

        monkeypatch.setattr(limits, "leave_place", lose)
        block.perform_async("a")

        assert isinstance(worker.run(), Done)
        assert is_all_free(store)


class TestWaiting:
    LIMIT = limits.concurrent(1, wait=30, delay=10, name=NAME)

    def run_beside(self, worker: Worker, registry: Registry, store: Store, after: Callable[[], object]) -> Outcome:
        """Run a job that waits for a place, and do something once it waits."""

        @job(name="patient")
        def patient() -> None:
            with self.LIMIT:
                assert len(running(store)) == 1

        somebody_takes_a_place(store, worker)
        patient.perform_async()
        outcomes: list[Outcome] = []
        thread = threading.Thread(target=lambda: outcomes.append(worker.run()))
        before = calls_of_scripts(store)
        thread.start()
        wait_until(lambda: calls_of_scripts(store) > before + 3, "it to wait")  # the reserve, and three looks
        after()
        thread.join(30)
        return outcomes[0]

    def test_it_goes_on_when_a_place_is_free(self, worker: Worker, registry: Registry, store: Store) -> None:
        free = lambda: store.call("DEL", store.keys.running(NAME))  # noqa: E731

        assert isinstance(self.run_beside(worker, registry, store, free), Done)

    def test_it_stops_waiting_when_the_process_stops(self, worker: Worker, registry: Registry, store: Store) -> None:
        outcome = self.run_beside(worker, registry, store, worker.execution._stopping.set)

        assert 9 <= seconds_put_off(store, outcome) <= 21

    def test_it_looks_ever_less_often_and_gives_up_in_time(
        self, worker: Worker, registry: Registry, store: Store
    ) -> None:
        @job(name="patient")
        def patient() -> None:
            with limits.concurrent(1, wait=0.5, name=NAME):
                pytest.fail("there is no place")

        somebody_takes_a_place(store, worker)
        patient.perform_async()
        before = calls_of_scripts(store)

        outcome = worker.run()

        assert isinstance(outcome, Deferred)
        assert 5 <= calls_of_scripts(store) - before <= 9, "reserve, settle, and a look after 0, 50, 100, 200 ms, …"


def test_a_place_of_a_process_that_is_gone_is_found_when_all_are_taken(
    worker: Worker, registry: Registry, store: Store
) -> None:
    @job(name="Sync", rate_limit=limits.concurrent(2))
    def sync() -> None: ...

    store.call("SADD", store.keys.running("Sync"), "host:9:gone/1", "host:8:gone/1")
    sync.perform_async()

    assert isinstance(worker.run(), Done)
    assert len(running(store, "Sync")) == 1


@pytest.mark.parametrize("spoil", [("DEL",), ("SET", "of another type")])
def test_a_place_that_its_process_no_longer_knows_of_is_found_when_its_job_has_ended(
    worker: Worker, other: Worker, registry: Registry, store: Store, spoil: tuple[str, ...]
) -> None:
    @job(name="Sync", rate_limit=limits.concurrent(1))
    def sync() -> None:
        worker.perform()

    refused: list[Outcome] = []

    def lose_and_ask(*_: Any) -> None:
        command, *value = spoil
        store.call("DEL", store.keys.held(worker.name))
        store.call(command, store.keys.held(worker.name), *value)
        worker.during = lambda *_: None
        refused.append(other.run())

    worker.during = lose_and_ask
    for _ in range(3):
        sync.perform_async()

    worker.run()
    store.call("DEL", store.keys.held(worker.name))

    assert isinstance(refused[0], Deferred), "the job that has the place still ran"
    assert isinstance(other.run(), Done)
    assert is_all_free(store)


def test_outside_of_a_job_it_is_refused(setup: Setup, store: Store) -> None:
    assert current_job() is None
    with pytest.raises(UsageError, match="for jobs that a worker runs"), CRM:
        pytest.fail("it was allowed")
    with pytest.raises(UsageError, match="needs a name"), limits.concurrent(1):
        pytest.fail("it was allowed")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: limits.concurrent(0), "0 is not a number of starts"),
        (lambda: limits.concurrent(1, delay=0), "0 does not fit"),
        (lambda: limits.concurrent(1, wait=-1), "wait=-1 does not fit"),
        (lambda: limits.concurrent(1, wait=True), "wait=True does not fit"),
        (lambda: limits.concurrent(1, name="crm:running"), "is not a valid name"),
        (lambda: limits.sliding_window(1, 1, name="crm:starts"), "is not a valid name"),
    ],
)
def test_what_is_not_a_limit_is_refused(make: Callable[[], ConcurrentLimit], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def test_the_api_tells_who_has_the_places(worker: Worker, registry: Registry, store: Store) -> None:
    seen = []

    @job(name="Sync", rate_limit=limits.concurrent(2))
    def sync(word: str) -> None:
        seen.extend(rate_limits(store=store))

    sync.perform_async("a")
    worker.run()

    (status,), (later,) = seen, rate_limits(store=store)
    assert (status.name, status.kind, status.largest, status.used, status.free_in) == ("Sync", "concurrent", 2, 1, 0.0)
    ((holder),) = status.holders
    assert (holder.identity, holder.job.args) == (worker.name, ["a"])
    assert (later.used, later.holders) == (0, ())
