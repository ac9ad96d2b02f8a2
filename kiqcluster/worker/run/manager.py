"""Manager: owns the processors of a worker, and the event loop of its async jobs; waits for work on their behalf.

Runs in: its own thread (the loop), the main thread (start, stop, interrupt).
1. replace    a processor, or the event loop, that died
2. arm        waits for pushes to empty queues, while somebody is idle
3. flush      outcomes and units that have waited for too long
4. wait       for a wakeup, for another thread, for the next flush or the next sweep
5. notify     hand the unit of a push to an idle processor, or wake one to look for it; while all are busy, return it
6. sweep      look whether the queues hold anything without a wakeup

Counterpart: sidekiq manager.rb (8.1).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from math import inf

from kiqcluster.errors import StoreError
from kiqcluster.features.cancellation import Marks
from kiqcluster.process.clock import Clock
from kiqcluster.process.logs.log import tid
from kiqcluster.process.service import Service
from kiqcluster.store.engine.units import Settlement
from kiqcluster.worker.fetch.fetch import ReliableFetch
from kiqcluster.worker.fetch.in_flight import FORGOTTEN_LOOK_SECONDS
from kiqcluster.worker.fetch.prefetch import LONG_JOB_SECONDS
from kiqcluster.worker.fetch.wakeups import Push, Wakeups
from kiqcluster.worker.run.async_processor import AsyncProcessor
from kiqcluster.worker.run.job_run import JobRun
from kiqcluster.worker.run.processor import Processor

__all__ = ["Manager"]

SWEEP_SECONDS = 1.0  # between looks at the queues while a processor is idle: they find what no wakeup tells of
FROZEN_SECONDS = 10.0  # a sweep that is so late: the process stood still, and others may have recovered it
FORGOTTEN_SECONDS = 60.0  # after a thread has crashed, in which the units are looked for that it left behind
# How long to keep listening after a wakeup, doing nothing else, so that a job can take the GIL.
LISTEN_AFTER_WAKEUP_SECONDS = 0.001


class Manager(Service):
    """The loop around the processors.

    make: returns processor number n, not started.  async_processor: None where no job is async.
    """

    def __init__(
        self,
        concurrency: int,
        fetch: ReliableFetch,
        wakeups: Wakeups,
        clock: Clock,
        make: Callable[[int], Processor],
        on_crash: Callable[[str, Exception], None],
        async_processor: AsyncProcessor | None = None,
    ) -> None:
        super().__init__("manager", on_crash)
        self.async_processor = async_processor
        self._fetch = fetch
        self._wakeups = wakeups
        self._clock = clock
        self.processors = [make(number) for number in range(concurrency)]
        self._next_sweep = 0.0
        self._forgotten_look_at = self._forgotten_until = -inf
        self._generation = fetch.generation

    def start(self) -> None:
        """Start the loop, then the processors: few of these are of use, but none is without the loop."""
        super().start()
        if self.async_processor is not None:
            self.async_processor.start()
        for processor in self.processors:
            processor.start()

    def run(self) -> None:
        self._fetch.abandon()
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
            self._fetch.mark_uncertain()
            self._expect_forgotten()
            raise
        finally:
            self._close_wakeups()

    def wake(self) -> None:
        self._wakeups.wake()

    def running(self) -> list[JobRun]:
        """Return the runs of this moment."""
        return [run for _, run in self.running_by_record()]

    def cancel_jobs(self, marks: Marks) -> None:
        """Tell the running jobs that have these marks that somebody has cancelled them; from any thread."""
        for running in self._running_in_threads():
            obey_soon = running.obey_soon  # None from the end of the run on
            if running.context is not None and marks.tell(running.context) and obey_soon is not None:
                with suppress(RuntimeError):  # the loop is closed
                    obey_soon()
        if self.async_processor is not None:
            self.async_processor.cancel_jobs(marks)

    def running_by_record(self) -> list[tuple[int, JobRun]]:
        """Return the same with their records in RunningJobs."""
        found = [(each.number, running) for each in self.processors if (running := each.running) is not None]
        if self.async_processor is not None:
            found += [(each.record, each.job_run) for each in self.async_processor.runs()]
        return found

    def running_by_thread(self) -> dict[str, JobRun]:
        """Return the same by the threads' ids, as they are in the log; async jobs have the id of a place."""
        found = {tid(each.ident): running for each in self.processors if (running := each.running) is not None}
        if self.async_processor is not None:
            loop = tid(self.async_processor.ident)
            found |= {f"{loop}-{each.record}": each.job_run for each in self.async_processor.runs()}
        return found

    def running_by_thread_name(self) -> dict[str, str]:
        """Return a description of each thread's job, by thread name; the event loop's is the one whose step it runs."""
        now = self._clock.now()
        found = [(each.thread_name, each.running) for each in self.processors]
        if self.async_processor is not None and self.async_processor.step is not None:
            found.append((self.async_processor.thread_name, self.async_processor.step.job_run))
        return {name: run.describe(now) for name, run in found if run is not None}

    def places(self) -> int:
        """Return how many jobs run at most: one in each thread, and the async ones of this moment."""
        return len(self.processors) + (0 if self.async_processor is None else len(self.async_processor.runs()))

    def suspects(self) -> list[JobRun]:
        """Return the runs that may be to blame if the process ends unasked: of async jobs, the last one that ran."""
        found = self._running_in_threads()
        step = None if self.async_processor is None else self.async_processor.step
        return found if step is None else [*found, step.job_run]

    def interrupt(self, timed_out: Collection[str] = ()) -> list[Settlement]:
        """Return the outcomes of the units that still run when the process must go.  timed_out: see Processor."""
        found = [each for processor in self.processors if (each := processor.interrupt(timed_out)) is not None]
        return found if self.async_processor is None else [*found, *self.async_processor.interrupt(timed_out)]

    def cancel(self, seconds: float) -> None:
        """Cancel the async jobs that still run, and wait for their end, so long at most."""
        if self.async_processor is not None:
            self.async_processor.cancel(seconds)

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
        if self.async_processor is not None:
            self.async_processor.close_after_fork()

    def _running_in_threads(self) -> list[JobRun]:
        return [running for processor in self.processors if (running := processor.running) is not None]

    def _close_wakeups(self) -> None:
        try:
            self._wakeups.close()
        except StoreError:
            return  # Redis is away, and has ended the waits with their connections

    def _replace_dead(self) -> None:
        for processor in self.processors:
            if not processor.is_alive and not self.stopping.is_set():
                self._expect_forgotten()
                processor.start()
        if self.async_processor is not None and not self.async_processor.is_alive and not self.stopping.is_set():
            self.async_processor.start()
        if self._fetch.has_crashed:
            self._expect_forgotten()
            self._fetch.mark_uncertain()  # so that another batch comes, which sends its outcomes again
            self._fetch.has_crashed = False

    def _expect_forgotten(self) -> None:
        """Look for a while whether crashed threads have left units behind."""
        self._forgotten_until = self._clock.monotonic() + FORGOTTEN_SECONDS

    def _return_forgotten(self) -> None:
        now = self._clock.monotonic()
        if self._forgotten_look_at <= now < self._forgotten_until:
            self._forgotten_look_at = now + FORGOTTEN_LOOK_SECONDS
            left_over = [each.unit for processor in self.processors if (each := processor.left_over) is not None]
            self._fetch.return_forgotten([*left_over, *(each.unit for each in self.running())])

    def _arm(self) -> None:
        if self._generation != self._fetch.generation:  # the replies of older waits are not believed
            self._generation = self._fetch.generation
            self._on_pushes(self._wakeups.drop_hand_waits())
        try:
            self._wakeups.arm(self._fetch.queues_to_arm(), self._fetch.register_hand_lists)
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
        return [each.unit.queue for each in self._running_in_threads() if each.since < long_ago]

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
