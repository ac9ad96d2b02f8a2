"""Laws of selectors: a text means what its tree means, and anything that is no selector is refused with a place."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiqcluster.sidekiq.queue_groups import SelectorGroup
from kiqcluster.sidekiq.selectors import SelectorError, attributes_of, parse

URGENCIES, TAGS, NAMES = ("low", "high", "throttled"), ("a", "b", "c"), ("A", "B", "C::D")

jobs = st.builds(
    lambda name, queue, urgency, tags, weight: attributes_of(
        name, queue, {"urgency": urgency, "tags": tags, "weight": weight}
    ),
    st.sampled_from(NAMES),
    st.sampled_from(["q", "q:r", "s"]),
    st.sampled_from(URGENCIES),
    st.lists(st.sampled_from(TAGS)),
    st.integers(1, 9),
)
signs = st.sampled_from(["=", "!="])
blanks = st.sampled_from(["", " ", "  "])


def terms(attribute: str, values: tuple[str, ...]) -> st.SearchStrategy[Any]:
    chosen = st.lists(st.sampled_from(values), min_size=1, max_size=3)
    return st.tuples(st.just("term"), st.just(attribute), signs, chosen)


trees = st.recursive(
    st.just(("every",)) | terms("urgency", URGENCIES) | terms("tags", TAGS) | terms("worker_name", NAMES),
    lambda inner: st.tuples(st.sampled_from("|&"), st.lists(inner, min_size=2, max_size=3)),
    max_leaves=8,
)


def means(tree: Any, job: Any) -> bool:
    """Return whether a tree selects a job, by Python's own operators."""
    match tree:
        case ("every",):
            return True
        case ("term", attribute, sign, values):
            return bool(set(values) & set(job.values[attribute])) is (sign == "=")
        case (operator, parts):
            return (any if operator == "|" else all)(means(part, job) for part in parts)
    raise AssertionError(tree)


def written(tree: Any, blank: str, *, inside_and: bool = False) -> str:
    """Return a tree as text, with no more parentheses than it needs."""
    match tree:
        case ("every",):
            return "*"
        case ("term", attribute, sign, values):
            return blank.join([attribute, sign, f"{blank},".join(values)])
        case (operator, parts):
            text = f"{blank}{operator}{blank}".join(written(part, blank, inside_and=operator == "&") for part in parts)
            return f"({text})" if inside_and and operator == "|" else text
    raise AssertionError(tree)


@given(trees, jobs, blanks)
def test_a_text_selects_what_its_tree_selects(tree: Any, job: Any, blank: str) -> None:
    assert parse(written(tree, blank)).matches(job.values) is means(tree, job)


@given(trees, st.lists(jobs, max_size=5))
def test_a_group_and_its_negation_share_the_queues_among_them(tree: Any, catalogue: list[Any]) -> None:
    text = written(tree, "")

    chosen, rest = (SelectorGroup.of(text, negated=negated).resolve(catalogue).weights for negated in (False, True))

    assert chosen.keys() | rest.keys() == {job.queue for job in catalogue}
    assert not chosen.keys() & rest.keys()
    assert chosen.keys() == {job.queue for job in catalogue if means(tree, job)}
    assert all(
        chosen[queue] == max(j.weight for j in catalogue if j.queue == queue and means(tree, j)) for queue in chosen
    )


@given(st.text(alphabet="ab*|&()=!, \ntagsurgencyhighlow", max_size=20))
def test_any_text_is_a_selector_or_is_refused_with_a_place(text: str) -> None:
    place = 0
    try:
        parse(text)
    except SelectorError as error:
        place = error.position

    assert 0 <= place <= len(text)


@given(trees, st.sampled_from(["x", ")", "=a", "tags=a", "!", "*"]))
def test_nothing_may_follow_a_selector(tree: Any, garbage: str) -> None:
    with pytest.raises(SelectorError):
        parse(f"{written(tree, '')} {garbage}")
