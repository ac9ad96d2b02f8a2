"""A store whose shard is in a Redis Cluster: who is asked, and what a planned fail-over looks like."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kiqcluster.errors import RedisRefused
from kiqcluster.store import Store, is_outage
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


def test_a_connection_follows_the_slot_to_the_next_primary(redis_cluster: RedisCluster, store: Store) -> None:
    store.call("SET", "{eu}:x", "1")
    old = redis_cluster.owner("{eu}:")
    replica = redis_cluster.nodes[redis_cluster.nodes.index(old) + PRIMARIES].store()
    kept = store.connection()
    assert kept.exchange([("GET", "{eu}:x")]) == [b"1"]

    replica.call("CLUSTER", "FAILOVER")
    wait_until(lambda: redis_cluster.primary_of("{eu}:x") not in (0, old.port), "the replica to take over")
    replica.close()

    (moved,) = kept.exchange([("SET", "{eu}:x", "2")])
    assert isinstance(moved, RedisRefused)
    assert is_outage(moved), "nothing was done, and it works again after the next connect"
    assert kept.exchange([("SET", "{eu}:x", "3"), ("GET", "{eu}:x")]) == [b"OK", b"3"]
    assert kept.connect_count == 2
    kept.close()
