"""Functions and classes whose annotations are text, as most modules of applications have them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

from kiqcluster import Job
from kiqcluster.iterable import IterableJob, sequence_enumerator
from kiqcluster.limited_capacity import LimitedCapacityJob

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from decimal import Decimal as Amount

__all__ = ["LATE", "jobs", "known_to_checkers", "late", "sequence", "unknown"]

LATE: dict[str, Any] = globals()  # in which a test defines Later


def late(what: Later) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def unknown(what: Amount) -> None: ...
def sequence(numbers: Sequence[int], more: Sequence[int] | None = None) -> None: ...
def known_to_checkers(days: Sequence[date]) -> None: ...


def jobs() -> dict[str, Any]:
    """Return jobs, which are registered now."""

    class Bill(Job):
        @dataclass
        class Order:
            id: int
            on: date

        def perform(self, order: Order) -> date:
            return order.on

    class Walk(IterableJob):
        def build_enumerator(self, first: date, *, cursor: int | None) -> Iterator[tuple[str, int]]:
            return sequence_enumerator(["a"], cursor=cursor)

        def each_iteration(self, item: str, first: date) -> None:
            seen.append((item, first))

    class Sync(LimitedCapacityJob):
        def max_running_jobs(self) -> int:
            return 1

        def remaining_work_count(self, day: date) -> int:
            seen.append(day)
            return 1

        def perform_work(self, day: date) -> None:
            seen.append(day)

    seen: list[Any] = []
    return {"Bill": Bill, "Walk": Walk, "Sync": Sync, "seen": seen}
