"""Expansion: arguments and known queues → slots."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kiqcluster.errors import ExitCode, UsageError
from kiqcluster.process.config import Config
from kiqcluster.sidekiq.queue_groups import GroupSetting
from kiqcluster.sidekiq.routing import parse_rules, routed
from kiqcluster.sidekiq.selectors import attributes_of
from kiqcluster.store.shards import parse_shards
from kiqcluster.supervisor.cluster.expansion import (
    groups_from,
    listed_queues,
    plan_slots,
    refuse_listing,
    setting_warnings,
)

KNOWN = ("cronjob:nightly", "default", "mailers")


class TestGroups:
    def test_each_argument_is_one_group(self) -> None:
        groups = groups_from(["cronjob:*", "default,mailers"], [], Config())

        assert [group.text for group in groups] == ["cronjob:*", "default,mailers"]

    def test_all_queue_options_together_are_one_more(self) -> None:
        groups = groups_from(["a"], ["critical,5", "default"], Config())

        assert [group.text for group in groups] == ["a", "critical=5,default"]

    def test_those_of_the_configuration_count_when_the_command_line_has_none(self) -> None:
        config = Config(groups=("a", "b,c"))

        assert [group.text for group in groups_from([], [], config)] == ["a", "b,c"]
        assert [group.text for group in groups_from(["x"], [], config)] == ["x"]
        assert [group.text for group in groups_from([], ["x"], config)] == ["x"]

    def test_none_at_all_is_an_error_that_shows_how(self) -> None:
        with pytest.raises(UsageError, match="kiqcluster -r app") as caught:
            groups_from([], [], Config())

        assert caught.value.exit_code == ExitCode.USAGE

    def test_strict_and_negate_hold_for_every_group(self) -> None:
        groups = groups_from(["a"], ["b"], Config(strict=True, negate=True))

        assert all(group.strict and group.negated for group in groups)

    def test_the_same_group_may_be_run_many_times(self) -> None:
        assert len(plan_slots(groups_from(["*", "*", "*"], [], Config()), KNOWN, Config())) == 3


class TestShards:
    SHARDS = parse_shards({"eu": "redis://eu/0", "us": {"redis": "redis://us/0"}})

    def test_a_group_has_the_shard_that_it_names_else_that_of_the_flag(self) -> None:
        groups = (GroupSetting("a", "eu"), "b", GroupSetting("c", "default"))
        plain, flag = Config(groups=groups, shards=self.SHARDS), Config(groups=groups, shards=self.SHARDS, shard="us")

        assert [(group.text, group.shard) for group in groups_from([], [], plain)] == [
            ("a", "eu"),
            ("b", ""),
            ("c", ""),
        ]
        assert [group.shard for group in groups_from([], [], flag)] == ["eu", "us", ""]
        assert [group.shard for group in groups_from(["x"], ["y"], flag)] == ["us", "us"]
        assert groups_from(["x"], [], flag) != groups_from(["x"], [], plain)

    def test_a_group_serves_the_queues_of_its_shard(self) -> None:
        jobs = (
            replace(attributes_of("A", "a", {"urgency": "high"}), shard="eu"),
            attributes_of("B", "b", {"urgency": "high"}),
            attributes_of(None, "ruby", {}),
        )
        config = Config(shards=self.SHARDS)
        groups = [replace(group, shard=shard) for shard in ("", "eu", "us") for group in groups_from(["*"], [], config)]
        selectors = [
            replace(group, shard=shard)
            for shard in ("", "eu")
            for group in groups_from(["urgency=high"], [], Config(queue_selector=True))
        ]

        plans = plan_slots([*groups, *selectors], ["a", "b", "ruby"], config, jobs)

        assert [list(plan.weights) for plan in plans] == [["b", "ruby"], ["a", "ruby"], ["ruby"], ["b"], ["a"]]
        assert [plan.as_json().get("shard") for plan in plans] == [None, "eu", "us", None, "eu"]

    def test_a_selector_serves_what_its_classes_have_left_in_another_shard(self) -> None:
        """Rules have moved Moved and Shared to eu, and Back has been there.  Kept's queue is Shared's own."""
        rules = parse_rules([["worker_name=Moved", "new", "eu"], ["worker_name=Shared", "", "eu"]])
        high = {"urgency": "high"}
        jobs = [
            routed(rules, attributes_of(name, queue, options))
            for name, queue, options in (
                ("Moved", "old", {**high, "weight": 3}), ("Shared", "kept", high), ("Kept", "kept", {}),
                ("Back", "back", high),
            )
        ]  # fmt: skip
        config = Config(queue_selector=True, shards=self.SHARDS)
        groups = groups_from([], [], replace(config, groups=("urgency=high", GroupSetting("*", "eu"), "urgency=low")))
        negated = groups_from(["urgency=low"], [], replace(config, negate=True))

        plans = plan_slots([*groups, *negated], ["new", "kept", "back"], config, jobs)

        assert [list(plan.weights) for plan in plans] == [["back"], ["kept", "new"], ["kept"], ["back"]]
        assert [getattr(plan.group, "left_behind", None) for plan in plans] == [
            {"new": 3, "old": 3}, {"back": 1}, {}, {"new": 3, "old": 3},
        ]  # fmt: skip
        assert [plan.concurrency for plan in plans] == [5] * 4
        only = plan_slots(groups[:1], ["new"], config, jobs[:1])
        assert only[0].weights == {}, "the process still starts, for what waits"


class TestSelectors:
    CONFIG = Config(queue_selector=True)
    JOBS = (
        attributes_of("Nightly", "cronjob:nightly", {"urgency": "throttled"}),
        attributes_of("Send", "mailers", {"urgency": "high", "weight": 4}),
        attributes_of("Other", "default", {}),
    )

    def test_each_argument_is_one_selector_and_so_is_each_group_of_the_configuration(self) -> None:
        config = Config(queue_selector=True, groups=("urgency=high", "*"))

        assert [group.text for group in groups_from(["tags=a|urgency=low"], [], config)] == ["tags=a|urgency=low"]
        assert [group.text for group in groups_from([], [], config)] == ["urgency=high", "*"]

    def test_a_slot_has_the_queues_of_the_jobs_that_match_and_its_selector(self) -> None:
        plans = plan_slots(groups_from(["urgency=high", "*"], [], self.CONFIG), KNOWN, self.CONFIG, self.JOBS)

        assert [plan.as_json() for plan in plans] == [
            {"slot": 0, "queues": {"mailers": 4}, "mode": "random", "concurrency": 5, "selector": "urgency=high"},
            {
                "slot": 1,
                "queues": {"cronjob:nightly": 1, "default": 1, "mailers": 4},
                "mode": "weighted",
                "concurrency": 5,
                "selector": "*",
            },
        ]

    def test_negate_holds_for_every_selector(self) -> None:
        config = Config(queue_selector=True, negate=True)
        groups = groups_from(["urgency=high", "urgency=low"], [], config)

        plans = plan_slots(groups, KNOWN, config, self.JOBS)

        assert [list(plan.weights) for plan in plans] == [
            ["cronjob:nightly", "default"],
            ["cronjob:nightly", "mailers"],
        ]
        with pytest.raises(UsageError, match="leaves no queue"):
            plan_slots(groups_from(["*"], [], config), KNOWN, config, self.JOBS)

    def test_one_that_matches_nothing_is_an_empty_slot_and_all_of_them_are_an_error(self) -> None:
        groups = groups_from(["worker_name=Sned", "urgency=low"], [], self.CONFIG)

        assert plan_slots(groups, KNOWN, self.CONFIG, self.JOBS)[0].weights == {}
        with pytest.raises(UsageError, match="no registered job has worker_name=Sned; did you mean worker_name=Send"):
            plan_slots(groups[:1], KNOWN, self.CONFIG, self.JOBS)
        with pytest.raises(UsageError, match=r"matches 'urgency=low&urgency=high'$"):
            plan_slots(groups_from(["urgency=low&urgency=high"], [], self.CONFIG), KNOWN, self.CONFIG, self.JOBS)

    @pytest.mark.parametrize(
        ("arguments", "options", "config", "words"),
        [
            (["*"], ["mailers"], Config(queue_selector=True), "name=mailers"),
            (["*"], [], Config(queue_selector=True, strict=True), "--strict"),
            ([], [], Config(queue_selector=True), "no selector given"),
            (["mailers"], [], Config(queue_selector=True), "no attribute 'mailers'"),
        ],
    )
    def test_what_does_not_go_with_selectors_is_refused(
        self, arguments: list[str], options: list[str], config: Config, words: str
    ) -> None:
        with pytest.raises(UsageError, match=words) as caught:
            groups_from(arguments, options, config)

        assert caught.value.exit_code == ExitCode.USAGE


class TestListing:
    @pytest.mark.parametrize(
        ("arguments", "listing"),
        [
            (["a.py", "b.py"], ["b.py", "a.py"]),
            (["a.py", "b.py"], ["b.py", ".git", "a.py"]),
            (["app", "README.md"], ["README.md", "app"]),
            (["only"], ["only"]),
        ],
    )
    def test_the_files_of_the_directory_are_refused_in_whatever_order_the_shell_has(
        self, arguments: list[str], listing: list[str]
    ) -> None:
        with pytest.raises(UsageError, match=r"unquoted \*"):
            refuse_listing(arguments, listing)

    @pytest.mark.parametrize(
        ("arguments", "listing"),
        [(["a"], ["a", "b"]), (["a", "b"], ["a"]), ([], []), ([], [".git"]), (["default"], []), (["a", "a"], ["a"])],
    )
    def test_anything_else_is_a_group(self, arguments: list[str], listing: list[str]) -> None:
        refuse_listing(arguments, listing)
        groups = groups_from(arguments, ["one-more"], Config())

        assert [group.text for group in groups] == [*arguments, "one-more"]


class TestPlans:
    def test_a_slot_has_number_queues_mode_and_threads(self) -> None:
        config = Config()
        plans = plan_slots(groups_from(["*", "default=3,mailers"], [], config), KNOWN, config)

        assert [plan.as_json() for plan in plans] == [
            {"slot": 0, "queues": dict.fromkeys(KNOWN, 1), "mode": "random", "concurrency": 5},
            {"slot": 1, "queues": {"default": 3, "mailers": 1}, "mode": "weighted", "concurrency": 5},
        ]
        assert json.loads(json.dumps([plan.as_json() for plan in plans]))

    def test_strict_is_shown(self) -> None:
        config = Config(strict=True)

        assert plan_slots(groups_from(["b,a"], [], config), [], config)[0].as_json()["mode"] == "strict"

    @pytest.mark.parametrize(
        ("config", "threads"),
        [
            (Config(), 5),
            (Config(min_concurrency=0), 3),
            (Config(max_concurrency=0), 5),
            (Config(concurrency=7), 7),
            (Config(concurrency=7, max_concurrency=2), 7),
            (Config(max_concurrency=2), 2),
            (Config(min_concurrency=10), 10),
            (Config(min_concurrency=50), 20),
        ],
    )
    def test_threads_are_as_given_or_by_the_number_of_queues(self, config: Config, threads: int) -> None:
        (plan,) = plan_slots(groups_from(["default,mailers"], [], config), [], config)

        assert plan.concurrency == threads

    def test_a_glob_without_queues_yet_starts_with_the_fewest_threads(self) -> None:
        (plan,) = plan_slots(groups_from(["billing:*"], [], Config()), KNOWN, Config())

        assert (plan.weights, plan.concurrency) == ({}, 5)

    def test_a_negation_that_leaves_nothing_is_refused_in_any_slot(self) -> None:
        config = Config(negate=True)

        with pytest.raises(UsageError, match="leaves no queue"):
            plan_slots(groups_from(["default", "*"], [], config), KNOWN, config)
        with pytest.raises(UsageError, match="none known"):
            plan_slots(groups_from(["default"], [], config), [], config)

    @pytest.mark.parametrize(
        ("config", "names"),
        [
            (Config(), []),
            (Config(health_ready_quorum=2, roll_min_serving=2), []),
            (Config(health_ready_quorum=3), ["health.ready_quorum"]),
            (Config(min_concurrency=9, max_concurrency=3), ["min_concurrency"]),
            (Config(min_concurrency=21), ["min_concurrency"]),
            (Config(min_concurrency=3, max_concurrency=3), []),
            (Config(max_concurrency=2), []),
            (Config(min_concurrency=9, max_concurrency=0), []),
            (Config(min_concurrency=9, max_concurrency=3, concurrency=1), []),
            (Config(health_ready_quorum=5, roll_min_serving=9), ["health.ready_quorum", "roll.min_serving"]),
        ],
    )
    def test_numbers_that_do_not_go_together_are_odd(self, config: Config, names: list[str]) -> None:
        assert [text.split(" ")[0] for text in setting_warnings(config, 2)] == names

    def test_the_list_of_queues_is_the_sorted_union(self) -> None:
        plans = plan_slots(groups_from(["mailers,zeta", "*"], [], Config()), KNOWN, Config())

        assert listed_queues(plans) == ["cronjob:nightly", "default", "mailers", "zeta"]
