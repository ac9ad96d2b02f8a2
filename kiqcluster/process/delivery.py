"""Delivery: to which Redis pushes go, or which receiver takes them in place of Redis.

Ready            a job as it is written
Delivery         a receiver of jobs, for tests (Setup.delivery)
VIA              the shard that the caller has chosen (Client.via)
allow_unrouted   lets calls of a context use the default shard, also with `strict_routing`
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, Protocol

from kiqcluster.sidekiq.outcome import Effect
from kiqcluster.sidekiq.payload import Jid
from kiqcluster.store import Store

__all__ = ["UNROUTED_ALLOWED", "VIA", "Delivery", "Ready", "allow_unrouted"]

# The shard of the surrounding `Client.via`, None for the configured Redis.
VIA: ContextVar[Store | None] = ContextVar("kiqcluster_via", default=None)
UNROUTED_ALLOWED: ContextVar[bool] = ContextVar("kiqcluster_unrouted", default=False)


class Ready(NamedTuple):
    """A job that is ready to be written.

    at: epoch seconds, None for a job that is due.  rows: written with it in one step (push.lua).
    """

    jid: Jid
    queue: str
    at: float | None
    encoded: bytes
    rows: Sequence[Effect] = ()


class Delivery(Protocol):
    """A receiver of jobs in place of Redis; kiqcluster.testing has some."""

    def deliver(self, jobs: Sequence[Ready], store: Store | None) -> bool:
        """Take the jobs of one push, in order; return whether it took them, else the store gets them.

        store: the shard that the caller named, None for the default.
        """

    def cancel(self, jid: str) -> bool:
        """Remove a job that waits; return whether it was there."""


@contextmanager
def allow_unrouted() -> Iterator[None]:
    """Let pushes and inspections of this context go to the default shard, also with `strict_routing`."""
    token = UNROUTED_ALLOWED.set(True)
    try:
        yield
    finally:
        UNROUTED_ALLOWED.reset(token)
