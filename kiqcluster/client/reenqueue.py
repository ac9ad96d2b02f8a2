"""Re-enqueue: moves a job of the schedule, retry or dead set back to a queue, through client middleware.

enqueued   for a due entry, which the poller moves
added      for an entry that somebody moves by hand; also moves bytes that are not a job
retried    the same, with one retry fewer counted

Nothing is written here: the result is a row for move_entries.lua.  Unchanged keys are carried on byte for byte, and a
job that an entry keeps stays in such an entry (sidekiq/ruby_entries).  Middleware sees compressed arguments as they
were; they stay compressed.
Counterpart: sidekiq scheduled.rb, and add_to_queue and retry in api.rb.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace

from kiqcluster.errors import MalformedPayload
from kiqcluster.features.stacks import current_stacks
from kiqcluster.process.runtime import Push, Setup
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.compression import closed, opened
from kiqcluster.sidekiq.payload import Payload, bare, read, stamp, wrap
from kiqcluster.sidekiq.ruby_entries import entry_for_ruby
from kiqcluster.store.entry_moves import Move

__all__ = ["DEFAULT_QUEUE", "added", "enqueued", "retried"]

DEFAULT_QUEUE = "default"  # of an entry that names no queue


def enqueued(setup: Setup, old: bytes, now: float) -> Move:
    """Return the move of an entry to its queue: push, or drop when client middleware stops it.

    Raises MalformedPayload for an entry that is not a job, and any error of middleware.
    """
    return _pushed(setup, old, read(old), now, {})


def added(setup: Setup, old: bytes, now: float) -> Move:
    """Return the move of an entry that somebody moves by hand: it runs even if it had expired.

    Raises any error of middleware.
    """
    return _by_hand(setup, old, now, lambda _: {})


def retried(setup: Setup, old: bytes, now: float) -> Move:
    """Return the same with one retry fewer counted, as in Ruby.  Raises any error of middleware."""
    return _by_hand(setup, old, now, _one_fewer)


def _one_fewer(payload: Payload) -> Payload:
    count = payload.get("retry_count")
    return {"retry_count": count - 1} if type(count) is int else {}


def _by_hand(setup: Setup, old: bytes, now: float, change: Callable[[Payload], Payload]) -> Move:
    """Return the move of an entry that need not be a job: a worker may be able to read its bytes."""
    try:
        payload = read(old)
    except MalformedPayload as error:
        return _unreadable(old, error, now)
    move = _pushed(setup, old, payload, now, change(payload), _removed_by_hand(payload, now))
    jid = payload.get("jid")
    return replace(move, unmarks=jid) if isinstance(jid, str) and ruby_json.is_unicode(jid) else move


def _removed_by_hand(payload: Payload, now: float) -> set[str]:
    """Return the keys by which a feature would keep the job from running."""
    return {key for on_moved in current_stacks().push.on_moved_by_hand for key in on_moved(payload, now)}


def _unreadable(old: bytes, error: MalformedPayload, now: float) -> Move:
    """Return the move of bytes that are not a job, kept in an entry: a Ruby worker would lose some of them bare.

    JSON that is not an object breaks every page of Ruby's web UI while it is in a queue, too, and bytes that are not
    UTF-8 break the page of the queue with json 2.10 and later.
    """
    try:
        queue = _queue(ruby_json.decode(old))
    except (ruby_json.Undecodable, AttributeError):  # no JSON, or no object
        queue = DEFAULT_QUEUE
    return Move(old, "push", queue, old if bare(old) is not old else wrap(old, queue, error, now))


def _pushed(
    setup: Setup, old: bytes, stored: Payload, now: float, changes: Payload, without: AbstractSet[str] = frozenset()
) -> Move:
    pristine = opened(stored) if setup.client_middleware.stack else stored
    payload = {**(read(old) if pristine is stored else opened(stored)), **changes}
    payload["queue"] = _queue(payload)
    for key in without:
        payload.pop(key, None)
    push = setup.through_middleware(Push(payload))
    if push is None:
        told = [each for on_dropped in current_stacks().push.on_dropped for each in on_dropped(old, "middleware")]
        return Move(old, "drop", told=told)
    push.payload["queue"] = _queue(push.payload)  # middleware may change it, too
    written = {**_changed(push.payload, pristine), "enqueued_at": stamp(now)}
    removed = pristine.keys() - push.payload.keys()
    raw = bare(old)
    new = ruby_json.patch(raw, written, {*removed, "at"})
    if pristine is not stored and "args" in written:
        new = closed(new)
    if raw is not old:
        new = entry_for_ruby(new, {}, push.queue)
    return Move(old, "push", push.queue, new)


def _queue(payload: Payload) -> str:
    queue = payload.get("queue")
    # A Redis key cannot contain half a surrogate pair, and one such entry must not stop the others of its batch.
    return queue if isinstance(queue, str) and queue and ruby_json.is_unicode(queue) else DEFAULT_QUEUE


def _changed(payload: Payload, pristine: Payload) -> Payload:
    """Return the keys that middleware added or changed; the others keep their bytes."""
    missing = object()
    return {
        key: value
        for key, value in payload.items()
        if (before := pristine.get(key, missing)) != value or type(before) is not type(value)
    }
