"""Queue order: which queue a reserve asks first, and which queues a group stands for right now."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from kiqcluster.groups import Group, Mode

__all__ = ["QueueOrder"]


class QueueOrder:
    """The queues of one worker; replaced as a whole when new ones appear, so readers need no lock.

    strict: the order written.  random, weighted: drawn anew for every reserve, so that no queue starves
    (sidekiq fetch.rb).
    """

    def __init__(self, group: Group, known: Iterable[str], rng: Random) -> None:
        self.group = group
        self._rng = rng
        self.known = frozenset(known)
        self.weights = group.expand(self.known)
        self._names = tuple(self.weights)

    @property
    def mode(self) -> Mode:
        return self.group.mode(self.weights)

    def learn(self, names: Iterable[str]) -> bool:
        """Take in queue names that somebody has heard of; return whether the group now has other queues.

        A name once known stays: that Redis' set of names lost it does not mean that nobody pushes to it.
        """
        fresh = frozenset(names) - self.known
        if not fresh:  # at nearly every beat
            return False
        self.known |= fresh
        return self.set_queues(self.group.expand(self.known))

    def set_queues(self, weights: dict[str, int]) -> bool:
        """Replace queues and weights, on a live worker; return whether anything changed."""
        if list(weights.items()) == list(self.weights.items()):  # the order counts too, when it is strict
            return False
        self.weights, self._names = weights, tuple(weights)
        return True

    def draw(self, most: int | None = None) -> dict[str, float]:
        """Return the queues in the order of one reserve, each with its share of what that brings.

        most: how many of them, unless their order is strict; None for all.
        """
        weights, names = self.weights, self._names
        if len(names) < 2 or self.group.strict:
            return dict.fromkeys(names, 1.0)
        if self.mode == "random":
            drawn = self._rng.sample(names, min(most or len(names), len(names)))
            return dict.fromkeys(drawn, 1 / len(drawn))
        # Exponential clocks: sorted by Exp(weight), the first is each queue with probability weight / total.
        drawn = sorted(names, key=lambda name: self._rng.expovariate(weights.get(name, 1)))[:most]
        total = sum(weights.get(name, 1) for name in drawn)
        return {name: weights.get(name, 1) / total for name in drawn}

    def preferred(self) -> list[str]:
        """Return the queues, the heaviest first: they get the few bells that there are."""
        return sorted(self._names, key=lambda name: -self.weights.get(name, 1))
