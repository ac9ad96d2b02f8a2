"""Scenes of the actions on limits and locks; jobs in lines, as workers park them."""

from __future__ import annotations

from collections.abc import Iterable

from kiqcluster.api import LimitLine, override_limit
from kiqcluster.store import Store
from tests.redis.web.site import Scene, entry_keys
from tests.stored_jobs import NOW, job


def park(store: Store, name: str, payloads: Iterable[bytes], key: str = "", limit: int = 1) -> None:
    """Park jobs as a worker does; the first one goes on first."""
    slots = store.keys.slots(name, key)
    queue = store.keys.queue("default").encode()
    store.call("HSET", store.keys.limits, name, limit)
    store.call("SADD", store.keys.parked_sets, slots)
    for number, payload in enumerate(payloads):
        store.call("ZADD", store.keys.parked(slots), int(1e6 * (NOW + number)), queue + b"\0" + payload)


def hold(store: Store, name: str, payload: bytes, key: str = "", identity: str = "app-1:4242:ab") -> None:
    """Have a process of the fleet hold a place for a job that it runs."""
    slots, field = store.keys.slots(name, key), "t1:default"
    store.call("HSET", store.keys.limits, name, 1)
    store.call("HSET", store.keys.members, identity, "1 boot ns 1 2")
    store.call("HSET", store.keys.inflight(identity), field, payload)
    store.call("HSET", store.keys.held(identity), field, f'["{identity}/t1","{slots}"]')
    store.call("SADD", slots, f"{identity}/t1")


def three_parked(store: Store) -> Scene:
    park(store, "Sync", [job(number) for number in range(3)], "shop 7")
    return Scene({"limit": "Sync"}, {"line": "shop 7", "number": "5", "seconds": "3600"})


def overridden(store: Store) -> Scene:
    scene = three_parked(store)
    override_limit("Sync", -1, 600, store=store)
    return scene


def two_selected(store: Store) -> Scene:
    scene = three_parked(store)
    _, _, jobs = LimitLine("Sync", "shop 7", store=store).look(0, 2, 1)
    return Scene(scene.route, {**scene.form, "key": [entry_keys(store).parked(each) for each in jobs]})


def lock(store: Store) -> Scene:
    store.call("SET", store.keys.lock("Report:abc"), "j1", "EX", 100)
    return Scene({}, {"lock": entry_keys(store).seal("Report:abc"), "jid": "j1"})


SCENES = {
    "limit_override": three_parked,
    "limit_reset": overridden,
    "limit_delete": two_selected,
    "limit_clear": three_parked,
    "lock_release": lock,
}
