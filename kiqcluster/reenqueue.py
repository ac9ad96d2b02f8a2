"""Entries: a job of the schedule, retry or dead set on its way back to a queue, through client middleware.

enqueued   what is due, as the poller moves it
added      the same, because somebody wants it at once; bytes that are no job go as well
retried    the same, and the attempt does not count

Nothing is written here: the result is a row for move_entries.lua.  Keys that nobody changes keep their bytes.
Counterpart: sidekiq scheduled.rb, and add_to_queue and retry in api.rb.
"""

from __future__ import annotations

from collections.abc import Callable

from kiqcluster.errors import MalformedPayload
from kiqcluster.process.runtime import Push, Setup
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.payload import INVALID_PAYLOAD, Payload, read, stamp, unwrap, wrap
from kiqcluster.store.entry_moves import Move

__all__ = ["DEFAULT_QUEUE", "added", "enqueued", "retried"]

DEFAULT_QUEUE = "default"  # of an entry that names none


def enqueued(setup: Setup, old: bytes, now: float) -> Move:
    """Return the move of an entry to its queue: push, or drop where client middleware stops it.

    Raises MalformedPayload for what is not a job, and whatever a link raises.
    """
    return _pushed(setup, old, old, now, {})


def added(setup: Setup, old: bytes, now: float) -> Move:
    """Return the same for an entry that somebody wants now.  Raises what a link raises."""
    return _by_hand(setup, old, now, lambda _: {})


def retried(setup: Setup, old: bytes, now: float) -> Move:
    """Return the same, with one retry fewer on the job's account, as in Ruby.  Raises what a link raises."""
    return _by_hand(setup, old, now, _one_fewer)


def _one_fewer(payload: Payload) -> Payload:
    count = payload.get("retry_count")
    return {"retry_count": count - 1} if type(count) is int else {}


def _by_hand(setup: Setup, old: bytes, now: float, change: Callable[[Payload], Payload]) -> Move:
    """Return the move of an entry that need not be a job: its bytes may have been kept for a worker that reads them."""
    raw, queue = _kept(old)
    try:
        payload = read(raw)
    except MalformedPayload as error:
        return Move(old, "push", queue, _harmless(old, raw, queue, error, now))
    return _pushed(setup, old, raw, now, change(payload))


def _harmless(old: bytes, raw: bytes, queue: str, error: MalformedPayload, now: float) -> bytes:
    """Return bytes that are no job in a form that Ruby survives; our workers look inside (payload.unwrap).

    JSON that is not an object breaks every page of its web UI while it is in a queue, and its workers lose it (trap
    12).  Bytes that are not UTF-8 break the page of the queue with json 2.10 and later.
    """
    if _is_text(raw) and (not ruby_json.ruby_reads(raw) or isinstance(ruby_json.decode(raw), dict)):
        return raw
    return old if raw != old else wrap(raw, queue, error, now)


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _kept(old: bytes) -> tuple[bytes, str]:
    """Return the bytes that an entry stands for (payload.wrap), and its queue."""
    try:
        payload = read(old)
    except MalformedPayload:
        return old, DEFAULT_QUEUE
    inner = unwrap(payload) if payload["class"] == INVALID_PAYLOAD else None
    return (old if inner is None else inner), _queue(payload)


def _pushed(setup: Setup, old: bytes, raw: bytes, now: float, changes: Payload) -> Move:
    pristine = read(raw)
    payload = {**read(raw), **changes}
    payload["queue"] = _queue(payload)
    draft = Push(payload)
    push = setup.client_middleware.invoke(draft, lambda: draft)
    if push is None:
        return Move(old, "drop")
    push.payload["queue"] = _queue(push.payload)  # links may change it, too
    written = {**_changed(push.payload, pristine), "enqueued_at": stamp(now)}
    removed = pristine.keys() - push.payload.keys()
    return Move(old, "push", push.queue, ruby_json.patch(raw, written, {*removed, "at"}))


def _queue(payload: Payload) -> str:
    queue = payload.get("queue")
    # No key can hold half a surrogate pair, and one such entry must not keep the others of its batch back.
    return queue if isinstance(queue, str) and queue and ruby_json.is_unicode(queue) else DEFAULT_QUEUE


def _changed(payload: Payload, pristine: Payload) -> Payload:
    """Return the keys that middleware added or changed; the others keep their bytes."""
    missing = object()
    return {
        key: value
        for key, value in payload.items()
        if (before := pristine.get(key, missing)) != value or type(before) is not type(value)
    }
