"""The scripts of bulk actions on queues do what their headers say: scan_jobs, bulk_jobs."""

from __future__ import annotations

import pytest

from kiqcluster.store import Store
from kiqcluster.store.entry_moves import BulkMoved, BulkPart, move_bulk_jobs
from kiqcluster.store.search import Anchor, scan_jobs
from tests.conformance.test_bulk_scripts import bulk, state

MARK = b"mark"
REACH = 20


def push(store: Store, count: int, in_wake: int = 0) -> list[bytes]:
    """Push jobs, the last so many of which lie in the wake list; return them, the next to be fetched first."""
    payloads = [f"job-{at:03}".encode() for at in range(count)]
    store.call("LPUSH", "queue:default", *payloads)
    for _ in range(in_wake):
        store.call("LMOVE", "queue:default", store.keys.wake("default"), "RIGHT", "LEFT")
    return payloads


def part_of(store: Store, **fields: str) -> BulkPart:
    return BulkPart(bulk(store, **fields), "me", 10.0, "running", "", (b"5-abc", b""), 9, 3, {"Bad": 1})


class TestScanJobs:
    @pytest.mark.parametrize("in_wake", [0, 3, 30])
    def test_slices_bring_each_job_once_the_next_to_be_fetched_first(self, store: Store, in_wake: int) -> None:
        payloads = push(store, 50, in_wake)

        found, place = [], 0
        while place < 50:
            part = scan_jobs(store, "default", place, most_found=7)
            found += part.found
            place = part.start + part.read

        assert found == [(raw, at) for at, raw in enumerate(payloads)]

    def test_jobs_with_a_text_of_each_part_are_found_and_the_last_others_are_named(self, store: Store) -> None:
        push(store, 30)

        part = scan_jobs(store, "default", 0, [[b"job-01"], [b"3", b"7"]])

        assert part.found == [(b"job-013", 13), (b"job-017", 17)]
        assert [place for place, _ in part.anchors] == [29, 28, 27]
        assert (part.start, part.read, part.size, part.has_more) == (0, 30, 30, False)

    @pytest.mark.parametrize("fetched", [0, 1, 19, 45, 80])
    def test_it_goes_on_behind_a_job_that_others_have_moved_up(self, store: Store, fetched: int) -> None:
        payloads = push(store, 100)
        behind = scan_jobs(store, "default", 0, [[b"none"]]).anchors[0]  # the last job
        store.call("LPUSH", "queue:default", b"later")
        store.call("LTRIM", "queue:default", 0, 100 - fetched)

        part = scan_jobs(store, "default", [behind], reach=REACH)

        assert behind.place == len(payloads) - 1
        assert (part.start, part.found) == (100 - fetched, [(b"later", 100 - fetched)])

    def test_where_all_anchors_are_gone_it_begins_at_the_next_job(self, store: Store) -> None:
        payloads = push(store, 30)

        part = scan_jobs(store, "default", [Anchor(400, "0" * 40), Anchor(399, "1" * 40)], reach=REACH)

        assert [raw for raw, _ in part.found] == payloads


class TestBulkJobs:
    def test_takes_jobs_out_and_counts_in_one_step(self, store: Store) -> None:
        payloads = push(store, 10, in_wake=3)
        jobs = [(payloads[at], b"") for at in (1, 5)] + [(b"gone", b"")]

        moved = move_bulk_jobs(store, "default", "", jobs, [1, 5, 6], REACH, MARK, part_of(store))

        assert moved == BulkMoved([0, 1], 0)
        found = state(store)
        counts = [int(found[name]) for name in ("looked", "found", "done", "gone", "failed", "why:Bad")]
        assert counts == [9, 3, 2, 1, 1, 1]
        assert found["score"] == "5-abc"
        left = [*store.call("LRANGE", "queue:default", 0, -1), *store.call("LRANGE", store.keys.wake("default"), 0, -1)]
        assert left == [raw for at, raw in reversed(list(enumerate(payloads))) if at not in (1, 5)]

    def test_moves_jobs_in_their_order(self, store: Store) -> None:
        payloads = push(store, 10)
        jobs = [(payloads[at], payloads[at].upper()) for at in (2, 3)]

        move_bulk_jobs(store, "default", "low", jobs, [2, 3], REACH, MARK, part_of(store))

        assert store.call("LRANGE", "queue:low", 0, -1) == [b"JOB-003", b"JOB-002"]
        assert store.call("SISMEMBER", "queues", "low") == 1

    @pytest.mark.parametrize("fetched", [5, 60, 150])
    def test_jobs_that_have_moved_up_are_found_wherever_they_are(self, store: Store, fetched: int) -> None:
        payloads = push(store, 300)
        store.call("RPOP", "queue:default", fetched)
        places = list(range(140, 200, 10))

        moved = move_bulk_jobs(
            store, "default", "", [(payloads[at], b"") for at in places], places, REACH, MARK, part_of(store)
        )

        assert moved is not None
        assert moved.indexes == [index for index, at in enumerate(places) if at >= fetched]
        assert state(store)["gone"] == str(len(places) - len(moved.indexes))

    @pytest.mark.parametrize("fields", [{"state": "cancelled"}, {"owner": "somebody"}])
    def test_does_nothing_for_one_that_is_not_the_callers_any_more(self, store: Store, fields: dict[str, str]) -> None:
        payloads = push(store, 3)
        part = part_of(store, **fields)
        before = state(store)

        assert move_bulk_jobs(store, "default", "", [(payloads[0], b"")], [0], REACH, MARK, part) is None
        assert (state(store), store.call("LLEN", "queue:default")) == (before, 3)
