"""Redis Cluster: the primary of one hash slot, in which all keys of a shard are.

redis+cluster://[USER:PASSWORD@]HOST:PORT[,HOST:PORT…]     rediss+cluster:// with TLS

A shard's keys begin with its name as a hash tag, `{reports}:`, so one node has them all, and a script may use any of
them.  Each new connection asks a node of the cluster which primary has the slot; the server has to confirm that it is
one.  After a fail-over, a node answers MOVED: nothing was done, and the next connection asks again.  The node whose map
led there is asked last from then on: its map may stay old for long.

Never: opens a connection.  store.py passes `locate` a function that asks a node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from redis.crc import key_slot

from kiqcluster.errors import RedisUnavailable, ReplyLost, UsageError
from kiqcluster.store.address import (
    CLUSTER_NODE,
    PRIMARY_ONLY,
    Endpoint,
    Node,
    endpoints_of,
    has_scheme,
    masked,
    parse_address,
)

__all__ = ["AskNode", "ClusterAddress", "is_cluster_address", "parse_cluster", "prefix_of"]

ADDRESS = re.compile(r"(?P<scheme>rediss?)\+cluster://((?P<login>[^/?#]*)@)?(?P<hosts>[^/?#@]+)/?(\?(?P<options>.*))?")
DEFAULT_PORT = 6379
TAG = re.compile(r"[^{]*\{[^{}]+\}.*")  # a prefix with a hash tag

# How to connect to a node, a hash slot → the primary of the slot, None if no node has it, and all nodes.
AskNode = Callable[[Node, int], tuple[Endpoint | None, list[Endpoint]]]


@dataclass(slots=True)
class ClusterAddress:
    """A Redis Cluster.  hosts: nodes to ask.  node: how to connect to one, without host and port.

    known: nodes that an answer has named.  Set as a whole, because threads share it.
    """

    hosts: tuple[Endpoint, ...]
    node: Node
    known: tuple[Endpoint, ...] = field(default=(), compare=False)

    def locate(self, prefix: str, ask: AskNode) -> Iterator[Node]:
        """Yield the primary of the slot of a prefix, by one node after the other until the caller accepts an answer.

        After RedisUnavailable or ReplyLost the next node is asked; other errors are passed on.
        Raises RedisUnavailable when no node knows the primary.
        """
        slot: int = key_slot(prefix.encode())
        found: set[Endpoint] = set()
        complaints = []
        for host in dict.fromkeys((*self.known, *self.hosts)):
            try:
                primary, nodes = ask({**self.node, "host": host[0], "port": host[1]}, slot)
            except (RedisUnavailable, ReplyLost) as error:
                complaints.append(str(error))
                continue
            self.known = (host, *(each for each in nodes if each != host))
            if primary is None:
                complaints.append(f"{host[0]}:{host[1]} knows no primary of slot {slot}")
            elif primary not in found:
                found.add(primary)
                ask_last = partial(self._ask_last, host)
                yield {**self.node, "host": primary[0], "port": primary[1], PRIMARY_ONLY: True, CLUSTER_NODE: ask_last}
            self._ask_last(host)  # it has led nowhere
        if not found:
            said = f"no node of the cluster says who has slot {slot} ({'; '.join(complaints)}); nothing was sent"
            raise RedisUnavailable(said)

    def _ask_last(self, host: Endpoint) -> None:
        """Ask all other nodes before this one, whose answer was of no use."""
        others = dict.fromkeys(each for each in (*self.known, *self.hosts) if each != host)
        self.known = (*others, host)


def is_cluster_address(address: str) -> bool:
    return has_scheme(address, "+cluster")


def parse_cluster(address: str) -> ClusterAddress:
    """Return the cluster of redis+cluster://.  Raises UsageError."""
    found = ADDRESS.fullmatch(address)
    hosts = endpoints_of(found["hosts"], DEFAULT_PORT) if found else None
    if found is None or hosts is None:
        raise UsageError(
            f"{masked(address)!r} is not the address of a Redis Cluster; write "
            "redis+cluster://[USER:PASSWORD@]HOST:PORT,HOST:PORT (it has no database number)"
        )
    login = f"{found['login']}@" if found["login"] else ""
    node = parse_address(f"{found['scheme']}://{login}localhost/0?{found['options'] or ''}")
    assert isinstance(node, dict)
    for name in ("host", "db"):
        node.pop(name, None)
    return ClusterAddress(hosts, node)


def prefix_of(name: str, prefix: str) -> str:
    """Return the prefix of the keys of a shard in a cluster.  Raises UsageError for one without a hash tag."""
    if not prefix:
        return f"{{{name}}}:"
    if not TAG.fullmatch(prefix):
        raise UsageError(
            f"prefix {prefix!r} has no hash tag, and a shard in a Redis Cluster needs one, like {{{name}}}:"
        )
    return prefix
