"""Clusters for the web pages: fake supervisors that answer, and end with their test."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kiqcluster.control.stacks import Stacks, encode_stacks
from kiqcluster.store import Store
from tests.fake_supervisor import FakeSupervisor, publish
from tests.stored_jobs import NOW, job

STARTED: list[FakeSupervisor] = []  # by the scenes of a test


def start(store: Store, **options: Any) -> FakeSupervisor:
    """Start one; it is ended with the test."""
    made = FakeSupervisor(store, **options)
    made.obeys_alone = True
    STARTED.append(made)
    return made


@contextmanager
def ended() -> Iterator[None]:
    """End those that were started within."""
    yield
    while STARTED:
        STARTED.pop().close()


def state(name: str, pids: Sequence[int], **other: Any) -> dict[str, Any]:
    """Return the state of a cluster, as its processes publish it."""
    rows = [
        {"slot": slot, "pid": pid, "state": "ready", "release": "/srv/shop/1", "generation": 2, "restarts": 1,
         "died_at": NOW, "redis": True, "backoff": 0.0, "waits_for": ""}
        for slot, pid in enumerate(pids)
    ]  # fmt: skip
    about = {"supervisor": name, "slots": len(rows), "version": "0.1.0", "at": NOW, "answers": {}, "children": rows}
    return {**about, "quiet_by": "", "lease_remaining": None, "roll": None, "reload": None, **other}


def publish_cluster(store: Store, name: str, *identities: str, **other: Any) -> None:
    """Have the processes of a cluster show in Redis; nobody reads their messages.  other: of its state."""
    told = json.dumps(state(name, [int(each.split(":")[1]) for each in identities], **other)).replace(
        "Infinity", "1e999"
    )
    for each in identities:
        publish(store, each, kiq_cluster=told, busy=1)


def tell_stacks(store: Store, identity: str, text: str, *, is_own: bool = True) -> None:
    store.call("SET", store.keys.stacks(identity), encode_stacks(Stacks(NOW, text, is_own)))


def run(store: Store, identity: str, *payloads: bytes, queue: str = "default") -> None:
    """Have a process run jobs, as its heartbeat tells."""
    for number, raw in enumerate(payloads):
        told = {"queue": queue, "payload": raw.decode(errors="surrogateescape"), "run_at": int(NOW) - number}
        store.call("HSET", store.keys.work(identity), f"t{number}", json.dumps(told).encode(errors="surrogateescape"))


def running(store: Store, identity: str, *numbers: int, queue: str = "default") -> None:
    """Have a process run the jobs of these numbers."""
    run(store, identity, *[job(number) for number in numbers], queue=queue)
