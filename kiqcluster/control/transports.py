"""Transports: how orders reach supervisors and processes, and how their state is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kiqcluster.control.cluster_document import ClusterStatus
from kiqcluster.control.control_messages import Message
from kiqcluster.errors import KiqError

__all__ = [
    "Answer",
    "NoSuchProcess",
    "Transport",
]


class NoSuchProcess(KiqError):
    """No kiqcluster process matches what a command selects."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of one supervisor or process to a message.  error: None when the order is done or under way."""

    name: str
    error: str | None = None


class Transport(Protocol):
    """Sends orders to the selected clusters or process, and reads their state."""

    def send(self, message: Message) -> Sequence[Answer]:
        """Send an order to all of them; return their answers.  Raises NoSuchProcess, StoreError."""
        ...

    def statuses(self) -> Mapping[str, ClusterStatus]:
        """Return name → state, without those that have ended.  Raises StoreError."""
        ...
