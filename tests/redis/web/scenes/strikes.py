"""Scenes of the actions on strikes."""

from __future__ import annotations

from kiqcluster.api import StrikeSet
from kiqcluster.store import Store
from tests.redis.web.site import Scene

FORM = {"class": "Job", "arguments": "0=1", "action": "drop", "for": "1h", "delay": "5m", "reason": "it fails"}


def none(_: Store) -> Scene:
    return Scene({}, FORM)


def one(store: Store) -> Scene:
    return Scene({}, {"id": StrikeSet(store=store).add("defer", 60, name="Job").id})


SCENES = {"strike_add": none, "strike_remove": one}
