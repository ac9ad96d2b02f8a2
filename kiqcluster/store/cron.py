"""Cron entries in Redis: written, read, and taken from one tick to the next.

Mark, begin_writing    which declaration of an application is in force; two processes that write do not mix
write                  what an application declares, or somebody changes by hand (lua/write_cron)
read_ticks             the ticks that are due, with their entries
far_ticks              the ticks that are later than a moment
skip_ticks             entries await another tick, without a job (lua/skip_ticks; with a job: row `tick` of lua/push)
read_entries           all entries, with their next ticks and latest jobs
find_ids               the ids of the entries of a name, or of an application; names_of_others

An entry is known by its id: its name, and the application that declares it (CronEntry.id).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import NamedTuple

from kiqcluster.sidekiq.keys import Keys
from kiqcluster.store.scripts import DUE, SKIP_TICKS, WRITE_CRON, Call, Word, run_script, sliced
from kiqcluster.store.store import Store
from kiqcluster.store.wire import Command, WrongType

__all__ = [
    "HELD",
    "HISTORY_SIZE",
    "CronRow",
    "DueTick",
    "DueTicks",
    "Mark",
    "StoredEntry",
    "begin_writing",
    "far_ticks",
    "find_ids",
    "names_of_others",
    "read_entries",
    "read_ticks",
    "skip_ticks",
    "write",
]

HISTORY_SIZE = 10  # jobs of an entry that are remembered (sidekiq-cron)
MAX_ROWS = 500  # in one script, which stops Redis for as long
MAX_ID_BYTES = 1_000_000  # of the ids of due entries, read at once
TOKEN_BYTES = 8
WRITING, HELD = "writing", "HELD "
SINCE_END = "-"  # between the time of a process that writes, and its token


class Mark(NamedTuple):
    """What `kiq:cron:applications` has of an application: the declaration that is in force, or who writes one.

    digest: of the entries; WRITING while a process writes them.  word: since when the process runs that has declared
    them, seconds by Redis' clock; since when the other one writes, with a token of its own.
    """

    digest: str
    word: str

    @staticmethod
    def read(raw: bytes | None) -> Mark | None:
        """Return a mark as Redis holds it, None where there is none."""
        if raw is None:
            return None
        digest, _, word = raw.decode(errors="replace").partition(" ")
        return Mark(digest, word)

    @property
    def is_unfinished(self) -> bool:
        return self.digest == WRITING

    @property
    def since(self) -> float:
        """The second since which a process runs that has declared the entries, or writes; 0 where it is not known."""
        try:
            return float(self.word.partition(SINCE_END)[0])
        except ValueError:
            return 0.0

    def __str__(self) -> str:
        return f"{self.digest} {self.word}"


class CronRow(NamedTuple):
    """A row of write_cron.lua."""

    verb: str
    id: str
    word: str | bytes | int = ""
    further: str | int = ""


class DueTick(NamedTuple):
    """An entry whose tick is due.  raw: as in CronEntry.read, None for a tick without an entry."""

    id: str
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

    id: str
    raw: bytes
    next_at: float | None
    is_disabled: bool
    latest: bytes | None


def begin_writing(store: Store, application: str, now: float) -> Mark:
    """Begin to declare the entries of an application; return its mark.  One round trip.  Raises StoreError.

    now: seconds by Redis' clock.
    """
    mark = Mark(WRITING, f"{now:.6f}{SINCE_END}{secrets.token_hex(TOKEN_BYTES)}")
    store.call("HSET", store.keys.cron_applications, application, str(mark))
    return mark


def write(
    store: Store,
    rows: Sequence[CronRow],
    application: str = "",
    mark: Mark | None = None,
    ended: Sequence[str] = (),
    keys: Sequence[str] = (),
) -> list[str] | None:
    """Write rows; return a word for each: DONE, ABSENT, DECLARED, or HELD with the name of an application.

    mark: that the application must still have; None is returned if it has another one by now.  ended: applications
    whose entries may be replaced.  keys: further ones of rows.
    One round trip for MAX_ROWS; may be sent again.  Raises StoreError.
    """
    words: list[str] = []
    before: list[Word] = [application, "" if mark is None else str(mark), len(ended), *ended]
    for some in sliced(rows, MAX_ROWS):
        arguments = [*before, *(word for row in some for word in row)]
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
    time, next_at, *ids = run_script(store, Call(DUE, [keys.cron_ticks], [repr(now), most, MAX_ID_BYTES]))
    ticks = []
    if ids:
        values, scores = store.pipeline([("HMGET", keys.cron, *ids), ("ZMSCORE", keys.cron_ticks, *ids)])
        ticks = [
            DueTick(each.decode(errors="replace"), float(score), raw)
            for each, score, raw in zip(ids, scores, values, strict=True)
            if score is not None and float(score) <= float(time)  # others may have been faster
        ]
    return DueTicks(float(time), ticks, float(next_at) if next_at else None)


def far_ticks(store: Store, moment: float) -> dict[str, float]:
    """Return id → tick, where that is later than an epoch second.  One round trip.  Raises StoreError."""
    flat = store.call("ZRANGEBYSCORE", store.keys.cron_ticks, f"({moment!r}", "+inf", "WITHSCORES")
    return {each.decode(errors="replace"): float(at) for each, at in zip(flat[::2], flat[1::2], strict=True)}


def skip_ticks(store: Store, skipped: Sequence[tuple[str, float, float | None]]) -> int:
    """Have entries await another tick than they do: id, awaited tick, the other one, None for no further tick.

    Returns how many have.  One round trip for MAX_ROWS; may be sent again.  Raises StoreError.
    """
    changed = 0
    for some in sliced(skipped, MAX_ROWS):
        arguments: list[Word] = []
        for each, awaited, following in some:
            arguments += [each, repr(awaited), "" if following is None else repr(following)]
        changed += run_script(store, Call(SKIP_TICKS, [store.keys.cron_ticks], arguments))
    return changed


def read_entries(store: Store, ids: Sequence[str] | None = None, *, with_history: bool = True) -> list[StoredEntry]:
    """Return all entries, or those of these ids that there are, by id.

    with_history: whether to read the latest job of each.
    One round trip if all are asked for, and one for each 500 entries.  Raises StoreError.
    """
    found: list[StoredEntry] = []
    for some in sliced(sorted(_all_ids(store) if ids is None else set(ids)), MAX_ROWS):
        commands: list[Command] = [
            ("HMGET", store.keys.cron, *some),
            ("ZMSCORE", store.keys.cron_ticks, *some),
            ("SMISMEMBER", store.keys.cron_disabled, *some),
            *(("LINDEX", store.keys.cron_history(each), 0) for each in some if with_history),
        ]
        values, *told = store.read_each(commands)
        if isinstance(values, WrongType):
            raise values
        scores, disabled, *latest = (None if isinstance(reply, WrongType) else reply for reply in told)
        scores, disabled = scores or [None] * len(some), disabled or [0] * len(some)  # of another type: nothing known
        latest = latest or [None] * len(some)
        for each, raw, score, is_disabled, last in zip(some, values, scores, disabled, latest, strict=True):
            if raw is not None:
                found.append(StoredEntry(each, raw, None if score is None else float(score), bool(is_disabled), last))
    return found


def find_ids(store: Store, *, name: str = "", application: str = "") -> list[str]:
    """Return the ids that entries of a name, or of an application, may have.  One round trip.  Raises StoreError."""
    ids = sorted(_all_ids(store))
    if application:
        return [each for each in ids if each.endswith(f"@{application}")]
    return [each for each in ids if name in names_in(each)]


def names_in(identifier: str) -> list[str]:
    """Return the names that the entry of an id may have: the application may have an @ as well."""
    parts = identifier.split("@")
    return ["@".join(parts[:count]) for count in range(1, len(parts) + 1)]


def names_of_others(store: Store, application: str) -> frozenset[str]:
    """Return the names that entries may have which are not of an application.  One round trip.  Raises StoreError."""
    others = (each for each in _all_ids(store) if not each.endswith(f"@{application}"))
    return frozenset(name for each in others for name in names_in(each))


def _all_ids(store: Store) -> list[str]:
    return [each.decode(errors="replace") for each in store.call("HKEYS", store.keys.cron)]


def _keys(keys: Keys) -> list[str]:
    return [keys.cron, keys.cron_ticks, keys.cron_disabled, keys.cron_applications]
