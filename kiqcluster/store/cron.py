"""Cron entries in Redis: written, read, and taken from one tick to the next.

begin_writing, write   what an application declares, or somebody changes by hand (lua/write_cron)
read_ticks             the ticks that are due, with their entries
skip_ticks             entries await another tick, without a job (lua/skip_ticks; with a job: row `tick` of lua/push)
read_entries           all entries, with their next ticks and latest jobs

Two processes that declare entries for one application do not mix: the one that has begun last writes on.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kiqcluster.errors import RedisRefused
from kiqcluster.sidekiq.keys import Keys
from kiqcluster.store.scripts import DUE, SKIP_TICKS, WRITE_CRON, Call, Word, run_script, sliced
from kiqcluster.store.store import Store
from kiqcluster.store.wire import Command, about_keys

__all__ = [
    "HISTORY_SIZE",
    "CronRow",
    "DueTick",
    "DueTicks",
    "StoredEntry",
    "begin_writing",
    "read_entries",
    "read_ticks",
    "skip_ticks",
    "write",
]

HISTORY_SIZE = 10  # jobs of an entry that are remembered (sidekiq-cron)
MAX_ROWS = 500  # in one script, which stops Redis for as long
MAX_NAME_BYTES = 1_000_000  # of the names of due entries, read at once
TOKEN_BYTES = 8


class CronRow(NamedTuple):
    """A row of write_cron.lua."""

    verb: str
    name: str
    word: str | bytes | int = ""
    further: str | int = ""


class DueTick(NamedTuple):
    """An entry whose tick is due.  raw: as in CronEntry.read, None for a tick without an entry."""

    name: str
    awaited: float
    raw: bytes | None


class DueTicks(NamedTuple):
    """now: the time that was compared; Redis' own when the caller's clock is far ahead of it.

    next_at: the next tick that is not due, inf if there is none; None when more may be due.
    """

    now: float
    ticks: list[DueTick]
    next_at: float | None


class StoredEntry(NamedTuple):
    """raw: as in CronEntry.read.  next_at: epoch seconds, None while disabled.  latest: of its history, or None."""

    name: str
    raw: bytes
    next_at: float | None
    is_disabled: bool
    latest: bytes | None


def begin_writing(store: Store, application: str) -> str:
    """Begin to declare the entries of an application; return the token.  One round trip.  Raises StoreError."""
    token = secrets.token_hex(TOKEN_BYTES)
    store.call("HSET", store.keys.cron_applications, application, f"writing {token}")
    return token


def write(
    store: Store, rows: Sequence[CronRow], application: str = "", token: str = "", keys: Sequence[str] = ()
) -> list[str] | None:
    """Write rows; return a word for each: DONE, ABSENT or DECLARED.  None if another process writes by now.

    keys: further ones of rows.  One round trip for MAX_ROWS; may be sent again.  Raises StoreError.
    """
    words: list[str] = []
    for some in sliced(rows, MAX_ROWS):
        arguments: list[Word] = [application, token, *(word for row in some for word in row)]
        reply = run_script(store, Call(WRITE_CRON, [*_keys(store.keys), *keys], arguments))
        if reply == [b"SUPERSEDED"]:
            return None
        words += [word.decode() for word in reply]
    return words


def read_ticks(store: Store, now: float, most: int) -> DueTicks:
    """Return the entries whose ticks are due, the oldest first.

    Two round trips, one if nothing is due.  Raises StoreError.
    """
    keys = store.keys
    time, next_at, *names = run_script(store, Call(DUE, [keys.cron_ticks], [repr(now), most, MAX_NAME_BYTES]))
    ticks = []
    if names:
        values, scores = store.pipeline([("HMGET", keys.cron, *names), ("ZMSCORE", keys.cron_ticks, *names)])
        ticks = [
            DueTick(name.decode(errors="replace"), float(score), raw)
            for name, score, raw in zip(names, scores, values, strict=True)
            if score is not None and float(score) <= float(time)  # others may have been faster
        ]
    return DueTicks(float(time), ticks, float(next_at) if next_at else None)


def skip_ticks(store: Store, skipped: Sequence[tuple[str, float, float | None]]) -> int:
    """Have entries await another tick than they do: name, awaited tick, the other one, None for no further tick.

    Returns how many have.  One round trip for MAX_ROWS; may be sent again.  Raises StoreError.
    """
    changed = 0
    for some in sliced(skipped, MAX_ROWS):
        arguments: list[Word] = []
        for name, awaited, following in some:
            arguments += [name, repr(awaited), "" if following is None else repr(following)]
        changed += run_script(store, Call(SKIP_TICKS, [store.keys.cron_ticks], arguments))
    return changed


def read_entries(store: Store, names: Sequence[str] | None = None) -> list[StoredEntry]:
    """Return all entries, or those of these names that there are, by name.

    One round trip, and one for each 500 entries.  Raises StoreError.
    """
    found: list[StoredEntry] = []
    for some in sliced(sorted(_names(store) if names is None else set(names)), MAX_ROWS):
        commands: list[Command] = [
            ("HMGET", store.keys.cron, *some),
            ("ZMSCORE", store.keys.cron_ticks, *some),
            ("SMISMEMBER", store.keys.cron_disabled, *some),
            *(("LINDEX", store.keys.cron_history(name), 0) for name in some),
        ]
        values, *told = store.ask_each(commands)
        if isinstance(values, RedisRefused):
            raise about_keys(values, [store.keys.cron])
        scores, disabled, *latest = (None if isinstance(reply, RedisRefused) else reply for reply in told)
        scores, disabled = scores or [None] * len(some), disabled or [0] * len(some)  # of another type: nothing known
        for name, raw, score, is_disabled, last in zip(some, values, scores, disabled, latest, strict=True):
            if raw is not None:
                found.append(StoredEntry(name, raw, None if score is None else float(score), bool(is_disabled), last))
    return found


def _names(store: Store) -> Iterator[str]:
    for name in store.call("HKEYS", store.keys.cron):
        yield name.decode(errors="replace")


def _keys(keys: Keys) -> list[str]:
    return [keys.cron, keys.cron_ticks, keys.cron_disabled, keys.cron_applications]
