"""Client: jobs on their way into Redis.

1. draft      a payload from name, arguments and options
2. middleware every link may change it, or stop it by returning nothing
3. check      arguments survive JSON and Ruby (after the links, which may have changed them)
4. write      SADD queues + LPUSH queue:<name>, or ZADD schedule, in one round trip

A push that timed out is never sent again here: ReplyLost names its jids, and the caller decides.
Counterpart: sidekiq client.rb.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any

from kiqcluster import rubyjson
from kiqcluster.clock import SystemClock
from kiqcluster.errors import InvalidArguments, InvalidPush, ReplyLost
from kiqcluster.payload import MALFORMED, Jid, build, check_arguments, check_queue_name, new_jid, presentable
from kiqcluster.registry import current_registry
from kiqcluster.rubyjson import JSON
from kiqcluster.runtime import Push, Setup, current_setup
from kiqcluster.store import Store

__all__ = ["BULK_CHUNK", "Client", "due_at"]

BULK_CHUNK = 1_000  # jobs in one round trip (sidekiq client.rb)
DEFAULT_OPTIONS: Mapping[str, JSON] = {"retry": True, "queue": "default"}
RESERVED_KEYS = frozenset({"class", "args", "jid", "created_at", "enqueued_at", "at"})

VIA: ContextVar[Store | None] = ContextVar("kiqcluster_via", default=None)


def due_at(when: float | timedelta | datetime, now: float) -> float:
    """Return the epoch second of a delay (timedelta), an epoch second, or an aware datetime.

    Raises InvalidPush for a datetime without a zone, which every host would read differently, and for no time at all.
    """
    if isinstance(when, timedelta):
        return now + when.total_seconds()
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise InvalidPush(f"{when!r} has no time zone; pass datetime.now(UTC) + …, or a zone of your choice")
        return when.timestamp()
    if isinstance(when, bool) or not isinstance(when, int | float) or when - when != 0:
        raise InvalidPush(f"{when!r} is no time; pass epoch seconds, a timedelta or an aware datetime")
    try:
        return float(when)
    except OverflowError as error:
        raise InvalidPush("an integer beyond the floats is no time; pass epoch seconds") from error


class Client:
    """Pushes jobs to one Redis.

    store: the shard; None means that of `Client.via`, or the configured one.  Thread-safe.
    """

    def __init__(self, store: Store | None = None, setup: Setup | None = None) -> None:
        self._store = store
        self._setup = setup or current_setup()
        self._clock = SystemClock()

    @staticmethod
    @contextmanager
    def via(store: Store) -> Iterator[Client]:
        """Send all pushes of this context to another shard; nests, and ends with the block."""
        token = VIA.set(store)
        try:
            yield Client(store)
        finally:
            VIA.reset(token)

    def push(self, item: Mapping[str, Any]) -> Jid | None:
        """Push one job and return its jid, or None when middleware stopped it.

        item: `class` (a registered job or any name), `args`, and optionally queue, retry, at, jid, tags and any
        other payload key.  Raises InvalidPush, InvalidArguments, StoreError.  One round trip.
        """
        name, options, given = _read_item(item)
        args = item.get("args", [])
        return self.enqueue(name, options, [args], given.get("at"), given.get("jid"))[0]

    def push_bulk(self, item: Mapping[str, Any]) -> list[Jid | None]:
        """Push many jobs of one class: `args` is a list of argument lists, `at` a time or a list of times.

        Returns a jid per job, in order, None where middleware stopped it.  One round trip per 1 000 jobs.
        """
        name, options, given = _read_item(item)
        if given.get("jid") is not None:
            raise InvalidPush("a jid belongs to one job; leave it out of push_bulk")
        return self.enqueue(name, options, item.get("args", []), given.get("at"))

    def enqueue(
        self,
        name: str,
        options: Mapping[str, JSON],
        argument_lists: Sequence[Sequence[JSON]],
        at: Any = None,
        jid: str | None = None,
    ) -> list[Jid | None]:
        """Push jobs of one class; what the methods above and the job classes end in.

        options: payload keys, retry and queue among them.  at: None, a time, or one per job.
        """
        check_queue_name(options["queue"])
        if not isinstance(argument_lists, list | tuple):
            raise InvalidArguments(f"args of a bulk push are a list of lists, not {type(argument_lists).__name__}")
        times = self._times(at, len(argument_lists))
        jids: list[Jid | None] = []
        for start in range(0, len(argument_lists), BULK_CHUNK):
            chunk: list[Push] = []
            for arguments, due in zip(
                argument_lists[start : start + BULK_CHUNK], times[start : start + BULK_CHUNK], strict=True
            ):
                push = self.draft(name, options, arguments, due, jid)
                jids.append(None if push is None else push.payload["jid"])
                if push is not None:
                    chunk.append(push)
            self._write(chunk)
        return jids

    def _times(self, at: Any, count: int) -> list[float | None]:
        if at is None:
            return [None] * count
        now = self._clock.now()
        if not isinstance(at, list | tuple):
            at = [at] * count
        if len(at) != count:
            raise InvalidPush(f"{count} jobs were given {len(at)} times; pass one time, or one for each job")
        due = [due_at(each, now) for each in at]
        return [each if each > now else None for each in due]

    def draft(
        self, name: str, options: Mapping[str, JSON], arguments: Sequence[JSON], at: float | None, jid: str | None
    ) -> Push | None:
        """Return the push after middleware and checks, or None when a link stopped it."""
        payload = build(name, arguments, options, Jid(jid or new_jid()), self._clock.now())
        draft = Push(payload, at)
        push = self._setup.client_middleware.invoke(draft, lambda: draft)
        if push is not None:
            check_queue_name(push.payload["queue"])
            self.check(push.payload["args"])
        return push

    def check(self, arguments: JSON) -> None:
        """Check arguments in the configured mode: raise, warn or off."""
        mode = self._setup.current_config().strict_args
        check_arguments(arguments, {"raise": _raise, "warn": _warn, "off": None}[mode])

    def _write(self, pushes: Sequence[Push]) -> None:
        """Write drafted jobs in one round trip, times and queues mixed as they come."""
        store = self._store or VIA.get() or self._setup.current_store()
        keys, now = store.keys, self._clock.now()
        scheduled: list[str | bytes] = []
        by_queue: dict[str, list[bytes]] = {}
        for push in pushes:
            if push.at is not None:
                scheduled += (repr(push.at), rubyjson.encode(push.payload))
            else:
                push.payload["enqueued_at"] = now
                by_queue.setdefault(push.queue, []).append(rubyjson.encode(push.payload))
        commands: list[Sequence[str | bytes]] = []
        if scheduled:
            commands.append(("ZADD", keys.schedule, *scheduled))
        for queue, payloads in by_queue.items():
            commands.append(("SADD", keys.queues, queue))
            commands.append(("LPUSH", keys.queue(queue), *payloads))
        if not commands:
            return
        try:
            store.pipeline(commands)
        except ReplyLost as error:
            raise ReplyLost(
                f"{error}: {len(pushes)} jobs may or may not be enqueued; push again only if running twice is allowed",
                tuple(push.payload["jid"] for push in pushes),
            ) from error


def _read_item(item: Mapping[str, Any]) -> tuple[str, dict[str, JSON], dict[str, Any]]:
    """Return name, payload options and the keys that are no options of a push item."""
    if not isinstance(item, Mapping) or "class" not in item:
        raise InvalidPush(f"a job is a mapping with `class` and `args`, not {item!r}")
    job = item["class"]
    definition = getattr(job, "definition", None) or (current_registry().get(job) if isinstance(job, str) else None)
    name = definition.name if definition is not None else job
    if not isinstance(name, str) or not name:
        raise InvalidPush(f"class is a job or the name of one, not {job!r}")
    defaults = definition.options if definition is not None else DEFAULT_OPTIONS
    options = {**defaults, **{key: value for key, value in item.items() if key not in RESERVED_KEYS}}
    if misfits := presentable({"args": [], "class": name, "jid": item.get("jid", "-"), **options}, "default", 0.0):
        key = next(key for key in misfits if key != MALFORMED)
        raise InvalidPush(f"{key} = {item[key]!r} does not fit: a page of Sidekiq's web UI would break on it")
    if not isinstance(options["retry"], bool | int | None):
        raise InvalidPush(f"retry = {options['retry']!r} does not fit; it takes True, False, or how many retries")
    return name, options, {key: value for key, value in item.items() if key in ("at", "jid")}


def _raise(error: InvalidArguments) -> None:
    raise error


def _warn(error: InvalidArguments) -> None:
    logging.getLogger("kiqcluster").warning("%s; it is stored as msgspec writes it (strict_args = warn)", error)
