"""Rates: rate limits that were used, how much of each is used now, and when the next start is allowed.

What is known of a limit is what was asked for last, by a job or inside of one (store/lua/rates, places).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from math import ceil

from kiqcluster.api._store import store_in_force
from kiqcluster.api.limits import PlaceHolder, place_holders
from kiqcluster.store import Store
from kiqcluster.store.scripts import READ_RATE, Call, read_scripts_each
from kiqcluster.store.wire import WrongType

__all__ = ["RateStatus", "rate_limits"]

MAX_PER_ROUND_TRIP = 500


@dataclass(frozen=True, slots=True)
class RateStatus:
    """name: of the limit, or of the job.  kind: as in kiqcluster.limits.  largest, seconds: of the limit.

    seconds: length of the period; of a leaky bucket, from one start to the next; 0 for a concurrent limit.
    used: starts in this period; room of a leaky bucket that has not come back; places held.
    free_in: seconds until a start that was promised no time is allowed, 0 for now; None where all places are held.
    promised: starts that were promised a time to come, as far as the times tell.  holders: of places.
    """

    name: str
    kind: str
    largest: int
    seconds: float
    used: int
    free_in: float | None
    promised: int
    holders: tuple[PlaceHolder, ...] = ()


def rate_limits(
    *, store: Store | None = None, most: int | None = None, most_holders: int | None = None
) -> list[RateStatus]:
    """Return the limits that were used lately, by name.  A broken one is left out.

    most: only so many, those that Redis keeps for longest; None for all.  most_holders: as in concurrency_limits.
    Three round trips, one more per 500 limits, processes and held places.  Raises StoreError.
    """
    shard = store_in_force(store)
    last = -1 if most is None else most - 1
    names = [name.decode(errors="replace") for name in shard.call("ZREVRANGE", shard.keys.rates, 0, last)]
    replies = read_scripts_each(
        shard, [Call(READ_RATE, [shard.keys.rate(name)], []) for name in names], MAX_PER_ROUND_TRIP
    )
    pairs = zip(names, replies, strict=True)
    known = [(name, reply) for name, reply in pairs if reply and not isinstance(reply, WrongType)]
    has_places = any(reply[0] == b"concurrent" for _, reply in known)
    holders = place_holders(shard, shard.keys.rate(""), most_holders) if has_places else {}
    found = []
    for name, reply in known:
        with suppress(ValueError, ArithmeticError):  # numbers that no worker has written
            found.append(_status(name, reply, holders.get(shard.keys.running(name), ())))
    return sorted(found, key=lambda each: each.name)


def _status(name: str, reply: list[bytes], holders: list[PlaceHolder] | tuple[()]) -> RateStatus:
    kind, largest, used = reply[0].decode(), int(reply[1]), int(reply[3])
    seconds, now, at, promised = float(reply[2]), float(reply[4]), float(reply[5]), float(reply[6])
    if kind == "concurrent":
        return RateStatus(name, kind, largest, 0.0, used, 0.0 if used < largest else None, 0, tuple(holders))
    between = seconds if kind == "leaky_bucket" else seconds / largest  # two starts that are promised a time
    ahead = max(0, ceil((promised - max(at, now)) / between - 1e-3))
    return RateStatus(name, kind, largest, seconds, used, max(0.0, at - now, promised - now), ahead)
