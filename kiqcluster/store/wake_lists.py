"""Wake lists: moves the jobs in them back to their queues, before a stop and after a recovery."""

from __future__ import annotations

from collections.abc import Sequence

from kiqcluster.errors import RedisRefused
from kiqcluster.sidekiq.keys import Keys
from kiqcluster.store.connection import Connection
from kiqcluster.store.scripts import RETURN_WAKE_LISTS, Call, run_scripts, sliced

__all__ = ["MAX_COMMANDS", "MAX_QUEUES", "return_wake_lists"]

MAX_QUEUES = 100  # of one command or script: the server has other clients
MAX_COMMANDS = 50  # of these in one round trip
MAX_MOVED_PAYLOADS = 1_000  # from one wake list, in one call of the script


def return_wake_lists(connection: Connection, keys: Keys, queues: Sequence[str]) -> None:
    """Move the jobs in the wake lists of these queues back to where they are fetched next, in order.

    Needs no membership.  A list that Redis refuses to move stays where it is.  Raises StoreError.
    One command per MAX_QUEUES queues, MAX_COMMANDS in a round trip; one more round trip of scripts if a list has jobs.
    """
    for slices in sliced(sliced(queues, MAX_QUEUES), MAX_COMMANDS):
        replies = connection.exchange([("EXISTS", *map(keys.wake, names)) for names in slices])
        # Also after a refusal: some keys may be allowed.
        filled = [names for names, found in zip(slices, replies, strict=True) if found]
        if not filled:
            continue
        replies = run_scripts(connection, [_call(keys, names) for names in filled])
        refused = [names for names, reply in zip(filled, replies, strict=True) if isinstance(reply, RedisRefused)]
        for names in refused:  # as a whole, because some of its keys are forbidden
            run_scripts(connection, [_call(keys, [name]) for name in names])


def _call(keys: Keys, queues: Sequence[str]) -> Call:
    pairs = [key for name in queues for key in (keys.wake(name), keys.queue(name))]
    return Call(RETURN_WAKE_LISTS, pairs, [MAX_MOVED_PAYLOADS])
