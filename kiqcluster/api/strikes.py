"""Strikes: defer or drop the jobs of a class, or with an argument, for a while (features/strikes.py)."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from kiqcluster.api._store import CLOCK, integer, store_in_force
from kiqcluster.errors import UsageError
from kiqcluster.features.strikes import ACTIONS, MAX_STRIKE_BYTES, MAX_STRIKES, Strike
from kiqcluster.process.clock import Clock
from kiqcluster.process.durations import MAX_DURATION_SECONDS
from kiqcluster.store import Store
from kiqcluster.store.wire import WrongType

__all__ = ["ACTIONS", "Strike", "StrikeSet"]

ID_BYTES = 3


class StrikeSet:
    """The strikes of a Redis.  Those that have ended are no longer listed."""

    def __init__(self, *, store: Store | None = None, clock: Clock = CLOCK) -> None:
        self._store = store_in_force(store)
        self._clock = clock

    def list(self) -> list[tuple[Strike, int]]:
        """Return each strike, and the number of jobs that it has deferred or dropped; the one that ends first, first.

        A value that is not a strike is left out.  One round trip.  Raises StoreError.
        """
        keys, now = self._store.keys, self._clock.now()
        strikes, counts = self._store.read_each([("HGETALL", keys.strikes), ("HGETALL", keys.struck)])
        if isinstance(strikes, WrongType):
            raise strikes
        by_id = _as_mapping(counts if isinstance(counts, list) else [])
        found = [each for pair in _as_mapping(strikes).items() if (each := _read(*pair)) is not None]
        alive = [(each, integer(by_id.get(each.id.encode())) or 0) for each in found if each.until > now]
        return sorted(alive, key=lambda each: each[0].until)

    def add(
        self,
        action: str,
        seconds: float,
        *,
        name: str = "",
        arguments: Mapping[str, Any] | None = None,
        delay: float = 300.0,
        by: str = "",
        reason: str = "",
        identifier: str = "",
    ) -> Strike:
        """Add a strike for so many seconds, and forget those that have ended.  Two round trips.

        action, name, arguments, delay: as in Strike.  identifier: that of the same strike in another shard, "" for a
        new one.  Raises UsageError for one that cannot work, is about every job or is too large, for more than 100;
        StoreError.
        """
        _check(action, seconds, delay, name, arguments or {})
        keys, now = self._store.keys, self._clock.now()
        strikes, counted = self._store.pipeline([("HGETALL", keys.strikes), ("HKEYS", keys.struck)])
        held = _as_mapping(strikes)
        ended = [identifier for identifier, raw in held.items() if _has_ended(identifier, raw, now)]
        if len(held) - len(ended) >= MAX_STRIKES:
            raise UsageError(f"there are {MAX_STRIKES} strikes already; remove some: kiqctl strike list")
        strike = Strike(
            identifier or secrets.token_hex(ID_BYTES),
            name,
            action,
            now + seconds,
            delay,
            dict(arguments or {}),
            by,
            reason,
        )
        if len(encoded := strike.encoded()) > MAX_STRIKE_BYTES:
            raise UsageError(
                f"this strike has {len(encoded)} bytes, and may have {MAX_STRIKE_BYTES}; name fewer arguments"
            )
        commands: list[tuple[Any, ...]] = [("HSET", keys.strikes, strike.id, encoded)]
        if ended:
            commands.append(("HDEL", keys.strikes, *ended))
        if gone := set(counted) - (held.keys() - set(ended)):  # workers count on for some seconds after a removal
            commands.append(("HDEL", keys.struck, *gone))
        self._store.transaction(commands)
        return strike

    def remove(self, identifier: str) -> bool:
        """End a strike; return whether it was there.  One round trip.  Raises StoreError."""
        keys = self._store.keys
        removed, _ = self._store.transaction([("HDEL", keys.strikes, identifier), ("HDEL", keys.struck, identifier)])
        return bool(removed)


def _check(action: str, seconds: float, delay: float, name: str, arguments: Mapping[str, Any]) -> None:
    if not name and not arguments:
        raise UsageError("a strike is about a class, an argument, or both; one about every job is a paused queue")
    if action not in ACTIONS:
        raise UsageError(f"{action!r} is not an action of a strike; pass {' or '.join(ACTIONS)}")
    if not 0 < seconds <= MAX_DURATION_SECONDS:
        raise UsageError(f"a strike cannot last {seconds!r} s; pass a positive number of seconds")
    if action == "defer" and not 0 < delay <= MAX_DURATION_SECONDS:
        raise UsageError(f"jobs cannot be deferred by {delay!r} s; pass a positive number of seconds")


def _read(identifier: bytes, raw: bytes) -> Strike | None:
    try:
        return Strike.read(identifier, raw)
    except ValueError:
        return None


def _has_ended(identifier: bytes, raw: bytes, now: float) -> bool:
    strike = _read(identifier, raw)
    return strike is None or strike.until <= now


def _as_mapping(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    """Return the reply of HGETALL as a mapping."""
    return dict(zip(flat[::2], flat[1::2], strict=True))
