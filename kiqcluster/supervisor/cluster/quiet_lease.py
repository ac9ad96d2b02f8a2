"""QuietLease: whether the cluster is quiet, who asked for it, and until when.  Pure.

Every quiet ends: by the one who asked for it, or with its lease.  A deploy that fails half-way strands no worker.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from kiqcluster.control.orders import BY_SIGNAL

__all__ = ["QuietLease"]


@dataclass(slots=True)
class QuietLease:
    """The quiet of one cluster.  Times are monotonic seconds, but for since_epoch.

    by: BY_SIGNAL, or the name of the one who asked for it; empty while there is none.  until: when the lease ends.
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
        """Begin a quiet of `lease` seconds, 0 for no end; return whether there was none before.

        A second quiet starts a new lease.  A signal does not take over a quiet that was asked for by name.
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
        """End the quiet; return whether it ended now.  A signal ends only a quiet that came by signal."""
        if not self.by or (by == BY_SIGNAL and self.by != BY_SIGNAL):
            return False
        self.by, self.until = "", inf
        return True

    def is_of(self, whose: str) -> bool:
        """Return whether somebody of this name began it; an empty name matches everybody."""
        return not whose or self.by.partition("@")[0] == whose

    def expire(self, now: float) -> bool:
        """End it if its lease has run out; return whether it has."""
        if not self.by or now < self.until:
            return False
        self.by, self.until = "", inf
        self.expirations += 1
        return True

    def remaining(self, now: float) -> float | None:
        """Return the remaining seconds of the lease; None without a quiet, or without an end."""
        return None if not self.by or self.until == inf else max(0.0, self.until - now)
