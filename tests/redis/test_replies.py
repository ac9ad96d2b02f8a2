"""An error reply is never a value: every read raises it, or hands it out under a type of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kiqcluster.errors import RedisRefused
from kiqcluster.store import Store
from kiqcluster.store.replies import broken_keys, readable, unwrapped
from kiqcluster.store.scripts import FIND_HELD, LOCK, READ_BATCH, Call, read_scripts_each, run_script, run_scripts
from kiqcluster.store.wire import ErrorReply, WrongType
from tests.kit import RedisServer

HELD = Call(FIND_HELD, ["kiq:inflight:a", "kiq:hands:a"], ["x", "kiq:hand:a/"])


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def without(server: RedisServer, command: str) -> Store:
    """Return a store of a user that may do all but one command."""
    server.store().call("ACL", "SETUSER", "limited", "reset", "on", ">pw", "~*", "+@all", f"-{command}")
    return Store(server.url.replace("//", "//limited:pw@"))


@pytest.mark.parametrize("error", ["NOPERM no", "LOADING it loads", "OOM full", "WRONGTYPE odd", "ERR other"])
def test_one_error_among_replies_is_raised(error: str) -> None:
    with pytest.raises(RedisRefused) as refusal:
        unwrapped([("GET", "a"), ("GET", "b")], [b"1", ErrorReply(error)])

    assert refusal.value.code == error.partition(" ")[0]


@pytest.mark.parametrize("error", ["NOPERM no", "LOADING it loads", "OOM full", "ERR other"])
def test_a_reader_is_given_no_error_but_that_of_a_key_of_another_type(error: str) -> None:
    with pytest.raises(RedisRefused, match=error):
        readable([("GET", "a"), ("GET", "b")], [b"1", ErrorReply(error)])


def test_a_command_that_an_acl_forbids_is_named_by_every_way_to_ask(server: RedisServer) -> None:
    store = without(server, "hget")

    with store.borrowed() as connection:
        for ask in (
            lambda: store.call("HGET", "a", "b"),
            lambda: store.pipeline([("TIME",), ("HGET", "a", "b")]),
            lambda: store.transaction([("TIME",), ("HGET", "a", "b")]),
            lambda: store.read_each([("TIME",), ("HGET", "a", "b")]),
            lambda: connection.exchange([("TIME",), ("HGET", "a", "b")]),
        ):
            with pytest.raises(RedisRefused, match="hget") as refusal:
                ask()
            assert refusal.value.code == "NOPERM"


@pytest.mark.parametrize("command", ["hvals", "hkeys", "lindex"])
def test_a_command_that_an_acl_forbids_is_named_inside_of_a_script(server: RedisServer, command: str) -> None:
    server.store().pipeline([("HSET", "kiq:hands:a", "t:q", 0), ("HSET", "kiq:inflight:a", "t:q", "x")])
    store = without(server, command)

    with store.borrowed() as connection:
        for ask in (
            lambda: run_script(store, HELD),
            lambda: run_scripts(connection, [HELD]),
            lambda: read_scripts_each(store, [HELD], 10),
        ):
            with pytest.raises(RedisRefused, match=f"(?i){command}") as refusal:
                ask()
            assert refusal.value.code == "NOPERM"


def test_a_key_of_another_type_hides_no_other_and_is_noted(store: Store) -> None:
    store.pipeline([("SET", "odd", "x"), ("HSET", "fine", "a", "b"), ("SET", "kiq:batch:x", "odd")])

    with broken_keys() as outer, broken_keys() as inner:
        odd, fine = store.read_each([("HGETALL", "odd"), ("HGETALL", "fine")])
        (batch,) = read_scripts_each(store, [Call(READ_BATCH, ["kiq:batch:x", "kiq:batch:x:ended"], [0, 0, "a"])], 10)

    assert isinstance(odd, WrongType)
    assert isinstance(batch, WrongType)
    assert fine == [b"a", b"b"]
    assert list(inner) == list(outer) == ["odd", "kiq:batch:x"]


def test_a_large_read_takes_as_many_round_trips_as_it_is_told(store: Store) -> None:
    store.pipeline([("SET", f"key{number}", number) for number in range(5)])

    assert store.read_each([("GET", f"key{number}") for number in range(5)], 2) == [b"0", b"1", b"2", b"3", b"4"]
    assert store.read_each([]) == []


def test_a_want_of_memory_inside_of_a_pipeline_is_raised(server: RedisServer) -> None:
    store = server.store()
    store.call("CONFIG", "SET", "maxmemory", "1")
    try:
        for ask in (
            lambda: store.pipeline([("TIME",), ("SET", "a", "b")]),
            lambda: run_script(store, Call(LOCK, ["kiq:deploy"], ["take", "me", 1000])),
        ):
            with pytest.raises(RedisRefused, match="OOM"):
                ask()
    finally:
        store.call("CONFIG", "SET", "maxmemory", "0")
