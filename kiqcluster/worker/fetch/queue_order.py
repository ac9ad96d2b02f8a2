"""Queue order: which queues a reserve asks, in which order, and which queues a group stands for right now.

One reserve asks few queues, however many there are, since Redis serves nobody else meanwhile.
1. draw             candidates, which may hold work, by weight or in strict order; and a few other queues in turn
2. record_reserve   the queues that gave nothing are candidates no more
3. add_candidates   a wakeup, a sweep or a new name makes a queue a candidate
4. next_to_sweep    the queues whose lengths the next sweep asks for, which is cheaper; again in turn
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from random import Random

from kiqcluster.process.clock import Clock
from kiqcluster.sidekiq.queue_groups import Group, Mode, SelectorGroup
from kiqcluster.store.engine.wait_lists import MAX_QUEUES

__all__ = ["FORBIDDEN_RETRY_SECONDS", "ExcludedQueues", "QueueOrder", "describe_queues"]


FORBIDDEN_RETRY_SECONDS = 60.0  # until a queue is asked again whose keys Redis forbids: the ACL may have changed
MAX_NEW_CANDIDATES = 1_000  # queues that are asked because they are new; sweeps find the others
PROBE_SHARE = 10  # one in so many of the queues drawn is not a candidate
MAX_LOGGED_QUEUES = 100  # named in a log line
MAX_WEIGHED_FACTOR = 10  # times as many candidates as are drawn are weighed, at most


class QueueOrder:
    """The queues of one worker; replaced as a whole when new ones appear, so readers need no lock.

    The queues of a selector come from the supervisor, by `choose`: new names in Redis have no attributes.
    `draw` needs the lock of the coordinator; `add_candidates` and `learn` may be called without it.
    strict: the configured order.  random, weighted: drawn anew for every reserve, so that no queue starves
    (sidekiq fetch.rb).
    """

    def __init__(self, group: Group, known: Iterable[str], rng: Random) -> None:
        self.group = group
        self._rng = rng
        self.known = frozenset(known)
        self.weights: dict[str, int] = {}
        self._names: tuple[str, ...] = ()
        self._rank: dict[str, int] = {}  # place in the configured order
        self._preferred: list[str] = []
        self._candidates: dict[str, None] = {}  # may hold work; in the order in which they were added
        self._probed_up_to = self._swept_up_to = 0  # places in `_names`, for the queues that have their turn
        self.set_queues(group.expand(self.known))

    @property
    def mode(self) -> Mode:
        return self.group.mode(self.weights)

    def learn(self, names: Iterable[str]) -> bool:
        """Add queue names; return whether the group now has other queues.

        A known name stays: clients may push to a queue that the set of names in Redis has lost.
        """
        fresh = frozenset(names) - self.known
        if isinstance(self.group, SelectorGroup):
            fresh &= self.group.left_behind.keys()
        if not fresh:  # at nearly every heartbeat
            return False
        self.known |= fresh
        return self.set_queues(self.group.expand(self.known))

    def choose(self, weights: dict[str, int], left_behind: dict[str, int]) -> bool:
        """Take over what the selector stands for now, as after a reload; return whether the queues are others.

        See SelectorGroup.
        """
        if isinstance(self.group, SelectorGroup):
            self.group = replace(self.group, weights=weights, left_behind=left_behind)
        return self.set_queues(self.group.expand(self.known))

    def set_queues(self, weights: dict[str, int]) -> bool:
        """Replace queues and weights, on a live worker; return whether anything changed."""
        if list(weights.items()) == list(self.weights.items()):  # the order counts too, when it is strict
            return False
        self.add_candidates(islice((name for name in weights if name not in self.weights), MAX_NEW_CANDIDATES))
        self._rank = {name: rank for rank, name in enumerate(weights)}
        self._preferred = sorted(weights, key=lambda name: -weights[name])
        self.weights, self._names = weights, tuple(weights)
        return True

    def draw(self, most: int = MAX_QUEUES) -> dict[str, float]:
        """Return the queues in the order of one reserve, each with its share of what that brings.

        most: how many of them; a strict order has always as many as one reserve may ask.
        """
        names: Sequence[str] = self._names
        most = MAX_QUEUES if self.group.strict else most
        if len(names) > most:
            names = self._chosen(most)
        if len(names) < 2 or self.group.strict:
            return dict.fromkeys(sorted(names, key=self._place), 1.0)
        drawn = self._ordered(names)
        if self.mode == "random":
            return dict.fromkeys(drawn, 1 / len(drawn))
        total = sum(self.weights.get(name, 1) for name in drawn)
        return {name: self.weights.get(name, 1) / total for name in drawn}

    def _chosen(self, most: int) -> list[str]:
        """Return so many queues: candidates, and always some of the others in turn."""
        places = most - max(1, most // PROBE_SHARE)
        candidates = list(self._candidates)
        if len(candidates) > places:
            if not self.group.strict and len(candidates) > MAX_WEIGHED_FACTOR * places:
                candidates = self._rng.sample(candidates, MAX_WEIGHED_FACTOR * places)
            candidates = self._ordered(candidates)[:places]
        chosen = dict.fromkeys(name for name in candidates if name in self.weights)
        names = self._names
        for _ in range(2 * most):
            if len(chosen) >= most:
                break
            self._probed_up_to = (self._probed_up_to + 1) % len(names)
            chosen[names[self._probed_up_to]] = None
        return list(chosen)

    def _ordered(self, names: Sequence[str]) -> list[str]:
        """Return these queues in the order of a reserve."""
        if self.group.strict:
            return sorted(names, key=self._place)
        if self.mode == "random":
            return self._rng.sample(names, len(names))
        # Exponential clocks: sorted by Exp(weight), the first is each queue with probability weight / total.
        return sorted(names, key=lambda name: self._rng.expovariate(self.weights.get(name, 1)))

    def _place(self, name: str) -> int:
        return self._rank.get(name, len(self._rank))

    def has_other_candidates(self, drawn: Collection[str]) -> bool:
        """Return whether a candidate is not among those drawn."""
        if len(self._names) <= len(drawn):
            return False
        return any(name not in drawn and name in self.weights for name in list(self._candidates))

    def add_candidates(self, names: Iterable[str]) -> None:
        """Ask these queues soon: they may hold work."""
        for name in names:
            self._candidates[name] = None

    def record_reserve(self, asked: Iterable[str], gave: Collection[str], *, is_whole: bool) -> None:
        """Learn from the result of a reserve.

        gave: the queues that some units came from.  is_whole: it would have taken more from each of the others.
        """
        if is_whole:
            for name in asked:
                if name not in gave:
                    self._candidates.pop(name, None)
        self.add_candidates(gave)

    def drop_candidates(self, names: Iterable[str]) -> None:
        """Ask these queues only in turn."""
        for name in names:
            self._candidates.pop(name, None)

    def next_to_sweep(self, most: int) -> Sequence[str]:
        """Return the queues for the next sweep, at most so many; the others have their turn later."""
        names = self._names
        if len(names) <= most:
            return names
        first, self._swept_up_to = self._swept_up_to % len(names), (self._swept_up_to + most) % len(names)
        return (names + names)[first : first + most] if first + most > len(names) else names[first : first + most]

    def preferred(self) -> list[str]:
        """Return the queues, the heaviest first: these get the few wakeups that there are."""
        return self._preferred


class ExcludedQueues:
    """Queues that are left out for a while; guarded by the lock of the coordinator.

    resting: paused or broken, as the last reserve of each has found it.  forbidden_until: queue whose keys Redis
    forbids → monotonic seconds at which it is asked again.
    """

    def __init__(self, clock: Clock) -> None:
        self._now = clock.monotonic
        self.resting: frozenset[str] = frozenset()
        self.forbidden_until: dict[str, float] = {}

    def forbidden(self) -> set[str]:
        """Return the queues that are forbidden now."""
        now = self._now()
        return {queue for queue, until in self.forbidden_until.items() if now < until}

    def forbid(self, queues: Iterable[str]) -> bool:
        """Leave out these queues for FORBIDDEN_RETRY_SECONDS; return whether any was not known to be forbidden."""
        is_new = not self.forbidden_until.keys() >= set(queues)
        self.forbidden_until.update(dict.fromkeys(queues, self._now() + FORBIDDEN_RETRY_SECONDS))
        return is_new

    def record_resting(self, asked: Iterable[str], resting: frozenset[str]) -> None:
        """Learn which of the queues that a reserve has asked are paused or broken."""
        self.resting = self.resting.difference(asked) | resting


def describe_queues(queues: Collection[str]) -> str:
    """Return queues for a log line: the first MAX_LOGGED_QUEUES, and how many others there are."""
    if not queues:
        return "(none yet)"
    others = len(queues) - MAX_LOGGED_QUEUES
    return ",".join(islice(queues, MAX_LOGGED_QUEUES)) + (f" and {others} others" if others > 0 else "")
