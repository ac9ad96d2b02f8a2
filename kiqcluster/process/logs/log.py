"""Logs: log lines from events, in two formats, on stdlib logging.

kiqcluster gives its own logger a handler.  It gives the root logger one only when the application has not configured
logging, so that lines logged by jobs show their job.  Field names are stable API.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache, partial
from itertools import islice
from math import isfinite
from typing import Any, TextIO

from kiqcluster.errors import class_name, text_of
from kiqcluster.ipc.stdio import clean
from kiqcluster.process.boundary.calls import guarded, is_a
from kiqcluster.process.config import LOG_LEVELS, has_colours
from kiqcluster.process.events import Events, Fields
from kiqcluster.process.job_context import current_job
from kiqcluster.process.logs.handlers import LineHandler, has_descriptor
from kiqcluster.process.logs.own_logger import protect
from kiqcluster.process.logs.wording import WORDING
from kiqcluster.process.runtime import current_setup
from kiqcluster.sidekiq import ruby_json

__all__ = [
    "LOGGER",
    "DoneLine",
    "Shortcut",
    "adopt_root",
    "configure",
    "give_up_stuck_handlers",
    "iso_time",
    "plain",
    "tid",
    "word_events",
]

LOGGER = logging.getLogger("kiqcluster")
BASE_36_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
MAX_WORD_CHARACTERS = 200  # of a class, jid or queue in a line
MAX_TEXT_CHARACTERS = 16_384  # of any other field, and of the message
CONTINUATION = "  "  # before all lines of a message but the first
MAX_ITEMS = 1_000  # of a field that is a list or an object
LEVELS = {name: logging.getLevelNamesMapping()[name.upper()] for name in LOG_LEVELS}
# The words of job_done, around the seconds: a line of its own for each job is put together without str.format.
DONE_LEVEL, DONE_WORDING = WORDING["job_done"]
DONE_HEAD, _, DONE_TAIL = DONE_WORDING.partition("{elapsed:.3f}")
DONE_LEVEL_NAME = logging.getLevelName(DONE_LEVEL)

# A finished job whose line is not written yet: epoch seconds of its end, thread, jid, class, queue, seconds it ran, and
# its correlation_id, which is text if the job has one.
DoneLine = tuple[float, int, str, str, str, float, object]


class JobLevel(logging.Filter):
    """Drops lines below the level of the running job (its option log_level), else below the configured level."""

    def __init__(self, level: int) -> None:
        super().__init__()
        self._level = level

    def filter(self, record: logging.LogRecord) -> bool:
        job = current_job()
        return self.passes(record.levelno, None if job is None else job.payload.get("log_level"))

    def passes(self, level: int, declared: object) -> bool:
        """Return whether a line of that level is logged.  declared: log_level in the job's payload."""
        return level >= (LEVELS.get(declared, self._level) if isinstance(declared, str) else self._level)


class PrettyFormatter(logging.Formatter):
    """One line for people: time, process, level, job, message; coloured on a terminal."""

    COLOURS = {
        logging.DEBUG: "2",
        logging.INFO: "",
        logging.WARNING: "33",
        logging.ERROR: "31",
        logging.CRITICAL: "31",
    }

    def __init__(self, *, coloured: bool) -> None:
        super().__init__()
        self._coloured = coloured

    def format(self, record: logging.LogRecord) -> str:
        job = current_job()
        context = f" [{_shown(job.name)} {_shown(job.jid)}]" if job is not None else ""
        # Errors of jobs may have any text.  A line of the application's own loggers is what it wants to print.
        message = _of_lines(_message(self, record)) if record.name == LOGGER.name else _message(self, record)
        line = f"{_timestamp(record)} {record.process} {record.levelname.lower()}{context} {message}"
        if trace := getattr(record, "event_fields", {}).get("traceback"):
            line = f"{line}\n{_of_lines(trace.rstrip())}"
        return f"\x1b[{self.COLOURS.get(record.levelno, '0')}m{line}\x1b[0m" if self._coloured else line

    def done(self, lines: Iterable[DoneLine]) -> list[str]:
        """Return the lines that `format` would return for job_done, for many jobs at once."""
        pid = os.getpid()
        start, end = (f"\x1b[{self.COLOURS[DONE_LEVEL]}m", "\x1b[0m") if self._coloured else ("", "")
        level = DONE_LEVEL_NAME.lower()
        return [
            f"{start}{iso_time(ended)} {pid} {level} [{_shown(name)} {_shown(jid)}] "
            f"{DONE_HEAD}{elapsed:.3f}{DONE_TAIL}{end}"
            for ended, _, jid, name, _, elapsed, _ in lines
        ]


class JsonFormatter(logging.Formatter):
    """One JSON object a line: ts, pid, tid, lvl, msg, ctx (jid, class, queue), correlation_id, event and its fields."""

    def format(self, record: logging.LogRecord) -> str:
        job, fields, message = current_job(), getattr(record, "event_fields", None), _message(self, record)
        line: dict[str, object] = {
            "ts": _timestamp(record),
            "pid": plain(record.process),
            "tid": tid(record.thread or 0),
            "lvl": plain(record.levelname),
            "msg": plain(_without_fields(message, fields) if fields else message),
        }
        if job is not None:
            # The job may have changed its payload, so these two words may be any object.
            line["ctx"] = {"jid": plain(_word(job.jid)), "class": _word(job.name), "queue": _word(job.queue)}
            if job.correlation_id is not None:
                line["correlation_id"] = plain(_word(job.correlation_id))
        if fields:
            line.update((name, plain(value)) for name, value in fields.items() if name not in line)
        return ruby_json.encode(line).decode()

    def done(self, lines: Iterable[DoneLine]) -> list[str]:
        """Return the lines that `format` would return for job_done, for many jobs; `elapsed` to the microsecond."""
        pid = os.getpid()
        return [
            f'{{"ts":"{iso_time(ended)}","pid":{pid},"tid":"{tid(thread)}","lvl":"{DONE_LEVEL_NAME}",'
            f'"msg":"{DONE_HEAD}{elapsed:.3f}{DONE_TAIL}",'
            f'"ctx":{{"jid":{_quoted(_word(jid))},{_kind(name, queue)}}},{_correlation(request)}'
            f'"event":"job_done","elapsed":{elapsed:.6f}}}'
            for ended, thread, jid, name, queue, elapsed, request in lines
        ]


class Shortcut:
    """Writes job_done without a log record for each job: the same line that our handler would write.

    The result is the same only while the application has changed nothing in between; `is_open` checks it for each job.
    """

    def __init__(self, handler: LineHandler, level: JobLevel, formatter: PrettyFormatter | JsonFormatter) -> None:
        self.handler = handler
        self.formatter = formatter
        self._stream = handler.stream
        self._level = level
        self._handlers, self._filters = [handler], [level]

    @classmethod
    def find(cls, events: Events) -> Shortcut | None:
        """Return the shortcut, or None when job_done needs records: others listen, or the handler is not ours."""
        if events.hearers("job_done") != [_log] or len(LOGGER.handlers) != 1:
            return None
        handler = LOGGER.handlers[0]
        if type(handler) is not LineHandler or len(handler.filters) != 1:
            return None
        level, formatter = handler.filters[0], handler.formatter
        if not isinstance(level, JobLevel) or not isinstance(formatter, PrettyFormatter | JsonFormatter):
            return None
        return cls(handler, level, formatter)

    def is_open(self) -> bool:
        """Return whether a record would reach only our handler, and that handler is unchanged."""
        handler = self.handler
        return (
            LOGGER.handlers == self._handlers
            and not LOGGER.filters
            and not LOGGER.propagate
            and handler.filters == self._filters
            and handler.formatter is self.formatter
            and handler.stream is self._stream
            and not getattr(self._stream, "closed", False)
            and handler.level <= logging.INFO
            and LOGGER.isEnabledFor(logging.INFO)
        )

    def wants(self, declared: object) -> bool:
        """Return whether the line is logged.  declared: the job's log_level."""
        return self._level.passes(logging.INFO, declared)


def configure(
    log_format: str,
    level: str,
    stream: TextIO | None = None,
    handler: type[LineHandler] = LineHandler,
) -> None:
    """Give kiqcluster's logger its handler, replacing an earlier one of ours.

    log_format: auto, pretty or json.  stream: default standard output, as Sidekiq's.  The stream becomes line-buffered,
    also under PYTHONUNBUFFERED, so that output of jobs and lines of ours never split each other.
    """
    stream = stream or sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(line_buffering=True, write_through=False)
    is_terminal = stream.isatty()
    pretty = log_format == "pretty" or (log_format == "auto" and is_terminal)
    made = handler(stream) if has_descriptor(stream) else logging.StreamHandler(stream)
    made.addFilter(JobLevel(LEVELS[level]))
    made.setFormatter(PrettyFormatter(coloured=has_colours(stream)) if pretty else JsonFormatter())
    protect(LOGGER)
    LOGGER.handlers[:] = [made]
    LOGGER.setLevel(LEVELS[level])
    LOGGER.propagate = False


def adopt_root(job_levels: Iterable[str] = ()) -> None:
    """Give the root logger a handler, if the application has not configured logging itself.

    job_levels: those that jobs declare (option log_level); lines below all of them need not reach the handler.
    """
    LOGGER.setLevel(min([LOGGER.level, *(LEVELS[level] for level in job_levels)]))
    root = logging.getLogger()
    if not root.handlers and LOGGER.handlers:
        root.addHandler(LOGGER.handlers[0])
        root.setLevel(LOGGER.level)


def give_up_stuck_handlers(seconds: float) -> None:
    """Have no line, and no exit handler, wait for an output that nobody reads; at the end of a process."""
    for handler in {*LOGGER.handlers, *logging.getLogger().handlers}:
        if isinstance(handler, LineHandler):
            handler.give_up_if_stuck(seconds)


def word_events(events: Events) -> None:
    """Log the events of this process."""
    events.listen(_log, lambda event: event in WORDING and LOGGER.isEnabledFor(WORDING[event][0]))


def _log(event: str, fields: Fields) -> None:
    level, wording = WORDING.get(event, (0, ""))
    if wording and LOGGER.isEnabledFor(level):
        guard = current_setup().beat_guard
        if guard is None or not guard.hand_over_line(partial(_log_later, _origin(level), wording, event, fields)):
            LOGGER.log(level, wording.format(**fields), extra={"event_fields": {"event": event, **fields}})


def _origin(level: int) -> logging.LogRecord:
    """Return a record of this moment and thread, without a text."""
    return LOGGER.makeRecord(LOGGER.name, level, __file__, 0, "", (), None, "_log")


def _log_later(record: logging.LogRecord, wording: str, event: str, fields: Fields) -> None:
    record.msg = wording.format(**fields)
    record.event_fields = {"event": event, **fields}
    LOGGER.handle(record)


def _message(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    message = record.getMessage()
    if record.exc_info:
        message = f"{message}\n{formatter.formatException(record.exc_info)}"
    return message


def _without_fields(message: str, fields: Fields) -> str:
    """Return a message's first line if a field has the other lines, so that a traceback is logged once."""
    first, newline, others = message.partition("\n")
    return first if newline and any(others in str(value) for value in fields.values()) else message


def _timestamp(record: logging.LogRecord) -> str:
    return iso_time(record.created)


def iso_time(now: float) -> str:
    """Return an epoch second as lines show it: UTC, with milliseconds."""
    return _instant(int(now * 1_000))


# Caches: many jobs end in the same millisecond, and they are of few kinds.


@lru_cache(maxsize=16)
def _instant(milliseconds: int) -> str:
    second, rest = divmod(milliseconds, 1_000)
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}.{rest:03d}Z"


@lru_cache(maxsize=1_024)
def tid(thread: int) -> str:
    """Return a thread's id in base 36, as Ruby's Sidekiq writes it in the log and for running jobs."""
    digits = ""
    while thread:
        thread, digit = divmod(thread, len(BASE_36_DIGITS))
        digits = BASE_36_DIGITS[digit] + digits
    return digits or "0"


@lru_cache(maxsize=1_024)
def _kind(name: str, queue: str) -> str:
    """Return class and queue as members of a JSON object."""
    return f'"class":{_quoted(_word(name))},"queue":{_quoted(_word(queue))}'


def _correlation(request: object) -> str:
    """Return correlation_id as a member of a JSON object; nothing where it is not text."""
    return f'"correlation_id":{_quoted(_word(request))},' if isinstance(request, str) else ""


def _shown(text: str) -> str:
    """Return a word of a payload without line breaks and terminal control characters."""
    return clean(_word(text))


def _of_lines(text: str) -> str:
    """Return a text without terminal control characters, all lines but the first indented: none looks like ours."""
    return text if text.isprintable() else f"\n{CONTINUATION}".join(map(clean, text.split("\n")))


def _quoted(text: str) -> str:
    return f'"{text}"' if text.isalnum() else ruby_json.encode(text).decode()


def plain(value: object) -> object:
    """Return the value of a field as a line shows it: JSON, and of a limited size; a reason where it cannot be read."""
    if value is None or type(value) in (bool, int):
        return value
    if type(value) is str:
        return _bounded(value, MAX_TEXT_CHARACTERS)
    if type(value) is float:
        return value if isfinite(value) else str(value)
    return guarded(lambda error: f"(it cannot be shown: {class_name(error)})", _plain, value)


def _plain(value: Any) -> object:
    if is_a(value, dict):
        return {_word(text_of(key)): plain(each) for key, each in islice(value.items(), MAX_ITEMS)}
    if is_a(value, (list, tuple, set, frozenset)):
        return [plain(each) for each in islice(value, MAX_ITEMS)]
    for kind in (int, float):  # a number of a class of its own, such as numpy's
        if is_a(value, kind):
            return plain(kind(value))
    return _bounded(text_of(value), MAX_TEXT_CHARACTERS)


def _bounded(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


def _word(text: str) -> str:
    return _bounded(text, MAX_WORD_CHARACTERS)
