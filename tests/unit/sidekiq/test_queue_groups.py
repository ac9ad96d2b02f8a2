"""Queue groups: what an argument stands for, and what is refused."""

from __future__ import annotations

import pytest

from kiqcluster.errors import ExitCode, UsageError
from kiqcluster.sidekiq.queue_groups import Group, concurrency_for, parse_group, parse_queue_option

KNOWN = ("cronjob", "cronjob:nightly", "cronjob:hourly", "cronjobs", "default", "mailers", "mailers:bulk")


def expand(text: str, *, negated: bool = False) -> dict[str, int]:
    return parse_group(text, negated=negated).expand(KNOWN)


class TestExpansion:
    def test_names_stand_for_themselves_in_the_order_written_known_or_not(self) -> None:
        assert list(expand("zeta,default,alpha")) == ["zeta", "default", "alpha"]

    def test_a_name_takes_in_its_namespace_and_no_other_name_that_begins_alike(self) -> None:
        assert list(expand("cronjob")) == ["cronjob", "cronjob:hourly", "cronjob:nightly"]

    def test_a_namespace_glob_leaves_the_bare_name_out(self) -> None:
        assert list(expand("cronjob:*")) == ["cronjob:hourly", "cronjob:nightly"]

    def test_a_star_is_every_known_queue(self) -> None:
        assert expand("*") == dict.fromkeys(sorted(KNOWN), 1)

    def test_a_glob_that_matches_nothing_yet_is_an_empty_group(self) -> None:
        assert expand("billing:*") == {}
        assert parse_group("*").expand([]) == {}

    def test_a_glob_is_no_queue_name_of_its_own(self) -> None:
        assert "cronjob:*" not in expand("cronjob:*,default")

    def test_each_queue_is_there_once_whatever_names_it(self) -> None:
        assert list(expand("cronjob:nightly,cronjob,*"))[:3] == ["cronjob:nightly", "cronjob", "cronjob:hourly"]
        assert sorted(expand("cronjob:nightly,cronjob,*")) == sorted(KNOWN)

    def test_names_with_the_letters_of_a_pattern_are_plain_names(self) -> None:
        assert list(parse_group("a.b").expand(["a.b:x", "aXb:x"])) == ["a.b", "a.b:x"]


class TestWeights:
    def test_a_weight_is_written_behind_an_equals_sign(self) -> None:
        assert expand("a=5,b") == {"a": 5, "b": 1}

    def test_a_name_that_comes_twice_weighs_two(self) -> None:
        assert expand("a,b,a") == expand("a=2,b")

    def test_weights_of_a_name_that_comes_twice_add_up(self) -> None:
        assert expand("a=5,a,a=2") == {"a": 8}

    @pytest.mark.parametrize("text", ["cronjob=3", "cronjob:*=3"])
    def test_the_weight_of_a_namespace_holds_for_each_of_its_queues(self, text: str) -> None:
        assert set(expand(text).values()) == {3}

    @pytest.mark.parametrize("text", ["*,default=4", "default=4,*"])
    def test_a_named_queue_keeps_its_weight_beside_a_star(self, text: str) -> None:
        weights = expand(text)

        assert weights.pop("default") == 4
        assert weights == {name: 1 for name in KNOWN if name != "default"}

    @pytest.mark.parametrize("text", ["*,cronjob=3", "cronjob=3,*", "*=1,cronjob=3"])
    def test_a_named_namespace_keeps_its_weight_beside_a_star(self, text: str) -> None:
        weights = expand(text)

        assert {name for name, weight in weights.items() if weight == 3} == {
            "cronjob",
            "cronjob:hourly",
            "cronjob:nightly",
        }

    @pytest.mark.parametrize("text", ["cronjob=2,cronjob:nightly=7", "cronjob:nightly=7,cronjob=2"])
    def test_a_queue_of_a_namespace_keeps_the_weight_of_its_own_name(self, text: str) -> None:
        assert expand(text) == {"cronjob": 2, "cronjob:hourly": 2, "cronjob:nightly": 7}

    @pytest.mark.parametrize("text", ["a=2,a:b=5", "a:b=5,a=2"])
    def test_of_two_namespaces_the_longer_one_gives_the_weight(self, text: str) -> None:
        assert parse_group(text).expand(["a:x", "a:b:c"]) == {"a": 2, "a:x": 2, "a:b": 5, "a:b:c": 5}

    def test_a_star_may_weigh_too(self) -> None:
        assert set(expand("*=2").values()) == {2}

    @pytest.mark.parametrize("weight", ["1", "1000", "007"])
    def test_weights_from_1_to_1000_are_weights(self, weight: str) -> None:
        assert expand(f"a={weight}") == {"a": int(weight)}

    @pytest.mark.parametrize(
        "weight", ["", "0", "-1", "+1", "1.5", "x", " 1", "1001", "9" * 5_000, "1_0", "²", "٣", "5=6"]
    )
    def test_everything_else_is_none(self, weight: str) -> None:
        with pytest.raises(UsageError, match="is not a weight"):
            parse_group(f"a={weight}")


class TestMode:
    @pytest.mark.parametrize(
        ("text", "mode"),
        [("a", "random"), ("a,b", "random"), ("a=2,b=2", "random"), ("a=2,b", "weighted"), ("a,b,a", "weighted")],
    )
    def test_it_is_random_when_all_weigh_the_same(self, text: str, mode: str) -> None:
        group = parse_group(text)

        assert group.mode(group.expand([])) == mode

    def test_a_group_without_queues_is_random(self) -> None:
        assert parse_group("*").mode({}) == "random"

    def test_strict_is_the_order_written(self) -> None:
        group = parse_group("b,a", strict=True)

        assert group.mode(group.expand([])) == "strict"
        assert list(group.expand([])) == ["b", "a"]

    @pytest.mark.parametrize("text", ["a=2,b", "a=1,b", "a,b,a"])
    def test_weights_under_strict_are_an_error(self, text: str) -> None:
        with pytest.raises(UsageError, match="strict"):
            parse_group(text, strict=True)


class TestNegation:
    def test_it_leaves_every_known_queue_but_those_named(self) -> None:
        assert expand("cronjob,mailers:*", negated=True) == {"cronjobs": 1, "default": 1, "mailers": 1}

    def test_a_namespace_glob_spares_the_bare_name(self) -> None:
        assert "cronjob" in expand("cronjob:*", negated=True)

    def test_all_but_all_is_nothing(self) -> None:
        assert expand("*", negated=True) == {}

    def test_names_that_nobody_knows_take_nothing_away(self) -> None:
        assert list(expand("unheard-of", negated=True)) == sorted(KNOWN)


class TestRefused:
    @pytest.mark.parametrize(
        "text",
        [
            "",
            ",",
            "a,",
            ",a",
            "a,,b",
            " a",
            "a ",
            "a, b",
            "default mailers",
            "a b=2",
            "=5",
            "a\nb",
            "a\r",
            "a\x00",
            "a\x1b[0m",
            "a\u2028",
            "a*",
            "*a",
            "**",
            "a:*:b",
            "*:*",
            "a:**",
            ":*",
            "cron*job",
        ],
    )
    def test_names_that_are_none(self, text: str) -> None:
        with pytest.raises(UsageError) as caught:
            parse_group(text)

        assert caught.value.exit_code == ExitCode.USAGE

    @pytest.mark.parametrize("option", ["", ",5", "a,", "a,0", "a,x", "a,1,2", "a\nb", "a*,1", "a b", " a,2"])
    def test_queue_options_that_are_none(self, option: str) -> None:
        with pytest.raises(UsageError):
            parse_queue_option([option])

    def test_a_space_between_names_is_told_to_be_a_comma(self) -> None:
        with pytest.raises(UsageError, match="a comma"):
            parse_group("default mailers")


class TestUnheardOf:
    @pytest.mark.parametrize(
        ("text", "names"),
        [
            ("default,mailers", []),
            ("defualt,mailers", ["defualt"]),
            ("a,5", ["a", "5"]),
            ("mail", ["mail"]),
            ("cronjob:nightly=3,start", ["start"]),
            ("billing:*", []),
            ("*", []),
        ],
    )
    def test_a_name_is_that_stands_for_no_known_queue(self, text: str, names: list[str]) -> None:
        assert parse_group(text).unheard_of(KNOWN) == names

    @pytest.mark.parametrize(
        ("name", "hint"),
        [
            ("defualt", "did you mean default?"),
            ("mailer", "did you mean mailers?"),
            ("crnojob", "did you mean cronjob?"),
            ("cronjob:nigthly", "did you mean cronjob:nightly?"),
            ("zzz", "is that name right?"),
            ("x" * 100_000, "is that name right?"),
        ],
    )
    def test_the_nearest_known_name_is_given_for_it(self, name: str, hint: str) -> None:
        known = ["default", "mailers", "cronjob:nightly", "y" * 100_000, *map(str, range(500))]

        assert parse_group(name).hint_for([name], known) == hint

    def test_a_bare_name_is_known_by_the_queues_of_its_namespace(self) -> None:
        assert parse_group("cronjob").unheard_of(["cronjob:nightly"]) == []

    def test_a_negated_name_too(self) -> None:
        assert parse_group("defualt", negated=True).unheard_of(KNOWN) == ["defualt"]


class TestQueueOption:
    def test_repeated_options_make_one_group(self) -> None:
        group = parse_queue_option(["critical,5", "default"])

        assert group.expand([]) == {"critical": 5, "default": 1}
        assert group.text == "critical=5,default"

    def test_its_text_is_a_group_argument_of_the_same_meaning(self) -> None:
        group = parse_queue_option(["a,2", "b", "a"])

        assert parse_group(group.text).patterns == group.patterns

    def test_weights_under_strict_are_an_error(self) -> None:
        with pytest.raises(UsageError, match="strict"):
            parse_queue_option(["a,1"], strict=True)

    def test_an_equals_sign_is_part_of_a_name_here(self) -> None:
        assert parse_queue_option(["a=b,2"]).expand([]) == {"a=b": 2}


@pytest.mark.parametrize(
    ("queues", "smallest", "largest", "threads"),
    [
        (2, 0, 0, 3),
        (2, 0, 9, 3),
        (2, 1, 4, 3),
        (2, 4, 5, 4),
        (5, 2, 3, 3),
        (2, 1, 1, 1),
        (0, 3, 3, 3),
        (1, 4, 3, 3),
        (0, 0, 20, 1),
        (100, 0, 20, 20),
        (1, 5, 0, 5),
        (1, 5, 20, 5),
        (7, 5, 20, 8),
    ],
)
def test_threads_are_one_per_queue_and_a_spare_within_two_limits(
    queues: int, smallest: int, largest: int, threads: int
) -> None:
    assert concurrency_for(queues, smallest, largest) == threads


def test_a_group_is_a_value() -> None:
    assert parse_group("a=2,b") == parse_group("a=2,b")
    assert isinstance(hash(parse_group("a")), int)
    assert isinstance(parse_group("a"), Group)
