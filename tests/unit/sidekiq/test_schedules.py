"""Schedules: their forms, their ticks over changes of clocks, and what is refused."""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from zoneinfo import ZoneInfo

import pytest

from kiqcluster.errors import UsageError
from kiqcluster.sidekiq.schedules import MACROS, Schedule

BERLIN = "Europe/Berlin"


def epoch(text: str, tz: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(tz)).timestamp()


def shown(ticks: list[int], tz: str) -> list[str]:
    return [datetime.fromtimestamp(tick, ZoneInfo(tz)).strftime("%d %H:%M:%S%z") for tick in ticks]


def after(schedule: Schedule, text: str, count: int) -> list[str]:
    return shown(list(islice(schedule.after(epoch(text, schedule.tz)), count)), schedule.tz)


def before(schedule: Schedule, text: str, count: int) -> list[str]:
    return shown(list(islice(schedule.before(epoch(text, schedule.tz)), count)), schedule.tz)


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("0 9 * * 1-5", "2026-11-23T09:00:00"),
        ("*/15 * * * *", "2026-11-21T12:15:00"),
        ("*/10 * * * * *", "2026-11-21T12:00:10"),
        ("30 0 9 * * *", "2026-11-22T09:00:30"),
        ("0 0 L * *", "2026-11-30T00:00:00"),
        ("0 0 * * 5L", "2026-11-27T00:00:00"),
        ("0 0 * * MON#1", "2026-12-07T00:00:00"),
        ("@daily", "2026-11-22T00:00:00"),
        ("@HOURLY", "2026-11-21T13:00:00"),
        ("0 9 * * * America/Chicago", "2026-11-21T15:00:00"),
        ("0 9 * * * UTC", "2026-11-22T09:00:00"),
    ],
)
def test_a_schedule_has_the_ticks_that_its_fields_say(text: str, first: str) -> None:
    assert Schedule.parse(text).next(epoch("2026-11-21T12:00:00")) == epoch(first)


@pytest.mark.parametrize("macro", MACROS)
def test_a_macro_is_the_schedule_that_it_stands_for(macro: str) -> None:
    now = epoch("2026-11-21T12:00:00")

    assert Schedule.parse(macro).next(now) == Schedule.parse(MACROS[macro]).next(now)


@pytest.mark.parametrize(("fields", "second"), [("30 2 * * *", "00"), ("15 30 2 * * *", "15")])
def test_a_fixed_time_that_a_day_skips_has_its_tick_after_the_gap(fields: str, second: str) -> None:
    schedule = Schedule.parse(fields, BERLIN)
    days = [f"29 03:00:{second}+0200", f"30 02:30:{second}+0200", f"31 02:30:{second}+0200"]

    assert after(schedule, "2026-03-28T12:00", 3) == days
    assert before(schedule, "2026-03-31T12:00", 3) == days[::-1]


@pytest.mark.parametrize(("fields", "second"), [("30 2 * * *", "00"), ("15 30 2 * * *", "15")])
def test_a_fixed_time_that_a_day_has_twice_has_one_tick(fields: str, second: str) -> None:
    schedule = Schedule.parse(fields, BERLIN)
    days = [f"25 02:30:{second}+0200", f"26 02:30:{second}+0100"]

    assert after(schedule, "2026-10-24T12:00", 2) == days
    assert before(schedule, "2026-10-26T12:00", 2) == days[::-1]
    between = int(epoch("2026-10-25T02:30", BERLIN)) + 3_000  # 02:20, the second time
    assert shown([schedule.next(between)], BERLIN) == [days[1]]


def test_several_fixed_times_within_a_gap_have_one_tick_after_it() -> None:
    schedule = Schedule.parse("0,30 2 * * *", BERLIN)

    assert after(schedule, "2026-03-28T12:00", 2) == ["29 03:00:00+0200", "30 02:00:00+0200"]


def test_a_schedule_of_skipped_times_only_has_no_tick() -> None:
    last_sunday_of_march = Schedule("* 2 * 3 7L", BERLIN)

    with pytest.raises(UsageError, match="no tick within 50 years"):
        last_sunday_of_march.next(epoch("2026-01-01T00:00"))


@pytest.mark.parametrize(
    ("start", "ticks"),
    [
        ("2026-03-29T01:00", ["29 01:30:00+0100", "29 03:00:00+0200", "29 03:30:00+0200"]),
        ("2026-10-25T02:00", ["25 02:30:00+0200", "25 02:00:00+0100", "25 02:30:00+0100"]),
    ],
)
def test_a_distance_is_kept_in_every_night(start: str, ticks: list[str]) -> None:
    assert after(Schedule.parse("*/30 * * * *", BERLIN), start, 3) == ticks


@pytest.mark.parametrize(
    "fields", ["0 9 * * *", "*/20 * * * * *", "0,20 */7 1-5 * * *", "5,35 30 2 * * *", "0 0 1 */3 *"]
)
@pytest.mark.parametrize("tz", ["UTC", BERLIN, "Australia/Lord_Howe", "America/Sao_Paulo"])
def test_ticks_forwards_are_those_backwards(fields: str, tz: str) -> None:
    schedule = Schedule.parse(fields, tz)
    start = epoch("2026-03-28T00:00:00")
    forwards = list(islice(schedule.after(start), 200))

    assert forwards == sorted(set(forwards))
    backwards = list(islice(schedule.before(forwards[-1] + 1), 200))
    assert backwards == forwards[::-1]


@pytest.mark.parametrize(
    ("text", "tz", "words"),
    [
        ("", None, "write 5 fields"),
        ("every 5 minutes", None, "write 5 fields"),
        ("@reboot", None, "@daily"),
        ("1 2 3 4", None, "write 5 fields"),
        ("* * * * * * *", None, "write 5 fields"),
        ("61 * * * *", None, "bad minute"),
        ("0 0 30 2 *", None, "bad day-of-month"),
        (5, None, "'5' is not a schedule"),
        ("0 9 * * *", "Mars/Base", "'Mars/Base' is not a time zone"),
        ("0 9 * * *", 5, "not a time zone"),
        ("0 9 * * * Europe/Berlin", "Asia/Tokyo", "leave one out"),
        ("0 9 * * * Mars/Base", None, "bad day-of-week"),
        ("9" * 300, None, "is not a schedule"),
    ],
)
def test_what_is_not_a_schedule_is_refused_with_the_remedy(text: object, tz: object, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Schedule.parse(text, tz)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0 9 * * 1-5", "At 09:00 on Monday through Friday"),
        ("*/10 * * * * *", "Every 10th second of every minute"),
        ("30 0 2 * * * Europe/Berlin", "At 02:00:30 every day"),
        ("@daily", "At 00:00 every day"),
    ],
)
def test_a_schedule_can_be_said_in_words(text: str, words: str) -> None:
    assert Schedule.parse(text).in_words() == words


@pytest.mark.parametrize(
    "text", ["*/120 * * * *", "0 */25 * * *", "0 0 1-5/32 * *", "0 0 * */13 *", "0 0 * * 1,*/8", "*/61 * * * * *"]
)
def test_a_step_wider_than_its_field_is_refused_where_it_is_declared(text: str) -> None:
    schedule = Schedule.parse(text)  # what is stored already is read

    with pytest.raises(UsageError, match="the step"):
        schedule.check_steps()


@pytest.mark.parametrize("text", ["*/60 * * * *", "0 */24 * * *", "*/7 0 */31 */12 */7", "*/60 * * * * *", "@hourly"])
def test_a_step_as_wide_as_its_field_is_fine(text: str) -> None:
    Schedule.parse(text).check_steps()
