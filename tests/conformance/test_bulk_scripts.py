"""The scripts of searches and bulk actions do what their headers say: scan_entries, bulk_entries, change_bulk."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from kiqcluster.api.bulk.state import change
from kiqcluster.store import Store
from kiqcluster.store.entry_moves import BulkMoved, BulkPart, DeadSetLimits, Move, move_bulk
from kiqcluster.store.search import MAX_SLICE_BYTES, Place, scan_entries

NOW = 1_795_168_740.25
LIMITS = DeadSetLimits(100, 1_000.0)
SEED = 20


def entries(store: Store, newest_first: bool) -> list[tuple[bytes, float]]:
    order = ("REV",) if newest_first else ()
    flat = store.call("ZRANGE", "dead", 0, -1, *order, "WITHSCORES")
    return [(raw, float(score)) for raw, score in zip(flat[::2], flat[1::2], strict=True)]


class TestScanEntries:
    @pytest.mark.parametrize("newest_first", [True, False])
    def test_slices_bring_each_entry_once_in_order(self, store: Store, newest_first: bool) -> None:
        words = [word for number in range(50) for word in (number // 7, f"job-{number:02}")]
        store.call("ZADD", "dead", *words)

        found, place = [], None
        while True:
            part = scan_entries(store, "dead", place, newest_first=newest_first, most=6)
            found += [(each.payload, each.score) for each in part.found]
            place = part.last
            if not part.has_more:
                break

        assert found == entries(store, newest_first)

    @pytest.mark.parametrize("newest_first", [True, False])
    def test_behind_an_entry_that_is_gone_comes_the_next_one_of_its_score(
        self, store: Store, newest_first: bool
    ) -> None:
        rng = Random(SEED)
        payloads = sorted({bytes(rng.choices(b"\0\x01a\xc3\xff", k=rng.randrange(1, 6))) for _ in range(60)})
        store.call("ZADD", "dead", *[word for each in payloads for word in (7, each)], 6, b"lower", 8, b"higher")
        before = entries(store, newest_first)
        for payload, score in before:
            rest = before[before.index((payload, score)) + 1 :]
            store.call("ZREM", "dead", payload)

            part = scan_entries(store, "dead", Place(repr(score).encode(), payload), newest_first=newest_first)

            assert [(each.payload, each.score) for each in part.found] == rest, payload
            store.call("ZADD", "dead", score, payload)

    def test_an_entry_that_has_another_score_by_now_counts_as_gone(self, store: Store) -> None:
        store.call("ZADD", "dead", 1, "a", 2, "b", 3, "c", 4, "d")
        place = scan_entries(store, "dead", most=1).last
        store.call("ZADD", "dead", 0, "d")

        part = scan_entries(store, "dead", place)

        assert [each.payload for each in part.found] == [b"c", b"b", b"a", b"d"]

    def test_an_entry_is_found_if_it_has_a_text_of_each_part(self, store: Store) -> None:
        store.call("ZADD", "dead", 1, "red 1", 2, "red 2", 3, "blue 1", 4, "green 1")

        part = scan_entries(store, "dead", None, [[b"red", b"blue"], [b"1"]])

        assert [each.payload for each in part.found] == [b"blue 1", b"red 1"]
        assert (part.start, part.read, part.size) == (0, 4, 4)

    def test_it_stops_after_a_score_and_begins_at_one(self, store: Store) -> None:
        store.call("ZADD", "dead", 1, "a", 2, "b", 2, "c", 3, "d", 4, "e")

        newest = scan_entries(store, "dead", Place(b"3"), stop=2.0)
        oldest = scan_entries(store, "dead", Place(b"2", b"", 1), newest_first=False, stop=3.0)

        assert [each.payload for each in newest.found] == [b"d", b"c", b"b"]
        assert [each.payload for each in oldest.found] == [b"c", b"d"]
        assert not newest.has_more
        assert not oldest.has_more

    def test_it_stops_when_enough_is_found_or_read(self, store: Store) -> None:
        large = "x" * (MAX_SLICE_BYTES // 3)
        store.call("ZADD", "dead", *[word for number in range(30) for word in (number, f"{number}{large}")])

        few = scan_entries(store, "dead", most_found=2)
        bounded = scan_entries(store, "dead")

        assert [each.score for each in few.found] == [29.0, 28.0]
        assert few.read == 2
        assert 3 <= bounded.read <= 8

    def test_places_are_those_among_entries_of_the_same_score(self, store: Store) -> None:
        store.call("ZADD", "dead", 1, "a", 2, "b", 2, "c", 2, "d", 3, "e")

        part = scan_entries(store, "dead", most=4, with_places=True)

        assert [(each.payload, each.place) for each in part.found] == [(b"e", 0), (b"d", 0), (b"c", 1), (b"b", 2)]
        assert part.last == Place(b"2", b"b", 2)


def bulk(store: Store, **fields: Any) -> str:
    key = store.keys.bulk("b")
    words = {"state": "running", "owner": "me", **fields}
    store.call("HSET", key, *[word for pair in words.items() for word in pair])
    return key


def state(store: Store) -> dict[str, str]:
    flat = store.call("HGETALL", store.keys.bulk("b"))
    return {name.decode(): value.decode() for name, value in zip(flat[::2], flat[1::2], strict=True)}


class TestBulkEntries:
    def test_moves_and_counts_in_one_step(self, store: Store) -> None:
        store.call("ZADD", "retry", 1, "a", 2, "b", 3, "c")
        store.call("SET", "queue:broken", "no list")
        moves = [
            Move(b"a", "push", "default", b"A"),
            Move(b"b", "push", "broken", b"B"),
            Move(b"gone", "drop"),
            Move(b"c", "drop"),
        ]
        part = BulkPart(bulk(store), "me", 10.0, "running", "", (b"1", b"a"), 9, 6, {"Bad: link": 2})

        moved = move_bulk(store, "retry", moves, NOW, LIMITS, part)

        assert moved == BulkMoved([0, 3], 0)
        found = state(store)
        counts = [int(found[name]) for name in ("looked", "found", "done", "gone", "failed")]
        assert counts == [9, 6, 2, 1, 3]
        assert (found["score"], found["payload"], found["why:Bad: link"]) == ("1", "a", "2")
        assert [value for name, value in found.items() if name.startswith("why:") and "queue:broken" in name] == ["1"]
        assert store.call("LRANGE", "queue:default", 0, -1) == [b"A"]

    @pytest.mark.parametrize("fields", [{"state": "cancelled"}, {"owner": "somebody"}, {"state": "counting"}])
    def test_does_nothing_for_one_that_is_not_the_callers_any_more(self, store: Store, fields: dict[str, str]) -> None:
        store.call("ZADD", "retry", 1, "a")
        part = BulkPart(bulk(store, **fields), "me", 10.0, "running", "done", (b"1", b"a"), 1, 1)
        before = state(store)

        assert move_bulk(store, "retry", [Move(b"a", "drop")], NOW, LIMITS, part) is None
        assert state(store) == before
        assert store.call("ZCARD", "retry") == 1

    def test_the_last_slice_ends_it(self, store: Store) -> None:
        part = BulkPart(bulk(store), "me", 10.0, "running", "done", (b"1", b"a"), 1, 0)

        assert move_bulk(store, "retry", [], NOW, LIMITS, part) == BulkMoved([], 0)
        found = state(store)
        assert found["state"] == "done"
        assert "owner" not in found
        assert "payload" not in found

    def test_it_keeps_a_few_reasons_and_counts_the_others_together(self, store: Store) -> None:
        part = BulkPart(bulk(store), "me", 10.0, "running", "", (b"", b""), 30, 30, {f"{at}": 1 for at in range(30)})

        move_bulk(store, "retry", [], NOW, LIMITS, part)

        found = state(store)
        assert found["failed"] == "30"
        assert found["why:…"] == "10"
        assert len([name for name in found if name.startswith("why:")]) == 21

    def test_it_is_kept_for_a_week_after_its_last_change(self, store: Store) -> None:
        move_bulk(store, "retry", [], NOW, LIMITS, BulkPart(bulk(store), "me", 10.0, "running"))

        assert 604_700 < store.call("TTL", store.keys.bulk("b")) <= 604_800


class TestChangeBulk:
    def test_a_runner_takes_one_that_nobody_has_or_whose_lease_is_over(self, store: Store) -> None:
        bulk(store, owner="other", until=1)

        assert change(store, "b", ("running",), runner="me", lease=10.0)
        assert not change(store, "b", ("running",), runner="other", lease=10.0)
        assert change(store, "b", ("running",), runner="me", lease=10.0)
        assert state(store)["owner"] == "me"

    def test_a_state_changes_only_from_those_that_are_allowed(self, store: Store) -> None:
        bulk(store, state="counted")

        assert not change(store, "b", ("running", "count"), "cancelled")
        assert change(store, "b", ("counting", "counted"), "running", fields=("found", "0"))
        assert (state(store)["state"], state(store)["found"]) == ("running", "0")
        assert "owner" not in state(store)

    def test_one_that_is_not_there_is_not_made(self, store: Store) -> None:
        assert not change(store, "none", ("running",), "cancelled")
        assert store.call("DBSIZE") == 0
