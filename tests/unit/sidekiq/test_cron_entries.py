"""Cron entries: their forms in configuration, in Redis and in sidekiq-cron, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from kiqcluster.errors import UsageError
from kiqcluster.sidekiq.cron_entries import CronEntry, parse_entries, ruby_entry
from kiqcluster.sidekiq.schedules import Schedule

FULL = {
    "schedule": "0 9 * * *",
    "job": "Report",
    "args": ["all", 7, {"a": None}],
    "tz": "Asia/Shanghai",
    "queue": "reports",
    "retry": 3,
    "missed": "all",
    "grace": 30,
    "enabled": False,
    "description": "the figures of yesterday",
}


def test_an_entry_is_read_from_a_table() -> None:
    (entry,) = parse_entries({"report": FULL})

    assert entry == CronEntry(
        "report",
        Schedule("0 9 * * *", "Asia/Shanghai"),
        "Report",
        ["all", 7, {"a": None}],
        "reports",
        {"retry": 3},
        "all",
        30.0,
        "the figures of yesterday",
        enabled=False,
    )


def test_an_entry_survives_redis() -> None:
    (entry,) = parse_entries({"report": {key: value for key, value in FULL.items() if key != "enabled"}})

    assert CronEntry.read("report", entry.encoded()) == entry


def test_the_schedule_file_of_sidekiq_cron_can_be_used() -> None:
    ruby = {"cleanup": {"cron": "*/5 * * * * Europe/Berlin", "class": "Cleanup", "queue": "low", "status": "disabled"}}
    listed = [{"name": "cleanup", **ruby["cleanup"]}]

    (entry,) = parse_entries(ruby)

    assert (entry.schedule, entry.job, entry.queue) == (Schedule("*/5 * * * *", "Europe/Berlin"), "Cleanup", "low")
    assert entry.enabled is False
    assert parse_entries(listed) == (entry,)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"schedule": "0 9 * *", "job": "Report"}, "cron entry report: '0 9 . .' is not a schedule"),
        ({"schedule": "0 9 * * *"}, "job is the name of a job class"),
        ({"schedule": "0 9 * * *", "job": "Report", "args": "all"}, "args is the list"),
        ({"schedule": "0 9 * * *", "job": "Report", "args": [float("nan")]}, "args"),
        ({"schedule": "0 9 * * *", "job": "Report", "retries": 3}, "retries is here: retry"),
        ({"schedule": "0 9 * * *", "job": "Report", "retry": -1}, "retry = -1 does not fit"),
        ({"schedule": "0 9 * * *", "job": "Report", "missed": "some"}, "once, skip, all"),
        ({"schedule": "0 9 * * *", "job": "Report", "grace": True}, "grace is seconds"),
        ({"schedule": "0 9 * * *", "job": "Report", "enabled": "yes"}, "enabled is true or false"),
        ({"schedule": "0 9 * * *", "cron": "0 8 * * *", "job": "Report"}, "schedule twice"),
        ({"schedule": "0 9 * * *", "job": "Report", "queue": "a b,c"}, "cron entry report"),
        ("0 9 * * *", "it is a table"),
    ],
)
def test_what_cannot_work_is_refused_with_its_name(table: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_entries({"report": table})


@pytest.mark.parametrize("name", ["", "a\nb", 5, "x" * 300])
def test_a_name_can_be_shown(name: Any) -> None:
    with pytest.raises(UsageError, match="not a name"):
        parse_entries({name: FULL})


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b"5", b"\xff", b'{"schedule":"x","job":"J"}'])
def test_bytes_that_are_no_entry_are_told_apart(raw: bytes) -> None:
    with pytest.raises(UsageError, match="cron entry x"):
        CronEntry.read("x", raw)


def test_a_record_of_sidekiq_cron_becomes_an_entry() -> None:
    record = {
        "name": "cleanup",
        "klass": "Cleanup",
        "cron": "*/5 * * * *",
        "args": '["all"]',
        "message": '{"queue":"low","retry":3,"class":"Cleanup","args":["all"]}',
        "status": "disabled",
        "active_job": "0",
    }

    entry, is_enabled = ruby_entry("cleanup", record)

    assert (entry.job, entry.args, entry.queue, entry.options) == ("Cleanup", ["all"], "low", {"retry": 3})
    assert not is_enabled


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"klass": "Cleanup", "cron": "every 5 minutes"}, "not a schedule"),
        ({"klass": "Cleanup", "cron": "* * * * *", "active_job": "true"}, "Active Job"),
        ({"klass": "Cleanup", "cron": "* * * * *", "date_as_argument": "1"}, "cron_at"),
    ],
)
def test_a_record_that_only_ruby_can_enqueue_is_refused(record: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ruby_entry("cleanup", record)


@pytest.mark.parametrize(
    "fields",
    ["0 0 */2 * 1-5", "0 0 1 * */2", "30 0 0 */3 * MON", "0 0 */31 * 1", "0 0 1,2,* * 1", "0 0 * * 1/2", "0 0 * * 1,*"],
)
def test_a_schedule_whose_days_ruby_reads_otherwise_is_not_taken_over(fields: str) -> None:
    file = {"cleanup": {"cron": fields, "class": "Cleanup"}}

    with pytest.raises(UsageError, match="write the days out"):
        ruby_entry("cleanup", {"klass": "Cleanup", "cron": f"{fields} Europe/Berlin"})
    with pytest.raises(UsageError, match="write the days out"):
        parse_entries(file)
    (own,) = parse_entries({"cleanup": {"schedule": fields, "job": "Cleanup"}})
    assert own.schedule.text == fields


@pytest.mark.parametrize(
    "fields",
    [
        "0 0 1-31/2 * 1-5",
        "0 0 1 * 1",
        "0 0 */2 * *",
        "0 0 * * */2",
        "0 9 */1 * 1",
        "0 0 * * 1-5/2",
        "0 0 1/2 * *",
        "@daily",
    ],
)
def test_a_schedule_whose_days_ruby_reads_alike_is_taken_over(fields: str) -> None:
    entry, _ = ruby_entry("cleanup", {"klass": "Cleanup", "cron": fields})

    assert entry.schedule.text == fields
