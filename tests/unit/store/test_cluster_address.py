"""Addresses of a Redis Cluster, and whom a connection asks for the primary of a shard's slot."""

from __future__ import annotations

import pytest

from kiqcluster.errors import RedisRefused, RedisUnavailable, ReplyLost, UsageError
from kiqcluster.store import Store, is_outage
from kiqcluster.store.address import CLUSTER_NODE, PRIMARY_ONLY, Endpoint, Node, parse_address
from kiqcluster.store.cluster_address import ClusterAddress, is_cluster_address, parse_cluster
from kiqcluster.store.wire import _cluster_refusal, _refusal, says_lost_slot, says_no_primary

A, B, C = ("a", 1), ("b", 2), ("c", 3)
SLOT = 6_893  # of {eu}: by CLUSTER KEYSLOT


class Nodes:
    """Answers by node; an exception is raised.  asked: in order."""

    def __init__(self, **answers: tuple[Endpoint | None, list[Endpoint]] | Exception) -> None:
        self._answers = answers
        self.asked: list[str] = []
        self.slots: set[int] = set()

    def __call__(self, node: Node, slot: int) -> tuple[Endpoint | None, list[Endpoint]]:
        self.asked.append(node["host"])
        self.slots.add(slot)
        answer = self._answers[node["host"]]
        if isinstance(answer, Exception):
            raise answer
        return answer


def places(cluster: ClusterAddress, ask: Nodes) -> list[Endpoint]:
    return [(node["host"], node["port"]) for node in cluster.locate("{eu}:", ask)]


def test_an_address_names_some_nodes_and_how_to_connect() -> None:
    cluster = parse_cluster("rediss+cluster://ann:pass@a:1,b,[::1]:3/?ssl_cert_reqs=none")

    assert cluster.hosts == (("a", 1), ("b", 6379), ("::1", 3))
    assert (cluster.node["username"], cluster.node["password"]) == ("ann", "pass")
    assert "host" not in cluster.node
    store = Store("redis+cluster://:secret@a:1,b:2", name="eu")
    assert (store.keys.queue("q"), "secret" in store.address) == ("{eu}:queue:q", False)
    assert Store("redis+cluster://a:1", name="eu", prefix="x{us}y:").keys.queues == "x{us}y:queues"


@pytest.mark.parametrize(
    "address",
    ["redis+cluster://", "redis+cluster://a:b", "redis+cluster://a:99999", "redis+cluster://a/1", "redis+cluster://a,"],
)
def test_what_is_no_address_of_a_cluster_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match=r"redis\+cluster://"):
        Store(address)


def test_a_prefix_needs_a_hash_tag() -> None:
    with pytest.raises(UsageError, match="has no hash tag"):
        Store("redis+cluster://a:1", prefix="eu:")


def test_the_first_node_that_answers_names_the_primary() -> None:
    cluster, ask = ClusterAddress((A, B), {}), Nodes(a=RedisUnavailable(""), b=(C, [B, C]), c=(C, [B, C]))

    found = next(cluster.locate("{eu}:", ask))

    assert callable(found.pop(CLUSTER_NODE))
    assert found == {"host": "c", "port": 3, PRIMARY_ONLY: True}
    assert (ask.asked, ask.slots) == (["a", "b"], {SLOT})
    assert next(iter(cluster.locate("{eu}:", ask)))["host"] == "c"
    assert ask.asked[2] == "b", "the one that has answered is asked first"


def test_others_are_asked_while_the_answers_lead_nowhere() -> None:
    ask = Nodes(a=(B, [A, B]), b=ReplyLost(""), c=(C, [C]))

    assert places(ClusterAddress((A, B, C), {}), ask) == [B, C]
    assert ask.asked == ["a", "b", "c"]


def test_a_node_whose_answer_led_nowhere_is_asked_last() -> None:
    """Its map is old, and may be so for long: it names a place that is away, or that has lost the slot."""
    cluster, ask = ClusterAddress((A, B, C), {}), Nodes(a=(B, [A, B, C]), b=(C, [A, B, C]), c=(C, [A, B, C]))

    answers = cluster.locate("{eu}:", ask)
    assert next(answers)["host"] == "b"
    assert next(answers)["host"] == "c"  # nobody was at b
    assert next(iter(cluster.locate("{eu}:", ask)))["host"] == "c"
    assert ask.asked == ["a", "b", "b"]


def test_a_node_whose_answer_led_to_one_that_has_lost_the_slot_is_asked_last() -> None:
    cluster, ask = ClusterAddress((A, B), {}), Nodes(a=(A, [A]), b=(B, [A, B]))
    first = next(cluster.locate("{eu}:", ask))

    first[CLUSTER_NODE]()  # MOVED

    assert next(cluster.locate("{eu}:", ask))["host"] == "b"
    assert ask.asked == ["a", "b"]


def test_without_an_answer_it_is_an_outage_and_a_refusal_is_none() -> None:
    with pytest.raises(RedisUnavailable, match=f"no node of the cluster says who has slot {SLOT}"):
        places(ClusterAddress((A, B), {}), Nodes(a=RedisUnavailable("away"), b=(None, [])))
    with pytest.raises(RedisRefused):
        places(ClusterAddress((A,), {}), Nodes(a=RedisRefused("WRONGPASS")))


def test_a_slot_that_has_moved_is_an_outage_of_a_cluster_and_a_mistake_elsewhere() -> None:
    moved = "MOVED 13990 127.0.0.1:7000"

    assert is_outage(_cluster_refusal(moved))
    assert (says_lost_slot(_cluster_refusal(moved)), says_no_primary(_cluster_refusal(moved))) == (True, False)
    assert says_lost_slot(_cluster_refusal("CLUSTERDOWN The cluster is down"))
    assert not says_lost_slot(_cluster_refusal("WRONGTYPE x"))
    assert not is_outage(_refusal(moved))
    assert "redis+cluster://" in str(_refusal(moved))


def test_what_a_password_holds_is_no_scheme() -> None:
    for word in ("+cluster:", "+sentinel:"):
        address = f"redis://ann:s3{word}cret@host:6380/1"

        assert not is_cluster_address(address)
        assert parse_address(address) == {
            "host": "host", "port": 6380, "db": 1, "username": "ann", "password": f"s3{word}cret"
        }  # fmt: skip
    assert is_cluster_address("rediss+cluster://host")
