"""Manager: starts the processors of a worker, and the event loop of its async jobs; waits for work on their behalf.

Runs in: its own thread (the loop), the main thread (start, stop).
1. replace    a processor, or the event loop, that died
2. arm        waits for pushes to empty queues, while somebody is idle
3. flush      outcomes and units that have waited for too long
4. wait       for a wakeup, for another thread, for the next flush or the next sweep
5. notify     hand the unit of a push to an idle processor, or wake one to look for it; while all are busy, return it
6. sweep      look whether the queues hold anything without a wakeup

Counterpart: sidekiq manager.rb (8.1).
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf

from kiqcluster.errors import StoreError
from kiqcluster.process.clock import Clock
from kiqcluster.process.service import OnCrash, Service
from kiqcluster.worker.fetch.fetch import ReliableFetch
from kiqcluster.worker.fetch.in_flight import FORGOTTEN_LOOK_SECONDS
from kiqcluster.worker.fetch.prefetch import LONG_JOB_SECONDS
from kiqcluster.worker.fetch.wakeups import Push, Wakeups
from kiqcluster.worker.run.processors import Processors

__all__ = ["Manager"]

SWEEP_SECONDS = 1.0  # between looks at the queues while a processor is idle: they find what no wakeup tells of
FROZEN_SECONDS = 10.0  # a sweep that is so late: the process stood still, and others may have recovered it
FORGOTTEN_SECONDS = 60.0  # after a thread has crashed, in which the units are looked for that it left behind
# How long to keep listening after a wakeup, doing nothing else, so that a job can take the GIL.
LISTEN_AFTER_WAKEUP_SECONDS = 0.001


class Manager(Service):
    """The loop around the processors, which it starts."""

    def __init__(
        self, processors: Processors, fetch: ReliableFetch, wakeups: Wakeups, clock: Clock, on_crash: OnCrash
    ) -> None:
        super().__init__("manager", on_crash)
        self._processors = processors
        self._fetch = fetch
        self._wakeups = wakeups
        self._clock = clock
        self._next_sweep = 0.0
        self._forgotten_look_at = self._forgotten_until = -inf
        self._generation = fetch.coordinator.redis_view.generation

    def start(self) -> None:
        """Start the loop, then the processors: few of these are of use, but none is without the loop."""
        super().start()
        for service in self._processors.services():
            service.start()

    def run(self) -> None:
        self._fetch.coordinator.abandon()
        try:
            while not self.stopping.is_set():
                self._replace_dead()
                self._arm()
                look_in = self._fetch.flush_overdue(self._long_running())
                self._wait_for_wakeups(self._seconds_to_wait(look_in))
                self._sweep()
        except BaseException:
            # The service starts again.  A push may have been read and not taken in, and waits may have brought others.
            self._on_pushes(self._wakeups.drop_hand_waits())
            self._fetch.coordinator.mark_uncertain()
            self._expect_forgotten()
            raise
        finally:
            self._close_wakeups()

    def wake(self) -> None:
        self._wakeups.wake()

    def held(self, timed_out: Collection[str] = ()) -> int:
        """Return the number of units that run or are not settled yet, without those of these tokens."""
        others = sum(run.unit.token in timed_out for run in self._processors.running()) if timed_out else 0
        return max(self._fetch.running(), self.busy()) - others

    def busy(self) -> int:
        """Return the number of jobs that run at this moment."""
        return len(self._processors.running())

    def occupied(self) -> int:
        """Return the number of jobs that run; while quiet, of all units that are held: at 0 none will run here.

        At most one for each thread: Redis may take long to take back what was fetched ahead.
        """
        return min(self.held(), self._processors.places()) if self._fetch.coordinator.is_quiet else self.busy()

    def end_waits(self, seconds: float) -> bool:
        """Wait for the loop to end, and end the waits for pushes that it leaves; return whether none is left.

        seconds: for the loop, and then for Redis.  Raises StoreError.
        """
        if not self.join(seconds):
            self._wakeups.end_on_server(seconds)
        return self._wakeups.have_ended

    def descriptors(self) -> tuple[int, ...]:
        """Return the descriptors on which the loop waits."""
        return self._wakeups.descriptors()

    def close_after_fork(self) -> None:
        """Close the connections of the waits in a forked process."""
        self._wakeups.close_after_fork()
        if self._processors.loop is not None:
            self._processors.loop.close_after_fork()

    def _close_wakeups(self) -> None:
        try:
            self._wakeups.close()
        except StoreError:
            return  # Redis is away, and has ended the waits with their connections

    def _replace_dead(self) -> None:
        for processor in self._processors.threads:
            if not processor.is_alive and not self.stopping.is_set():
                self._expect_forgotten()
                processor.start()
        loop = self._processors.loop
        if loop is not None and not loop.is_alive and not self.stopping.is_set():
            loop.start()
        if self._fetch.has_crashed:
            self._expect_forgotten()
            self._fetch.coordinator.mark_uncertain()  # so that another batch comes, which sends its outcomes again
            self._fetch.has_crashed = False

    def _expect_forgotten(self) -> None:
        """Look for a while whether crashed threads have left units behind."""
        self._forgotten_until = self._clock.monotonic() + FORGOTTEN_SECONDS

    def _return_forgotten(self) -> None:
        now = self._clock.monotonic()
        if self._forgotten_look_at <= now < self._forgotten_until:
            self._forgotten_look_at = now + FORGOTTEN_LOOK_SECONDS
            held = [*self._processors.left_over(), *(each.unit for each in self._processors.running())]
            self._fetch.return_forgotten(held)

    def _arm(self) -> None:
        generation = self._fetch.coordinator.redis_view.generation
        if self._generation != generation:  # the replies of older waits are not believed
            self._generation = generation
            self._on_pushes(self._wakeups.drop_hand_waits())
        try:
            self._wakeups.arm(self._fetch.coordinator.queues_to_arm(), self._fetch.register_hand_lists)
            if unconfirmed := self._wakeups.unconfirmed():
                paused = self._fetch.hand_lists.paused(unconfirmed)
                self._wakeups.confirm(unconfirmed)
                if paused:
                    self._on_pushes(self._wakeups.drop_hand_waits(paused))
        except StoreError:
            self._fetch.on_wakeup()  # Redis is away: a batch meets that and reports it, and this is tried again

    def _long_running(self) -> list[str]:
        """Return the queues of the units that have run for long in a thread."""
        long_ago = self._clock.now() - LONG_JOB_SECONDS
        return [each.unit.queue for each in self._processors.running_in_threads() if each.since < long_ago]

    def _seconds_to_wait(self, look_in: float | None) -> float:
        until_sweep = max(0.0, self._next_sweep - self._clock.monotonic())
        return until_sweep if look_in is None else min(until_sweep, look_in)

    def _wait_for_wakeups(self, seconds: float) -> None:
        pushes = self._wakeups.wait(seconds)
        while pushes:
            self._on_pushes(pushes)
            pushes = self._wakeups.wait(LISTEN_AFTER_WAKEUP_SECONDS)

    def _sweep(self) -> None:
        late = self._clock.monotonic() - self._next_sweep
        if late < 0:
            return
        self._next_sweep = self._clock.monotonic() + SWEEP_SECONDS
        self._return_forgotten()
        if late < FROZEN_SECONDS:
            self._fetch.sweep()
            self._fetch.look_into_hand_lists()
        else:  # only a reserve tells whether we are a member still
            self._fetch.on_wakeup()

    def _on_pushes(self, pushes: list[Push]) -> None:
        notified = []
        for push in pushes:
            if push.hand_list is None:
                notified.append(push.queue)
            else:
                self._fetch.on_push(push.hand_list, push.payload, has_ended=push.has_ended)
        unheard = [queue for queue in notified if not self._fetch.on_wakeup(queue)]
        if unheard:
            self._return_to_queue(unheard)

    def _return_to_queue(self, queues: list[str]) -> None:
        try:
            self._fetch.return_to_queue(queues)
        except StoreError:
            return  # it stays in the wake list, where any process' next sweep finds it (R6)
