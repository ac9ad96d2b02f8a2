"""Quiet: whether the cluster fetches, who said so, and until when.  Pure.

Every quiet ends: by who began it, or with its lease.  A deploy that fails half-way strands nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from kiqcluster.control.orders import BY_SIGNAL

__all__ = ["QuietLease"]


@dataclass(slots=True)
class QuietLease:
    """The quiet of one cluster.  Times are monotonic seconds, but for since_epoch.

    by: BY_SIGNAL, or who asked for it; empty while there is none.  until: when the lease ends.
    asked_at: when somebody last asked for it.
    expirations: leases that ran out, since the supervisor's start.
    """

    by: str = ""
    since: float = 0.0
    since_epoch: float = 0.0
    until: float = inf
    asked_at: float = 0.0
    expirations: int = field(default=0, kw_only=True)

    @property
    def is_by_signal(self) -> bool:
        return self.by == BY_SIGNAL

    def __bool__(self) -> bool:
        return bool(self.by)

    def begin(self, by: str, lease: float, now: float, epoch: float) -> bool:
        """Be quiet for `lease` seconds from now on, 0 for no end; return whether that is new.

        A quiet within a quiet has its own lease from now.  One that was asked for by name stays so: a signal
        does not make it end by a signal.
        """
        is_new = not self.by
        if is_new:
            self.since, self.since_epoch = now, epoch
        if is_new or by != BY_SIGNAL:
            self.by = by
        self.asked_at = now
        self.until = now + lease if lease else inf
        return is_new

    def end(self, by: str) -> bool:
        """Fetch again; return whether that is new.  A signal ends only a quiet that came by signal."""
        if not self.by or (by == BY_SIGNAL and self.by != BY_SIGNAL):
            return False
        self.by, self.until = "", inf
        return True

    def is_of(self, whose: str) -> bool:
        """Return whether somebody of this name has begun it; nobody's name is everybody's."""
        return not whose or self.by.partition("@")[0] == whose

    def expire(self, now: float) -> bool:
        """End it if its lease has run out; return whether it has."""
        if not self.by or now < self.until:
            return False
        self.by, self.until = "", inf
        self.expirations += 1
        return True

    def remaining(self, now: float) -> float | None:
        """Return the seconds that are left of the lease; None without a quiet, or for one without an end."""
        return None if not self.by or self.until == inf else max(0.0, self.until - now)
