"""Limited capacity: which jobs are started, when one goes on, and which classes are refused."""

from __future__ import annotations

from threading import Event
from typing import Any

import pytest

from kiqcluster.errors import JobDefinitionError
from kiqcluster.features.limits.concurrency_limit import limit_of
from kiqcluster.limited_capacity import LimitedCapacityJob
from kiqcluster.process.config import Config
from kiqcluster.process.job_context import CURRENT_JOB, JobContext
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.routing import parse_rules
from kiqcluster.store.shards import parse_shards
from kiqcluster.testing import drain, enqueued, fake

pytestmark = pytest.mark.usefixtures("setup")


class Source:
    """Work of a test's own."""

    def __init__(self, left: int, most: int = 2) -> None:
        self.left = left
        self.most = most
        self.done: list[Any] = []


@pytest.fixture
def source() -> Source:
    return Source(5)


@pytest.fixture
def work(source: Source) -> Any:
    class Work(LimitedCapacityJob):
        def max_running_jobs(self) -> int:
            return source.most

        def remaining_work_count(self, shop: int) -> int:
            return source.left

        def perform_work(self, shop: int) -> None:
            source.left -= 1
            source.done.append(shop)

    return Work


@pytest.mark.parametrize(("left", "most", "seats"), [(5, 2, [0, 1]), (1, 2, [0]), (0, 2, []), (5, 0, []), (5, -1, [])])
def test_as_many_are_started_as_may_run_and_have_work(
    work: Any, source: Source, left: int, most: int, seats: list[int]
) -> None:
    source.left, source.most = left, most

    with fake():
        work.perform_with_capacity(7)

        assert [each.args for each in enqueued(work)] == [[seat, 7] for seat in seats]


def test_each_goes_on_until_no_work_is_left(work: Any, source: Source) -> None:
    with fake():
        work.perform_with_capacity(7)
        drain()

        assert (source.left, source.done, enqueued(work)) == (0, [7] * 5, [])


def test_a_job_that_finds_no_work_ends_at_once(work: Any, source: Source) -> None:
    with fake():
        work.perform_with_capacity(7)
        source.left = 0
        drain()

    assert source.done == []


def test_a_seat_that_is_too_many_by_now_ends(work: Any, source: Source) -> None:
    source.most = 5
    with fake():
        work.perform_with_capacity(7)
        source.most = 1
        drain()

    assert source.done == [7] * 5


def test_a_job_that_fails_does_not_go_on(source: Source) -> None:
    class Work(LimitedCapacityJob):
        def max_running_jobs(self) -> int:
            return 1

        def remaining_work_count(self) -> int:
            return 5

        def perform_work(self) -> None:
            raise ValueError("on purpose")

    with fake():
        Work.perform_with_capacity()
        with pytest.raises(ValueError, match="on purpose"):
            drain()

        assert enqueued(Work) == []


def test_its_limit_is_read_when_a_job_begins_and_none_means_none(work: Any, source: Source) -> None:
    declared = work.definition.local["concurrency_limit"]

    assert limit_of(declared, 10) == 2
    source.most = 0
    assert limit_of(declared, 10) < 0  # 0 would be no limit at all


def test_it_is_not_retried_unless_its_class_says_so(work: Any) -> None:
    class Stubborn(work, retry=3):  # type: ignore[misc]
        pass

    assert (work.definition.options["retry"], Stubborn.definition.options["retry"]) == (0, 3)
    assert Stubborn.definition.local["deduplicate"] == "until_executed"


@pytest.mark.parametrize("option", ["concurrency_limit", "deduplicate", "reschedule_once"])
def test_options_that_it_sets_itself_are_refused(work: Any, option: str) -> None:
    with pytest.raises(JobDefinitionError, match=f"{option} has no effect here"):
        type("Other", (work,), {}, **{option: 1})


def test_a_class_without_a_part_is_refused_and_a_base_is_none() -> None:
    class Base(LimitedCapacityJob):
        def max_running_jobs(self) -> int:
            return 1

    with pytest.raises(JobDefinitionError, match="it lacks"):
        Base.perform_with_capacity()  # type: ignore[misc]
    with pytest.raises(JobDefinitionError, match="lacks remaining_work_count"):
        type("Half", (Base,), {"perform_work": lambda self: None})
    with pytest.raises(JobDefinitionError, match="call it perform_work"):
        type("Wrong", (Base,), {"perform": lambda self: None})


def test_arguments_must_fit(work: Any, setup: Setup) -> None:
    with fake(), pytest.raises(TypeError, match="missing a required argument"):
        work.perform_with_capacity()


@pytest.mark.parametrize(("shard", "expected"), [("us", "us"), ("", "default")])
def test_the_next_one_goes_to_the_shard_that_has_the_lock(
    work: Any, source: Source, setup: Setup, shard: str, expected: str
) -> None:
    """Whatever the rules say, and also if they say nothing and strict_routing is on."""
    addresses = {"eu": "redis://127.0.0.1:1/1", "us": "redis://127.0.0.1:1/2"}
    for rules in ([["*", "far", "eu"]], []):
        setup.config = Config(shards=parse_shards(addresses), routing=parse_rules(rules), strict_routing=True)
        held = (None, setup.shard(shard))
        token = CURRENT_JOB.set(JobContext({}, "default", work.definition.name, Event(), held=held))
        try:
            with fake():
                work().perform(0, 7)

                assert [each.shard for each in enqueued(work)] == [expected]
        finally:
            CURRENT_JOB.reset(token)


def test_within_another_job_its_rule_decides(work: Any, setup: Setup) -> None:
    setup.config = Config(shards=parse_shards({"eu": "redis://127.0.0.1:1/1"}), routing=parse_rules([["*", "", "eu"]]))
    token = CURRENT_JOB.set(JobContext({}, "default", "Other", Event(), held=(None, setup.shard(""))))
    try:
        with fake():
            work().perform(0, 7)

            assert [each.shard for each in enqueued(work)] == ["eu"]
    finally:
        CURRENT_JOB.reset(token)
