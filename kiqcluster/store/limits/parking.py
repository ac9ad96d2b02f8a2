"""Parked jobs: the lines of jobs that wait for a place in a limit, and overrides of limits (lua/parked.lua).

send_parked     look at one line: send on what has room, forget what is over; send_lines: at many
parked_sets     the sets for which jobs wait
override_limit  another limit for a while; end_override: the declared one again
name_of         set of places → name of its limit, and the key that it counts for

Whoever changes a limit sends on one line after the other; each job that begins then sends on further ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from math import inf

from kiqcluster.errors import RedisRefused
from kiqcluster.sidekiq.keys import Keys
from kiqcluster.store.scripts import SEND_PARKED, Call, run_script, run_scripts_each, sliced
from kiqcluster.store.store import Store, scan
from kiqcluster.store.wire import ErrorReply, about_keys, server_time

__all__ = [
    "MAX_LINES",
    "end_override",
    "held_sets",
    "name_of",
    "override_limit",
    "override_of",
    "parked_sets",
    "send_lines",
    "send_parked",
]

MAX_SETS_PER_SCAN = 500
MAX_LINES = 100  # looked at in one round trip
FOREVER_MS = 10**14  # later than any clock


def send_parked(store: Store, slots: str, limit: int | None = None) -> tuple[int, int, int]:
    """Look at the line of a set; return how many jobs were sent back to their queues, wait, and held places in vain.

    limit: of its declaration, None for the one that a worker has used last; an override in force goes before it.
    One round trip.  Raises StoreError.
    """
    sent, left, removed = run_script(store, _send_call(store.keys, slots, limit))
    return sent, left, removed


def send_lines(
    store: Store,
    lines: Iterable[tuple[str, int | None]],
    rounds: int = 1,
    is_stopping: Callable[[], bool] = lambda: False,
) -> list[RedisRefused]:
    """Look at many lines, each as send_parked does; return why some were refused: these hold up no other.

    rounds: how often a line is looked at at most, as long as jobs of it go on and others wait.
    is_stopping: asked before each round trip; the lines that are left are then not looked at.
    One round trip for MAX_LINES.  Raises StoreError when Redis is away.
    """
    refused: list[RedisRefused] = []
    waiting = list(lines)
    for _ in range(rounds):
        unfinished = []
        for some in sliced(waiting, MAX_LINES):
            if is_stopping():
                return refused
            calls = [_send_call(store.keys, slots, limit) for slots, limit in some]
            with store.borrowed() as connection:
                replies = run_scripts_each(connection, calls)
            for line, call, reply in zip(some, calls, replies, strict=True):
                if isinstance(reply, ErrorReply):
                    refused.append(about_keys(reply, call.keys))
                elif reply[0] and reply[1]:
                    unfinished.append(line)
        waiting = unfinished
    return refused


def parked_sets(store: Store) -> Iterator[str]:
    """Yield the sets for which jobs wait, or have waited a short time ago; some perhaps twice.

    One round trip per MAX_SETS_PER_SCAN.  Raises StoreError.
    """
    for names in scan(store, "SSCAN", store.keys.parked_sets, "COUNT", MAX_SETS_PER_SCAN):
        yield from (name.decode(errors="replace") for name in names)


def name_of(keys: Keys, slots: str) -> tuple[str, str]:
    """Return the name of the limit of a set, and the key that it counts for, "" for none."""
    name, _, key = slots.removeprefix(keys.slots("")).partition("|")
    return name, key


def override_limit(store: Store, name: str, limit: int, seconds: float | None) -> None:
    """Put another limit into force for a while, by Redis' clock; None: until it is ended.

    Parked jobs that have room by now go on.  At most two round trips, and one per MAX_LINES lines.  Raises StoreError.
    """
    until = inf if seconds is None else server_time(store.call("TIME")) + seconds
    ends = FOREVER_MS if until == inf else round(1_000 * until)
    store.transaction(
        [
            ("HSET", store.keys.limits, f"{name}|override", f"{limit} {ends}"),
            ("ZREM", store.keys.limit_ends, name) if until == inf else ("ZADD", store.keys.limit_ends, until, name),
        ]
    )
    _send_all(store, name)


def end_override(store: Store, name: str) -> bool:
    """Put the declared limit back into force; return whether there was an override.

    One round trip, and one per MAX_LINES lines.  Raises StoreError.
    """
    ended, _ = store.transaction(
        [("HDEL", store.keys.limits, f"{name}|override"), ("ZREM", store.keys.limit_ends, name)]
    )
    _send_all(store, name)
    return bool(ended)


def override_of(value: bytes | None, now: float) -> tuple[int, float] | None:
    """Read an override: the limit, and when it ends, epoch seconds, inf for never; None where none is in force.

    now: Redis' time.
    """
    limit, _, ends = (value or b"").decode(errors="replace").partition(" ")
    try:
        number, until = int(limit), int(ends)
    except ValueError:
        return None
    if until >= FOREVER_MS:
        return number, inf
    return (number, until / 1_000) if until > 1_000 * now else None


def held_sets(value: bytes) -> list[str]:
    """Return the keys that a unit holds (lua/holds.lua); none of what is not a row of it."""
    try:
        row = json.loads(value)
    except (ValueError, RecursionError):  # lists within thousands of lists
        return []
    return [key for key in row[1:] if isinstance(key, str)] if isinstance(row, list) else []


def _send_call(keys: Keys, slots: str, limit: int | None) -> Call:
    return Call(SEND_PARKED, [slots, keys.members], ["" if limit is None else limit, name_of(keys, slots)[0]])


def _send_all(store: Store, name: str) -> None:
    own = {slots for slots in parked_sets(store) if name_of(store.keys, slots)[0] == name}
    for refusal in send_lines(store, [(slots, None) for slots in own]):
        raise refusal
