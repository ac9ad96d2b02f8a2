"""Progress reporter: writes to Redis what running jobs say of their progress (features/progress.py).

Runs in: the main thread (`look`, once a second); a thread of its own, which starts with the first progress (`run`).
1. look    which runs have something new, or a key that must last longer
2. write   all of them by one script in one round trip, of units that this process still holds

A job never waits for this.  While Redis is away nothing is written, and the latest values are tried again each second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event
from typing import NamedTuple

from kiqcluster.application.options import RESULT_TTL
from kiqcluster.application.registry import Registry
from kiqcluster.errors import RedisRefused, StoreError
from kiqcluster.features.progress import PROGRESS_TTL_SECONDS, encoded
from kiqcluster.process.job_context import JobContext
from kiqcluster.process.runtime import Runtime
from kiqcluster.process.service import Service
from kiqcluster.sidekiq.ruby_json import is_unicode
from kiqcluster.store import is_outage
from kiqcluster.store.scripts import PROGRESS, Call, Word, run_scripts_each
from kiqcluster.store.wire import ErrorReply
from kiqcluster.worker.run.job_run import JobRun

__all__ = ["MAX_JOBS", "ProgressReporter"]

MAX_JOBS = 1_000  # written at once; the others a second later


class Due(NamedTuple):
    """A run whose progress is to be written.  said: as of now; the job may go on."""

    run: JobRun
    context: JobContext
    said: tuple[float, float | None]


class ProgressReporter(Service):
    """Writes the progress of the jobs of one worker.

    running: the runs of this moment.  is_fenced: whether others may run what is held under an identity.
    """

    def __init__(
        self,
        runtime: Runtime,
        registry: Registry,
        running: Callable[[], Sequence[JobRun]],
        is_fenced: Callable[[str], bool],
        on_crash: Callable[[str, Exception], None],
    ) -> None:
        super().__init__("progress", on_crash)
        self._runtime = runtime
        self._registry = registry
        self._running = running
        self._is_fenced = is_fenced
        self._due: Sequence[JobRun] = ()  # replaced as a whole
        self._is_asked = Event()
        self._refusal = ""

    def look(self) -> None:
        """Have written what is new; without anything new this costs a look at each run."""
        due = [run for run in self._running() if self._is_due(run)]
        if due:
            self._due = due[:MAX_JOBS]
            self.start()
            self._is_asked.set()

    def wake(self) -> None:
        self._is_asked.set()

    def run(self) -> None:
        while not self.stopping.is_set():
            self._is_asked.wait()
            self._is_asked.clear()
            due, self._due = self._due, ()
            if due and not self.stopping.is_set():
                self._try_to_write(due)

    def _try_to_write(self, due: Sequence[JobRun]) -> None:
        try:
            self.write(due)
            self._refusal = ""
        except StoreError as error:  # the fetch reports outages
            if isinstance(error, RedisRefused) and not is_outage(error) and str(error) != self._refusal:
                self._refusal = str(error)
                self._runtime.trouble("progress", error)

    def write(self, due: Sequence[JobRun]) -> None:
        """Write the progress of these runs.  One round trip.  Raises StoreError."""
        by_identity: dict[str, list[Due]] = {}
        for run in due:
            context = run.context
            if context is None or context.progressed is None or self._is_fenced(run.unit.identity):
                continue
            by_identity.setdefault(run.unit.identity, []).append(Due(run, context, context.progressed))
        if not by_identity:
            return
        calls = [self._call(identity, found) for identity, found in by_identity.items()]
        with self._runtime.store.borrowed() as connection:
            replies = run_scripts_each(connection, calls)
        now = self._runtime.clock.monotonic()
        for reply, found in zip(replies, by_identity.values(), strict=True):
            if isinstance(reply, ErrorReply):
                raise reply
            for each in found:
                each.run.told_progress = (each.said, now)

    def _call(self, identity: str, found: Sequence[Due]) -> Call:
        keys = self._runtime.store.keys
        names, words = [keys.inflight(identity)], list[Word]()
        for run, context, said in found:
            names += (keys.progress(context.jid), keys.hand(identity, run.unit.field))
            words += (run.unit.field, encoded(*said), self._ttl(context))
        return Call(PROGRESS, names, words)

    def _is_due(self, run: JobRun) -> bool:
        context = run.context
        if context is None or context.progressed is None or not context.jid or not is_unicode(context.jid):
            return False
        if run.told_progress is None or run.told_progress[0] != context.progressed:
            return True
        return self._runtime.clock.monotonic() - run.told_progress[1] > self._ttl(context) / 2

    def _ttl(self, context: JobContext) -> int:
        definition = self._registry.get(context.name)
        declared = None if definition is None else definition.local.get(RESULT_TTL)
        return PROGRESS_TTL_SECONDS if declared is None else int(declared)
