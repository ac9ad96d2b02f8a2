"""Routing rules: their forms, which one decides, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from kiqcluster.errors import UsageError
from kiqcluster.sidekiq.routing import digest, first_match, parse_rules, routed, unused_rules
from kiqcluster.sidekiq.selectors import attributes_of

JOBS = [
    attributes_of(name, queue, declared)
    for name, queue, declared in (
        ("Merge", "merge", {"urgency": "high", "resource_boundary": "cpu"}),
        ("Post", "chat", {"urgency": "high", "tags": ["a", "b"]}),
        ("Backup", "cronjob:backup", {"queue_namespace": "cronjob"}),
        ("Plain", "default", {}),
    )
]


def queues(*rules: Any) -> list[str]:
    return [routed(parse_rules(rules), job).queue for job in JOBS]


def test_the_first_rule_that_matches_decides() -> None:
    assert queues(["resource_boundary=cpu", "cpu"], ["urgency=high", "urgent"], ["*", "rest"]) == [
        "cpu", "urgent", "rest", "rest",
    ]  # fmt: skip
    assert first_match(parse_rules([["tags=b", "x"], ["urgency=high", "y"]]), JOBS[1].values) == 0


def test_without_a_match_or_with_an_empty_queue_it_is_the_own_one() -> None:
    assert queues(["tags=a", "tagged"]) == ["merge", "tagged", "cronjob:backup", "default"]
    assert queues(["queue_namespace=cronjob", ""], ["name=default", None], ["*", "all"]) == [
        "all", "all", "cronjob:backup", "default",
    ]  # fmt: skip


def test_both_forms_are_the_same_rules() -> None:
    tables = parse_rules([{"selector": "urgency=high", "queue": "u"}, {"selector": "*", "queue": "d"}])
    pairs = parse_rules([["urgency=high", "u"], ("*", "d")])

    assert tables == pairs == parse_rules('[["urgency=high", "u"], ["*", "d"]]') == parse_rules(pairs)
    assert [str(rule) for rule in pairs] == ['["urgency=high", "u"]', '["*", "d"]']


def test_selectors_of_workers_see_the_queue_to_which_a_class_is_routed() -> None:
    job = routed(parse_rules([["name=chat", "talk"]]), JOBS[1])

    assert (job.queue, job.values["name"], job.values["tags"]) == ("talk", {"talk"}, {"a", "b"})


def test_the_third_element_is_the_shard() -> None:
    rules = parse_rules(
        [["tags=a", "", "eu"], {"selector": "urgency=high", "queue": "u", "shard": "us"}, ["*", "d", "default"]]
    )

    assert [(job.queue, job.shard) for job in (routed(rules, job) for job in JOBS)] == [
        ("u", "us"), ("chat", "eu"), ("d", ""), ("d", ""),
    ]  # fmt: skip
    assert digest(rules) != digest(parse_rules([["tags=a", ""], ["urgency=high", "u"], ["*", "d"]]))
    assert parse_rules([rule.as_list() for rule in rules]) == rules


def test_the_digest_names_the_rules() -> None:
    rules = parse_rules([["urgency=high", "u"], ["*", "d"]])

    assert digest(()) == ""
    assert digest(rules) == digest(parse_rules([{"selector": "urgency=high", "queue": "u"}, ["*", "d"]]))
    assert len({digest(parse_rules(each)) for each in ([["*", "d"]], [["*", "e"]], [["name=d", "d"]])}) == 3


def test_rules_that_route_no_class_are_told_with_a_hint() -> None:
    rules = parse_rules([["tags=c", "c"], ["name=chta", "chat"], ["*", "rest"]])

    assert list(unused_rules(rules, JOBS)) == [(1, "is that right?"), (2, "did you mean name=chat?")]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ("urgency=high", "it is no JSON"),
        ({"selector": "*"}, "it takes a list of rules"),
        ([["*"]], "rule 1: ['*'] is none"),
        ([["*", "a", "b", "c"]], "rule 1"),
        ([["*", "a", 7]], "rule 1: its shard is a name"),
        (["*"], "rule 1"),
        ([{"selector": "*"}], "rule 1 has no queue"),
        ([["name=a", "a"], {"selector": "*", "queue": "d", "quue": 1}], "rule 2: there is no key 'quue'"),
        ([["*", 7]], "rule 1: its queue is a name"),
        ([[["*"], "d"]], "rule 1: its selector is a text"),
        (
            [["urgncy=high", "u"]],
            "rule 1: selector 'urgncy=high', character 1: there is no attribute 'urgncy'; did you",
        ),
        ([["urgency=hgih", "u"]], "urgency has no value 'hgih'; did you mean 'high'?"),
        ([["urgency=high tags=a", "u"]], "one too many"),
        ([["", "u"]], "a term is missing"),
        ([["*", "two words"]], "rule 1: queue name 'two words'"),
        ([["*", "cronjob:*"]], "rule 1: queue name"),
    ],
)
def test_a_rule_that_cannot_be_used_is_refused_with_its_number(raw: Any, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_rules(raw)

    assert words in str(caught.value)


class TestUnreachable:
    @pytest.mark.parametrize(
        ("selectors", "words"),
        [
            (["urgency=high&urgency=low"], "rule 1: no job can match"),
            (["tags=a&tags!=a"], "rule 1: no job can match"),
            (["urgency!=high,low,throttled"], "rule 1: no job can match"),
            (["*", "urgency=high"], "rule 2: no job ever comes to 'urgency=high', because rule 1 ('*')"),
            (["urgency=high", "urgency=high&tags=a"], "because rule 1"),
            (["urgency=high,low", "tags=a", "urgency=low&name=q"], "rule 3: no job ever comes"),
            (["tags=a,b", "tags=b"], "rule 2"),
            (["tags!=a", "tags!=a,b"], "rule 2"),
            (["urgency!=high", "urgency=low|urgency=throttled"], "rule 2"),
            (["name=a", "name=b", "name=b|name=a"], "rule 3"),
            (["feature_category!=x", "feature_category=y"], "rule 2"),
        ],
    )
    def test_a_rule_that_no_job_comes_to_is_refused(self, selectors: list[str], words: str) -> None:
        with pytest.raises(UsageError) as caught:
            parse_rules([[text, "q"] for text in selectors])

        assert words in str(caught.value)

    @pytest.mark.parametrize(
        "selectors",
        [
            ["urgency=high&tags=a", "urgency=high", "*"],
            ["tags=a&tags=b"],  # a job may have both
            ["tags=b", "tags=a,b"],
            ["tags!=a,b", "tags!=a"],
            ["urgency=high|tags!=a", "tags=a"],
            ["feature_category!=x", "feature_category!=y"],
            ["name=a|queue_namespace=b", "name!=a"],
            ["&".join(f"(tags=a{n}|tags=b{n})" for n in range(30)), "*"],  # too many clauses to look at
        ],
    )
    def test_a_rule_that_a_job_may_come_to_is_not(self, selectors: list[str]) -> None:
        assert len(parse_rules([[text, "q"] for text in selectors])) == len(selectors)
