"""Deploy marks: when what was released, drawn as lines over Sidekiq's metrics.

Counterpart: sidekiq deploy.rb.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from kiqcluster.api._store import CLOCK, store_in_force
from kiqcluster.errors import StoreError, UsageError
from kiqcluster.process.clock import Clock
from kiqcluster.store import Store

__all__ = ["Mark", "mark", "marks"]

MARK_DAYS = 90  # that a mark is kept (sidekiq deploy.rb)
MARK_LOCK_TTL_SECONDS = 60  # seconds in which a label is marked once, however many say it (sidekiq deploy.rb)
FORMAT = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True)
class Mark:
    """at: the minute of a deploy, UTC."""

    at: datetime
    label: str


def mark(label: str, at: datetime | None = None, *, store: Store | None = None, clock: Clock = CLOCK) -> bool:
    """Mark a deploy; return whether this is its first mark: a label is marked once a minute, however many ask.

    at: aware; None is now.  A minute has one mark, the first.  Two round trips.  Raises StoreError.
    """
    store = store_in_force(store)
    moment = _aware(at, "at").astimezone(UTC) if at is not None else _now(clock)
    minute = moment.replace(second=0, microsecond=0)
    stamp, key = minute.strftime(FORMAT), store.keys.deploys(f"{minute:%Y%m%d}")
    if not store.call("SET", store.keys.deploy_lock(label), stamp, "NX", "EX", MARK_LOCK_TTL_SECONDS):
        return False
    try:
        store.transaction([("HSETNX", key, stamp, label), ("EXPIRE", key, MARK_DAYS * 86_400)])
    except StoreError:
        with suppress(StoreError):  # whoever tries again must not be told that it is marked
            store.call("DEL", store.keys.deploy_lock(label))
        raise
    return True


def marks(since: datetime | None = None, *, store: Store | None = None, clock: Clock = CLOCK) -> list[Mark]:
    """Return the marks since a moment, oldest first.

    since: aware; None is as far back as they are kept, 90 days.  One round trip.  Raises StoreError.
    """
    store = store_in_force(store)
    now = _now(clock)
    oldest = now - timedelta(days=MARK_DAYS)
    first = max(_aware(since, "since").astimezone(UTC), oldest) if since is not None else oldest
    days = [first.date() + timedelta(days=number) for number in range((now.date() - first.date()).days + 2)]
    replies = store.read_each([("HGETALL", store.keys.deploys(f"{day:%Y%m%d}")) for day in days])
    found = []
    for flat in replies:
        if not isinstance(flat, list):  # a day that is not a hash has no marks
            continue
        for stamp, label in zip(flat[::2], flat[1::2], strict=True):
            at = _read(stamp)
            if at is not None and at >= first:
                found.append(Mark(at, label.decode(errors="replace")))
    return sorted(found, key=lambda each: each.at)


def _now(clock: Clock) -> datetime:
    return datetime.fromtimestamp(clock.now(), UTC)


def _aware(moment: datetime, name: str) -> datetime:
    if moment.tzinfo is None:
        raise UsageError(f"{name} has no time zone; write datetime(…, tzinfo=UTC)")
    return moment


def _read(stamp: bytes) -> datetime | None:
    try:
        return datetime.strptime(stamp.decode(), FORMAT).replace(tzinfo=UTC)
    except ValueError:  # somebody else's field
        return None
