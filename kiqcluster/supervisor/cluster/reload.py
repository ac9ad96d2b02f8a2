"""Reload: how a new configuration and a new list of queues change the slots.  Pure.

A slot with the same group and number of threads keeps its process, which only learns of new queues.  If the number of
threads changes, the slot keeps its number, and so its metrics, and gets another process.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kiqcluster.errors import UsageError
from kiqcluster.process.config import Config, key_of, settings
from kiqcluster.process.config_checks import check
from kiqcluster.sidekiq.routing import Rules
from kiqcluster.supervisor.cluster.expansion import SlotPlan
from kiqcluster.supervisor.cluster.slots import Slot

__all__ = ["SlotChanges", "check_effective", "compare", "effective_config", "pending_settings", "same_threads"]

# Read at the start only: a new value waits for a new supervisor.
FIXED_AT_START = frozenset(
    {"redis", "shards", "embedded", "listen", "pidfile", "directory", "control", "preload", "log_format", "log_level"}
)
# Settings of the supervisor, applied at once.  A worker reads all others at its start.
APPLIED_BY_RELOAD = frozenset(
    {
        "groups", "queues", "queue_selector", "shard", "drain", "fail_fast", "quiet_lease", "stop_timeout",
        "health_boot_timeout", "health_silence_timeout", "health_respawn_burst", "health_ready_quorum",
        "roll_bake_time", "roll_min_serving", "recycle_jobs", "recycle_memory", "recycle_memory_hard",
        "concurrency", "min_concurrency", "max_concurrency",  # other threads: another process
    }
)  # fmt: skip
THREAD_SETTINGS = ("concurrency", "min_concurrency", "max_concurrency")


@dataclass(frozen=True, slots=True)
class SlotChanges:
    """kept: slots with their new plans.  added: plans of new slots.  removed: slots that retire.

    resized: slots with plans of another number of threads, which need another process.
    """

    kept: list[tuple[Slot, SlotPlan]]
    added: list[SlotPlan]
    removed: list[Slot]
    resized: list[tuple[Slot, SlotPlan]]


def compare(slots: Sequence[Slot], plans: Sequence[SlotPlan], *, same_threads: bool) -> SlotChanges:
    """Return the changes; new slots get free numbers.

    same_threads: whether the settings of threads are as before.  Then a slot keeps the number of threads that it has,
    also if it has more queues now.
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
    """Return whether both have the same settings of threads."""
    return all(getattr(old, name) == getattr(new, name) for name in THREAD_SETTINGS)


def effective_config(old: Config, new: Config) -> Config:
    """Return the new configuration with the old values of settings that are fixed at the start."""
    declared = (new.declared - FIXED_AT_START) | (old.declared & FIXED_AT_START)
    return dataclasses.replace(new, **{name: getattr(old, name) for name in FIXED_AT_START}, declared=declared)


def check_effective(old: Config, new: Config, rules: Rules) -> None:
    """Raise UsageError if new settings do not go with the old ones that are fixed at the start: no worker could start.

    rules: the routing rules in force, which may be those of the application.
    """
    try:
        check(dataclasses.replace(effective_config(old, new), routing=rules))
    except UsageError as error:
        restart, _ = pending_settings(old, new)
        remedy = f"; restart the supervisor for {', '.join(restart)}" if restart else ""
        raise UsageError(f"{error}{remedy}") from error


def pending_settings(old: Config, new: Config, *, at_once: bool = True) -> tuple[list[str], list[str]]:
    """Return the keys of settings that differ: those that wait for a new supervisor, and for a rolling restart.

    at_once: leave out settings that a reload applies at once; False before a reload, when they wait as well.
    """
    changed = [each for each in settings() if _is_changed(each, old, new)]
    later = [each for each in changed if each.name not in FIXED_AT_START]
    return (
        [key_of(each) for each in changed if each.name in FIXED_AT_START],
        [key_of(each) for each in later if not (at_once and each.name in APPLIED_BY_RELOAD)],
    )


def _is_changed(setting: dataclasses.Field[Any], old: Config, new: Config) -> bool:
    """Return whether a setting has another value, or hides what configure() says and has not done so before."""
    name = setting.name
    is_hidden_now = setting.metadata["in_code"] and old.is_declared(name) != new.is_declared(name)
    return is_hidden_now or getattr(old, name) != getattr(new, name)
