"""Something for the pages of classes, cron, batches and limits, also what nobody of ours would write."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from struct import pack

from kiqcluster.process.clock import SystemClock
from kiqcluster.store import Store
from kiqcluster.store.scripts import RATE, Call, run_script
from tests.redis.web.scenes.limits import hold, park
from tests.stored_jobs import NOW, job

BATCH = "a" * 24
QUIET_HISTOGRAM = pack(">26H", 1, 4, 0, 2, *(0,) * 22)


def add_features(store: Store, name: str = "Acme::Report", payload: bytes | None = None, now: float = 0.0) -> None:
    """Have a class, a cron entry, a record of sidekiq-cron, a batch with a child, limits and a lock of this name.

    payload: of the jobs that are parked and hold places.  now: epoch seconds; 0 is now and NOW, for any clock.
    """
    raw = name.encode(errors="surrogatepass")
    for moment in (now,) if now else (NOW, SystemClock.now()):
        add_executions(store, raw, moment)
    add_cron(store, raw, name)
    add_batches(store, raw)
    shown = job(1, **{"class": "Acme::Report"}) if payload is None else payload
    try:
        add_limits(store, name, shown)
    except UnicodeEncodeError:  # half of a surrogate pair, which no key of ours can have
        add_limits(store, "Acme::Report", shown)
    run_script(store, Call(RATE, [store.keys.rate("partner-api")], ["fixed_window", 10, "60.0", 0, "j1"]))
    store.call("SET", b"kiq:lock:" + raw + b":1", raw or b"j1", "EX", 1_000)


def add_executions(store: Store, name: bytes, now: float) -> None:
    """Have a class run in the last minutes, with a deploy."""
    keys = store.keys
    for back in (2, 1):
        at = datetime.fromtimestamp(now, UTC) - timedelta(minutes=back)
        fields = [name + b"|p", 9, name + b"|f", 2, name + b"|ms", 1_234]
        for key in (keys.executions(at), keys.executions_7(at), keys.own_executions(at), keys.executions_rollup(at)):
            store.call("HSET", key, *fields)
        histogram = keys.histogram("", at).encode().replace(b"h|", b"h|" + name, 1)
        store.call("SET", histogram, QUIET_HISTOGRAM)
    stamp = datetime.fromtimestamp(now - 120, UTC).replace(second=0)
    store.call("HSET", keys.deploys(f"{stamp:%Y%m%d}"), f"{stamp:%Y-%m-%dT%H:%M:%SZ}", name or b"v1")


def add_cron(store: Store, raw: bytes, name: str) -> None:
    """Have two cron entries, one of which is broken, and a record of sidekiq-cron."""
    keys = store.keys
    document = {"schedule": "30 2 * * *", "tz": "UTC", "job": name or "x", "args": [name], "queue": "reports"}
    document |= {"description": name, "application": name, "options": {"tags": [name]}}
    store.call("HSET", keys.cron, "nightly", json.dumps(document), raw or b"broken", b"no JSON " + raw[:2_000])
    store.call("ZADD", keys.cron_ticks, NOW + 60, "nightly", 1, raw or b"broken")
    store.call("LPUSH", keys.cron_history("nightly"), json.dumps({"jid": name, "tick": NOW - 60, "at": NOW - 30}))
    store.call("LPUSH", keys.cron_history("nightly"), json.dumps({"jid": "j2", "tick": NOW, "at": NOW}) + "\nj1")
    record = b"cron_job:default:" + raw[:200]
    store.call("SADD", keys.cron_jobs("default"), record)
    store.call(
        "HSET", record, "name", raw[:2_000], "cron", raw[:2_000], "klass", raw[:2_000], "queue_name", raw[:2_000]
    )


def add_batches(store: Store, raw: bytes) -> None:
    """Have a batch with a child, callbacks, and a failed job whose arguments and messages are odd."""
    keys, child = store.keys, "b" * 24
    fields: dict[str, bytes | str | int | float] = {"name": raw, "worker": raw, "created_at": NOW - 600, "reason": raw}
    counts: dict[str, bytes | str | int] = {
        "total": 4,
        "enqueue": 1,
        "finish": 1,
        "failed": 1,
        "error": 1,
        "working": 0,
    }
    text = json.dumps(raw.decode(errors="surrogatepass")).encode()
    extra = {"on_complete": b"queue:default\0" + job(7), "on_death": raw, "problem": raw, ":j1": "failed"}
    for batch, more in (
        (BATCH, {**extra, "pj1": b"[1,%b]" % text, "mj1": text, "open": 1}),
        (child, {"parent": BATCH}),
    ):
        values = {**fields, **counts, **more}
        store.call("HSET", keys.batch(batch), *(word for pair in values.items() for word in pair))
        store.call("ZADD", keys.batches, NOW, batch)
    store.call("ZADD", keys.batch_ended(BATCH), NOW, "j1", NOW, raw)
    store.call("SADD", keys.batch_children(BATCH), child)


def add_limits(store: Store, name: str, payload: bytes) -> None:
    """Have a limit by keys, with a job that runs and jobs that are parked, and a concurrent rate limit."""
    park(store, name, [payload], name)
    park(store, name, [payload])
    hold(store, name, payload)
    hold(store, name, payload, "shop 7", "app-2:17:cd")
    store.call("HSET", store.keys.limits, f"{name}|override", f"-1 {10**14}")
