"""Scenes of the actions on queues."""

from __future__ import annotations

from kiqcluster.api import Queue
from kiqcluster.store import Store
from tests.redis.web.site import Scene, entry_keys
from tests.stored_jobs import fill_queue


def waiting(store: Store) -> Scene:
    fill_queue(store, range(3), "mailers")
    return Scene({"queue": "mailers"})


def empty(store: Store) -> Scene:
    scene = waiting(store)
    store.call("DEL", store.keys.queue("mailers"))
    return scene


def paused(store: Store) -> Scene:
    scene = waiting(store)
    store.call("SADD", store.keys.paused, "mailers")
    return scene


def one_job(store: Store) -> Scene:
    scene = waiting(store)
    return Scene(
        scene.route,
        {"key": entry_keys(store).queued(Queue("mailers", store=store).around(1, 0, 0)[0]), "target": "low"},
    )


def all_jobs(store: Store) -> Scene:
    return Scene(waiting(store).route, {"class": "Job", "target": "low"})


SCENES = {
    "queue_bulk_delete": all_jobs,
    "queue_bulk_move": all_jobs,
    "queue_pause": waiting,
    "queue_resume": paused,
    "queue_clear": waiting,
    "queue_forget": empty,
    "queue_delete": one_job,
    "queue_move": one_job,
}
