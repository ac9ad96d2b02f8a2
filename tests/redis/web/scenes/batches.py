"""Scenes of the actions on batches."""

from __future__ import annotations

from contextlib import suppress

from kiqcluster.batches import Batch
from kiqcluster.store import Store
from tests.redis.web.site import Scene


def running(store: Store) -> Scene:
    batch = Batch.create("import", "HandleRow", [[1], [2]], queue="rows")
    return Scene({"batch": batch.id}, {"reason": "wrong file"})


def left_open(store: Store) -> Scene:
    with suppress(ValueError), Batch.open("import", store=store) as batch:
        batch.add("HandleRow", [[1]], queue="rows")
        raise ValueError("its creator died")
    return Scene({"batch": batch.id})


SCENES = {"batch_cancel": running, "batch_close": left_open}
