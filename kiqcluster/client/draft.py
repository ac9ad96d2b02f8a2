"""Drafts: what a caller wants pushed.  Verbs, items, chains, cron entries and integrations make them.

A push consumes its draft: it settles the time, the context and the envelope in place (preparation).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kiqcluster.application.registry import Definition
from kiqcluster.sidekiq.payload import Jid
from kiqcluster.sidekiq.ruby_json import JSON
from kiqcluster.store import Store

__all__ = ["Draft", "Drafts"]


@dataclass(slots=True, eq=False)
class Draft:
    """One job."""

    name: str  # of its class, on the wire
    options: Mapping[str, JSON]  # keys of the payload, retry and queue included
    arguments: list[JSON]
    definition: Definition | None = None  # None: the class is not registered here
    at: Any = None  # when it is due, as for durations.scheduled_at; None for at once
    jid: str | None = None  # None for a new one
    wait_replicas: int = 0  # how many replicas must confirm the write
    store: Store | None = None  # the shard that the caller names

    def put_in_envelope(self, definition: Definition, now: float) -> None:
        """Put the job into ActiveJob's envelope.  Raises InvalidArguments."""
        self.name, self.options, wrap = definition.envelope(self.options, now)
        self.arguments = wrap(self.arguments)


@dataclass(slots=True, eq=False)
class Drafts:
    """Many jobs of one class."""

    name: str
    options: Mapping[str, JSON]
    lists: Iterable[Sequence[JSON]]  # the arguments of each job
    definition: Definition | None = None  # checks the lists; None: the class is not registered here
    at: Any = None  # None, a time for all, or a list with one for each
    jids: Sequence[Jid] | None = None  # one for each; None for new ones
    wait_replicas: int = 0
    store: Store | None = None

    def envelope(self, now: float) -> Callable[[list[JSON]], list[JSON]] | None:
        """Return a function that puts arguments into ActiveJob's envelope; None if the class wants none."""
        if self.definition is None or self.definition.enveloped is None:
            return None
        self.name, self.options, wrap = self.definition.envelope(self.options, now)
        return wrap
