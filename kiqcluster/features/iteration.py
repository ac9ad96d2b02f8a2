"""Iteration: an iterable job goes on where its last run was (kiqcluster/iterable).

Its state is a hash in Sidekiq's form (`it-<jid>`), so that Ruby's processes, API and pages read it, and run the job on:
ex   how many runs there were      c   JSON of the cursor, the item to be done next      rt   seconds of all runs

on_end   the state is written, or removed, in the step that ends the run

| outcome                                       | state                                                   |
|-----------------------------------------------|---------------------------------------------------------|
| Done, Discard                                 | removed                                                 |
| Dropped, for somebody has cancelled it        | removed, as in Ruby                                     |
| any other, once the run has begun             | written: the next run goes on there                     |

In between, the job saves it every few seconds (iterable/loop.py).
Price: one effect for each run; no look-up for other jobs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kiqcluster.application.registry import Definition
from kiqcluster.errors import MalformedIteration
from kiqcluster.features.cancellation import CANCELLATIONS
from kiqcluster.features.hooks.job_end import JobEnd
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.outcome import Discard, Done, Dropped, Effect
from kiqcluster.sidekiq.ruby_json import JSON

__all__ = ["STATE_FIELDS", "STATE_TTL_SECONDS", "Iteration", "Iterations", "read_iteration"]

STATE_TTL_SECONDS = 30 * 86_400  # after the latest write (sidekiq iterable.rb)
STATE_FIELDS = ("ex", "c", "rt", "cancelled")


@dataclass(slots=True)
class Iteration:
    """Where an iterable job is.

    executions: runs, this one included.  cursor: of the item that is done now, or next.  seconds: of all runs so far.
    cancelled: whether the job has ended since somebody has cancelled it.
    """

    executions: int = 0
    cursor: JSON = None
    seconds: float = 0.0
    cancelled: bool = False

    def encoded(self) -> tuple[str, bytes, str, int]:
        """Return the fields ex, c and rt, and for how many seconds they are kept.  Raises TypeError, ValueError."""
        return f"{self.executions}", ruby_json.encode(self.cursor), repr(self.seconds), STATE_TTL_SECONDS


class Iterations:
    """The server half."""

    name = "iteration"
    keys: frozenset[str] = frozenset()

    def is_used_by(self, definition: Definition, /) -> bool:
        return definition.is_iterable

    def on_end(self, end: JobEnd) -> Iterable[Effect]:
        """Return the row that removes the state, or writes it."""
        jid = str(end.payload.get("jid", ""))
        key = end.keys.iteration(jid)
        iteration: Iteration | None = end.iteration
        was_told = (iteration is not None and iteration.cancelled) or jid in CANCELLATIONS.marks.jids
        if (isinstance(end.outcome, Dropped) and was_told) or isinstance(end.outcome, Done | Discard):
            return (Effect("forget", key),)
        return () if iteration is None else (Effect("iteration", key, iteration.encoded()),)

    def on_end_failed(self, end: JobEnd, _error: BaseException) -> Iterable[Effect]:
        """Return the row that removes the state of a job that is over; else the one that was saved last stays."""
        return self.on_end(end)


def read_iteration(key: str, values: Iterable[bytes | None]) -> Iteration:
    """Return where a job is, from the values of STATE_FIELDS; a job that has not run yet has no state, or no cursor.

    Raises MalformedIteration: from the beginning, the job would do again what it has done.
    """
    executions, cursor, seconds, cancelled = values
    try:
        found = None if cursor is None else ruby_json.decode(cursor)
        return Iteration(int(executions or 0), found, float(seconds or 0.0), cancelled is not None)
    except (ruby_json.Undecodable, ValueError) as error:
        raise MalformedIteration(key, error) from error
