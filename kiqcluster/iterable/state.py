"""State: where iterable jobs are, in Redis (`it-<jid>`; what it means: features/iteration).

iteration_status   where jobs are, also Ruby's
read_state    of a job that begins
save_state    of a job that runs, only while its unit is held (lua/save_iteration)

The end of a run writes it with settle's table of effects.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from kiqcluster.errors import MalformedIteration
from kiqcluster.features.iteration import STATE_FIELDS, Iteration, read_iteration
from kiqcluster.process.runtime import current_setup
from kiqcluster.store.engine.units import Unit
from kiqcluster.store.scripts import SAVE_ITERATION, Call, Word, run_script
from kiqcluster.store.store import Store
from kiqcluster.store.wire import WrongType

__all__ = ["CANCELLED", "LOST", "iteration_status", "read_state", "save_state"]

CANCELLED, LOST = "CANCELLED", "LOST"  # answers: somebody has cancelled the job; others have recovered the unit


def iteration_status(jids: Sequence[str], store: Store | None = None) -> dict[str, Iteration]:
    """Return jid → where its job is, as of its latest save, without the jobs that have no state; also of Ruby's jobs.

    store: the shard of the jobs, None for the default one.  A state that cannot be read is left out.
    One round trip.  Raises StoreError.
    """
    store = store or current_setup().current_store()
    keys = [store.keys.iteration(jid) for jid in jids]
    found: dict[str, Iteration] = {}
    replies = store.read_each([("HMGET", key, *STATE_FIELDS) for key in keys])
    for jid, key, values in zip(jids, keys, replies, strict=True):
        if isinstance(values, WrongType) or not any(values):
            continue
        with suppress(MalformedIteration):
            found[jid] = read_iteration(key, values)
    return found


def read_state(store: Store, jid: str) -> Iteration:
    """Return where a job is.  One round trip.  Raises StoreError, MalformedIteration."""
    key = store.keys.iteration(jid)
    return read_iteration(key, store.call("HMGET", key, *STATE_FIELDS))


def save_state(store: Store, unit: Unit, jid: str, values: Sequence[Word]) -> str:
    """Save where a job is; return "GO", CANCELLED or LOST.  values: ex, c, rt, and for how many seconds they are kept.

    One round trip; may be sent again.  Raises StoreError.
    """
    keys = [store.keys.inflight(unit.identity), store.keys.iteration(jid)]
    answer: bytes = run_script(store, Call(SAVE_ITERATION, keys, [unit.field, *values]))
    return answer.decode()
