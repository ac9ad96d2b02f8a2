"""Dead set limits: how many older dead jobs a kill drops, because the dead set is trimmed to its limits.

1. before   the maximum, from the size of the set and its limits
2. after    the number, from the sizes before and after; exact unless others changed the set meanwhile
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kiqcluster.ctl.text.options import Output
from kiqcluster.ctl.text.tables import format_number, pluralize
from kiqcluster.errors import StoreError
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.runtime import current_setup
from kiqcluster.store import Store

__all__ = ["DeadSetLimits"]


@dataclass(slots=True)
class DeadSetLimits:
    """size, overdue: entries of the dead set, and those that have lain there for too long.  kept: the most that stay.

    Without a store nothing is killed, and it says nothing.
    """

    store: Store | None = None
    size: int = 0
    overdue: int = 0
    max_kept: int = 0
    dropped: int | None = field(default=None, init=False)  # None: nobody knows

    @classmethod
    def of(cls, store: Store | None) -> DeadSetLimits:
        """Look at the dead set as it is.  One round trip."""
        if store is None:
            return cls()
        config, key = current_setup().current_config(), store.keys.dead
        oldest = SystemClock.now() - config.dead_timeout
        size, overdue = store.pipeline([("ZCARD", key), ("ZCOUNT", key, "-inf", repr(oldest))])
        return cls(store, int(size), int(overdue), max(0, config.dead_max_jobs - 1))  # one fewer, as Sidekiq does

    def expected(self, killed: int) -> int:
        """Return up to how many go when so many are killed."""
        return max(self.overdue, self.size + killed - self.max_kept) if self.store is not None and killed else 0

    def in_words(self, killed: int) -> str:
        """Return what a question adds; "" where none goes."""
        count = self.expected(killed)
        if count <= 0:
            return ""
        kept, dropped = format_number(self.max_kept), format_number(count)
        return f"; the dead set holds the latest {kept}, and drops up to {dropped} older ones for good"

    def end(self, killed: int) -> None:
        """Look again, once so many were killed.  One round trip."""
        if self.store is None:
            return
        try:
            after = int(self.store.call("ZCARD", self.store.keys.dead))
        except StoreError:  # what was done is to be said all the same
            return
        self.dropped = max(0, self.size + killed - after)

    def report(self, output: Output) -> dict[str, Any]:
        """Say how many went; return what a document says of it."""
        if self.store is None:
            return {}
        if self.dropped:
            were = pluralize(self.dropped, "older dead job was", "older dead jobs were")
            output.error(f"the dead set holds the latest {format_number(self.max_kept)}: {were} dropped for good")
        return {"dropped": self.dropped}
