"""Client: pushes jobs to Redis.

1. draft      a payload from name, arguments and options
2. middleware each may change it, or stop it by returning None
3. check      arguments survive JSON and Ruby (after middleware, which may have changed them), and their size is allowed
4. write      to its destination (destination.py): Redis, in one round trip; an outbox; the memory of a test

A bulk push passes steps 1 to 3 as a whole before its first write, so a refused job means that none is enqueued.
Without client middleware, the common part of the payloads of a bulk push is encoded once (payload.Stencil).
A push that timed out is never sent again here: ReplyLost names its jids, and the caller decides.
Counterpart: sidekiq client.rb.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from typing import Any, TypeVar

from kiqcluster.application.argument_types import TypedDefinition
from kiqcluster.application.registry import Definition
from kiqcluster.client.destination import Destination, destination_of, store_of, target_of
from kiqcluster.client.items import check_presentable, read_item
from kiqcluster.client.writes import Refused
from kiqcluster.errors import (
    InvalidArguments,
    InvalidPush,
    PushError,
    UsageError,
)
from kiqcluster.features import cancellation, expiry
from kiqcluster.features.payload import encryption, size_limiter
from kiqcluster.features.payload.context import with_context
from kiqcluster.features.stacks import current_stacks
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.config import MIN_LIMITED_BYTES
from kiqcluster.process.delivery import VIA, Ready
from kiqcluster.process.durations import due_at, scheduled_at
from kiqcluster.process.runtime import Push, Setup, current_setup
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.active_job import unwrapped
from kiqcluster.sidekiq.payload import (
    ENCRYPT,
    SCHEDULED_AT,
    Jid,
    Stencil,
    are_plain,
    build,
    check_arguments,
    check_queue_name,
    new_jid,
    new_jids,
    stamp,
)
from kiqcluster.sidekiq.ruby_json import JSON
from kiqcluster.store import Store

__all__ = ["Client", "all_positions"]

MAX_PAYLOAD_BYTES = 512 << 20  # Redis closes the connection on more (proto-max-bulk-len): the push would count as lost
CLOCK = SystemClock()
ARRAY_TYPES = frozenset({list, tuple})  # types of an entry of a bulk push

T = TypeVar("T")
U = TypeVar("U")


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
        name, definition, options = read_item(self._setup, item)
        arguments = _positions(name, definition, item.get("args", []))
        check_presentable(item, name, options, arguments)
        replicas = _replicas(definition, wait_replicas)
        return self.enqueue(name, options, arguments, item.get("at"), item.get("jid"), replicas, definition)

    def push_bulk(self, item: Mapping[str, Any], *, wait_replicas: int | None = None) -> list[Jid | None]:
        """Push many jobs of one class: `args` is a list of argument lists, `at` a time or a list of times.

        wait_replicas: see push; each round trip waits for the replicas, and the first one not confirmed ends the push.
        Returns a jid per job, in order, None where middleware stopped it.  Raises as `enqueue_bulk` does.
        One round trip per 1 000 jobs or 10 MB.
        """
        name, definition, options = read_item(self._setup, item)
        lists = item.get("args", [])
        check_presentable(item, name, options, lists[0] if isinstance(lists, list) and lists else [])
        if item.get("jid") is not None:
            raise InvalidPush("a jid belongs to one job; leave it out of push_bulk")
        replicas = _replicas(definition, wait_replicas)
        return self.enqueue_bulk(name, options, lists, item.get("at"), definition, replicas)

    def enqueue(
        self,
        name: str,
        options: Mapping[str, JSON],
        arguments: list[JSON],
        at: Any = None,
        jid: str | None = None,
        wait_replicas: int = 0,
        definition: Definition | None = None,
    ) -> Jid | None:
        """Push one job; `push` and the verbs of jobs call this.

        options: payload keys, retry and queue included.  at: as for due_at.  definition: for the form of the payload.
        """
        ready = self.prepare(name, options, arguments, at, jid, definition)
        if ready is None:
            return None
        return self._destination(name, definition).write([ready], wait_replicas).get(ready.jid, ready.jid)

    async def aenqueue(
        self,
        name: str,
        options: Mapping[str, JSON],
        arguments: list[JSON],
        at: Any = None,
        jid: str | None = None,
        wait_replicas: int = 0,
        definition: Definition | None = None,
    ) -> Jid | None:
        """Push one job in a coroutine, as `enqueue` does."""
        ready = self.prepare(name, options, arguments, at, jid, definition)
        if ready is None:
            return None
        refused = await self._destination(name, definition).awrite([ready], wait_replicas)
        return refused.get(ready.jid, ready.jid)

    def prepare(
        self,
        name: str,
        options: Mapping[str, JSON],
        arguments: list[JSON],
        at: Any = None,
        jid: str | None = None,
        definition: Definition | None = None,
    ) -> Ready | None:
        """Return a job as `enqueue` writes it, or None if middleware stopped it; for those who write it themselves."""
        if definition is not None and definition.enveloped is not None:
            name, options, envelop = definition.enveloping(options, CLOCK.now())
            arguments = envelop(arguments)
        due = None if at is None else _due(at, CLOCK.now())
        return self._prepare(name, with_context(options), arguments, due, jid, definition)

    def enqueue_bulk(
        self,
        name: str,
        options: Mapping[str, JSON],
        argument_lists: Iterable[Sequence[JSON]],
        at: Any = None,
        definition: Definition | None = None,
        wait_replicas: int = 0,
    ) -> list[Jid | None]:
        """Push jobs of one class; `push_bulk` and `perform_bulk` call this.

        at: None, a time, or one per job.  definition: checks the lists, and gives the form of the payloads.
        Raises PushError, which names the first invalid entry, before anything is enqueued; StoreError, whose `enqueued`
        has the jids written so far.
        """
        jobs = self.prepare_bulk(name, options, argument_lists, at, definition)
        written = [job for job in jobs if job is not None]
        return _jids(jobs, self._destination(name, definition).write(written, wait_replicas))

    async def aenqueue_bulk(
        self,
        name: str,
        options: Mapping[str, JSON],
        argument_lists: Iterable[Sequence[JSON]],
        at: Any = None,
        definition: Definition | None = None,
        wait_replicas: int = 0,
    ) -> list[Jid | None]:
        """Push jobs of one class in a coroutine, as `enqueue_bulk` does."""
        jobs = self.prepare_bulk(name, options, argument_lists, at, definition)
        written = [job for job in jobs if job is not None]
        return _jids(jobs, await self._destination(name, definition).awrite(written, wait_replicas))

    def prepare_bulk(
        self,
        name: str,
        options: Mapping[str, JSON],
        argument_lists: Iterable[Sequence[JSON]],
        at: Any = None,
        definition: Definition | None = None,
        jids: Sequence[Jid] | None = None,
    ) -> Sequence[Ready | None]:
        """Return jobs as `enqueue_bulk` writes them, None for those that middleware stopped; the caller writes them.

        jids: of the jobs, None for new ones.
        """
        check_queue_name(options["queue"])
        self._setup.current_config()  # sets the format of floats
        if isinstance(argument_lists, str | bytes | Mapping) or not isinstance(argument_lists, Iterable):
            raise InvalidArguments(
                f"{name}: a bulk push takes a list of argument lists, not {type(argument_lists).__name__}"
            )
        entries = list(argument_lists)
        times = self._times(at, len(entries))
        lists = all_positions(name, definition, entries)  # all lists, before middleware sees any
        if definition is not None and definition.enveloped is not None:
            name, options, envelop = definition.enveloping(options, CLOCK.now())
            lists = _each(lists, envelop)
        options = with_context(options)
        jobs: Sequence[Ready | None] | None = None
        is_marked = not options.keys().isdisjoint((expiry.EXPIRES_IN, ENCRYPT)) or (
            at is not None and self._tells_due_times()
        )
        if not current_stacks().client_of(definition) and not is_marked:
            jobs = self._prepare_alike(name, options, lists, times, definition, jids)
        if jobs is None:
            drafts = zip(lists, times, jids or repeat(None), strict=False)
            jobs = _each(drafts, lambda job: self._prepare(name, options, *job, definition=definition))
        return jobs

    def _times(self, at: Any, count: int) -> list[float | None]:
        if at is None:
            return [None] * count
        now = CLOCK.now()
        if not isinstance(at, list | tuple):
            return [_due(at, now)] * count
        if len(at) != count:
            raise InvalidPush(f"{count} jobs were given {len(at)} times; pass one time, or one for each job")
        return _each(at, lambda each: _due(each, now))

    def draft(
        self,
        name: str,
        options: Mapping[str, JSON],
        arguments: Sequence[JSON],
        at: float | None,
        jid: str | None,
        definition: Definition | None = None,
    ) -> Push | None:
        """Return the push after middleware and checks, or None if middleware stopped it.

        definition: of the job, whose features are asked.
        """
        queue = check_queue_name(options["queue"])
        payload = build(name, arguments, options, Jid(jid or new_jid()), CLOCK.now())
        draft = Push(payload, at)
        push = self._setup.through_middleware(draft)
        if push is not None:
            if push.payload["queue"] is not queue:
                check_queue_name(push.payload["queue"])
            self._check(name, push.payload["args"])
            features = current_stacks().client_of(definition)
            if features or jid is not None:
                push.keys = target_of(self._setup, name, definition, self._store).keys
                push.rows += () if jid is None else cancellation.rows_of_push(push.keys, jid)
            if definition is not None:
                for feature in features:
                    push.rows += feature.on_push(push, definition)
        return push

    def _check(self, name: str, arguments: JSON) -> None:
        """Check arguments in the configured mode: raise, warn or off."""
        mode = self._setup.current_config().strict_args
        complain = _raise if mode == "raise" else partial(_warn, name, arguments) if mode == "warn" else None
        try:
            check_arguments(arguments, complain)
        except InvalidArguments as error:
            error.args = (f"{_job_name(name, arguments)}: {error}",)
            raise

    def _prepare(
        self,
        name: str,
        options: Mapping[str, JSON],
        arguments: list[JSON],
        due: float | None,
        jid: str | None = None,
        definition: Definition | None = None,
    ) -> Ready | None:
        """Return a job after all steps that may refuse it, or None if middleware stopped it."""
        push = self.draft(name, options, arguments, due, jid, definition)
        if push is None:
            return None
        if push.at is None:
            push.payload["enqueued_at"] = stamp(CLOCK.now())
        elif push.at is not due:  # middleware has changed the time
            push.at = due_at(push.at, CLOCK.now())
        if push.at is not None and self._tells_due_times():
            push.payload[SCHEDULED_AT] = stamp(push.at)
        if expiry.EXPIRES_IN in push.payload:
            expiry.mark(push)
        payload = push.payload
        try:
            if ENCRYPT in payload:
                payload = encryption.sealed(self._setup, payload, is_registered=definition is not None)
            encoded = ruby_json.encode(payload)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidPush(f"{name}: the payload holds what JSON cannot ({error})") from error
        if len(encoded) >= MIN_LIMITED_BYTES:
            encoded = self._limited(name, encoded, definition)
        return Ready(push.payload["jid"], push.queue, push.at, encoded, tuple(push.rows))

    def _tells_due_times(self) -> bool:
        """Return whether scheduled jobs carry their due time, for the log."""
        return self._setup.current_config().job_log == "full"

    def _limited(self, name: str, encoded: bytes, definition: Definition | None) -> bytes:
        """Return a payload with compressed arguments if that is due.  Raises InvalidPush, ExceedLimitError."""
        if len(encoded) > MAX_PAYLOAD_BYTES:
            raise InvalidPush(
                f"{name}: the payload has {len(encoded)} bytes, and Redis takes {MAX_PAYLOAD_BYTES} at most; "
                "store the data elsewhere, and pass where it is"
            )
        return size_limiter.limited(self._setup, name, encoded, definition)

    def _prepare_alike(
        self,
        name: str,
        options: Mapping[str, JSON],
        lists: Sequence[list[JSON]],
        times: Sequence[float | None],
        definition: Definition | None,
        jids: Sequence[Jid] | None = None,
    ) -> list[Ready] | None:
        """Return the jobs as `_prepare` would, prepared together, or None if they must be prepared one by one.

        That is so if there is client middleware, or if a value is not plain JSON.
        """
        encoded = None if self._setup.client_middleware.stack else ruby_json.encode_arrays(lists)
        if encoded is None:
            return None
        try:
            stencil = Stencil(name, options, CLOCK.now())
        except (TypeError, ValueError, RecursionError):
            return None
        if not are_plain(lists):
            _each(lists, lambda arguments: self._check(name, arguments))
        jids = jids or new_jids(len(lists))
        filled = stencil.fill(encoded, jids, times)
        largest = max(map(len, filled), default=0)
        if largest > MAX_PAYLOAD_BYTES or size_limiter.looks_at(self._setup.current_config(), largest):
            filled = _each(filled, lambda encoded: self._limited(name, encoded, definition))
        return list(map(Ready._make, zip(jids, repeat(options["queue"]), times, filled, repeat(()))))

    def store_of(self, name: str, definition: Definition | None) -> Store:
        """Return the shard of a push; for those who write themselves.  Raises UnroutedCall; UsageError in memory."""
        return store_of(self._setup, name, definition, self._store)

    def _destination(self, name: str, definition: Definition | None) -> Destination:
        return destination_of(self._setup, name, definition, self._store)


def _jids(jobs: Sequence[Ready | None], refused: Refused) -> list[Jid | None]:
    """Return the jid of each job of a push; of one that a guard has refused, that of the job which holds its claim."""
    return [None if job is None else refused.get(job.jid, job.jid) for job in jobs]


def _replicas(definition: Definition | None, wanted: int | None) -> int:
    """Return how many replicas must confirm a push: the caller's number, else that of the definition."""
    if wanted is None:
        return 0 if definition is None else definition.local.get("wait_replicas", 0)
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 0:
        raise InvalidPush(f"wait_replicas = {wanted!r} does not fit; it takes a number of replicas")
    return wanted


def _due(at: Any, now: float) -> float | None:
    """Return the epoch second at which a job is due, or None for at once."""
    due = scheduled_at(at, now)
    return due if due > now else None


def _each(entries: Iterable[T], step: Callable[[T], U]) -> list[U]:
    """Return the result of a step for every entry of a bulk push.  Raises its PushError with the entry's index."""
    made: list[U] = []
    for entry in entries:
        try:
            made.append(step(entry))
        except PushError as error:
            error.args = (f"entry {len(made)}: {error}; no job of this bulk push was enqueued",)
            raise
    return made


def _positions(name: str, definition: Definition | None, arguments: Any) -> list[JSON]:
    """Return arguments as the payload's list.  Raises InvalidArguments when they are not a list, or do not fit."""
    if not isinstance(arguments, list | tuple):
        raise InvalidArguments(f"{name}: the arguments of a job are a list, not {type(arguments).__name__}")
    return list(arguments) if definition is None else definition.positional(tuple(arguments), {})


def all_positions(name: str, definition: Definition | None, entries: Sequence[Any]) -> list[list[JSON]]:
    """Return `_positions` of each entry of a bulk push."""
    fewest, most = (0, sys.maxsize) if definition is None else (definition.fewest, definition.most)
    is_typed = isinstance(definition, TypedDefinition)
    if (
        not is_typed
        and ARRAY_TYPES.issuperset(map(type, entries))
        and all(fewest <= length <= most for length in set(map(len, entries)))
    ):
        return list(map(list, entries))
    return _each(entries, lambda entry: _positions(name, definition, entry))


def _raise(error: InvalidArguments) -> None:
    raise error


def _warn(name: str, arguments: JSON, error: InvalidArguments) -> None:
    message = "%s: %s; it is stored as msgspec writes it (strict_args = warn)"
    logging.getLogger("kiqcluster").warning(message, _job_name(name, arguments), error)


def _job_name(name: str, arguments: JSON) -> str:
    """Return the name of a job for display."""
    envelope = unwrapped({"class": name, "args": arguments})
    return name if envelope is None else envelope.job_class
