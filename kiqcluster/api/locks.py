"""Locks: which jobs hold the locks of deduplication, and for how long (features/deduplication.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kiqcluster.api._store import store_in_force
from kiqcluster.store import Store
from kiqcluster.store.scripts import LOCK, Call, run_script
from kiqcluster.store.store import scan

__all__ = ["JobLock", "LockPage", "LockSet"]

MAX_SCANNED_KEYS = 1_000  # of the whole Redis, in one round trip
PAGE_SCANNED_KEYS = (300, 1_000, 4_000, 12_000)  # that the round trips of a page look at, one after the other


class JobLock:
    """A lock, as it was when it was read.

    name: the `idempotency_key` of payloads.  jid: of the job that holds it.  ttl: seconds, None for a lock without end.
    """

    __slots__ = ("_store", "jid", "name", "ttl")

    def __init__(self, name: str, jid: str, ttl: float | None, store: Store) -> None:
        self.name = name
        self.jid = jid
        self.ttl = ttl
        self._store = store

    def __repr__(self) -> str:
        return f"<JobLock {self.name} of {self.jid}>"

    @property
    def job_class(self) -> str:
        """The class of the job."""
        return self.name.rpartition(":")[0] or self.name

    def release(self) -> bool:
        """Release it, unless another job holds it by now; return whether it was released.  One round trip.

        The job stays where it is and runs; its end then releases nothing.
        """
        key = self._store.keys.lock(self.name)
        _, _, before = run_script(self._store, Call(LOCK, [key], ["drop", self.jid, 0]))
        return before is not None and before.decode(errors="replace") == self.jid


class LockPage(NamedTuple):
    """Locks that a part of Redis' keys has.  cursor: where the next part begins, 0 at the end.  keys: of all Redis."""

    locks: list[JobLock]
    cursor: int
    keys: int


class LockSet:
    """All locks.  Redis looks for them among all its keys: one round trip per 1 000 keys, and one more for those found.

    Iteration goes on while others claim and release; a lock may come twice.
    """

    def __init__(self, *, store: Store | None = None) -> None:
        self._store = store_in_force(store)

    def __repr__(self) -> str:
        return "<LockSet>"

    def __iter__(self) -> Iterator[JobLock]:
        for keys in scan(self._store, "SCAN", None, "MATCH", self._pattern(), "COUNT", MAX_SCANNED_KEYS):
            yield from self._read(self._names(keys))

    def page(self, cursor: int = 0, most: int = 100, begins_with: str = "") -> LockPage:
        """Return the locks that a part of the keys has, from a cursor on: the next ones until there are so many.

        begins_with: what the names of the locks begin with, as with the class of their jobs.  A lock may come twice.
        At most five round trips.  Raises StoreError.
        """
        names, total = list[str](), 0
        for count in PAGE_SCANNED_KEYS:
            scan_keys = ("SCAN", cursor, "MATCH", self._pattern(begins_with), "COUNT", count)
            total, (following, keys) = self._store.pipeline([("DBSIZE",), scan_keys])
            cursor = int(following)
            names += self._names(keys)
            if not cursor or len(names) >= most:
                break
        return LockPage(self._read(list(dict.fromkeys(names))), cursor, total)

    def find(self, name: str) -> JobLock | None:
        """Return the lock of this name, None if nobody holds it.  One round trip."""
        return next(iter(self._read([name])), None)

    def of_job(self, jid: str) -> list[JobLock]:
        """Return the locks that a job holds.  Redis looks through all its keys."""
        return [lock for lock in self if lock.jid == jid]

    def _pattern(self, begins_with: str = "") -> str:
        name = self._store.keys.lock(begins_with)
        return "".join(f"\\{letter}" if letter in "*?[]\\" else letter for letter in name) + "*"

    def _names(self, keys: list[bytes]) -> list[str]:
        return [key.decode(errors="replace").removeprefix(self._store.keys.lock("")) for key in keys]

    def _read(self, names: list[str]) -> list[JobLock]:
        """Return the locks of these names that exist.  One round trip, none without names."""
        if not names:
            return []
        keys = [self._store.keys.lock(name) for name in names]
        replies = self._store.read_each([command for key in keys for command in (("GET", key), ("PTTL", key))])
        found = zip(names, replies[::2], replies[1::2], strict=True)
        return [
            JobLock(name, jid.decode(errors="replace"), left / 1_000 if left >= 0 else None, self._store)
            for name, jid, left in found
            if isinstance(jid, bytes) and isinstance(left, int)  # else it has ended, or is not a lock
        ]
