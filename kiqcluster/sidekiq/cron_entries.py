"""Cron entries: what is enqueued at which times, as configuration declares it and as Redis holds it.  Pure.

1. parse_entries   tables of kiqcluster.toml or of a file → entries; also the keys of sidekiq-cron's schedule file
2. CronEntry.read  the JSON that Redis holds → an entry
3. ruby_entry      a record of sidekiq-cron 2.x in Redis → an entry
4. Step, CronRun   a change of the awaited tick; a line of the history
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, get_args

from kiqcluster.errors import InvalidArguments, InvalidPush, UsageError
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.payload import check_arguments, check_queue_name
from kiqcluster.sidekiq.ruby_json import JSON
from kiqcluster.sidekiq.schedules import Schedule
from kiqcluster.words import hint_of

__all__ = ["CRON", "CRON_AT", "GRACE_SECONDS", "CronEntry", "CronRun", "Missed", "Step", "parse_entries", "ruby_entry"]

CRON, CRON_AT = "cron", "cron_at"  # keys of the payload of a job: name of the entry; epoch second of the tick
Missed = Literal["once", "skip", "all"]
GRACE_SECONDS = 60.0  # within which a late tick counts as in time (sidekiq-cron: reschedule_grace_period)
MAX_GRACE_SECONDS = 86_400.0
MAX_NAME_CHARACTERS = 200
MAX_RETRY_DIGITS = 9
RUBY_KEYS = {"cron": "schedule", "class": "job", "klass": "job"}  # of sidekiq-cron's schedule file → key here
RUBY_ONLY = frozenset(
    {"namespace", "source", "active_job", "queue_name_prefix", "queue_name_delimiter", "symbolize_args"}
)
OTHER_WEEKDAYS = re.compile(r"\*,|,\*|(?<![-\w])\w+/")  # such as `1,*` and `1/2`: other days in Ruby
KEYS = ("schedule", "job", "args", "tz", "queue", "retry", "missed", "grace", "enabled", "description")


@dataclass(frozen=True, slots=True)
class CronEntry:
    """A job to enqueue at each tick of a schedule.

    job: name of the class.  queue: "" for that of the class.  options: further keys of the payload.
    missed: what becomes of ticks that nobody enqueued within `grace` seconds: one job for all, none, or one for each.
    application: that declares the entry, "" for one that was added at run time.
    enabled: what the declaration says, None to leave what somebody has set; not kept in Redis.
    """

    name: str
    schedule: Schedule
    job: str
    args: list[JSON] = field(default_factory=list)
    queue: str = ""
    options: Mapping[str, JSON] = field(default_factory=dict)
    missed: Missed = "once"
    grace: float = GRACE_SECONDS
    description: str = ""
    application: str = ""
    enabled: bool | None = None

    @property
    def id(self) -> str:
        """What it is known by in Redis.  Applications have entries of their own, also under one name."""
        return f"{self.name}@{self.application}" if self.application else self.name

    def encoded(self) -> bytes:
        """Return the value that Redis holds under the entry's id."""
        return ruby_json.encode(
            {
                "schedule": self.schedule.text,
                "tz": self.schedule.tz,
                "job": self.job,
                "args": self.args,
                "queue": self.queue,
                "options": dict(self.options),
                "missed": self.missed,
                "grace": self.grace,
                "description": self.description,
                "application": self.application,
            }
        )

    @staticmethod
    def read(identifier: str, raw: bytes) -> CronEntry:
        """Return an entry as Redis holds it.  Raises UsageError for what is not one: anybody may have written it."""
        try:
            found = ruby_json.decode(raw)
        except (ValueError, ruby_json.Undecodable) as error:
            raise UsageError(f"cron entry {identifier}: {raw[:100]!r} is not JSON ({error})") from error
        if not isinstance(found, dict):
            raise UsageError(f"cron entry {identifier}: {raw[:100]!r} is not an entry")
        found = dict(found)
        options, application = found.pop("options", {}), found.pop("application", "")
        if not isinstance(options, dict) or not isinstance(application, str):
            raise UsageError(f"cron entry {identifier}: its options are keys of the payload, its application is a name")
        name = identifier.removesuffix(f"@{application}") if application else identifier
        entry = replace(_entry(name, found), options=options, application=application)
        if entry.id != identifier:
            raise UsageError(f"cron entry {identifier}: the application {application} would keep it as {entry.id}")
        return entry


def parse_entries(raw: Any) -> tuple[CronEntry, ...]:
    """Return the entries of a table name → entry.  Raises UsageError that names the entry and what is wrong with it."""
    if isinstance(raw, tuple) and all(isinstance(each, CronEntry) for each in raw):
        return raw
    if isinstance(raw, list) and all(isinstance(each, Mapping) and "name" in each for each in raw):
        raw = {each["name"]: {key: value for key, value in each.items() if key != "name"} for each in raw}
    if not isinstance(raw, Mapping):
        raise UsageError('cron entries are tables, as in [cron.report] schedule = "0 9 * * *", job = "Report"')
    return tuple(_declared(name, table) for name, table in raw.items())


def _declared(name: Any, table: Any) -> CronEntry:
    if not isinstance(table, Mapping):
        raise UsageError(
            f'cron entry {name}: it is a table, as in [cron.{name}] schedule = "0 9 * * *", job = "Report"'
        )
    found: dict[str, Any] = {}
    for key, value in table.items():
        own = RUBY_KEYS.get(str(key), str(key))
        if key == "status":
            own, value = "enabled", value == "enabled"
        if own in found:
            raise UsageError(f"cron entry {name}: it has {own} twice; leave {key} out")
        if own not in RUBY_ONLY:
            found[own] = value
    entry = _entry(name, found)
    return _read_as_ruby_does(entry) if "cron" in table else entry


def _entry(name: Any, found: Mapping[str, Any]) -> CronEntry:
    """Return an entry from its keys.  Raises UsageError."""
    if not isinstance(name, str) or not name or not name.isprintable() or len(name) > MAX_NAME_CHARACTERS:
        raise UsageError(f"{name!r} is not a name for a cron entry; write a word such as daily_report")
    for key in found:
        if key not in KEYS:
            near = difflib.get_close_matches(str(key), KEYS, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"the keys are {', '.join(KEYS)}"
            hint = hint_of("option", str(key)) or hint
            raise UsageError(f"cron entry {name}: there is no key {key!r}; {hint}")
    try:
        schedule = Schedule.parse(found.get("schedule"), found.get("tz"))
        _check(found)
    except (UsageError, InvalidPush, InvalidArguments) as error:
        raise UsageError(f"cron entry {name}: {error}") from error
    retry = found.get("retry")
    return CronEntry(
        name,
        schedule,
        found["job"],
        list(found.get("args", ())),
        found.get("queue") or "",
        {} if retry is None else {"retry": retry},
        found.get("missed", "once"),
        float(found.get("grace", GRACE_SECONDS)),
        found.get("description") or "",
        enabled=found.get("enabled"),
    )


def _check(found: Mapping[str, Any]) -> None:
    """Raise an error for a value that does not fit its key."""
    args, retry, grace = found.get("args", ()), found.get("retry"), found.get("grace", GRACE_SECONDS)
    is_number = isinstance(grace, int | float) and not isinstance(grace, bool)
    for is_fine, complaint in (
        (isinstance(found.get("job"), str) and found["job"], "job is the name of a job class"),
        (isinstance(args, list | tuple), f"args is the list of the job's arguments, not {args!r}"),
        (
            retry is None or (isinstance(retry, int) and retry >= 0),
            f"retry = {retry!r} does not fit; it takes a number",
        ),
        (found.get("missed", "once") in get_args(Missed), f"missed is one of {', '.join(get_args(Missed))}"),
        (is_number and 0 <= grace <= MAX_GRACE_SECONDS, f"grace is seconds, {MAX_GRACE_SECONDS:.0f} at most"),
        (isinstance(found.get("enabled"), bool | None), "enabled is true or false"),
        (isinstance(found.get("description"), str | None), "description is a text"),
    ):
        if not is_fine:
            raise UsageError(complaint)
    if found.get("queue"):
        check_queue_name(found["queue"])

    def refuse(error: InvalidArguments) -> None:
        raise error

    check_arguments(list(args), refuse)


def ruby_entry(name: str, record: Mapping[str, str]) -> tuple[CronEntry, bool]:
    """Return the entry of a record of sidekiq-cron, and whether it is enabled.  record: the hash in Redis.

    Raises UsageError for one that cannot be taken over: a schedule in words, or one whose days Ruby reads otherwise; an
    envelope of ActiveJob.
    """
    if record.get("active_job") in ("1", "true"):
        raise UsageError(f"cron entry {name}: it is an Active Job of Rails, whose envelope only Ruby can make")
    if record.get("date_as_argument") in ("1", "true"):
        raise UsageError(f"cron entry {name}: date_as_argument appends the time to its arguments; read cron_at instead")
    message = _json_of(record.get("message"), {})
    args, retry = _json_of(record.get("args"), []), record.get("retry") or None
    found: dict[str, Any] = {
        "schedule": record.get("cron"),
        "job": record.get("klass") or record.get("class"),
        "args": args if isinstance(args, list) else [args],
        "queue": record.get("queue_name") or (message.get("queue") if isinstance(message, dict) else "") or "default",
        "description": record.get("description") or "",
    }
    if retry is not None:
        found["retry"] = {"true": True, "false": False}.get(retry) if not _is_count(retry) else int(retry)
    elif isinstance(message, dict) and isinstance(message.get("retry"), int):
        found["retry"] = message["retry"]
    return _read_as_ruby_does(_entry(name, found)), record.get("status", "enabled") == "enabled"


def _read_as_ruby_does(entry: CronEntry) -> CronEntry:
    """Return the entry of a schedule that was written for Ruby.  Raises UsageError if its days are others here.

    If both day fields are restricted, Ruby takes a day of either.  Here a day has to match both if one of them begins
    with `*` (as in Debian's cron).  As weekdays, Ruby reads `1/2` and `1,*` as Monday only.  Source: fugit cron.rb.
    """
    day, weekday = entry.schedule.text.split()[-3::2] if " " in entry.schedule.text else ("*", "*")
    is_either = day not in ("*", "*/1") and weekday != "*"
    if (is_either and "*" in day + weekday) or (weekday != "*" and OTHER_WEEKDAYS.search(weekday)):
        raise UsageError(
            f"cron entry {entry.name}: {entry.schedule.text!r} means other days to Ruby than to kiqcluster; write the "
            "days out, as in 1-31/2 for */2, which means the same to both (Ruby takes a day of either field)"
        )
    return entry


def _is_count(text: str) -> bool:
    """Return whether a text is a number of retries; anybody may have written digits of others, or thousands."""
    return text.isascii() and text.isdigit() and len(text) <= MAX_RETRY_DIGITS


def _json_of(text: str | None, otherwise: Any) -> Any:
    try:
        return json.loads(text) if text else otherwise
    except (ValueError, RecursionError):  # lists within thousands of lists
        return otherwise


class Step(NamedTuple):
    """A change of an entry's awaited tick.

    awaited: the tick that it is changed from, which tells whether others were faster.  at: the tick whose job is
    enqueued, None to skip.  following: the tick that is awaited then.
    """

    awaited: float
    at: float | None
    following: int


class CronRun(NamedTuple):
    """A line of an entry's history.

    tick: that it is for, equal to `at` for one by hand.  at: when it was enqueued; both epoch seconds.
    refused_for: jid of the job because of which this one was not enqueued (`deduplicate`), None if it was enqueued.
    """

    jid: str
    tick: float
    at: float
    refused_for: str | None = None

    def encoded(self) -> bytes:
        """Return the line of a job that is enqueued; push.lua adds `refused_for` if it is not."""
        return ruby_json.encode({"jid": self.jid, "tick": self.tick, "at": self.at})

    @staticmethod
    def read(raw: bytes | None) -> CronRun | None:
        """Return a line as Redis holds it, None for what is not one."""
        text, separator, refused_for = (raw or b"").partition(b"\n")
        try:
            found = ruby_json.decode(text)
        except (ValueError, ruby_json.Undecodable):
            return None
        jid, tick, at = (found.get(key) if isinstance(found, dict) else None for key in ("jid", "tick", "at"))
        if not isinstance(jid, str) or not isinstance(tick, int | float) or not isinstance(at, int | float):
            return None
        return CronRun(jid, tick, at, refused_for.decode(errors="replace") if separator else None)
