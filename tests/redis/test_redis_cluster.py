"""A store whose shard is in a Redis Cluster: who is asked, and what a planned fail-over looks like."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from kiqcluster.errors import RedisRefused
from kiqcluster.store import Connection, Store, is_outage
from kiqcluster.store.address import Endpoint, Node
from kiqcluster.store.cluster_address import parse_cluster
from kiqcluster.store.connection import ask_cluster
from tests.kit import wait_until
from tests.redis_cluster import PRIMARIES, RedisCluster


@pytest.fixture(scope="module")
def redis_cluster() -> Iterator[RedisCluster]:
    with RedisCluster() as cluster:
        yield cluster


@pytest.fixture
def store(redis_cluster: RedisCluster) -> Iterator[Store]:
    store = Store(redis_cluster.url, name="eu")
    yield store
    store.close()


def test_all_keys_of_a_shard_are_on_one_node(redis_cluster: RedisCluster, store: Store) -> None:
    assert store.check()["redis_version"]
    store.transaction([("SADD", store.keys.queues, "a"), ("LPUSH", store.keys.queue("a"), "x")])

    owner = redis_cluster.owner("{eu}:").store()
    assert sorted(owner.call("KEYS", "*")) == [b"{eu}:queue:a", b"{eu}:queues"]
    owner.close()


def test_a_plain_address_of_a_node_is_refused_with_the_right_one(redis_cluster: RedisCluster) -> None:
    plain = redis_cluster.nodes[0].store()
    with pytest.raises(RedisRefused, match=r"CLUSTER .*redis\+cluster://"):
        plain.check()
    plain.close()


def test_a_cluster_address_of_another_server_is_refused(redis_server: object) -> None:
    port = getattr(redis_server, "port", 0)
    with pytest.raises(RedisRefused, match="cluster support disabled"):
        Store(f"redis+cluster://127.0.0.1:{port}").call("PING")


def test_a_node_with_an_old_map_is_asked_once(redis_cluster: RedisCluster) -> None:
    cluster, stranger = parse_cluster(redis_cluster.url), redis_cluster.owner("{other}:")
    assert stranger.port != redis_cluster.primary_of("{eu}:")
    asked: list[int] = []

    def ask(node: Node, slot: int) -> tuple[Endpoint | None, list[Endpoint]]:
        asked.append(node["port"])
        place, nodes = ask_cluster(node, slot)
        return (("127.0.0.1", stranger.port) if len(set(asked)) == 1 else place), nodes

    connection = Connection(partial(cluster.locate, "{eu}:", ask), 5.0)
    (moved,) = connection.exchange_each([("SET", "{eu}:old", "1")])
    assert isinstance(moved, RedisRefused)

    assert connection.exchange([("SET", "{eu}:old", "1")]) == [b"OK"]
    assert len(asked) == len(set(asked)) == 2
    connection.close()


def test_a_connection_follows_the_slot_to_the_next_primary(redis_cluster: RedisCluster, store: Store) -> None:
    store.call("SET", "{eu}:x", "1")
    old = redis_cluster.owner("{eu}:")
    replica = redis_cluster.nodes[redis_cluster.nodes.index(old) + PRIMARIES].store()
    kept = store.connection()
    assert kept.exchange([("GET", "{eu}:x")]) == [b"1"]

    replica.call("CLUSTER", "FAILOVER")
    wait_until(lambda: redis_cluster.primary_of("{eu}:x") not in (0, old.port), "the replica to take over")
    replica.close()

    (moved,) = kept.exchange_each([("SET", "{eu}:x", "2")])
    assert isinstance(moved, RedisRefused)
    assert is_outage(moved), "nothing was done, and it works again after the next connect"
    assert kept.exchange([("SET", "{eu}:x", "3"), ("GET", "{eu}:x")]) == [b"OK", b"3"]
    assert kept.connect_count == 2
    kept.close()
