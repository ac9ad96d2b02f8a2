"""Client: pushes jobs that need no class here, by items, as Sidekiq's client does.

1. draft        what the item says (items.py)
2. preparation  payload, client middleware, checks, features
3. destination  Redis, in one round trip; an outbox; the memory of a test

The verbs of jobs make their own drafts (job.py), and go the same way (sending.py).
Counterpart: sidekiq client.rb.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kiqcluster.application.registry import Definition
from kiqcluster.client.draft import Draft, Drafts
from kiqcluster.client.items import check_presentable, read_item
from kiqcluster.client.preparation import positions
from kiqcluster.client.sending import asend, asend_all, send, send_all
from kiqcluster.errors import InvalidPush, UsageError
from kiqcluster.process.delivery import VIA
from kiqcluster.process.runtime import Setup, current_setup
from kiqcluster.sidekiq.payload import Jid
from kiqcluster.store import Store

__all__ = ["Client"]


class Client:
    """Pushes jobs to Redis.

    store: the shard; None means the one of `Client.via`, else that of the class's routing rule, else the configured
    one.  Thread-safe.
    """

    def __init__(self, store: Store | None = None, setup: Setup | None = None) -> None:
        self._store = store
        self._setup = setup or current_setup()

    @staticmethod
    @contextmanager
    def via(store: Store | str) -> Iterator[Client]:
        """Send all pushes of this context to another shard until the block ends; may be nested.

        store: or the name of a shard of the configuration.  Raises UsageError.
        """
        if isinstance(store, str):
            store = current_setup().shard(store)
        if not isinstance(store, Store):
            raise UsageError(
                f"Client.via takes a Store or the name of a shard, not {store!r}; write Client.via(Store('redis://…'))"
            )
        token = VIA.set(store)
        try:
            yield Client(store)
        finally:
            VIA.reset(token)

    def push(self, item: Mapping[str, Any], *, wait_replicas: int | None = None) -> Jid | None:
        """Push one job and return its jid, or None when middleware stopped it.

        item: `class` (a registered job or any name), `args`, and optionally queue, retry, at, jid, tags and any
        other payload key.  wait_replicas: number of replicas that must confirm it, else NotReplicated is raised; None
        means the number in the job's definition, or none.  Raises InvalidPush, InvalidArguments, StoreError.  One round
        trip.
        """
        return send(self._setup, self._draft(item, wait_replicas))

    async def apush(self, item: Mapping[str, Any], *, wait_replicas: int | None = None) -> Jid | None:
        """Push one job in a coroutine, whose event loop goes on meanwhile; see push."""
        return await asend(self._setup, self._draft(item, wait_replicas))

    def push_bulk(self, item: Mapping[str, Any], *, wait_replicas: int | None = None) -> list[Jid | None]:
        """Push many jobs of one class: `args` is a list of argument lists, `at` a time or a list of times.

        wait_replicas: see push; each round trip waits for the replicas, and the first one not confirmed ends the push.
        Returns a jid per job, in order, None where middleware stopped it.  Raises PushError, which names the first
        invalid entry, before anything is enqueued; StoreError, whose `enqueued` has the jids written so far.
        One round trip per 1 000 jobs or 10 MB.
        """
        return send_all(self._setup, self._drafts(item, wait_replicas))

    async def apush_bulk(self, item: Mapping[str, Any], *, wait_replicas: int | None = None) -> list[Jid | None]:
        """Push many jobs of one class in a coroutine, whose event loop goes on meanwhile; see push_bulk."""
        return await asend_all(self._setup, self._drafts(item, wait_replicas))

    def _draft(self, item: Mapping[str, Any], wait_replicas: int | None) -> Draft:
        name, definition, options = read_item(self._setup, item)
        arguments = positions(name, definition, item.get("args", []))
        check_presentable(item, name, options, arguments)
        replicas = _replicas(definition, wait_replicas)
        return Draft(name, options, arguments, definition, item.get("at"), item.get("jid"), replicas, self._store)

    def _drafts(self, item: Mapping[str, Any], wait_replicas: int | None) -> Drafts:
        name, definition, options = read_item(self._setup, item)
        lists = item.get("args", [])
        check_presentable(item, name, options, lists[0] if isinstance(lists, list) and lists else [])
        if item.get("jid") is not None:
            raise InvalidPush("a jid belongs to one job; leave it out of push_bulk")
        replicas = _replicas(definition, wait_replicas)
        return Drafts(name, options, lists, definition, item.get("at"), None, replicas, self._store)


def _replicas(definition: Definition | None, wanted: int | None) -> int:
    """Return how many replicas must confirm a push: the caller's number, else that of the definition."""
    if wanted is None:
        return 0 if definition is None else definition.local.get("wait_replicas", 0)
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 0:
        raise InvalidPush(f"wait_replicas = {wanted!r} does not fit; it takes a number of replicas")
    return wanted
