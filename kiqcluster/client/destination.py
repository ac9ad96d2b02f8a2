"""Destinations: where the jobs of a push are written.  Threads and coroutines share all of it but the wait.

destination_of           chosen once for each push, at its call: also for a write that waits for a commit
store_for_push           the shard of a push, also in memory
require_store_for_push   the same for callers that write to Redis themselves, which cannot be done in memory
store_for_handle         the shard in which a handle looks for its job

| destination | chosen                                              | its jobs                                     |
|-------------|-----------------------------------------------------|----------------------------------------------|
| Outbox      | in a call of an outbox (process/delivery.OUTBOX)    | become rows of the caller's transaction      |
| AfterCommit | where the application puts pushes off (`deferral`)  | wait for the commit, then go where they would |
| Memory      | in a test (`delivery`)                              | are kept or run by the test                  |
| Shard       | else                                                | are written to Redis                         |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from kiqcluster.application.registry import Definition
from kiqcluster.client.async_writes import awrite_all
from kiqcluster.client.draft import Draft, Drafts
from kiqcluster.client.router import shard_of
from kiqcluster.client.writes import Refused, write_all
from kiqcluster.errors import UsageError
from kiqcluster.process.delivery import OUTBOX, VIA, Deferral, Delivery, Ready, TakeJobs
from kiqcluster.process.runtime import Setup, current_setup
from kiqcluster.store import Store

__all__ = ["Destination", "destination_of", "require_store_for_push", "store_for_handle", "store_for_push"]


class Destination(Protocol):
    """Where the jobs of a push are written.  Both calls return the jobs that a guard has refused.

    Raise StoreError, whose `enqueued` has the jids that are certainly enqueued.
    """

    def write(self, jobs: Sequence[Ready], wait_replicas: int) -> Refused:
        """Write the jobs, some at a time.  wait_replicas: how many replicas must confirm them."""
        ...

    async def awrite(self, jobs: Sequence[Ready], wait_replicas: int) -> Refused:
        """Do the same in a coroutine, whose event loop goes on meanwhile."""
        ...


@dataclass(slots=True)
class Shard:
    """A Redis."""

    store: Store

    def write(self, jobs: Sequence[Ready], wait_replicas: int) -> Refused:
        return write_all(self.store, jobs, wait_replicas)

    async def awrite(self, jobs: Sequence[Ready], wait_replicas: int) -> Refused:
        return await awrite_all(self.store, jobs, wait_replicas)


@dataclass(slots=True)
class Memory:
    """The receiver of a test.  It may leave jobs to the shard that the caller has named."""

    delivery: Delivery
    target: Store | None  # None: the default one
    setup: Setup

    def write(self, jobs: Sequence[Ready], wait_replicas: int) -> Refused:
        return {} if self.delivery.deliver(jobs, self.target) else self._shard().write(jobs, wait_replicas)

    async def awrite(self, jobs: Sequence[Ready], wait_replicas: int) -> Refused:
        return {} if self.delivery.deliver(jobs, self.target) else await self._shard().awrite(jobs, wait_replicas)

    def _shard(self) -> Shard:
        return Shard(self.target or self.setup.current_store())


@dataclass(slots=True)
class Outbox:
    """What the surrounding call of an outbox does with jobs."""

    take: TakeJobs
    store: Store  # that the rows name

    def write(self, jobs: Sequence[Ready], wait_replicas: int) -> Refused:
        self.take(jobs, self.store, wait_replicas)
        return {}

    async def awrite(self, jobs: Sequence[Ready], wait_replicas: int) -> Refused:
        return self.write(jobs, wait_replicas)


@dataclass(slots=True)
class AfterCommit:
    """Another destination, once the transaction of the caller is committed; at once if there is none."""

    deferral: Deferral
    definition: Definition | None
    then: Destination

    def write(self, jobs: Sequence[Ready], wait_replicas: int) -> Refused:
        return {} if self._waits(jobs, wait_replicas) else self.then.write(jobs, wait_replicas)

    async def awrite(self, jobs: Sequence[Ready], wait_replicas: int) -> Refused:
        return {} if self._waits(jobs, wait_replicas) else await self.then.awrite(jobs, wait_replicas)

    def _waits(self, jobs: Sequence[Ready], wait_replicas: int) -> bool:
        return bool(jobs) and self.deferral(self.definition, partial(self.then.write, jobs, wait_replicas))


def destination_of(setup: Setup, draft: Draft | Drafts) -> Destination:
    """Return where a push goes.  Raises UnroutedCall."""
    target = draft.store or VIA.get() or shard_of(setup, draft.name, draft.definition)
    take = OUTBOX.get()
    if take is not None:
        return Outbox(take, target or setup.current_store())
    delivery = setup.delivery
    found: Destination = Shard(target or setup.current_store()) if delivery is None else Memory(delivery, target, setup)
    return found if setup.deferral is None else AfterCommit(setup.deferral, draft.definition, found)


def store_for_handle(name: str, definition: Definition | None) -> Store | None:
    """Return the shard in which a handle looks for its job, None in memory.  Raises UnroutedCall."""
    setup = current_setup()
    return store_for_push(setup, name, definition) if setup.delivery is None else None


def require_store_for_push(setup: Setup, name: str, definition: Definition | None, store: Store | None = None) -> Store:
    """Return the shard of a push; for those who write themselves.  Raises UnroutedCall; UsageError in memory."""
    if setup.delivery is not None:
        raise UsageError(
            f"{name}: this needs Redis, and the jobs of this test do not go there; with pytest, use the fixture "
            "kiq_store instead of kiq_fake or kiq_inline; otherwise `with RedisServer() as server, real(), "
            "Client.via(server.store()):`, from kiqcluster.testing"
        )
    return store_for_push(setup, name, definition, store)


def store_for_push(setup: Setup, name: str, definition: Definition | None, store: Store | None = None) -> Store:
    """Return the shard for which a push is made, also in memory.  Raises UnroutedCall."""
    return store or VIA.get() or shard_of(setup, name, definition) or setup.current_store()
