"""Executions: how often jobs ran in each minute, how long it took, how often they failed.

Workers write these figures with their heartbeats (Sidekiq does since 7.0), in keys whose spelling differs between
Sidekiq 7 and 8.  Ours are in both, and in a hash of ours, so that they count once: 7's and 8's figures are added up,
less ours.

minutes   the last 8 hours, minute by minute, with histograms
hours     the last 72, by ten minutes; Sidekiq 8 and kiqcluster only, 7 does not write them

Counterpart: sidekiq metrics/query.rb.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from kiqcluster.api._store import CLOCK, store_in_force
from kiqcluster.errors import UsageError
from kiqcluster.process.clock import Clock
from kiqcluster.process.tallies import EXECUTION_BUCKETS
from kiqcluster.store import Store
from kiqcluster.store.wire import Command

__all__ = ["ExecutionCount", "ExecutionMetrics", "JobExecutions"]

MAX_PER_ROUND_TRIP = 300  # keys asked for in one round trip
MOST_MINUTES, MOST_HOURS = 480, 72  # that are kept
HISTOGRAM_BUCKETS = len(EXECUTION_BUCKETS) + 1  # the last one is for all that took longer

FIELD_SUFFIXES = ("p", "f", "ms")
BUCKET_NAMES = tuple(map(str, range(HISTOGRAM_BUCKETS)))  # of the histogram, as our hash has them

Figures = dict[str, int]  # p, f, ms or a place of the histogram → figure
Fields = dict[str, Figures]  # class → figures
KeyForm = Callable[[datetime], str]


@dataclass(frozen=True, slots=True)
class ExecutionCount:
    """What one minute, or ten, has of a job.

    processed: runs that ended.  failed: of these.  ms: milliseconds that the others took.
    histogram: how many of these took up to each of EXECUTION_BUCKETS ms, and longer; () where it was not asked for.
    """

    processed: int = 0
    failed: int = 0
    ms: int = 0
    histogram: tuple[int, ...] = ()


@dataclass(slots=True)
class JobExecutions:
    """A job over the whole time.  series: moment (UTC, when a minute or ten begin) → count, oldest first; none if 0."""

    name: str
    series: dict[datetime, ExecutionCount] = field(default_factory=dict)

    @property
    def processed(self) -> int:
        return sum(each.processed for each in self.series.values())

    @property
    def failed(self) -> int:
        return sum(each.failed for each in self.series.values())

    @property
    def ms(self) -> int:
        """Milliseconds of all runs that succeeded."""
        return sum(each.ms for each in self.series.values())

    @property
    def mean_ms(self) -> float:
        """Milliseconds that a run took which succeeded; 0 where none did."""
        succeeded = self.processed - self.failed
        return self.ms / succeeded if succeeded > 0 else 0.0

    @property
    def histogram(self) -> tuple[int, ...]:
        """How many runs took up to each of EXECUTION_BUCKETS ms, and longer; all 0 where it was not asked for."""
        shown = [each.histogram for each in self.series.values() if each.histogram]
        return tuple(map(sum, zip((0,) * HISTOGRAM_BUCKETS, *shown, strict=True)))


class ExecutionMetrics:
    """The query.  Without `minutes` and `hours` it is about the last hour.

    Raises UsageError for what is not kept so long, StoreError.
    """

    def __init__(self, *, store: Store | None = None, clock: Clock = CLOCK) -> None:
        self._store = store_in_force(store)
        self._clock = clock

    def top_jobs(
        self,
        minutes: int | None = None,
        hours: int | None = None,
        class_filter: str | re.Pattern[str] | None = None,
    ) -> dict[str, JobExecutions]:
        """Return class → its runs, those first that took the most time.

        class_filter: what a class must contain, whatever its case, or a pattern to be found in it.
        One round trip per 100 minutes, or 300 times ten minutes.
        """
        moments, forms = self._span(minutes, hours)
        is_wanted = _filter(class_filter)
        found: dict[str, JobExecutions] = {}
        for part, replies in self._ask(moments, lambda at: [("HGETALL", form(at)) for form in forms]):
            for at, told in zip(part, replies, strict=True):
                for name, figures in _joined(*map(_read, told)).items():
                    if is_wanted(name):
                        job = found.setdefault(name, JobExecutions(name))
                        job.series[at] = ExecutionCount(figures.get("p", 0), figures.get("f", 0), figures.get("ms", 0))
        return dict(sorted(found.items(), key=lambda pair: (-pair[1].ms, -pair[1].processed, pair[0])))

    def for_job(self, name: str, minutes: int | None = None, hours: int | None = None) -> JobExecutions:
        """Return the runs of a class, by minutes with histograms.

        One round trip per 60 minutes, or 300 times ten minutes.
        """
        moments, forms = self._span(minutes, hours)
        words = (*FIELD_SUFFIXES, *BUCKET_NAMES)
        fields = [f"{name}|{word}" for word in words]
        keys = self._store.keys
        histograms = [] if hours is not None else [keys.histogram, keys.histogram_7]

        def commands(at: datetime) -> list[Command]:
            return [
                *(("HMGET", form(at), *fields) for form in forms),
                *(("GET", form(name, at)) for form in histograms),
            ]

        job = JobExecutions(name)
        for part, replies in self._ask(moments, commands):
            for at, told in zip(part, replies, strict=True):
                shares: list[Fields] = []
                for reply in told[: len(forms)]:
                    counts = map(_count, reply) if isinstance(reply, list) else ()
                    shares.append({name: {word: count for word, count in zip(words, counts, strict=False) if count}})
                for share, reply in zip(shares, told[len(forms) :], strict=False):
                    share[name] |= {
                        place: count for place, count in zip(BUCKET_NAMES, _slots(reply), strict=True) if count
                    }
                if figures := _joined(*shares).get(name):
                    processed, failed, ms = (figures.get(letter, 0) for letter in FIELD_SUFFIXES)
                    places = tuple(figures.get(place, 0) for place in BUCKET_NAMES) if histograms else ()
                    job.series[at] = ExecutionCount(processed, failed, ms, places)
        return job

    def _span(self, minutes: int | None, hours: int | None) -> tuple[list[datetime], list[KeyForm]]:
        """Return the moments that are asked about, oldest first, and how their keys are spelt: of 8, of 7, and ours."""
        if minutes is not None and hours is not None:
            raise UsageError("executions are by minutes or by hours, not both")
        now = datetime.fromtimestamp(self._clock.now(), UTC).replace(second=0, microsecond=0)
        keys = self._store.keys
        if hours is not None:
            count, step = 6 * _within(hours, MOST_HOURS, "hours"), timedelta(minutes=10)
            newest = now.replace(minute=now.minute // 10 * 10)
            return [newest - step * back for back in range(count - 1, -1, -1)], [keys.executions_rollup]
        count = _within(60 if minutes is None else minutes, MOST_MINUTES, "minutes")
        moments = [now - timedelta(minutes=back) for back in range(count - 1, -1, -1)]
        return moments, [keys.executions, keys.executions_7, keys.own_executions]

    def _ask(
        self, moments: Sequence[datetime], commands: Callable[[datetime], list[Command]]
    ) -> Iterator[tuple[Sequence[datetime], list[list[Any]]]]:
        """Yield some moments at a time, with the replies for each; a refusal is among them."""
        width = len(commands(moments[0]))
        size = MAX_PER_ROUND_TRIP // width
        for start in range(0, len(moments), size):
            part = moments[start : start + size]
            with self._store.borrowed() as connection:
                replies = connection.exchange([command for at in part for command in commands(at)])
            yield part, [replies[at : at + width] for at in range(0, len(replies), width)]


def _within(value: int, most: int, unit: str) -> int:
    if not 1 <= value <= most:
        raise UsageError(f"executions are kept for 1 to {most} {unit}, not {value}")
    return value


def _filter(wanted: str | re.Pattern[str] | None) -> Callable[[str], object]:
    if wanted is None:
        return lambda _: True
    pattern = re.compile(re.escape(wanted), re.IGNORECASE) if isinstance(wanted, str) else wanted
    return pattern.search


def _read(reply: Any) -> Fields:
    """Return the figures in a hash; {} for what is none."""
    found: Fields = {}
    if isinstance(reply, list):
        for key, value in zip(reply[::2], reply[1::2], strict=True):
            name, _, letter = key.decode(errors="replace").rpartition("|")
            found.setdefault(name, {})[letter] = _count(value)
    return found


def _joined(younger: Fields, older: Fields | None = None, own: Fields | None = None) -> Fields:
    """Return the figures of each class.  own: our share, which both of the others have."""
    if older is None or own is None:
        return younger
    names = dict.fromkeys((*younger, *older))
    return {name: _total(younger.get(name, {}), older.get(name, {}), own.get(name)) for name in names}


def _total(younger: Figures, older: Figures, own: Figures | None) -> Figures:
    """Return what both forms have together, less our share, once."""
    if not own and younger == older:
        return younger  # a release of ours that kept no share
    total = {}
    for word in {*younger, *older}:
        one, other = younger.get(word, 0), older.get(word, 0)
        total[word] = max(one, other, one + other - (own or {}).get(word, 0))  # places of a histogram end at 65 535
    return total


def _slots(raw: Any) -> tuple[int, ...]:
    """Return the counts in a bitfield of 16-bit numbers, shorter where the last ones are 0."""
    raw = raw if isinstance(raw, bytes) else b""
    return struct.unpack(f">{HISTOGRAM_BUCKETS}H", raw[: 2 * HISTOGRAM_BUCKETS].ljust(2 * HISTOGRAM_BUCKETS, b"\0"))


def _count(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        return 0
