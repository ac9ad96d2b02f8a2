"""Compression: GitLab's form of large arguments, read without trust."""

from __future__ import annotations

import base64
import tracemalloc
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from kiqcluster.errors import MalformedPayload, PayloadDecompressionConflictError, PayloadDecompressionError
from kiqcluster.sidekiq.compression import (
    MAX_ARGUMENTS_VALUES,
    can_be_unpacked,
    compressed,
    decompressed,
    is_compressed,
    may_be_compressed,
)
from kiqcluster.sidekiq.payload import WRAPPERS
from kiqcluster.sidekiq.ruby_entries import misfits
from kiqcluster.sidekiq.ruby_json import decode, encode, members

VALUES = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False, allow_infinity=False) | some.text(),
    lambda inner: some.lists(inner) | some.dictionaries(some.text(), inner),
)


def packed(text: bytes) -> str:
    return base64.b64encode(zlib.compress(text)).decode()


def payload(**keys: Any) -> dict[str, Any]:
    return {"retry": True, "class": "X", "jid": "a", "compressed": True, "original_job_size_bytes": 3, **keys}


def test_the_form_is_gitlabs() -> None:
    raw = encode({"retry": True, "args": [1, "é"], "class": "X", "at": 1.0})
    arguments = bytes(members(raw)["args"])

    form, size = compressed(raw, arguments)

    found = decode(form)
    (text,) = found["args"]
    assert list(found) == ["retry", "args", "class", "at", "compressed", "original_job_size_bytes"]
    assert (found["compressed"], found["original_job_size_bytes"], size) == (True, len(arguments), len(text))
    assert "\n" not in text
    assert text == base64.b64encode(zlib.compress(arguments, 5)).decode()  # Zlib::Deflate.deflate(arguments, 5)


@given(some.lists(VALUES))
@settings(max_examples=30)
def test_arguments_come_back_as_they_were(arguments: list[Any]) -> None:
    raw = encode({"retry": True, "args": arguments, "class": "X"})

    found, _ = compressed(raw, bytes(members(raw)["args"]))

    assert is_compressed(decode(found))
    assert encode(decompressed(decode(found))) == encode(decode(raw))


@pytest.mark.parametrize("arguments", [[], ["a", "b"], None, "text", {}])
def test_a_payload_whose_arguments_somebody_has_changed_is_a_conflict(arguments: Any) -> None:
    with pytest.raises(PayloadDecompressionConflictError, match="one argument"):
        decompressed(payload(args=arguments))


@pytest.mark.parametrize(
    "argument",
    [
        None,
        5,
        {"job_class": "X"},
        "",
        "no base64!",
        "é",
        "\ud800",
        base64.b64encode(b"no zlib").decode(),
        packed(b"[1, 2]")[:-8],  # cut off
        packed(b"[1, 2"),
        packed(b"not json"),
        packed(b"[" * 100_000),
        packed(b"\xff\xfe"),
        packed(b'{"a": 1}'),
        packed(b"5"),
    ],
)
def test_arguments_that_cannot_be_read_are_no_job(argument: Any) -> None:
    with pytest.raises(PayloadDecompressionError) as caught:
        decompressed(payload(args=[argument]))

    assert isinstance(caught.value, MalformedPayload)
    assert "arguments" in str(caught.value) or "argument of the job" in str(caught.value)


def test_no_more_is_unpacked_than_allowed() -> None:
    arguments = b'["' + b"x" * 996 + b'"]'

    assert decompressed(payload(args=[packed(arguments)]), 1_000)["args"] == ["x" * 996]
    with pytest.raises(PayloadDecompressionError, match="more than 999 bytes"):
        decompressed(payload(args=[packed(arguments)]), 999)


def test_a_bomb_costs_the_memory_of_the_limit_only() -> None:
    maker = zlib.compressobj(9)
    bomb = b"".join(maker.compress(b"[" + b"0," * 500_000) for _ in range(20)) + maker.flush()

    stored = base64.b64encode(bomb).decode()
    tracemalloc.start()
    try:
        with pytest.raises(PayloadDecompressionError, match="more than 1000 bytes"):
            decompressed(payload(args=[stored]), 1_000)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert most < 3 * len(stored) + 100_000 < 1_000_000  # of 20 MB


def test_a_bomb_of_values_is_not_decoded() -> None:
    arguments = b"[" + b"[]," * MAX_ARGUMENTS_VALUES + b"0]"
    stored = packed(arguments)

    assert len(stored) < 10_000
    assert not can_be_unpacked(arguments)
    with pytest.raises(PayloadDecompressionError, match=f"more than {MAX_ARGUMENTS_VALUES} values"):
        decompressed(payload(args=[stored]))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, True),
        ({"compressed": True}, False),
        ({"compressed": False}, False),  # a key of somebody else's
        ({"class": WRAPPERS[0], "wrapped": "SyncJob"}, True),
        ({"class": WRAPPERS[1], "wrapped": "ActionMailer::MailDeliveryJob"}, False),
        ({"class": WRAPPERS[0], "wrapped": "ActionMailer::DeliveryJob"}, False),
    ],
)
def test_a_payload_that_pages_could_not_show_is_not_compressed(keys: dict[str, Any], expected: bool) -> None:
    assert may_be_compressed({"class": "X", **keys}) is expected


@pytest.mark.parametrize("value", [False, 1, "gzip", None])
def test_only_gitlabs_value_of_the_key_counts(value: Any) -> None:
    assert not is_compressed(payload(compressed=value))


def test_pages_need_no_change_of_a_compressed_envelope() -> None:
    envelope = payload(**{"class": WRAPPERS[0]}, wrapped="SyncJob", args=[packed(b"[{}]")], queue="q")

    assert misfits(envelope) == []
    assert misfits({**envelope, "args": []}) == ["wrapped"]
    assert misfits({**envelope, "wrapped": "ActionMailer::MailDeliveryJob"}) == ["wrapped"]
