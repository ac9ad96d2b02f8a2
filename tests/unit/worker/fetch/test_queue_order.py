"""Queue order: what a reserve asks first."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from kiqcluster.sidekiq.queue_groups import SelectorGroup, parse_group
from kiqcluster.sidekiq.selectors import attributes_of
from kiqcluster.worker.fetch.queue_order import MAX_LOGGED_QUEUES, QueueOrder, describe_queues

DRAWS = 4_000


def order(text: str, known: tuple[str, ...] = (), *, strict: bool = False, seed: int = 1) -> QueueOrder:
    return QueueOrder(parse_group(text, strict=strict), known, Random(seed))


def firsts(queues: QueueOrder) -> dict[str, float]:
    """Return how often each queue came first."""
    counts = Counter(next(iter(queues.draw())) for _ in range(DRAWS))
    return {name: count / DRAWS for name, count in counts.items()}


class TestDraw:
    def test_every_draw_has_every_queue_once(self) -> None:
        for queues in (order("a,b,c"), order("a=5,b,c"), order("a,b,c", strict=True)):
            assert all(sorted(queues.draw()) == ["a", "b", "c"] for _ in range(50))

    def test_strict_is_the_order_written_each_time(self) -> None:
        queues = order("c,a,b", strict=True)

        assert {tuple(queues.draw()) for _ in range(50)} == {("c", "a", "b")}

    def test_random_puts_each_queue_first_equally_often(self) -> None:
        shares = firsts(order("a,b,c,d"))

        assert all(abs(share - 0.25) < 0.03 for share in shares.values())

    def test_weighted_puts_a_queue_first_in_proportion_to_its_weight(self) -> None:
        shares = firsts(order("a=7,b=2,c"))

        assert shares == {"a": pytest.approx(0.7, abs=0.03), "b": pytest.approx(0.2, abs=0.03)} | {
            "c": pytest.approx(0.1, abs=0.03)
        }

    def test_the_second_queue_is_weighted_too(self) -> None:
        queues = order("a=50,b=5,c")
        after_a = Counter(drawn[1] for drawn in (tuple(queues.draw()) for _ in range(DRAWS)) if drawn[0] == "a")

        assert after_a["b"] / after_a.total() == pytest.approx(5 / 6, abs=0.03)

    @pytest.mark.parametrize("text", ["a", "*"])
    def test_one_queue_or_none_is_drawn_as_it_is(self, text: str) -> None:
        queues = order(text)

        assert tuple(queues.draw()) == tuple(queues.weights)


class TestLearn:
    def test_a_new_queue_of_the_group_is_taken_in(self) -> None:
        queues = order("cronjob:*", ("cronjob:a",))

        assert queues.learn(["cronjob:b", "default"]) is True
        assert sorted(queues.draw()) == ["cronjob:a", "cronjob:b"]

    def test_a_new_queue_of_others_changes_nothing(self) -> None:
        queues = order("cronjob:*", ("cronjob:a",))

        assert queues.learn(["default", "cronjob:a"]) is False

    def test_a_queue_once_known_stays(self) -> None:
        queues = order("*", ("a", "b"))

        assert queues.learn([]) is False
        assert queues.learn(["c"]) is True
        assert sorted(queues.draw()) == ["a", "b", "c"]

    def test_a_group_may_begin_with_nothing(self) -> None:
        queues = order("billing:*")

        assert tuple(queues.draw()) == ()
        assert queues.learn(["billing:x"]) is True
        assert tuple(queues.draw()) == ("billing:x",)

    def test_names_in_redis_change_nothing_for_a_selector(self) -> None:
        group = SelectorGroup.of("*").resolve([attributes_of("A", "a", {})])
        queues = QueueOrder(group, ["a", "elsewhere"], Random(1))
        queues.choose({"a": 2, "b": 1}, {})  # as after a reload

        assert queues.learn(["new"]) is False
        assert queues.weights == {"a": 2, "b": 1}
        assert queues.mode == "weighted"

    def test_a_queue_that_was_left_behind_is_served_where_redis_knows_it(self) -> None:
        moved = replace(attributes_of("M", "old", {"weight": 3}), shard="eu")
        group = SelectorGroup.of("*").resolve([attributes_of("A", "a", {})], [moved])
        queues = QueueOrder(group, ["a"], Random(1))
        before = dict(queues.weights)

        assert (queues.learn(["old", "new"]), queues.learn(["old", "new"])) == (True, False)
        assert (before, queues.weights) == ({"a": 1}, {"a": 1, "old": 3})
        assert queues.choose({"a": 1}, {}) is True, "the class is routed here again, or is gone"
        assert queues.weights == {"a": 1}
        queues.choose({"a": 1}, {"late": 2})
        assert queues.learn(["late"]) is True

    def test_the_mode_follows_the_queues(self) -> None:
        queues = order("a=3,b:*")

        assert queues.mode == "random"
        queues.learn(["b:x"])
        assert queues.mode == "weighted"


class TestSetQueues:
    def test_other_queues_count_from_the_next_draw_on(self) -> None:
        queues = order("a,b")

        assert queues.set_queues({"c": 1}) is True
        assert tuple(queues.draw()) == ("c",)

    def test_other_weights_are_a_change(self) -> None:
        assert order("a,b").set_queues({"a": 9, "b": 1}) is True

    def test_the_same_is_none(self) -> None:
        assert order("a,b").set_queues({"a": 1, "b": 1}) is False

    def test_another_order_is_one_when_it_is_strict(self) -> None:
        queues = order("a,b", strict=True)

        assert queues.set_queues({"b": 1, "a": 1}) is True
        assert tuple(queues.draw()) == ("b", "a")


def test_the_heaviest_get_the_wakeups_first() -> None:
    assert order("a,b=9,c=5").preferred() == ["b", "c", "a"]


def test_a_log_line_names_some_queues_and_counts_the_others() -> None:
    many = [f"q{number}" for number in range(MAX_LOGGED_QUEUES + 5)]

    assert describe_queues([]) == "(none yet)"
    assert describe_queues(many[:2]) == "q0,q1"
    assert describe_queues(many) == ",".join(many[:MAX_LOGGED_QUEUES]) + " and 5 others"
