"""Runner: works on bulk actions, slice by slice.

BulkRun      one action: look at a slice, plan a move for each entry that is meant, move them; until the end, or until
             somebody cancels it, or another runner has it
BulkRunner   runs of this process, each in a thread

What a slice has done is written in the same step, so a run may end anywhere: the next one goes on behind it.  While
Redis is away it tries again, and looks up how far it is: where a reply was lost, that says whether the slice was moved.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from kiqcluster.api._store import CLOCK
from kiqcluster.api.bulk.sources import Slice, Source, source_of
from kiqcluster.api.bulk.state import WORKING_STATES, BulkAction, change, read_bulk
from kiqcluster.api.bulk.verbs import VERBS
from kiqcluster.api.records import JobRecord
from kiqcluster.api.sets import notify_killed
from kiqcluster.errors import StoreError, UsageError, class_name, message_of
from kiqcluster.process.clock import Clock
from kiqcluster.process.logs.log import LOGGER
from kiqcluster.process.service import Service
from kiqcluster.store import Store, is_outage
from kiqcluster.store.entry_moves import BulkPart

__all__ = ["BulkRun", "BulkRunner"]

LEASE_SECONDS = 10.0  # of a runner; each slice extends it
REPORT_SECONDS = 0.3  # between two reports of how far it is, while nothing is found
FIRST_BATCH, MIN_BATCH, MAX_BATCH = 100, 25, 250  # entries that one script moves
SLOW_SECONDS, QUICK_SECONDS = 0.004, 0.002  # of a script's round trip, to have smaller or larger batches
RESPITE = 0.25  # of the time that a slice took: Redis has other things to do
COMPUTING_RESPITE = 1.0  # of the time that this thread computed: so have other threads, and one computes at a time
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 0.2, 5.0  # while Redis is away
MAX_RUNS = 8  # of a process at a time
MAX_REASON_CHARACTERS = 200
FINAL_STATES = {"counting": "counted", "running": "done"}  # state → the one after it


class BulkRun(Service):
    """One run of one action.

    arguments: how they are shown.  are_arguments_json: whether that is JSON.
    """

    def __init__(
        self,
        store: Store,
        identifier: str,
        clock: Clock,
        arguments: Callable[[JobRecord], str] | None,
        *,
        are_arguments_json: bool,
    ) -> None:
        super().__init__(f"bulk-{identifier}", lambda name, error: LOGGER.error("%s ended: %s", name, error))
        self.identifier = identifier
        self._store = store
        self._clock = clock
        self._arguments = arguments
        self._is_json = are_arguments_json
        self._runner = secrets.token_hex(8)
        self._batch = FIRST_BATCH
        self._looked, self._found = 0, 0  # entries since the last report
        self._reported = clock.monotonic()

    def run(self) -> None:
        """Work on it until it ends, or the thread is to end."""
        pause = FIRST_RETRY_SECONDS
        while not self.stopping.is_set():
            try:
                action = self._take()
                if action is None:
                    return
                pause = FIRST_RETRY_SECONDS
                self._work(action)
                return
            except StoreError as error:
                if not is_outage(error):
                    self._fail(error)
                    return
            except Exception as error:  # noqa: BLE001  # the application's code, or ours: the action says what it was
                LOGGER.exception("the bulk action %s failed", self.identifier)
                self._fail(error)
                return
            if not self.pause(pause):
                return
            pause = min(2 * pause, LONGEST_RETRY_SECONDS)

    def _take(self) -> BulkAction | None:
        """Have this run be the one that works on it; None where that is another one, or it has ended."""
        if not change(self._store, self.identifier, WORKING_STATES, runner=self._runner, lease=LEASE_SECONDS):
            return None
        self._looked, self._found = 0, 0
        return read_bulk(self._store, self.identifier)

    def _work(self, action: BulkAction) -> None:
        source = source_of(self._store, self._clock, action, is_json=self._is_json)
        while self.pause(0.0):
            began, used = self._clock.monotonic(), self._clock.cpu()
            part = source.read(self._batch)
            meant = [
                job
                for job in part.jobs
                if source.is_meant(job) and action.selection.matches(job, action.created, arguments=self._arguments)
            ]
            if not self._report(action, source, part, meant):
                return
            if not part.has_more:
                return
            source.advance()
            used = self._clock.cpu() - used
            self.pause(max(RESPITE * (self._clock.monotonic() - began), COMPUTING_RESPITE * used))

    def _report(self, action: BulkAction, source: Source, read: Slice, meant: Sequence[JobRecord]) -> bool:
        """Move what is meant, and write how far it is, unless there is nothing to tell; return whether to go on."""
        self._looked += read.read
        now = self._clock.monotonic()
        is_running = action.state == "running"
        self._found += 0 if is_running else len(meant)
        if read.has_more and not (is_running and meant) and now - self._reported < REPORT_SECONDS:
            return True
        part = BulkPart(
            self._store.keys.bulk(self.identifier),
            self._runner,
            LEASE_SECONDS,
            action.state,
            "" if read.has_more else FINAL_STATES[action.state],
            looked=self._looked,
            found=len(meant) if is_running else self._found,
        )
        plan = source.plan(meant if is_running else [])
        began = self._clock.monotonic()  # planning runs client middleware, which says nothing of Redis
        moved = source.move(plan, part)
        if moved is None:
            return False
        self._looked, self._found, self._reported = 0, 0, self._clock.monotonic()
        self._fit_batch(self._reported - began)
        if VERBS[action.verb].tells_death:
            for index in moved.indexes:
                notify_killed(plan.jobs[index])
        return True

    def _fit_batch(self, seconds: float) -> None:
        """Have the next batch take Redis about as long as it should."""
        if seconds > SLOW_SECONDS:
            self._batch = max(MIN_BATCH, self._batch * 4 // 5)
        elif seconds < QUICK_SECONDS:
            self._batch = min(MAX_BATCH, self._batch * 5 // 4 + 1)

    def _fail(self, error: Exception) -> None:
        """Write why it cannot go on."""
        words = f"{class_name(error)}: {message_of(error)}"[:MAX_REASON_CHARACTERS].encode(errors="replace").decode()
        with suppress(StoreError):
            change(self._store, self.identifier, WORKING_STATES, "failed", fields=("error", words))


class BulkRunner:
    """The runs of this process.  Thread-safe: `_lock` guards them.

    arguments, are_arguments_json: see BulkRun.
    """

    def __init__(
        self,
        arguments: Callable[[JobRecord], str] | None = None,
        *,
        are_arguments_json: bool = True,
        clock: Clock = CLOCK,
    ) -> None:
        self._arguments = arguments
        self._is_json = are_arguments_json
        self._clock = clock
        self._lock = threading.Lock()
        self._runs: dict[str, BulkRun] = {}

    @property
    def has_room(self) -> bool:
        """Whether one more action can be worked on now."""
        with self._lock:
            return len(self._living()) < MAX_RUNS

    def _living(self) -> dict[str, BulkRun]:
        self._runs = {name: run for name, run in self._runs.items() if run.is_alive}
        return self._runs

    def run(self, store: Store, identifier: str) -> None:
        """Work on an action in a thread, unless one does.  Raises UsageError while too many go on."""
        with self._lock:
            if identifier in self._living():
                return
            if len(self._runs) >= MAX_RUNS:
                raise UsageError(f"{MAX_RUNS} bulk actions go on in this process; begin this one when one has ended")
            run = BulkRun(store, identifier, self._clock, self._arguments, are_arguments_json=self._is_json)
            self._runs[identifier] = run
            run.start()

    def wait(self, seconds: float) -> bool:
        """Wait for the end of all runs; return whether they ended within that time."""
        with self._lock:
            runs = list(self._runs.values())
        return all(run.join(seconds) for run in runs)

    def stop(self) -> None:
        """Have all runs end after their slice; others can go on with their actions."""
        with self._lock:
            for run in self._runs.values():
                run.stop()
