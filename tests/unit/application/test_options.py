"""Attributes of jobs: they are inherited, and those that contradict each other are refused where they stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kiqcluster import Job, job
from kiqcluster.application.options import OPTIONS
from kiqcluster.application.registry import Registry
from kiqcluster.client.items import read_item
from kiqcluster.errors import JobDefinitionError
from kiqcluster.process.runtime import current_setup

pytestmark = pytest.mark.usefixtures("registry")


def declare(base: type[Job] = Job, **options: Any) -> type[Job]:
    class Declared(base, **options):  # type: ignore[misc, valid-type]
        def perform(self) -> None: ...

    return Declared


def refusal(define: Callable[[], Any]) -> str:
    with pytest.raises(JobDefinitionError) as caught:
        define()
    return str(caught.value)


class TestAttributes:
    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("urgency", "high"),
            ("urgency", "throttled"),
            ("resource_boundary", "cpu"),
            ("resource_boundary", "memory"),
            ("external_dependencies", True),
            ("feature_category", "mail"),
            ("weight", 3),
            ("tags", ["vip"]),
            ("queue_namespace", "cronjob"),
            ("idempotent", True),
            ("data_consistency", "delayed"),
            ("data_consistency", "sticky"),
        ],
    )
    def test_classes_and_functions_declare_them(self, option: str, value: object) -> None:
        @job(name="Function", **{option: value})  # type: ignore[call-overload, untyped-decorator]
        def function() -> None: ...

        assert declare(**{option: value}).definition.attributes == {option: value}
        assert function.definition.attributes == {option: value}

    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("urgency", "medium"),
            ("resource_boundary", "disk"),
            ("external_dependencies", "yes"),
            ("feature_category", ""),
            ("weight", 0),
            ("weight", True),
            ("weight", 2.5),
            ("weight", 1_001),
            ("idempotent", 1),
            ("data_consistency", "eventual"),
        ],
    )
    def test_a_value_that_does_not_fit_is_refused_with_what_would(self, option: str, value: object) -> None:
        assert f"it takes {OPTIONS[option].expected}" in refusal(lambda: declare(**{option: value}))

    @pytest.mark.parametrize(
        ("word", "near"),
        [
            ("urgncy", "urgency"),
            ("external_dependency", "external_dependencies"),
            ("idempotency", "idempotent"),
            ("wieght", "weight"),
            ("consistency", "data_consistency"),
        ],
    )
    def test_an_unknown_one_is_refused_with_the_nearest(self, word: str, near: str) -> None:
        assert f"did you mean {near!r}?" in refusal(lambda: declare(**{word: "x"}))

    def test_subclasses_inherit_them_and_may_override_them(self) -> None:
        class Base(Job, urgency="throttled", tags=["a"], feature_category="mail", weight=2): ...

        child = declare(Base, urgency="high", tags=["b"])

        assert child.definition.attributes == {
            "urgency": "high",
            "tags": ["b"],
            "feature_category": "mail",
            "weight": 2,
        }
        assert declare(Base).definition.attributes["urgency"] == "throttled"
        assert declare(child).definition.attributes["urgency"] == "high"

    def test_none_of_them_but_tags_is_written_to_payloads(self, registry: Registry) -> None:
        declare(urgency="low", weight=2, idempotent=True, data_consistency="sticky", tags=["a"])

        (definition,) = registry
        assert definition.options == {"retry": True, "queue": "default", "tags": ["a"]}


class TestForbiddenCombinations:
    """GitLab's: each is refused when the class is defined, also if one half of it is inherited."""

    @pytest.mark.parametrize(
        ("inherited", "own"),
        [
            ({}, {"urgency": "high", "resource_boundary": "memory"}),
            ({"urgency": "high"}, {"resource_boundary": "memory"}),
            ({"resource_boundary": "memory"}, {"urgency": "high"}),
        ],
    )
    def test_memory_bound_and_high_urgency(self, inherited: dict[str, Any], own: dict[str, Any]) -> None:
        base = declare(**inherited)

        message = refusal(lambda: declare(base, **own))

        assert message.startswith("Declared: urgency = 'high' and resource_boundary = 'memory' exclude each other")

    def test_external_dependencies_and_high_urgency(self) -> None:
        base = declare(external_dependencies=True)

        assert "external_dependencies = True exclude" in refusal(
            lambda: declare(urgency="high", external_dependencies=True)
        )
        assert "external_dependencies = True exclude" in refusal(lambda: declare(base, urgency="high"))
        assert declare(base, urgency="high", external_dependencies=False).definition.local["urgency"] == "high"

    @pytest.mark.parametrize("retry", [False, 0])
    def test_delayed_data_consistency_without_retries(self, retry: object) -> None:
        base = declare(data_consistency="delayed")

        assert "needs retries" in refusal(lambda: declare(data_consistency="delayed", retry=retry))
        assert f"retry = {retry!r} has none" in refusal(lambda: declare(base, retry=retry))
        assert declare(base, retry=1).definition.options["retry"] == 1
        assert declare(data_consistency="sticky", retry=False).definition.options["retry"] is False

    def test_a_base_without_perform_is_refused_as_well(self) -> None:
        def base() -> None:
            class Base(Job, urgency="high", external_dependencies=True): ...

        assert refusal(base).startswith("Base: ")

    def test_functions_are_refused_too(self) -> None:
        def send() -> None: ...

        assert refusal(lambda: job(urgency="high", resource_boundary="memory")(send)).startswith("send: ")

    @pytest.mark.parametrize("urgency", ["low", "throttled"])
    def test_lower_urgencies_may_have_both(self, urgency: str) -> None:
        assert declare(urgency=urgency, resource_boundary="memory", external_dependencies=True).definition


class TestRetryAndRetryFor:
    """A job is retried so often or for so long: what is declared nearer to the push holds alone."""

    @pytest.mark.parametrize("inherited", [False, 0, 3])
    def test_a_nearer_time_replaces_an_inherited_number(self, inherited: object) -> None:
        base = declare(retry=inherited)
        expected = {"retry": True, "retry_for": 3_600}

        child = declare(base, retry_for=3_600)

        assert {key: child.definition.options[key] for key in expected} == expected
        assert {key: base.set(retry_for=3_600).options[key] for key in expected} == expected
        assert read_item(current_setup(), {"class": base, "retry_for": 3_600})[2].items() >= expected.items()

    @pytest.mark.parametrize("own", [False, 0, 3, True])
    def test_a_nearer_number_replaces_an_inherited_time(self, own: object) -> None:
        base = declare(retry_for=3_600)

        child = declare(base, retry=own)

        for options in (
            child.definition.options,
            base.set(retry=own).options,
            read_item(current_setup(), {"class": base, "retry": own})[2],
        ):
            assert options["retry"] is own
            assert "retry_for" not in options

    def test_both_in_one_place_are_refused(self) -> None:
        assert "exclude each other" in refusal(lambda: declare(retry=5, retry_for=60))
        assert "exclude each other" in refusal(lambda: declare().set(retry=False, retry_for=60))
        assert declare(retry=True, retry_for=60).definition.options["retry_for"] == 60

    def test_an_item_of_another_client_may_have_both(self) -> None:
        options = read_item(current_setup(), {"class": declare(), "retry": 5, "retry_for": 60})[2]

        assert (options["retry"], options["retry_for"]) == (5, 60)

    @pytest.mark.parametrize("value", [0, True])
    def test_a_time_that_workers_would_not_see_is_refused(self, value: object) -> None:
        assert "at least 1" in refusal(lambda: declare(retry_for=value))

    def test_a_job_on_a_schedule_is_retried_for_as_long_as_it_says(self) -> None:
        assert declare(cron="@daily", retry_for=60).definition.options["retry"] is True
        assert declare(cron="@daily").definition.options["retry"] == 0
