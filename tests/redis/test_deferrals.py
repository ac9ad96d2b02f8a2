"""A job that must wait, and whose payload Ruby cannot read: it leaves its queue with a reason, and without its lock."""

from __future__ import annotations

import pytest

from kiqcluster import job
from kiqcluster.api import DeadSet
from kiqcluster.application.registry import Registry
from kiqcluster.process.runtime import Setup
from kiqcluster.store import Store
from tests.in_process_worker import Worker

JID = "a" * 24


@pytest.mark.parametrize("value", [b"1e400", b'"\\ud800"', b"[" * 99 + b"]" * 99])
def test_it_goes_to_the_dead_set_and_releases_its_lock(
    store: Store, setup: Setup, registry: Registry, value: bytes
) -> None:
    worker = Worker(store, setup, registry)
    job(name="sync")(lambda *args: worker.perform(*args))
    keys = b'"class":"sync","queue":"default","jid":"%s","version":9,"idempotency_key":"sync:x"' % JID.encode()
    store.call("LPUSH", "queue:default", b'{"args":[%s],%s}' % (value, keys))
    store.call("SET", store.keys.lock("sync:x"), JID)

    worker.run()

    (entry,) = DeadSet()
    assert store.call("LLEN", "queue:default") == 0
    assert "may not run now (version)" in str(entry.payload["error_message"])
    assert not store.call("EXISTS", store.keys.lock("sync:x"))
    assert worker.ran == []
