"""Cancellation: jobs that somebody has cancelled by their ids (`kiqcluster.cancel`) do not begin, and end once.

client   on_named_jid: a push that names its jid removes an old mark of that id
server   on_begin: a row that drops the job if Redis has a mark for it; on_end: removes the mark of a job that has ended

Redis holds the marks (`kiq:cancelled`, `kiq:batches:cancelled`); each process reads them with its heartbeat, and at
once when it is told to.
What a process knows may be old, so a job of a marked id asks Redis before it begins; a job of a batch always asks
(features/batches).
Price: nothing while there are no marks; then a look into a set for each job, and a round trip for one of a marked id.
Runs in: processor threads; the heartbeat's thread (`apply`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kiqcluster.application.registry import Definition
from kiqcluster.features.hooks.job_end import JobEnd
from kiqcluster.process.context.cancel_marks import Marks
from kiqcluster.process.job_context import JobContext
from kiqcluster.process.runtime import Push, Run
from kiqcluster.sidekiq.outcome import Dead, Discard, Done, Dropped, Effect
from kiqcluster.sidekiq.payload import DROPPED_BY_CANCEL

__all__ = ["CANCELLATIONS", "Cancellations", "ClientCancellations"]

FINAL = (Done, Dead, Discard, Dropped)


class Cancellations:
    """The server half.  marks: those that this process knows."""

    name = DROPPED_BY_CANCEL
    keys: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.marks = Marks()

    def apply(self, jids: Collection[str], batches: Collection[str] = ()) -> bool:
        """Use the ids that Redis holds; return whether the answer of `is_used_by` has changed."""
        was_used, self.marks = bool(self.marks.jids), Marks(frozenset(jids), frozenset(batches))
        return was_used is not bool(self.marks.jids)

    def is_used_by(self, _definition: Definition) -> bool:
        return bool(self.marks.jids)

    def is_used_in(self, context: JobContext) -> bool:
        return context.cancelled

    def asks_ahead(self, _definition: Definition) -> bool:
        return True

    def on_begin(self, run: Run) -> Iterable[Effect]:
        jid = run.payload.get("jid")
        return [Effect("unmarked", run.keys.cancelled, (str(jid), "drop"))] if jid in self.marks.jids else ()

    def on_end(self, end: JobEnd) -> Iterable[Effect]:
        """Remove the mark of a job that does not run again: the same id may be pushed or retried later."""
        jid = end.payload.get("jid")
        is_over = isinstance(end.outcome, FINAL) and jid in self.marks.jids
        return [Effect("unmark", end.keys.cancelled, (str(jid),))] if is_over else ()

    def on_end_failed(self, end: JobEnd, _error: BaseException) -> Iterable[Effect]:
        return self.on_end(end)


class ClientCancellations:
    """The client half."""

    def on_named_jid(self, push: Push) -> Iterable[Effect]:
        """Return the row that lets a job of this id begin: somebody may have cancelled an earlier one."""
        return [Effect("unmark", push.keys.cancelled, (push.payload["jid"],))]


CANCELLATIONS = Cancellations()
