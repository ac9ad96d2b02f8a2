"""Schedules: cron expressions with a time zone, and their ticks.  Pure.

5 fields (minute, hour, day of month, month, day of week), 6 with seconds first, or a macro such as @daily; a time zone
may stand behind, as in sidekiq-cron.  Ticks are whole epoch seconds.

When clocks go forward, a tick at a time that the day skips comes at the first moment after the gap; when they go back,
a tick at a time that the day has twice comes once, the first time.  Both are so for fixed times.  A schedule whose
minute or hour begins with `*` goes on at its distance: `*/15 * * * *` has a tick every 15 minutes in every night (as in
Debian's cron).

cronsim loses ticks in some of the nights in which clocks go back, such as those of Lord Howe and Cairo.  So it only
finds the times that match the fields; this module says when the clock of a zone shows them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from math import ceil, floor
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from kiqcluster.errors import UsageError

__all__ = ["MACROS", "Schedule"]

MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
FORM = 'write 5 fields as in "0 9 * * 1-5", 6 with seconds first, or one of ' + ", ".join(MACROS)
MAX_CHARACTERS = 200
MAX_KNOWN = 20_000  # schedules that are kept parsed
FEWEST_FIELDS, MOST_FIELDS = 5, 6
DAY_SECONDS = 86_400
LONGEST_WAIT = 50 * 366 * DAY_SECONDS  # seconds; cronsim gives up after as many years
EPOCH = datetime.fromtimestamp(0, UTC)
SIZES = {"second": 60, "minute": 60, "hour": 24, "day of the month": 31, "month": 12, "day of the week": 7}


@dataclass(frozen=True, slots=True)
class Schedule:
    """An expression and the name of its time zone, "UTC" where none is given."""

    text: str
    tz: str = "UTC"
    _fields: str = field(init=False, repr=False, compare=False)
    _zone: tzinfo = field(init=False, repr=False, compare=False)
    _is_fixed: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        fields = MACROS.get(self.text.lower(), self.text).split()
        object.__setattr__(self, "_fields", " ".join(fields))
        object.__setattr__(self, "_zone", _zone(self.tz))
        _read(self._fields)
        minute, hour = fields[-5:-3]
        object.__setattr__(self, "_is_fixed", not minute.startswith("*") and not hour.startswith("*"))

    @staticmethod
    def parse(text: object, tz: object = None) -> Schedule:
        """Return the schedule of an expression.  Raises UsageError that says what is wrong with it.

        tz: name of a time zone; "" or None for the one that stands behind the fields, else UTC.
        """
        if not isinstance(text, str) or not text.strip() or len(text) > MAX_CHARACTERS:
            raise UsageError(f"{str(text)[:MAX_CHARACTERS]!r} is not a schedule; {FORM}")
        if tz is not None and not isinstance(tz, str):
            raise UsageError(f"tz = {tz!r} is not a time zone; write a name such as Europe/Berlin")
        return _parsed(" ".join(text.split()), tz or "")

    def check_steps(self) -> None:
        """Raise UsageError for a step that is wider than its field, such as */120 of minutes, which is hourly.

        For what an application declares; entries that are stored already are read all the same.
        """
        fields = MACROS.get(self.text.lower(), self.text).split()
        for values, (name, size) in zip(fields, list(SIZES.items())[-len(fields) :], strict=True):
            for part in values.split(","):
                step = part.partition("/")[2]
                if step.isdecimal() and int(step) > size:
                    raise UsageError(
                        f"{self.text!r} has the step {step} for the {name}, which has only {size} values, so "
                        'only the first one would have a tick; write a larger unit, as "0 */2 * * *" for two hours'
                    )

    def after(self, moment: float) -> Iterator[int]:
        """Yield the ticks later than an epoch second, in order."""
        latest = floor(moment)
        for tick in self._ticks(latest, 1):
            if tick > latest:
                latest = tick
                yield tick

    def before(self, moment: float) -> Iterator[int]:
        """Yield the ticks earlier than an epoch second, the latest first."""
        earliest = ceil(moment)
        for tick in self._ticks(earliest, -1):
            if tick < earliest:
                earliest = tick
                yield tick

    def next(self, moment: float) -> int:
        """Return the first tick later than an epoch second.  Raises UsageError when there is none for 50 years."""
        tick = next(self.after(moment), None)
        if tick is None:
            raise UsageError(f"{self.text!r} has no tick within 50 years; {FORM}")
        return tick

    def _ticks(self, moment: int, step: int) -> Iterator[int]:
        """Yield ticks, forwards (step 1) or backwards (-1).  The first ones may be on the other side of the moment."""
        return self._at_fixed_times(moment, step) if self._is_fixed else self._at_a_distance(moment, step)

    def _at_fixed_times(self, moment: int, step: int) -> Iterator[int]:
        """Yield one tick for each time, and the same one again for a time of the same gap."""
        if step > 0:
            # Times in a gap that have seconds may have their ticks within the minute after it.
            start = _clock(moment - 60, self._zone)
        else:
            # The first showing of a later time may lie before the second showing of this one.
            start = _clock(moment, self._zone)
            first, second = _shown_at(start, self._zone)
            start += timedelta(seconds=max(second - first, 0))
        for local in CronSim(self._fields, start, reverse=step < 0):
            first, second = _shown_at(local, self._zone)
            if first > second:
                first = (_change(second, first, self._zone) or first) + local.second
            yield first

    def _at_a_distance(self, moment: int, step: int) -> Iterator[int]:
        """Yield a tick for each showing of a time.  Between two changes of the clock, its offset stays."""
        change: int | None = moment + step
        # All its times may be times that the clock skips.
        while change is not None and abs(change - moment) < LONGEST_WAIT:
            start, change = change, None
            clock = _clock(start, self._zone)
            ahead = clock - _clock(start, UTC)
            for local in CronSim(self._fields, clock - timedelta(seconds=step), reverse=step < 0):
                tick = int((local - ahead).replace(tzinfo=UTC).timestamp())
                change = _change(start, tick, self._zone)
                if change is not None:
                    break
                start = moment = tick
                yield tick

    def in_words(self) -> str:
        """Return the fields as an English sentence, "" where there is none for them."""
        try:
            return CronSim(MACROS.get(self.text.lower(), self.text), EPOCH).explain()
        except (CronSimError, ValueError, LookupError):
            return ""

    def __str__(self) -> str:
        return self.text if self.tz == "UTC" else f"{self.text} {self.tz}"


@lru_cache(MAX_KNOWN)
def _parsed(text: str, tz: str) -> Schedule:
    words = text.split()
    if len(words) > 1 and _is_zone(words[-1]):
        own = words.pop()
        if tz and tz != own:
            raise UsageError(f"{text!r} names the time zone {own}, and tz is {tz!r}; leave one out")
        tz = own
    if (
        (len(words) == 1 and words[0].lower() not in MACROS)
        or 1 < len(words) < FEWEST_FIELDS
        or len(words) > MOST_FIELDS
    ):
        raise UsageError(f"{text!r} is not a schedule; {FORM}")
    schedule = Schedule(" ".join(words), tz or "UTC")
    schedule.next(0.0)
    return schedule


def _read(fields: str) -> CronSim:
    try:
        return CronSim(fields, EPOCH)
    except CronSimError as error:
        raise UsageError(f"{fields!r} is not a schedule ({str(error).lower()}); {FORM}") from error


def _clock(moment: int, zone: tzinfo) -> datetime:
    """Return the time that the clock of a zone shows at an epoch second, without its zone."""
    return (EPOCH + timedelta(seconds=moment)).astimezone(zone).replace(tzinfo=None, fold=0)


def _shown_at(local: datetime, zone: tzinfo) -> tuple[int, int]:
    """Return the epoch seconds at which the clock of a zone shows a time: the first and the second.

    They are equal unless the clock changes.  Where it skips the time, the first is later than the change, the second
    earlier.
    """
    first, second = local.replace(tzinfo=zone, fold=0), local.replace(tzinfo=zone, fold=1)
    return int(first.timestamp()), int(second.timestamp())


def _change(start: int, stop: int, zone: tzinfo) -> int | None:
    """Return the first second from start to stop, in either direction, whose offset from UTC is not that of start."""

    def is_other(second: int) -> bool:
        return datetime.fromtimestamp(second, zone).utcoffset() != offset

    offset = datetime.fromtimestamp(start, zone).utcoffset()
    step = 1 if stop > start else -1
    while start != stop:
        # No zone has two changes within a day.
        end = start + step * min(abs(stop - start), DAY_SECONDS)
        if is_other(end):
            seconds = range(start, end + step, step)
            return seconds[bisect_left(seconds, True, key=is_other)]
        start = end
    return None


def _zone(name: str) -> tzinfo:
    """Return a time zone.  Raises UsageError."""
    if name in ("UTC", "Etc/UTC"):
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        remedy = "write a name such as Europe/Berlin"
        if not available_timezones():
            remedy = "this system has no time zones: pip install tzdata"
        raise UsageError(f"{name!r} is not a time zone; {remedy}") from error


def _is_zone(word: str) -> bool:
    """Return whether the last word of an expression is a time zone, and not its last field."""
    if not word[0].isalpha() or "," in word or (len(word) <= len("MON-FRI") and not {"/", "T"} & set(word[1:-1])):
        return word in ("UTC", "GMT", "Zulu")
    try:
        _zone(word)
    except UsageError:
        return False
    return True
