"""Runtime: the objects that exist once per process, and the running job's context.

The application fills Setup while it is imported (configure, middleware, handlers, hooks); clients and workers read it.
Setup is the package's one piece of process-wide state; kiqcluster.testing swaps it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Literal, TypeVar, Unpack

from kiqcluster.errors import (
    ApplicationError,
    StoreError,
    UnroutedCall,
    UsageError,
    as_exception,
    class_name,
    message_of,
)
from kiqcluster.process import config_sources
from kiqcluster.process.boundary.beat_guard import BeatGuard
from kiqcluster.process.boundary.calls import exc_info, guarded, is_a, name_of
from kiqcluster.process.boundary.forms import check_form
from kiqcluster.process.boundary.once import Once
from kiqcluster.process.clock import Clock, SystemClock
from kiqcluster.process.config import CodeSettings, Config
from kiqcluster.process.delivery import UNROUTED_ALLOWED, Deferral, Delivery, OutsideSource, Refusal, runs_a_test
from kiqcluster.process.events import Events, Hooks
from kiqcluster.process.in_force import InForce
from kiqcluster.process.middleware import Chain
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.conversions import a_type
from kiqcluster.sidekiq.keys import Keys
from kiqcluster.sidekiq.outcome import Effect, Outcome
from kiqcluster.sidekiq.payload import Payload
from kiqcluster.sidekiq.routing import Rules
from kiqcluster.store import Store, is_outage
from kiqcluster.store.shards import address_of, shard_name

__all__ = [
    "CONTEXTS_WITH_EVENTS",
    "Push",
    "Run",
    "Runtime",
    "Setup",
    "current_setup",
    "using_setup",
]

ErrorHandler = Callable[[Exception, dict[str, Any]], object]
DeathHandler = Callable[[Payload, Exception], object]
LOGGER = logging.getLogger("kiqcluster")
CONTEXTS_WITH_EVENTS = frozenset({"job", "malformed payload"})  # contexts whose errors have an event of their own
DEFAULT_KEYS = Keys()
ADDRESS_ADVICE = (
    "nothing says where Redis is: set REDIS_URL (to embedded:.kiqcluster if `kiqcluster --embedded` runs here)"
)
E = TypeVar("E", bound=ErrorHandler)
D = TypeVar("D", bound=DeathHandler)


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

    settings: of configure(), by field of Config.
    deferral: puts pushes off until a transaction is committed; None means that they are written at once.
    routes: of job classes, by definition; kept by client/router.  shards: by name, as far as they were used.
    due_sources: of jobs that wait outside of Redis; integrations add them while the application is imported.
    beat_guard: of a worker: where handlers run that a thread on which a beat depends would call.
    once: which faults of many jobs were reported a moment ago.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    client_middleware: Chain[Push, Push | None] = field(default_factory=Chain)
    server_middleware: Chain[Run, Outcome | None] = field(default_factory=Chain)
    error_handlers: list[ErrorHandler] = field(default_factory=list)
    death_handlers: list[DeathHandler] = field(default_factory=list)
    hooks: Hooks = field(default_factory=Hooks)
    config: Config | None = None
    store: Store | None = None
    deferral: Deferral | None = None
    routes: dict[Any, Any] = field(default_factory=dict, repr=False)
    shards: dict[str, Store] = field(default_factory=dict, repr=False)
    due_sources: list[OutsideSource] = field(default_factory=list, repr=False)
    beat_guard: BeatGuard | None = field(default=None, repr=False)
    once: Once = field(default_factory=Once, repr=False)
    _loaded: Config | None = None
    _delivery: Delivery | Literal["undecided"] | None = field(default="undecided", repr=False)

    @property
    def delivery(self) -> Delivery | None:
        """What receives pushes in place of Redis, for tests; None means Redis.

        Until somebody sets it, a push in a test is refused, so that none goes to the Redis of REDIS_URL by accident,
        also where no plugin of a test runner knows of us.  Each push before that looks again: tests may run later.
        """
        if not isinstance(self._delivery, str):
            return self._delivery
        if not runs_a_test():
            return None
        self._delivery = Refusal()
        return self._delivery

    @delivery.setter
    def delivery(self, delivery: Delivery | None) -> None:
        self._delivery = delivery

    @contextmanager
    def delivering(self, delivery: Delivery | None) -> Iterator[None]:
        """Use a receiver of pushes within a `with` block; None means Redis."""
        before, self._delivery = self._delivery, delivery
        try:
            yield
        finally:
            self._delivery = before

    def configure(self, **settings: Unpack[CodeSettings]) -> None:
        """Set configuration values; flags, environment and file override them.

        Raises UsageError for an unknown name or a value that cannot work.  A shard may be declared by another source:
        its name is checked when all are read.
        """
        self.settings.update(config_sources.configurable(settings))
        self._loaded = None
        if self.config is None and settings.keys() & {"redis", "embedded"}:
            self.store = None

    def error_handler(self, handler: E) -> E:
        """Register `handler(error, context)`, called for every error in a job or a service of the worker.

        Raises UsageError for a handler that cannot be called so.
        """
        check_form("an error handler", handler, "(error, context)", "error", "context")
        self.error_handlers.append(handler)
        return handler

    def death_handler(self, handler: D) -> D:
        """Register `handler(payload, error)`, called for every job that will not be tried again.

        Raises UsageError for a handler that cannot be called so.
        """
        check_form("a death handler", handler, "(payload, error)", "payload", "error")
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
            address = self.current_config().known_redis()
            self.store = Store(address, advice=ADDRESS_ADVICE if self._is_default(address) else "")
        return self.store

    def _is_default(self, address: str) -> bool:
        """Return whether this is the address of Redis because nothing says another one."""
        if self.config is not None or address != Config.redis:
            return False
        return config_sources.load({}, configured=self.settings)[1]["redis"] == "default"

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

    def through_middleware(self, draft: Push) -> Push | None:
        """Return a push as client middleware leaves it, None if that stops it.  Raises UsageError for others."""
        push = self.client_middleware.invoke(draft, lambda: draft)
        if push is not draft and push is not None and not is_a(push, Push):
            raise UsageError(
                f"client middleware has returned {a_type(push)}, so {draft.payload['class']} was not enqueued: return "
                "what proceed() returns, or None to stop the push"
            )
        return push

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
            guarded(partial(_log_error, f"the error handler {name_of(handler)} failed"), handler, error, context)

    def notify_once(self, raised: BaseException, where: str) -> None:
        """Report a fault that many jobs share, once a minute.  where: its context, the same for each job."""
        if self.once.may(where):
            self.notify_error_handlers(as_exception(raised), {"context": where})

    def notify_death_handlers(self, payload: Payload, error: Exception) -> None:
        """Call the death handlers; a handler that fails is reported, and the next one is called."""
        for handler in self.death_handlers:
            guarded(
                partial(self._report_failure, {"context": "death handler", "job": payload}), handler, payload, error
            )

    def _report_failure(self, context: dict[str, Any], raised: BaseException) -> None:
        self.notify_error_handlers(as_exception(raised), context)


def _log_error(where: str, error: BaseException) -> None:
    LOGGER.warning("%s: %s: %s", where, class_name(error), message_of(error), exc_info=exc_info(error))


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
        if not (is_a(error, StoreError) and is_outage(error)):
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
        """Run the application's handlers of a lifecycle event; failures are reported.

        Raises ApplicationError for one of startup.
        """
        for hook in self.setup.hooks.of(event):
            guarded(partial(self._report_hook, event), hook)

    def _report_hook(self, event: str, raised: BaseException) -> None:
        self.setup.notify_error_handlers(as_exception(raised), {"context": event})
        if event == "startup":
            error = f"{class_name(raised)}: {message_of(raised)}"
            raise ApplicationError(f"a startup handler failed ({error}); the worker does not start") from raised
