"""Bulk actions on queues: what matches is done exactly, while others push and fetch, and however a run ends."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from kiqcluster.api import Queue
from kiqcluster.api.bulk import (
    BulkAction,
    BulkRunner,
    Selection,
    ask,
    cancel,
    look_at_queue,
    read_bulk,
    resume,
    start,
    walk_queue,
)
from kiqcluster.api.bulk import runner as runner_module
from kiqcluster.api.bulk import sources as sources_module
from kiqcluster.api.bulk.look import Budget
from kiqcluster.api.bulk.runner import BulkRun
from kiqcluster.api.bulk.verbs import Target
from kiqcluster.errors import UsageError
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.runtime import Setup
from kiqcluster.store import Store
from kiqcluster.store.search import Anchor
from tests.stored_jobs import fill_queue, job, move_to_wake_list, pop_jobs, push_payloads, queued_numbers

SECONDS = 60.0  # within which a run ends


@pytest.fixture(autouse=True)
def _own_setup(setup: Setup) -> None:
    """Have middleware and limits of a test's own."""


def run(store: Store, identifier: str) -> BulkAction:
    """Work on it until nobody does any more."""
    runner = BulkRunner()
    runner.run(store, identifier)
    assert runner.wait(SECONDS)
    return found(store, identifier)


def found(store: Store, identifier: str) -> BulkAction:
    action = read_bulk(store, identifier)
    assert action is not None
    return action


def counts(action: BulkAction) -> tuple[int, int, int, int]:
    """Return found, done, gone and failed."""
    told = action.counts
    assert told.found == told.done + told.gone + told.failed
    return told.found, told.done, told.gone, told.failed


def kinds(store: Store, numbers: range, **more: Any) -> None:
    """Push jobs of two classes, in turn."""
    push_payloads(store, [job(at, **{"class": "Red" if at % 2 else "Blue", **more}) for at in numbers])


def begun(store: Store, verb: str, selection: Selection, queue: str = "") -> str:
    """Return the id of an action that was counted and has begun."""
    identifier = ask(store, Queue("default", store=store), verb, selection, Target(queue=queue))
    if found(store, identifier).state == "counting":
        run(store, identifier)
    assert start(store, identifier)
    return identifier


class TestCourse:
    def test_what_matches_is_counted_first_and_deleted_when_somebody_begins_it(self, store: Store) -> None:
        kinds(store, range(3_000))
        identifier = ask(store, Queue("default", store=store), "delete", Selection(name="Red"), by="ada")

        counted = run(store, identifier)
        assert (counted.state, counted.counts.count, len(queued_numbers(store))) == ("counted", 1_500, 3_000)
        assert start(store, identifier)
        done = run(store, identifier)

        assert (done.state, counts(done)) == ("done", (1_500, 1_500, 0, 0))
        assert done.counts.looked == 3_000
        assert queued_numbers(store) == list(range(0, 3_000, 2))

    def test_jobs_keep_their_order_in_the_other_queue_and_name_it(self, store: Store) -> None:
        kinds(store, range(2_000))
        move_to_wake_list(store, 5)

        done = run(store, begun(store, "move", Selection(name="Red"), "low"))

        assert counts(done) == (1_000, 1_000, 0, 0)
        assert queued_numbers(store, "low") == list(range(1, 2_000, 2))
        assert {each.payload["queue"] for each in Queue("low", store=store)} == {"low"}
        assert [each.args[0] for each in reversed(Queue("default", store=store))] == list(range(0, 2_000, 2))

    def test_all_of_a_queue_need_no_counting(self, store: Store) -> None:
        fill_queue(store, range(700))

        done = run(store, begun(store, "delete", Selection()))

        assert (counts(done), queued_numbers(store)) == ((700, 700, 0, 0), [])

    def test_jobs_that_came_later_are_left_alone(self, store: Store) -> None:
        now = SystemClock.now()
        push_payloads(store, [job(1, enqueued_at=now - 5), job(2, enqueued_at=int((now - 5) * 1_000))])
        identifier = begun(store, "delete", Selection())
        push_payloads(store, [job(3, enqueued_at=now + 60)])

        assert counts(run(store, identifier)) == (2, 2, 0, 0)
        assert queued_numbers(store) == [3]

    def test_times_of_a_filter_are_those_of_the_push(self, store: Store) -> None:
        push_payloads(store, [job(at, enqueued_at=1_000.0 + at) for at in range(10)])

        done = run(store, begun(store, "delete", Selection(lowest=1_003.0, highest=1_005.0)))

        assert counts(done) == (3, 3, 0, 0)
        assert queued_numbers(store) == [0, 1, 2, 6, 7, 8, 9]

    @pytest.mark.parametrize(("verb", "queue"), [("kill", ""), ("retry", ""), ("move", "default")])
    def test_what_makes_no_sense_in_a_queue_is_refused(self, store: Store, verb: str, queue: str) -> None:
        with pytest.raises(UsageError):
            ask(store, Queue("default", store=store), verb, Selection(), Target(queue=queue))

    def test_a_lock_is_released_with_its_job(self, store: Store) -> None:
        lock = {"kiq_lock": "k1"}
        from kiqcluster.sidekiq.payload import IDEMPOTENCY_KEY

        push_payloads(store, [job(1, **{IDEMPOTENCY_KEY: "k1", **lock}), job(2)])
        store.call("SET", store.keys.lock("k1"), "j1")

        run(store, begun(store, "delete", Selection(jid="j1")))

        assert (queued_numbers(store), store.call("EXISTS", store.keys.lock("k1"))) == ([2], 0)


class TestWhileOthersFetch:
    @pytest.mark.parametrize("taken", [1, 30, 700, 1_900])
    def test_jobs_fetched_between_two_slices_are_neither_done_nor_missed(
        self, store: Store, monkeypatch: pytest.MonkeyPatch, taken: int
    ) -> None:
        kinds(store, range(4_000))
        identifier = begun(store, "delete", Selection(name="Red"))
        plain, fetched = sources_module.scan_jobs, []

        def scan(*arguments: Any, **options: Any) -> Any:
            if len(fetched) == 1:
                left = queued_numbers(store)
                pop_jobs(store, taken)
                fetched.append(left[:taken])
            elif not fetched:
                fetched.append([])
            return plain(*arguments, **options)

        monkeypatch.setattr(sources_module, "scan_jobs", scan)
        done = run(store, identifier)

        odd = sum(number % 2 for number in fetched[1])
        assert done.state == "done"
        assert counts(done) == (2_000 - odd, 2_000 - odd, 0, 0)
        assert queued_numbers(store) == [at for at in range(0, 4_000, 2) if at not in fetched[1]]

    @pytest.mark.parametrize("at_move", [1, 12])
    @pytest.mark.parametrize("taken", [1, 90, 600, 1_150, 2_500])
    def test_jobs_fetched_between_a_look_and_its_move_are_counted_as_gone(
        self, store: Store, monkeypatch: pytest.MonkeyPatch, taken: int, at_move: int
    ) -> None:
        kinds(store, range(4_000))
        identifier = begun(store, "delete", Selection(name="Red"))
        plain, fetched, moves = sources_module.move_bulk_jobs, [], []
        monkeypatch.setattr(runner_module, "MAX_BATCH", 100)

        def move(*arguments: Any) -> Any:
            moves.append(1)
            if len(moves) == at_move:
                fetched.extend(queued_numbers(store)[:taken])
                pop_jobs(store, taken)
            return plain(*arguments)

        monkeypatch.setattr(sources_module, "move_bulk_jobs", move)
        done = run(store, identifier)

        told = counts(done)
        odd = sum(number % 2 for number in fetched)
        assert len(moves) >= at_move
        assert told[1] == 2_000 - odd
        assert told[0] == 2_000 - odd + told[2]
        assert queued_numbers(store) == [at for at in range(0, 4_000, 2) if at not in fetched]

    def test_each_job_is_fetched_or_deleted_beside_a_fast_fleet(self, store: Store) -> None:
        kinds(store, range(20_000), padding="x" * 100)
        identifier = begun(store, "delete", Selection(name="Red"))
        fetched: list[bytes] = []
        is_over = threading.Event()

        def fetch() -> None:
            while not is_over.is_set():
                raw = store.call("RPOP", store.keys.queue("default"), 20) or []
                fetched.extend(raw)
                push_payloads(store, [job(100_000 + len(fetched), enqueued_at=SystemClock.now())])

        worker = threading.Thread(target=fetch)
        worker.start()
        done = run(store, identifier)
        is_over.set()
        worker.join()

        reds = sum(b'"Red"' in raw for raw in fetched)
        assert done.state == "done"
        assert done.counts.done + reds == 10_000
        assert all(b'"class"' in raw for raw in fetched)
        assert not any(each.name == "Red" for each in Queue("default", store=store))


class TestEnds:
    def test_another_run_goes_on_where_one_has_ended(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        kinds(store, range(4_000))
        identifier = begun(store, "delete", Selection(name="Red"))
        plain, calls = sources_module.move_bulk_jobs, []

        def move(*arguments: Any) -> Any:
            calls.append(1)
            if len(calls) == 3:
                raise RuntimeError("the process ends")
            return plain(*arguments)

        monkeypatch.setattr(sources_module, "move_bulk_jobs", move)
        half = run(store, identifier)
        assert half.state == "failed"
        assert 0 < half.counts.done < 2_000
        assert resume(store, identifier)
        done = run(store, identifier)

        assert counts(done) == (2_000, 2_000, 0, 0)
        assert done.counts.looked == 4_000
        assert queued_numbers(store) == list(range(0, 4_000, 2))

    def test_nothing_more_is_done_once_it_is_cancelled(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        kinds(store, range(4_000))
        identifier = begun(store, "delete", Selection(name="Red"))
        plain, left = sources_module.move_bulk_jobs, []

        def move(*arguments: Any) -> Any:
            moved = plain(*arguments)
            if not left:
                cancel(store, identifier)
                left.extend(queued_numbers(store))
            return moved

        monkeypatch.setattr(sources_module, "move_bulk_jobs", move)
        action = run(store, identifier)

        assert action.state == "cancelled"
        assert queued_numbers(store) == left
        assert action.counts.done == 4_000 - len(left)

    def test_jobs_too_far_from_both_ends_stay_and_the_reason_is_said(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sources_module, "MAX_DISTANCE_JOBS", 99)
        kinds(store, range(1_000))

        done = run(store, begun(store, "delete", Selection(name="Red")))

        total, gone, lost, failed = counts(done)
        assert (total, lost, gone + failed) == (500, 0, 500)
        assert failed > 0
        assert done.reasons == {sources_module.TOO_FAR: failed}
        assert len(queued_numbers(store)) == 1_000 - gone

    def test_a_queue_that_is_no_list_fails_with_the_reason(self, store: Store) -> None:
        kinds(store, range(10))
        identifier = begun(store, "move", Selection(name="Red"), "low")
        store.call("SET", store.keys.queue("low"), "no list")

        action = run(store, identifier)

        assert action.state == "failed"
        assert "WRONGTYPE" in action.error
        assert (queued_numbers(store), action.counts.done) == (list(range(10)), 0)

    def test_a_run_stops_between_slices(self, store: Store) -> None:
        kinds(store, range(100))
        identifier = begun(store, "delete", Selection(name="Red"))
        stopped = BulkRun(store, identifier, SystemClock(), None, are_arguments_json=True)
        stopped.stop()
        stopped.start()
        assert stopped.join(SECONDS)

        assert counts(run(store, identifier)) == (50, 50, 0, 0)


class TestLooks:
    def test_a_look_ends_with_its_budget_and_the_next_one_goes_on(self, store: Store) -> None:
        kinds(store, range(5_000))
        rare = Selection(jid="j4500")

        first = look_at_queue(store, "default", rare, most=25, budget=Budget(trips=2))
        second = look_at_queue(store, "default", rare, after=first.after, most=25)

        assert (first.found, first.looked, first.has_more) == ([], 2_000, True)
        assert [(each.jid, each.place) for each in second.found] == [("j4500", 4_500)]
        assert not second.has_more

    def test_pages_bring_each_job_once(self, store: Store) -> None:
        kinds(store, range(300))
        places: list[int | None] = []
        after: list[Anchor] = []
        while True:
            page = look_at_queue(store, "default", Selection(name="Red"), after=after, most=7)
            places += [each.place for each in page.found]
            after = page.after
            if not page.has_more:
                break

        assert places == list(range(1, 300, 2))

    def test_a_walk_yields_all_that_match_while_others_fetch(self, store: Store) -> None:
        kinds(store, range(5_000))
        seen = []
        for each in walk_queue(store, "default", Selection(name="Red")):
            seen.append(each.args[0])
            if len(seen) == 100:
                pop_jobs(store, 60)

        assert seen == list(range(1, 5_000, 2))
