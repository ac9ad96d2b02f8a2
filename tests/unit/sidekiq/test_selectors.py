"""Selectors: what an expression selects, and how a mistake in one is told."""

from __future__ import annotations

import pytest

from kiqcluster.errors import ExitCode, UsageError
from kiqcluster.sidekiq.selectors import (
    ATTRIBUTES,
    DECLARED,
    MAX_DEPTH,
    JobAttributes,
    SelectorError,
    attributes_of,
    parse,
)

JOBS = {
    name: attributes_of(name, queue, declared)
    for name, queue, declared in (
        ("Merge", "merge", {"feature_category": "code", "urgency": "high", "resource_boundary": "cpu"}),
        ("Post", "chat", {"feature_category": "chat", "urgency": "high", "tags": ["a", "b"]}),
        ("Mirror", "mirror", {"feature_category": "code", "external_dependencies": True, "tags": ["b", "c"]}),
        ("Backup", "cronjob:backup", {"queue_namespace": "cronjob", "resource_boundary": "memory", "tags": ["c"]}),
        ("Plain", "plain-queue", {}),
        ("Purge", "purge", {"urgency": "throttled", "idempotent": True, "data_consistency": "delayed"}),
    )
}


def selected(text: str) -> str:
    """Return the names of the jobs that a selector matches."""
    selector = parse(text)
    return " ".join(name for name, job in JOBS.items() if selector.matches(job.values))


class TestGitLab:
    """GitLab's documented selectors; each line is a behaviour of its worker_matcher."""

    @pytest.mark.parametrize(
        ("text", "names"),
        [
            ("*", "Merge Post Mirror Backup Plain Purge"),
            ("  *  ", "Merge Post Mirror Backup Plain Purge"),
            ("worker_name=Merge", "Merge"),
            ("worker_name!=Merge", "Post Mirror Backup Plain Purge"),
            ("name=chat,merge", "Merge Post"),
            ("name=cronjob:backup", "Backup"),
            ("feature_category=code,chat", "Merge Post Mirror"),
            ("feature_category!=code", "Post Backup Plain Purge"),  # a job without one is not in the list
            ("urgency=high", "Merge Post"),
            ("urgency=high,throttled", "Merge Post Purge"),
            ("urgency!=high", "Mirror Backup Plain Purge"),
            ("resource_boundary=memory,cpu", "Merge Backup"),
            ("resource_boundary!=cpu", "Post Mirror Backup Plain Purge"),
            ("has_external_dependencies=true", "Mirror"),
            ("has_external_dependencies=false", "Merge Post Backup Plain Purge"),
            ("queue_namespace=cronjob", "Backup"),
            ("tags=a", "Post"),
            ("tags=a,c", "Post Mirror Backup"),  # sets that intersect
            ("tags!=a", "Merge Mirror Backup Plain Purge"),
            ("tags!=a,c", "Merge Plain Purge"),  # sets that are disjoint
            ("feature_category=code&urgency=high", "Merge"),
            ("tags=b&tags!=a", "Mirror"),
            ("feature_category=chat|has_external_dependencies=true", "Post Mirror"),
            ("feature_category=code&urgency=high|tags=c", "Merge Mirror Backup"),  # & binds tighter than |
            ("tags=c|feature_category=code&urgency=high", "Merge Mirror Backup"),
        ],
    )
    def test_it_selects_the_same_jobs(self, text: str, names: str) -> None:
        assert selected(text) == names

    @pytest.mark.parametrize(
        ("text", "instead"),
        [
            ("name=my-queue", ""),  # there it selects the queue `my`
            ("name=plain-queue", "Plain"),
            ("name=chat , merge", "Merge Post"),  # blanks are an error there
            ("urgency = high", "Merge Post"),
        ],
    )
    def test_a_value_is_read_to_its_end_and_blanks_mean_nothing(self, text: str, instead: str) -> None:
        assert selected(text) == instead

    def test_what_follows_the_values_is_refused_instead_of_ignored(self) -> None:
        with pytest.raises(SelectorError, match="'zzz' is one too many"):
            parse("name=a:b,c zzz")


class TestMore:
    @pytest.mark.parametrize(
        ("text", "names"),
        [
            ("(feature_category=chat|tags=c)&urgency=high", "Post"),
            ("feature_category=code&(urgency=high|tags=c)", "Merge Mirror"),
            ("((tags=a))", "Post"),
            ("(*)&tags=a|tags=c&*", "Post Mirror Backup"),
            ("queue=chat", "Post"),
            ("external_dependencies=true", "Mirror"),
            ("idempotent=true", "Purge"),
            ("data_consistency=delayed", "Purge"),
            ("data_consistency=always", "Merge Post Mirror Backup Plain"),
        ],
    )
    def test_parentheses_group_and_options_have_their_own_names(self, text: str, names: str) -> None:
        assert selected(text) == names

    def test_a_namespace_is_that_of_the_queue_unless_the_job_declares_one(self) -> None:
        assert attributes_of("A", "cronjob:a:b", {}).values["queue_namespace"] == {"cronjob"}
        assert attributes_of("A", "cronjob:a:b", {"queue_namespace": "cronjob:a"}).values["queue_namespace"] == {
            "cronjob:a"
        }
        assert attributes_of("A", "cronjob", {}).values["queue_namespace"] == frozenset()

    def test_a_queue_without_a_known_class_has_every_default_and_no_name(self) -> None:
        job = attributes_of(None, "ruby", {})

        assert parse("name=ruby&urgency=low&resource_boundary=unknown").matches(job.values)
        assert not parse("worker_name=ruby").matches(job.values)
        assert parse("worker_name!=ruby").matches(job.values)

    def test_every_attribute_that_a_job_declares_can_be_selected_but_its_weight(self) -> None:
        declared = {"external_dependencies": "has_external_dependencies"}

        assert {declared.get(name, name) for name in DECLARED} - {"weight"} == ATTRIBUTES.keys() - {
            "worker_name",
            "name",
        }
        assert attributes_of("A", "a", {"weight": 4, "retry": 3}) == JobAttributes(
            "a", attributes_of("A", "a", {}).values, 4
        )


class TestMistakes:
    @pytest.mark.parametrize(
        ("text", "position", "words"),
        [
            ("", 0, "a term is missing at the end"),
            ("   ", 3, "a term is missing at the end"),
            ("urgncy=high", 0, "no attribute 'urgncy'; did you mean 'urgency'?"),
            ("tags=a & clas=B", 9, "no attribute 'clas'"),
            ("class=B", 0, "class is here: worker_name"),
            ("external=true", 0, "no attribute 'external'"),
            ("urgency=hihg", 8, "urgency has no value 'hihg'; did you mean 'high'?"),
            ("urgency=high,medium", 13, "it has low, high, throttled"),
            ("has_external_dependencies=yes", 26, "it has false, true"),  # there anything but true is false
            ("urgency", 7, "after 'urgency' comes = or !="),
            ("urgency high", 8, "after 'urgency' comes = or !="),
            ("urgency==high", 8, "a value of urgency is missing before '='"),
            ("urgency=", 8, "a value of urgency is missing at the end"),
            ("tags=a,", 7, "a value of tags is missing at the end"),
            ("tags=,a", 5, "a value of tags is missing before ','"),
            ("=high", 0, "a term is missing before '='"),
            ("tags=a&", 7, "a term is missing at the end"),
            ("tags=a&&tags=b", 7, "a term is missing before '&'"),
            ("tags=a||tags=b", 7, "a term is missing before '|'"),
            ("tags=a tags=b", 7, "'tags' is one too many"),
            ("tags=a or tags=b", 7, "'or' is one too many"),
            ("(tags=a", 7, "a ) is missing; the ( is character 1"),
            ("(tags=a tags=b)", 8, "'tags' is one too many; the ( is character 1"),
            ("tags=a)", 6, "')' is one too many"),
            ("()", 1, "a term is missing before ')'"),
            ("!tags=a", 0, "'!' has no meaning here"),
            ("tags=a*", 5, "'*' stands alone"),
            ("name=cronjob:*", 5, "'*' stands alone"),
            ("*=a", 1, "'=' is one too many"),
            ("tags=a\n|tags=b", 6, "a line break or another control character"),
            ("(" * (MAX_DEPTH + 1) + "*", MAX_DEPTH, "more than 50 parentheses"),
        ],
    )
    def test_it_is_told_with_its_place(self, text: str, position: int, words: str) -> None:
        with pytest.raises(SelectorError) as caught:
            parse(text)

        assert words in str(caught.value)
        assert caught.value.position == position
        assert str(caught.value).startswith(f"selector {text!r}, character {position + 1}: ")

    def test_it_is_a_usage_error(self) -> None:
        with pytest.raises(UsageError) as caught:
            parse("urgncy=high")

        assert caught.value.exit_code == ExitCode.USAGE

    def test_where_only_some_attributes_are_known_the_others_are_refused_with_the_reason(self) -> None:
        with pytest.raises(SelectorError, match=r"'urgency' is not known here, since payloads do not carry it; .*tags"):
            parse("urgency=high", ("worker_name", "tags"), ", since payloads do not carry it")
        with pytest.raises(SelectorError, match="no attribute 'tag'; tag is here: tags"):
            parse("tag=a", ("worker_name", "tags"))

    def test_values_that_no_job_has_are_found_with_the_nearest_that_one_has(self) -> None:
        unheard_of = parse("feature_category=cod,code&tags!=zzz|urgency=high").unheard_of

        assert list(unheard_of(JOBS.values())) == [("feature_category", "cod", "code"), ("tags", "zzz", "")]


def test_the_order_of_terms_is_kept() -> None:
    assert [(term.attribute, term.values, term.is_negated) for term in parse("tags!=b,a|(name=c)").terms] == [
        ("tags", ("b", "a"), True),
        ("name", ("c",), False),
    ]
