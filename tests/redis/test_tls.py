"""Servers and sentinels behind TLS, with certificates on both sides and passwords: reached with these, and not without.

The whole cluster on such servers: tests/chaos/test_redis_locked.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from kiqcluster.errors import RedisRefused, RedisUnavailable, ReplyLost
from kiqcluster.store import Store
from kiqcluster.store.engine.engine import Engine
from kiqcluster.store.engine.units import Member
from kiqcluster.store.entry_moves import DeadSetLimits
from tests.kit import wait_until
from tests.sentinel import SentinelGroup
from tests.tls import LockedServer, Locks


@pytest.fixture(scope="module")
def locks(tmp_path_factory: pytest.TempPathFactory) -> Locks:
    return Locks.made(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def group(locks: Locks) -> Iterator[SentinelGroup]:
    with SentinelGroup(locks=locks) as group:
        yield group


@pytest.fixture
def server(group: SentinelGroup) -> LockedServer:
    server = group.servers[0]
    assert isinstance(server, LockedServer)
    server.store().call("FLUSHALL")
    return server


def without(address: str, *options: str) -> str:
    """Return an address without some of its options."""
    return re.sub(rf"(?<=[?&])(?:{'|'.join(options)})=[^&]*&?", "", address)


def test_replies_over_tls_may_be_large_late_or_awaited_while_others_are_read(server: LockedServer) -> None:
    store, large = Store(server.url), b"x" * 3_000_000
    engine, member = Engine(store, DeadSetLimits(100, 1_000.0)), Member("here:1:abc", 1, "")
    engine.join(member)
    connection, waiting = store.connection(), store.connection()

    assert store.pipeline([("SET", "key", large), ("GET", "key"), ("STRLEN", "key")])[1:] == [large, len(large)]

    waiting.send(("BLMOVE", "queue:default", "kiq:wake:default", "RIGHT", "LEFT", 30))
    assert list(waiting.receive()) == []
    store.call("LPUSH", "queue:default", large)
    assert wait_until(lambda: list(waiting.receive()), "the wakeup") == [large]

    _, reserved = engine.exchange(connection, member, 1, {"default": (1, 1)}, [], 1.0)
    assert reserved is not None
    assert [unit.payload for unit in reserved.units] == [large]


def test_a_tls_connection_that_waits_is_used_again_and_one_that_broke_is_not(server: LockedServer) -> None:
    connection = Store(server.url).connection()
    for _ in range(3):
        assert connection.exchange([("PING",)]) == [b"PONG"]
    assert connection.connect_count == 1  # what comes after a handshake is no sign of a broken one

    server.store().call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    assert connection.exchange([("PING",)]) == [b"PONG"]
    assert connection.connect_count == 2


def test_who_has_no_certificate_or_does_not_know_the_servers_is_kept_out(
    server: LockedServer, group: SentinelGroup
) -> None:
    for address in (server.url, group.url):
        for lacking in (["ssl_ca_certs"], ["ssl_certfile", "ssl_keyfile"]):
            with pytest.raises((RedisUnavailable, ReplyLost), match="TLS"):
                Store(without(address, *lacking)).call("PING")
        with pytest.raises((RedisUnavailable, ReplyLost), match="ssl_certfile"):
            Store(without(address, "ssl_certfile", "ssl_keyfile")).call("PING")
        with pytest.raises(RedisUnavailable):
            Store(without(address.replace("rediss", "redis"), r"ssl_\w+")).call("PING")


def test_a_refusal_of_a_password_says_who_refused(server: LockedServer, group: SentinelGroup, locks: Locks) -> None:
    cases = {
        server.url.replace(locks.login, ":wrong@"): server.port,
        group.url.replace(locks.login, ""): server.port,
        group.url.replace(locks.login, ":wrong@"): server.port,
        without(group.url, "sentinel_password"): group.port,
        without(group.url, "sentinel_password") + "&sentinel_password=wrong": group.port,
    }

    for address, port in cases.items():
        with pytest.raises(RedisRefused, match=f"127.0.0.1:{port}") as caught:
            Store(address).call("PING")
        assert caught.value.code == "NOAUTH"
