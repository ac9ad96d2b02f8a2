"""JobContext: the job that runs in this thread or coroutine, as `current_job()` gives it to the application."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from kiqcluster.errors import JobCancelled, JobTimedOut, UsageError
from kiqcluster.sidekiq.active_job import attributes
from kiqcluster.sidekiq.payload import CATTR, CORRELATION_ID, LOCALE, META, VERSION, Payload, batch_of, is_cattr
from kiqcluster.sidekiq.ruby_json import JSON, encode
from kiqcluster.store import Store
from kiqcluster.words import answers

__all__ = [
    "CURRENT_JOB",
    "CURRENT_STEP",
    "INLINE_JOB",
    "JobContext",
    "Step",
    "TimeLimit",
    "current_job",
    "running_jid",
    "running_step",
    "version_of",
]

LOGGER = logging.getLogger("kiqcluster")
MAX_MESSAGES, MAX_MESSAGE_CHARACTERS = 100, 1_000  # that a run keeps in its batch
MAX_EXTRAS = 100  # fields that a job adds to its last line
MAX_AMOUNT = 2**63  # of the progress of a job


def _not_fenced(_identity: str) -> bool:
    """Return False: no process is fenced."""
    return False


@dataclass(slots=True)
class TimeLimit:
    """The option `timeout` of a run.  seconds: its value.  ends_at, monotonic: when it is over, by this clock."""

    seconds: float
    ends_at: float
    monotonic: Callable[[], float]


@answers("context")
@dataclass
class JobContext:
    """The job that the current thread runs, as `current_job()` gives it.

    `stopping` turns true when the process stops, when it may have been fenced, or when this job was cancelled
    (`is_asked_to_stop`): the job should end soon (or raise Interrupted, or call `check_cancelled`).

    One is made for each run, so what few jobs use is a default of the class until it is set.  What each run sets has
    a factory instead: CPython sets an attribute more slowly if the class has one of that name.
    """

    payload: Payload
    queue: str
    name: str
    _stopping: threading.Event
    _identity: str = field(default_factory=str)
    _is_fenced: Callable[[str], bool] = field(default_factory=lambda: _not_fenced)
    # Its unit, and the Redis that has it.
    held: tuple[Any, Store] | None = field(default_factory=lambda: None, repr=False)
    _pid: int = field(default_factory=os.getpid, repr=False)  # of the worker, also in a process that the job forks
    is_asked_to_stop: bool = field(default=False, init=False)
    cancelled_by: str = field(default="", init=False, repr=False)  # "cancelled" or "batch", once somebody has done so
    passed_on: Mapping[str, JSON] | None = field(default=None, init=False, repr=False)  # kept by features/payload
    time_limit: TimeLimit | None = field(default=None, init=False)
    extras: dict[str, Any] | None = field(default=None, init=False, repr=False)  # of log_extra_metadata_on_done
    messages: list[str] | None = field(default=None, init=False, repr=False)  # that the job has logged
    progressed: tuple[float, float | None] | None = field(default=None, init=False, repr=False)  # done, total
    # Whether the run has come to use features of which its class and its payload say nothing.  Only ever set to True,
    # for several threads do.
    uses_more: bool = field(default=False, init=False, repr=False)
    places: Any = field(default=None, init=False, repr=False)  # kept by limits
    iteration: Any = field(default=None, init=False, repr=False)  # where an iterable job is (features/iteration)
    # batches/added_jids keeps the rows here that the job has added to batches: `added`, in vars(self)

    @property
    def jid(self) -> str:
        return str(self.payload.get("jid", ""))

    @property
    def version(self) -> int:
        """The version of the class that enqueued the job (option `version`), 0 where that declared none."""
        return version_of(self.payload)

    @property
    def correlation_id(self) -> str | None:
        """The id of the request that led to this job (application_context), or None."""
        value = self.payload.get(CORRELATION_ID)
        return value if isinstance(value, str) else None

    @property
    def meta(self) -> dict[str, JSON]:
        """What is known of the caller (application_context, GitLab's `meta.*`): `meta["caller_id"]`; {} if nothing."""
        return {key.removeprefix(META): value for key, value in self.payload.items() if key.startswith(META)}

    @property
    def locale(self) -> str | None:
        """The locale of the caller (Sidekiq's I18n middleware), or None."""
        value = self.payload.get(LOCALE)
        return value if isinstance(value, str) else None

    @property
    def cattr(self) -> dict[str, Any]:
        """The caller's CurrentAttributes in Ruby, by name, whichever Sidekiq stored them; {} for none."""
        return attributes(self.payload.get(CATTR))

    @property
    def cattrs(self) -> dict[str, dict[str, Any]]:
        """The same for each class of CurrentAttributes, by its key: `cattrs["cattr"]`, `cattrs["cattr_1"]`, …"""
        return {key: attributes(value) for key, value in self.payload.items() if is_cattr(key)}

    @property
    def stopping(self) -> bool:
        return self.is_asked_to_stop or self._stopping.is_set() or self._is_fenced(self._identity)

    @property
    def fenced(self) -> bool:
        """Whether others may run this job now: its worker was recovered, or could not reach Redis for too long."""
        return self._is_fenced(self._identity)

    def log_extra_metadata_on_done(self, key: str, value: Any) -> None:
        """Add a field to the line that says how the job ended: `extra.<class>.<key>`; 100 at most, later ones not.

        value: as for the field of any line.  The name is GitLab's.
        """
        extras = self.extras = {} if self.extras is None else self.extras
        if key in extras or len(extras) < MAX_EXTRAS:
            extras[str(key)] = value

    def log(self, text: str) -> None:
        """Keep a message for the batch of the job; a job that is in no batch writes a line of the log.

        It is written with the end of the run, so that of a run whose process dies is lost.  100 of 1 000 characters at
        most for each run.
        """
        if batch_of(self.payload) is None:
            LOGGER.info("%s", text)
            return
        messages = self.messages = [] if self.messages is None else self.messages
        if len(messages) < MAX_MESSAGES:
            messages.append(str(text)[:MAX_MESSAGE_CHARACTERS])

    def progress(self, done: float, total: float | None = None) -> None:
        """Say how far the job has come, as often as you like; it waits for nobody.  Only the latest call counts.

        total: None where it is not known.  Raises UsageError for what is no number, or below 0.
        """
        for each in (done, 0 if total is None else total):
            if not isinstance(each, int | float) or isinstance(each, bool) or not 0 <= each < MAX_AMOUNT:
                raise UsageError(f"progress({done!r}, {total!r}) does not fit; it takes numbers from 0 on")
        self.progressed = (done, total)
        self.uses_more = True

    def cancel(self, by: str = "cancelled") -> None:
        """Tell the job that somebody has cancelled it; from any thread.  by: becomes `dropped_by`.

        `kiqcluster.cancel(jid)` and `Batch.cancel` call this.
        """
        self.cancelled_by = by
        self.uses_more = True
        self.is_asked_to_stop = True

    @property
    def cancelled(self) -> bool:
        """Whether somebody has cancelled the job since it began."""
        return bool(self.cancelled_by)

    def check_cancelled(self) -> None:
        """Raise JobCancelled if somebody has cancelled the job since it began: it ends, and does not run again."""
        if self.cancelled:
            raise JobCancelled(self.name, self.jid)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the `timeout` of the job, below 0 once it is over; None where it has none."""
        limit = self.time_limit
        return None if limit is None else limit.ends_at - limit.monotonic()

    @property
    def timed_out(self) -> bool:
        """Whether the job has run for longer than its `timeout`."""
        left = self.seconds_left
        return left is not None and left <= 0

    def check_timeout(self) -> None:
        """Raise JobTimedOut if the job has run for longer than its `timeout`: it has failed, and is retried."""
        if self.timed_out and self.time_limit is not None:
            raise JobTimedOut(self.name, "timeout", self.time_limit.seconds)


def version_of(payload: Payload) -> int:
    """Return the version of a payload's arguments; 0 where it names none, as in GitLab."""
    value = payload.get(VERSION)
    return value if type(value) is int else 0


CURRENT_JOB: ContextVar[JobContext | None] = ContextVar("kiqcluster_job", default=None)


def current_job() -> JobContext | None:
    """Return the job that runs in this context, or None outside of jobs."""
    return CURRENT_JOB.get()


# Of perform_inline: the job around it, None outside of jobs, and the jid of the one that it runs.
INLINE_JOB: ContextVar[tuple[JobContext | None, str] | None] = ContextVar("kiqcluster_inline", default=None)


def running_jid() -> str:
    """Return the jid of the innermost job of this context, also of one in perform_inline; "" outside of jobs."""
    running, inline = CURRENT_JOB.get(), INLINE_JOB.get()
    if inline is not None and inline[0] is running:  # else a job of a test runs within it
        return inline[1]
    return "" if running is None else running.jid


@dataclass(slots=True)
class Step:
    """Where a job is whose run has several steps, such as an iterable one; it changes as the run goes on.

    name: of a hook, or of the method that gets the items.  cursor: of the item that is done now, None within a hook.
    outer: where the job is that runs this one inside of itself.
    """

    outer: Step | None = None
    name: str = ""
    cursor: JSON = None


CURRENT_STEP: ContextVar[Step | None] = ContextVar("kiqcluster_step", default=None)


def running_step() -> str:
    """Return the step of the running job as text, another for each item; "" for a job that has no steps."""
    words, step = list[str](), CURRENT_STEP.get()
    while step is not None:
        cursor = b"" if step.cursor is None else encode(step.cursor)
        words.append(f"{step.name} {cursor.decode(errors='backslashreplace')}".rstrip())
        step = step.outer
    return "/".join(reversed(words))
