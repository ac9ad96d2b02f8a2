"""Scenes of the actions on one job."""

from __future__ import annotations

from kiqcluster.store import Store
from tests.redis.web.site import Scene
from tests.stored_jobs import fill_queue


def waiting(store: Store) -> Scene:
    fill_queue(store, range(3), "mailers")
    return Scene({"jid": "j1"})


SCENES = {"job_cancel": waiting}
