"""Commands: what a control message may ask of a cluster, and what is refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiqcluster.control.control_messages import Message
from kiqcluster.control.orders import ACTIONS, Order, parse_order
from kiqcluster.errors import UsageError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@pytest.mark.parametrize("action", ACTIONS)
def test_every_action_is_taken_with_who_asks_and_its_id(action: str) -> None:
    message = Message(action, lease=900.0, by="kiqctl@host", id="17")

    assert parse_order(message.as_json()) == Order(action, "kiqctl@host", "17", 900.0)


def test_what_is_left_out_has_a_name_and_the_lease_is_the_clusters_own() -> None:
    command = parse_order({"action": "quiet"})

    assert command.lease is None
    assert command.by
    assert command.ident == ""


@pytest.mark.parametrize("lease", [0, 0.0, 1, 90.5])
def test_a_lease_is_seconds_and_0_is_none_at_all(lease: float) -> None:
    assert parse_order({"action": "quiet", "lease": lease}).lease == lease


@pytest.mark.parametrize(
    "lease", [-1, -0.1, True, "15m", [], float("nan"), float("inf"), 1e9, pytest.param(10**400, id="huge")]
)
def test_other_leases_are_refused(lease: object) -> None:
    with pytest.raises(UsageError, match="lease"):
        parse_order({"action": "quiet", "lease": lease})


@pytest.mark.parametrize("action", [None, "", "Quiet", "exit", 1, [], {}])
def test_other_actions_are_refused_and_the_known_ones_named(action: object) -> None:
    with pytest.raises(UsageError, match="quiet, resume, roll"):
        parse_order({"action": action})


@given(st.dictionaries(st.sampled_from(["action", "lease", "by", "id", "scope"]), JSON | st.sampled_from(ACTIONS)))
def test_whatever_a_message_holds_it_is_a_command_or_refused(message: dict[str, Any]) -> None:
    try:
        command = parse_order(message)
    except UsageError:
        return
    assert command.action in ACTIONS
    assert command.lease is None or command.lease >= 0
