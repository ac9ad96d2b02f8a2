"""A job that must wait, and whose payload Ruby cannot read: it waits as any other does, and keeps its lock."""

from __future__ import annotations

import pytest

from kiqcluster import job
from kiqcluster.api import ScheduledSet
from kiqcluster.application.registry import Registry
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.ruby_entries import misfits
from kiqcluster.store import Store
from tests.in_process_worker import Worker

JID = "a" * 24


@pytest.mark.parametrize("value", [b"1e400", b'"\\ud800"', b"[" * 99 + b"]" * 99])
def test_it_waits_in_the_schedule_with_its_lock_until_it_may_run(
    store: Store, setup: Setup, registry: Registry, value: bytes
) -> None:
    worker = Worker(store, setup, registry)
    job(name="sync")(lambda *args: worker.perform(*args))
    keys = b'"class":"sync","queue":"default","jid":"%s","version":9,"idempotency_key":"sync:x"' % JID.encode()
    store.call("LPUSH", "queue:default", b'{"args":[%s],%s}' % (value, keys))
    store.call("SET", store.keys.lock("sync:x"), JID)

    worker.run()

    (entry,) = ScheduledSet()
    assert (entry.display_class, entry.jid, entry["deferred_by"]) == ("sync", JID, "version")
    assert store.call("GET", store.keys.lock("sync:x")) == JID.encode()
    assert worker.ran == []

    (payload,) = store.call("ZRANGE", "schedule", 0, -1)
    assert entry.add_to_queue()
    store.call("LSET", "queue:default", 0, store.call("LINDEX", "queue:default", 0).replace(b":9,", b":0,"))
    worker.run()

    assert len(worker.ran) == 1
    assert misfits(ruby_json.decode(payload)) == []
