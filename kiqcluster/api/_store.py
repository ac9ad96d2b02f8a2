"""Where the classes of this package look: the shard that a caller names, that of its `Client.via`, or the default."""

from __future__ import annotations

from typing import Any

from kiqcluster.process.clock import Clock, SystemClock
from kiqcluster.process.delivery import VIA
from kiqcluster.process.runtime import current_setup
from kiqcluster.store import Store
from kiqcluster.store.shards import same_redis

__all__ = ["CLOCK", "integer", "shards", "store_in_force"]

CLOCK: Clock = SystemClock()  # the default wherever a clock is passed in


def store_in_force(store: Store | None) -> Store:
    """Return the store that was given, else that of `Client.via` around the call, else the configured one.

    Raises UnroutedCall.
    """
    chosen = store or VIA.get()
    if chosen is None:
        current_setup().check_routed("this inspection")
        chosen = current_setup().current_store()
    return chosen


def integer(value: Any) -> int | None:
    """Return a number that Redis holds, None for what is none: anybody may have written it."""
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def shards() -> list[Store]:
    """Return all shards of the configuration, the default one first, to pass one after the other as `store`.

    A Redis that two names have is returned once.
    """
    setup = current_setup()
    config = setup.current_config()
    same = same_redis(config.known_redis(), config.shards)
    return [setup.current_store(), *(setup.shard(each.name) for each in config.shards if each.name not in same)]
