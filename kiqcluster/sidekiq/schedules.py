"""Schedules: cron expressions with a time zone, and their ticks.  Pure.

5 fields (minute, hour, day of month, month, day of week), 6 with seconds first, or a macro such as @daily; a time zone
may stand behind, as in sidekiq-cron.  Ticks are whole epoch seconds.

When clocks go forward, a tick at a time that the day skips comes at the first moment after the gap; when they go back,
a tick at a time that the day has twice comes once, the first time.  Both are so for fixed times.  A schedule whose
minute or hour begins with `*` goes on at its distance: `*/15 * * * *` has a tick every 15 minutes in every night (as in
Debian's cron).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
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
SIZES = {"second": 60, "minute": 60, "hour": 24, "day of the month": 31, "month": 12, "day of the week": 7}


@dataclass(frozen=True, slots=True)
class Schedule:
    """An expression and the name of its time zone, "UTC" where none is given."""

    text: str
    tz: str = "UTC"
    _fields: str = field(init=False, repr=False, compare=False)
    _zone: tzinfo = field(init=False, repr=False, compare=False)
    _seconds: tuple[int, ...] = field(init=False, repr=False, compare=False)  # within a minute; () to ask cronsim

    def __post_init__(self) -> None:
        fields = MACROS.get(self.text.lower(), self.text).split()
        zone = _zone(self.tz)
        object.__setattr__(self, "_zone", zone)
        # cronsim keeps its rule for fixed times to 5 fields; the seconds within such a minute are easily counted here.
        parsed = _read(" ".join(fields))
        is_fixed = len(fields) == MOST_FIELDS and not fields[1].startswith("*") and not fields[2].startswith("*")
        seconds = tuple(sorted(parsed.seconds)) if is_fixed and zone is not UTC else ()
        object.__setattr__(self, "_seconds", seconds)
        object.__setattr__(self, "_fields", " ".join(fields[1:] if seconds else fields))

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
        if not self._seconds:
            yield from _ticks(self._fields, moment, self._zone)
            return
        # The minute of the moment may have further ticks.
        for minute in _ticks(self._fields, moment // 60 * 60 - 1, self._zone):
            yield from (minute + second for second in self._seconds if minute + second > moment)

    def before(self, moment: float) -> Iterator[int]:
        """Yield the ticks earlier than an epoch second, the latest first."""
        if not self._seconds:
            yield from _ticks(self._fields, moment, self._zone, is_reverse=True)
            return
        for minute in _ticks(self._fields, moment // 60 * 60 + 60, self._zone, is_reverse=True):
            yield from (minute + second for second in reversed(self._seconds) if minute + second < moment)

    def next(self, moment: float) -> int:
        """Return the first tick later than an epoch second.  Raises UsageError when there is none for 50 years."""
        tick = next(self.after(moment), None)
        if tick is None:
            raise UsageError(f"{self.text!r} has no tick within 50 years; {FORM}")
        return tick

    def in_words(self) -> str:
        """Return the fields as an English sentence, "" where there is none for them."""
        try:
            return CronSim(MACROS.get(self.text.lower(), self.text), datetime.fromtimestamp(0, UTC)).explain()
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
        return CronSim(fields, datetime.fromtimestamp(0, UTC))
    except CronSimError as error:
        raise UsageError(f"{fields!r} is not a schedule ({str(error).lower()}); {FORM}") from error


def _ticks(fields: str, moment: float, zone: tzinfo, *, is_reverse: bool = False) -> Iterator[int]:
    """Yield ticks after an epoch second, or before it."""
    start, latest = datetime.fromtimestamp(0, UTC) + timedelta(seconds=moment), moment
    for tick in CronSim(fields, start.astimezone(zone), reverse=is_reverse):
        at = int(tick.timestamp())
        # Where a day skips an hour or has it twice, cronsim may return a time once more, or one that has passed.
        if at < latest if is_reverse else at > latest:
            latest = at
            yield at


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
