"""Batches: how many have not ended, as metrics; whoever makes their jobs may have died.

Redis lists the youngest 10 000 batches.  A look reads the ids of the youngest 500 and of 500 older ones, the next ones
at each look; then four fields of those that are not known to be complete.  So a look costs 1 000 small reads at most,
however many batches there are, and an older batch is looked at again with every 20th look at the latest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from kiqcluster.sidekiq.payload import seconds
from kiqcluster.store import Store

__all__ = ["BatchLooks"]

PAGE_SIZE = 500  # batches
LEFT_OPEN_SECONDS = 3_600  # after which a batch that is still open is taken for one whose creator has died
STATES = ("open", "running", "cancelled")
FIELDS = ("created_at", "is_open", "cancelled_at", "completed_at")


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that has not ended.  state: one of STATES.  created_at: epoch seconds."""

    state: str
    created_at: float


class BatchLooks:
    """Looks at the batches of a Redis, and remembers what it has seen."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[bytes, Batch | None] = {}  # by id; None for one that is complete, which stays so
        self._seen: set[bytes] = set()  # since the first page of older ones
        self._start = PAGE_SIZE  # of the next page

    def read(self, count: object, now: float) -> list[Metric]:
        """Return the metrics of this moment.  count: of the batches that Redis lists, as it says.  now: epoch seconds.

        Two round trips, three where more than 500 batches are read; none without batches.  Raises StoreError.
        """
        if not isinstance(count, int):  # the list has a wrong type
            return []
        if count:
            self._look()
        else:
            self._known.clear()
        return list(self._metrics(now))

    def _look(self) -> None:
        key, last = self._store.keys.batches, self._start + PAGE_SIZE - 1
        pages = self._store.read_each([("ZREVRANGE", key, 0, PAGE_SIZE - 1), ("ZREVRANGE", key, self._start, last)])
        youngest, older = (page if isinstance(page, list) else [] for page in pages)
        ids = list(dict.fromkeys([*youngest, *older]))
        self._read([each for each in ids if self._known.get(each, True) is not None])
        self._seen.update(ids)
        self._start += PAGE_SIZE
        if len(older) < PAGE_SIZE:  # the last page; what was on none of them is not listed any more
            self._known = {each: batch for each, batch in self._known.items() if each in self._seen}
            self._seen, self._start = set(), PAGE_SIZE

    def _read(self, ids: Sequence[bytes]) -> None:
        batch = self._store.keys.batch
        commands = [("HMGET", batch(each.decode(errors="replace")), *FIELDS) for each in ids]
        self._known.update(zip(ids, map(_batch, self._store.read_each(commands, PAGE_SIZE)), strict=True))

    def _metrics(self, now: float) -> Iterator[Metric]:
        batches = [batch for batch in self._known.values() if batch is not None]
        counts = Counter(batch.state for batch in batches)
        if self._known:
            family = GaugeMetricFamily("kiqcluster_batches", "Batches that have not ended", labels=("state",))
            for state in STATES:
                family.add_metric((state,), counts[state])
            yield family
        left = sum(batch.state == "open" and now - batch.created_at > LEFT_OPEN_SECONDS for batch in batches)
        text = "Batches that have been open for more than an hour: their creators may have died"
        yield GaugeMetricFamily("kiqcluster_batches_left_open", text, value=left)


def _batch(reply: object) -> Batch | None:
    """Return a batch that has not ended, None for one that has, has expired, or is none."""
    if not isinstance(reply, list):
        return None
    created_at, is_open, cancelled_at, completed_at = reply
    if created_at is None or completed_at is not None:
        return None
    state = "cancelled" if cancelled_at is not None else "open" if is_open == b"1" else "running"
    return Batch(state, _time(created_at))


def _time(raw: bytes) -> float:
    """Return a time in Redis, epoch seconds; infinity for what is none, so that nothing seems to be old."""
    try:
        found = seconds(float(raw))
    except ValueError:
        found = None
    return float("inf") if found is None else found
