"""The stacks of features: what a push and a run go through inside the application's own middleware.

client   on_push, before a job is written: adds push rows (push.lua), with which the job is written in one script
server   on_begin, before a unit runs: begin rows (begin.lua), all features of a unit in one round trip
         on_end, when the outcome is decided: rows of settle's table of effects, written with that outcome

A feature without rows costs no round trip.  What a job holds by its begin rows is released with its unit, whoever moves
that: a feature never releases by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from kiqcluster.process.in_force import InForce
from kiqcluster.process.runtime import JobEnd, Push, Run
from kiqcluster.sidekiq.outcome import Effect

__all__ = ["ClientFeature", "ServerFeature", "Stacks", "current_stacks", "using_stacks"]


class ClientFeature(Protocol):
    """The client half of a feature."""

    def on_push(self, push: Push) -> Iterable[Effect]:
        """Return rows of the table of push.lua.  The payload may be changed; its arguments are checked already."""
        ...


class ServerFeature(Protocol):
    """The server half of a feature."""

    def on_begin(self, run: Run) -> Iterable[Effect]:
        """Return rows of the table of begin.lua: what must be true before this unit runs."""
        ...

    def on_end(self, end: JobEnd) -> Iterable[Effect]:
        """Return rows of settle's table of effects; whatever the outcome is, also one that could not begin."""
        ...


@dataclass(frozen=True, slots=True)
class Stacks:
    """Features in the order in which they are asked."""

    client: tuple[ClientFeature, ...] = ()
    server: tuple[ServerFeature, ...] = ()


# Order matters: a guarantee that may refuse a push comes before one that only records it; on the server, the cheapest
# check comes first.
STACKS = InForce(Stacks(client=(), server=()))


def current_stacks() -> Stacks:
    """Return the features in force."""
    return STACKS.value


def using_stacks(stacks: Stacks) -> AbstractContextManager[Stacks]:
    """Use other features for a while, for tests."""
    return STACKS.using(stacks)
