"""Concurrency limit: how many takers run units at once while units are prefetched.

Threads that run short jobs contend for the interpreter lock: each job that takes a lock or writes a line hands it to
another core.  So as few takers run as keep up; the others wait, and one of them watches.
1. lower         after a batch: fewer takers may do as well
2. begin_watch   a waiting taker becomes the watcher
3. end_watch     after WATCH_SECONDS it compares: if the others were blocked, more may run, itself first

No I/O and no lock: whoever holds the coordinator's lock calls this.
"""

from __future__ import annotations

from dataclasses import dataclass

from kiqcluster.process.clock import Clock

__all__ = ["WATCH_SECONDS", "ConcurrencyLimit"]

WATCH_SECONDS = 0.003  # after which units that nobody takes get another taker; each look costs a switch of threads
MIN_PACE = 2_000.0  # units a second: jobs that take longer do not contend much
MIN_CPU_SHARE = 0.4  # of a core: takers that use less are blocked most of the time
MIN_CPU_SHARE_TO_LOWER = 0.5
MAX_CPU_SHARE = 1.2  # of a core: takers that use more do not need the interpreter lock (C code)
LOWER_WINDOW_SECONDS = 0.01  # of a measurement after which the limit may be lowered
TRIAL_SECONDS = 0.1  # after it was lowered, in which a raise means that this was wrong
MIN_LOWER_DELAY_SECONDS, MAX_LOWER_DELAY_SECONDS = 0.05, 2.0  # after it was raised: the first time, and after many


@dataclass(frozen=True, slots=True)
class Sample:
    """The counters of a process at one moment.  at: monotonic seconds.  cpu: seconds.  taken, received: units."""

    at: float
    cpu: float
    taken: int
    received: int


class ConcurrencyLimit:
    """The limit of one process.

    most: takers that there are.  current: takers that may run units at once.
    """

    def __init__(self, most: int, clock: Clock) -> None:
        self.most = self.current = most
        self._clock = clock
        self._measured = self._watched = self._sample(0, 0)
        self._was_slow = False  # when a watcher looked last
        self._lowered_at = self._lower_after = 0.0  # monotonic seconds
        self._lower_delay = MIN_LOWER_DELAY_SECONDS

    def lower(self, taken: int) -> None:
        """Let one taker run alone if the jobs are short and contend for the interpreter.  taken: units so far."""
        if self.current == 1 or self._clock.monotonic() < self._measured.at + LOWER_WINDOW_SECONDS:
            return
        before, self._measured = self._measured, self._sample(taken, 0)
        pace, share = _rates(before, self._measured)
        now = self._measured.at
        if now >= self._lower_after and pace >= MIN_PACE and MIN_CPU_SHARE_TO_LOWER <= share <= MAX_CPU_SHARE:
            self.current, self._lowered_at = 1, now

    def begin_watch(self, taken: int, received: int) -> None:
        """Remember what the takers have done so far.  received: units that batches have brought."""
        self._watched = self._sample(taken, received)

    def end_watch(self, taken: int, received: int, active: int, *, is_flushing: bool) -> None:
        """Raise the limit if takers were blocked since `begin_watch`, beside units at hand.

        active: takers that run, the watcher among them.
        """
        before, now = self._watched, self._sample(taken, received)
        seconds = now.at - before.at
        if seconds < WATCH_SECONDS or received != before.received:
            return  # the watcher was woken early; or there were no units at hand while a batch was on its way
        pace, share = _rates(before, now)
        # A watcher that wakes late has waited for the interpreter, or for a core: others would wait as well.
        is_idle = share < MIN_CPU_SHARE and seconds < 2 * WATCH_SECONDS
        is_stalled = taken == before.taken and not is_flushing  # whoever flushes may build or read a large batch
        was_slow, self._was_slow = self._was_slow, is_idle or (pace < MIN_PACE and not is_flushing)
        if is_stalled:
            self._raise(max(2 * self.current, active), now.at)
        elif was_slow and self._was_slow:
            self._raise(self.most, now.at)

    def _raise(self, limit: int, now: float) -> None:
        self.current = min(limit, self.most)
        is_wrong = now < self._lowered_at + TRIAL_SECONDS
        self._lower_delay = min(2 * self._lower_delay, MAX_LOWER_DELAY_SECONDS) if is_wrong else MIN_LOWER_DELAY_SECONDS
        self._lower_after = now + self._lower_delay
        self._was_slow = False

    def _sample(self, taken: int, received: int) -> Sample:
        return Sample(self._clock.monotonic(), self._clock.process_cpu(), taken, received)


def _rates(before: Sample, after: Sample) -> tuple[float, float]:
    """Return units a second, and the share of a core that was used."""
    seconds = max(after.at - before.at, 1e-6)
    return (after.taken - before.taken) / seconds, (after.cpu - before.cpu) / seconds
