"""Logs: both formats, the job a line belongs to, and words for every event."""

from __future__ import annotations

import ast
import io
import json
import logging
import string
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest

import kiqcluster
from kiqcluster.process.events import Events
from kiqcluster.process.job_context import CURRENT_JOB, JobContext
from kiqcluster.process.logs import log
from kiqcluster.process.logs.log import DoneLine, JsonFormatter, PrettyFormatter
from kiqcluster.process.logs.wording import WORDING
from kiqcluster.sidekiq import ruby_json

BASE_KEYS = {"ts", "pid", "tid", "lvl", "msg"}


def record(message: str = "hello", level: int = logging.INFO, **extra: Any) -> logging.LogRecord:
    made = logging.LogRecord("app", level, __file__, 1, message, (), None)
    made.__dict__.update(extra)
    return made


def as_json(made: logging.LogRecord) -> dict[str, Any]:
    line = JsonFormatter().format(made)
    assert "\n" not in line
    fields: dict[str, Any] = json.loads(line)
    return fields


@pytest.fixture
def in_job() -> Iterator[JobContext]:
    """A job that this thread runs."""
    context = JobContext({"jid": "a" * 24}, "mails", "Acme::Mail", threading.Event())
    token = CURRENT_JOB.set(context)
    yield context
    CURRENT_JOB.reset(token)


class TestJson:
    def test_what_a_field_says_is_there_once(self) -> None:
        error = "-r shop failed to load: KeyError: 1\nTraceback:\n  line 1"

        line = as_json(record(f"nothing was started: {error}", event_fields={"event": "e", "error": ValueError(error)}))
        other = as_json(record("two\nlines", event_fields={"event": "e", "error": "one"}))

        assert (line["msg"], line["error"]) == ("nothing was started: -r shop failed to load: KeyError: 1", error)
        assert other["msg"] == "two\nlines"

    def test_a_line_is_one_object_with_the_base_keys(self) -> None:
        line = as_json(record("two\nlines é \x00"))

        assert set(line) == BASE_KEYS
        assert (line["msg"], line["lvl"]) == ("two\nlines é \x00", "INFO")
        assert line["ts"].endswith("Z")

    def test_the_job_is_its_context(self, in_job: JobContext) -> None:
        assert as_json(record())["ctx"] == {"jid": "a" * 24, "class": "Acme::Mail", "queue": "mails"}

    def test_fields_of_an_event_stand_beside_the_base_keys(self) -> None:
        line = as_json(record(event_fields={"event": "recovered", "units": 3}))

        assert (line["event"], line["units"]) == ("recovered", 3)

    def test_fields_never_shadow_base_keys(self, in_job: JobContext) -> None:
        shadows = dict.fromkeys((*BASE_KEYS, "ctx"), "shadow")

        line = as_json(record(event_fields=shadows))

        assert "shadow" not in line.values()

    @pytest.mark.parametrize(
        ("value", "shown"),
        [
            (None, None),
            ([1, {"a": (2,)}], [1, {"a": [2]}]),
            ({"a": {1: ZeroDivisionError("x")}}, {"a": {"1": "x"}}),
            (frozenset({"a"}), ["a"]),
            (ZeroDivisionError("on purpose"), "on purpose"),
            (float("nan"), "nan"),
            ([float("inf"), 1e16], ["inf", 1e16]),
            ("\ud800", "\ud800"),
            (10**5_000, 10**5_000),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_every_value_makes_a_line(self, value: Any, shown: Any) -> None:
        line = rubyjson_of(record(event_fields={"value": value}))

        assert line["value"] == shown

    @pytest.mark.parametrize("base", [object, str, int, float, dict, list, tuple, set])
    def test_a_value_that_lies_about_itself_costs_no_line(self, base: type) -> None:
        def fail(*_: object) -> Any:
            raise SystemExit

        methods = ("__str__", "__repr__", "__len__", "__iter__", "__int__", "__float__", "items", "keys", "__eq__")
        lying = type("Lying", (base,), {**dict.fromkeys(methods, fail), "__class__": property(fail), "__hash__": None})

        line = rubyjson_of(record(event_fields={"value": lying(), "values": [lying(), {"key": lying()}], "other": 5}))

        assert line["other"] == 5
        assert {"value", "values"} <= line.keys()

    def test_no_field_makes_a_line_without_end(self) -> None:
        huge = "x" * 1_000_000
        payload = {"class": huge, "args": [], "jid": huge, "queue": huge}
        token = CURRENT_JOB.set(JobContext(payload, huge, huge, threading.Event()))
        fields = {
            "jids": [huge] * 3,
            "error": ValueError(huge),
            "by": {huge: huge},
            "many": range(10**6),
            "all": [1] * 10**6,
        }
        try:
            line = JsonFormatter().format(record(message=huge, event_fields=fields))
        finally:
            CURRENT_JOB.reset(token)
        (done,) = JsonFormatter().done([(1_795_168_740.5, 4_711, huge, huge, huge, 0.5, huge)])

        assert len(line) < 150_000
        assert len(done) < 1_000
        assert json.loads(done)["ctx"]["jid"] == "x" * 200 + "…"
        assert json.loads(line)["error"] == "x" * 16_384 + "…"

    def test_a_traceback_is_part_of_the_message(self) -> None:
        try:
            raise ZeroDivisionError("on purpose")
        except ZeroDivisionError as error:
            made = record(exc_info=(type(error), error, error.__traceback__))

        assert "ZeroDivisionError: on purpose" in as_json(made)["msg"]


def rubyjson_of(made: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = ruby_json.decode(JsonFormatter().format(made).encode())
    return fields


class TestPretty:
    def test_a_line_has_time_process_level_and_message(self) -> None:
        line = PrettyFormatter(coloured=False).format(record(process=77))

        assert line.endswith(" 77 info hello")

    def test_the_job_stands_before_the_message(self, in_job: JobContext) -> None:
        assert "[Acme::Mail " + "a" * 24 + "] hello" in PrettyFormatter(coloured=False).format(record())

    def test_a_payload_can_neither_forge_a_line_nor_steer_a_terminal_nor_fill_it(self) -> None:
        name, jid = "Evil\n2026-11-20 1 info done", "\x1b[2J" + "x" * 1_000_000
        payload = {"class": name, "args": [], "jid": jid, "queue": "mails"}
        token = CURRENT_JOB.set(JobContext(payload, "mails", name, threading.Event()))
        try:
            line = PrettyFormatter(coloured=False).format(record())
        finally:
            CURRENT_JOB.reset(token)
        (done,) = PrettyFormatter(coloured=False).done([(1_795_168_740.5, 4_711, jid, name, "mails", 0.5, None)])

        for each in (line, done):
            assert each.isprintable()
            assert len(line) < 1_000

    def test_an_error_of_a_job_can_neither_forge_a_line_nor_steer_a_terminal(self) -> None:
        evil = "\x1b[2J\x9b31m\n2026-11-20T00:00:00.000Z 1 info done\r2026"
        made = record(evil, name="kiqcluster", event_fields={"traceback": f"Traceback\n  evil\nValueError: {evil}\n"})

        first, *others = PrettyFormatter(coloured=False).format(made).split("\n")

        assert all(each.isprintable() for each in (first, *others))
        assert len(others) == 5
        assert all(each.startswith("  ") for each in (others[0], *others[2:]))
        assert others[1] == "Traceback"

    @pytest.mark.parametrize("level", [5, 10, 20, 25, 30, 40, 50, 60])
    def test_every_level_has_a_colour_an_applications_own_too(self, level: int) -> None:
        line = PrettyFormatter(coloured=True).format(record(level=level))

        assert line.startswith("\x1b[")
        assert line.endswith("hello\x1b[0m")


class TestConfigure:
    @pytest.mark.parametrize(("log_format", "kind"), [("json", JsonFormatter), ("pretty", PrettyFormatter)])
    def test_the_format_is_the_one_asked_for(
        self, logger: logging.Logger, log_format: str, kind: type[logging.Formatter]
    ) -> None:
        log.configure(log_format, "info", io.StringIO())

        assert [type(handler.formatter) for handler in logger.handlers] == [kind]

    def test_auto_is_json_where_no_terminal_reads(self, logger: logging.Logger) -> None:
        log.configure("auto", "info", io.StringIO())

        assert isinstance(logger.handlers[0].formatter, JsonFormatter)

    def test_it_can_be_done_twice_without_double_lines(self, logger: logging.Logger) -> None:
        stream = io.StringIO()
        for _ in range(2):
            log.configure("json", "info", stream)
        logger.info("once")

        assert len(stream.getvalue().splitlines()) == 1

    def test_events_are_logged_from_their_level_on(self, logger: logging.Logger) -> None:
        stream, events = io.StringIO(), Events()
        log.configure("json", "warning", stream)
        log.word_events(events)

        events.emit("worker_left")
        events.emit("worker_orphaned")
        events.emit("nobody_has_words_for_this", odd=1)

        assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["worker_orphaned"]


class TestDone:
    """What is said once per job is formatted many at a time; the lines must be those that a record would have made."""

    LINE = (1_795_168_740.5, 4_711, "a" * 24, "Acme::Mail", "mails", 12.345678, None)
    ODD = ("", 'a"b\\', "two\nlines", "é", "\ud800", "\x00", "²", "%s {} %")

    @staticmethod
    def by_record(formatter: logging.Formatter, line: DoneLine) -> str:
        """Return what the formatter makes of the event that the job emits."""
        ended, thread, jid, name, queue, elapsed, request = line
        made = record(
            WORDING["job_done"][1].format(elapsed=elapsed), event_fields={"event": "job_done", "elapsed": elapsed}
        )
        made.created, made.thread = ended, thread
        payload = {"jid": jid, "correlation_id": request}
        token = CURRENT_JOB.set(JobContext(payload, queue, name, threading.Event()))
        try:
            return formatter.format(made)
        finally:
            CURRENT_JOB.reset(token)

    @pytest.mark.parametrize(
        "formatter", [JsonFormatter(), PrettyFormatter(coloured=True), PrettyFormatter(coloured=False)]
    )
    def test_a_line_is_what_the_record_would_have_made(self, formatter: JsonFormatter | PrettyFormatter) -> None:
        assert formatter.done([self.LINE]) == [self.by_record(formatter, self.LINE)]

    @pytest.mark.parametrize("place", [2, 3, 4, 6], ids=["jid", "class", "queue", "correlation_id"])
    @pytest.mark.parametrize("odd", ODD)
    def test_odd_names_make_the_same_line_too(self, place: int, odd: str) -> None:
        line: Any = (*self.LINE[:place], odd, *self.LINE[place + 1 :])

        for formatter in (JsonFormatter(), PrettyFormatter(coloured=False)):
            assert formatter.done([line]) == [self.by_record(formatter, line)]

    @pytest.mark.parametrize("elapsed", [0.0, 2.5e-06, 4e-07, 0.00012, 59.9999996, 86_400.125])
    def test_elapsed_is_a_number_to_the_microsecond(self, elapsed: float) -> None:
        (text,) = JsonFormatter().done([(*self.LINE[:5], elapsed, None)])

        assert json.loads(text)["elapsed"] == pytest.approx(elapsed, abs=5.1e-07)

    def test_lines_keep_their_order_and_times(self) -> None:
        texts = JsonFormatter().done([(second / 4, *self.LINE[1:]) for second in range(6)])

        assert [json.loads(text)["ts"][17:] for text in texts] == [
            "00.000Z", "00.250Z", "00.500Z", "00.750Z", "01.000Z", "01.250Z",
        ]  # fmt: skip


def add_handler(handler: logging.StreamHandler[TextIO]) -> None:
    log.LOGGER.addHandler(logging.NullHandler())


def add_filter(handler: logging.StreamHandler[TextIO]) -> None:
    log.LOGGER.addFilter(lambda _: True)


def propagate(handler: logging.StreamHandler[TextIO]) -> None:
    log.LOGGER.propagate = True


def raise_level(handler: logging.StreamHandler[TextIO]) -> None:
    log.LOGGER.setLevel("WARNING")


class TestShortcut:
    """The way around logging is open only while it leads to the same."""

    @pytest.fixture
    def stream(self, logger: logging.Logger, tmp_path: Path) -> Iterator[TextIO]:
        with (tmp_path / "log").open("w") as stream:
            yield stream
        logger.filters.clear()

    @staticmethod
    def find() -> log.Shortcut | None:
        events = Events()
        log.word_events(events)
        return log.Shortcut.find(events)

    def test_it_is_open_while_only_our_handler_is_there(self, stream: TextIO) -> None:
        log.configure("json", "info", stream)

        found = self.find()

        assert found is not None
        assert found.is_open()

    @pytest.mark.parametrize(
        "change",
        [
            add_handler,
            add_filter,
            propagate,
            raise_level,
            lambda handler: handler.addFilter(lambda _: True),
            lambda handler: handler.setFormatter(logging.Formatter()),
            lambda handler: handler.setLevel("ERROR"),
            lambda handler: handler.setStream(io.StringIO()),
        ],
        ids=[
            "handler", "filter", "propagation", "level",
            "handler's filter", "formatter", "handler's level", "stream",
        ],
    )  # fmt: skip
    def test_whatever_the_application_changes_closes_it(
        self, logger: logging.Logger, stream: TextIO, change: Callable[[logging.StreamHandler[TextIO]], object]
    ) -> None:
        log.configure("json", "info", stream)
        found = self.find()
        assert found is not None

        change(found.handler)

        assert not found.is_open()

    def test_what_is_for_all_loggers_closes_it_not(self, logger: logging.Logger, stream: TextIO) -> None:
        log.configure("json", "info", stream)
        found = self.find()
        assert found is not None

        logger.disabled = True
        logging.disable(logging.CRITICAL)
        is_open = found.is_open()
        logging.disable(logging.NOTSET)

        assert is_open

    def test_there_is_none_where_others_listen(self, stream: TextIO) -> None:
        log.configure("json", "info", stream)
        events = Events()
        log.word_events(events)
        events.listen(lambda event, fields: None)

        assert log.Shortcut.find(events) is None

    def test_there_is_none_without_a_descriptor(self, logger: logging.Logger) -> None:
        log.configure("json", "info", io.StringIO())

        assert self.find() is None

    def test_there_is_none_where_nobody_wants_the_line(self, stream: TextIO) -> None:
        log.configure("json", "warning", stream)

        assert self.find() is None


def emitted() -> list[tuple[str, str, set[str]]]:
    """Return (place, event, fields) of every `….emit("event", field=…)` in the package."""
    found = []
    for path in sorted(Path(kiqcluster.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "emit":
                name = node.args[0] if node.args else None
                if isinstance(name, ast.Constant):
                    fields = {keyword.arg or "**" for keyword in node.keywords}
                    found.append((f"{path.name}:{node.lineno}", str(name.value), fields))
    return found


def test_every_event_brings_the_fields_that_its_words_need() -> None:
    missing = []
    for place, event, fields in emitted():
        wording = WORDING.get(event, (0, ""))[1]
        needed = {name.split(".")[0] for _, name, _, _ in string.Formatter().parse(wording) if name}
        if "**" not in fields and not needed <= fields:
            missing.append(f"{place} {event} lacks {sorted(needed - fields)}")

    assert emitted()
    assert missing == []


def test_every_wording_belongs_to_an_event() -> None:
    package = "".join(
        path.read_text() for path in Path(kiqcluster.__file__).parent.rglob("*.py") if path.name != "wording.py"
    )

    assert [event for event in WORDING if f'"{event}"' not in package] == []
