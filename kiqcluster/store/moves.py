"""Moves: entries and jobs that go from one place to another in one script, so that each is always in one of them.

move_entries   of a sorted set: to queues, to the dead set, to another score, to another queue's name, away
move_jobs      of a queue: to another one, away
read_queue     a part of a queue, its wake list being its tail

Nothing here retries: after a lost reply, only a look can tell what was moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kiqcluster.errors import RedisRefused
from kiqcluster.store.connection import Store
from kiqcluster.store.scripts import MOVE_ENTRIES, MOVE_JOBS, READ_QUEUE, Call, Word, run_scripts
from kiqcluster.store.wire import about_keys

__all__ = ["DeadSetLimits", "Move", "Part", "move_entries", "move_jobs", "read_queue"]


@dataclass(frozen=True, slots=True)
class DeadSetLimits:
    """largest: entries kept, less one, as Sidekiq does.  timeout: seconds that an entry is kept."""

    largest: int
    timeout: float


@dataclass(frozen=True, slots=True)
class Move:
    """An entry and what becomes of it.  verb: push, bury, drop, defer or rename (move_entries.lua)."""

    old: bytes
    verb: str
    queue: str = ""
    new: bytes = b""


class Part(NamedTuple):
    """A part of a queue.  length: of all of it.  first: index of the first of these payloads, the newest being 0."""

    length: int
    first: int
    payloads: list[bytes]


def move_entries(
    store: Store,
    source: str,
    moves: Sequence[Move],
    now: float,
    limits: DeadSetLimits,
    *,
    highest: float | None = None,
    refused_until: float | None = None,
) -> tuple[list[int], list[str]]:
    """Move entries that are still there; return the indexes of those, and Redis' words about others.

    highest: the score above which an entry stays.  refused_until: the score of an entry that cannot be moved, None to
    leave it.  One round trip.  Raises StoreError.
    """
    keys = [source, store.keys.queues, store.keys.dead]
    index_by_queue: dict[str, int] = {}
    arguments: list[Word] = [
        repr(now),
        "" if highest is None else repr(highest),
        "" if refused_until is None else repr(refused_until),
        repr(now - limits.timeout),
        limits.largest,
    ]
    for move in moves:
        if move.queue not in index_by_queue:
            keys.append(store.keys.queue(move.queue))
            index_by_queue[move.queue] = len(keys)
        arguments += [move.old, move.verb, index_by_queue[move.queue], move.queue, move.new]
    moved, refusals = _run(store, Call(MOVE_ENTRIES, keys, arguments))
    return [index - 1 for index in moved], [words.decode(errors="replace") for words in refusals]


def move_jobs(
    store: Store, queue: str, to: str, jobs: Sequence[tuple[bytes, bytes]], between: tuple[int, int], mark: bytes
) -> list[int]:
    """Move jobs of a queue to another one, or away; return the indexes of those that were found.

    to: "" deletes them.  jobs: bytes as they are, and as they shall be.  between: the farthest and the nearest place to
    look at, 0 being the job that is fetched next.  mark: bytes that are nobody's payload.
    One round trip.  Raises StoreError.
    """
    keys = [store.keys.queue(queue), store.keys.wake(queue), store.keys.queues]
    if to:
        keys.append(store.keys.queue(to))
    arguments: list[Word] = [to, mark, *between, *(word for pair in jobs for word in pair)]
    return [index - 1 for index in _run(store, Call(MOVE_JOBS, keys, arguments))]


def read_queue(store: Store, queue: str, first: int, last: int) -> Part:
    """Return a part of a queue, newest first; indexes as LRANGE takes them.  One round trip.  Raises StoreError."""
    reply = _run(store, Call(READ_QUEUE, [store.keys.queue(queue), store.keys.wake(queue)], [first, last]))
    return Part(*reply)


def _run(store: Store, call: Call) -> Any:
    with store.borrowed() as link:
        (reply,) = run_scripts(link, [call])
    if isinstance(reply, RedisRefused):
        raise about_keys(reply, call.keys)
    return reply
