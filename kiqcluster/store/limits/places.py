"""Places in concurrent limits: a running job takes one and leaves it (rules: lua/places).

take_place    the script takes one only while the unit is still held, and registers it under the unit
leave_place   before the unit ends; what is still held then is released by the script that moves the unit
"""

from __future__ import annotations

from kiqcluster.store.engine.units import Unit
from kiqcluster.store.scripts import LEAVE_PLACE, TAKE_PLACE, Call, run_script
from kiqcluster.store.store import Store

__all__ = ["FULL", "LOST", "leave_place", "take_place"]

FULL, LOST = "FULL", "LOST"  # answers: others have all places; others have recovered the unit


def take_place(unit: Unit, store: Store, name: str, largest: int) -> str:
    """Take a place for a unit that runs; return "GO", FULL or LOST.  One round trip; may be sent again.

    Raises StoreError; the unit may then have the place.
    """
    keys = store.keys
    unit.holds = True  # first: whoever settles it from now on releases the place, also when the reply is lost
    names = [keys.inflight(unit.identity), keys.held(unit.identity), keys.rate(name)]
    answer: bytes = run_script(store, Call(TAKE_PLACE, names, [unit.field, _holder(unit), largest]))
    return answer.decode()


def leave_place(unit: Unit, store: Store, name: str) -> bool:
    """Leave it; return whether the unit had it.  One round trip; may be sent again.  Raises StoreError."""
    names = [store.keys.held(unit.identity), store.keys.rate(name)]
    return bool(run_script(store, Call(LEAVE_PLACE, names, [unit.field, _holder(unit)])))


def _holder(unit: Unit) -> str:
    return f"{unit.identity}/{unit.token}"
