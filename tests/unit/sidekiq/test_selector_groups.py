"""Selector groups: the queues that a selector stands for."""

from __future__ import annotations

import pytest

from kiqcluster.errors import UsageError
from kiqcluster.sidekiq.queue_groups import SelectorGroup, parse_group
from kiqcluster.sidekiq.selectors import attributes_of

JOBS = [
    attributes_of("Digest", "mail", {"weight": 3}),
    attributes_of("Send", "mail", {"urgency": "high", "feature_category": "mail"}),
    attributes_of("Bulk", "mail:bulk", {"weight": 2, "tags": ["heavy"]}),
    attributes_of("Report", "reports", {"tags": ["heavy"], "resource_boundary": "memory"}),
]


def queues(text: str, *, negated: bool = False) -> dict[str, int]:
    return SelectorGroup.of(text, negated=negated).resolve(JOBS).expand(["elsewhere"])


class TestQueues:
    def test_those_of_the_jobs_that_match_and_no_namespace_with_them(self) -> None:
        assert list(queues("name=mail")) == ["mail"]
        assert list(queues("tags=heavy")) == ["mail:bulk", "reports"]

    def test_a_queue_is_selected_by_any_of_its_jobs(self) -> None:
        assert list(queues("urgency=high")) == ["mail"]
        assert list(queues("urgency!=high")) == ["mail", "mail:bulk", "reports"]

    def test_a_star_is_every_queue_of_the_catalogue_and_none_that_only_redis_knows(self) -> None:
        assert list(queues("*")) == ["mail", "mail:bulk", "reports"]

    def test_negated_every_queue_to_which_no_selected_job_goes(self) -> None:
        assert list(queues("urgency=high", negated=True)) == ["mail:bulk", "reports"]
        assert queues("*", negated=True) == {}

    def test_a_queue_has_the_largest_weight_of_its_selected_jobs(self) -> None:
        assert queues("*") == {"mail": 3, "mail:bulk": 2, "reports": 1}
        assert queues("urgency=high") == {"mail": 1}
        assert SelectorGroup.of("*").mode(queues("*")) == "weighted"
        assert SelectorGroup.of("*").mode(queues("name=mail")) == "random"

    def test_a_selector_that_matches_nothing_is_an_empty_group(self) -> None:
        assert queues("urgency=throttled") == {}

    def test_a_mistake_is_told_before_any_job_is_known(self) -> None:
        with pytest.raises(UsageError, match="did you mean 'urgency'"):
            SelectorGroup.of("urgncy=high")


class TestIdentity:
    def test_it_is_the_same_group_whatever_the_catalogue_makes_of_it(self) -> None:
        group = SelectorGroup.of("tags=heavy")

        assert group == group.resolve(JOBS) == group.resolve(JOBS[:3])
        assert group != SelectorGroup.of("tags=heavy", negated=True)
        assert group != SelectorGroup.of("tags=b")

    def test_a_selector_is_no_group_of_names(self) -> None:
        assert SelectorGroup.of("*") != parse_group("*")


class TestSlips:
    def test_values_that_no_job_has_are_told_with_the_nearest(self) -> None:
        group = SelectorGroup.of("feature_category=mial|tags=heavy").resolve(JOBS)

        unheard_of = group.unheard_of([])

        assert unheard_of == ["feature_category=mial"]
        assert group.hint_for(unheard_of, []) == "did you mean feature_category=mail?"

    def test_without_a_near_one_it_only_asks(self) -> None:
        assert SelectorGroup.of("tags=zzz").resolve(JOBS).hint_for([], []) == "is that right?"
        assert SelectorGroup.of("tags=heavy").resolve(JOBS).unheard_of([]) == []
