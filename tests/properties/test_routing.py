"""Laws of routing rules: a rule is refused only if no job can come to it."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiqcluster.errors import UsageError
from kiqcluster.sidekiq.routing import Rules, first_match, parse_rules
from kiqcluster.sidekiq.selectors import Values, attributes_of
from tests.chaos.scale import sized

TAGS = ("a", "b", "c")
JOBS: list[Values] = [  # one of each kind that these selectors can tell apart
    attributes_of("J", queue, {"urgency": urgency, "tags": list(tags), **category}).values
    for queue, urgency, category in product(
        ("x", "y", "other"), ("high", "low", "throttled"), ({}, {"feature_category": "f"}, {"feature_category": "g"})
    )
    for count in range(len(TAGS) + 1)
    for tags in combinations(TAGS, count)
]
values = {"name": ["x", "y"], "urgency": ["high", "low", "throttled"], "tags": TAGS, "feature_category": ["f", "g"]}
terms = st.sampled_from(sorted(values)).flatmap(
    lambda name: st.builds(
        lambda sign, several: f"{name}{sign}{','.join(several)}",
        st.sampled_from(("=", "!=")),
        st.lists(st.sampled_from(values[name]), min_size=1, max_size=2),
    )
)
selectors = st.recursive(
    st.one_of(terms, st.just("*")),
    lambda inner: st.builds(
        lambda sign, parts: f"({sign.join(parts)})", st.sampled_from("&|"), st.lists(inner, min_size=2, max_size=3)
    ),
    max_leaves=4,
)


def rules_of(texts: list[str]) -> Rules | None:
    try:
        return parse_rules([[text, "q"] for text in texts])
    except UsageError:
        return None


@pytest.mark.timeout(900)  # at full size, on a busy machine
@settings(max_examples=sized(60, 4_000))
@given(st.lists(selectors, min_size=1, max_size=3))
def test_a_rule_is_refused_only_if_no_job_can_come_to_it(texts: list[str]) -> None:
    if rules_of(texts) is not None:
        return
    known = next(count for count in range(len(texts) + 1) if rules_of(texts[: count + 1]) is None)
    before = rules_of(texts[:known])  # all of these are accepted; the next one is refused
    assert before is not None
    alone = rules_of([texts[known]])

    reaching = [job for job in JOBS if first_match(before, job) is None and alone and first_match(alone, job) == 0]
    assert reaching == []
