"""The job log: every done line comes out whole, and nobody but its own thread waits for the reader."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import pytest

from kiqcluster.process.events import Events
from kiqcluster.process.job_context import CURRENT_JOB, JobContext
from kiqcluster.process.logs import log
from kiqcluster.worker.run import job_log
from kiqcluster.worker.run.job_log import MAX_WAITING_LINES, JobLog
from tests.kit import TIMEOUT_SECONDS, ManualClock, wait_until


class Reader:
    """The read end of a pipe; a thread reads on once it is told to, and closes it at the end."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.data = bytearray()
        self.is_idle = True
        self._thread = threading.Thread(target=self._read, daemon=True)

    def start(self) -> None:
        self.is_idle = False
        self._thread.start()

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines so far, all of them JSON."""
        return [json.loads(line) for line in self.data.splitlines()]

    def read_all(self) -> list[dict[str, Any]]:
        """Return the lines up to the end; the write end must be closed."""
        self.join()
        return self.lines()

    def join(self) -> None:
        if self._thread.is_alive():
            self._thread.join(10)

    def _read(self) -> None:
        while chunk := os.read(self.descriptor, 1 << 16):
            self.data.extend(chunk)
        os.close(self.descriptor)


class Bench:
    """A job log that writes to a pipe, as a worker's does."""

    def __init__(self) -> None:
        reading, writing = os.pipe()
        self.stream: TextIO = os.fdopen(writing, "w")
        self.reader = Reader(reading)
        self.crashes: list[Exception] = []
        self.joblog = JobLog(Events(), ManualClock(), self._crashed)

    def open(self, level: str = "info", *, reading: bool = True) -> None:
        """Start the log.  In the test itself: pytest adds handlers of its own to what is configured before."""
        log.configure("json", level, self.stream)
        log.adopt_root(["info"])
        events = Events()
        log.word_events(events)
        self.joblog = JobLog(events, ManualClock(), self._crashed)
        self.joblog.start()
        if reading:
            self.reader.start()

    def say(self, jid: object, **payload: Any) -> None:
        """Say that a job is done, within its context."""
        context = JobContext({"jid": jid, **payload}, "default", "noop", threading.Event())
        token = CURRENT_JOB.set(context)
        self.joblog.log_done(context.payload, "noop", "default", 0.25)
        CURRENT_JOB.reset(token)

    def close(self) -> list[dict[str, Any]]:
        """End the log and return all its lines."""
        self.joblog.end()
        self.stream.close()
        return self.reader.read_all()

    def _crashed(self, _service: str, error: Exception) -> None:
        self.crashes.append(error)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """One whose end waits for its reader however slow the machine is."""
    monkeypatch.setattr(job_log, "LAST_WRITE_SECONDS", TIMEOUT_SECONDS)
    ours, root = log.LOGGER, logging.getLogger()
    before = (ours.filters[:], ours.level, ours.propagate, root.level)
    bench = Bench()
    yield bench
    if bench.reader.is_idle:
        os.close(bench.reader.descriptor)  # whoever still writes gets an error
    bench.joblog.end()
    bench.joblog.join(10)
    with suppress(OSError):
        bench.stream.close()
    bench.reader.join()
    ours.handlers.clear()
    ours.filters[:], level, ours.propagate, root_level = before
    ours.setLevel(level)
    root.setLevel(root_level)
    assert bench.crashes == []


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have jobs wait for room until there is some: the reader does read."""
    monkeypatch.setattr(job_log, "MAX_ROOM_WAIT_SECONDS", TIMEOUT_SECONDS)


def jids(lines: list[dict[str, Any]]) -> list[str]:
    return [line["ctx"]["jid"] for line in lines if line.get("event") == "job_done"]


def test_a_line_comes_out_by_itself(bench: Bench) -> None:
    bench.open()

    bench.say("a" * 24)

    wait_until(lambda: b"\n" in bench.reader.data, "the line")
    assert jids(bench.reader.lines()) == ["a" * 24]


@pytest.mark.usefixtures("unhurried")
def test_the_end_writes_what_is_there_in_order(bench: Bench) -> None:
    bench.open()
    said = [f"{number:024x}" for number in range(2 * MAX_WAITING_LINES)]

    for jid in said:
        bench.say(jid)

    assert jids(bench.close()) == said


@pytest.mark.usefixtures("unhurried")
def test_lines_of_several_threads_are_all_there_however_fast_they_come(bench: Bench) -> None:
    bench.open()
    said = [[f"{thread}{number:023x}" for number in range(MAX_WAITING_LINES)] for thread in range(4)]
    threads = [threading.Thread(target=lambda mine=mine: [bench.say(jid) for jid in mine]) for mine in said]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    lines = bench.close()
    assert {line["event"] for line in lines} == {"job_done"}
    assert sorted(jids(lines)) == sorted(jid for mine in said for jid in mine)


def test_a_reader_that_stalls_stops_nobody_and_every_line_is_written_or_counted(bench: Bench) -> None:
    bench.open(reading=False)
    said = [f"{number:024x}" for number in range(4 * MAX_WAITING_LINES)]

    for jid in said:
        bench.say(jid)
    bench.reader.start()
    wait_until(lambda: b"lines_dropped" in bench.reader.data, "the drop to be told")

    lines = bench.close()
    written = jids(lines)
    dropped = sum(line["lines"] for line in lines if line["event"] == "lines_dropped")
    assert len(written) >= MAX_WAITING_LINES
    assert written == said[: len(written)]  # the oldest are kept
    assert len(written) + dropped == len(said)


def test_lines_go_on_after_a_stall(bench: Bench) -> None:
    bench.open(reading=False)
    for number in range(4 * MAX_WAITING_LINES):
        bench.say(f"{number:024x}")
    bench.reader.start()
    wait_until(lambda: b"lines_dropped" in bench.reader.data, "the drop to be told")

    bench.say("after")

    wait_until(lambda: "after" in jids(bench.reader.lines()[-1:]), "the line after the stall")


@pytest.mark.usefixtures("unhurried")
def test_lines_of_others_on_the_same_pipe_stay_whole(bench: Bench) -> None:
    bench.open()
    other, is_over = b'{"event": "other", "pad": "%s"}\n' % (b"x" * 300), threading.Event()

    def write_on() -> None:
        """Keep the pipe full, so that both writers wait for room in it."""
        while not is_over.is_set():
            os.write(bench.stream.fileno(), other)

    theirs = threading.Thread(target=write_on)
    theirs.start()
    for number in range(MAX_WAITING_LINES):
        bench.say(f"{number:024x}")
    wait_until(lambda: f"{MAX_WAITING_LINES - 1:024x}".encode() in bench.reader.data, "the last line")
    is_over.set()
    theirs.join()

    assert len(jids(bench.close())) == MAX_WAITING_LINES


def test_the_line_of_a_huge_jid_is_cut_and_comes_out(bench: Bench) -> None:
    bench.open()
    longest = "é" * 50_000

    for jid in ("before", longest, "after"):
        bench.say(jid)

    assert jids(bench.close()) == ["before", "é" * 200 + "…", "after"]


def test_what_a_job_has_logged_and_printed_stands_before_its_done_line(bench: Bench) -> None:
    bench.open()
    bench.stream.write('{"event": "printed"}\n')
    log.LOGGER.info("logged")
    bench.stream.write('{"event": "printed later"}\n')

    bench.say("a" * 24)

    lines = bench.close()
    assert [line.get("event", line.get("msg")) for line in lines] == ["printed", "logged", "printed later", "job_done"]


@pytest.mark.parametrize(
    ("configured", "declared", "comes"),
    [
        ("info", None, True),
        ("info", "debug", True),
        ("info", "warning", False),
        ("warning", "info", True),
        ("warning", None, False),
        ("info", 7, True),
        ("info", "nonsense", True),
    ],
)
def test_the_level_that_a_job_declares_holds(bench: Bench, configured: str, declared: Any, *, comes: bool) -> None:
    bench.open(configured)

    bench.say("a" * 24, **({} if declared is None else {"log_level": declared}))

    assert bool(jids(bench.close())) is comes


def test_a_handler_of_the_applications_gets_records_from_the_job_itself(bench: Bench) -> None:
    bench.open()
    seen: list[tuple[Any, int]] = []
    handler = logging.Handler()
    handler.emit = lambda record: seen.append((record.__dict__["event_fields"], threading.get_ident()))  # type: ignore[method-assign]
    bench.say("before")

    log.LOGGER.addHandler(handler)
    bench.say("a" * 24)

    assert seen == [({"event": "job_done", "elapsed": 0.25}, threading.get_ident())]
    assert sorted(jids(bench.close())) == ["a" * 24, "before"]


def test_a_filter_of_the_applications_is_asked(bench: Bench) -> None:
    bench.open()

    log.LOGGER.addFilter(lambda _: False)
    bench.say("a" * 24)

    assert bench.close() == []


def test_a_reader_that_has_gone_is_no_error(bench: Bench) -> None:
    bench.open(reading=False)
    os.close(bench.reader.descriptor)
    bench.reader.is_idle = False

    for number in range(3 * MAX_WAITING_LINES):
        bench.say(f"{number:024x}")

    bench.joblog.end()
    assert not bench.joblog.is_alive


@pytest.mark.usefixtures("unhurried")
def test_what_a_full_disk_does_not_take_is_counted_once_there_is_room(bench: Bench) -> None:
    writing = os.dup(bench.stream.fileno())
    with Path("/dev/full").open("w") as full:
        os.dup2(full.fileno(), bench.stream.fileno())
    bench.open()
    for number in range(3):  # each in a write of its own, and each of these fails
        bench.say(f"{number}")
        wait_until(lambda number=number: bench.joblog._dropped == number + 1, "the drop to be noticed")
    os.dup2(writing, bench.stream.fileno())  # room is made
    os.close(writing)
    bench.say("last")

    lines = bench.close()
    assert jids(lines) == ["last"]
    assert [line["lines"] for line in lines if line["event"] == "lines_dropped"] == [3]


def test_a_descriptor_that_was_made_non_blocking_loses_nothing(bench: Bench) -> None:
    bench.open(reading=False)
    os.set_blocking(bench.stream.fileno(), False)
    said = [f"{number:024x}" for number in range(MAX_WAITING_LINES)]

    for jid in said:
        bench.say(jid)
    bench.reader.start()
    wait_until(lambda: said[-1].encode() in bench.reader.data, "the last line")

    assert jids(bench.close()) == said


def test_a_job_without_a_jid_that_is_text_is_logged_all_the_same(bench: Bench) -> None:
    bench.open()

    bench.say(12)

    assert jids(bench.close()) == ["12"]
