"""Cron ticks around each change of clocks that the time zones know.

The reference knows nothing of time zones: a clock shows UTC plus one offset before the change, and plus another one
after it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import pairwise, takewhile
from zoneinfo import ZoneInfo, available_timezones

import pytest

from kiqcluster.sidekiq.schedules import Schedule

DAY = 86_400
APART = 3 * DAY  # no zone has two changes in so short a time
AROUND = 6 * 3_600  # seconds before and after the times that a change affects


@dataclass(frozen=True)
class Change:
    """A change of clocks.  at: its epoch second.  before, after: the offsets from UTC in seconds."""

    at: int
    before: int
    after: int

    @property
    def window(self) -> tuple[int, int]:
        around = AROUND + abs(self.after - self.before)
        return self.at - around, self.at + around

    @cached_property
    def shown(self) -> dict[int, datetime]:
        """The time on the clock at each minute around the change."""
        first, last = self.window
        minutes = range(first, last + 1, 60)
        return {at: datetime.fromtimestamp(at + (self.before if at < self.at else self.after), UTC) for at in minutes}

    @property
    def edges(self) -> list[datetime]:
        """Times around and within those that come twice, or never."""
        low, high = sorted(datetime.fromtimestamp(self.at + offset, UTC) for offset in (self.before, self.after))
        minute = timedelta(minutes=1)
        return [low - minute, low, low + minute, low + (high - low) // 2, high - minute, high, high + minute]

    def matching(self, matches: Callable[[datetime], bool]) -> list[int]:
        """Return each minute at which the clock shows a time that matches."""
        return [at for at, local in self.shown.items() if matches(local)]

    def fixed(self, hour: int, minute: int) -> list[int]:
        """Return one minute for each day with this time, the change where the day skips the time."""
        firsts: dict[datetime, int] = {}
        for at, local in self.shown.items():
            if (local.hour, local.minute) == (hour, minute):
                firsts.setdefault(local, at)
        skipped = range(self.at + self.before, self.at + self.after, 60)
        times = (datetime.fromtimestamp(second, UTC) for second in skipped)
        gap = [self.at for local in times if (local.hour, local.minute) == (hour, minute)]
        return sorted({*firsts.values(), *gap})

    def ticks(self, schedule: Schedule) -> list[int]:
        """Return the ticks around the change, after a check that all ways to ask for them agree."""
        first, last = self.window
        forwards = list(takewhile(lambda tick: tick < last + 60, schedule.after(first - 1)))
        backwards = list(takewhile(lambda tick: tick >= first, schedule.before(last + 60)))
        assert backwards[::-1] == forwards, (schedule, self)
        assert [schedule.next(tick) for tick in forwards[:-1]] == forwards[1:], (schedule, self)
        assert all(next(schedule.before(tick)) == before for before, tick in pairwise(forwards)), (schedule, self)
        return forwards


def changes(zone: ZoneInfo, first: int, last: int) -> Iterator[Change]:
    """Yield the changes of a zone between two years whose offsets are whole minutes."""

    def offset(second: int) -> int:
        return int((datetime.fromtimestamp(second, zone).utcoffset() or timedelta()).total_seconds())

    january = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (first, last))
    for start in range(*january, APART):
        before, after = offset(start), offset(start + APART)
        if before != after and before % 60 == after % 60 == 0:
            seconds = range(start, start + APART + 1)
            at = seconds[bisect_left(seconds, True, key=lambda second, before=before: offset(second) != before)]
            yield Change(at, before, after)


@pytest.mark.parametrize(
    ("first", "last"), [(2024, 2028), pytest.param(1900, 2030, marks=pytest.mark.full, id="history")]
)
def test_each_time_has_its_ticks_however_the_clocks_of_a_zone_change(first: int, last: int) -> None:
    # Ticks around a change depend on its offsets and on the time of day alone: one zone and year of each kind.
    zones: dict[tuple[int, int, int], tuple[Change, str]] = {}
    for name in sorted(available_timezones()):
        for change in changes(ZoneInfo(name), first, last):
            zones[change.before, change.after, change.at % DAY] = change, name

    assert any(change.after < change.before for change, _ in zones.values())
    for change, name in zones.values():
        for hour in {local.hour for local in change.edges}:
            expected = change.matching(lambda local, hour=hour: local.hour == hour)
            assert change.ticks(Schedule(f"* {hour} * * *", name)) == expected, (name, change, hour)
        expected = change.matching(lambda local: local.minute % 20 == 0)
        assert change.ticks(Schedule("*/20 * * * *", name)) == expected, (name, change)
        day = change.edges[1].day
        expected = change.matching(lambda local, day=day: local.day == day and local.minute == 59)
        assert change.ticks(Schedule(f"59 * {day} * *", name)) == expected, (name, change)
        for local in change.edges:
            fields = f"{local.minute} {local.hour} * * *"
            expected = change.fixed(local.hour, local.minute)
            assert change.ticks(Schedule(fields, name)) == expected, (name, change, fields)
            expected = [minute + second for minute in expected for second in (5, 35)]
            assert change.ticks(Schedule(f"5,35 {fields}", name)) == expected, (name, change, fields)
