"""Guarantees: what strikes, dropped jobs, suspects, rate limits and cron entries have in Redis, as metrics.

SIZE_COMMANDS      how many replies guarantee_metrics reads
size_commands      the questions that are asked with those of gauges.py, in the same round trip
guarantee_metrics  their replies as metrics
rate_metrics       rate limits; three round trips, and none where no rate limit was used lately

Strikes cost one more round trip while there are some: more than 100 can only be forged, and not all of them are read.

A key of the wrong type costs its own series, and no other.  Locks of deduplication are not counted: Redis would have
to look through all its keys (`kiqctl locks` does).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from kiqcluster.api import RateStatus, rate_limits
from kiqcluster.features.strikes import MAX_STRIKES, Strike
from kiqcluster.sidekiq.keys import Keys
from kiqcluster.store import Store
from kiqcluster.store.wire import WrongType

__all__ = ["SIZE_COMMANDS", "guarantee_metrics", "rate_metrics", "size_commands"]

SIZE_COMMANDS = 6
MAX_RATE_LIMITS = 500  # the ones used last: a name may be made of a job's arguments


def size_commands(keys: Keys) -> list[tuple[str, ...]]:
    """Return the commands whose replies `guarantee_metrics` reads."""
    return [
        ("ZCARD", keys.dropped),
        ("HLEN", keys.suspects),
        ("HSCAN", keys.strikes, "0", "COUNT", str(2 * MAX_STRIKES)),
        ("ZCARD", keys.rates),
        ("ZCARD", keys.cron_ticks),
        ("ZRANGE", keys.cron_ticks, "0", "0", "WITHSCORES"),
    ]


def guarantee_metrics(replies: Sequence[Any], now: float, store: Store) -> Iterator[Metric]:
    """Yield what the replies say.  now: epoch seconds.  Raises StoreError."""
    dropped, suspects, strikes, rates, entries, next_tick = replies
    for name, text, size in (
        ("kiqcluster_dropped_jobs_size", "Jobs that were dropped before they ran, of the last 7 days", dropped),
        ("kiqcluster_suspects_size", "Jobs that processes have died with, and that have not ended since", suspects),
        ("kiqcluster_cron_entries", "Cron entries that are enabled", entries),
    ):
        if isinstance(size, int):
            yield GaugeMetricFamily(name, text, value=size)
    if isinstance(next_tick, list):
        text = "Time since the oldest tick that no poller has taken became due"
        delay = max(0.0, now - float(next_tick[1])) if next_tick else 0.0
        yield GaugeMetricFamily("kiqcluster_cron_processing_delay_seconds", text, value=delay)
    if isinstance(strikes, list):
        found = _mapping(strikes[1])
        yield _strikes(found, _counts(store, list(found)), now)
    if isinstance(rates, int) and rates:
        try:
            statuses = rate_limits(store=store, most=MAX_RATE_LIMITS)
        except WrongType:
            return
        yield from rate_metrics(statuses)


def _strikes(strikes: dict[bytes, bytes], struck: dict[bytes, bytes], now: float) -> Metric:
    text = "Jobs that a strike has deferred or dropped; of each strike in force"
    family = CounterMetricFamily("kiqcluster_struck_jobs", text, labels=("action", "strike", "worker"))
    for identifier, raw in sorted(strikes.items()):
        try:
            strike, count = Strike.read(identifier, raw), int(struck.get(identifier, 0))
        except ValueError:
            continue
        if strike.until > now:
            family.add_metric((strike.action, strike.id, strike.name), count)
    return family


def _counts(store: Store, ids: Sequence[bytes]) -> dict[bytes, bytes]:
    """Return how many jobs each strike has struck.  One round trip, none without strikes.  Raises StoreError."""
    try:
        counts = store.call("HMGET", store.keys.struck, *ids) if ids else []
    except WrongType:  # then no strike counts anything
        return {}
    return {identifier: count for identifier, count in zip(ids, counts, strict=True) if count is not None}


def rate_metrics(statuses: Sequence[RateStatus]) -> Iterator[Metric]:
    """Yield how much of each rate limit is used."""
    used, largest, promised = (
        GaugeMetricFamily(f"kiqcluster_rate_limit_{name}", text, labels=("kind", "name"))
        for name, text in (
            ("used", "Starts in this period, room that is taken in a leaky bucket, or places held"),
            ("max", "How much may be used"),
            ("promised", "Starts that were promised a time to come"),
        )
    )
    for each in statuses:
        for family, value in ((used, each.used), (largest, each.largest), (promised, each.promised)):
            family.add_metric((each.kind, each.name), value)
    yield from (used, largest, promised)


def _mapping(flat: Any) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True)) if isinstance(flat, list) else {}
