"""Iterable jobs and their states in Redis: which can be read, and what a run does while Redis is away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kiqcluster import job
from kiqcluster.application.registry import Registry
from kiqcluster.errors import JobTimedOut, ReplyLost
from kiqcluster.features.iteration import Iteration
from kiqcluster.iterable import IterableJob, iteration_status, loop, sequence_enumerator
from kiqcluster.process.job_context import current_job
from kiqcluster.process.runtime import Setup, using_setup
from kiqcluster.sidekiq.outcome import Deferred, Done, Retry
from kiqcluster.store import Store
from tests.in_process_worker import Worker
from tests.kit import ManualClock, RedisServer


@pytest.fixture
def worker(store: Store, setup: Setup, registry: Registry) -> Worker:
    return Worker(store, setup, registry)


@pytest.fixture
def letters(worker: Worker) -> Any:
    class Letters(IterableJob, retry=3):
        def build_enumerator(self, word: str, *, cursor: int | None) -> Iterator[tuple[str, int]]:
            return sequence_enumerator(word, cursor=cursor)

        def each_iteration(self, letter: str, word: str) -> None:
            worker.perform(letter)

    return Letters


def test_states_of_python_and_ruby_are_read_and_what_is_none_is_left_out(store: Store) -> None:
    store.call("HSET", "it-ruby", "ex", "2", "c", '["a",3]', "rt", "1.5", "cancelled", "1700000000")
    store.call("HSET", "it-broken", "ex", "2", "c", "{", "rt", "1.5")
    store.call("SET", "it-text", "x")

    assert iteration_status(["ruby", "broken", "text", "none"], store) == {"ruby": Iteration(2, ["a", 3], 1.5, True)}


def test_one_that_begins_while_redis_is_away_is_put_off_and_keeps_its_state(
    letters: Any, worker: Worker, registry: Registry, durable_server: RedisServer
) -> None:
    store = durable_server.store()
    with using_setup(Setup(store=store)) as setup:
        elsewhere = Worker(store, setup, registry)
        jid = letters.perform_async("abc")
        store.call("HSET", f"it-{jid}", "ex", "1", "c", "2", "rt", "1.5")
        unit = elsewhere.take()

        durable_server.kill()
        outcome = elsewhere.execute(unit)
        durable_server.start()

        assert isinstance(outcome, Deferred)
        assert worker.ran == []
        assert elsewhere.settle(unit, outcome) == 1
        assert iteration_status([jid], store) == {jid: Iteration(1, 2, 1.5)}
    store.close()


def test_a_redis_that_does_not_answer_does_not_hold_up_each_item(
    letters: Any, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, at = ManualClock(), list[tuple[Any, ...]]()

    def let_pass(seconds: float) -> None:
        clock.time += seconds

    def time_out(*_: object) -> str:
        at.append(worker.ran[-1])
        let_pass(2 * loop.SAVE_SECONDS)
        raise ReplyLost("no answer")

    monkeypatch.setattr(loop, "SystemClock", lambda: clock)
    monkeypatch.setattr(loop, "save_state", time_out)
    worker.during = lambda _: let_pass(loop.SAVE_SECONDS / 2.5)
    letters.perform_async("abcdefghi")

    assert isinstance(worker.run(), Done)
    assert at == [("c",), ("f",)]


def test_an_enumerator_of_the_application_may_have_a_total_of_its_own(worker: Worker) -> None:
    class Items:
        total = "many"

        def __iter__(self) -> Iterator[tuple[str, int]]:
            return iter([("a", -2), ("b", -1)])

    class Own(IterableJob):
        def build_enumerator(self, *, cursor: int | None) -> Items:
            return Items()

        def each_iteration(self, letter: str) -> None:
            worker.perform(letter)

    Own.perform_async()

    assert isinstance(worker.run(), Done)
    assert worker.ran == [("a",), ("b",)]


def test_it_fails_before_the_next_item_once_its_timeout_is_over_and_goes_on_there(
    letters: Any, worker: Worker, store: Store
) -> None:
    class Timed(letters, timeout=60):  # type: ignore[misc, call-arg]
        pass

    def let_the_timeout_pass(letter: str) -> None:
        running = current_job()
        assert running is not None
        assert running.time_limit is not None
        if letter == "b":
            running.time_limit.ends_at -= 61

    worker.during = let_the_timeout_pass
    jid = Timed.perform_async("abc")

    outcome = worker.run()

    assert isinstance(outcome, Retry)
    assert JobTimedOut.__name__.encode() in outcome.payload
    assert worker.ran == [("a",), ("b",)]
    assert iteration_status([jid], store)[jid].cursor == 2


@pytest.mark.parametrize("is_same", [True, False])
def test_one_that_is_called_inside_of_another_job_has_no_part_in_its_state(
    worker: Worker, store: Store, is_same: bool
) -> None:
    class Numbers(IterableJob):
        def build_enumerator(self, word: str, *, cursor: int | None) -> Iterator[tuple[int, int]]:
            return sequence_enumerator(range(3), cursor=cursor)

        def each_iteration(self, number: int, word: str) -> None:
            worker.perform(word, number)

    class Others(Numbers):
        pass

    inner = Numbers if is_same else Others

    def call_another(word: str, number: int) -> None:
        if (word, number) == ("outer", 1):
            inner.perform_inline("inline")
            inner().perform("called")
            raise ValueError(word)

    worker.during = call_another
    jid = Numbers.perform_async("outer")
    store.call("HSET", f"it-{jid}", "ex", "1", "c", "1", "rt", "1.5")

    assert isinstance(worker.run(), Retry)

    inside = [(word, number) for word in ("inline", "called") for number in range(3)]
    assert worker.ran == [("outer", 1), *inside]
    state = iteration_status([jid], store)[jid]
    assert (state.executions, state.cursor) == (2, 1)


def test_one_that_is_called_inside_of_a_plain_job_leaves_no_state(
    letters: Any, worker: Worker, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0)

    @job
    def outer() -> None:
        letters.perform_inline("abc")

    jid = outer.perform_async()
    store.call("HSET", f"it-{jid}", "ex", "1", "c", "2", "rt", "1.5")

    assert isinstance(worker.run(), Done)

    assert worker.ran == [("a",), ("b",), ("c",)]
    assert iteration_status([jid], store) == {jid: Iteration(1, 2, 1.5)}
