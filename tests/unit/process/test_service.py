"""Service: a thread that the system does not give is told once, and is started when there is one again.

The system is asked for a stack that no address space holds, so the threads that fail here fail in the kernel.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kiqcluster.process.service import NoThread, Service, beside_loops, run_coroutine
from tests.kit import TIMEOUT_SECONDS

STACK_BYTES = 1 << 46


class Bench(Service):
    """Tells when it runs, and what it was told."""

    def __init__(self) -> None:
        super().__init__("bench", lambda name, error: self.reports.append((name, str(error))))
        self.reports: list[tuple[str, str]] = []
        self.runs = threading.Event()

    def run(self) -> None:
        self.runs.set()
        self.stopping.wait()


class Lying(BaseException):
    __class__ = property(lambda _: 1 // 0)  # type: ignore[assignment]


@contextmanager
def no_threads() -> Iterator[None]:
    """Have the system refuse threads for a `with` block."""
    before = threading.stack_size(STACK_BYTES)
    try:
        yield
    finally:
        threading.stack_size(before)


def test_a_thread_that_the_system_does_not_give_is_told_once_and_starts_when_it_does() -> None:
    bench = Bench()

    with no_threads():
        bench.start()
        bench.start()
        assert not bench.is_alive
        assert bench.ident == 0

    assert [name for name, _ in bench.reports] == ["bench"]
    assert "no thread" in bench.reports[0][1]
    bench.start()
    assert bench.runs.wait(TIMEOUT_SECONDS)
    bench.stop()
    assert bench.join(TIMEOUT_SECONDS)


def test_a_caller_who_needs_the_thread_gets_an_error_each_time() -> None:
    bench = Bench()

    with no_threads():
        for _ in range(2):
            with pytest.raises(NoThread, match="no thread"):
                bench.start_or_raise()


def test_an_error_that_lies_about_its_class_is_reported() -> None:
    class Failing(Bench):
        def run(self) -> None:
            raise Lying("on purpose")

    bench = Failing()
    bench.start()
    assert bench.join(TIMEOUT_SECONDS)

    assert bench.reports == [("bench", f"{__name__}.Lying: on purpose")]


@pytest.mark.timeout(60)  # asyncio.run alone would never end
def test_a_coroutine_that_raises_an_error_which_lies_about_its_class_ends() -> None:
    async def fail() -> None:
        raise Lying("on purpose")

    with pytest.raises(Lying):
        run_coroutine(fail())


def test_a_function_beside_a_loop_that_gets_no_thread_raises() -> None:
    async def call() -> None:
        with no_threads():
            beside_loops(lambda: None)

    with pytest.raises(NoThread):
        asyncio.run(call())


def test_a_service_without_a_thread_can_be_stopped_and_joined() -> None:
    bench = Bench()
    with no_threads():
        bench.start()

    bench.stop()

    assert bench.join(TIMEOUT_SECONDS)
    bench.start()  # it was stopped
    assert not bench.is_alive
