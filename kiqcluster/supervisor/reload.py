"""Reload: what a new configuration and a new list of queues change about the slots.  Pure.

A slot whose group and number of threads are as before keeps its process; it is only told of new queues.  One that is
to have another number of threads keeps its number, and so its series, and gets another process.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from kiqcluster.config import Config
from kiqcluster.supervisor.cluster.expansion import SlotPlan
from kiqcluster.supervisor.cluster.slots import Slot

__all__ = ["SlotChanges", "compare", "effective_config", "pending_settings", "same_threads"]

# Read once, at the start: a new value waits for a new supervisor.
FIXED_AT_START = frozenset(
    {"redis", "embedded", "listen", "pidfile", "directory", "control", "preload", "log_format", "log_level"}
)
# The supervisor's own, and effective_config at once; all others a worker has from its spec.
APPLIED_BY_RELOAD = frozenset(
    {
        "groups", "queues", "timeout", "boot_timeout", "bake_time", "silence_timeout", "respawn_burst", "fail_fast",
        "quiet_lease", "max_jobs", "max_rss", "max_rss_hard", "min_serving", "ready_quorum", "drain",
        "concurrency", "min_concurrency", "max_concurrency",  # by other processes, where the number of threads changes
    }
)  # fmt: skip
THREAD_SETTINGS = ("concurrency", "min_concurrency", "max_concurrency")


@dataclass(frozen=True, slots=True)
class SlotChanges:
    """kept: slots with their new plans.  added: plans of new ones.  removed: slots that go.

    resized: slots that need another process, for their plans have another number of threads.
    """

    kept: list[tuple[Slot, SlotPlan]]
    added: list[SlotPlan]
    removed: list[Slot]
    resized: list[tuple[Slot, SlotPlan]]


def compare(slots: Sequence[Slot], plans: Sequence[SlotPlan], *, same_threads: bool) -> SlotChanges:
    """Return what becomes of the slots; new ones have numbers that are free.

    same_threads: whether the configuration asks for as many threads as before.  The number of threads of a slot is
    settled when it starts; queues that come later do not change it.
    """
    left = [slot for slot in slots if not slot.is_retiring]
    kept, others, resized, new = [], [], [], []
    for plan in plans:
        same = next((slot for slot in left if _is_same(slot.plan, plan, same_threads)), None)
        if same is None:
            others.append(plan)
        else:
            left.remove(same)
            kept.append((same, dataclasses.replace(plan, slot=same.number, concurrency=same.plan.concurrency)))
    for plan in others:
        same = next((slot for slot in left if slot.plan.group == plan.group), None)
        if same is None:
            new.append(plan)
        else:
            left.remove(same)
            resized.append((same, dataclasses.replace(plan, slot=same.number)))
    taken = {slot.number for slot in slots}
    free = (number for number in range(len(slots) + len(new)) if number not in taken)
    added = [dataclasses.replace(plan, slot=number) for plan, number in zip(new, free, strict=False)]
    return SlotChanges(kept, added, left, resized)


def _is_same(old: SlotPlan, new: SlotPlan, same_threads: bool) -> bool:
    return old.group == new.group and (same_threads or old.concurrency == new.concurrency)


def same_threads(old: Config, new: Config) -> bool:
    """Return whether both ask for the same numbers of threads."""
    return all(getattr(old, name) == getattr(new, name) for name in THREAD_SETTINGS)


def effective_config(old: Config, new: Config) -> Config:
    """Return the new configuration as far as it holds from now on: a child that is born later must fit the others."""
    return dataclasses.replace(new, **{name: getattr(old, name) for name in FIXED_AT_START})


def pending_settings(old: Config, new: Config, *, at_once: bool = True) -> tuple[list[str], list[str]]:
    """Return the settings that differ and wait: for a new supervisor, and for a rolling restart.

    at_once: those that a reload heeds at once do not wait; without it nobody has reloaded, and they do as well.
    """
    changed = [each.name for each in dataclasses.fields(Config) if getattr(old, each.name) != getattr(new, each.name)]
    return (
        [name for name in changed if name in FIXED_AT_START],
        [name for name in changed if name not in FIXED_AT_START and not (at_once and name in APPLIED_BY_RELOAD)],
    )
