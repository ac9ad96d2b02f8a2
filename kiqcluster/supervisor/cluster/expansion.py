"""Expansion: arguments, known queues and the attributes of jobs → slots.  Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from kiqcluster.errors import UsageError
from kiqcluster.process.config import Config
from kiqcluster.sidekiq.queue_groups import (
    Group,
    GroupSetting,
    Mode,
    SelectorGroup,
    concurrency_for,
    parse_group,
    parse_queue_option,
)
from kiqcluster.sidekiq.selectors import JobAttributes
from kiqcluster.store.shards import same_redis, shard_name

__all__ = ["SlotPlan", "groups_from", "listed_queues", "plan_slots", "refuse_listing", "setting_warnings"]


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """The plan of one worker process.  weights: of the queues known now; the worker finds new ones itself."""

    slot: int
    group: Group
    weights: dict[str, int]
    mode: Mode
    concurrency: int

    @property
    def selector(self) -> str | None:
        """The selector that chose the queues; None for a group of names."""
        return self.group.text if isinstance(self.group, SelectorGroup) else None

    def as_json(self) -> dict[str, object]:
        """Return the form of --dryrun --json."""
        document: dict[str, object] = {"slot": self.slot, "queues": self.weights, "mode": self.mode}
        document |= {"concurrency": self.concurrency, **({"shard": self.group.shard} if self.group.shard else {})}
        return document if self.selector is None else {**document, "selector": self.selector}


def groups_from(arguments: Sequence[str], queue_options: Sequence[str], config: Config) -> list[Group]:
    """Return the groups of the command line, else those of the configuration.

    Raises UsageError when there are none.
    """
    own = shard_name(config.shard or "")
    if config.queue_selector:
        return _selectors_from(arguments or config.groups, queue_options, config)
    parsed = [parse_group(text, strict=config.strict, negated=config.negate) for text in arguments or ()]
    if queue_options:
        parsed.append(parse_queue_option(queue_options, strict=config.strict, negated=config.negate))
    parsed = [replace(group, shard=own) for group in parsed]
    if not parsed:
        parsed = [
            replace(parse_group(text, strict=config.strict, negated=config.negate), shard=shard)
            for text, shard in map(partial(_with_shard, own), config.groups)
        ]
    if not parsed:
        raise UsageError(
            "no queue group given; name the queues of each process: kiqcluster -r app 'cronjob:*' default,mailers"
        )
    return parsed


def _with_shard(own: str, group: str | GroupSetting) -> tuple[str, str]:
    """Return the queues of a group, and its shard.  own: of a group that names none."""
    return (group.queues, shard_name(group.shard)) if isinstance(group, GroupSetting) else (group, own)


def _selectors_from(texts: Sequence[str | GroupSetting], queue_options: Sequence[str], config: Config) -> list[Group]:
    """Return a group per selector.  Raises UsageError."""
    if queue_options:
        raise UsageError("-q names a queue, and with --queue-selector each group is a selector: write 'name=mailers'")
    if config.strict:
        raise UsageError("--strict takes queues in the order written, and a selector writes no order: leave one out")
    if not texts:
        raise UsageError(
            "no selector given; write one for each process: kiqcluster -r app --queue-selector 'urgency=high'"
        )
    named = [_with_shard(shard_name(config.shard or ""), text) for text in texts]
    return [replace(SelectorGroup.of(text, negated=config.negate), shard=shard) for text, shard in named]


def refuse_listing(arguments: Sequence[str], listing: Iterable[str]) -> None:
    """Raise UsageError when the arguments are the files of the directory: an unquoted `*` was eaten by the shell."""
    visible = sorted(name for name in listing if not name.startswith("."))
    if visible and sorted(arguments) == visible:  # the shell sorts by locale
        raise UsageError(
            f"the groups {' '.join(arguments[:3])} … are the files of this directory: "
            "the shell expanded an unquoted *; write '*' in quotes"
        )


def plan_slots(
    groups: Sequence[Group], known: Iterable[str], config: Config, jobs: Collection[JobAttributes] = ()
) -> list[SlotPlan]:
    """Return a plan per group.  jobs: what selectors select from.

    Raises UsageError when --negate leaves a group nothing, or selectors match nothing at all.
    """
    plans = []
    for slot, given in enumerate(groups):
        here = [job for job in jobs if job.is_in(given.shard)]
        elsewhere = [job for job in jobs if not job.is_in(given.shard)]
        group = given.resolve(here, elsewhere) if isinstance(given, SelectorGroup) else given
        names = sorted(set(known) - ({job.queue for job in jobs} - {job.queue for job in here}))
        weights = group.expand(names)
        if group.negated and not (weights or _left_behind(group)):
            raise UsageError(
                f"--negate leaves no queue of {', '.join(names) or 'none known'} for {group.text!r}; name fewer"
            )
        concurrency = config.concurrency or concurrency_for(
            len(weights), config.min_concurrency, config.max_concurrency
        )
        plans.append(SlotPlan(slot, group, weights, group.mode(weights), concurrency))
    _refuse_nothing(plans)
    return plans


def _refuse_nothing(plans: Sequence[SlotPlan]) -> None:
    """Raise UsageError when there are selectors, and none of them matches a job."""
    selectors = [plan.group for plan in plans if isinstance(plan.group, SelectorGroup)]
    if selectors and not any(plan.weights or _left_behind(plan.group) for plan in plans):
        wrong = [
            f"no registered job has {', '.join(each.unmatched)}; {each.hint}" for each in selectors if each.unmatched
        ]
        texts = ", ".join(repr(each.text) for each in selectors)
        raise UsageError(f"no registered job matches {texts}{': ' + wrong[0] if wrong else ''}")


def _left_behind(group: Group) -> Mapping[str, int]:
    return group.left_behind if isinstance(group, SelectorGroup) else {}


def setting_warnings(config: Config, slots: int) -> list[str]:
    """Return warnings about numbers that contradict each other, for a cluster of so many slots."""
    found = [
        f"the shards {first} and {name} are one Redis: the workers of both fetch the same queues"
        for name, first in same_redis(config.known_redis(), config.shards).items()
    ]
    # If only max_concurrency is set, it is meant: the default of the other does not count.
    is_wish = config.is_declared("min_concurrency")
    if config.concurrency is None and is_wish and 0 < config.max_concurrency < config.min_concurrency:
        found.append(
            f"min_concurrency is {config.min_concurrency} and max_concurrency {config.max_concurrency}: "
            "the second holds; 0 would be no limit"
        )
    if config.health_ready_quorum is not None and config.health_ready_quorum > slots:
        found.append(
            f"health.ready_quorum is {config.health_ready_quorum}, of slots there are {slots}: all have to be ready"
        )
    if config.roll_min_serving is not None and config.roll_min_serving > slots:
        found.append(
            f"roll.min_serving is {config.roll_min_serving}, of slots there are {slots}: no worker beyond "
            "recycle.memory_hard is stopped before another one serves in its place"
        )
    return found


def listed_queues(plans: Sequence[SlotPlan]) -> list[str]:
    """Return the sorted union of all slots' queues, for --list-queues."""
    return sorted({queue for plan in plans for queue in plan.weights})
