"""Respawn: when a slot gets its next process, and when there is no point in going on.  Pure.

A child that had become ready is replaced at once; one that never did is replaced after 1, 2, 4 … 30 s, with jitter.
An exit with one of BOOT_CODES counts as a failed boot, unless the child had been ready for HEALTHY_SECONDS.  If
no slot ever became ready, the cluster ends with the code that says why: a broken release must not look alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from kiqcluster.errors import ExitCode
from kiqcluster.process.backoff import jittered

__all__ = ["HEALTHY_SECONDS", "History", "after_death", "after_ready", "give_up_code"]

MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 1.0, 30.0  # seconds
HEALTHY_SECONDS = 60.0  # seconds of life after which earlier failures are forgotten
BURST_WINDOW_SECONDS = 60.0  # seconds over which immediate respawns are counted
BOOT_CODES = frozenset({ExitCode.USAGE, ExitCode.APPLICATION, ExitCode.REDIS_REFUSED, ExitCode.NAME_IN_USE})


@dataclass(frozen=True, slots=True)
class History:
    """The past of a slot.  Times are monotonic seconds.

    failures: failed boots in a row.  not_before: when the next process may start.
    """

    failures: int = 0
    not_before: float = 0.0
    respawned: tuple[float, ...] = ()
    ever_ready: bool = False
    last_code: int | None = None

    def without_wait(self) -> History:
        """Return it without the wait: the cause of the failures may be gone."""
        return replace(self, not_before=0.0)

    @property
    def why_waiting(self) -> str:
        """Return what the wait until not_before is for, in words."""
        if self.failures:
            return f"{'1 boot' if self.failures == 1 else f'{self.failures} boots in a row'} that came to nothing"
        return f"{len(self.respawned)} respawns within a minute"


def after_ready(history: History) -> History:
    """Return the history of a slot whose child became ready."""
    return replace(history, ever_ready=True)


def after_death(
    history: History, *, ready_for: float | None, code: int | None, now: float, burst: int, rng: Random
) -> History:
    """Return the history of a slot whose child died.

    ready_for: seconds since it became ready, None if it never did.  code: its exit code, None for a signal.
    burst: respawns at once within BURST_WINDOW_SECONDS.
    """
    is_healthy = ready_for is not None and ready_for >= HEALTHY_SECONDS
    failed_to_boot = ready_for is None or (code in BOOT_CODES and not is_healthy)
    if failed_to_boot:
        failures = history.failures + 1
        not_before = now + jittered(failures - 1, MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS, rng)
        return replace(history, failures=failures, not_before=not_before, last_code=code)
    recent = tuple(at for at in history.respawned if at > now - BURST_WINDOW_SECONDS)
    not_before = now if len(recent) < burst else recent[-burst] + BURST_WINDOW_SECONDS
    failures = 0 if is_healthy else history.failures
    return replace(history, failures=failures, not_before=not_before, respawned=(*recent, not_before), last_code=code)


def give_up_code(histories: Sequence[History]) -> ExitCode | None:
    """Return the code to exit with when every slot has failed to boot and none was ever ready, else None."""
    if not histories or any(history.ever_ready or not history.failures for history in histories):
        return None
    codes = {history.last_code for history in histories}
    known = sorted(code for code in codes if code in BOOT_CODES)
    return ExitCode(known[-1]) if known else ExitCode.NEVER_READY
