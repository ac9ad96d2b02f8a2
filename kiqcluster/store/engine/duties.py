"""Duties of the fleet: who does what is due now (lua/claim_duties)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kiqcluster.store.scripts import CLAIM_DUTIES, Call, run_script
from kiqcluster.store.store import Store

__all__ = ["Claims", "claim_duties"]


class Claims(NamedTuple):
    """processes: how many members the fleet has, the dead included that nobody has recovered yet.

    left: duty → seconds until it is due, 0 for those that the caller has claimed.
    """

    processes: int
    left: Mapping[str, float]


def claim_duties(store: Store, pauses: Mapping[str, float]) -> Claims:
    """Claim the duties that are due.  pauses: duty → seconds from its begin until it is due again.

    One round trip.  When the reply is lost, nobody does what was claimed until it is due again.  Raises StoreError.
    """
    milliseconds = (round(1_000 * pause) for pause in pauses.values())
    call = Call(CLAIM_DUTIES, [store.keys.polls, store.keys.members], [len(pauses), *pauses, *milliseconds])
    processes, *left = run_script(store, call)
    return Claims(processes, {name: each / 1_000 for name, each in zip(pauses, left, strict=True)})
