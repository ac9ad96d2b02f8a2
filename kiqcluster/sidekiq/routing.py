"""Routing rules: selector → queue and shard; the first rule that matches a job class decides.  Pure.

[[routing]]                             routing = [["urgency=high", "urgent"], ["*", "default"]]
selector = "urgency=high"
queue = "urgent"

1. parse_rules    either form, or JSON of the second → rules; a rule that can never match is refused
2. first_match    attributes of a job class → its rule; routed: → those of its queue
3. digest         a name for a list of rules, so that nodes with other rules are seen

An empty queue leaves the jobs in the queue that their class declares.  Counterpart: GitLab's worker_router.rb, which
falls back to no rules at all when one is malformed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from kiqcluster.errors import InvalidPush, UsageError
from kiqcluster.sidekiq.payload import check_queue_name
from kiqcluster.sidekiq.selectors import ATTRIBUTES, AnyOf, JobAttributes, Part, Selector, Term, Values, parse

__all__ = ["RoutingRule", "Rules", "digest", "first_match", "parse_rules", "routed", "unused_rules"]

RULE_KEYS = ("selector", "queue", "shard")
DEFAULT_SHARD = "default"  # may name the shard that rules without one mean
DIGEST_CHARACTERS = 12
MAX_CLAUSES = 1_000  # of a selector that is checked for contradictions; beyond, it counts as one that can match
SEVERAL = "tags"  # the one attribute of which a job may have several values
FORM = 'a rule is { selector = "urgency=high", queue = "urgent" }, or ["urgency=high", "urgent"]'


@dataclass(frozen=True, slots=True)
class RoutingRule:
    """queue: to which the jobs go that the selector matches; "" leaves them where their class is declared.

    shard: "" for the default one.
    """

    selector: Selector
    queue: str
    shard: str = ""

    def as_list(self) -> list[str]:
        """Return the rule in GitLab's form."""
        return [self.selector.text, self.queue, *([self.shard] if self.shard else [])]

    def __str__(self) -> str:
        return json.dumps(self.as_list(), ensure_ascii=False)


Rules = tuple[RoutingRule, ...]


def parse_rules(raw: Any) -> Rules:
    """Return the rules of a setting.  Raises UsageError that names the rule and what is wrong with it."""
    if isinstance(raw, str):
        try:
            raw = json.loads(raw)
        except ValueError as error:
            raise UsageError(f'it is no JSON ({error}); write it as in [["urgency=high", "urgent"]]') from error
    if not isinstance(raw, list | tuple):
        raise UsageError(f"it takes a list of rules; {FORM}")
    rules = tuple(each if isinstance(each, RoutingRule) else _rule(number, each) for number, each in enumerate(raw, 1))
    _refuse_unreachable(rules)
    return rules


def first_match(rules: Rules, values: Values) -> int | None:
    """Return the index of the first rule that matches a job class, None if none does."""
    return next((index for index, rule in enumerate(rules) if rule.selector.matches(values)), None)


def routed(rules: Rules, job: JobAttributes) -> JobAttributes:
    """Return a job class as selectors of workers see it: in the queue and shard to which it is routed."""
    index = first_match(rules, job.values)
    if index is None:
        return job
    rule = rules[index]
    is_declared = job.is_queue_declared or bool(rule.queue)
    moved = job.in_queue(rule.queue or job.queue)
    return replace(moved, shard=rule.shard, own=job.queue, is_queue_declared=is_declared)


def unused_rules(rules: Rules, jobs: Sequence[JobAttributes]) -> Iterator[tuple[int, str]]:
    """Yield the number, from 1, of each rule that routes none of these classes, and a hint."""
    used = {first_match(rules, job.values) for job in jobs}
    for index, rule in enumerate(rules):
        if index not in used:
            near = [f"{attribute}={nearest}" for attribute, _, nearest in rule.selector.unheard_of(jobs) if nearest]
            yield index + 1, f"did you mean {', '.join(near)}?" if near else "is that right?"


def digest(rules: Rules) -> str:
    """Return a short name for these rules, "" for none.  The same rules have the same on every node."""
    if not rules:
        return ""
    text = json.dumps([rule.as_list() for rule in rules])
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARACTERS]


def _rule(number: int, raw: Any) -> RoutingRule:
    selector, queue, shard = _members(number, raw)
    if not isinstance(selector, str):
        raise UsageError(f"rule {number}: its selector is a text such as 'urgency=high', not {selector!r}")
    if queue is not None and not isinstance(queue, str):
        raise UsageError(f'rule {number}: its queue is a name, or "" for the class\'s own, not {queue!r}')
    if shard is not None and not isinstance(shard, str):
        raise UsageError(f"rule {number}: its shard is a name, not {shard!r}")
    shard = "" if shard in (None, DEFAULT_SHARD) else shard
    try:
        return RoutingRule(parse(selector), check_queue_name(queue) if queue else "", shard)
    except (UsageError, InvalidPush) as error:
        raise UsageError(f"rule {number}: {error}") from error


def _members(number: int, raw: Any) -> tuple[Any, Any, Any]:
    if isinstance(raw, Mapping):
        if unknown := sorted(raw.keys() - set(RULE_KEYS)):
            raise UsageError(f"rule {number}: there is no key {unknown[0]!r}; {FORM}")
        if missing := [key for key in RULE_KEYS[:2] if key not in raw]:
            raise UsageError(f"rule {number} has no {missing[0]}; {FORM}")
        return raw["selector"], raw["queue"], raw.get("shard")
    if isinstance(raw, list | tuple) and 2 <= len(raw) <= len(RULE_KEYS):
        return raw[0], raw[1], raw[2] if len(raw) > 2 else None
    raise UsageError(f"rule {number}: {raw!r} is none; {FORM}")


# rules that can never match


@dataclass(frozen=True, slots=True)
class _Wish:
    """What a clause asks of one attribute: a value of each set of `wanted`, and none of `unwanted`."""

    wanted: tuple[frozenset[str], ...] = ()
    unwanted: frozenset[str] = frozenset()

    def is_possible(self, attribute: str) -> bool:
        if attribute == SEVERAL:
            return all(each - self.unwanted for each in self.wanted)
        allowed = self._allowed(attribute)
        return allowed is None or bool(allowed)

    def implies(self, other: _Wish, attribute: str) -> bool:
        """Return whether values that fulfil this one fulfil the other."""
        if attribute == SEVERAL:
            mine = [each - self.unwanted for each in self.wanted]
            has_all = all(any(each <= wanted for each in mine) for wanted in other.wanted)
            return has_all and other.unwanted <= self.unwanted
        allowed = self._allowed(attribute)
        if allowed is None:
            return not other.wanted and other.unwanted <= self.unwanted
        return all(allowed <= wanted for wanted in other.wanted) and allowed.isdisjoint(other.unwanted)

    def _allowed(self, attribute: str) -> frozenset[str] | None:
        """Return the values that are left of an attribute with one value; None for any but the unwanted."""
        sets = [*self.wanted, *([frozenset(ATTRIBUTES[attribute])] if ATTRIBUTES[attribute] else [])]
        return frozenset.intersection(*sets) - self.unwanted if sets else None


_Clause = dict[str, _Wish]  # terms that hold together: attribute → what is asked of it


def _refuse_unreachable(rules: Rules) -> None:
    """Raise UsageError for a rule whose selector contradicts itself, or whose jobs all match an earlier rule."""
    earlier: list[tuple[int, _Clause]] = []
    for number, rule in enumerate(rules, 1):
        clauses = _clauses(rule.selector.root)
        if clauses is None:
            continue
        possible = [clause for clause in clauses if all(wish.is_possible(name) for name, wish in clause.items())]
        if not possible:
            raise UsageError(
                f"rule {number}: no job can match {rule.selector.text!r}, whose terms exclude each other; "
                "mend it, or take it out"
            )
        before = [next((n for n, other in earlier if _implies(clause, other)), None) for clause in possible]
        if (first := before[0]) is not None and None not in before:
            raise UsageError(
                f"rule {number}: no job ever comes to {rule.selector.text!r}, because rule {first} "
                f"({rules[first - 1].selector.text!r}) takes it first; put the narrower rule first, or take one out"
            )
        earlier += ((number, clause) for clause in possible)


def _clauses(part: Part) -> list[_Clause] | None:
    """Return the clauses of which one has to hold; None where there are too many."""
    if isinstance(part, Term):
        values = frozenset(part.values)
        return [{part.attribute: _Wish((), values) if part.is_negated else _Wish((values,))}]
    several = [_clauses(each) for each in part.parts]
    known = [each for each in several if each is not None]
    if len(known) < len(several):
        return None
    if isinstance(part, AnyOf):
        return _few([clause for each in known for clause in each])
    total = 1
    for each in known:
        total *= len(each)
    return None if total > MAX_CLAUSES else [_joined(clauses) for clauses in product(*known)]


def _few(clauses: list[_Clause]) -> list[_Clause] | None:
    return clauses if len(clauses) <= MAX_CLAUSES else None


def _joined(clauses: Sequence[_Clause]) -> _Clause:
    joined: _Clause = {}
    for name, wish in _wishes(clauses):
        before = joined.get(name, _Wish())
        joined[name] = _Wish((*before.wanted, *wish.wanted), before.unwanted | wish.unwanted)
    return joined


def _wishes(clauses: Sequence[_Clause]) -> Iterator[tuple[str, _Wish]]:
    for clause in clauses:
        yield from clause.items()


def _implies(clause: _Clause, other: _Clause) -> bool:
    return all(clause.get(name, _Wish()).implies(wish, name) for name, wish in other.items())
