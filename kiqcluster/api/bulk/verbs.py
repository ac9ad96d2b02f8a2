"""Verbs: what a bulk action does to each entry of a set, or each job of a queue, as one move (store/entry_moves)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kiqcluster.api.records import JobRecord, renamed
from kiqcluster.api.sets import SortedEntry, burial, deletion
from kiqcluster.client.reenqueue import added, retried
from kiqcluster.process.runtime import current_setup
from kiqcluster.store.entry_moves import Move

__all__ = ["QUEUE_VERBS", "VERBS", "BulkVerb", "QueueVerb", "Target"]


@dataclass(frozen=True, slots=True)
class Target:
    """Where entries go, for a verb that asks.  at: epoch seconds.  queue: its name."""

    at: float = 0.0
    queue: str = ""


@dataclass(frozen=True, slots=True)
class BulkVerb:
    """What is done.

    plan: an entry, the time and the target → its move; raises what client middleware raises.  is_done: whether an entry
    is as it should be already: one that stays in the set would be met again.  tells_death: whether death handlers are
    told of each.
    """

    name: str
    plan: Callable[[SortedEntry, float, Target], Move]
    is_done: Callable[[SortedEntry, Target], bool] = lambda _entry, _target: False
    tells_death: bool = False


VERBS = {
    verb.name: verb
    for verb in (
        BulkVerb("retry", lambda entry, now, _: retried(current_setup(), entry.raw, now)),
        BulkVerb("enqueue", lambda entry, now, _: added(current_setup(), entry.raw, now)),
        BulkVerb("delete", lambda entry, _now, _: deletion(entry)),
        BulkVerb("kill", lambda entry, _now, _: burial(entry), tells_death=True),
        BulkVerb(
            "reschedule",
            lambda entry, _, target: Move(entry.raw, "defer", "", repr(target.at).encode()),
            is_done=lambda entry, target: entry.score == target.at,
        ),
        BulkVerb(
            "move",
            lambda entry, _, target: Move(entry.raw, "rename", "", renamed(entry.raw, target.queue)),
            is_done=lambda entry, target: entry.queue == target.queue or renamed(entry.raw, target.queue) == entry.raw,
        ),
    )
}


@dataclass(frozen=True, slots=True)
class QueueVerb:
    """What is done to jobs of a queue.  queue: where they go, "" deletes them.  written: their bytes there."""

    name: str
    queue: Callable[[Target], str]
    written: Callable[[JobRecord, Target], bytes]


QUEUE_VERBS = {
    verb.name: verb
    for verb in (
        QueueVerb("delete", lambda _: "", lambda _job, _target: b""),
        QueueVerb("move", lambda target: target.queue, lambda job, target: renamed(job.raw, target.queue)),
    )
}
