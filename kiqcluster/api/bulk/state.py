"""State: a bulk action in Redis (`kiq:bulk:<id>`), which any process reads, and one at a time works on.

counting → counted → running → done          what it means is counted first, unless it means all that there are
              any of them    → cancelled     somebody has cancelled it
              any of them    → failed        it cannot go on; `error` says why, and `resume` tries again

Counts are written in the step that moves entries (bulk_entries.lua), with the place of the last one that was looked at.
So they are right however a process ends, and another one goes on behind that place.  Who works on it has a lease.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from kiqcluster.api._store import CLOCK, integer
from kiqcluster.api.bulk.selection import Selection
from kiqcluster.api.bulk.verbs import QUEUE_VERBS, VERBS, Target
from kiqcluster.api.queues import Queue
from kiqcluster.api.sets import DeadSet, DroppedSet, JobSet, RetrySet, ScheduledSet
from kiqcluster.errors import UsageError
from kiqcluster.process.clock import Clock
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.payload import check_queue_name
from kiqcluster.store import Store
from kiqcluster.store.scripts import CHANGE_BULK, Call, Word, run_script
from kiqcluster.store.search import Place
from kiqcluster.store.wire import server_time

__all__ = [
    "QUEUE",
    "SETS",
    "WORKING_STATES",
    "BulkAction",
    "ask",
    "bulk_actions",
    "cancel",
    "change",
    "read_bulk",
    "resume",
    "start",
]

SETS: Mapping[str, type[JobSet]] = {kind.key_name: kind for kind in (RetrySet, ScheduledSet, DeadSet, DroppedSet)}
QUEUE = "queue"  # key_name of an action on a queue
MAX_ACTIONS = 100  # that are listed
KEPT_SECONDS = 7 * 86_400  # after the last change (bulk_state.lua)
OPEN_STATES = ("counting", "counted", "running")
WORKING_STATES = ("counting", "running")
COUNTS = ("total", "count", "looked", "found", "done", "gone", "failed", "dropped")
FROM_THE_BEGINNING = ("looked", "0", "found", "0", "score", "", "payload", "")


@dataclass(frozen=True, slots=True)
class Counts:
    """total: entries of the set when it was asked for.  count: how many were meant, None before they are counted.

    looked: entries that were looked at.  found: of them, those meant = done + gone + failed.  gone: somebody else was
    faster.  failed: they stay, for a reason.  dropped: by the dead set, for these took their room.
    """

    total: int = 0
    count: int | None = None
    looked: int = 0
    found: int = 0
    done: int = 0
    gone: int = 0
    failed: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class BulkAction:
    """A bulk action, as it was when it was read.

    key_name: of the set (SETS), or QUEUE; then queue_name is the queue.  by: who asked for it, at `created`.  reasons:
    why entries stay → how many.  is_held: whether somebody works on it.  after: the place where it goes on; of a queue
    its score holds anchors.  Times are epoch seconds.
    """

    id: str
    key_name: str
    verb: str
    selection: Selection
    target: Target
    by: str
    created: float
    state: str
    counts: Counts
    reasons: Mapping[str, int] = field(default_factory=dict)
    is_held: bool = False
    after: Place | None = None
    started: float | None = None
    ended: float | None = None
    error: str = ""
    queue_name: str = ""

    @property
    def is_open(self) -> bool:
        """Whether it may go on."""
        return self.state in OPEN_STATES

    @property
    def is_left(self) -> bool:
        """Whether it should be worked on, and nobody does: the process has ended that did."""
        return self.state in WORKING_STATES and not self.is_held


def ask(
    store: Store,
    source: type[JobSet] | Queue,
    verb: str,
    selection: Selection,
    target: Target | None = None,
    *,
    by: str = "",
    clock: Clock = CLOCK,
) -> str:
    """Ask for a bulk action; return its id.  It is to be counted first, unless the selection means everything.

    Nothing is done to jobs before `start`.  Two round trips.  Raises UsageError, InvalidPush, StoreError.
    """
    target = target or Target()
    queue_name, key_name = (source.name, QUEUE) if isinstance(source, Queue) else ("", source.key_name)
    if verb not in (QUEUE_VERBS if key_name == QUEUE else VERBS) or key_name not in (*SETS, QUEUE):
        raise UsageError(f"there is no bulk action {verb!r} of {queue_name or key_name}")
    if verb == "move" and check_queue_name(target.queue) == queue_name:
        raise UsageError(f"the jobs are in {queue_name} already; name another queue to move them to")
    identifier, keys, now = secrets.token_hex(8), store.keys, clock.now()
    total = len(source) if isinstance(source, Queue) else int(store.call("ZCARD", source(store=store).key))
    is_counted = not selection.has_filters and (key_name == QUEUE or verb not in ("move", "reschedule"))
    fields: dict[str, Any] = {
        "set": key_name,
        **({"of": queue_name.encode(errors="replace")} if key_name == QUEUE else {}),
        "verb": verb,
        "selection": ruby_json.encode(selection.as_dict()),
        "at": repr(target.at),
        "queue": target.queue,
        "by": by.encode(errors="replace"),
        "created": repr(now),
        "total": total,
        "state": "counted" if is_counted else "counting",
        **({"count": total} if is_counted else {}),
    }
    store.transaction(
        [
            ("HSET", keys.bulk(identifier), *(word for pair in fields.items() for word in pair)),
            ("EXPIRE", keys.bulk(identifier), KEPT_SECONDS),
            ("ZADD", keys.bulks, repr(now), identifier),
            ("ZREMRANGEBYRANK", keys.bulks, 0, -MAX_ACTIONS - 1),
        ]
    )
    return identifier


def start(store: Store, identifier: str, clock: Clock = CLOCK) -> bool:
    """Begin what was counted; return whether it was.  Two round trips."""
    found = read_bulk(store, identifier)
    if found is None or found.state != "counted":
        return False
    fields = ("started", repr(clock.now()), "count", str(found.counts.count), *FROM_THE_BEGINNING)
    return change(store, identifier, ("counted",), "running", fields=fields)


def cancel(store: Store, identifier: str, clock: Clock = CLOCK) -> bool:
    """Cancel it; return whether it was open.  Nothing more is done from then on.  One round trip."""
    return change(store, identifier, OPEN_STATES, "cancelled", fields=("ended", repr(clock.now())))


def resume(store: Store, identifier: str) -> bool:
    """Have one that failed go on where it was; return whether there is something to go on with.  Two round trips."""
    found = read_bulk(store, identifier)
    if found is None:
        return False
    if found.state == "failed":
        state = "counting" if found.started is None else "running"
        return change(store, identifier, ("failed",), state, fields=("error", ""))
    return found.is_left


def change(
    store: Store,
    identifier: str,
    before: tuple[str, ...],
    after: str = "",
    *,
    runner: str = "",
    lease: float = 0.0,
    fields: tuple[str, ...] = (),
) -> bool:
    """Change the state, or have a runner take it; return whether it was allowed (change_bulk.lua).  One round trip."""
    allowed = "".join(f"{state}," for state in before)
    arguments: list[Word] = [allowed, after, runner, round(lease * 1_000), *fields]
    return bool(run_script(store, Call(CHANGE_BULK, [store.keys.bulk(identifier)], arguments)))


def read_bulk(store: Store, identifier: str) -> BulkAction | None:
    """Return a bulk action, None if there is none of this id.  One round trip.  Raises StoreError."""
    time, flat = store.pipeline([("TIME",), ("HGETALL", store.keys.bulk(identifier))])
    return _read(identifier, flat, server_time(time))


def bulk_actions(store: Store) -> list[BulkAction]:
    """Return the latest bulk actions, the youngest first.  Two round trips."""
    names = store.call("ZRANGE", store.keys.bulks, 0, -1, "REV")
    ids = [name.decode(errors="replace") for name in names]
    time, *replies = store.read_each([("TIME",), *(("HGETALL", store.keys.bulk(each)) for each in ids)])
    pairs = ((each, flat) for each, flat in zip(ids, replies, strict=True) if isinstance(flat, list))
    found = (_read(each, flat, server_time(time)) for each, flat in pairs)
    return [each for each in found if each is not None]


def _read(identifier: str, flat: list[bytes], now: float) -> BulkAction | None:
    """Return what a hash says; None for one that is not a bulk action."""
    raw = dict(zip(flat[::2], flat[1::2], strict=True))
    words = {name.decode(errors="replace"): value.decode(errors="replace") for name, value in raw.items()}
    verbs = QUEUE_VERBS if words.get("set") == QUEUE else VERBS
    if words.get("set") not in (*SETS, QUEUE) or words.get("verb") not in verbs or "state" not in words:
        return None
    try:
        kept = ruby_json.decode(raw.get(b"selection", b"{}"))
        selection = Selection.from_dict(cast("dict[str, Any]", kept) if isinstance(kept, dict) else {})
        target = Target(float(words.get("at", 0.0)), words.get("queue", ""))
        created, till = float(words.get("created", 0.0)), float(words.get("until", 0.0))
        started, ended = (float(words[name]) if name in words else None for name in ("started", "ended"))
    except (ruby_json.Undecodable, ValueError, TypeError):
        return None
    counts = {name: integer(words[name]) or 0 for name in COUNTS if name in words}
    if words["state"] == "counted":
        counts.setdefault("count", counts.get("found", 0))
    reasons = {name[4:]: integer(value) or 0 for name, value in words.items() if name.startswith("why:")}
    score = raw.get(b"score", b"")
    return BulkAction(
        identifier,
        words["set"],
        words["verb"],
        selection,
        target,
        words.get("by", ""),
        created,
        words["state"],
        Counts(**counts),
        reasons,
        till / 1_000 > now,
        Place(score, raw.get(b"payload", b"")) if score else None,
        started,
        ended,
        words.get("error", ""),
        words.get("of", ""),
    )
