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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, NamedTuple

from kiqcluster.api._store import CLOCK, store_in_force
from kiqcluster.errors import UsageError
from kiqcluster.process.clock import Clock
from kiqcluster.process.tallies import EXECUTION_BUCKETS
from kiqcluster.store import Store
from kiqcluster.store.wire import Command

__all__ = ["ExecutionCount", "ExecutionMetrics", "JobExecutions"]

MAX_PER_ROUND_TRIP = 600  # keys asked for in one round trip
MOST_MINUTES, MOST_HOURS = 480, 72  # that are kept
HISTOGRAM_BUCKETS = len(EXECUTION_BUCKETS) + 1  # the last one is for all that took longer

MOST_COUNT = 2**63 - 1  # of a counter of Redis
SHORT_DIGITS = 18  # of a number that is less than MOST_COUNT for certain
FIELD_SUFFIXES = ("p", "f", "ms")
BUCKET_NAMES = tuple(map(str, range(HISTOGRAM_BUCKETS)))  # of the histogram, as our hash has them

Hash = Mapping[bytes, bytes]  # as Redis has it
Figures = dict[str, int]  # p, f, ms or a place of the histogram → figure
Fields = dict[str, Figures]  # class → figures
Names = dict[bytes, tuple[str, int] | None]  # field of a hash → class and place of its word, None: of a histogram
KeyForm = Callable[[datetime], str]


class ExecutionCount(NamedTuple):
    """What one minute, or ten, has of a job.

    processed: runs that ended.  failed: of these.  ms: milliseconds that the others took.
    histogram: how many of these took up to each of EXECUTION_BUCKETS ms, and longer; () where it was not asked for.
    """

    processed: int = 0
    failed: int = 0
    ms: int = 0
    histogram: tuple[int, ...] = ()


@dataclass
class JobExecutions:
    """A job over the whole time.  series: moment (UTC, when a minute or ten begin) → count, oldest first; none if 0.

    The totals are those of the series when they are first asked for.
    """

    name: str
    series: dict[datetime, ExecutionCount] = field(default_factory=dict)

    @cached_property
    def _total(self) -> ExecutionCount:
        return total_of(self.series.values())

    @property
    def processed(self) -> int:
        return self._total.processed

    @property
    def failed(self) -> int:
        return self._total.failed

    @property
    def ms(self) -> int:
        """Milliseconds of all runs that succeeded."""
        return self._total.ms

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
        One round trip per 200 minutes, or 600 times ten minutes.
        """
        moments, forms = self._span(minutes, hours)
        is_wanted = _filter(class_filter)
        found: dict[str, JobExecutions] = {}
        for at, counts in self._counts(moments, forms):
            for name, (processed, failed, ms) in counts.items():
                job = found.get(name)
                if job is None:
                    job = found[name] = JobExecutions(name)
                job.series[at] = ExecutionCount(processed, failed, ms)
        is_wanted = _filter(class_filter)
        found = {name: job for name, job in found.items() if is_wanted(name)}
        return dict(sorted(found.items(), key=lambda pair: (-pair[1].ms, -pair[1].processed, pair[0])))

    def totals(self, minutes: int | None = None, hours: int | None = None) -> dict[datetime, ExecutionCount]:
        """Return moment → the runs of all classes together, oldest first; none if 0.

        As many round trips as `top_jobs`.
        """
        moments, forms = self._span(minutes, hours)
        return {at: total_of(counts.values()) for at, counts in self._counts(moments, forms) if counts}

    def _counts(
        self, moments: Sequence[datetime], forms: Sequence[KeyForm]
    ) -> Iterator[tuple[datetime, Mapping[str, Sequence[int]]]]:
        """Yield each moment with its figures: class → p, f, ms."""
        names: Names = {}
        for part, replies in self._ask(moments, lambda at: [("HGETALL", form(at)) for form in forms]):
            for at, told in zip(part, replies, strict=True):
                yield at, _read(told, names)

    def for_job(self, name: str, minutes: int | None = None, hours: int | None = None) -> JobExecutions:
        """Return the runs of a class, by minutes with histograms.

        One round trip per 120 minutes, or 600 times ten minutes.
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
        """Yield some moments at a time, with the replies for each."""
        width = len(commands(moments[0]))
        size = MAX_PER_ROUND_TRIP // width
        for start in range(0, len(moments), size):
            part = moments[start : start + size]
            replies = self._store.read_each([command for at in part for command in commands(at)])
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


def total_of(counts: Iterable[Sequence[Any]]) -> ExecutionCount:
    """Return counts together, without their histograms."""
    processed = failed = ms = 0
    for each in counts:
        processed += each[0]
        failed += each[1]
        ms += each[2]
    return ExecutionCount(processed, failed, ms)


def _read(replies: Sequence[Any], names: Names) -> Mapping[str, Sequence[int]]:
    """Return the figures in the hashes of a moment but for histograms: class → p, f, ms.

    names: the fields that are known by now: each moment has the same ones.
    """
    hashes = [_hash(reply) for reply in replies]
    whole = _whole(*hashes)
    if whole is not None:
        return _by_class(whole, names)
    joined = _joined(*(_words(_by_class(each, names)) for each in hashes))
    return {name: [figures.get(word, 0) for word in FIELD_SUFFIXES] for name, figures in joined.items()}


def _hash(reply: Any) -> Hash:
    """Return field → value; {} for what is no hash."""
    return dict(zip(reply[::2], reply[1::2], strict=True)) if isinstance(reply, list) else {}


def _whole(younger: Hash, older: Hash | None = None, own: Hash | None = None) -> Hash | None:
    """Return the hash that has all figures already, None where figures of several must be added up.

    That is the younger form's or the older one's where the fleet writes only one of them, and either of them where all
    the figures are ours.
    """
    if not older or not younger:
        return None if own and older is not None else younger or older
    if own and younger == older and younger.items() <= own.items():
        return younger
    return None


def _by_class(figures: Hash, names: Names) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for key, value in figures.items():
        if key not in names:
            name, _, word = key.decode(errors="replace").rpartition("|")
            names[key] = (name, FIELD_SUFFIXES.index(word)) if word in FIELD_SUFFIXES else None
        if pair := names[key]:
            counts = found.get(pair[0])
            if counts is None:
                counts = found[pair[0]] = [0] * len(FIELD_SUFFIXES)
            counts[pair[1]] = int(value) if value.isdigit() and len(value) <= SHORT_DIGITS else _count(value)
    return found


def _words(counts: Mapping[str, Sequence[int]]) -> Fields:
    """Return the same figures by their words, without those that are 0."""
    return {
        name: {word: count for word, count in zip(FIELD_SUFFIXES, several, strict=True) if count}
        for name, several in counts.items()
    }


def _joined(younger: Fields, older: Fields | None = None, own: Fields | None = None) -> Fields:
    """Return the figures of each class.  own: our share, which both of the others have."""
    if older is None or own is None:
        return younger
    names = dict.fromkeys((*younger, *older))
    return {name: _total(younger.get(name, {}), older.get(name, {}), own.get(name)) for name in names}


def _total(younger: Figures, older: Figures, own: Figures | None) -> Figures:
    """Return what both forms have together, less our share, once."""
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
    """Return a counter; 0 for what Redis cannot count."""
    try:
        count = int(value)
    except (TypeError, ValueError):
        return 0
    return count if -MOST_COUNT <= count <= MOST_COUNT else 0
