"""Handlers: lines leave whole, beside what jobs print, and whatever their reader does."""

from __future__ import annotations

import ctypes
import fcntl
import io
import json
import logging
import os
import select
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import pytest

from kiqcluster.process.logs import log
from kiqcluster.process.logs.handlers import DroppingHandler, LineHandler
from kiqcluster.sidekiq import ruby_json
from tests.kit import TIMEOUT_SECONDS, is_in, wait_until

Handler = type[LineHandler]


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    """A pipe's read end, and its write end as a stream."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    with os.fdopen(writer, "w") as stream:
        yield reader, stream
    with suppress(OSError):
        os.close(reader)


def unbuffered(stream: TextIO) -> TextIO:
    """Return what standard output is under PYTHONUNBUFFERED: every piece of a print leaves by itself."""
    raw = os.fdopen(os.dup(stream.fileno()), "wb", buffering=0)
    return io.TextIOWrapper(raw, write_through=True)  # type: ignore[type-var]  # Python itself puts it over a raw file


def fill(stream: TextIO) -> int:
    """Write until the pipe takes nothing more; return the bytes."""
    os.set_blocking(stream.fileno(), False)
    size = 0
    with suppress(BlockingIOError):
        while True:
            size += os.write(stream.fileno(), b"x" * select.PIPE_BUF)
    os.set_blocking(stream.fileno(), True)
    return size


def drain(reader: int) -> list[dict[str, Any]]:
    """Return the JSON lines that arrive."""
    data = b""
    with suppress(BlockingIOError):
        while chunk := os.read(reader, 1 << 20):
            data += chunk
    return [json.loads(line) for line in data.lstrip(b"x").splitlines() if line]


@pytest.mark.parametrize("handler", [LineHandler, DroppingHandler])
def test_lines_are_written_as_by_any_other_handler(
    logger: logging.Logger, pipe: tuple[int, TextIO], handler: Handler
) -> None:
    reader, stream = pipe
    log.configure("json", "info", stream, handler)

    logger.info("short")
    logger.info("long %s", "é" * 10_000)

    assert [line["msg"] for line in drain(reader)] == ["short", f"long {'é' * 10_000}"]


@pytest.mark.parametrize("is_unbuffered", [False, True])
@pytest.mark.parametrize("handler", [LineHandler, DroppingHandler])
def test_a_line_that_is_being_printed_is_not_torn_and_tears_none(
    logger: logging.Logger, pipe: tuple[int, TextIO], handler: Handler, is_unbuffered: bool
) -> None:
    reader, stream = pipe
    if is_unbuffered:
        stream = unbuffered(stream)
    log.configure("json", "info", stream, handler)

    stream.write("no")  # as print writes its pieces, between which other threads run
    logger.info("logged")
    stream.write("ted\n")

    logged, printed = os.read(reader, 1 << 20).splitlines()
    assert json.loads(logged)["msg"] == "logged"
    assert printed == b"noted"


def test_what_is_printed_leaves_with_its_line(logger: logging.Logger, pipe: tuple[int, TextIO]) -> None:
    reader, stream = pipe
    log.configure("json", "info", stream)

    print("noted", "a", file=stream)

    assert os.read(reader, 1 << 20) == b"noted a\n"


def test_a_descriptor_that_does_not_block_is_waited_for(logger: logging.Logger, pipe: tuple[int, TextIO]) -> None:
    reader, stream = pipe
    log.configure("json", "info", stream)
    fill(stream)
    os.set_blocking(stream.fileno(), False)
    thread = threading.Thread(target=logger.info, args=("written",))

    thread.start()
    lines = list[dict[str, Any]]()
    wait_until(lambda: lines.extend(drain(reader)) or lines, "the line")
    thread.join(10)

    assert [line["msg"] for line in lines] == ["written"]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("handler", [LineHandler, DroppingHandler])
def test_every_character_comes_out_whatever_the_streams_encoding(
    logger: logging.Logger, pipe: tuple[int, TextIO], handler: Handler, encoding: str
) -> None:
    reader, stream = pipe
    stream.reconfigure(encoding=encoding)  # type: ignore[attr-defined]  # of TextIOWrapper
    log.configure("json", "info", stream, handler)

    logger.info("é 😀 \ud800")

    assert [ruby_json.decode(line)["msg"] for line in os.read(reader, 1 << 20).splitlines()] == ["é 😀 \ud800"]


@pytest.mark.parametrize("handler", [LineHandler, DroppingHandler])
def test_after_the_stream_was_closed_nothing_is_written_to_whoever_has_its_descriptor(
    logger: logging.Logger, handler: Handler
) -> None:
    reader, writer = os.pipe()
    stream = os.fdopen(os.dup(writer), "w")
    log.configure("json", "info", stream, handler)
    descriptor = stream.fileno()
    stream.close()
    os.dup2(writer, descriptor)
    os.close(writer)

    logger.info("for nobody")

    os.close(descriptor)
    assert os.read(reader, 100) == b""
    os.close(reader)


def test_what_a_handler_cannot_format_is_told_and_ends_nobody(
    logger: logging.Logger, pipe: tuple[int, TextIO], capfd: pytest.CaptureFixture[str]
) -> None:
    reader, stream = pipe
    log.configure("json", "info", stream, DroppingHandler)

    logger.info("%d", "no number")
    logger.info("written")

    assert [line["msg"] for line in drain(reader)] == ["written"]
    assert "no number" in capfd.readouterr().err


def test_what_a_full_pipe_does_not_take_is_dropped_and_counted(
    logger: logging.Logger, pipe: tuple[int, TextIO]
) -> None:
    reader, stream = pipe
    log.configure("json", "info", stream, DroppingHandler)
    fill(stream)

    for number in range(3):
        logger.info("dropped %d", number)
    drain(reader)
    logger.info("written")

    note, line = drain(reader)
    assert (note["event"], note["lines"]) == ("lines_dropped", 3)
    assert line["msg"] == "written"


class _Crowded:
    """A pipe that is writable for a moment, and full again before we write: another process was faster."""

    def __init__(self, reader: int, stream: TextIO) -> None:
        self.looks = 0
        self._reader, self._stream, self._poll = reader, stream, select.poll()
        self._poll.register(stream, select.POLLOUT)

    def poll(self, milliseconds: float) -> list[tuple[int, int]]:
        self.looks += 1
        os.read(self._reader, select.PIPE_BUF)
        found = self._poll.poll(milliseconds)
        fill(self._stream)
        return found


def test_a_pipe_that_other_processes_fill_again_and_again_is_not_waited_for(
    logger: logging.Logger, pipe: tuple[int, TextIO]
) -> None:
    reader, stream = pipe
    log.configure("json", "info", stream, DroppingHandler)
    (handler,) = logger.handlers
    assert isinstance(handler, DroppingHandler)
    crowded = _Crowded(reader, stream)
    handler._poll = crowded  # type: ignore[assignment]
    fill(stream)
    thread = threading.Thread(target=logger.info, args=("dropped",), daemon=True)

    thread.start()
    thread.join(TIMEOUT_SECONDS)

    assert not thread.is_alive()
    assert crowded.looks > 1
    drain(reader)
    logger.info("written")
    assert [line.get("lines", line["msg"]) for line in drain(reader)] == [1, "written"]


@pytest.mark.parametrize("handler", [LineHandler, DroppingHandler])
def test_what_a_full_disk_does_not_take_is_counted_once_there_is_room(
    logger: logging.Logger, pipe: tuple[int, TextIO], handler: Handler
) -> None:
    reader, elsewhere = pipe
    with Path("/dev/full").open("w") as stream:
        log.configure("json", "info", stream, handler)
        for number in range(3):
            logger.info("dropped %d", number)
        os.dup2(elsewhere.fileno(), stream.fileno())  # room is made
        logger.info("written")
        logger.info("written, too")

    note, *lines = drain(reader)
    assert (note["event"], note["lines"]) == ("lines_dropped", 3)
    assert [line["msg"] for line in lines] == ["written", "written, too"]


def test_a_line_that_is_cut_off_spoils_no_other(logger: logging.Logger, pipe: tuple[int, TextIO]) -> None:
    reader, stream = pipe
    log.configure("pretty", "info", stream, DroppingHandler)
    fill(stream)
    os.read(reader, 2 * select.PIPE_BUF)

    logger.info("y" * 100_000)
    rest = os.read(reader, 1 << 20).lstrip(b"x")
    logger.info("written")

    assert b"\n" not in rest
    lines = os.read(reader, 1 << 20).decode().split("\n")
    assert (lines[0], lines[2][-7:], lines[3]) == ("", "written", "")
    assert "1 lines" in lines[1]


@pytest.mark.parametrize("handler", [LineHandler, DroppingHandler])
def test_a_reader_that_has_gone_is_no_error(
    logger: logging.Logger, pipe: tuple[int, TextIO], capfd: pytest.CaptureFixture[str], handler: Handler
) -> None:
    reader, stream = pipe
    log.configure("json", "info", stream, handler)
    os.close(reader)

    logger.info("nobody hears this")

    assert capfd.readouterr().err == ""  # where logging tells of handlers that fail


def test_an_exception_from_outside_leaves_the_lock_free(pipe: tuple[int, TextIO]) -> None:
    """A library may raise a time limit in the thread of a job that writes a line."""
    handler = LineHandler(pipe[1])
    raised: list[BaseException] = []

    def write() -> None:
        try:
            handler.handle(logging.LogRecord("x", logging.INFO, "", 0, "line", None, None))
        except TimeoutError as late:
            raised.append(late)

    thread = threading.Thread(target=write, daemon=True)
    assert handler.lock is not None
    with handler.lock:
        thread.start()
        wait_until(lambda: is_in(thread, "handle"), "the thread to wait for the lock")
        assert thread.ident is not None
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(TimeoutError))
    thread.join(TIMEOUT_SECONDS)

    assert not thread.is_alive()
    assert handler.lock.acquire(timeout=TIMEOUT_SECONDS)  # type: ignore[call-arg]


def test_a_long_line_is_not_torn_by_another_process(logger: logging.Logger, pipe: tuple[int, TextIO]) -> None:
    """Processes of a cluster share a pipe, and no lock."""
    reader, stream = pipe
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 1 << 20)  # room for all
    log.configure("json", "info", stream, DroppingHandler)
    begun, begin = os.pipe()
    other = os.fork()
    if other == 0:
        os.write(begin, b"1")
        for _ in range(10_000):
            os.write(stream.fileno(), b'{"of": "the other"}\n')
        os._exit(0)

    os.read(begun, 1)
    for _ in range(50):
        logger.info("x" * 3 * select.PIPE_BUF)
    os.waitpid(other, 0)

    lines = drain(reader)
    assert sum("of" in line for line in lines) == 10_000
    assert sum(len(line.get("msg", "")) == 3 * select.PIPE_BUF for line in lines) == 50
    os.close(begun)
    os.close(begin)


def test_a_long_line_in_a_file_is_not_torn_by_another_process(
    logger: logging.Logger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write = tmp_path / "log", os.write
    with path.open("a") as stream, path.open("ab", buffering=0) as others:

        def write_and_be_followed(descriptor: int, data: bytes) -> int:
            size = write(descriptor, data)
            others.write(b'{"msg": "of the other"}\n')
            return size

        log.configure("json", "info", stream, DroppingHandler)
        monkeypatch.setattr(os, "write", write_and_be_followed)
        logger.info("x" * 3 * select.PIPE_BUF)

    lines = [json.loads(line)["msg"] for line in path.read_text().splitlines()]
    assert lines == ["x" * 3 * select.PIPE_BUF, "of the other"]
