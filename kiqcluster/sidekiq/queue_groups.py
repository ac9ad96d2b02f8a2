"""Queue groups: the arguments of `kiqcluster`, one worker process each.  Pure.

`default,mailers`   these queues       `a=5,b`      with weights          `a,b,a`   the same as `a=2,b`
`cronjob`           the queue and all of its namespace `cronjob:…`
`cronjob:*`         the namespace only              `*`   every known queue
With --queue-selector, each is a selector over the attributes of jobs (selectors.py).

The supervisor (slots, concurrency) and the worker (new queues found while running) both expand groups.
Counterpart: sidekiq_cluster/cli.rb; docs/adr/0003-queue-groups.md lists the differences.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kiqcluster.errors import UsageError
from kiqcluster.sidekiq import selectors
from kiqcluster.sidekiq.selectors import JobAttributes

__all__ = [
    "MAX_WEIGHT",
    "Group",
    "GroupSetting",
    "Mode",
    "Pattern",
    "SelectorGroup",
    "concurrency_for",
    "parse_group",
    "parse_queue_option",
]

Mode = Literal["strict", "random", "weighted"]
EVERY_QUEUE = "*"
NAMESPACE_SUFFIX = ":*"
MAX_WEIGHT = 1_000
MAX_COMPARED, MAX_COMPARED_LENGTH = 1_000, 100  # known queues, and their characters, compared with a typo


@dataclass(frozen=True, slots=True)
class Pattern:
    """One name of a group with its weight."""

    name: str
    weight: int = 1

    @property
    def is_literal(self) -> bool:
        """Whether the name is that of one queue, known or not yet."""
        return not self.name.endswith("*")


@dataclass(frozen=True, slots=True)
class GroupSetting:
    """A group of the configuration that names its shard: `[[groups]] queues = "a,b", shard = "reports"`."""

    queues: str
    shard: str

    def __str__(self) -> str:
        return f"{self.queues} (shard {self.shard})"


@dataclass(frozen=True, slots=True)
class Group:
    """The queues of one worker process, before expansion.  shard: in which they are, "" for the default one."""

    text: str
    patterns: tuple[Pattern, ...]
    strict: bool = False
    negated: bool = False
    shard: str = ""
    _places: dict[str, int] = field(init=False, repr=False, compare=False)  # name of a pattern → its index

    def __post_init__(self) -> None:
        object.__setattr__(self, "_places", {pattern.name: at for at, pattern in enumerate(self.patterns)})

    def expand(self, known: Iterable[str]) -> dict[str, int]:
        """Return queue → weight, in the order written.  known: all known queue names.

        A queue has the weight of its most specific pattern, wherever that is in the group.
        """
        found: dict[str, list[str]] = {pattern.name: [] for pattern in self.patterns}
        weights: dict[str, int] = {}
        for queue in sorted(set(known)):
            if matching := self._matching(queue):
                found[matching[0].name].append(queue)
            elif self.negated:
                weights[queue] = 1
        if self.negated:
            return weights
        for pattern in self.patterns:
            named = [pattern.name] if pattern.is_literal else []
            for queue in (*named, *found[pattern.name]):
                weights.setdefault(queue, self._weight(queue))
        return weights

    def unheard_of(self, known: Iterable[str]) -> list[str]:
        """Return the names without a known queue, which may be typos; the queues of a pattern may come later."""
        heard_of = {pattern.name for queue in known for pattern in self._matching(queue)}
        return [pattern.name for pattern in self.patterns if pattern.is_literal and pattern.name not in heard_of]

    def hint_for(self, unknown: Iterable[str], known: Collection[str]) -> str:
        """Return a hint for such names: "did you mean" the nearest known queue or namespace."""
        names = sorted({*known, *(queue.partition(":")[0] for queue in known)})[:MAX_COMPARED]
        short = [name for name in names if len(name) <= MAX_COMPARED_LENGTH]
        near = [difflib.get_close_matches(name[:MAX_COMPARED_LENGTH], short, 1) for name in unknown]
        found = list(dict.fromkeys(name for names in near for name in names))
        return f"did you mean {', '.join(found)}?" if found else "is that name right?"

    def _weight(self, queue: str) -> int:
        """Return the weight of the closest pattern: the queue's own name, else its longest namespace, else `*`."""
        return max(self._matching(queue), key=lambda pattern: len(pattern.name.rstrip("*"))).weight

    def _matching(self, queue: str) -> list[Pattern]:
        """Return the patterns that match this queue, in the order written, without going through all patterns."""
        places = sorted(self._places[name] for name in _names_for(queue) if name in self._places)
        return [self.patterns[place] for place in places]

    def mode(self, expanded: dict[str, int]) -> Mode:
        """Return the mode in which a reserve orders the expanded queues."""
        if self.strict:
            return "strict"
        return "random" if len(set(expanded.values())) <= 1 else "weighted"


@dataclass(frozen=True, slots=True)
class SelectorGroup(Group):
    """The queues to which the jobs go that a selector matches.

    Groups with the same selector are equal: the other fields are what the latest catalogue made of it.
    weights: queue → weight.  unmatched: values that no job has, such as `tags=heavi`.  hint: the nearest known ones.
    left_behind: queue → weight of classes that are routed to another shard; served here where Redis knows the queue.
    """

    weights: Mapping[str, int] = field(default_factory=dict, compare=False)
    left_behind: Mapping[str, int] = field(default_factory=dict, compare=False)
    unmatched: tuple[str, ...] = field(default=(), compare=False)
    hint: str = field(default="", compare=False)

    @classmethod
    def of(cls, text: str, *, negated: bool = False) -> SelectorGroup:
        """Return the group of a selector, without queues.  Raises SelectorError."""
        selectors.parse(text)
        return cls(text, (), negated=negated)

    def resolve(self, jobs: Collection[JobAttributes], elsewhere: Collection[JobAttributes] = ()) -> SelectorGroup:
        """Return the group with the queues of these jobs; negated, with the queues to which no selected job goes.

        A queue has the largest weight of its selected jobs.  elsewhere: jobs that are routed to other shards.  Some may
        wait here from before the rule, in the class's own queue or under the name that the queue has there.
        """
        selector = selectors.parse(self.text)
        here = {job.queue for job in jobs}
        former = [
            job.in_queue(queue) for job in elsewhere for queue in {job.own or job.queue, job.queue} if queue not in here
        ]
        slips = list(selector.unheard_of([*jobs, *former]))
        near = dict.fromkeys(f"{attribute}={nearest}" for attribute, _, nearest in slips if nearest)
        return dataclasses.replace(
            self,
            weights=self._weights_of(selector, jobs),
            left_behind=self._weights_of(selector, former),
            unmatched=tuple(f"{attribute}={value}" for attribute, value, _ in slips),
            hint=f"did you mean {', '.join(near)}?" if near else "is that right?",
        )

    def _weights_of(self, selector: selectors.Selector, jobs: Collection[JobAttributes]) -> dict[str, int]:
        selected = [job for job in jobs if selector.matches(job.values)]
        if self.negated:
            taken = {job.queue for job in selected}
            selected = [job for job in jobs if job.queue not in taken]
        weights: dict[str, int] = {}
        for job in sorted(selected, key=lambda job: job.queue):
            weights[job.queue] = max(job.weight, weights.get(job.queue, 1))
        return weights

    def expand(self, known: Iterable[str]) -> dict[str, int]:
        """Return the queues of the catalogue, whichever are known beside them: these have no attributes.

        A queue that was left behind is served where it is known.
        """
        return {**self.weights, **{name: self.left_behind[name] for name in known if name in self.left_behind}}

    def unheard_of(self, known: Iterable[str]) -> list[str]:  # noqa: ARG002  # as in Group; so the next one
        """Return the values that no job has, as `attribute=value`."""
        return list(self.unmatched)

    def hint_for(self, unknown: Iterable[str], known: Collection[str]) -> str:  # noqa: ARG002
        """Return a hint for them."""
        return self.hint


def _names_for(queue: str) -> Iterator[str]:
    """Yield every pattern that would match a queue: `*`, its name, and `a` and `a:*` for each of its namespaces."""
    yield EVERY_QUEUE
    yield queue
    at = queue.find(":")
    while at >= 0:
        yield queue[:at]
        yield f"{queue[:at]}{NAMESPACE_SUFFIX}"
        at = queue.find(":", at + 1)


def parse_group(text: str, *, strict: bool = False, negated: bool = False) -> Group:
    """Return the group that one argument describes.

    Raises UsageError for empty names, spaces, control characters, weights that are not positive integers or combined
    with strict order, and globs other than `*` and `namespace:*`.
    """
    weight_by_name: dict[str, int] = {}
    weighted = False
    for word in text.split(","):
        name, equals, weight = word.partition("=")
        _check_name(name, text)
        weighted = weighted or bool(equals) or name in weight_by_name
        weight_by_name[name] = weight_by_name.get(name, 0) + (_weight(weight, text) if equals else 1)
    return _group(text, weight_by_name, strict=strict, weighted=weighted, negated=negated)


def parse_queue_option(options: Sequence[str], *, strict: bool = False, negated: bool = False) -> Group:
    """Return the group that repeated `-q NAME[,WEIGHT]` describes, as in Sidekiq."""
    weight_by_name: dict[str, int] = {}
    weighted = False
    for option in options:
        name, comma, weight = option.partition(",")
        _check_name(name, f"-q {option}")
        weighted = weighted or bool(comma) or name in weight_by_name
        weight_by_name[name] = weight_by_name.get(name, 0) + (_weight(weight, f"-q {option}") if comma else 1)
    text = ",".join(name if weight == 1 else f"{name}={weight}" for name, weight in weight_by_name.items())
    return _group(text, weight_by_name, strict=strict, weighted=weighted, negated=negated)


def _group(text: str, weight_by_name: dict[str, int], *, strict: bool, weighted: bool, negated: bool) -> Group:
    if strict and weighted:
        raise UsageError(
            f"--strict takes queues in the order written, so weights mean nothing: write {text!r} without them"
        )
    patterns = tuple(Pattern(name, weight) for name, weight in weight_by_name.items())
    return Group(text, patterns, strict, negated)


def _check_name(name: str, text: str) -> None:
    if not name:
        raise UsageError(f"queue group {text!r} has an empty name; write names as in 'default,mailers'")
    if not name.isprintable():
        raise UsageError(
            f"queue group {text!r} holds a line break or another control character; write names on one line"
        )
    if " " in name:
        raise UsageError(
            f"queue group {text!r} has a space in it; write a comma between the queues of one process, "
            "as in default,mailers, or give each process a word of its own"
        )
    if "*" in name and name != EVERY_QUEUE and (not name.endswith(NAMESPACE_SUFFIX) or "*" in name[:-1]):
        raise UsageError(f"{name!r} is not a pattern: '*' stands for every queue, 'cronjob:*' for a namespace")
    if name == NAMESPACE_SUFFIX:
        raise UsageError("':*' lacks its namespace; write it as in 'cronjob:*'")


def _weight(text: str, group: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MAX_WEIGHT):
        raise UsageError(
            f"{text!r} in {group!r} is not a weight; write an integer from 1 to {MAX_WEIGHT}, as in 'critical=5'"
        )
    return int(text)


def concurrency_for(queues: int, smallest: int, largest: int) -> int:
    """Return the threads for a number of queues: one each and a spare, clamped.

    Source: GitLab's sidekiq-cluster, where `smallest` has no effect without an upper clamp.

    largest: 0 means no upper clamp.
    """
    wanted = queues + 1
    enough = max(smallest, wanted)
    return min(enough, largest) if largest > 0 else enough
