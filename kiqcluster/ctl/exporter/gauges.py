"""Gauges: what lies in Redis, as metrics under gitlab-exporter's names.

1. ask      sizes, names, and at once of everybody and everything that was there at the look before: one round trip
2. ask on   of the processes that are new, then of the queues that are, then of parked jobs and held places: one more
            each, if there are any
3. tell     sizes, fleet, queues, limits; strikes, rates and others are told by guarantees.py, batches by batches.py

A round trip asks of 500 at most.  Nothing is read whole: of a queue its length and its oldest job, of a set its size
and its first entry.  Ruby's queues read like ours.  A key of the wrong type costs its own series, and no other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from kiqcluster.control import process_registry
from kiqcluster.control.process_registry import RegisteredProcess, read_process
from kiqcluster.ctl.exporter import guarantees
from kiqcluster.ctl.exporter.batches import BatchLooks
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.keys import Keys
from kiqcluster.sidekiq.payload import seconds
from kiqcluster.store import Store
from kiqcluster.store.limits.parking import held_sets, name_of, override_of

__all__ = ["Gauges"]

MAX_PER_ROUND_TRIP = 500  # queues and processes asked of in one round trip
DEFAULT_QUEUE = "default"
SORTED_SETS = ("schedule", "retry", "dead")

RedisCommand = tuple[str, ...]  # a command


class Subject(NamedTuple):
    """Who or what is asked of.  questions: about one of that name."""

    commands: Callable[[Keys, str], list[RedisCommand]]
    name: str


@dataclass(frozen=True, slots=True)
class Queue:
    """size: jobs that wait.  waited, age: of the one to be fetched next, seconds in its queue and since its making.

    None for what cannot be read.
    """

    size: int | None
    waited: float | None
    age: float | None


class Gauges:
    """Looks at a Redis, and remembers who and what was there."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: list[Subject] = []
        self._batches = BatchLooks(store)

    def read(self, now: float) -> list[Metric]:
        """Return the metrics of this moment.  now: epoch seconds.  Raises StoreError.

        One round trip, if nobody and nothing is new and there are at most 500 of them; three more where rate limits
        were used lately, and where there are batches.
        """
        replies_by_subject: dict[Subject, list[Any]] = {}
        sizes = _Sizes(
            self._query(replies_by_subject, self._known[:MAX_PER_ROUND_TRIP], _size_commands(self._store.keys, now))
        )
        members = [Subject(process_registry.read_commands, name) for name in sorted(sizes.processes)]
        self._query_missing(replies_by_subject, members)
        read_arguments = (
            (member.name, replies_by_subject[member][0], replies_by_subject[member][1]) for member in members
        )
        read = (read_process(*each) for each in read_arguments)
        processes = [each for each in read if each is not None]
        served = {name for process in processes for name in process.queues}
        lists = [Subject(_queue_commands, name) for name in sorted(sizes.queues | served)]
        self._query_missing(replies_by_subject, lists)
        lines = [Subject(_line_commands, name) for name in sorted(sizes.lines)]
        places = [Subject(_place_commands, name) for name in sorted(sizes.processes)] if sizes.limits else []
        self._query_missing(replies_by_subject, [*lines, *places])
        self._known = [*members, *lists, *lines, *places]
        queues = {each.name: _read_queue(replies_by_subject[each], now) for each in lists}
        parked, held = _parked(replies_by_subject, lines), _held(replies_by_subject, places)
        if any(each.omitted_queues for each in processes):  # they may listen to any
            served |= queues.keys()
        return [
            *sizes.metrics(now),
            *_fleet_metrics(processes),
            *_queue_metrics(queues, served, sizes.paused),
            *_limit_metrics(self._store.keys, sizes.limits, now, parked, held),
            *guarantees.guarantee_metrics(sizes.guarantees, now, self._store),
            *self._batches.read(sizes.batches, now),
        ]

    def _query_missing(self, replies_by_subject: dict[Subject, list[Any]], subjects: Iterable[Subject]) -> None:
        missing = iter([each for each in subjects if each not in replies_by_subject])
        while batch := list(islice(missing, MAX_PER_ROUND_TRIP)):
            self._query(replies_by_subject, batch, [])

    def _query(
        self, replies_by_subject: dict[Subject, list[Any]], subjects: Sequence[Subject], first: list[RedisCommand]
    ) -> list[Any]:
        """Add what is said of each to `heard`; return the replies to the questions that come first.  One round trip."""
        asked = [each.commands(self._store.keys, each.name) for each in subjects]
        replies = iter(self._store.read_each([*first, *chain.from_iterable(asked)]))
        answers = list(islice(replies, len(first)))
        replies_by_subject.update(
            {each: list(islice(replies, len(commands))) for each, commands in zip(subjects, asked, strict=True)}
        )
        return answers


# sizes


def _size_commands(keys: Keys, now: float) -> list[RedisCommand]:
    commands: list[RedisCommand] = [
        *(("SMEMBERS", key) for key in (keys.queues, keys.paused, keys.processes)),
        *(("GET", key) for key in (keys.processed, keys.failed)),
        *(("ZCARD", key) for key in (keys.schedule, keys.retry, keys.dead)),
        ("HGETALL", keys.limits),
        ("SMEMBERS", keys.parked_sets),
        ("HGETALL", keys.deduplicated),
        ("ZCARD", keys.batches),
        *guarantees.size_commands(keys),
    ]
    for key in (keys.schedule, keys.retry):
        commands += [("ZCOUNT", key, "-inf", repr(now)), ("ZRANGE", key, "0", "0", "WITHSCORES")]
    return commands


class _Sizes:
    """What the replies to these say."""

    def __init__(self, replies: Sequence[Any]) -> None:
        self.queues, self.paused, self.processes = map(_names, replies[:3])
        self._totals = replies[3:5]
        self._cards = dict(zip(SORTED_SETS, replies[5:8], strict=True))
        flat = replies[8] if isinstance(replies[8], list) else []
        self.limits: dict[bytes, bytes] = dict(zip(flat[::2], flat[1::2], strict=True))
        self.lines = _names(replies[9])
        self._deduplicated = replies[10]
        self.batches = replies[11]
        first_due = 12 + guarantees.SIZE_COMMANDS
        self.guarantees, due = replies[12:first_due], replies[first_due:]
        self._due = dict(zip(SORTED_SETS, zip(due[::2], due[1::2], strict=True), strict=False))

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
        yield self._dropped_pushes()
        for name, (due, first) in self._due.items():
            if not (isinstance(due, int) and isinstance(first, list)):
                continue
            late = max(0.0, now - float(first[1])) if due and first else 0.0
            text = f"Seconds by which the most overdue entry of the {name} set is late: how late the poller is"
            yield GaugeMetricFamily(f"sidekiq_{name}_set_processing_delay_seconds", text, value=late)
            text = f"Entries of the {name} set that are due, and not in their queue yet"
            yield GaugeMetricFamily(f"sidekiq_{name}_set_backlog_size", text, value=due)

    def _dropped_pushes(self) -> Metric:
        text = "Pushes that were dropped because an equal job held the lock of deduplication"
        family = CounterMetricFamily("kiqcluster_jobs_deduplicated", text, labels=("worker",))
        flat = self._deduplicated if isinstance(self._deduplicated, list) else []
        for name, value in zip(flat[::2], flat[1::2], strict=True):
            if (total := _integer(value)) is not None:
                family.add_metric((name.decode(errors="replace"),), total)
        return family


# fleet


def _fleet_metrics(processes: Sequence[RegisteredProcess]) -> Iterator[Metric]:
    yield GaugeMetricFamily("sidekiq_processes_size", "Worker processes, Ruby's among them", value=len(processes))
    busy = sum(process.busy for process in processes)
    yield GaugeMetricFamily("sidekiq_workers_size", "Jobs that run, by the latest beats", value=busy)
    ours = [process for process in processes if process.is_ours]
    help_text = "Worker processes by the digest of their routing rules, empty for none"
    yield from _by_digest("kiqcluster_routing_processes", help_text, (process.routing for process in ours))
    help_text = "Worker processes by the digest of their map of shards, empty for none"
    yield from _by_digest("kiqcluster_shard_map_processes", help_text, (process.shards for process in ours))


def _by_digest(name: str, help_text: str, digests: Iterable[str]) -> Iterator[Metric]:
    """Yield the number of processes of each digest; nothing where no process has one."""
    counts = Counter(digests)
    if any(counts):
        family = GaugeMetricFamily(name, help_text, labels=["digest"])
        for digest in sorted(counts):
            family.add_metric([digest], counts[digest])
        yield family


# queues


def _queue_commands(keys: Keys, name: str) -> list[RedisCommand]:
    # What has rung a bell is fetched first; with no worker there, it lies in the wake list.
    lists = keys.wake(name), keys.queue(name)
    return [question for key in lists for question in (("LLEN", key), ("LINDEX", key, "-1"))]


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
        payload = ruby_json.decode(raw)
    except ruby_json.Undecodable:
        return None, None
    if not isinstance(payload, dict):
        return None, None
    made = seconds(payload.get("created_at"))
    enqueued = seconds(payload.get("enqueued_at"))
    return (made if enqueued is None else enqueued), (enqueued if made is None else made)


def _queue_metrics(queues: Mapping[str, Queue], served: set[str], paused: set[str]) -> Iterator[Metric]:
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
        unlistened.add_metric((name,), name not in served)
    total = sum(queue.size or 0 for queue in queues.values())
    yield GaugeMetricFamily("sidekiq_jobs_enqueued_size", "Jobs that wait in all queues", value=total)
    default = queues.get(DEFAULT_QUEUE)
    if default is None or default.waited is not None:
        waited = 0.0 if default is None or default.waited is None else default.waited
        text = "sidekiq_queue_latency_seconds of the queue default"
        yield GaugeMetricFamily("sidekiq_default_queue_latency_seconds", text, value=waited)
    yield from (size, latency, age, is_paused, unlistened)


# limits


def _line_commands(keys: Keys, slots: str) -> list[RedisCommand]:
    return [("ZCARD", keys.parked(slots))]


def _place_commands(keys: Keys, identity: str) -> list[RedisCommand]:
    return [("HVALS", keys.held(identity))]


def _parked(replies_by_subject: Mapping[Subject, list[Any]], lines: Sequence[Subject]) -> dict[str, int]:
    """Return set of places → jobs parked for it."""
    return {each.name: int(size) for each in lines if isinstance(size := replies_by_subject[each][0], int)}


def _held(replies_by_subject: Mapping[Subject, list[Any]], places: Sequence[Subject]) -> Counter[str]:
    """Return set of places → how many of its places are held."""
    rows = (row for each in places for row in _values(replies_by_subject[each][0]))
    return Counter(slots for row in rows for slots in held_sets(row))


def _limit_metrics(
    keys: Keys, limits: Mapping[bytes, bytes], now: float, parked: Mapping[str, int], held: Mapping[str, int]
) -> Iterator[Metric]:
    """Yield what is known of each class with a limit, all its keys together; GitLab's names.

    now: by this host's clock; an override may end a moment earlier or later.
    """
    waiting, running, largest = (
        GaugeMetricFamily(f"sidekiq_concurrency_limit_{name}", text, labels=("worker",))
        for name, text in (
            ("queue_jobs", "Jobs that are parked until a place of their limit is free"),
            ("current_concurrent_jobs", "Jobs that hold a place of their limit"),
            ("max_concurrent_jobs", "The limit in force, of each key; 0 is none, less than 0 lets nothing run"),
        )
    )
    words = {name.decode(errors="replace"): value for name, value in limits.items()}
    for name in sorted(name for name in words if not name.endswith("|override")):
        for family, counts in ((waiting, parked), (running, held)):
            family.add_metric((name,), sum(n for slots, n in counts.items() if name_of(keys, slots)[0] == name))
        override = override_of(words.get(f"{name}|override"), now)
        limit = _integer(words[name]) if override is None else override[0]
        if limit is not None:
            largest.add_metric((name,), limit)
    if words:
        yield from (waiting, running, largest)


def _values(reply: Any) -> list[bytes]:
    return reply if isinstance(reply, list) else []


def _names(reply: Any) -> set[str]:
    members: Iterable[bytes] = reply if isinstance(reply, list) else ()
    return {name.decode(errors="replace") for name in members}


def _integer(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None
