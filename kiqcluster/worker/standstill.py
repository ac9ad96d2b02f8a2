"""Standstill: whose beat has stood still for so long that others may give its units back.  Pure; time is passed in.

No key expires on this: after an outage longer than any lease all of them would have, and the whole fleet would look
dead.  What counts is what one process has seen itself, by its own monotonic clock, without an interruption.  Whatever
may have kept the others from beating starts its observations anew: a connection that broke, a look that failed or was
not made in time (the watcher itself was frozen, and the others perhaps with it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

__all__ = ["Look", "Watch", "judge", "pause", "without"]

LOOKS = 6  # made within the time that a beat must stand still
SHORTEST_PAUSE = 0.7  # of the even one: a fleet that was started at once does not go on looking at once
LONGEST_GAP = 1 / 3  # of that time, between two looks; more, and the watch was interrupted


@dataclass(frozen=True, slots=True)
class Look:
    """What one look saw.

    asked, answered: monotonic seconds before and after the round trip.  connection: which one it came over.
    beats: identity → what moves while that process lives.
    """

    asked: float
    answered: float
    connection: int
    beats: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Watch:
    """What an unbroken row of looks has seen.

    answered, connection: of the last look.  since: identity → its beat, and when that was there first.
    """

    answered: float
    connection: int
    since: Mapping[str, tuple[str, float]] = field(default_factory=dict)


def judge(before: Watch | None, look: Look, recover_after: float) -> tuple[Watch, dict[str, str]]:
    """Return the watch to go on with, and identity → beat of those that have stood still long enough.

    before: None at the first look, and after one that failed.  Of the two ends of a round trip the one counts that
    makes a standstill shorter.
    """
    if before is None or not _is_unbroken(before, look, recover_after):
        before = Watch(look.answered, look.connection)
    since: dict[str, tuple[str, float]] = {}
    still: dict[str, str] = {}
    for identity, beat in look.beats.items():
        seen, first = before.since.get(identity, ("", 0.0))
        since[identity] = (beat, first if seen == beat else look.answered)
        if seen == beat and look.asked - first >= recover_after:
            still[identity] = beat
    return Watch(look.answered, look.connection, since), still


def without(watch: Watch, identity: str) -> Watch:
    """Return the watch with one observation started anew: it has been acted on."""
    since = {each: seen for each, seen in watch.since.items() if each != identity}
    return Watch(watch.answered, watch.connection, since)


def pause(recover_after: float, rng: Random) -> float:
    """Return the seconds until the next look."""
    return recover_after / LOOKS * rng.uniform(SHORTEST_PAUSE, 1.0)


def _is_unbroken(before: Watch, look: Look, recover_after: float) -> bool:
    gap = look.answered - before.answered
    return look.connection == before.connection and 0 <= gap <= recover_after * LONGEST_GAP
