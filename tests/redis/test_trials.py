"""The trial of commands at boot: it names what is forbidden, and changes nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from kiqcluster.errors import RedisRefused
from kiqcluster.sidekiq.keys import Keys
from kiqcluster.store import Store
from kiqcluster.store.rights.lists import FEATURES
from kiqcluster.store.rights.trials import TRIALS, UNTRIED, check_worker, forbidden_commands, needed
from tests.kit import RedisServer

NEEDED = needed(FEATURES)
ALLOWED = [f"+{name.lower()}" for name in NEEDED]


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def as_user(server: RedisServer, *rules: str) -> Store:
    server.store().call("ACL", "SETUSER", "limited", "reset", "on", ">pw", "~*", "-@all", *rules)
    return Store(server.url.replace("//", "//limited:pw@"))


def test_a_user_with_all_rights_passes_and_nothing_stays_behind(server: RedisServer) -> None:
    server.store().call("SET", "mine", "1")

    check_worker(as_user(server, "+select", *ALLOWED), "host:1", FEATURES)

    assert server.store().call("KEYS", "*") == [b"mine"]


@pytest.mark.parametrize("name", NEEDED)
def test_a_forbidden_command_is_named(server: RedisServer, name: str) -> None:
    store = as_user(server, "+select", *ALLOWED, f"-{name.lower()}")

    with pytest.raises(RedisRefused, match=rf"may not run {name}( \([a-z, ]+\))?;"):
        check_worker(store, "host:1", FEATURES)


def test_forbidden_keys_are_a_reason_too(server: RedisServer) -> None:
    store = as_user(server, "+select", *ALLOWED, "resetkeys", "~queue:*")

    with pytest.raises(RedisRefused, match=r"key pattern ~\*"):
        check_worker(store, "host:1", FEATURES)


@pytest.mark.parametrize("key", [*(each for each in Keys().shared() if each != Keys().leader), "host:1", "host:1:work"])
def test_each_key_that_a_worker_needs_is_tried(server: RedisServer, key: str) -> None:
    server.clear()
    others = [each for each in (*Keys().shared(), "host:1", "host:1:work", "kiq:probe:*") if each != key]
    store = as_user(server, "+select", *ALLOWED, "resetkeys", *(f"~{each}" for each in others))

    with pytest.raises(RedisRefused, match=rf"may not access the keys {re.escape(key)};"):
        check_worker(store, "host:1", FEATURES)


def test_a_trial_leaves_what_is_there(server: RedisServer) -> None:
    server.clear()
    for key in Keys().shared():
        server.store().call("RPUSH", key, "1", "2")

    check_worker(as_user(server, "+select", *ALLOWED), "host:1", FEATURES)

    assert all(server.store().call("LLEN", key) == 2 for key in Keys().shared())


def test_a_full_server_is_no_reason(server: RedisServer) -> None:
    store = as_user(server, "+select", *ALLOWED)
    server.store().call("CONFIG", "SET", "maxmemory", "1")
    try:
        check_worker(store, "host:1", FEATURES)
    finally:
        server.store().call("CONFIG", "SET", "maxmemory", "0")


def test_what_only_a_feature_needs_is_named_with_it_and_only_where_it_is_in_use(server: RedisServer) -> None:
    store = as_user(server, "+select", *ALLOWED, "-hexists", "-sismember")

    check_worker(store, "host:1", ["limits"])
    with pytest.raises(RedisRefused, match=r"may not run HEXISTS \(cron, iterable jobs\), SISMEMBER \(cron\);"):
        check_worker(store, "host:1", ["iterable jobs", "cron"])


def test_forbidden_commands_are_found_and_none_has_run(server: RedisServer) -> None:
    server.clear()
    store = as_user(server, "+select", "+multi", "+discard", "+get", "+set")

    with store.borrowed() as connection:
        assert forbidden_commands(connection, ["SET", "GET", "HVALS", "LPUSH"]) == ["HVALS", "LPUSH"]
        assert connection.exchange([("GET", "key")]) == [None]
    assert server.store().call("KEYS", "*") == []


@pytest.mark.parametrize("rules", [("+multi",), ("+discard",)])
def test_a_user_without_transactions_is_told_nothing_and_goes_on(server: RedisServer, rules: tuple[str, ...]) -> None:
    store = as_user(server, "+select", "+get", *rules)

    with store.borrowed() as connection:
        assert forbidden_commands(connection, ["GET", "HVALS"]) in ([], ["HVALS"])
        assert connection.exchange([("GET", "key")]) == [None]


@pytest.mark.parametrize("name", TRIALS)
def test_each_trial_has_the_words_that_redis_wants(server: RedisServer, name: str) -> None:
    """Redis looks at their number before it looks at the rights."""
    store = as_user(server, "+select", "+multi", "+discard")

    with store.borrowed() as connection:
        assert forbidden_commands(connection, [name]) == [name]


def test_every_name_is_one_of_a_command(server: RedisServer) -> None:
    known = {name.decode().upper() for name in server.store().call("COMMAND", "LIST")}

    assert {name.partition("|")[0] for name in (*TRIALS, *UNTRIED)} - known == {"SENTINEL"}
