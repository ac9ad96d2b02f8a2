"""What a run held ends with the run, without the collector of cycles, which may come late."""

from __future__ import annotations

import gc
import mmap
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from kiqcluster import Job, RetryError, current_job, job, job_logger
from kiqcluster.application.registry import Registry
from kiqcluster.contrib import otel, statsd
from kiqcluster.errors import NormalFailure
from kiqcluster.iterable import IterableJob
from kiqcluster.process.logs.log import LOGGER
from kiqcluster.process.runtime import Run, Setup
from kiqcluster.sidekiq.outcome import Outcome
from kiqcluster.store import Store
from tests.kit import require_module, wait_until
from tests.threaded_worker import ThreadedWorker
from tests.tracing import Spans

require_module("sentry_sdk")

from tests.sentry import reporting  # noqa: E402  # it may be missing

LARGE = 100_000_000  # bytes
ERRORS = {"none": None, "value": ValueError, "retry": RetryError, "normal": NormalFailure, "exit": SystemExit}


class Large(mmap.mmap):
    """Memory that counts once somebody writes there; its text is short, for reporters that show local variables."""

    def __repr__(self) -> str:
        return "Large"


class OpenFile:
    """A file that is closed when nobody holds it any more."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)

    def __del__(self) -> None:
        os.close(self.descriptor)


class Held:
    """The objects that jobs hold, by what the job does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.references: list[tuple[str, weakref.ref[Any]]] = []

    def hold(self, word: str) -> tuple[Large, OpenFile]:
        large, file = Large(-1, LARGE), OpenFile(self.path)
        self.references += [(word, weakref.ref(large)), (word, weakref.ref(file))]
        return large, file

    def end(self, word: str) -> tuple[Large, OpenFile]:
        """Hold objects as locals of a frame, and raise the error of that word, or return them."""
        objects = self.hold(word)
        if (error := ERRORS[word]) is not None:
            raise error("on purpose")
        return objects

    def left(self) -> list[str]:
        return [f"{word}: {type(each).__name__}" for word, found in self.references if (each := found()) is not None]


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    """Objects of jobs; the collector of cycles is off meanwhile, and pytest keeps no errors of lines of the log."""
    monkeypatch.setattr(LOGGER, "filters", [lambda _record: False])
    gc.collect()
    gc.disable()
    yield Held(tmp_path / "held")
    gc.enable()


def by_function(held: Held) -> None:
    @job(name="Holding")
    def holding(word: str) -> Any:
        objects, running = held.hold(word), current_job()
        assert running is not None
        running.log_extra_metadata_on_done("held", objects)
        return objects, held.end(word)


def by_class(held: Held) -> None:
    class Holding(Job):
        objects: Any = None

        def perform(self, word: str) -> Any:
            self.objects = held.hold(word)
            return held.end(word)

        def retry_in(self, _count: int, error: BaseException, _payload: object) -> int:
            raise ValueError("on purpose, too") from error


def by_coroutine(held: Held) -> None:
    @job(name="Holding")
    async def holding(word: str) -> Any:
        objects = held.hold(word)
        return objects, held.end(word)


def by_items(held: Held) -> None:
    class Holding(IterableJob):
        objects: Any = None

        def build_enumerator(self, word: str, cursor: Any) -> Any:
            self.objects = held.hold(word)
            return iter([(word, 1)])

        def each_iteration(self, item: str, word: str) -> None:
            held.end(item)


def plain(_setup: Setup) -> None: ...


def around(setup: Setup) -> None:
    @setup.server_middleware.add
    def middleware(run: Run, proceed: Callable[[], Outcome | None]) -> Outcome | None:
        try:
            return proceed()
        except ValueError as error:
            raise ValueError("again") from error


def around_both(setup: Setup) -> None:
    class Middleware:
        def __call__(self, run: Run, proceed: Callable[[], Outcome | None]) -> Outcome | None:
            return proceed()

        async def acall(self, run: Run, proceed: Callable[[], Any]) -> Outcome | None:
            returned: Outcome | None = await proceed()
            return returned

    setup.server_middleware.add(Middleware())


def logged(_setup: Setup) -> None:
    @job_logger
    class Lines:
        def prepare(self, item: object, proceed: Callable[[], None]) -> None:
            proceed()

        def call(self, item: object, queue: str, proceed: Callable[[], None]) -> None:
            proceed()


def counted(_setup: Setup) -> None:
    statsd.instrument(Mock(spec=["increment", "timing"]))


def traced(_setup: Setup) -> None:
    otel.instrument(Spans().provider)


def reported(_setup: Setup) -> AbstractContextManager[object]:
    return reporting()


def handled(setup: Setup) -> None:
    def fail(*_: object) -> None:
        raise ValueError

    setup.error_handler(fail)
    setup.death_handler(fail)


@pytest.mark.parametrize("within", [plain, around, around_both, logged, counted, traced, reported, handled])
@pytest.mark.parametrize("way", [by_function, by_class, by_coroutine, by_items])
def test_what_a_run_held_is_free_when_it_has_ended(
    store: Store,
    setup: Setup,
    registry: Registry,
    held: Held,
    way: Callable[[Held], None],
    within: Callable[[Setup], AbstractContextManager[object] | None],
) -> None:
    way(held)

    with within(setup) or nullcontext(), ThreadedWorker(store, setup, registry) as worker:
        for word in ERRORS:
            worker.push_job("Holding", word)
            worker.push_job("Holding", word, retry=0)
        worker.run_all()

        assert {word for word, _ in held.references} == set(ERRORS)
        wait_until(lambda: held.left() == [], f"each thread to let go of its last job: {held.left()}", 5.0)
