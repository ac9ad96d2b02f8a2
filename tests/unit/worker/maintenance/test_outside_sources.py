"""When a source outside of Redis is asked, and what becomes of its errors."""

from __future__ import annotations

import pytest

from kiqcluster.process.clock import Clock, SystemClock
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.process.runtime import Runtime, Setup
from kiqcluster.store import Store
from kiqcluster.worker.maintenance.outside_sources import SourceMover, pause_after
from tests.kit import ManualClock


class Source:
    """Does what the test says: a number of further batches, or an error."""

    name = "shop"
    interval = 1.0

    def __init__(self, *answers: bool | Exception) -> None:
        self.answers = list(answers)

    def move(self) -> bool:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def errors(setup: Setup) -> list[str]:
    found: list[str] = []
    setup.error_handler(lambda error, context: found.append(f"{context['context']}: {error}"))
    return found


def mover(source: Source, setup: Setup, clock: Clock | None = None) -> SourceMover:
    nowhere = Store("redis://127.0.0.1:1/0", timeout=0.1)
    return SourceMover(source, Runtime(Config(), nowhere, setup, Events(), clock or SystemClock()), lambda *_: None)


def test_a_look_goes_on_until_nothing_more_waits(setup: Setup) -> None:
    source = Source(True, True, False, True)
    mover(source, setup).look()
    assert source.answers == [True]


def test_a_stop_ends_a_look_after_its_batch(setup: Setup) -> None:
    source = Source(True, True)
    moving = mover(source, setup)
    moving.stop()
    moving.look()
    assert source.answers == [True]


def test_an_error_is_reported_once_until_it_has_gone(setup: Setup, errors: list[str]) -> None:
    source = Source(OSError("a"), OSError("b"), ValueError("c"), False, ValueError("d"))
    moving = mover(source, setup)
    while source.answers:
        moving.look()
    assert errors == ["shop: a", "shop: c", "shop: d"]


def test_pauses_grow_with_failures() -> None:
    assert [pause_after(failures, 1.0) for failures in (0, 1, 2, 3, 10, 1000)] == [1.0, 2.0, 4.0, 8.0, 60.0, 60.0]
    assert pause_after(1, 100.0) == 100.0


def test_without_redis_each_process_looks_once_in_the_interval(setup: Setup) -> None:
    clock = ManualClock()
    moving = mover(Source(), setup, clock)

    assert moving._is_due()
    assert moving._duties.next_look == clock.time + Source.interval
