"""Stacks in Redis: what is kept of them, and what is read of anything else that lies there."""

from __future__ import annotations

import pytest

from kiqcluster.control.stacks import MAX_STACKS_CHARACTERS, Stacks, encode_stacks, read_stacks
from kiqcluster.store import Store

NAME = "app-1:7:ab"


def test_as_much_is_kept_as_the_limit_allows(store: Store) -> None:
    store.call("SET", store.keys.stacks(NAME), encode_stacks(Stacks(5.5, "é" * 10**6, is_own=False)))

    assert read_stacks(store, [NAME, "app-1:8:cd"]) == {NAME: Stacks(5.5, "é" * MAX_STACKS_CHARACTERS, is_own=False)}


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b"{}", b'{"stacks":7}', b"\xff"])
def test_other_bytes_are_no_stacks(store: Store, raw: bytes) -> None:
    store.call("SET", store.keys.stacks(NAME), raw)

    assert read_stacks(store, [NAME]) == {}


def test_forged_times_and_lengths_do_no_harm(store: Store) -> None:
    store.call("SET", store.keys.stacks(NAME), b'{"at":1e999,"own":"x","stacks":"' + b"s" * 200_000 + b'"}')

    assert read_stacks(store, [NAME]) == {NAME: Stacks(0.0, "s" * MAX_STACKS_CHARACTERS)}


def test_a_key_of_another_type_is_none(store: Store) -> None:
    store.call("LPUSH", store.keys.stacks(NAME), "x")

    assert read_stacks(store, [NAME]) == {}
