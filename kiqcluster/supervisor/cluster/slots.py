"""Slot: a stable place for a worker process, and the processes in it.  Starts and ends no process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kiqcluster.control.slot_state import SlotState
from kiqcluster.supervisor.cluster.child import Child
from kiqcluster.supervisor.cluster.expansion import SlotPlan
from kiqcluster.supervisor.cluster.respawn import History

__all__ = ["Slot", "away_shards", "judged_slots"]

PLANNED_REASONS = frozenset({"rolling", "max_jobs", "max_rss"})  # reasons of restarts that are no fault


@dataclass(slots=True, eq=False)
class Slot:
    """A stable place for a child.

    replacement: boots to take the child's place.  leaving: processes that were replaced and finish their jobs.
    is_retiring: the slot left the configuration; it goes with its last process.
    orphans: identities of dead children that nobody has recovered yet → tokens of the units that they ran.
    memory_strikes: checks in a row at which the child used too much memory.
    memory_check_at: when memory is checked next, monotonic seconds.
    """

    plan: SlotPlan
    child: Child | None = None
    replacement: Child | None = None
    leaving: list[Child] = field(default_factory=list)
    is_retiring: bool = False
    history: History = field(default_factory=History)
    orphans: dict[str, tuple[str, ...]] = field(default_factory=dict)
    restarts: Counter[str] = field(default_factory=Counter)
    last_death: dict[str, Any] | None = None
    memory_strikes: int = 0
    memory_check_at: float = 0.0

    @property
    def number(self) -> int:
        return self.plan.slot

    @property
    def unplanned_restarts(self) -> int:
        """How many restarts nobody asked for."""
        return sum(count for reason, count in self.restarts.items() if reason not in PLANNED_REASONS)

    @property
    def state(self) -> SlotState:
        """What the slot does: the state of its child; BACKOFF without one."""
        return SlotState.BACKOFF if self.child is None else self.child.state

    @property
    def shard(self) -> str:
        return self.plan.group.shard

    @property
    def reaches_redis(self) -> bool | None:
        """Whether its child reaches the Redis of its shard; None while that is not known."""
        if self.child is None:
            return None
        if self.child.is_ready:
            return self.child.beat.redis
        return False if self.child.waits_for else None

    def children(self) -> list[Child]:
        """Return every process of the slot: child, replacement, and those that leave."""
        return [*filter(None, (self.child, self.replacement)), *self.leaving]


def away_shards(slots: Sequence[Slot]) -> frozenset[str]:
    """Return the shards whose Redis none of these slots reaches, while one of another shard reaches its own.

    So there are none in a cluster with one Redis, nor if nothing is reached: then the network of this host may be
    what fails.  ADR 27.
    """
    reached = {slot.shard for slot in slots if slot.reaches_redis}
    missed = {slot.shard for slot in slots if slot.reaches_redis is False}
    return frozenset(missed - reached) if reached else frozenset()


def judged_slots(slots: Sequence[Slot]) -> list[Slot]:
    """Return the slots by which readiness is judged: all but those that wait for a shard that is away."""
    away = away_shards(slots)
    return [slot for slot in slots if slot.shard not in away or slot.reaches_redis is None]
