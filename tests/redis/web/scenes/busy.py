"""Scenes of the actions on running jobs."""

from __future__ import annotations

from kiqcluster.store import Store
from tests.redis.web import fleet
from tests.redis.web.site import Scene
from tests.stored_jobs import fill_set


def waiting_again(store: Store) -> Scene:
    """A job that ran when the page was made, and waits for a retry by now."""
    fill_set(store, "retry", [1])
    return Scene({}, {"jid": "j1"})


def hung(store: Store) -> Scene:
    supervisor = fleet.start(store)
    fleet.running(store, supervisor.workers[0], 1)
    return Scene({}, {"jid": "j1", "process": supervisor.workers[0]})


SCENES = {"busy_cancel": waiting_again, "busy_kill": hung}
