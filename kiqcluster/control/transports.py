"""Ways to supervisors: what goes there, what comes back, and what a cluster looks like from outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kiqcluster.control.cluster_document import View
from kiqcluster.control.control_messages import Message
from kiqcluster.errors import KiqError

__all__ = [
    "Answer",
    "NobodyThere",
    "Way",
]


class NobodyThere(KiqError):
    """There is no kiqcluster process that a command could be about."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a message to one supervisor, or process.  error: None when it is done or on its way."""

    name: str
    error: str | None = None


class Way(Protocol):
    """How a command reaches those that it is about."""

    def tell(self, message: Message) -> Sequence[Answer]:
        """Have all of them do something; return what each has answered.  Raises NobodyThere, StoreError."""
        ...

    def look(self) -> Mapping[str, View]:
        """Return what they are doing, by name; whoever is gone is not in it.  Raises StoreError."""
        ...
