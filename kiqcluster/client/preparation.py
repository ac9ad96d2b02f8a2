"""Preparation: a draft becomes a job that is ready to be written, or is refused.

1. settle      the envelope of ActiveJob, the context of the caller, the time at which the job is due
2. middleware  each may change the push, or stop it by returning None
3. check       arguments survive JSON and Ruby (after middleware, which may have changed them); `strict_args`
4. rows        the client halves of the features add rows, with which the job is written in one step
5. encode      the keys that count from the final payload; a secret is encrypted; JSON
6. limit       large arguments are reported, compressed or refused

A bulk push passes all steps as a whole before its first write, so a refused job means that none is enqueued.
Without client middleware, the common part of the payloads of a bulk push is encoded once (payload.Stencil).
Counterpart: sidekiq client.rb.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any, TypeVar

from kiqcluster.application.argument_types import TypedDefinition
from kiqcluster.application.registry import Definition
from kiqcluster.client.destination import store_for_push
from kiqcluster.client.draft import Draft, Drafts
from kiqcluster.errors import InvalidArguments, InvalidPush, PushError
from kiqcluster.features.hooks.push_hooks import PushHooks
from kiqcluster.features.stacks import current_stacks
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.config import MIN_LIMITED_BYTES
from kiqcluster.process.delivery import Ready
from kiqcluster.process.durations import due_at, scheduled_at
from kiqcluster.process.runtime import Push, Setup
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.active_job import unwrapped
from kiqcluster.sidekiq.payload import (
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

__all__ = ["all_positions", "positions", "prepare", "prepare_all", "push_of"]

MAX_PAYLOAD_BYTES = 512 << 20  # Redis closes the connection on more (proto-max-bulk-len): the push would count as lost
CLOCK = SystemClock()
ARRAY_TYPES = frozenset({list, tuple})  # types of an entry of a bulk push

T = TypeVar("T")
U = TypeVar("U")


def prepare(setup: Setup, draft: Draft) -> Ready | None:
    """Return a job as it is written, or None if middleware stopped it.  Raises PushError."""
    hooks = current_stacks().push
    _settle(hooks, draft)
    return _ready(setup, hooks, draft)


def push_of(setup: Setup, draft: Draft) -> Push | None:
    """Return the push of a draft after steps 1 to 4, for those who do not write it; None if middleware stopped it."""
    hooks = current_stacks().push
    _settle(hooks, draft)
    return _push(setup, hooks, draft)


def prepare_all(setup: Setup, drafts: Drafts) -> Sequence[Ready | None]:
    """Return jobs of one class as they are written, None for those that middleware stopped.

    Raises PushError, which names the first invalid entry.
    """
    hooks = current_stacks().push
    check_queue_name(drafts.options["queue"])
    setup.current_config()  # sets the format of floats
    name, entries = drafts.name, drafts.lists
    if isinstance(entries, str | bytes | Mapping) or not isinstance(entries, Iterable):
        raise InvalidArguments(f"{name}: a bulk push takes a list of argument lists, not {type(entries).__name__}")
    entries = list(entries)
    times = _times(drafts.at, len(entries))
    lists = all_positions(name, drafts.definition, entries)  # all lists, before middleware sees any
    wrap = drafts.envelope(CLOCK.now())
    if wrap is not None:
        lists = _each(lists, wrap)
    for on_draft in hooks.on_draft:
        drafts.options = on_draft(drafts.options)
    jobs = _alike(setup, drafts, lists, times) if _may_be_alike(setup, hooks, drafts) else None
    if jobs is not None:
        return jobs
    each = Draft(drafts.name, drafts.options, [], drafts.definition, store=drafts.store)

    def one(job: tuple[list[JSON], float | None, Jid | None]) -> Ready | None:
        each.arguments, each.at, each.jid = job
        return _ready(setup, hooks, each)

    return _each(zip(lists, times, drafts.jids or repeat(None), strict=False), one)


# 1. settle


def _settle(hooks: PushHooks, draft: Draft) -> None:
    """Settle what the caller has left open."""
    definition = draft.definition
    if definition is not None and definition.enveloped is not None:
        draft.put_in_envelope(definition, CLOCK.now())
    for on_draft in hooks.on_draft:
        draft.options = on_draft(draft.options)
    if draft.at is not None:
        draft.at = _due(draft.at, CLOCK.now())


def _due(at: Any, now: float) -> float | None:
    """Return the epoch second at which a job is due, or None for at once."""
    due = scheduled_at(at, now)
    return due if due > now else None


def _times(at: Any, count: int) -> list[float | None]:
    if at is None:
        return [None] * count
    now = CLOCK.now()
    if not isinstance(at, list | tuple):
        return [_due(at, now)] * count
    if len(at) != count:
        raise InvalidPush(f"{count} jobs were given {len(at)} times; pass one time, or one for each job")
    return _each(at, lambda each: _due(each, now))


def positions(name: str, definition: Definition | None, arguments: Any) -> list[JSON]:
    """Return arguments as the payload's list.  Raises InvalidArguments when they are not a list, or do not fit."""
    if not isinstance(arguments, list | tuple):
        raise InvalidArguments(f"{name}: the arguments of a job are a list, not {type(arguments).__name__}")
    return list(arguments) if definition is None else definition.positional(tuple(arguments), {})


def all_positions(name: str, definition: Definition | None, entries: Sequence[Any]) -> list[list[JSON]]:
    """Return `positions` of each entry of a bulk push."""
    fewest, most = (0, sys.maxsize) if definition is None else (definition.fewest, definition.most)
    is_typed = isinstance(definition, TypedDefinition)
    if (
        not is_typed
        and ARRAY_TYPES.issuperset(map(type, entries))
        and all(fewest <= length <= most for length in set(map(len, entries)))
    ):
        return list(map(list, entries))
    return _each(entries, lambda entry: positions(name, definition, entry))


# 2. to 4.: middleware, check, rows


def _push(setup: Setup, hooks: PushHooks, draft: Draft) -> Push | None:
    """Return the push of a settled draft after middleware and checks, with rows; None if middleware stopped it."""
    name, options, jid = draft.name, draft.options, draft.jid
    queue = check_queue_name(options["queue"])
    payload = build(name, draft.arguments, options, Jid(jid or new_jid()), CLOCK.now())
    push = setup.through_middleware(Push(payload, draft.at))
    if push is None:
        return None
    if push.payload["queue"] is not queue:
        check_queue_name(push.payload["queue"])
    _check(setup, name, push.payload["args"])
    definition = draft.definition
    features = () if definition is None else hooks.of(definition)
    if features or jid is not None:
        push.keys = store_for_push(setup, name, definition, draft.store).keys
        for on_named_jid in () if jid is None else hooks.on_named_jid:
            push.rows += on_named_jid(push)
    if definition is not None:
        for feature in features:
            push.rows += feature.on_push(push, definition)
    return push


def _check(setup: Setup, name: str, arguments: JSON) -> None:
    """Check arguments in the configured mode: raise, warn or off."""
    mode = setup.current_config().strict_args
    complain = _raise if mode == "raise" else partial(_warn, name, arguments) if mode == "warn" else None
    try:
        check_arguments(arguments, complain)
    except InvalidArguments as error:
        error.args = (f"{_job_name(name, arguments)}: {error}",)
        raise


def _raise(error: InvalidArguments) -> None:
    raise error


def _warn(name: str, arguments: JSON, error: InvalidArguments) -> None:
    message = "%s: %s; it is stored as msgspec writes it (strict_args = warn)"
    logging.getLogger("kiqcluster").warning(message, _job_name(name, arguments), error)


def _job_name(name: str, arguments: JSON) -> str:
    """Return the name of a job for display."""
    envelope = unwrapped({"class": name, "args": arguments})
    return name if envelope is None else envelope.job_class


# 5. and 6.: encode, limit


def _ready(setup: Setup, hooks: PushHooks, draft: Draft) -> Ready | None:
    """Return the job of a settled draft, or None if middleware stopped it."""
    push = _push(setup, hooks, draft)
    if push is None:
        return None
    name, definition = draft.name, draft.definition
    if push.at is None:
        push.payload["enqueued_at"] = stamp(CLOCK.now())
    elif push.at is not draft.at:  # middleware has changed the time
        push.at = due_at(push.at, CLOCK.now())
    if push.at is not None and _tells_due_times(setup):
        push.payload[SCHEDULED_AT] = stamp(push.at)
    hooks.complete(setup, push, definition)
    try:
        encoded = ruby_json.encode(push.payload)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidPush(f"{name}: the payload holds what JSON cannot ({error})") from error
    if len(encoded) >= MIN_LIMITED_BYTES:
        encoded = _limited(setup, name, definition, encoded)
    return Ready(push.payload["jid"], push.queue, push.at, encoded, tuple(push.rows))


def _tells_due_times(setup: Setup) -> bool:
    """Return whether scheduled jobs carry their due time, for the log."""
    return setup.current_config().log_jobs == "full"


def _limited(setup: Setup, name: str, definition: Definition | None, encoded: bytes) -> bytes:
    """Return a payload with compressed arguments if that is due.  Raises InvalidPush, ExceedLimitError."""
    if len(encoded) > MAX_PAYLOAD_BYTES:
        raise InvalidPush(
            f"{name}: the payload has {len(encoded)} bytes, and Redis takes {MAX_PAYLOAD_BYTES} at most; "
            "store the data elsewhere, and pass where it is"
        )
    for feature in current_stacks().push.encoded_features:
        encoded = feature.on_encoded(setup, name, definition, encoded)
    return encoded


# Bulk pushes


def _may_be_alike(setup: Setup, hooks: PushHooks, drafts: Drafts) -> bool:
    """Return whether no feature asks for a look at each job."""
    definition = drafts.definition
    if definition is not None and hooks.of(definition):
        return False
    is_due_time_told = drafts.at is not None and _tells_due_times(setup)
    return hooks.encode_keys.isdisjoint(drafts.options) and not is_due_time_told


def _alike(
    setup: Setup, drafts: Drafts, lists: Sequence[list[JSON]], times: Sequence[float | None]
) -> list[Ready] | None:
    """Return the jobs as `_ready` would, prepared together, or None if they must be prepared one by one.

    That is so if there is client middleware, or if a value is not plain JSON.
    """
    encoded = None if setup.client_middleware.stack else ruby_json.encode_arrays(lists)
    if encoded is None:
        return None
    name, options = drafts.name, drafts.options
    try:
        stencil = Stencil(name, options, CLOCK.now())
    except (TypeError, ValueError, RecursionError):
        return None
    if not are_plain(lists):
        _each(lists, partial(_check, setup, name))
    jids = drafts.jids or new_jids(len(lists))
    filled = stencil.fill(encoded, jids, times)
    largest = max(map(len, filled), default=0)
    if largest >= MIN_LIMITED_BYTES and _is_large(setup, largest):
        filled = _each(filled, partial(_limited, setup, name, drafts.definition))
    return list(map(Ready._make, zip(jids, repeat(options["queue"]), times, filled, repeat(()))))


def _is_large(setup: Setup, size: int) -> bool:
    return size > MAX_PAYLOAD_BYTES or any(
        each.looks_at(setup, size) for each in current_stacks().push.encoded_features
    )


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
