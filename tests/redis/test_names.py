"""Names: a look-up that hangs costs no more than the timeout, and nobody waits for it twice.

The resolver stands in for one whose name server is away: it answers when the test says so.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kiqcluster.errors import RedisUnavailable
from kiqcluster.store import Store
from tests.kit import TIMEOUT_SECONDS, RedisServer, wait_until

NAME = "redis.example"
CONNECT_TIMEOUT_SECONDS = 0.3


class Resolver:
    """Answers for NAME once it is let to, with an address of this host."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.asked = 0
        self._known = socket.getaddrinfo

    def look_up(self, host: str, *arguments: Any) -> Any:
        if host != NAME:
            return self._known(host, *arguments)
        self.asked += 1
        assert self.answers.wait(TIMEOUT_SECONDS)
        return self._known("127.0.0.1", *arguments)


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    """A name server that is away until the test brings it back."""
    resolver = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", resolver.look_up)
    yield resolver
    resolver.answers.set()


def test_a_look_up_that_hangs_is_an_outage_after_the_timeout(resolver: Resolver) -> None:
    store = Store(f"redis://{NAME}:1/0", timeout=CONNECT_TIMEOUT_SECONDS)

    for _ in range(2):  # each returns though the name server never answers
        with pytest.raises(RedisUnavailable, match=f"look-up of {NAME} takes more than"):
            store.call("PING")

    assert resolver.asked == 1  # the second has waited for the same one


def test_who_asks_again_gets_what_a_slow_look_up_has_found(resolver: Resolver, redis_server: RedisServer) -> None:
    store = Store(redis_server.url.replace("127.0.0.1", NAME), timeout=CONNECT_TIMEOUT_SECONDS)
    with pytest.raises(RedisUnavailable):
        store.call("PING")

    resolver.answers.set()

    assert wait_until(lambda: _ping(store), "the name to be known") == b"PONG"
    store.close()


def test_a_name_that_nobody_knows_is_an_outage_at_once() -> None:
    with pytest.raises(RedisUnavailable, match="cannot reach Redis"):
        Store("redis://no-such-host.invalid:1/0", timeout=CONNECT_TIMEOUT_SECONDS).call("PING")


def test_a_look_up_for_which_there_is_no_thread_is_an_outage_and_the_next_one_is_made(
    redis_server: RedisServer,
) -> None:
    store = Store(redis_server.url.replace("127.0.0.1", "localhost"), timeout=CONNECT_TIMEOUT_SECONDS)
    before = threading.stack_size(1 << 46)  # which no address space holds
    try:
        with pytest.raises(RedisUnavailable, match="thread"):
            store.call("PING")
    finally:
        threading.stack_size(before)

    assert store.call("PING") == b"PONG"
    store.close()


def _ping(store: Store) -> Any:
    try:
        return store.call("PING")
    except RedisUnavailable:
        return None
