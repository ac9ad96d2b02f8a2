"""A Redis Cluster of three primaries, each with a replica, as a test needs it: small, and quick to fail over."""

from __future__ import annotations

from types import TracebackType

from redis.crc import key_slot

from kiqcluster.errors import StoreError
from kiqcluster.store import Store
from tests.kit import RedisServer, free_port, wait_until

__all__ = ["RedisCluster"]

PRIMARIES = 3
SLOTS = 16_384
NODE_TIMEOUT_MS = 1_000  # without an answer after which the others call a node down


class Node(RedisServer):
    """A server with cluster mode; it forgets nothing when it is killed."""

    def __init__(self) -> None:
        settings = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
        pace = ("--cluster-node-timeout", str(NODE_TIMEOUT_MS), "--repl-diskless-sync-delay", "0")
        super().__init__(durable=True, settings=(*settings, *pace))
        self.bus_port = int(settings[-1])
        store = self.store()
        self.id: str = store.call("CLUSTER", "MYID").decode()
        store.close()


class RedisCluster:
    """Six nodes, for a `with` block: primaries 0, 1 and 2, then their replicas."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    @property
    def url(self) -> str:
        """The address of the cluster by two of its nodes."""
        return f"redis+cluster://127.0.0.1:{self.nodes[0].port},127.0.0.1:{self.nodes[4].port}"

    def __enter__(self) -> RedisCluster:
        try:
            self.nodes = [Node() for _ in range(2 * PRIMARIES)]
            self._join()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes:
            node.close()

    def owner(self, key: str) -> Node:
        """Return the primary that has had the slot of a key from the start."""
        return self.nodes[key_slot(key.encode()) * PRIMARIES // SLOTS]

    def primary_of(self, key: str) -> int:
        """Return the port of the node that says that it is the primary of the slot of a key; 0 if none does."""
        for node in self.nodes:
            store = node.store()
            try:
                store.call("EXISTS", key)
            except StoreError:
                continue
            else:
                if store.call("ROLE")[0] == b"master":
                    return node.port
            finally:
                store.close()
        return 0

    def _join(self) -> None:
        stores = [node.store() for node in self.nodes]
        bounds = [at * SLOTS // PRIMARIES + (at * SLOTS % PRIMARIES > 0) for at in range(PRIMARIES + 1)]
        for at, store in enumerate(stores):
            if at < PRIMARIES:
                store.call("CLUSTER", "ADDSLOTSRANGE", bounds[at], bounds[at + 1] - 1)
                store.call("CLUSTER", "SET-CONFIG-EPOCH", at + 1)
            for other in self.nodes[:at]:
                store.call("CLUSTER", "MEET", "127.0.0.1", other.port, other.bus_port)
        wait_until(lambda: all(_known(store) == len(stores) for store in stores), "all nodes to know one another")
        for store, primary in zip(stores[PRIMARIES:], self.nodes, strict=False):
            store.call("CLUSTER", "REPLICATE", primary.id)
        wait_until(lambda: all(_is_well(store) for store in stores), "the cluster to be well")
        replicas = stores[PRIMARIES:]
        wait_until(lambda: all(store.call("ROLE")[3] == b"connected" for store in replicas), "the replicas to follow")
        for store in stores:
            store.close()


def _known(store: Store) -> int:
    return len([line for line in store.call("CLUSTER", "NODES").splitlines() if b"handshake" not in line])


def _is_well(store: Store) -> bool:
    reply: bytes = store.call("CLUSTER", "INFO")
    return b"cluster_state:ok" in reply and b"cluster_slots_ok:16384" in reply
