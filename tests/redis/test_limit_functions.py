"""Functions of the application that tell limits and keys: what counts where they return nothing, or fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kiqcluster import job
from kiqcluster.application.registry import Registry
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.outcome import Done, Outcome, Parked
from kiqcluster.store import Store
from tests.in_process_worker import Worker


def fail(*_: object) -> Any:
    raise SystemExit("on purpose")


class Lying(int):
    __class__ = property(fail)  # type: ignore[assignment]
    __str__ = __repr__ = __eq__ = __lt__ = fail
    __hash__ = int.__hash__


WRONG: list[tuple[str, Callable[..., Any]]] = [
    ("text", lambda *_: "many"),
    ("float", lambda *_: 2.0),
    ("bool", lambda *_: True),
    ("list", lambda *_: []),
    ("liar", lambda *_: Lying(1)),
    ("raises", fail),
]
broken_limits = pytest.mark.parametrize("broken", [call for _, call in WRONG], ids=[name for name, _ in WRONG])
broken_keys = pytest.mark.parametrize("broken", [call for _, call in WRONG[1:]], ids=[name for name, _ in WRONG[1:]])


@pytest.fixture
def worker(store: Store, setup: Setup, registry: Registry) -> Worker:
    return Worker(store, setup, registry)


@pytest.fixture
def reported(setup: Setup) -> list[str]:
    found: list[str] = []
    setup.error_handler(lambda _error, context: found.append(context["context"]))
    return found


def run_beside(worker: Worker, count: int) -> list[type[Outcome]]:
    """Run a job, and others that begin while it runs; return what became of these."""
    others: list[type[Outcome]] = []

    def during(*_: object) -> None:
        worker.during = lambda *_: None
        others.extend(type(worker.run()) for _ in range(count))

    worker.during = during
    assert isinstance(worker.run(), Done)
    return others


def declare(worker: Worker, **options: Any) -> Any:
    @job(name="Sync", **options)
    def sync(word: str) -> None:
        worker.perform(word)

    return sync


def places(store: Store) -> list[bytes]:
    return sorted(key for key in store.call("KEYS", "kiq:slots:*") if store.call("TYPE", key) == b"set")


class TestLimit:
    def test_of_nothing_is_none(self, worker: Worker, store: Store) -> None:
        declare(worker, concurrency_limit=lambda: None).perform_bulk([["a"], ["b"], ["c"]])

        assert run_beside(worker, 2) == [Done, Done]

    def test_of_nothing_lets_go_on_what_waits(self, worker: Worker, store: Store) -> None:
        limits: list[int | None] = [1]
        declare(worker, concurrency_limit=lambda: limits[-1]).perform_bulk([["a"], ["b"], ["c"], ["d"]])
        worker.during = lambda *_: None
        unit = worker.take()
        first = [worker.execute(unit), worker.run()]
        assert isinstance(first[1], Parked)
        limits.append(None)

        assert [type(worker.run()) for _ in range(2)] == [Done, Done]
        assert isinstance(worker.run(), Done)

    @broken_limits
    def test_that_cannot_be_told_is_the_last_one_and_fails_no_job(
        self, worker: Worker, store: Store, reported: list[str], broken: Callable[..., Any]
    ) -> None:
        functions: list[Callable[..., Any]] = [lambda: 1]
        declare(worker, concurrency_limit=lambda: functions[-1]()).perform_bulk([[str(number)] for number in range(4)])
        assert isinstance(worker.run(), Done)
        functions.append(broken)

        assert run_beside(worker, 2) == [Parked, Parked]
        assert [type(worker.run()) for _ in range(2)] == [Done, Done]
        assert reported == ["concurrency_limit of Sync"], "once, and not for each job"
        assert (store.call("ZCARD", "retry"), places(store)) == (0, [])

    @broken_limits
    def test_that_nobody_has_known_yet_is_none(
        self, worker: Worker, store: Store, reported: list[str], broken: Callable[..., Any]
    ) -> None:
        declare(worker, concurrency_limit=broken).perform_bulk([["a"], ["b"], ["c"]])

        assert run_beside(worker, 2) == [Done, Done]
        assert reported == ["concurrency_limit of Sync"]
        assert (store.call("ZCARD", "retry"), places(store)) == (0, [])


class TestKey:
    def test_of_nothing_has_no_limit(self, worker: Worker, store: Store) -> None:
        sync = declare(worker, concurrency_limit=1, concurrency_key=lambda word: None if word == "free" else word)
        sync.perform_bulk([["free"], ["free"], ["free"]])

        assert run_beside(worker, 2) == [Done, Done]

    @broken_keys
    def test_jobs_whose_key_cannot_be_told_share_a_limit(
        self, worker: Worker, store: Store, reported: list[str], broken: Callable[..., Any]
    ) -> None:
        declare(worker, concurrency_limit=2, concurrency_key=broken).perform_bulk([["a"], ["b"], ["c"]])

        assert run_beside(worker, 2) == [Done, Done]
        assert reported == ["concurrency_key of Sync"]
        assert (store.call("ZCARD", "retry"), places(store)) == (0, [])

    @broken_keys
    def test_of_equal_jobs_that_cannot_be_told_one_runs_at_a_time(
        self, worker: Worker, store: Store, reported: list[str], broken: Callable[..., Any]
    ) -> None:
        """A push is refused then; these came from Ruby."""
        declare(worker, deduplicate="while_executing", deduplicate_key=broken)
        for number in range(3):
            store.call("LPUSH", "queue:default", f'{{"class":"Sync","args":["{number}"],"jid":"j{number}"}}')

        assert run_beside(worker, 2) == [Parked, Parked]
        assert [type(worker.run()) for _ in range(2)] == [Done, Done]
        assert reported == ["deduplicate_key of Sync"]
        assert (store.call("ZCARD", "retry"), places(store)) == (0, [])

    def test_of_nothing_has_no_equals(self, worker: Worker, store: Store) -> None:
        declare(worker, deduplicate="while_executing", deduplicate_key=lambda _word: None).perform_bulk([["a"]] * 3)

        assert run_beside(worker, 2) == [Done, Done]
