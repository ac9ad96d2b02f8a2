"""Queue names: which queues a worker serves, as their names come up.

Runs in: the main thread (`read` at the boot, `learn` on an order of the supervisor), the heartbeat's thread (`learn`).
"""

from __future__ import annotations

from collections.abc import Iterable

from kiqcluster.errors import RedisRefused
from kiqcluster.process.runtime import Runtime
from kiqcluster.store import is_outage
from kiqcluster.store.engine.engine import Engine
from kiqcluster.worker.fetch.fetch import ReliableFetch
from kiqcluster.worker.fetch.queue_order import QueueOrder, describe_queues

__all__ = ["QueueNames"]


class QueueNames:
    """Tells the order and the fetch of one worker which queues there are."""

    def __init__(self, runtime: Runtime, engine: Engine, order: QueueOrder, fetch: ReliableFetch) -> None:
        self._runtime = runtime
        self._engine = engine
        self._order = order
        self._fetch = fetch

    def read(self) -> None:
        """Read the names that Redis knows.  Raises StoreError while Redis is away."""
        try:
            names = set(self._engine.queue_names())
        except RedisRefused as error:  # a broken key: the queues that the group names are served all the same
            if is_outage(error):
                raise
            self._runtime.trouble("queue names", error)
            names = set()
        self._order.learn(names)
        if not self._order.weights:
            self._runtime.events.emit("no_queues", group=self._order.group.text)

    def learn(
        self, known: Iterable[str], chosen: dict[str, int] | None = None, left_behind: dict[str, int] | None = None
    ) -> None:
        """Serve new names, while jobs run.

        chosen, left_behind: queue → weight, if the group is a selector (SelectorGroup).
        """
        if self._order.learn(known) if chosen is None else self._order.choose(chosen, left_behind or {}):
            self._runtime.events.emit("queues_changed", queues=describe_queues(self._order.weights))
            self._fetch.on_wakeup()
