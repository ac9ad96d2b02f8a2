"""Delivery: to which Redis pushes go, or which receiver takes them in place of Redis.

Ready            a job as it is written
Delivery         a receiver of jobs, for tests (Setup.delivery)
Refusal          the receiver of a test that has chosen none; runs_a_test: whether this process needs that
Deferral         puts writes off until a transaction is committed (Setup.deferral)
VIA              the shard that the caller has chosen (Client.via)
OUTBOX           what takes the jobs of the surrounding call of an outbox
OutsideSource    jobs that wait outside of Redis, for workers to push (Setup.due_sources)
allow_unrouted   lets calls of a context use the default shard, also with `strict_routing`
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from types import FrameType
from typing import Any, NamedTuple, Protocol

from kiqcluster.errors import UsageError
from kiqcluster.ipc.thread_frames import frames_by_thread
from kiqcluster.sidekiq.outcome import Effect
from kiqcluster.sidekiq.payload import Jid
from kiqcluster.store import Store

__all__ = [
    "OUTBOX",
    "UNROUTED_ALLOWED",
    "VIA",
    "Deferral",
    "Delivery",
    "OutsideSource",
    "Ready",
    "Refusal",
    "TakeJobs",
    "allow_unrouted",
    "runs_a_test",
]

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

    def kept(self, key: str) -> Sequence[bytes]:
        """Return what Redis would have under a key that jobs leave something in: a result, or a history."""


class Refusal:
    """Takes no job, for the test has not said where to; a store that the caller names gets its own."""

    def deliver(self, jobs: Sequence[Ready], store: Store | None) -> bool:
        """Raises UsageError."""
        if store is not None or not jobs:
            return False
        raise UsageError(
            "this test pushes a job, and says neither to keep it nor where to send it; push it within "
            "`with kiqcluster.testing.fake():` or `inline()`; with pytest, use the fixture kiq_fake or kiq_inline, or "
            "kiq_store for a Redis of the tests, and `kiq_mode = fake` in its configuration for a whole suite. `with "
            "kiqcluster.testing.real():` and `kiq_mode = real` send to the Redis that the application is configured for"
        )

    def cancel(self, jid: str) -> bool:  # noqa: ARG002
        return False  # it has no job

    def kept(self, key: str) -> Sequence[bytes]:  # noqa: ARG002
        return ()


def runs_a_test() -> bool:
    """Return whether the calling thread or the main one runs tests of unittest, as `manage.py test` does.

    pytest's plugin decides by itself (_kiqcluster_pytest).  Price: 0.1 µs in a process that has not imported unittest,
    else about 10 µs for a stack of 25 frames; the number of threads does not matter.
    """
    if "unittest.case" not in sys.modules:
        return False
    main = threading.main_thread().ident or 0
    return _is_below_runner(sys._getframe()) or _is_below_runner(frames_by_thread().get(main))


def _is_below_runner(frame: FrameType | None) -> bool:
    while frame is not None:
        if _is_of_runner(str(frame.f_globals.get("__name__"))):
            return True
        frame = frame.f_back
    return False


@cache
def _is_of_runner(module: str) -> bool:
    return module.startswith(("unittest.", "twisted.trial.", "django.test.runner")) and module != "unittest.mock"


class Deferral(Protocol):
    """Puts the write of a push off, for an integration with a database."""

    def __call__(self, definition: Any, write: Callable[[], object], /) -> bool:
        """Return whether the write is put off: then it is called later, or never.  definition: of the job, or None."""
        ...


TakeJobs = Callable[[Sequence[Ready], Store, int], object]  # called with jobs, their shard, and wait_replicas
# What the surrounding call of an outbox does with pushes, None outside of one.
OUTBOX: ContextVar[TakeJobs | None] = ContextVar("kiqcluster_outbox", default=None)


class OutsideSource(Protocol):
    """Jobs that wait outside of Redis, in a database for example; each worker has a thread for each source.

    name: in thread names and messages; the same in all processes that serve it.
    interval: seconds; the fleet together looks so often.
    """

    name: str
    interval: float

    def move(self) -> bool:
        """Push some of what waits; return whether more may wait.  May block, and raise anything: it is tried again."""
        ...


@contextmanager
def allow_unrouted() -> Iterator[None]:
    """Let pushes and inspections of this context go to the default shard, also with `strict_routing`."""
    token = UNROUTED_ALLOWED.set(True)
    try:
        yield
    finally:
        UNROUTED_ALLOWED.reset(token)
