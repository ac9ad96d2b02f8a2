"""Iterable jobs without Redis: which classes are refused, the order of hooks, and what an iteration does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any

import pytest

from kiqcluster import Job
from kiqcluster.errors import AbortIteration, InvalidArguments, JobDefinitionError, UsageError
from kiqcluster.iterable import IterableJob, sequence_enumerator
from kiqcluster.testing import drain, enqueued, fake

pytestmark = pytest.mark.usefixtures("setup")


class Recording(IterableJob):
    """A base that notes what is called."""

    said: list[Any]

    def __init_subclass__(cls, **options: Any) -> None:
        cls.said = []
        super().__init_subclass__(**options)

    def on_start(self) -> None:
        self.said.append("start")

    def on_resume(self) -> None:
        self.said.append("resume")

    def on_stop(self) -> None:
        self.said.append("stop")

    def on_complete(self) -> None:
        self.said.append("complete")


@pytest.fixture
def letters() -> type[Recording]:
    class Letters(Recording):
        def build_enumerator(self, word: str, most: int = 9, *, cursor: int | None) -> Iterator[tuple[str, int]] | None:
            return sequence_enumerator(word, cursor=cursor) if word else None

        def each_iteration(self, letter: str, word: str, most: int = 9) -> None:
            if letter == "!":
                raise ValueError(letter)
            if self.cursor == most:
                raise AbortIteration
            self.said.append((letter, self.cursor, self.arguments))

    return Letters


def test_each_item_is_done_between_the_hooks(letters: Any) -> None:
    letters.perform_inline("ab")

    assert letters.said == ["start", ("a", 0, ("ab",)), ("b", 1, ("ab",)), "stop", "complete"]


def test_it_may_be_ended_early_and_is_complete(letters: Any) -> None:
    letters.perform_inline("abc", most=1)

    assert letters.said == ["start", ("a", 0, ("abc", 1)), "stop", "complete"]


def test_without_an_enumerator_there_is_nothing_to_do(letters: Any) -> None:
    letters.perform_inline("")

    assert letters.said == []


def test_without_items_it_is_complete() -> None:
    class Empty(Recording):
        def build_enumerator(self, cursor: Any) -> list[Any]:
            return []

        def each_iteration(self, item: Any) -> None: ...

    Empty.perform_inline()

    assert Empty.said == ["start", "stop", "complete"]


def test_an_error_ends_it_without_further_hooks(letters: Any) -> None:
    with pytest.raises(ValueError, match="!"):
        letters.perform_inline("a!c")

    assert letters.said == ["start", ("a", 0, ("a!c",))]


def test_each_item_is_done_within_the_context_of_the_class() -> None:
    class Wrapped(Recording):
        def build_enumerator(self, *, cursor: Any) -> Iterator[tuple[str, int]]:
            return sequence_enumerator("ab", cursor=cursor)

        def each_iteration(self, letter: str) -> None:
            self.said.append(letter)

        def around_iteration(self) -> AbstractContextManager[None]:
            return self.noted()

        @contextmanager
        def noted(self) -> Iterator[None]:
            self.said.append("(")
            yield
            self.said.append(")")

    Wrapped.perform_inline()

    assert Wrapped.said == ["start", "(", "a", ")", "(", "b", ")", "stop", "complete"]


def test_async_iterations_run_on_an_event_loop() -> None:
    class Async(Recording):
        def build_enumerator(self, most: int, *, cursor: int | None) -> Iterator[tuple[str, int]]:
            return sequence_enumerator("abc", cursor=cursor)

        async def each_iteration(self, letter: str, most: int) -> None:
            if self.cursor == most:
                raise AbortIteration
            self.said.append(letter)

    assert Async.definition.is_async
    Async.perform_inline(2)

    assert Async.said == ["start", "a", "b", "stop", "complete"]


def test_an_async_iteration_has_a_context_of_either_kind_and_its_enumerator_is_closed_in_a_thread() -> None:
    class Wrapped(Recording, retry=0):
        def build_enumerator(self, is_async: bool, *, cursor: int | None) -> Iterator[tuple[str, int]]:
            try:
                yield from ((letter, number) for number, letter in enumerate("abc"))
            finally:
                self.said.append("closed on the loop" if is_loop_here() else "closed in a thread")

        async def each_iteration(self, letter: str, is_async: bool) -> None:
            self.said.append(letter)
            if letter == "b":
                raise ValueError(letter)

        def around_iteration(self) -> AbstractContextManager[None] | AbstractAsyncContextManager[None]:
            return self.awaited() if self.arguments[0] else self.entered()

        @contextmanager
        def entered(self) -> Iterator[None]:
            self.said.append("(")
            yield
            self.said.append(")")

        @asynccontextmanager
        async def awaited(self) -> AsyncIterator[None]:
            await asyncio.to_thread(str)
            self.said.append("[")
            yield
            self.said.append("]")

    for is_async in (False, True):
        with pytest.raises(ValueError, match="b"):
            Wrapped.perform_inline(is_async)

    assert Wrapped.said == [
        *("start", "(", "a", ")", "(", "b", "closed in a thread"),
        *("start", "[", "a", "]", "[", "b", "closed in a thread"),
    ]


def is_loop_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def test_it_is_enqueued_and_drained_as_any_job(letters: Any) -> None:
    with fake():
        letters.perform_async("ab")
        letters.set(queue="low").perform_async("c", most=0)
        assert [each.args for each in enqueued()] == [["ab"], ["c", 0]]
        assert not any("iter" in key for each in enqueued() for key in each.payload)

        drain()

    assert letters.said == [
        "start",
        ("a", 0, ("ab",)),
        ("b", 1, ("ab",)),
        "stop",
        "complete",
        "start",
        "stop",
        "complete",
    ]


def test_its_turn_does_not_end_where_it_could_not_go_on() -> None:
    class Turns(Recording, max_iteration_runtime=1e-9):
        def build_enumerator(self, *, cursor: int | None) -> Iterator[tuple[str, int]]:
            return sequence_enumerator("abc", cursor=cursor)

        def each_iteration(self, letter: str) -> None:
            self.said.append(letter)

    Turns.perform_inline()
    with fake():
        Turns.perform_async()
        drain()

    assert Turns.said == [*("start", "a", "b", "c", "stop", "complete")] * 2


def test_an_iteration_whose_coroutine_nobody_awaits_fails() -> None:
    class Careless(Recording):
        def build_enumerator(self, *, cursor: int | None) -> Iterator[tuple[str, int]]:
            return sequence_enumerator("abc", cursor=cursor)

        def each_iteration(self, letter: str) -> Any:
            return asyncio.to_thread(self.said.append, letter)

    with pytest.raises(UsageError, match="nobody awaits"):
        Careless.perform_inline()


def test_wrong_arguments_are_refused_when_it_is_enqueued(letters: Any) -> None:
    with fake(), pytest.raises(InvalidArguments, match="its parameters are"):
        letters.perform_async()


def test_the_enumerator_is_closed_however_the_run_ends() -> None:
    closed = []

    class Reading(Recording, retry=0):
        def build_enumerator(self, fails: bool, *, cursor: Any) -> Iterator[tuple[int, int]]:
            try:
                yield from ((number, number) for number in range(3))
            finally:
                closed.append(fails)

        def each_iteration(self, number: int, fails: bool) -> None:
            if number:
                raise ValueError if fails else AbortIteration

    with pytest.raises(ValueError):
        Reading.perform_inline(True)
    Reading.perform_inline(False)

    assert closed == [True, False]


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ([1, 2], "pairs"),
        ([("a", object())], "not JSON"),
        ([("a", 1), ("b", {1})], "not JSON"),
        (7, "iterable of pairs"),
    ],
)
def test_what_is_no_enumerator_fails_with_the_form_that_it_should_have(pairs: Any, words: str) -> None:
    class Odd(Recording):
        def build_enumerator(self, *, cursor: Any) -> Any:
            return pairs

        def each_iteration(self, item: Any) -> None: ...

    with pytest.raises(TypeError, match=words):
        Odd.perform_inline()


class TestRefusedClasses:
    """Classes that could not work are refused where they are defined, with the remedy."""

    def test_one_with_perform(self) -> None:
        with pytest.raises(JobDefinitionError, match="call it each_iteration"):

            class Performs(IterableJob):
                def perform(self) -> None: ...

    def test_one_that_lacks_a_part(self) -> None:
        with pytest.raises(JobDefinitionError, match="lacks build_enumerator"):

            class Half(IterableJob):
                def each_iteration(self, item: Any) -> None: ...

    def test_one_whose_enumerator_takes_no_cursor(self) -> None:
        with pytest.raises(JobDefinitionError, match="named cursor"):

            class Forgetful(IterableJob):
                def build_enumerator(self) -> Any: ...
                def each_iteration(self, item: Any) -> None: ...

    def test_one_whose_parts_take_different_arguments(self) -> None:
        with pytest.raises(JobDefinitionError, match="has to take the item"):

            class Uneven(IterableJob):
                def build_enumerator(self, shop: int, *, cursor: Any) -> Any: ...
                def each_iteration(self, item: Any) -> None: ...

    @pytest.mark.parametrize("name", ["each_iteration", "on_start", "on_complete", "around_iteration"])
    def test_one_with_a_part_that_is_a_generator(self, name: str, letters: Any) -> None:
        def generator(*_: Any) -> Iterator[None]:
            yield

        async def asynchronous(*_: Any) -> AsyncIterator[None]:
            yield

        for part in (generator, asynchronous):
            with pytest.raises(JobDefinitionError, match=f"{name} (is a generator|would not be awaited)"):
                type("Generating", (letters,), {name: part})

    def test_one_whose_enumerator_is_async(self, letters: Any) -> None:
        async def build_enumerator(self: Any, word: str, most: int = 9, *, cursor: Any) -> AsyncIterator[Any]:
            yield word, 0

        with pytest.raises(JobDefinitionError, match="build_enumerator would not be awaited"):
            type("Generating", (letters,), {"build_enumerator": build_enumerator})

    def test_one_with_an_async_hook(self) -> None:
        with pytest.raises(JobDefinitionError, match="ordinary def"):

            class Late(IterableJob):
                def build_enumerator(self, *, cursor: Any) -> Any: ...
                def each_iteration(self, item: Any) -> None: ...
                async def on_stop(self) -> None: ...  # type: ignore[override]

    def test_a_plain_job_with_an_option_of_iterable_ones(self) -> None:
        with pytest.raises(JobDefinitionError, match="IterableJob"):

            class Plain(Job, max_iteration_runtime=5):
                def perform(self) -> None: ...

    def test_a_base_without_parts_is_no_job(self) -> None:
        class Base(IterableJob, queue="long"):
            pass

        class Derived(Base):
            def build_enumerator(self, *, cursor: Any) -> Any: ...
            def each_iteration(self, item: Any) -> None: ...

        assert Derived.definition.queue == "long"
