"""Stats: the figures on the front page of Sidekiq's web UI, and what was done day by day.

Counterpart: sidekiq api.rb Stats.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from kiqcluster.api._store import CLOCK, store_in_force
from kiqcluster.api.records import JobRecord
from kiqcluster.control import process_registry
from kiqcluster.errors import UsageError
from kiqcluster.process.clock import Clock
from kiqcluster.store import Store
from kiqcluster.store.replies import broken_keys

__all__ = ["History", "Stats"]

MAX_PER_ROUND_TRIP = 500  # queues or processes asked for in one round trip
MAX_HISTORY_DAYS = 1_825  # days that counters are kept
DEFAULT_QUEUE = "default"


class Stats:
    """One look at everything: attributes, as of the moment it was made.

    Two round trips, one more for each 500 queues and processes.  Raises StoreError when it is made.
    """

    __slots__ = (
        "dead_size",
        "default_queue_latency",
        "enqueued",
        "failed",
        "processed",
        "processes_size",
        "queues",
        "retry_size",
        "scheduled_size",
        "unreadable",
        "workers_size",
    )

    processed: int  # runs that ended, ever
    failed: int
    scheduled_size: int
    retry_size: int
    dead_size: int
    enqueued: int  # jobs that wait, in all queues
    processes_size: int  # live ones
    workers_size: int  # jobs that run, by the latest heartbeats
    default_queue_latency: float  # seconds that the next job of the queue `default` has waited
    queues: dict[str, int]  # name → size, largest first
    unreadable: tuple[str, ...]  # keys of the wrong type: what they should tell counts as 0

    def __init__(self, *, store: Store | None = None, clock: Clock = CLOCK) -> None:
        store = store_in_force(store)
        keys = store.keys
        commands = [
            *(("GET", key) for key in (keys.processed, keys.failed)),
            *(("ZCARD", key) for key in (keys.schedule, keys.retry, keys.dead)),
            *(("SMEMBERS", key) for key in (keys.queues, keys.processes)),
        ]
        with broken_keys() as broken:
            processed, failed, scheduled, retry, dead, names, identities = store.read_each(commands)
            self.processed, self.failed = _count(processed), _count(failed)
            self.scheduled_size, self.retry_size, self.dead_size = _count(scheduled), _count(retry), _count(dead)
            self._look_closer(store, _names(names), _names(identities), clock.now())
        self.unreadable = tuple(broken)

    def __repr__(self) -> str:
        return f"<Stats {' '.join(f'{name}={getattr(self, name)}' for name in self.__slots__ if name != 'queues')}>"

    def _look_closer(self, store: Store, names: Sequence[str], identities: Sequence[str], now: float) -> None:
        """Ask each queue for its size and each process for what it is busy with."""
        keys = store.keys
        oldest = [("LINDEX", keys.wake(DEFAULT_QUEUE), -1), ("LINDEX", keys.queue(DEFAULT_QUEUE), -1)]
        sizes = [("LLEN", key) for name in names for key in (keys.queue(name), keys.wake(name))]
        busy = process_registry.field_commands(keys, identities, "busy")
        replies = store.read_each([*oldest, *sizes, *busy], 2 * MAX_PER_ROUND_TRIP)
        rung, waiting = replies[:2]
        raw = rung if isinstance(rung, bytes) else waiting
        self.default_queue_latency = JobRecord(raw).latency(now) if isinstance(raw, bytes) else 0.0
        counts = list(map(_count, replies[2 : 2 + len(sizes)]))
        queues = {name: counts[2 * at] + counts[2 * at + 1] for at, name in enumerate(names)}
        self.queues = dict(sorted(queues.items(), key=lambda pair: (-pair[1], pair[0])))
        self.enqueued = sum(counts)
        live = [each for each in process_registry.live_fields(replies[2 + len(sizes) :]) if each is not None]
        self.processes_size, self.workers_size = len(live), sum(map(_count, live))

    @staticmethod
    def reset(*names: str, store: Store | None = None) -> None:
        """Set the counters of all time, `processed` and `failed`, back to 0; those that are named, or both.

        One round trip.  Raises UsageError for any other name, StoreError.
        """
        store = store_in_force(store)
        by_name = {"processed": store.keys.processed, "failed": store.keys.failed}
        if unknown := set(names) - by_name.keys():
            raise UsageError(f"there is no counter {', '.join(sorted(unknown))}; there are {', '.join(by_name)}")
        store.call("MSET", *(word for name in names or by_name for word in (by_name[name], 0)))


class History:
    """Runs and failures by UTC date, newest first; days without any count 0.

    days: how many, at most 1 825.  start: the newest of them, of a datetime its day in UTC; None is today.
    One round trip, when it is made.  Raises UsageError, StoreError.
    """

    __slots__ = ("failed", "processed")

    processed: dict[date, int]
    failed: dict[date, int]

    def __init__(
        self, days: int, start: date | None = None, *, store: Store | None = None, clock: Clock = CLOCK
    ) -> None:
        if not 1 <= days <= MAX_HISTORY_DAYS:
            raise UsageError(f"a history has 1 to {MAX_HISTORY_DAYS} days, not {days}")
        store = store_in_force(store)
        newest = datetime.fromtimestamp(clock.now(), UTC) if start is None else start
        if isinstance(newest, datetime):  # which is a date to Python and to mypy
            newest = (newest.astimezone(UTC) if newest.tzinfo else newest).date()
        dates = [newest - timedelta(days=number) for number in range(days)]
        keys = store.keys
        processed, failed = store.pipeline(
            [
                ("MGET", *(keys.processed_on(day.isoformat()) for day in dates)),
                ("MGET", *(keys.failed_on(day.isoformat()) for day in dates)),
            ]
        )
        self.processed = dict(zip(dates, map(_count, processed), strict=True))
        self.failed = dict(zip(dates, map(_count, failed), strict=True))


def _names(reply: Any) -> list[str]:
    return [name.decode(errors="replace") for name in reply] if isinstance(reply, list) else []


def _count(reply: Any) -> int:
    try:
        return int(reply)
    except (TypeError, ValueError):
        return 0
