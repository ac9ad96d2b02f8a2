"""A user of Redis that may not touch one key: whatever is refused holds up only itself, and is named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kiqcluster.process.clock import SystemClock
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.outcome import Dead, Done
from kiqcluster.store import Store
from kiqcluster.store.engine.units import Settlement
from tests.kit import RedisServer
from tests.redis.test_fetch import Bench

USER = "limited"
QUEUES = ("queue:fine", "queue:other", "kiq:wake:*")  # what the user may touch of queues
OTHERS = (
    "kiq:members",
    "kiq:beats*",
    "kiq:audit",
    "kiq:format",
    "kiq:inflight:*",
    "kiq:held:*",
    "kiq:hand:*",
    "kiq:hands*",
    "kiq:suspects",
    "paused",
    "queues",
    "retry",
    "schedule",
)


class Limited(Bench):
    """A fetch of a user with few rights; `admin` is a store that may do everything."""

    def __init__(self, server: RedisServer, admin: Store, setup: Setup) -> None:
        self.admin = admin
        self.refusals: list[str] = []
        self.allow(*QUEUES)
        super().__init__(Store(server.url.replace("//", f"//{USER}:pw@")), setup, "*")
        self.fetch._runtime.events.listen(self._note)
        self.fetch._order.learn(["fine", "forbidden", "other"])

    def _note(self, name: str, fields: Any) -> None:
        if name == "redis_refused":
            self.refusals.append(fields["error"])

    def allow(self, *keys: str) -> None:
        """Let the user touch these keys, and ours but for `dead`."""
        patterns = [f"~{key}" for key in (*keys, *OTHERS, "stat:*")]
        self.admin.call("ACL", "SETUSER", USER, "reset", "on", ">pw", "+@all", *patterns)

    def push(self, *payloads: str, queue: str = "default") -> None:
        self.admin.call("LPUSH", self.admin.keys.queue(queue), *payloads)


@pytest.fixture
def limited(store: Store, setup: Setup, redis_server: RedisServer) -> Iterator[Limited]:
    bench = Limited(redis_server, store, setup)
    yield bench
    bench.coordinator.end()
    store.call("ACL", "DELUSER", USER)


def test_a_forbidden_queue_holds_up_no_other_and_is_named_once(limited: Limited) -> None:
    for queue in ("forbidden", "fine", "other"):
        limited.push(queue, queue=queue)

    taken = {limited.next().payload for _ in range(2)}

    assert taken == {b"fine", b"other"}
    assert len(limited.refusals) == 1
    assert "queue:forbidden" in limited.refusals[0]
    assert "NOPERM" in limited.refusals[0]
    assert limited.fetch.is_connected


def test_no_wakeup_and_no_sweep_is_spent_on_a_forbidden_queue(limited: Limited) -> None:
    limited.push("a", queue="fine")
    limited.next()

    looked_at = limited.coordinator.queues_to_sweep(100)
    assert set(looked_at) == {"fine", "other"}
    assert not limited.engine.find_work(looked_at)


def test_a_queue_that_is_forbidden_no_more_is_served_again(limited: Limited) -> None:
    limited.push("a", queue="fine")
    limited.push("b", queue="forbidden")
    assert limited.next().payload == b"a"

    limited.allow(*QUEUES, "queue:forbidden")
    limited.redis_view.excluded.forbidden_until["forbidden"] = 0.0  # as when its time is over

    assert limited.next().payload == b"b"


def test_a_user_that_may_touch_no_queue_is_refused_as_a_whole(limited: Limited) -> None:
    limited.allow("kiq:wake:*")
    refused = limited.engine.forbidden_queues(limited.fetch._connection, limited.fetch.member, ["fine", "other"])

    assert refused.keys() == {"fine", "other"}


def test_leaving_empties_the_wake_lists_that_it_may_touch(limited: Limited) -> None:
    limited.admin.call("LPUSH", "kiq:wake:fine", "a")

    limited.coordinator.end()
    limited.fetch.leave([], 5.0)

    assert limited.admin.call("LRANGE", "queue:fine", 0, -1) == [b"a"]
    assert limited.admin.call("HLEN", "kiq:members") == 0


def test_an_outcome_whose_key_is_forbidden_holds_up_no_other(limited: Limited) -> None:
    limited.push("a", "b", queue="fine")
    units = [limited.next() for _ in range(2)]
    with limited.coordinator.lock:
        limited.supply.finished += [
            Settlement(units[0], Dead(b"buried", SystemClock.now())),
            Settlement(units[1], Done()),
        ]

    limited.settle()

    held = limited.admin.call("HVALS", limited.admin.keys.inflight(limited.fetch.member.identity))
    assert held == [b"a"]
    assert any("dead" in words and "NOPERM" in words for words in limited.refusals)
    limited.allow(*QUEUES, "dead")
    limited.fetch._in_flight.refused_until = 0.0  # the pause is over
    limited.settle()
    assert limited.admin.call("ZRANGE", "dead", 0, -1) == [b"buried"]
