"""Commits: pushes inside of a transaction are written once it is committed, and not at all if it is rolled back.

1. KIQCLUSTER = {"enqueue_on_commit": True}            all pushes
2. class Invoice(Job, enqueue_on_commit=True)           those of a job; "orders" for the database of that alias
3. TASKS … "OPTIONS": {"enqueue_on_commit": True}       those of a backend
4. enqueue_on_commit(Invoice, 7, using="orders")        one

The job is made, and its arguments are checked, at the call: its jid is known.  Outside of a transaction it is written
at once.  A process that dies between the commit and the write loses the job: the outbox does not.
A coroutine sees no transaction: connections belong to the thread of sync_to_async.  4 refuses to work there; 1 and 2
write at once, for they cannot know; the backend (3) pushes in that thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections, transaction

from kiqcluster.application.registry import Definition
from kiqcluster.errors import UsageError
from kiqcluster.process.runtime import Setup, current_setup
from kiqcluster.process.service import is_in_loop

__all__ = [
    "CommitDeferral",
    "alias_of",
    "enqueue_on_commit",
    "install_deferral",
    "is_open",
    "named_by_call",
    "waiting_for",
]

OPTION = "enqueue_on_commit"
FORCED: ContextVar[str | None] = ContextVar("kiqcluster_django_commit", default=None)  # alias that the caller has named


def alias_of(option: bool | str | None) -> str | None:
    """Return the alias of the database that an option names, None for none."""
    return DEFAULT_DB_ALIAS if option is True else option or None


def is_open(alias: str) -> bool:
    """Return whether this thread is in a transaction."""
    return bool(connections[alias].in_atomic_block)


def named_by_call() -> str | None:
    """Return the alias that the surrounding call of enqueue_on_commit names, None outside of one."""
    return FORCED.get()


class CommitDeferral:
    """Puts pushes off, for Setup.deferral.  default: of jobs that do not say."""

    def __init__(self, default: bool | str = False) -> None:
        self.default = default
        self.configured: frozenset[str] = frozenset()  # names of settings that KIQCLUSTER has set

    def alias(self, definition: Definition | None) -> str | None:
        """Return the alias of the database whose commit a push waits for, None for none."""
        if (forced := FORCED.get()) is not None:
            return forced
        declared = None if definition is None else definition.local.get(OPTION)
        return alias_of(self.default if declared is None else declared)

    def __call__(self, definition: Definition | None, write: Callable[[], object], /) -> bool:
        alias = self.alias(definition)
        if alias is None or not is_open(alias):
            return False
        transaction.on_commit(write, using=alias)
        return True


def install_deferral(setup: Setup, default: bool | str = False) -> CommitDeferral:
    """Have the pushes of this process wait for commits where they are declared so."""
    deferral = setup.deferral if isinstance(setup.deferral, CommitDeferral) else CommitDeferral()
    deferral.default, setup.deferral = default, deferral
    return deferral


@contextmanager
def waiting_for(alias: str) -> Iterator[None]:
    """Have all pushes of a block wait for the commit of a database."""
    if current_setup().deferral is None:
        install_deferral(current_setup())
    token = FORCED.set(alias)
    try:
        yield
    finally:
        FORCED.reset(token)


def enqueue_on_commit(job: Any, /, *args: Any, using: str | None = None, **kwargs: Any) -> Any:
    """Enqueue a job or a task once the current transaction is committed; return its jid, or the result of a task.

    job: a job, `Invoice.set(queue="critical")`, or a task.  using: alias of the database; DEFAULT_DB_ALIAS otherwise.
    Raises as perform_async, or as the enqueue of a task; UsageError in a coroutine, whose thread sees no transaction.
    """
    alias = using or DEFAULT_DB_ALIAS
    if is_in_loop() and not is_open(alias):
        raise UsageError(
            "enqueue_on_commit sees no transaction in a coroutine, because those belong to another thread, and would "
            "push before the commit; call it within the function that has the transaction, which "
            "`await sync_to_async(function)()` runs"
        )
    with waiting_for(alias):
        push = job.perform_async if hasattr(job, "perform_async") else job.enqueue
        return push(*args, **kwargs)
