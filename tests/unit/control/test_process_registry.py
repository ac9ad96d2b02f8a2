"""Control messages: what is one, what is none, and that ours are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiqcluster.control.control_messages import CLUSTER_ONLY_ACTIONS, MAX_TEXT_CHARACTERS, Message
from kiqcluster.control.orders import ACTIONS

TEXT = st.text(st.characters(categories=["L", "N", "P"]), max_size=MAX_TEXT_CHARACTERS)
MESSAGES = st.builds(
    Message,
    action=st.sampled_from(sorted(set(ACTIONS) - CLUSTER_ONLY_ACTIONS)),
    scope=st.sampled_from(["cluster", "process"]),
    lease=st.none() | st.floats(0, 1e8),
    by=TEXT,
    id=TEXT,
)


@given(MESSAGES)
def test_a_message_arrives_as_it_was_sent(message: Message) -> None:
    assert Message.read(message.encode()) == message


@pytest.mark.parametrize("action", ACTIONS)
def test_every_action_is_for_a_cluster_unless_the_message_says_otherwise(action: str) -> None:
    assert Message.read(f'{{"action":"{action}"}}'.encode()) == Message(action, scope="cluster")


def test_members_of_a_later_version_are_passed_over() -> None:
    assert Message.read(b'{"action":"quiet","colour":"red","id":"a"}') == Message("quiet", id="a")


def test_a_dump_may_be_about_one_worker() -> None:
    assert Message.read(b'{"action":"dump","pid":7}').pid == 7
    for junk in ("-1", "true", '"7"', "1e3", "null", "4294967296"):
        with pytest.raises(ValueError, match="pid"):
            Message.read(b'{"action":"dump","pid":%s}' % junk.encode())


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "Error"),
        (b"\xff\xfe", "Error"),
        (b"TSTP", "Error"),
        (b"[" * 100_000, "Error"),
        (b"null", "NoneType"),
        (b'"quiet"', "str"),
        (b'["quiet"]', "list"),
        (b"{}", "action"),
        (b'{"action":"explode"}', "explode"),
        (b'{"action":["quiet"]}', "action"),
        (b'{"action":"quiet","scope":"world"}', "world"),
        (b'{"action":"quiet","scope":null}', "scope"),
        (b'{"action":"roll","scope":"process"}', "whole cluster"),
        (b'{"action":"reload","scope":"process"}', "whole cluster"),
        (b'{"action":"quiet","lease":-1}', "lease"),
        (b'{"action":"quiet","lease":true}', "lease"),
        (b'{"action":"quiet","lease":"15m"}', "lease"),
        (b'{"action":"quiet","lease":1e400}', "lease"),
        (b'{"action":"quiet","lease":1e99}', "lease"),
        (b'{"action":"quiet","by":5}', "by"),
        (b'{"action":"quiet","by":"a\\u001b[2J"}', "by"),
        (b'{"action":"quiet","id":"' + b"x" * (MAX_TEXT_CHARACTERS + 1) + b'"}', "id"),
    ],
)
def test_what_is_no_message_is_refused_with_the_reason(raw: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Message.read(raw)
