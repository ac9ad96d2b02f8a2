"""Places: which queues there are, and where a job is that was looked for elsewhere."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from kiqcluster import fleet
from kiqcluster.api import DeadSet, JobRecord, JobSet, Queue, QueueSummary, RetrySet, ScheduledSet, WorkSet, summaries
from kiqcluster.api.queues import read_summary, summary_questions
from kiqcluster.clock import SystemClock
from kiqcluster.ctl.naming import candidates, is_beginning
from kiqcluster.ctl.tables import clean, natural
from kiqcluster.errors import KiqError
from kiqcluster.store import Store

__all__ = ["NotThere", "all_queues", "check_queues", "listeners", "whereabouts"]

SHOWN = 10  # names of queues in a message
SETS: dict[str, type[JobSet]] = {"the retry set": RetrySet, "the schedule": ScheduledSet, "the dead set": DeadSet}


class NotThere(KiqError):
    """What was named does not exist, or lies somewhere else."""


def listeners(store: Store) -> dict[str, list[str]]:
    """Return queue → identities of the processes that fetch from it, by name.  Two round trips."""
    by_queue: dict[str, list[str]] = {}
    for process in sorted(fleet.processes(store), key=lambda each: natural(each.identity)):
        for queue in process.queues:
            by_queue.setdefault(queue, []).append(process.identity)
    return by_queue


def all_queues(store: Store, by_queue: Mapping[str, Sequence[str]]) -> list[QueueSummary]:
    """Return all queues by name: those ever pushed to, those paused, and those of by_queue, see listeners.

    Two round trips, one more where a process listens to what nobody has pushed to.
    """
    found = summaries(store=store)
    names = sorted(by_queue.keys() - {each.name for each in found})
    if not names:
        return found
    with store.borrowed() as link:  # a key that is no queue counts as an empty one
        replies = link.exchange([command for name in names for command in summary_questions(store.keys, name)])
    now = SystemClock.now()
    for at, name in enumerate(names):
        answers = replies[4 * at : 4 * at + 4]
        found.append(read_summary(name, answers, now, is_paused=False, processes=len(by_queue[name])))
    return sorted(found, key=lambda each: each.name)


def check_queues(store: Store, names: Iterable[str], besides: str = "") -> None:
    """Raise NotThere for a queue that nobody knows: never pushed to, not paused, listened to by no process.

    besides: what to say then, too, as that the others were left alone.
    One round trip per name where all is well.
    """
    for name in names:
        is_known, queued, rung = store.pipeline(
            [
                ("SISMEMBER", store.keys.queues, name),
                ("EXISTS", store.keys.queue(name)),
                ("EXISTS", store.keys.wake(name)),
            ]
        )
        if not (is_known or queued or rung):
            _look_closer(store, name, besides)


def _look_closer(store: Store, name: str, besides: str) -> None:
    known = {each.name for each in summaries(store=store)} | listeners(store).keys()
    if name in known:
        return
    near = difflib.get_close_matches(name, known, 3) or sorted(known)[:SHOWN]
    more = " …" if len(near) == SHOWN else ""
    there = f"there is {', '.join(map(clean, near))}{more}" if near else "there is none at all"
    raise NotThere(f"there is no queue {clean(name)}; {there}{besides}")


def whereabouts(store: Store, jids: Collection[str], besides: type[JobSet] | None = None) -> dict[str, str]:
    """Return in words where jobs are, as far as they are anywhere.  It looks in all sets, then in all queues.

    Of an id that is only the beginning of one, the words have that in full.
    besides: the set in which somebody has looked already.
    """
    places: dict[str, str] = {}
    for where, records in _everywhere(store, besides):
        missing = set(jids) - places.keys()
        if not missing:
            break
        for each in candidates(records, missing):
            if each.jid in missing:
                places[each.jid] = where
            else:
                whole = f"{clean(each.jid)} is {where}"
                places |= {jid: whole for jid in missing - places.keys() if is_beginning(jid, each.jid)}
    return places


def _everywhere(store: Store, besides: type[JobSet] | None) -> Iterator[tuple[str, Iterable[JobRecord]]]:
    for work in WorkSet(store=store):
        way_out = f"`kiqctl kill {clean(work.job.jid)}` ends it with its process"
        yield f"running in {clean(work.identity)} ({way_out})", [work.job]
    for words, kind in SETS.items():
        if kind is not besides:
            yield f"in {words}", kind(store=store)
    for queue in Queue.all(store=store):
        yield f"in the queue {clean(queue.name)}", queue
