"""Runtime: the objects that exist once per process, and the running job's context.

The application fills Setup while it is imported (configure, middleware, handlers, hooks); clients and workers read it.
Setup is the package's one piece of process-wide state; kiqcluster.testing swaps it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, TypeVar, Unpack

from kiqcluster.errors import ApplicationError, JobCancelled, JobTimedOut, StoreError, UnroutedCall
from kiqcluster.ipc.forks import exit_forked_children
from kiqcluster.process import config_sources
from kiqcluster.process.beat_guard import BeatGuard
from kiqcluster.process.clock import Clock, SystemClock
from kiqcluster.process.config import CodeSettings, Config
from kiqcluster.process.delivery import UNROUTED_ALLOWED, Delivery
from kiqcluster.process.events import Events, Hooks
from kiqcluster.process.in_force import InForce
from kiqcluster.process.middleware import Chain
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.keys import Keys
from kiqcluster.sidekiq.outcome import Effect, Outcome
from kiqcluster.sidekiq.payload import CATTR, CORRELATION_ID, LOCALE, META, VERSION, Payload
from kiqcluster.sidekiq.routing import Rules
from kiqcluster.sidekiq.ruby_json import JSON
from kiqcluster.sidekiq.task_keys import task_of
from kiqcluster.store import Store, is_outage
from kiqcluster.store.shards import address_of, shard_name

__all__ = [
    "CURRENT_JOB",
    "JobContext",
    "Push",
    "Run",
    "Runtime",
    "Setup",
    "TimeLimit",
    "current_job",
    "current_setup",
    "using_setup",
    "version_of",
]

ErrorHandler = Callable[[Exception, dict[str, Any]], object]
DeathHandler = Callable[[Payload, Exception], object]
LOGGER = logging.getLogger("kiqcluster")
CONTEXTS_WITH_EVENTS = frozenset({"job", "malformed payload"})  # contexts whose errors have an event of their own
DEFAULT_KEYS = Keys()
MAX_MESSAGES, MAX_MESSAGE_CHARACTERS = 100, 1_000  # that a run keeps in its task
MAX_EXTRAS = 100  # fields that a job adds to its last line
E = TypeVar("E", bound=ErrorHandler)
D = TypeVar("D", bound=DeathHandler)


def _not_fenced(_identity: str) -> bool:
    """Return False: no process is fenced."""
    return False


@dataclass(slots=True)
class TimeLimit:
    """The option `timeout` of a run.  seconds: its value.  ends_at, monotonic: when it is over, by this clock."""

    seconds: float
    ends_at: float
    monotonic: Callable[[], float]


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
    is_asked_to_stop: bool = field(default=False, init=False)
    cancelled: bool = field(default=False, init=False)  # whether somebody has cancelled the job since it began
    passed_on: Mapping[str, JSON] | None = field(default=None, init=False, repr=False)  # kept by features/payload
    time_limit: TimeLimit | None = field(default=None, init=False)
    extras: dict[str, Any] | None = field(default=None, init=False, repr=False)  # of log_extra_metadata_on_done
    messages: list[str] | None = field(default=None, init=False, repr=False)  # that the job has logged
    places: Any = field(default=None, init=False, repr=False)  # kept by limits

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
    def cattr(self) -> dict[str, JSON]:
        """The caller's CurrentAttributes in Ruby, {} for none; those of further classes: `payload["cattr_1"]`, …"""
        value = self.payload.get(CATTR)
        return value if isinstance(value, dict) else {}

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
        """Keep a message with the event of the job in its task; a job that is in no task writes a line of the log.

        It is written with the end of the run, so that of a run whose process dies is lost.  100 of 1 000 characters at
        most for each run.
        """
        if task_of(self.payload) is None:
            LOGGER.info("%s", text)
            return
        messages = self.messages = [] if self.messages is None else self.messages
        if len(messages) < MAX_MESSAGES:
            messages.append(str(text)[:MAX_MESSAGE_CHARACTERS])

    def cancel(self) -> None:
        """Tell the job that somebody has cancelled it; from any thread.  `kiqcluster.cancel(jid)` calls this."""
        self.cancelled = self.is_asked_to_stop = True

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


@dataclass(slots=True)
class Push:
    """The argument of client middleware: a payload on its way to Redis.

    at: epoch seconds for a scheduled job, None for a job that is due.  Middleware may change payload and queue.
    rows: of the table of push.lua, written with the job in one step; features add them.
    keys: of the Redis that gets the job.
    """

    payload: Payload
    at: float | None = None
    rows: list[Effect] = field(default_factory=list)
    keys: Keys = field(default=DEFAULT_KEYS, repr=False)

    @property
    def queue(self) -> str:
        queue: str = self.payload["queue"]
        return queue


@dataclass(slots=True)
class Run:
    """The argument of server middleware: a job about to run.

    job: its registered definition (application/registry.Definition).  instance: the object that performs it, None for a
    function.
    effects: rows of settle's table, written in the same step as the run's outcome, whatever the outcome is.
    identity, token: the unit's holder in Redis and its place there; keys of state that must end with the holder.
    keys: of that Redis.
    """

    payload: Payload
    queue: str
    job: Any = field(repr=False)
    instance: object = field(repr=False)
    effects: list[Effect] = field(default_factory=list)
    identity: str = ""
    token: str = ""
    keys: Keys = field(default=DEFAULT_KEYS, repr=False)

    @property
    def jid(self) -> str:
        jid: str = self.payload.get("jid", "")
        return jid


@dataclass
class Setup:
    """Settings, middleware, handlers and hooks that the application declares.

    delivery: receives pushes in place of Redis, for tests; None means Redis.
    routes: of job classes, by definition; kept by client/router.  shards: by name, as far as they were used.
    beat_guard: of a worker: where handlers run that a thread on which a beat depends would call.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    client_middleware: Chain[Push, Push | None] = field(default_factory=Chain)
    server_middleware: Chain[Run, Outcome | None] = field(default_factory=Chain)
    error_handlers: list[ErrorHandler] = field(default_factory=list)
    death_handlers: list[DeathHandler] = field(default_factory=list)
    hooks: Hooks = field(default_factory=Hooks)
    config: Config | None = None
    store: Store | None = None
    delivery: Delivery | None = None
    routes: dict[Any, Any] = field(default_factory=dict, repr=False)
    shards: dict[str, Store] = field(default_factory=dict, repr=False)
    beat_guard: BeatGuard | None = field(default=None, repr=False)
    _loaded: Config | None = None

    def configure(self, **settings: Unpack[CodeSettings]) -> None:
        """Set configuration values; flags, environment and file override them.

        Raises UsageError for an unknown name or a value that cannot work.  A shard may be declared by another source:
        its name is checked when all are read.
        """
        config_sources.check_configurable(settings)
        config_sources.load({}, environ={}, configured=settings, knows_shards=False)
        self.settings.update(settings)
        self._loaded = None
        if self.config is None and settings.keys() & {"redis", "embedded"}:
            self.store = None

    def error_handler(self, handler: E) -> E:
        """Register `handler(error, context)`, called for every error in a job or a service of the worker."""
        self.error_handlers.append(handler)
        return handler

    def death_handler(self, handler: D) -> D:
        """Register `handler(payload, error)`, called for every job that will not be tried again."""
        self.death_handlers.append(handler)
        return handler

    def current_config(self) -> Config:
        """Return the worker's configuration; outside of a worker, that of environment, file and configure().

        Sets the format of floats in payloads to the configured one.
        """
        config = self.config or self._loaded
        if config is None:
            config = self._loaded = config_sources.load({}, configured=self.settings)[0]
        ruby_json.write_floats_as(config.ruby_json)
        return config

    def routing_rules(self) -> Rules:
        """Return the routing rules in force; the same object until the configuration changes."""
        return (self.config or self._loaded or self.current_config()).routing

    def has_shards(self) -> bool:
        """Return whether the configuration has shards beside the default one."""
        return bool((self.config or self._loaded or self.current_config()).shards)

    def current_store(self) -> Store:
        """Return the default shard; opened at first use."""
        if self.store is None:
            self.store = Store(self.current_config().known_redis())
        return self.store

    def shard(self, name: str) -> Store:
        """Return a shard by its name, "" or "default" for the default one; opened at first use.  Raises UsageError."""
        if not shard_name(name):
            return self.current_store()
        if name not in self.shards:
            store = Store(address_of(name, self.current_config().shards), name=name)
            self.shards.setdefault(name, store)
        return self.shards[name]

    def check_routed(self, what: str) -> None:
        """Raise UnroutedCall if nothing has chosen a shard and `strict_routing` wants that.  what: was asked for."""
        config = self.current_config()
        if config.strict_routing and config.shards and not UNROUTED_ALLOWED.get():
            raise UnroutedCall(
                f"{what} has no shard, and strict_routing is on: add a routing rule for the class, or write "
                "with Client.via(…), or with allow_unrouted() where the default shard is meant"
            )

    def close_after_fork(self) -> None:
        """Close the connections of all shards in a forked process."""
        for store in (self.store, *self.shards.values()):
            if store is not None:
                store.close_after_fork()

    def notify_error_handlers(self, error: Exception, context: dict[str, Any]) -> None:
        """Log an error and call the error handlers; a handler that fails is logged, and the next one is called."""
        where, guard = context.get("context", ""), self.beat_guard
        log = partial(_log_error, where, error)
        if where not in CONTEXTS_WITH_EVENTS and not (guard is not None and guard.hand_over_line(log)):
            log()
        if guard is None or not guard.hand_over(partial(self._call_error_handlers, error, context)):
            self._call_error_handlers(error, context)

    def _call_error_handlers(self, error: Exception, context: dict[str, Any]) -> None:
        for handler in self.error_handlers:
            try:
                with exit_forked_children():
                    handler(error, context)
            except (Exception, SystemExit):  # a handler must stop neither the job's outcome nor the thread
                LOGGER.exception("the error handler %r failed", handler)

    def notify_death_handlers(self, payload: Payload, error: Exception) -> None:
        """Call the death handlers; a handler that fails is reported, and the next one is called."""
        for handler in self.death_handlers:
            try:
                with exit_forked_children():
                    handler(payload, error)
            except Exception as failure:  # noqa: BLE001  # one handler's failure must not silence the next
                self.notify_error_handlers(failure, {"context": "death handler", "job": payload})
            except SystemExit as failure:
                self.notify_error_handlers(RuntimeError(repr(failure)), {"context": "death handler", "job": payload})


def _log_error(where: str, error: Exception) -> None:
    LOGGER.warning("%s: %s: %s", where, type(error).__name__, error, exc_info=error)


SETUP = InForce(Setup())


def current_setup() -> Setup:
    """Return the set-up in force: that of the process, or of a test."""
    return SETUP.value


def using_setup(setup: Setup) -> AbstractContextManager[Setup]:
    """Use another set-up for a while, for tests."""
    return SETUP.using(setup)


@dataclass(frozen=True, slots=True)
class Runtime:
    """The objects that the parts of a worker share; created once per process, after the fork."""

    config: Config
    store: Store
    setup: Setup
    events: Events
    clock: Clock = field(default_factory=SystemClock)
    rng: Random = field(default_factory=Random)
    slot: int | None = None  # of this worker; None outside of a cluster

    def trouble(self, service: str, error: Exception) -> None:
        """Report an error of a service, except an outage of Redis, which the fetch reports once."""
        if not (isinstance(error, StoreError) and is_outage(error)):
            self.setup.notify_error_handlers(error, {"context": service})

    def begin_to_beat(self) -> None:
        """Have the calling thread call no handler of the application itself from now on: a beat depends on it."""
        if self.setup.beat_guard is not None:
            self.setup.beat_guard.enter()

    def run_beat_hooks(self, event: str) -> None:
        """Run the handlers of `beat` or `heartbeat`; elsewhere, if this thread beats, and not twice at a time."""
        guard = self.setup.beat_guard
        if not self.setup.hooks.of(event):
            return
        if guard is None or not guard.hand_over(partial(self.run_hooks, event), event):
            self.run_hooks(event)

    def run_hooks(self, event: str) -> None:
        """Run the application's handlers of a lifecycle event; failures are reported, and raised for startup."""
        for hook in self.setup.hooks.of(event):
            try:
                with exit_forked_children():
                    hook()
            except Exception as error:
                self.setup.notify_error_handlers(error, {"context": event})
                if event == "startup":
                    raise ApplicationError(
                        f"a startup handler failed ({error!r}); the worker does not start"
                    ) from error
