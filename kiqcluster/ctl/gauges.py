"""Gauges: what lies in Redis, as metrics under gitlab-exporter's names.

1. sizes      of the sets, counters, the names of the queues                    one round trip
2. fleet      who is there, what they listen to                                 two, and one more per 500 processes
3. queues     how long, how late; paused, listened to                           one per 500 queues

Nothing is read whole: of a queue its length and its oldest job, of a set its size and its first entry.  Ruby's queues
read like ours.  A key of the wrong type costs its own series, and no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from kiqcluster import rubyjson
from kiqcluster.fleet import Process, processes
from kiqcluster.payload import seconds
from kiqcluster.store import Store

__all__ = ["look"]

BATCH = 500  # queues asked for in one round trip
DEFAULT_QUEUE = "default"
SORTED_SETS = ("schedule", "retry", "dead")


@dataclass(frozen=True, slots=True)
class Queue:
    """size: jobs that wait.  waited, age: of the one to be fetched next, seconds in its queue and since its making.

    None for what cannot be read.
    """

    size: int | None
    waited: float | None
    age: float | None


def look(store: Store, now: float) -> list[Metric]:
    """Return the metrics of this moment.  now: epoch seconds.  Raises StoreError."""
    sizes = _Sizes(store, now)
    fleet = processes(store)
    listened = {name for process in fleet for name in process.queues}
    names = sorted(sizes.queues | listened)
    queues = dict(_read_queues(store, names, now))
    return [*sizes.metrics(now), *_fleet_metrics(fleet), *_queue_metrics(queues, listened, sizes.paused)]


# 1. sizes


class _Sizes:
    """What one round trip brings."""

    def __init__(self, store: Store, now: float) -> None:
        keys = store.keys
        commands: list[tuple[str, ...]] = [
            ("SMEMBERS", keys.queues),
            ("SMEMBERS", keys.paused),
            ("GET", keys.processed),
            ("GET", keys.failed),
            *(("ZCARD", key) for key in (keys.schedule, keys.retry, keys.dead)),
        ]
        for key in (keys.schedule, keys.retry):
            commands += [("ZCOUNT", key, "-inf", repr(now)), ("ZRANGE", key, "0", "0", "WITHSCORES")]
        with store.borrowed() as link:
            replies = link.exchange(commands)
        self.queues, self.paused = _names(replies[0]), _names(replies[1])
        self._totals = replies[2:4]
        self._cards = dict(zip(SORTED_SETS, replies[4:7], strict=True))
        self._due = dict(zip(SORTED_SETS, zip(replies[7::2], replies[8::2], strict=True), strict=False))

    def metrics(self, now: float) -> Iterator[Metric]:
        for name, text, value in zip(
            ("sidekiq_jobs_processed", "sidekiq_stat_failed"),
            ("Jobs that were ever run", "Jobs that ever failed"),
            self._totals,
            strict=True,
        ):
            if (total := _integer(value or b"0")) is not None:
                yield CounterMetricFamily(name, text, value=total)
        for name, card in self._cards.items():
            word = "scheduled" if name == "schedule" else name
            if isinstance(card, int):
                yield GaugeMetricFamily(f"sidekiq_jobs_{word}_size", f"Entries of the {name} set", value=card)
        for name, (due, first) in self._due.items():
            if not (isinstance(due, int) and isinstance(first, list)):
                continue
            late = max(0.0, now - float(first[1])) if due and first else 0.0
            text = f"Seconds by which the most overdue entry of the {name} set is late: how late the poller is"
            yield GaugeMetricFamily(f"sidekiq_{name}_set_processing_delay_seconds", text, value=late)
            text = f"Entries of the {name} set that are due, and not in their queue yet"
            yield GaugeMetricFamily(f"sidekiq_{name}_set_backlog_size", text, value=due)


# 2. fleet


def _fleet_metrics(fleet: Sequence[Process]) -> Iterator[Metric]:
    yield GaugeMetricFamily("sidekiq_processes_size", "Worker processes, Ruby's among them", value=len(fleet))
    busy = sum(process.busy for process in fleet)
    yield GaugeMetricFamily("sidekiq_workers_size", "Jobs that run, by the latest beats", value=busy)


# 3. queues


def _read_queues(store: Store, names: Sequence[str], now: float) -> Iterator[tuple[str, Queue]]:
    keys = store.keys
    for at in range(0, len(names), BATCH):
        batch = names[at : at + BATCH]
        commands: list[tuple[str, ...]] = []
        for name in batch:
            # What has rung a bell is fetched first; with no worker there, it lies in the wake list.
            for key in (keys.wake(name), keys.queue(name)):
                commands += [("LLEN", key), ("LINDEX", key, "-1")]
        with store.borrowed() as link:
            replies = link.exchange(commands)
        for number, name in enumerate(batch):
            yield name, _read_queue(replies[4 * number : 4 * number + 4], now)


def _read_queue(replies: Sequence[Any], now: float) -> Queue:
    rung, rung_first, waiting, first = replies
    if not isinstance(rung, int) or not isinstance(waiting, int):
        return Queue(None, None, None)
    oldest = rung_first if rung else first
    if not isinstance(oldest, bytes):
        return Queue(rung + waiting, 0.0, 0.0)
    times = _times(oldest)
    waited, age = (None if at is None else max(0.0, now - at) for at in times)
    return Queue(rung + waiting, waited, age)


def _times(raw: bytes) -> tuple[float | None, float | None]:
    """Return when a job was enqueued and made, epoch seconds, as far as it says so."""
    try:
        payload = rubyjson.decode(raw)
    except rubyjson.Undecodable:
        return None, None
    if not isinstance(payload, dict):
        return None, None
    made = seconds(payload.get("created_at"))
    enqueued = seconds(payload.get("enqueued_at"))
    return (made if enqueued is None else enqueued), (enqueued if made is None else made)


def _queue_metrics(queues: Mapping[str, Queue], listened: set[str], paused: set[str]) -> Iterator[Metric]:
    size, latency, age, is_paused, unlistened = (
        GaugeMetricFamily(name, text, labels=("name",))
        for name, text in (
            ("sidekiq_queue_size", "Jobs that wait in a queue"),
            ("sidekiq_queue_latency_seconds", "Seconds that the job which is fetched next has waited in its queue"),
            ("kiqcluster_queue_oldest_job_age_seconds", "Seconds since that job was made; it may have been scheduled"),
            ("sidekiq_queue_paused", "Whether a queue is paused"),
            ("kiqcluster_queue_unlistened", "Whether no process listens to a queue"),
        )
    )
    for name, queue in queues.items():
        for family, value in ((size, queue.size), (latency, queue.waited), (age, queue.age)):
            if value is not None:
                family.add_metric((name,), value)
        is_paused.add_metric((name,), name in paused)
        unlistened.add_metric((name,), name not in listened)
    total = sum(queue.size or 0 for queue in queues.values())
    yield GaugeMetricFamily("sidekiq_jobs_enqueued_size", "Jobs that wait in all queues", value=total)
    default = queues.get(DEFAULT_QUEUE)
    if default is None or default.waited is not None:
        waited = 0.0 if default is None or default.waited is None else default.waited
        text = "sidekiq_queue_latency_seconds of the queue default"
        yield GaugeMetricFamily("sidekiq_default_queue_latency_seconds", text, value=waited)
    yield from (size, latency, age, is_paused, unlistened)


def _names(reply: Any) -> set[str]:
    members: Iterable[bytes] = reply if isinstance(reply, list) else ()
    return {name.decode(errors="replace") for name in members}


def _integer(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None
