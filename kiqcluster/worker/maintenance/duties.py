"""Duties: work that any one process of the fleet has to do from time to time.

Redis knows when each duty was begun last (`kiq:polls`), by its own clock; no process has a timer for one.
1. look     a process asks for its duties when it has booted, and claims those that are due (store/engine/duties)
2. pause    it looks again a moment after the first of them is due.  If it has claimed nothing, others are there to do
            it: in a fleet it leaves them the next rounds
3. refuse   it leaves duties that Redis forbids to it to others for a while

So a duty begins `longest_gap` after its last begin at the latest, whatever the number of processes and however shortly
they live, while one of them is there.  A process that dies with a duty, or does it slowly, costs one interval.  The
same holds when Redis is emptied, and when its clock is set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from random import Random

from kiqcluster.application.registry import Registry
from kiqcluster.errors import RedisRefused, StoreError
from kiqcluster.process.runtime import Runtime
from kiqcluster.store import is_outage
from kiqcluster.store.engine.duties import Claims, claim_duties

__all__ = ["Duties", "Duty", "due_after", "fleet_duties", "longest_gap", "pause", "scope"]

DUE_SHARE = 0.9  # of its interval, after which a duty is due; within the rest some process looks
MAX_GAP_SECONDS = 10.0  # between two begins of a duty whose interval is short
SPREAD_SECONDS = 0.02  # in which one process of a fleet looks: those of a large one do not look at once
PROCESSES_PER_ROUND = 4  # that are there for each round which one of them leaves to the others
MARGIN_SECONDS = 0.002  # after a duty is due, so that a look does not come a moment before it
DIGEST_CHARACTERS = 8


@dataclass(frozen=True, slots=True)
class Duty:
    """Something that the fleet does once in an interval, in seconds.

    name: the same in all processes that can do it, and in no others: whoever claims it does it for all of them.
    do: may raise StoreError.
    """

    name: str
    interval: float
    do: Callable[[], object]


def fleet_duties(
    known: str,
    declared: str,
    *,
    drop_expired: Callable[[], object],
    look_at_hands: Callable[[], object],
    keep_cron: Callable[[], object],
    sweep_limits: Callable[[], object],
) -> list[Duty]:
    """Return the duties of the fleet besides polls.

    known: the scope of this application.  declared: the digest of its cron entries; processes that declare others leave
    them alone.
    """
    return [
        Duty("processes", 60.0, drop_expired),
        Duty("hands", 30.0, look_at_hands),
        Duty(f"cron {known} {declared}", 60.0, keep_cron),
        Duty(f"limits {known}", 30.0, sweep_limits),
    ]


def scope(application: str, registry: Registry) -> str:
    """Return a word for the names of duties that need the application: equal where the same jobs are registered."""
    names = "\n".join(sorted(definition.name for definition in registry))
    digest = hashlib.sha256(names.encode(errors="surrogatepass")).hexdigest()
    return f"{application} {digest[:DIGEST_CHARACTERS]}"


def due_after(interval: float) -> float:
    """Return the seconds from the begin of a duty until it is due again."""
    return interval * DUE_SHARE


def longest_gap(interval: float) -> float:
    """Return the most seconds between two begins of a duty, while a process is there that can do it."""
    return max(2 * interval, MAX_GAP_SECONDS)


def pause(until_due: float, interval: float, processes: int, rng: Random, *, in_vain: bool) -> float:
    """Return the seconds until the next look.

    until_due: seconds until the first duty is due.  interval: the shortest of the duties.  processes: of the fleet.
    in_vain: whether the look before has claimed nothing.
    """
    due = due_after(interval)
    spread = min(interval - due, SPREAD_SECONDS * processes)
    rounds = max(2, int(MAX_GAP_SECONDS * DUE_SHARE / due)) - 1 if in_vain else 0
    left_to_others = min(rounds, processes // PROCESSES_PER_ROUND) * due
    return until_due + left_to_others + MARGIN_SECONDS + spread * rng.random()


class Duties:
    """The duties that one thread looks after.

    intervals: by their names.  next_look: monotonic seconds.
    """

    def __init__(self, runtime: Runtime, service: str, intervals: Mapping[str, float]) -> None:
        self._runtime = runtime
        self._service = service
        self._intervals = intervals
        self._due_at = dict.fromkeys(intervals, -inf)  # monotonic seconds; before that it is not asked for
        self._refusal = ""
        self.next_look = -inf

    def claim(self) -> Claims:
        """Claim what is due, and plan the next look.  One round trip.  Raises StoreError when Redis is away.

        Where Redis refuses the question, this process does everything in time, as if it were alone.
        """
        asked = self._runtime.clock.monotonic()
        self.next_look = asked + min(self._intervals.values())
        pauses = {name: due_after(self._intervals[name]) for name, at in self._due_at.items() if at <= asked}
        claims = self._ask(pauses)
        for name, left in claims.left.items():
            self._due_at[name] = asked + (left or pauses[name])
        self.next_look = asked + pause(
            min(self._due_at.values()) - asked,
            min(self._intervals.values()),
            claims.processes,
            self._runtime.rng,
            in_vain=all(claims.left.values()),
        )
        return claims

    def leave_to_others(self, name: str) -> None:
        """Claim a duty no more for a while: this process could not do it."""
        self._due_at[name] = self._runtime.clock.monotonic() + longest_gap(self._intervals[name])

    def _ask(self, pauses: Mapping[str, float]) -> Claims:
        if not pauses:
            return Claims(1, {})
        try:
            claims = claim_duties(self._runtime.store, pauses)
        except RedisRefused as error:
            if is_outage(error):
                raise
            self._report(error)
            return Claims(1, dict.fromkeys(pauses, 0.0))
        self._refusal = ""
        return claims

    def _report(self, error: StoreError) -> None:
        """Report a refusal once."""
        if str(error) != self._refusal:
            self._refusal = str(error)
            self._runtime.trouble(self._service, error)
