"""Bulk: one operation on many jobs, batch by batch, with an exact report however it ends.

1. count      how many are meant, before anybody is asked
2. carry_out  a batch at a time, each job in one place at any moment; memory holds a page and a batch, no more
3. report     what was done, what Redis refused, what nobody knows: where a reply was lost, the batch may have moved

Ctrl-C ends it between two batches, so that the count is true; a second one at once.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Generic, TypeVar

from kiqcluster.api import JobRecord
from kiqcluster.ctl.text.options import Output, progress
from kiqcluster.ctl.text.tables import format_number, pluralize
from kiqcluster.errors import ExitCode, StoreError

__all__ = ["BulkResult", "BulkTask", "count_selected", "report", "run_task"]

R = TypeVar("R", bound=JobRecord)
PROGRESS_STEP_JOBS = 500  # jobs that are looked at between two steps of a progress bar


@dataclass(frozen=True, slots=True)
class BulkTask(Generic[R]):
    """What is done to jobs.

    label: in words, as in `retrying`.  records: among which they are; it is called for each walk.  total: about how
    many these are.  is_meant: which of them; is_all: all.  act: does it, one batch after the other, and returns how
    many were still there.
    """

    label: str
    records: Callable[[], Iterable[R]]
    total: int
    is_selected: Callable[[R], bool]
    act: Callable[[Iterable[R]], int] = lambda _: 0  # of what is only counted
    is_all: bool = False


@dataclass(slots=True)
class BulkResult:
    """found: jobs that were meant.  done: of them.  refused, unknown: of them, by Redis, and where a reply was lost."""

    found: int = 0
    done: int = 0
    refused: int = 0
    unknown: int = 0
    is_interrupted: bool = False
    error: StoreError | None = None

    def add(self, other: BulkResult) -> None:
        """Add what came of another task."""
        self.found += other.found
        self.done += other.done
        self.refused += other.refused
        self.unknown += other.unknown
        self.is_interrupted |= other.is_interrupted
        self.error = other.error or self.error

    @property
    def has_ended_early(self) -> bool:
        """Whether there is no use in going on."""
        return self.is_interrupted or (self.error is not None and not self.refused)

    @property
    def exit_code(self) -> int:
        if self.error is not None:
            return int(self.error.exit_code)
        return ExitCode.UNEXPECTED if self.is_interrupted else ExitCode.STOPPED

    def as_json(self) -> dict[str, Any]:
        return {
            "found": self.found,
            "done": self.done,
            "refused": self.refused,
            "unknown": self.unknown,
            "interrupted": self.is_interrupted,
            "error": None if self.error is None else str(self.error),
        }


def count_selected(output: Output, task: BulkTask[R]) -> int:
    """Return how many jobs are meant, having looked at each.  Ctrl-C ends the command: nothing was done yet."""
    if task.is_all:
        return task.total
    with progress(output, task.total, "counting") as advance:
        return sum(1 for _ in _selected(task, advance, lambda: False))


def run_task(output: Output, task: BulkTask[R]) -> BulkResult:
    """Do it; return what came of it, also where Redis went away in the middle."""
    result = BulkResult()
    with interruption() as is_interrupted, progress(output, task.total, task.label) as advance:

        def selected() -> Iterator[R]:
            for record in _selected(task, advance, is_interrupted):
                result.found += 1
                yield record

        try:
            result.done = task.act(selected())
        except StoreError as error:
            result.error = error
            result.done, result.refused, result.unknown = error.moved, error.left, error.unknown
        result.is_interrupted = is_interrupted()
    return result


def _selected(task: BulkTask[R], advance: Callable[[int], object], is_interrupted: Callable[[], bool]) -> Iterator[R]:
    """Yield the records that are meant, and show how far it is."""
    looked_at = 0
    for record in task.records():
        if is_interrupted():
            return
        looked_at += 1
        if looked_at == PROGRESS_STEP_JOBS:
            advance(looked_at)
            looked_at = 0
        if task.is_selected(record):
            yield record
    advance(looked_at)


@contextmanager
def interruption() -> Iterator[Callable[[], bool]]:
    """Have the first Ctrl-C be noted only, for a `with` block; what it gives tells whether there was one."""
    noted: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        if noted:
            raise KeyboardInterrupt
        noted.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(noted)
    finally:
        signal.signal(signal.SIGINT, before)


def report(
    output: Output,
    result: BulkResult,
    past: str,
    what: tuple[str, str],
    document: Mapping[str, Any],
    *,
    problem: str = "",
) -> int:
    """Print what was done; return the exit code.

    past: as in `retried`.  what: it was done to, one and many: `entry of the retry set`, `entries of …`.
    problem: why not all that was named was done, where that was said before.
    """
    gone = result.found - result.done - result.refused - result.unknown
    words = f"{past} {pluralize(result.done, *what)}"
    if gone > 0 and result.error is None:
        words += f"; {pluralize(gone, 'other was', 'others were')} already gone"
    output.info(words)
    if result.refused:
        output.error(f"Redis refused {pluralize(result.refused, *what)}, which stay as they are: {result.error}")
    elif result.error is not None:
        output.error(str(result.error))
    if result.unknown:
        output.error(
            f"the reply was lost for {format_number(result.unknown)} more, which may have been {past}; run it again if "
            "needed: nothing is done twice"
        )
    if result.is_interrupted:
        output.error("interrupted; the others were left alone")
    code = result.exit_code or (ExitCode.UNEXPECTED if problem else ExitCode.STOPPED)
    told = result.as_json()
    output.document({**document, "ok": code == ExitCode.STOPPED, **told, "error": told["error"] or problem or None})
    return code
