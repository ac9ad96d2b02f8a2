"""Store and Link: what was sent, what was not, and what nobody knows."""

from __future__ import annotations

import os

import pytest

from kiqcluster.errors import RedisRefused, RedisUnavailable, ReplyLost, UsageError
from kiqcluster.store import Store, parse_address
from kiqcluster.store.scripts import RESERVE, Call, run_scripts
from tests.kit import RedisServer, free_port, wait_until


def test_a_server_that_is_not_there_is_unavailable_and_nothing_was_sent() -> None:
    with pytest.raises(RedisUnavailable, match="nothing was sent"):
        Store(f"redis://127.0.0.1:{free_port()}/0").call("PING")


def test_a_timed_out_push_is_not_sent_twice(redis_server: RedisServer, store: Store) -> None:
    hasty = Store(redis_server.url, timeout=0.2)
    hasty.call("PING")

    with redis_server.stalled(), pytest.raises(ReplyLost):
        hasty.call("LPUSH", "list", "once")

    wait_until(lambda: store.call("LLEN", "list"), "the late command to run")
    assert store.call("LRANGE", "list", 0, -1) == [b"once"]


def test_a_connection_that_the_server_closed_is_replaced_without_an_error(store: Store) -> None:
    store.call("SET", "key", "1")
    other = Store(f"unix://{_socket_of(store)}")
    other.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    assert store.call("GET", "key") == b"1"


def _socket_of(store: Store) -> str:
    return store.address.removeprefix("unix://").partition("?")[0]


def test_an_error_reply_has_its_code_and_the_other_commands_have_run(store: Store) -> None:
    with pytest.raises(RedisRefused) as refusal:
        store.pipeline([("SET", "text", "x"), ("LPUSH", "text", "y"), ("SET", "after", "z")])

    assert refusal.value.code == "WRONGTYPE"
    assert store.call("GET", "after") == b"z"


def test_a_transaction_returns_the_replies_of_its_commands(store: Store) -> None:
    assert store.transaction([("INCR", "n"), ("INCR", "n"), ("GET", "n")]) == [1, 2, b"2"]


def test_a_script_that_the_server_forgot_is_sent_again_as_text(store: Store) -> None:
    store.call("SCRIPT", "FLUSH")
    call = Call(RESERVE, ["kiq:members", "inflight", "paused"], ["nobody", "1", "1", 0, 1_000])

    with store.borrowed() as link:
        first = run_scripts(link, [call, call])
        second = run_scripts(link, [call])

    assert first == [[b"FENCED"], [b"FENCED"]]
    assert second == [[b"FENCED"]]


def test_a_forked_process_does_not_use_its_parents_connections(store: Store) -> None:
    mine = store.call("CLIENT", "ID")
    reader, writer = os.pipe()

    pid = os.fork()
    if pid == 0:
        os.write(writer, str(store.call("CLIENT", "ID")).encode())
        os._exit(0)
    os.waitpid(pid, 0)

    assert int(os.read(reader, 32)) != mine
    assert store.call("CLIENT", "ID") == mine


def test_a_wrong_password_is_refused_not_unavailable(store: Store, redis_server: RedisServer) -> None:
    store.call("CONFIG", "SET", "requirepass", "secret")
    try:
        with pytest.raises(RedisRefused):
            Store(redis_server.url.replace("//", "//:wrong@")).call("PING")
        assert Store(redis_server.url.replace("//", "//:secret@")).call("PING") == b"PONG"
    finally:
        Store(redis_server.url.replace("//", "//:secret@")).call("CONFIG", "SET", "requirepass", "")


@pytest.mark.parametrize("address", ["", "localhost:6379", "http://x", "redis://host:port/x", "embedded:/" + "x" * 200])
def test_what_is_no_address_is_refused_with_the_forms_that_work(address: str) -> None:
    with pytest.raises(UsageError):
        parse_address(address)


def test_a_password_never_shows() -> None:
    assert "secret" not in repr(Store("redis://user:secret@localhost:6379/0"))


@pytest.mark.parametrize(
    ("prepare", "command", "code"),
    [
        ([("CONFIG", "SET", "maxmemory", "1")], ("SET", "x", "1"), "OOM"),
        ([("ACL", "SETUSER", "default", "-get")], ("GET", "x"), "NOPERM"),
        ([("CONFIG", "SET", "min-replicas-to-write", "3")], ("SET", "x", "1"), "NOREPLICAS"),
        ([("REPLICAOF", "127.0.0.1", "1")], ("SET", "x", "1"), "READONLY"),
        ([], ("EVALSHA", "0" * 40, "0"), "NOSCRIPT"),
        ([], ("LPUSH",), "ERR"),
    ],
)
def test_a_refusal_keeps_the_servers_code(prepare: list[tuple[str, ...]], command: tuple[str, ...], code: str) -> None:
    server = RedisServer()
    try:
        store = server.store()
        for each in prepare:
            store.call(*each)
        with pytest.raises(RedisRefused) as refusal:
            store.call(*command)
        assert refusal.value.code == code
    finally:
        server.close()


def test_a_missing_password_is_refused_whatever_the_database(store: Store, redis_server: RedisServer) -> None:
    store.call("CONFIG", "SET", "requirepass", "secret")
    try:
        for address in (redis_server.url, redis_server.url.replace("/0", "/1")):
            with pytest.raises(RedisRefused) as refusal:
                Store(address).call("PING")
            assert refusal.value.code == "NOAUTH"
    finally:
        Store(redis_server.url.replace("//", "//:secret@")).call("CONFIG", "SET", "requirepass", "")
