"""CronSync: writes the cron entries that this application declares to Redis.

Runs in: the poller's thread.
1. compare   the digest of the entries with the one in Redis: equal for all processes of a release but its first
2. write     the entries, a slice in each script; an entry that is the same keeps its next tick
3. remove    what the application has declared before and does not any more, with a warning: another application of the
             same name may have declared it; entries that were added at run time stay

In a rolling restart, each new process finds the entries of its release, or writes them.  Later, only entries that are
gone are written again (a Redis that was emptied): an old process must not put back those of its release.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from kiqcluster.application.registry import Registry
from kiqcluster.client.cron_jobs import resolved
from kiqcluster.errors import RedisRefused, UsageError
from kiqcluster.features.cron import declared_entries
from kiqcluster.process.runtime import Runtime
from kiqcluster.sidekiq.cron_entries import CronEntry
from kiqcluster.store import is_outage
from kiqcluster.store.cron import CronRow, begin_writing, read_entries, write
from kiqcluster.store.wire import server_time

__all__ = ["CronSync"]

MAX_SHOWN_NAMES = 20  # of removed entries, in one line of the log
LOOK_SECONDS = 60.0  # between two looks whether the entries are still there
DIGEST_CHARACTERS = 16
WRITING = b"writing "


class CronSync:
    """shard: of this worker; it writes the entries whose jobs go there.

    expect: takes note of a tick of which the poller does not know yet.
    """

    def __init__(self, runtime: Runtime, registry: Registry, shard: str, expect: Callable[[str, float], None]) -> None:
        self._runtime = runtime
        self._store = runtime.store
        self._shard = shard
        self._expect = expect
        self._application = runtime.config.known_cron_application()
        self._entries = self._declared(registry)
        self._digest = self._digest_of(self._entries)
        self._has_looked = False
        self._look_at = 0.0  # monotonic seconds
        self._unfinished = b""  # what a process has begun to write, as it was at the latest look

    def keep(self) -> None:
        """Write the entries unless Redis has them; look once a minute whether they are still there.

        One round trip if they are; else one for each 500 entries and four more.  What Redis refuses is reported, and
        tried again.  Raises StoreError when Redis is away.
        """
        now = self._runtime.clock.monotonic()
        if now < self._look_at or (self._has_looked and not self._entries):
            return
        with self._reporting_refusals():
            known = self._store.call("HGET", self._store.keys.cron_applications, self._application)
            if self._has_looked:
                is_given_up = known is not None and known.startswith(WRITING) and known == self._unfinished
                is_wanted = known is None or is_given_up
            else:
                is_wanted = known != self._digest.encode() and (bool(self._entries) or known is not None)
            self._unfinished = known or b""
            if is_wanted:
                self._write()
            self._has_looked = True
        self._look_at = now + LOOK_SECONDS * self._runtime.rng.uniform(0.8, 1.2)

    @contextmanager
    def _reporting_refusals(self) -> Iterator[None]:
        """Report an ACL or a broken key: no reason to run no jobs."""
        try:
            yield
        except RedisRefused as error:
            if is_outage(error):
                raise
            self._runtime.trouble("cron", error)

    def _declared(self, registry: Registry) -> list[CronEntry]:
        """Return the entries of this shard.  Raises UsageError."""
        config, setup, found = self._runtime.config, self._runtime.setup, []
        for entry in declared_entries(config, registry, Path.cwd()):
            one, shard = resolved(setup, registry.get(entry.job), entry)
            if shard == self._shard:
                found.append(replace(one, application=self._application))
        return found

    @staticmethod
    def _digest_of(entries: Sequence[CronEntry]) -> str:
        text = b"\n".join(
            b"%s %r %s" % (each.name.encode(), each.enabled, each.encoded())
            for each in sorted(entries, key=lambda each: each.name)
        )
        return hashlib.sha256(text).hexdigest()[:DIGEST_CHARACTERS]

    def _write(self) -> None:
        """Write all entries, and remove those of this application that it does not declare any more."""
        token = begin_writing(self._store, self._application)
        now = server_time(self._store.call("TIME"))
        rows, first = [], float("inf")
        for entry in self._entries:
            following = entry.schedule.next(now)
            first = min(first, following)
            rows.append(CronRow("put", entry.name, entry.encoded(), following))
            if entry.enabled is not None:
                rows.append(CronRow("enable" if entry.enabled else "disable", entry.name, following))
        if write(self._store, rows, self._application, token) is None:  # another process does it
            return
        others = self._others()
        gone = [CronRow("remove", name) for name in others]
        written = write(self._store, [*gone, CronRow("finish", "", self._digest)], self._application, token)
        if written is not None:
            self._runtime.events.emit("cron_entries_written", entries=len(self._entries), removed=len(gone))
            self._tell_removed(others)
            self._expect(self._store.keys.cron_ticks, first)

    def _tell_removed(self, names: Sequence[str]) -> None:
        """Name the entries that were removed: two applications of one name remove those of each other."""
        if names:
            more = f" and {len(names) - MAX_SHOWN_NAMES} more" if len(names) > MAX_SHOWN_NAMES else ""
            shown = ", ".join(names[:MAX_SHOWN_NAMES]) + more
            self._runtime.events.emit("cron_entries_removed", names=shown, application=self._application)

    def _others(self) -> list[str]:
        """Return the names of entries of this application that it does not declare any more."""
        declared, others = {each.name for each in self._entries}, []
        for stored in read_entries(self._store):
            if stored.name in declared:
                continue
            try:
                entry = CronEntry.read(stored.name, stored.raw)
            except UsageError as error:  # not one of ours
                self._runtime.trouble("cron", error)
                continue
            if entry.application == self._application:
                others.append(entry.name)
        return others
