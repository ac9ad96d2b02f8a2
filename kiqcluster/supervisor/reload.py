"""Reload: what a new configuration and a new list of queues change about the slots.  Pure.

A slot whose group and number of threads are as before keeps its process; it is only told of new queues.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from kiqcluster.config import Config
from kiqcluster.supervisor.children import Slot
from kiqcluster.supervisor.expansion import SlotPlan

__all__ = ["Change", "compare", "heeded", "unheeded"]

# Read once, at the start: a new value waits for a new supervisor.
FIXED = frozenset(
    {"redis", "embedded", "listen", "pidfile", "directory", "control", "preload", "log_format", "log_level"}
)
# The supervisor's own, and heeded at once; all others a worker has from its birth.
AT_ONCE = frozenset(
    {
        "groups", "queues", "timeout", "boot_timeout", "silence_timeout", "respawn_burst", "fail_fast", "quiet_lease",
        "max_jobs", "max_rss", "max_rss_hard", "min_serving", "ready_quorum", "drain",
        "concurrency", "min_concurrency", "max_concurrency",  # by other slots, where the number of threads changes
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Change:
    """kept: slots with their new plans.  added: plans of new ones.  removed: slots that go."""

    kept: list[tuple[Slot, SlotPlan]]
    added: list[SlotPlan]
    removed: list[Slot]


def compare(slots: Sequence[Slot], plans: Sequence[SlotPlan], *, same_threads: bool) -> Change:
    """Return what becomes of the slots; new ones have numbers that are free.

    same_threads: whether the configuration asks for as many threads as before.  The number of threads of a slot is
    settled when it starts; queues that come later do not change it.
    """
    left = [slot for slot in slots if not slot.retires]
    kept, new = [], []
    for plan in plans:
        same = next((slot for slot in left if _is_same(slot.plan, plan, same_threads)), None)
        if same is None:
            new.append(plan)
        else:
            left.remove(same)
            kept.append((same, dataclasses.replace(plan, slot=same.number, concurrency=same.plan.concurrency)))
    taken = {slot.number for slot in slots}
    free = (number for number in range(len(slots) + len(new)) if number not in taken)
    return Change(kept, [dataclasses.replace(plan, slot=number) for plan, number in zip(new, free, strict=False)], left)


def _is_same(old: SlotPlan, new: SlotPlan, same_threads: bool) -> bool:
    return old.group == new.group and (same_threads or old.concurrency == new.concurrency)


def heeded(old: Config, new: Config) -> Config:
    """Return the new configuration as far as it holds from now on: a child that is born later must fit the others."""
    return dataclasses.replace(new, **{name: getattr(old, name) for name in FIXED})


def unheeded(old: Config, new: Config) -> tuple[list[str], list[str]]:
    """Return the settings that differ and wait: for a new supervisor, and for a rolling restart."""
    changed = [each.name for each in dataclasses.fields(Config) if getattr(old, each.name) != getattr(new, each.name)]
    return (
        [name for name in changed if name in FIXED],
        [name for name in changed if name not in FIXED | AT_ONCE],
    )
