"""Deadlines: which deadline a process has passed.  Pure."""

from __future__ import annotations

from enum import Enum, auto
from math import inf

from kiqcluster.process.config import Config
from kiqcluster.supervisor.cluster.child import Child
from kiqcluster.supervisor.cluster.slots import Slot

__all__ = ["Deadline", "passed_deadline"]


class Deadline(Enum):
    """STOP: it was asked to stop.  BOOT: it is not ready.  SILENCE: it makes no progress.  QUIET: its lease is over."""

    STOP = auto()
    BOOT = auto()
    SILENCE = auto()
    QUIET = auto()


def passed_deadline(slot: Slot, child: Child, config: Config, stop_by: float | None, now: float) -> Deadline | None:
    """Return the deadline that a process has passed, None if it has passed none.

    stop_by: when all processes are killed, None while the cluster does not stop.  now: monotonic seconds, like that.
    """
    if now >= min(child.ending.stop_deadline, inf if stop_by is None else stop_by):
        return Deadline.STOP
    # A replacement that is ready has to fetch as well, within the same time.
    is_booting = not child.is_ready or child is slot.replacement
    if is_booting and now >= child.beat.at + config.health_boot_timeout:
        return Deadline.BOOT
    is_leaving = stop_by is not None or child.ending.is_asked_to_stop
    may_be_silent = not config.health_silence_timeout or not child.is_ready or is_leaving
    if not may_be_silent and now >= child.beat.at + config.health_silence_timeout:
        return Deadline.SILENCE
    return Deadline.QUIET if now >= child.quiet_until else None
