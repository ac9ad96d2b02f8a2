"""The beat guard: what an application wrote does not hold up a thread on which a beat depends."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar

import pytest

from kiqcluster.process.boundary import beat_guard
from kiqcluster.process.boundary.beat_guard import BeatGuard
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.process.logs import log
from kiqcluster.process.runtime import Runtime, Setup
from tests.kit import TIMEOUT_SECONDS

WORD: ContextVar[str] = ContextVar("word", default="")


class Hanging:
    """Code of the application that hangs until the test ends.  threads: in which it was called."""

    def __init__(self) -> None:
        self.begun, self.release = threading.Event(), threading.Event()
        self.threads: list[str] = []

    def __call__(self, *_: object) -> None:
        self.threads.append(threading.current_thread().name)
        self.begun.set()
        self.release.wait(TIMEOUT_SECONDS)


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    hanging = Hanging()
    yield hanging
    hanging.release.set()


@pytest.fixture
def crashes() -> list[str]:
    return []


@pytest.fixture
def guard(crashes: list[str]) -> Iterator[BeatGuard]:
    guard = BeatGuard(lambda name, error: crashes.append(f"{name}: {error}"))
    guard.enter()
    yield guard
    for calls in (guard._hooks, guard._lines):
        calls.stop()


@pytest.fixture
def runtime(setup: Setup, guard: BeatGuard) -> Iterator[Runtime]:
    setup.beat_guard = guard
    yield Runtime(Config(), setup.current_store(), setup, Events())
    guard.leave()


def test_only_a_thread_that_beats_hands_over(guard: BeatGuard) -> None:
    answers: list[bool] = []
    other = threading.Thread(target=lambda: answers.append(guard.hand_over(lambda: None)))
    other.start()
    other.join()

    answers.append(guard.hand_over(lambda: None))
    guard.leave()
    answers.append(guard.hand_over(lambda: None))

    assert answers == [False, True, False]
    assert guard.finish(TIMEOUT_SECONDS)


def test_calls_are_made_in_order_with_the_variables_of_their_thread(guard: BeatGuard) -> None:
    seen: list[str] = []
    for word in ("a", "b", "c"):
        WORD.set(word)
        guard.hand_over(lambda: seen.append(WORD.get()))

    assert guard.finish(TIMEOUT_SECONDS)
    assert seen == ["a", "b", "c"]


def test_one_that_hangs_holds_up_neither_the_caller_nor_the_log(guard: BeatGuard, hanging: Hanging) -> None:
    lines = threading.Event()

    assert guard.hand_over(hanging)
    assert guard.hand_over_line(lines.set)

    assert lines.wait(TIMEOUT_SECONDS)
    assert not guard.finish(0.0)


def test_few_calls_wait_behind_one_that_hangs(
    guard: BeatGuard, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beat_guard, "MAX_WAITING_CALLS", 3)
    calls: list[int] = []
    guard.hand_over(hanging)
    assert hanging.begun.wait(TIMEOUT_SECONDS)

    for number in range(9):
        guard.hand_over(lambda number=number: calls.append(number), "beat" if number < 3 else "")  # type: ignore[misc]
    hanging.release.set()

    assert guard.finish(TIMEOUT_SECONDS)
    assert calls == [0, 3, 4], "the beats are made once, and what is too many not at all"


def test_one_that_fails_is_reported_and_the_next_is_made(guard: BeatGuard, crashes: list[str]) -> None:
    done = threading.Event()

    guard.hand_over(lambda: 1 / 0)
    assert guard.finish(TIMEOUT_SECONDS)
    while not done.is_set():  # the thread may be about to end
        guard.hand_over(done.set)
        done.wait(0.01)

    assert crashes == ["hooks: division by zero"]


@pytest.mark.parametrize("what", ["error handler", "log handler", "beat hook", "event"])
def test_whatever_an_application_adds_runs_elsewhere(runtime: Runtime, hanging: Hanging, what: str) -> None:
    """A thread that beats goes on, though its code hangs."""
    setup, handler = runtime.setup, logging.Handler()
    handler.emit = hanging  # type: ignore[method-assign]
    log.word_events(runtime.events)
    calls: dict[str, Callable[[], object]] = {
        "error handler": lambda: runtime.trouble("recovery", ValueError("x")),
        "log handler": lambda: runtime.trouble("recovery", ValueError("x")),
        "beat hook": lambda: runtime.run_beat_hooks("beat"),
        "event": lambda: runtime.events.emit("service_crashed", service="me", error="x"),
    }
    if what == "error handler":
        setup.error_handler(hanging)
    elif what == "beat hook":
        setup.hooks.on("beat")(hanging)
    else:
        log.LOGGER.addHandler(handler)

    calls[what]()

    assert hanging.begun.wait(TIMEOUT_SECONDS)
    hanging.release.set()
    log.LOGGER.removeHandler(handler)
    assert threading.current_thread().name not in hanging.threads


def test_a_line_that_is_written_elsewhere_names_the_thread_and_the_time_of_its_event(runtime: Runtime) -> None:
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    log.LOGGER.addHandler(handler)
    log.word_events(runtime.events)

    runtime.events.emit("service_crashed", service="me", error="x")

    assert runtime.setup.beat_guard is not None
    assert runtime.setup.beat_guard.finish(TIMEOUT_SECONDS)
    log.LOGGER.removeHandler(handler)
    (record,) = records
    assert record.thread == threading.get_ident()
    assert (record.levelname, record.event_fields["event"]) == ("ERROR", "service_crashed")  # type: ignore[attr-defined]
    assert "me" in record.getMessage()
