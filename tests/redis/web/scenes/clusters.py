"""Scenes of the orders to clusters and processes."""

from __future__ import annotations

from kiqcluster.store import Store
from kiqcluster.web.views.fleet.orders import CLUSTER_ORDERS
from tests.redis.web import fleet
from tests.redis.web.site import Scene


def cluster(store: Store) -> Scene:
    return Scene({"cluster": fleet.start(store).name}, {"lease": "900"})


def process(store: Store) -> Scene:
    return Scene({"process": fleet.start(store).workers[0]}, {"lease": "900"})


def quiet_process(store: Store) -> Scene:
    supervisor = fleet.start(store)
    supervisor.quiet_alone = {supervisor.workers[0]}
    supervisor.publish()
    return Scene({"process": supervisor.workers[0]})


def mortal_process(store: Store) -> Scene:
    supervisor = fleet.start(store)
    supervisor.mortal = {supervisor.workers[0]}
    return Scene({"process": supervisor.workers[0]})


SCENES = {
    **{f"cluster_{action}": cluster for action in CLUSTER_ORDERS},
    "process_quiet": process,
    "process_dump": process,
    "process_resume": quiet_process,
    "process_stop": mortal_process,
}
