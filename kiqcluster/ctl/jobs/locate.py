"""Where things are: which queues there are, what an id names, and where a job is that was looked for elsewhere.

An id may be shortened, as tables shorten it: a beginning of at least 6 characters stands for the one id that begins
with it.  Two entries may have the same id; it names both.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from kiqcluster.api import (
    DeadSet,
    DroppedSet,
    JobRecord,
    JobSet,
    ParkedJobs,
    Queue,
    QueueSummary,
    RetrySet,
    ScheduledSet,
    SortedEntry,
    WorkSet,
    concurrency_limits,
    summaries,
)
from kiqcluster.api.queues import read_summary, summary_commands
from kiqcluster.api.records import is_verbatim
from kiqcluster.control import process_registry
from kiqcluster.control.process_registry import natural_sort_key
from kiqcluster.ctl.text.tables import clean
from kiqcluster.errors import KiqError, UsageError
from kiqcluster.process.clock import SystemClock
from kiqcluster.store import Store
from kiqcluster.store.search import MAX_TEXTS

__all__ = [
    "MIN_PREFIX_CHARACTERS",
    "NotFound",
    "all_queues",
    "candidates",
    "check_queues",
    "find_entries",
    "is_prefix",
    "listeners",
    "locate_jobs",
    "resolve_jid",
]

MAX_NAMES_SHOWN = 10  # names of queues in a message
SETS: dict[str, type[JobSet]] = {
    "the retry set": RetrySet,
    "the schedule": ScheduledSet,
    "the dead set": DeadSet,
    "the dropped jobs": DroppedSet,
}


class NotFound(KiqError):
    """What was named does not exist, or lies somewhere else."""


def listeners(store: Store) -> dict[str, list[str]]:
    """Return queue → identities of the processes that fetch from it, by name.  Two round trips."""
    by_queue: dict[str, list[str]] = {}
    for process in sorted(process_registry.list_processes(store), key=lambda each: natural_sort_key(each.identity)):
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
    replies = store.read_each([command for name in names for command in summary_commands(store.keys, name)])
    now = SystemClock.now()
    for at, name in enumerate(names):
        answers = replies[4 * at : 4 * at + 4]
        found.append(read_summary(name, answers, now, is_paused=False, processes=len(by_queue[name])))
    return sorted(found, key=lambda each: each.name)


def check_queues(store: Store, names: Iterable[str], besides: str = "") -> None:
    """Raise NotFound for a queue that nobody knows: never pushed to, not paused, listened to by no process.

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
            _raise_unknown(store, name, besides)


def _raise_unknown(store: Store, name: str, besides: str) -> None:
    known = {each.name for each in summaries(store=store)} | listeners(store).keys()
    if name in known:
        return
    near = difflib.get_close_matches(name, known, 3) or sorted(known)[:MAX_NAMES_SHOWN]
    more = " …" if len(near) == MAX_NAMES_SHOWN else ""
    there = f"there is {', '.join(map(clean, near))}{more}" if near else "there is none at all"
    raise NotFound(f"there is no queue {clean(name)}; {there}{besides}")


def locate_jobs(store: Store, jids: Collection[str], besides: type[JobSet] | None = None) -> dict[str, str]:
    """Return in words where jobs are, as far as they are anywhere.  It looks in all sets, then in all queues.

    Of an id that is only the beginning of one, the words have that in full.
    besides: the set in which somebody has looked already.
    """
    places: dict[str, str] = {}
    for where, records in _all_places(store, besides):
        missing = set(jids) - places.keys()
        if not missing:
            break
        for each in candidates(records, missing):
            if each.jid in missing:
                places[each.jid] = where
            else:
                whole = f"{clean(each.jid)} is {where}"
                places |= {jid: whole for jid in missing - places.keys() if is_prefix(jid, each.jid)}
    return places


def _all_places(store: Store, besides: type[JobSet] | None) -> Iterator[tuple[str, Iterable[JobRecord]]]:
    for work in WorkSet(store=store):
        way_out = f"`kiqctl kill {clean(work.job.jid)}` ends it with its process"
        yield f"running in {clean(work.identity)} ({way_out})", [work.job]
    for words, kind in SETS.items():
        if kind is not besides:
            yield f"in {words}", kind(store=store)
    for name in sorted({each.name for each in concurrency_limits(store=store) if each.parked}):
        words = f"parked by the limit of {clean(name)} (`kiqctl limits jobs {clean(name)}`)"
        yield words, ParkedJobs(name, store=store)
    for queue in Queue.all(store=store):
        yield f"in the queue {clean(queue.name)}", queue


# shortened ids

MIN_PREFIX_CHARACTERS = 6  # characters
MAX_IDS_SHOWN = 3  # ids in a message


def candidates(place: JobSet | ParkedJobs | Iterable[JobRecord], jids: Collection[str]) -> Iterable[JobRecord]:
    """Return the jobs of a set or queue among which those of these ids are: a few, if Redis can look for them."""
    holding = getattr(place, "holding", None)
    if holding is None or len(jids) > MAX_TEXTS or not all(map(is_verbatim, jids)):
        return place  # ids with escapes in JSON, or too many to look for: read everything
    found: Iterable[JobRecord] = holding([jid.encode() for jid in jids])
    return found


def find_entries(job_set: JobSet, jids: Sequence[str]) -> Mapping[str, list[SortedEntry]]:
    """Return the entries that each id names, as far as there are any.  It looks through the whole set.

    Raises UsageError for a beginning that several ids have.
    """
    exact: dict[str, dict[bytes, SortedEntry]] = {}
    begun: dict[str, dict[bytes, SortedEntry]] = {}
    wanted = set(jids)
    for record in candidates(job_set, jids):
        assert isinstance(record, SortedEntry)
        if record.jid in wanted:
            exact.setdefault(record.jid, {})[record.raw] = record
        for jid in jids:
            if is_prefix(jid, record.jid):
                begun.setdefault(jid, {})[record.raw] = record
    found = {jid: list((exact.get(jid) or begun.get(jid, {})).values()) for jid in jids}
    for jid, entries in found.items():
        _refuse_several(jid, {entry.jid for entry in entries})
    return {jid: entries for jid, entries in found.items() if entries}


def is_prefix(jid: str, full: str) -> bool:
    """Return whether an id may stand for another that begins with it."""
    return len(jid) >= MIN_PREFIX_CHARACTERS and full.startswith(jid)


def resolve_jid(jid: str, known: Collection[str]) -> str:
    """Return the one of the known ids that an id names; itself, where none is.

    Raises UsageError for a beginning that several ids have.
    """
    several = {jid} if jid in known else {full for full in known if is_prefix(jid, full)}
    _refuse_several(jid, several)
    return next(iter(several), jid)


def _refuse_several(jid: str, several: Collection[str]) -> None:
    if len(several) > 1:
        shown = ", ".join(map(clean, sorted(several)[:MAX_IDS_SHOWN])) + (" …" if len(several) > MAX_IDS_SHOWN else "")
        raise UsageError(f"{clean(jid)} is the beginning of {len(several)} ids; write more of it: {shown}")
