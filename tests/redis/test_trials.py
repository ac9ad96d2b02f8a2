"""The trial of commands at boot: it names what is forbidden, and changes nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kiqcluster.errors import RedisRefused
from kiqcluster.store import Store
from kiqcluster.store.rights.trials import WORKER_COMMANDS, check_commands
from tests.kit import RedisServer

ALLOWED = [f"+{name.lower()}" for name in WORKER_COMMANDS]


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def as_user(server: RedisServer, *rules: str) -> Store:
    server.store().call("ACL", "SETUSER", "limited", "reset", "on", ">pw", "~*", "-@all", *rules)
    return Store(server.url.replace("//", "//limited:pw@"))


def test_a_user_with_all_rights_passes_and_nothing_stays_behind(server: RedisServer) -> None:
    server.store().call("SET", "mine", "1")

    check_commands(as_user(server, "+select", *ALLOWED), "host:1")

    assert server.store().call("KEYS", "*") == [b"mine"]


@pytest.mark.parametrize("name", WORKER_COMMANDS)
def test_a_forbidden_command_is_named(server: RedisServer, name: str) -> None:
    store = as_user(server, "+select", *ALLOWED, f"-{name.lower()}")

    with pytest.raises(RedisRefused, match=f"may not run {name};"):
        check_commands(store, "host:1")


def test_forbidden_keys_are_a_reason_too(server: RedisServer) -> None:
    store = as_user(server, "+select", *ALLOWED, "resetkeys", "~queue:*")

    with pytest.raises(RedisRefused, match=r"key pattern ~\*"):
        check_commands(store, "host:1")


def test_a_full_server_is_no_reason(server: RedisServer) -> None:
    store = as_user(server, "+select", *ALLOWED)
    server.store().call("CONFIG", "SET", "maxmemory", "1")
    try:
        check_commands(store, "host:1")
    finally:
        server.store().call("CONFIG", "SET", "maxmemory", "0")
