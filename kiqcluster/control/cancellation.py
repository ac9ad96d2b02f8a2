"""Cancellation: removes a job by its id wherever it waits, and tells it wherever it runs.

cancel           on all shards; whether it was found
cancel_in        on one: 1. mark its id, so that it does not begin any more, wherever it goes meanwhile
                            (features/cancellation)
                         2. tell all processes to read the marks, and running jobs by them
                         3. move it from where it waits to the dropped jobs, each move as a whole (store/entry_moves)
                         4. look whether a process holds it, also before 1 and before 2
remove_of_batches  removes the jobs of cancelled batches where they wait for long
tell_processes   has all processes of a shard read the marks

A job may move while it is looked for.  So sets are looked through before the queues that they feed, queues before the
units in flight, and all of it once more where nothing was found.  The mark holds what slips through, and is gone once a
process has dropped or ended the job by it: so it tells that the job was found.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from kiqcluster.control.control_messages import CANCEL, MESSAGE_TTL_SECONDS, new_message
from kiqcluster.errors import MalformedPayload, StoreError, UsageError
from kiqcluster.features.chains import told_of_dropped
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.runtime import current_setup
from kiqcluster.sidekiq.payload import (
    CANCELLED_BY_BATCH,
    DROPPED_BY_CANCEL,
    TASK_ID,
    THEN,
    TRANSIENT_KEYS,
    batch_of,
    read,
)
from kiqcluster.sidekiq.ruby_entries import entry_for_ruby
from kiqcluster.store import Store
from kiqcluster.store.engine.settle_calls import DROPPED_SECONDS, MAX_DROPPED_JOBS
from kiqcluster.store.entry_moves import RECORD, DeadSetLimits, Move, move_entries, record_queued
from kiqcluster.store.limits.parking import parked_sets
from kiqcluster.store.scripts import (
    FIND_HELD,
    MARK_CANCELLED,
    SEND,
    Call,
    read_scripts_each,
    run_script,
    run_scripts_each,
    sliced,
)
from kiqcluster.store.search import MAX_TEXTS, search_entries, search_jobs
from kiqcluster.store.shards import same_redis
from kiqcluster.store.wire import WrongType

__all__ = ["Cancelled", "cancel", "cancel_in", "remove_of_batches", "tell_processes"]

MARK_SECONDS = 86_400  # that a mark is kept of a job that a process holds, which may have died
UNFOUND_MARK_SECONDS = 3_600  # that a mark is kept of a job that was found nowhere; as a rule it has ended
MAX_MARKS = 1_000  # kept; a heartbeat reads all of them (publish.lua)
MAX_CALLS = 100  # scripts of one round trip
MAX_MOVED = 500  # entries of one script
LIMITS = DeadSetLimits(MAX_DROPPED_JOBS + 1, DROPPED_SECONDS)  # of the dropped jobs


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What became of a job in one shard.

    removed: how many entries of this id waited, or of chains that lead to it.  running: processes hold it, so that it
    runs or is about to, or one has ended it by its mark.  told: whether an iterable job of Ruby was told.
    follows: whether it is a later job of a chain which is under way: it is dropped when it would begin, for as long as
    its mark lasts, and counts as not found.
    """

    removed: int = 0
    running: int = 0
    told: bool = False
    follows: bool = False

    def __bool__(self) -> bool:
        return bool(self.removed or self.running or self.told)


def cancel(jid: str) -> bool:
    """Cancel a job; return whether it was found: removed from where it waited, or told while it runs.

    A job that waits in a queue, in the schedule, for a retry or for a place is removed, and kept in the list of dropped
    jobs.  One that runs is told: `current_job().check_cancelled()` raises in it.  A dead job stays dead.
    Where a chain waits for its time, or for a retry, the id of any later job of it removes the chain.
    All shards are looked at.  Raises StoreError where one of them cannot be, once all others have been.
    """
    if not jid or not isinstance(jid, str):
        raise UsageError(f"{jid!r} is not the id of a job; pass what its push has returned")
    setup = current_setup()
    if setup.delivery is not None:
        return setup.delivery.cancel(jid)
    config = setup.current_config()
    same = same_redis(config.known_redis(), config.shards)
    stores = [setup.current_store(), *(setup.shard(each.name) for each in config.shards if each.name not in same)]
    found, failures = [], list[StoreError]()
    for store in stores:
        try:
            found.append(bool(cancel_in(store, jid)))
        except StoreError as error:
            failures.append(error)
    for failure in failures[:1]:
        raise failure
    return any(found)


def cancel_in(store: Store, jid: str) -> Cancelled:
    """Cancel a job in one shard; return what became of it.

    About a dozen round trips, one more per 2 000 jobs that wait and per 100 processes.  Raises StoreError.
    """
    keys = store.keys
    # Before it is marked: a process may read the mark by itself, and the job end at once.
    running, leads = _held(store, jid, _identities(store))
    is_told = _mark(store, jid, UNFOUND_MARK_SECONDS)
    identities = _identities(store)
    if not (running or leads):  # it may have been taken meanwhile
        running, leads = _held(store, jid, identities)
    _tell(store, identities)
    removed, follows = _remove(store, jid)
    if removed or not running:  # one that was held, and then waited, is not held any more
        running, leads = _held(store, jid, identities)
    if not (removed or running or leads or follows):
        (removed, follows), (running, leads) = _remove(store, jid), _held(store, jid, identities)
        if not (removed or running or leads or follows):
            running = int(store.call("ZSCORE", keys.cancelled, jid) is None)
    is_dead = not removed and not running and any(True for _ in _entries(store, keys.dead, jid))
    if (removed and not running) or is_dead:  # it cannot begin by itself; if somebody retries it, it is to run
        store.pipeline([("ZREM", keys.cancelled, jid), *([("HDEL", keys.iteration(jid), "cancelled")] * is_told)])
    elif running or leads or follows:
        _mark(store, jid, MARK_SECONDS, "known")  # unless the job has ended meanwhile
    return Cancelled(removed, running, is_told and not is_dead and not removed, not removed and (leads or follows))


def _mark(store: Store, jid: str, seconds: int, which: str = "") -> bool:
    """Mark a job, or keep its mark for longer; return whether an iterable job of Ruby was told.  One round trip."""
    keys = [store.keys.cancelled, store.keys.iteration(jid)]
    return bool(run_script(store, Call(MARK_CANCELLED, keys, [jid, MARK_SECONDS, MAX_MARKS, seconds, which])))


def tell_processes(store: Store) -> None:
    """Have all processes of a shard read which jobs and batches are cancelled.  About two round trips.  StoreError."""
    _tell(store, _identities(store))


def remove_of_batches(store: Store, batches: Collection[str]) -> int:
    """Move jobs of these batches from where they wait for long to the dropped jobs; return how many.

    That is the schedule, the retries, and lines of parked jobs.  Those in queues are dropped when they would begin.
    One round trip per 2 000 entries that are looked at, and one per 500 that are moved.  Raises StoreError.
    """
    keys, count = store.keys, 0
    texts = [_text(each) for each in batches] if len(batches) <= MAX_TEXTS else [TASK_ID.encode()]
    for key in (keys.schedule, keys.retry, *(keys.parked(each) for each in sorted(set(parked_sets(store))))):
        found = (raw for raw, _ in search_entries(store, key, texts) if _batch_of(raw) in batches)
        while some := list(islice(found, MAX_MOVED)):
            now = SystemClock.now()
            moves = [
                Move(
                    raw,
                    RECORD,
                    new=_as_dropped(raw, "default", CANCELLED_BY_BATCH),
                    told=told_of_dropped(raw, CANCELLED_BY_BATCH),
                    with_batch=True,
                )
                for raw in some
            ]
            moved, refusals, _ = move_entries(store, key, moves, now, LIMITS)
            count += len(moved)
            for refusal in refusals[:1]:
                raise StoreError(f"jobs of the batch stay in {key}: {refusal}")
    return count


def _batch_of(raw: bytes) -> str:
    """Return the id of the batch that counts a job, "" for none; raw: as for `_is`."""
    try:
        batch = batch_of(read(raw.rpartition(b"\0")[2]))
    except MalformedPayload:
        return ""
    return "" if batch is None else batch[0]


def _identities(store: Store) -> list[str]:
    return [name.decode(errors="replace") for name in store.call("HKEYS", store.keys.members)]


def _tell(store: Store, identities: Sequence[str]) -> None:
    """Have processes read which jobs and batches are cancelled."""
    message = replace(new_message(CANCEL), scope="process").encode()
    calls = [Call(SEND, [store.keys.control(each)], [message, MESSAGE_TTL_SECONDS]) for each in identities]
    for several in sliced(calls, MAX_CALLS):
        with store.borrowed() as connection:
            run_scripts_each(connection, several)  # a process that is not told reads the mark with its next beat


# 3. where it waits


def _remove(store: Store, jid: str) -> tuple[int, bool]:
    """Move the job from where it waits to the dropped jobs.

    A chain that leads to it goes along where it waits for its time: the mark might not last until then.
    Returns how many entries there were, and whether such a chain waits elsewhere: it begins soon, and goes on to there.
    """
    keys = store.keys
    parked = [keys.parked(each) for each in sorted(set(parked_sets(store)))]
    count = sum(_remove_entries(store, key, jid, with_chains=True) for key in (keys.schedule, keys.retry))
    count += sum(_remove_entries(store, key, jid) for key in parked)
    follows = any(_leads_to(raw, jid) for key in parked for raw, _ in search_entries(store, key, [_text(jid)]))
    for name in sorted(store.call("SMEMBERS", keys.queues)):
        queue = name.decode(errors="replace")
        for raw in dict.fromkeys(search_jobs(store, queue, [_text(jid)])):
            if not _is(raw, jid):
                follows |= _leads_to(raw, jid)
                continue
            now = SystemClock.now()
            told = told_of_dropped(raw, DROPPED_BY_CANCEL)
            count += record_queued(store, queue, raw, _as_dropped(raw, queue), now, LIMITS, told)
    return count, follows


def _remove_entries(store: Store, key: str, jid: str, *, with_chains: bool = False) -> int:
    """Do that in one sorted set, or in one line of parked jobs; return how many entries there were."""
    now = SystemClock.now()
    moves = [
        Move(raw, RECORD, new=_as_dropped(raw, "default"), told=told_of_dropped(raw, DROPPED_BY_CANCEL))
        for raw in _entries(store, key, jid, with_chains=with_chains)
    ]
    if not moves:
        return 0
    moved, refusals, _ = move_entries(store, key, moves, now, LIMITS)
    for refusal in refusals[:1]:
        raise StoreError(f"the job {jid} stays in {key}: {refusal}")
    return len(moved)


def _entries(store: Store, key: str, jid: str, *, with_chains: bool = False) -> Iterator[bytes]:
    """Yield the entries of a job in a sorted set; with_chains: those of chains that lead to it as well."""
    found = dict.fromkeys(raw for raw, _ in search_entries(store, key, [_text(jid)]))
    return (raw for raw in found if _is(raw, jid) or (with_chains and _leads_to(raw, jid)))


def _text(jid: str) -> bytes:
    """Return what the payload of a job holds for certain."""
    is_verbatim = jid.isascii() and jid.replace("-", "").replace("_", "").isalnum()
    return jid.encode() if is_verbatim else b'"jid"'


def _is(raw: bytes, jid: str) -> bool:
    """Return whether bytes are this job; raw: as in a queue, or of a parked job, with its queue before a NUL."""
    try:
        return read(raw.rpartition(b"\0")[2]).get("jid") == jid
    except MalformedPayload:
        return False


def _leads_to(raw: bytes, jid: str) -> bool:
    """Return whether bytes are a job with this one behind it in its chain; raw: as for `_is`."""
    try:
        following = read(raw.rpartition(b"\0")[2]).get(THEN)
    except MalformedPayload:
        return False
    return isinstance(following, list) and any(isinstance(each, dict) and each.get("jid") == jid for each in following)


def _as_dropped(raw: bytes, queue: str, by: str = DROPPED_BY_CANCEL) -> bytes:
    """Return the bytes of a job in the list of dropped jobs.  queue: of a job that names none.  by: who drops it."""
    payload = raw.rpartition(b"\0")[2]
    changes = {"dropped": True, "dropped_by": by}
    return entry_for_ruby(payload, changes, queue, TRANSIENT_KEYS)


# 4. where it runs


def _held(store: Store, jid: str, identities: Sequence[str]) -> tuple[int, bool]:
    """Return how many units of the job processes hold, and whether they hold one of a chain that leads to it."""
    keys, found, leads = store.keys, 0, False
    calls = [
        Call(FIND_HELD, [keys.inflight(each), keys.hands(each)], [_text(jid), keys.hand(each, "")])
        for each in identities
    ]
    for reply in read_scripts_each(store, calls, MAX_CALLS):
        raws = [] if isinstance(reply, WrongType) else reply
        found += sum(_is(raw, jid) for raw in raws)
        leads |= any(_leads_to(raw, jid) for raw in raws)
    return found, leads
