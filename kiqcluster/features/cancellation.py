"""Cancellation: jobs that somebody has cancelled by their ids (`kiqcluster.cancel`) do not begin, and end once.

client   rows_of_push, for a push that names its jid: removes an old mark of that id
server   on_begin: a row that drops the job if Redis has a mark for it; on_end: removes the mark of a job that has ended

Redis holds the marks (`kiq:cancelled`); each process reads them with its heartbeat, and at once when it is told to.
What a process knows may be old, so a job of a marked id asks Redis before it begins.
Price: nothing while there are no marks; then a look into a set for each job, and a round trip for one of a marked id.
Runs in: processor threads; the heartbeat's thread (`apply`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kiqcluster.application.registry import Definition
from kiqcluster.features.job_end import JobEnd
from kiqcluster.process.runtime import Run
from kiqcluster.sidekiq.keys import Keys
from kiqcluster.sidekiq.outcome import Dead, Discard, Done, Dropped, Effect

__all__ = ["CANCELLATIONS", "Cancellations", "rows_of_push"]

FINAL = (Done, Dead, Discard, Dropped)


class Cancellations:
    """The server half: the ids that this process knows to be marked."""

    name = "cancelled"
    keys: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.jids: frozenset[str] = frozenset()

    def apply(self, jids: Collection[str]) -> bool:
        """Use the ids that Redis holds; return whether the answer of `is_used_by` has changed."""
        was_used, self.jids = bool(self.jids), frozenset(jids)
        return was_used is not bool(self.jids)

    def is_used_by(self, _definition: Definition) -> bool:
        return bool(self.jids)

    def asks_ahead(self, _definition: Definition) -> bool:
        return True

    def on_begin(self, run: Run) -> Iterable[Effect]:
        jid = run.payload.get("jid")
        return [Effect("unmarked", run.keys.cancelled, (str(jid), "drop"))] if jid in self.jids else ()

    def on_end(self, end: JobEnd) -> Iterable[Effect]:
        """Remove the mark of a job that does not run again: the same id may be pushed or retried later."""
        jid = end.payload.get("jid")
        is_over = isinstance(end.outcome, FINAL) and jid in self.jids
        return [Effect("unmark", end.keys.cancelled, (str(jid),))] if is_over else ()


def rows_of_push(keys: Keys, jid: str) -> list[Effect]:
    """Return the row that lets a job of this id begin: somebody may have cancelled an earlier one.  For `Client`."""
    return [Effect("unmark", keys.cancelled, (jid,))]


CANCELLATIONS = Cancellations()
