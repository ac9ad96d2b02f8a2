"""InForce: a value that is in force in the whole process, and that tests replace as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

__all__ = ["InForce"]

T = TypeVar("T")


class InForce(Generic[T]):
    """value: the same for all threads."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    @contextmanager
    def using(self, value: T) -> Iterator[T]:
        """Use another value for a while."""
        before, self.value = self.value, value
        try:
            yield value
        finally:
            self.value = before
