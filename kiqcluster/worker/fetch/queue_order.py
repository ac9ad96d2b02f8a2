"""Queue order: which queues a reserve asks, which of them first, and which queues a group stands for right now.

One reserve asks few queues, however many there are, for Redis serves nobody else meanwhile.
1. draw       those that may hold work, by weight or in their order; and a few others, each in its turn
2. note       what a reserve has found: who gave nothing is asked no more until there is a reason
3. suspect    a bell, a look or a new name is one
4. look_at    those that the next look asks for their lengths, which is cheaper: again each in its turn
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from random import Random

from kiqcluster.sidekiq.queue_groups import Group, Mode
from kiqcluster.store.engine import MAX_QUEUES

__all__ = ["FEW_QUEUES", "QueueOrder", "in_words"]


# That share one of the largest batches, which come every few milliseconds: each has its turn as often, for less.
FEW_QUEUES = 30
MAX_SUSPECTED = 1_000  # queues that are asked just because they are new; more are left to the looks
TRIED_SHARE = 10  # one in so many of those that are drawn is one of which nothing is known
MAX_NAMED = 100  # queues that a log line names
SAMPLE = 10  # times as many as are drawn are weighed, at most


class QueueOrder:
    """The queues of one worker; replaced as a whole when new ones appear, so readers need no lock.

    Whoever draws has the lock of turns; `suspect` and `learn` may be called without it.
    strict: the order written.  random, weighted: drawn anew for every reserve, so that no queue starves
    (sidekiq fetch.rb).
    """

    def __init__(self, group: Group, known: Iterable[str], rng: Random) -> None:
        self.group = group
        self._rng = rng
        self.known = frozenset(known)
        self.weights: dict[str, int] = {}
        self._names: tuple[str, ...] = ()
        self._rank: dict[str, int] = {}  # place in the order written
        self._preferred: list[str] = []
        self._suspected: dict[str, None] = {}  # queues that may hold work, in the order in which that was learned
        self._tried = self._looked_at = 0  # places up to which queues were drawn, or looked at, in their turn
        self.set_queues(group.expand(self.known))

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
        self.suspect(islice((name for name in weights if name not in self.weights), MAX_SUSPECTED))
        self._rank = {name: rank for rank, name in enumerate(weights)}
        self._preferred = sorted(weights, key=lambda name: -weights[name])
        self.weights, self._names = weights, tuple(weights)
        return True

    def draw(self, most: int = MAX_QUEUES) -> dict[str, float]:
        """Return the queues in the order of one reserve, each with its share of what that brings.

        most: how many of them; of a strict order always as many as one reserve may ask.
        """
        names: Sequence[str] = self._names
        most = MAX_QUEUES if self.group.strict else most
        if len(names) > most:
            names = self._chosen(most)
        if len(names) < 2 or self.group.strict:
            return dict.fromkeys(sorted(names, key=self._place), 1.0)
        drawn = self._favoured(names)
        if self.mode == "random":
            return dict.fromkeys(drawn, 1 / len(drawn))
        total = sum(self.weights.get(name, 1) for name in drawn)
        return {name: self.weights.get(name, 1) / total for name in drawn}

    def _chosen(self, most: int) -> list[str]:
        """Return so many queues: those that may hold work, and always some of the others, each in its turn."""
        places = most - max(1, most // TRIED_SHARE)
        suspected = list(self._suspected)
        if len(suspected) > places:
            if not self.group.strict and len(suspected) > SAMPLE * places:
                suspected = self._rng.sample(suspected, SAMPLE * places)
            suspected = self._favoured(suspected)[:places]
        chosen = dict.fromkeys(name for name in suspected if name in self.weights)
        names = self._names
        for _ in range(2 * most):
            if len(chosen) >= most:
                break
            self._tried = (self._tried + 1) % len(names)
            chosen[names[self._tried]] = None
        return list(chosen)

    def _favoured(self, names: Sequence[str]) -> list[str]:
        """Return these queues in the order of a draw."""
        if self.group.strict:
            return sorted(names, key=self._place)
        if self.mode == "random":
            return self._rng.sample(names, len(names))
        # Exponential clocks: sorted by Exp(weight), the first is each queue with probability weight / total.
        return sorted(names, key=lambda name: self._rng.expovariate(self.weights.get(name, 1)))

    def _place(self, name: str) -> int:
        return self._rank.get(name, len(self._rank))

    def may_hold_more(self, drawn: Collection[str]) -> bool:
        """Return whether a queue may hold work that is not among those drawn."""
        if len(self._names) <= len(drawn):
            return False
        return any(name not in drawn and name in self.weights for name in list(self._suspected))

    def suspect(self, names: Iterable[str]) -> None:
        """Take note that these queues may hold work."""
        for name in names:
            self._suspected[name] = None

    def note(self, asked: Iterable[str], gave: Collection[str], *, is_whole: bool) -> None:
        """Take note of what a reserve has found.

        gave: the queues that some units came from.  is_whole: it would have taken more from each of the others.
        """
        if is_whole:
            for name in asked:
                if name not in gave:
                    self._suspected.pop(name, None)
        self.suspect(gave)

    def forget(self, names: Iterable[str]) -> None:
        """Take note that there is no use in asking these queues."""
        for name in names:
            self._suspected.pop(name, None)

    def look_at(self, most: int) -> Sequence[str]:
        """Return the queues for the next look, at most so many; the others are next."""
        names = self._names
        if len(names) <= most:
            return names
        first, self._looked_at = self._looked_at % len(names), (self._looked_at + most) % len(names)
        return (names + names)[first : first + most] if first + most > len(names) else names[first : first + most]

    def preferred(self) -> list[str]:
        """Return the queues, the heaviest first: they get the few bells that there are."""
        return self._preferred


def in_words(queues: Collection[str]) -> str:
    """Return queues for a log line: the first MAX_NAMED, and how many others there are."""
    if not queues:
        return "(none yet)"
    others = len(queues) - MAX_NAMED
    return ",".join(islice(queues, MAX_NAMED)) + (f" and {others} others" if others > 0 else "")
