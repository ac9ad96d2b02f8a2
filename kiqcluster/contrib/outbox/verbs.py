"""Verbs: what `outbox(…, job)` returns; its calls write rows where those of the job push.

All that a push does happens at the call: checks of arguments, client middleware, features, the payload.  So what is
wrong fails in the caller's transaction.  Only the write itself waits for the relay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Generic, ParamSpec, TypeVar

from kiqcluster.client.chains import Chain
from kiqcluster.client.client import Client
from kiqcluster.client.handle import Handle
from kiqcluster.contrib.outbox.rows import columns
from kiqcluster.errors import UsageError
from kiqcluster.job import Enqueuer
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.delivery import OUTBOX, Ready
from kiqcluster.sidekiq.payload import Jid
from kiqcluster.store import Store

__all__ = ["Outbox", "OutboxOfJob", "WriteRows", "become_rows", "enqueuer_of"]

P = ParamSpec("P")
R = TypeVar("R", covariant=True)

WriteRows = Callable[[list[dict[str, Any]]], object]  # called with the columns of new rows


@contextmanager
def become_rows(write: WriteRows) -> Iterator[None]:
    """Have the pushes of a block become rows."""

    def take(jobs: Sequence[Ready], store: Store, wait_replicas: int) -> None:
        now = SystemClock.now()
        write([columns(job, store, wait_replicas, now) for job in jobs])

    token = OUTBOX.set(take)
    try:
        yield
    finally:
        OUTBOX.reset(token)


class Outbox:
    """Pushes by items, as of Client: `{"class": "Acme::Mail", "args": [7]}`."""

    def __init__(self, write: WriteRows) -> None:
        self._write = write

    def push(self, item: Mapping[str, Any]) -> Jid | None:
        """See Client.push; the row is part of the transaction.  Raises InvalidPush, InvalidArguments."""
        with become_rows(self._write):
            return Client().push(item)

    def push_bulk(self, item: Mapping[str, Any]) -> list[Jid | None]:
        """See Client.push_bulk."""
        with become_rows(self._write):
            return Client().push_bulk(item)


class OutboxOfJob(Outbox, Generic[P, R]):
    """The verbs of one job, or of a chain."""

    def __init__(self, write: WriteRows, job: Enqueuer[P, R] | Chain[P, R]) -> None:
        super().__init__(write)
        self._job = job

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R] | None:
        """Write the job into the caller's transaction; return its handle, or None when client middleware stopped it.

        Raises InvalidArguments.
        """
        with become_rows(self._write):
            return self._job.enqueue(*args, **kwargs)

    def perform_async(self, /, *args: P.args, **kwargs: P.kwargs) -> Jid | None:
        """Do the same; return the jid."""
        with become_rows(self._write):
            return self._job.perform_async(*args, **kwargs)

    def perform_in(self, delay: float | timedelta, /, *args: P.args, **kwargs: P.kwargs) -> Jid | None:
        """Do the same for a job that runs after a delay, which counts from this call."""
        with become_rows(self._write):
            return self._job.perform_in(delay, *args, **kwargs)

    def perform_at(self, when: float | datetime, /, *args: P.args, **kwargs: P.kwargs) -> Jid | None:
        """Do the same for a job that runs at a time."""
        with become_rows(self._write):
            return self._job.perform_at(when, *args, **kwargs)

    def perform_bulk(self, argument_lists: Iterable[Sequence[Any]]) -> list[Jid | None]:
        """Write a job per list of arguments; return jids in order.  Raises InvalidArguments before any is written."""
        if isinstance(self._job, Chain):
            raise UsageError("a chain has no perform_bulk; call enqueue for each")
        with become_rows(self._write):
            return self._job.perform_bulk(argument_lists)


def enqueuer_of(job: Any) -> Any:
    """Return what has the verbs of a job class, a job function or a chain.  Raises UsageError."""
    if isinstance(job, Enqueuer | Chain):
        return job
    if isinstance(job, type) and hasattr(job, "definition"):
        return Enqueuer(job.definition, job.definition.options)
    raise UsageError(f"outbox takes a job class, a job function or a chain, not {job!r}")
