"""A primary that changes: found through Sentinel, left when it is demoted; and no replica is taken for one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from kiqcluster.client.writes import write_all
from kiqcluster.errors import RedisRefused, RedisUnavailable, ReplyLost
from kiqcluster.process.delivery import Ready
from kiqcluster.sidekiq.keys import FORMAT_VERSION, Keys
from kiqcluster.sidekiq.payload import Jid
from kiqcluster.store import Store, is_outage, parse_address
from kiqcluster.store.address import PRIMARY_ONLY
from kiqcluster.store.engine.engine import Engine
from kiqcluster.store.engine.units import Member
from kiqcluster.store.entry_moves import DeadSetLimits
from kiqcluster.store.scripts import JOIN, Call, run_scripts
from kiqcluster.store.wire import Command
from tests.kit import RedisServer, free_port, wait_until
from tests.sentinel import HARDLY_EVER_MS, SERVICE, SentinelGroup

LIMITS = DeadSetLimits(100, 1_000.0)


@pytest.fixture
def group() -> Iterator[SentinelGroup]:
    with SentinelGroup() as group:
        yield group


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A server whose role may change."""
    server = RedisServer()
    yield server
    server.close()


def test_a_sentinel_whose_port_is_taken_gets_another(monkeypatch: pytest.MonkeyPatch, server: RedisServer) -> None:
    ports = iter((server.port, free_port()))
    monkeypatch.setattr("tests.sentinel.free_port", lambda: next(ports))

    with SentinelGroup() as group:
        assert group.primary_port() == group.servers[0].port


def test_a_store_follows_the_primary_when_it_dies(group: SentinelGroup) -> None:
    store = Store(group.url)
    store.call("SET", "before", "1")
    wait_until(lambda: group.servers[1].store().call("GET", "before") == b"1", "the replica to have it")

    group.servers[0].kill()
    group.wait_failed_over()

    assert store.call("GET", "before") == b"1"
    store.call("SET", "after", "2")
    assert group.servers[1].store().call("GET", "after") == b"2"


def test_a_primary_that_lost_its_replicas_is_left_when_it_has_to_have_one(group: SentinelGroup) -> None:
    group.servers[0].store().call("CONFIG", "SET", "min-replicas-to-write", "1")
    store = Store(group.url)
    store.call("SET", "before", "1")

    group.ask("DEBUG", "publish-period", HARDLY_EVER_MS)  # after four of these it would demote the old one
    group.promote(1)

    with pytest.raises(RedisRefused, match="NOREPLICAS"):
        store.call("SET", "after", "2")
    store.call("SET", "after", "2")  # on a connection to the new one
    assert group.servers[1].store().call("GET", "after") == b"2"


def test_sentinels_that_do_not_answer_are_passed_over_and_passwords_are_given(group: SentinelGroup) -> None:
    for server in group.servers:
        server.store().pipeline([("CONFIG", "SET", name, "s3/cret") for name in ("masterauth", "requirepass")])
    group.ask("SET", SERVICE, "auth-pass", "s3/cret")
    Store(f"redis://127.0.0.1:{group.port}/").call("ACL", "SETUSER", "default", ">watch?")

    hosts = f"127.0.0.1:{free_port()},127.0.0.1:{group.port}"
    store = Store(f"redis+sentinel://:s3%2Fcret@{hosts}/{SERVICE}/1?sentinel_password=watch%3F")

    assert store.call("SET", "key", "1") == b"OK"
    assert b"db1:keys=1" in store.call("INFO", "keyspace")
    with pytest.raises(RedisUnavailable, match="no sentinel says where 'mail' is"):
        Store(f"redis+sentinel://:s3%2Fcret@{hosts}/mail?sentinel_password=watch%3F").call("PING")


def test_a_replica_is_not_taken_for_the_primary_though_a_sentinel_says_so(
    server: RedisServer, redis_server: RedisServer
) -> None:
    address = parse_address(server.url)
    assert isinstance(address, dict)
    store = Store(locate=lambda: [{**address, PRIMARY_ONLY: True}])
    assert store.call("PING") == b"PONG"
    store.close()

    server.store().call("REPLICAOF", "127.0.0.1", redis_server.port)

    with pytest.raises(RedisUnavailable, match="is a slave now"):
        store.call("PING")


def test_a_demoted_server_is_an_outage_and_its_connections_are_given_up(
    server: RedisServer, redis_server: RedisServer
) -> None:
    store = server.store()
    engine, member = Engine(store, LIMITS), Member("here:1:abc", 1, "")
    engine.join(member)
    connection, waiting = store.connection(), store.connection()
    engine.exchange(connection, member, 1, {"default": (1, 1)}, [], 1.0)
    waiting.send(("BLMOVE", "queue:default", "kiq:wake:default", "RIGHT", "LEFT", 30))
    wait_until(lambda: b"blocked_clients:1" in store.call("INFO", "clients"), "the wait to be armed")

    store.call("REPLICAOF", "127.0.0.1", redis_server.port)

    with pytest.raises(RedisUnavailable):
        engine.exchange(connection, member, 2, {"default": (1, 1)}, [], 1.0)
    with pytest.raises(RedisRefused, match="READONLY") as caught:
        store.call("LPUSH", "queue:default", "x")
    (ended,) = wait_until(lambda: list(waiting.receive()), "the wait to end")
    assert [connection.fileno(), waiting.fileno(), is_outage(caught.value), is_outage(ended)] == [-1, -1, True, True]

    store.call("REPLICAOF", "NO", "ONE")
    assert engine.exchange(connection, member, 3, {"default": (1, 1)}, [], 1.0)[1] is not None


class Torn:
    """A link whose server is demoted before each second command: the first meets a replica, the rest the primary."""

    def __init__(self, replica: Store, primary: Store) -> None:
        self.replica, self.primary = replica.connection(), primary.connection()

    def begin(self, commands: Sequence[Command]) -> None:
        self.commands = commands

    def finish(self, timeout: float | None = None) -> list[Any]:
        return self.exchange_each(self.commands)

    def exchange_each(self, commands: Sequence[Command]) -> list[Any]:
        rest = self.primary.exchange_each(commands[1:]) if commands[1:] else []
        return [*self.replica.exchange_each(commands[:1]), *rest]


def test_an_exchange_of_which_a_part_was_turned_away_counts_as_lost(
    server: RedisServer, redis_server: RedisServer, store: Store
) -> None:
    """What a reserve took, beside a settle that a replica turned away, nobody holds: it takes a resync."""
    server.store().call("REPLICAOF", "127.0.0.1", redis_server.port)
    Engine(store, LIMITS).join(Member("here:1:abc", 1, ""))  # so that the primary knows the script
    torn: Any = Torn(server.store(), store)
    keys = [store.keys.members, store.keys.beats, store.keys.format]
    call = Call(JOIN, keys, ["here:2:def", "1 ", FORMAT_VERSION])

    with pytest.raises(ReplyLost):
        run_scripts(torn, [call, call])
    with pytest.raises(RedisUnavailable):
        run_scripts(torn, [call])

    assert sorted(store.call("HKEYS", store.keys.members)) == [b"here:1:abc", b"here:2:def"]


def test_a_push_of_which_a_part_was_turned_away_counts_as_lost(
    server: RedisServer, redis_server: RedisServer, store: Store
) -> None:
    """What one server took just before another one was the primary may be lost."""
    server.store().call("REPLICAOF", "127.0.0.1", redis_server.port)
    lender: Any = Lender(Torn(server.store(), store))

    with pytest.raises(ReplyLost, match="READONLY") as lost:
        write_all(lender, [Ready(Jid("1"), "default", None, b"{}")], wait_replicas=0)

    assert (lost.value.jids, lost.value.enqueued) == (("1",), ())
    assert store.call("LLEN", "queue:default") == 1


class Lender:
    """A store that lends one link."""

    def __init__(self, link: Torn) -> None:
        self.link, self.keys = link, Keys()

    def borrowed(self) -> AbstractContextManager[Torn]:
        return nullcontext(self.link)
