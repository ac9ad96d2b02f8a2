"""Expiry: a job that has not begun in time is dropped instead of run.

A push with `expires_in` (seconds) writes the key `expiry`: epoch seconds, counted from its due time if it is scheduled,
else from the time of the push (`created_at`).  Both keys are those of Sidekiq Pro.  Retries and moves keep them.

1. on_encode    the client half: writes `expiry`, also for classes that are not registered, and by options of one push
2. is_expired   whether a payload's time is over
3. on_begin     the server half: drops such a job, at its first run or at a retry
   on_moved_by_hand   the client half: a job that somebody moves to its queue does not expire

Price: no round trip; a dropped job is settled, and kept in the list of dropped jobs.  A push without `expires_in` costs
one look-up.  A bulk push with it prepares its jobs one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kiqcluster.application.options import OPTIONS
from kiqcluster.application.registry import Definition
from kiqcluster.errors import InvalidPush
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.runtime import Push, Run, Setup
from kiqcluster.sidekiq.outcome import Effect
from kiqcluster.sidekiq.payload import EXPIRES_IN, EXPIRY, Payload, seconds, stamp
from kiqcluster.store.engine.units import BeginVerdict

__all__ = ["ClientExpiry", "Expiry", "is_expired"]


class ClientExpiry:
    """The client half."""

    key = EXPIRES_IN

    def on_encode(self, _setup: Setup, push: Push, _definition: Definition | None) -> None:
        """Write when the job expires, unless its payload says so already.  Raises InvalidPush."""
        payload = push.payload
        duration = payload[EXPIRES_IN]
        if not OPTIONS[EXPIRES_IN].accepts(duration):
            raise InvalidPush(f"{EXPIRES_IN} = {duration!r} does not fit; it takes {OPTIONS[EXPIRES_IN].expected}")
        if EXPIRY not in payload:
            payload[EXPIRY] = stamp((payload["created_at"] if push.at is None else push.at) + duration)

    def on_moved_by_hand(self, payload: Payload, now: float) -> Collection[str]:
        """Return the key by which the job would be dropped: somebody wants it to run."""
        return (EXPIRY,) if is_expired(payload, now) else ()


def is_expired(payload: Payload, now: float) -> bool:
    """Return whether a job must not begin any more; a value that is no time never expires."""
    expiry = seconds(payload.get(EXPIRY))
    return expiry is not None and now >= expiry


class Expiry:
    """The server half."""

    name = EXPIRY
    keys = frozenset({EXPIRY})

    def is_used_by(self, _definition: Definition, /) -> bool:
        return False  # what counts is the payload

    def asks_ahead(self, _definition: Definition) -> bool:
        return True

    def on_begin(self, run: Run) -> Iterable[Effect] | BeginVerdict:
        """Drop a job whose time is over."""
        return BeginVerdict("drop") if is_expired(run.payload, SystemClock.now()) else ()
