"""Failure detector: whether this process may recover members that Redis shows as silent (rule R8).  Pure.

Redis keeps the time of everybody's last beat, by its own clock, and nothing expires on it.  An old time alone proves
nothing: during an outage nobody could beat, a fail-over brings older times back, and a clock that is set forward makes
all of them old.  So members are recovered only while it is certain that those alive could beat: beats have arrived for
`recover_after` without a disturbance.  A process that lives has beaten several times meanwhile.
- the fleet's beats show it, where Redis tells which process of it answers: whoever beats keeps the row (beat.lua), so a
  process that has just started may recover others.  It does not believe what its own last beat contradicts
- else, those of this process do
A row of its own begins anew with:
- a gap: the last beat is too long ago, for this process was frozen, or Redis did not answer
- another process of Redis (a fail-over, a restart); a new connection to the same one changes nothing
- Redis' clock and our monotonic clock went apart: one of the two was set, or stood still
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

__all__ = ["BEATS_PER_WINDOW", "Observation", "Window", "is_disturbed", "may_recover", "observe", "pause"]

BEATS_PER_WINDOW = 6  # beats within `recover_after`
MIN_PAUSE_SHARE = 0.7  # of the even one: a fleet that was started at once does not go on beating at once
MAX_GAP_SHARE = 1 / 3  # of `recover_after`, between two beats; more, and the window begins anew (also in beat.lua)
MAX_CLOCK_SLIP_SHARE = 1 / 60  # of `recover_after`, by which the clocks may go apart between two beats


@dataclass(frozen=True, slots=True)
class Observation:
    """The facts of one beat.

    asked, answered: monotonic seconds before and after the round trip.  server: which process of Redis has answered,
    "" where that is not known.  server_time: its clock, epoch seconds.
    """

    asked: float
    answered: float
    server: str
    server_time: float


@dataclass(frozen=True, slots=True)
class Window:
    """An unbroken row of beats of this process.  since: monotonic seconds when its first one was answered."""

    since: float
    last: Observation


def observe(window: Window | None, seen: Observation, recover_after: float) -> Window:
    """Return the window to go on with.  window: None before the first beat, and after one that Redis refused."""
    if window is None or _has_gap(window.last, seen, recover_after) or is_disturbed(window, seen, recover_after):
        return Window(seen.answered, seen)
    return Window(window.since, seen)


def may_recover(window: Window | None, at: float, recover_after: float) -> bool:
    """Return whether the window has lasted for long enough at a moment, monotonic seconds."""
    return window is not None and at - window.since >= recover_after


def is_disturbed(window: Window | None, seen: Observation, recover_after: float) -> bool:
    """Return whether a beat contradicts what the times in Redis say, as far as this process can tell."""
    if not seen.server:
        return True
    if window is None:
        return False
    last, slip = window.last, recover_after * MAX_CLOCK_SLIP_SHARE
    passed = seen.server_time - last.server_time
    is_even = seen.asked - last.answered - slip <= passed <= seen.answered - last.asked + slip
    return seen.server != last.server or not is_even


def pause(recover_after: float, rng: Random) -> float:
    """Return the seconds until the next beat."""
    return recover_after / BEATS_PER_WINDOW * rng.uniform(MIN_PAUSE_SHARE, 1.0)


def _has_gap(last: Observation, seen: Observation, recover_after: float) -> bool:
    return not 0 <= seen.answered - last.answered <= recover_after * MAX_GAP_SHARE
