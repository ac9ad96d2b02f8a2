"""Preflight: whether a supervisor would start with the configuration of a new release, and what would change.

A roll replaces the application, not the configuration.  So that the next start does not fail, the catalogue child of a
roll reads the new configuration, too, before it imports the application.
Runs in: that child, which sends the report to the supervisor with the catalogue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kiqcluster.errors import KiqError
from kiqcluster.process.config import Config
from kiqcluster.sidekiq.queue_groups import Group
from kiqcluster.sidekiq.selectors import JobAttributes
from kiqcluster.supervisor.cluster.expansion import plan_slots
from kiqcluster.supervisor.cluster.reload import compare, pending_settings, same_threads
from kiqcluster.supervisor.cluster.slots import Slot

__all__ = ["Known", "Preflight", "PreflightReport", "ReadConfig", "prepare"]

GROUPED = frozenset(  # shape slots
    {"groups", "queue_selector", "shard", "concurrency", "min_concurrency", "max_concurrency", "strict", "negate"}
)

# The queues that are known with a configuration, and the attributes of the jobs that go to them.
Known = tuple[frozenset[str], Sequence[JobAttributes]]
ReadConfig = Callable[[], tuple[Config, Sequence[Group]]]  # reads the configuration again; raises UsageError


@dataclass(frozen=True, slots=True)
class PreflightReport:
    """error: why a start would fail.  reload, restart: settings that would wait for a reload, or a new supervisor."""

    error: str = ""
    reload: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()


Preflight = Callable[[Callable[[Config], Known]], PreflightReport]


def prepare(read_config: ReadConfig, slots: Sequence[Slot], running: Config) -> Preflight:
    """Read the configuration; return the check to run once the queues of the application are known.

    It changes the working directory.
    """
    try:
        new, groups = read_config()
    except (KiqError, OSError) as error:
        reason = str(error)
        return lambda _: PreflightReport(error=reason)

    def preflight(known: Callable[[Config], Known]) -> PreflightReport:
        queues, jobs = known(new)
        try:
            plans = plan_slots(groups, queues, new, jobs)
        except KiqError as error:
            return PreflightReport(error=str(error))
        change = compare(slots, plans, same_threads=same_threads(running, new))
        restart, others = pending_settings(running, new, at_once=False)
        names = [name for name in others if name not in GROUPED]
        if change.added or change.removed or change.resized:
            names.insert(0, "groups")
        return PreflightReport(reload=tuple(names), restart=tuple(restart))

    return preflight
