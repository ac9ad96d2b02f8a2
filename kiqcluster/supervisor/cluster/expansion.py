"""Expansion: arguments and known queues → slots.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kiqcluster.config import Config
from kiqcluster.errors import UsageError
from kiqcluster.sidekiq.queue_groups import Group, Mode, concurrency_for, parse_group, parse_queue_option

__all__ = ["SlotPlan", "groups_from", "listed_queues", "plan_slots", "refuse_listing", "setting_warnings"]


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """The plan of one worker process.  weights: of the queues known now; the worker finds new ones itself."""

    slot: int
    group: Group
    weights: dict[str, int]
    mode: Mode
    concurrency: int

    def as_json(self) -> dict[str, object]:
        """Return the form of --dryrun --json."""
        return {"slot": self.slot, "queues": self.weights, "mode": self.mode, "concurrency": self.concurrency}


def groups_from(arguments: Sequence[str], queue_options: Sequence[str], config: Config) -> list[Group]:
    """Return the groups of the command line, else those of the configuration.

    Raises UsageError when there are none.
    """
    parsed = [parse_group(text, strict=config.strict, negated=config.negate) for text in arguments or ()]
    if queue_options:
        parsed.append(parse_queue_option(queue_options, strict=config.strict, negated=config.negate))
    if not parsed:
        parsed = [parse_group(text, strict=config.strict, negated=config.negate) for text in config.groups]
    if not parsed:
        raise UsageError(
            "no queue group given; name the queues of each process: kiqcluster -r app 'cronjob:*' default,mailers"
        )
    return parsed


def refuse_listing(arguments: Sequence[str], listing: Iterable[str]) -> None:
    """Raise UsageError when the arguments are the files of the directory: an unquoted `*` was eaten by the shell."""
    visible = sorted(name for name in listing if not name.startswith("."))
    if visible and sorted(arguments) == visible:  # the shell sorts by locale
        raise UsageError(
            f"the groups {' '.join(arguments[:3])} … are the files of this directory: "
            "the shell expanded an unquoted *; write '*' in quotes"
        )


def plan_slots(groups: Sequence[Group], known: Iterable[str], config: Config) -> list[SlotPlan]:
    """Return a plan per group.  Raises UsageError when --negate leaves a group nothing."""
    names = sorted(set(known))
    plans = []
    for slot, group in enumerate(groups):
        weights = group.expand(names)
        if group.negated and not weights:
            raise UsageError(
                f"--negate leaves no queue of {', '.join(names) or 'none known'} for {group.text!r}; name fewer"
            )
        concurrency = config.concurrency or concurrency_for(
            len(weights), config.min_concurrency, config.max_concurrency
        )
        plans.append(SlotPlan(slot, group, weights, group.mode(weights), concurrency))
    return plans


def setting_warnings(config: Config, slots: int) -> list[str]:
    """Return warnings about numbers that contradict each other, for a cluster of so many slots."""
    found = []
    # If only max_concurrency is set, it is meant: the default of the other does not count.
    is_wish = config.min_concurrency != Config.min_concurrency
    if config.concurrency is None and is_wish and 0 < config.max_concurrency < config.min_concurrency:
        found.append(
            f"min_concurrency is {config.min_concurrency} and max_concurrency {config.max_concurrency}: "
            "the second holds; 0 would be no limit"
        )
    if config.ready_quorum is not None and config.ready_quorum > slots:
        found.append(f"ready_quorum is {config.ready_quorum}, of slots there are {slots}: all of them have to be ready")
    if config.min_serving is not None and config.min_serving > slots:
        found.append(
            f"min_serving is {config.min_serving}, of slots there are {slots}: no worker beyond max_rss_hard is "
            "stopped before another one serves in its place"
        )
    return found


def listed_queues(plans: Sequence[SlotPlan]) -> list[str]:
    """Return the sorted union of all slots' queues, for --list-queues."""
    return sorted({queue for plan in plans for queue in plan.weights})
