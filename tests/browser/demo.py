"""Demo: a shop's Redis on an ordinary afternoon: something on each page, for pictures and for tests of all pages.

Each part is a function of PARTS; it gets the store, a seeded generator, and the time.  A page that is added adds what
it shows.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from kiqcluster.api import CronSet, DeadSet, StrikeSet, deploys, override_limit
from kiqcluster.api.bulk import Selection, ask
from kiqcluster.process.tallies import EXECUTION_BUCKETS, Executions
from kiqcluster.store import Store
from kiqcluster.store.scripts import RATE, Call, run_script
from kiqcluster.worker.metrics.execution_metrics import increments
from tests.fake_supervisor import publish
from tests.stored_jobs import add_entries, push_payloads

SEED = 20_260_101
HOUR, DAY = 3_600, 86_400
FLEET_TTL_SECONDS = 6 * HOUR  # that the processes of the demo are listed

# class → queue, typical milliseconds, share of failures, runs a minute
CLASSES: dict[str, tuple[str, int, float, float]] = {
    "OrderConfirmation": ("mailers", 180, 0.004, 42),
    "WelcomeMail": ("mailers", 150, 0.002, 9),
    "Shop::CaptureBatch": ("payments", 900, 0.011, 18),
    "Shop::RefundPayment": ("payments", 640, 0.03, 2),
    "ImportCatalogue": ("imports", 14_000, 0.05, 1.2),
    "ReindexProduct": ("search", 60, 0.001, 160),
    "ThumbnailJob": ("images", 420, 0.006, 55),
    "WebhookDelivery": ("webhooks", 310, 0.08, 70),
    "CleanUpCarts": ("cronjob:clean_up_carts", 5_200, 0.0, 0.1),
    "MonthlyReport": ("reports", 95_000, 0.02, 0.05),
}
QUEUES = {"mailers": 86, "payments": 12, "imports": 1_204, "search": 318, "images": 45, "webhooks": 2_310, "reports": 3}
LATENCIES = {"imports": 412.0, "webhooks": 95.0, "search": 8.0, "images": 4.0, "mailers": 2.5, "payments": 0.4}
ERRORS: Sequence[tuple[str, str, str, str]] = (
    ("WebhookDelivery", "TimeoutError", "hooks.example.com did not answer within 10 s", "shop/webhooks.py:88"),
    ("WebhookDelivery", "HTTPError", "503 Service Unavailable: hooks.example.com", "shop/webhooks.py:94"),
    ("ImportCatalogue", "ValueError", "line 4 812: price '12,9O' is no number", "shop/catalogue.py:131"),
    ("Shop::CaptureBatch", "Shop::GatewayError", "the gateway refused: insufficient_funds", "app/jobs/capture.rb:41"),
    ("Shop::RefundPayment", "PaymentDeclined", "card expired", "shop/refunds.py:57"),
    ("ThumbnailJob", "OSError", "cannot identify image file 'orders/2231.webp'", "shop/images.py:23"),
    ("MonthlyReport", "MemoryError", "", "shop/reports.py:210"),
)  # fmt: skip


def fill(store: Store) -> None:
    """Fill an empty database."""
    rng, now = Random(SEED), time.time()
    for part in PARTS:
        part(store, rng, now)


def payload(rng: Random, name: str, at: float, **more: Any) -> bytes:
    """Return the payload of a job that was enqueued at a time."""
    job = {
        "class": name,
        "args": [rng.randrange(10_000, 99_999)],
        "jid": f"{rng.getrandbits(96):024x}",
        "queue": CLASSES[name][0],
        "created_at": at,
        "enqueued_at": at,
        "retry": True,
        "tags": ["vip"] if rng.random() < 0.15 else [],
    }
    return json.dumps({**job, **more}).encode()


def failed(rng: Random, at: float, retries: int) -> bytes:
    """Return one that has failed, last at a time."""
    name, error, text, place = rng.choice(ERRORS)
    trace = [f"{place} in perform", "shop/base.py:19 in call", "shop/db.py:77 in transaction"]
    return payload(
        rng, name, at - retries * 600, error_class=error, error_message=text, failed_at=at, retry_count=retries,
        error_backtrace=trace,
    )  # fmt: skip


def fill_queues(store: Store, rng: Random, now: float) -> None:
    for queue, size in QUEUES.items():
        names = [name for name, facts in CLASSES.items() if facts[0] == queue]
        behind = LATENCIES.get(queue, 0.2)
        ages = [behind * (1 - number / size) for number in range(size)]
        push_payloads(store, [payload(rng, rng.choice(names), now - age) for age in ages], queue)
    store.call("SADD", "queues", "cronjob:clean_up_carts")
    store.call("SADD", "paused", "reports")


def fill_sets(store: Store, rng: Random, now: float) -> None:
    dead = sorted(now - rng.expovariate(1 / DAY) for _ in range(137))
    add_entries(store, "dead", *[(at, failed(rng, at, 25)) for at in dead])
    soon = [now + rng.expovariate(1 / (2 * HOUR)) + HOUR for _ in range(64)]
    add_entries(store, "retry", *[(at, failed(rng, now - rng.random() * HOUR, rng.randrange(1, 12))) for at in soon])
    stale = [now - rng.random() * DAY for _ in range(9)]
    dropped = [payload(rng, "WebhookDelivery", at, kiq_dropped_by="strike") for at in stale]
    add_entries(store, store.keys.dropped, *zip(stale, dropped, strict=True))
    ask(store, DeadSet, "retry", Selection(name="WebhookDelivery"), by="ada")
    names = ["WelcomeMail", "OrderConfirmation", "MonthlyReport", "ReindexProduct"]
    later = [now + HOUR + rng.random() * 3 * DAY for _ in range(212)]
    add_entries(store, "schedule", *[(at, payload(rng, rng.choice(names), now)) for at in later])


def fill_history(store: Store, rng: Random, now: float) -> None:
    """Runs by minute of the last hour and a half, and by day of the last month."""
    commands: list[tuple[Any, ...]] = []
    moment = datetime.fromtimestamp(now, UTC).replace(second=0, microsecond=0)
    for back in range(90):
        at, wave = moment - timedelta(minutes=back), 1 + 0.35 * math.sin(back / 9)
        for name, (_, milliseconds, failing, pace) in CLASSES.items():
            runs = int(pace * wave * rng.uniform(0.8, 1.2) + rng.random())
            commands += increments(store.keys, name, Executions(), executed(rng, runs, failing, milliseconds), at)
    for back in range(30):
        day = moment - timedelta(days=back)
        weekend = 0.6 if day.weekday() >= 5 else 1.0
        processed = int(420_000 * weekend * rng.uniform(0.85, 1.15) * (0.55 if back == 0 else 1))
        commands += [
            ("SET", f"stat:processed:{day:%Y-%m-%d}", processed),
            ("SET", f"stat:failed:{day:%Y-%m-%d}", int(processed * rng.uniform(0.008, 0.02))),
        ]
    commands += [("SET", "stat:processed", 184_204_331), ("SET", "stat:failed", 2_120_455)]
    store.pipeline([tuple(map(str, each)) for each in commands])
    for hours, label in ((0.4, "a1f3c9e orders: batch captures"), (1.1, "77b02d4 search: new index")):
        deploys.mark(label, moment - timedelta(hours=hours), store=store)


def executed(rng: Random, runs: int, failing: float, milliseconds: int) -> Executions:
    """Return so many runs around a duration."""
    failures = sum(rng.random() < failing for _ in range(runs))
    buckets, total = [0] * (len(EXECUTION_BUCKETS) + 1), 0
    for _ in range(runs - failures):
        took = rng.lognormvariate(math.log(milliseconds), 0.5)
        total += int(took)
        buckets[sum(bound < took for bound in EXECUTION_BUCKETS)] += 1
    return Executions(runs, failures, total, tuple(buckets))


def fill_fleet(store: Store, rng: Random, now: float) -> None:
    """Two hosts with a cluster of three processes each, and one of Ruby's; what they run."""
    shares = (
        ["payments", "mailers"],
        ["search", "images", "webhooks"],
        ["imports", "reports", "cronjob:clean_up_carts"],
    )
    for host, pid in (("app-1", 4_100), ("app-2", 2_870)):
        state = {
            "supervisor": f"{host}:{pid}:{'5e' * 6}", "slots": 3, "quiet_by": "", "quiet_since": None,
            "lease_remaining": None, "roll": None, "reload": None, "stopping": False, "version": "0.1.0",
            "restart_needed": "", "answers": {}, "at": now,
        }  # fmt: skip
        for slot, queues in enumerate(shares):
            identity = f"{host}:{pid + slot + 1}:{rng.getrandbits(48):012x}"
            names = [name for name, facts in CLASSES.items() if facts[0] in queues]
            busy = rng.randrange(2, 7)
            member(store, rng, now, identity, queues, names, busy, kiq_cluster=json.dumps(state))
    ruby = {"labels": [], "version": None, "tag": "shop-rails"}
    member(store, rng, now, f"rails-1:17:{rng.getrandbits(48):012x}", ["payments"], ["Shop::CaptureBatch"], 3, **ruby)


def member(
    store: Store, rng: Random, now: float, identity: str, queues: list[str], names: list[str], busy: int, **more: Any
) -> None:
    """Have a process be listed, with what it runs."""
    info = {"queues": queues, "busy": busy, "concurrency": 10, "beat": now, "started_at": now - 3.2 * HOUR}
    publish(store, identity, FLEET_TTL_SECONDS, **info, rss=rng.randrange(60_000, 140_000), **more)
    for number in range(busy):
        name = rng.choice(names)
        since = now - rng.expovariate(1 / (2 * CLASSES[name][1] / 1_000))
        job = {"queue": CLASSES[name][0], "payload": payload(rng, name, since).decode(), "run_at": int(since)}
        store.call("HSET", store.keys.work(identity), f"t{number}", json.dumps(job))
    store.call("EXPIRE", store.keys.work(identity), FLEET_TTL_SECONDS)


def fill_cron(store: Store, rng: Random, now: float) -> None:
    cron = CronSet(store=store)
    cron.add("carts", "*/10 * * * *", "CleanUpCarts", queue="cronjob:clean_up_carts", description="forgotten carts")
    cron.add("month", "30 2 1 * *", "MonthlyReport", ["all"], queue="reports", tz="Europe/Berlin")
    cron.add("catalogue", "15 */6 * * *", "ImportCatalogue", ["acme"], queue="imports", description="prices of ACME")
    cron.add("refunds", "0 9 * * 1-5", "Shop::RefundPayment", queue="payments", tz="America/New_York")
    cron.add("reindex", "@hourly", "ReindexProduct", queue="search")
    cron.disable("refunds")
    for name, seconds in (("carts", 600), ("catalogue", 6 * HOUR), ("reindex", HOUR)):
        for back in range(8, 0, -1):
            tick = now // seconds * seconds - back * seconds
            run = {"jid": f"{rng.getrandbits(96):024x}", "tick": tick, "at": tick + 0.4}
            store.call("LPUSH", store.keys.cron_history(name), json.dumps(run))


def fill_batches(store: Store, rng: Random, now: float) -> None:
    """One under way, with failed rows; one that is complete; one that was cancelled."""
    keys = store.keys
    batches = (
        ("suppliers.csv", "HandleRow", 10_000, {"finish": 6_312, "working": 20, "failed": 41, "error": 7}, 840),
        ("export of orders", "ExportPart", 500, {"finish": 500}, 5 * HOUR),
        ("thumbnails of 2025", "ThumbnailJob", 2_400, {"finish": 1_020, "error": 1_380, "cancelled": 1_380}, DAY),
    )  # fmt: skip
    for name, worker, total, counts, age in batches:
        batch = f"{rng.getrandbits(96):024x}"
        done = sum(counts.get(each, 0) for each in ("finish", "working", "failed", "error"))
        fields = {"name": name, "worker": worker, "created_at": now - age, "total": total, "enqueue": total - done}
        fields |= counts
        if done == total:
            fields |= {"completed_at": now - age / 2}
        if "cancelled" in counts:
            fields |= {"cancelled_at": now - age / 2, "reason": "wrong folder"}
        for number in range(counts.get("failed", 0)):
            jid = f"{rng.getrandbits(96):024x}"
            fields |= {f":{jid}": "failed", f"p{jid}": json.dumps([number * 97 + 3]), f"m{jid}": '"no address"'}
            store.call("ZADD", keys.batch_ended(batch), now - number * 11, jid)
        store.call("HSET", keys.batch(batch), *(word for pair in fields.items() for word in pair))
        store.call("ZADD", keys.batches, now - age, batch)


def fill_limits(store: Store, rng: Random, now: float) -> None:
    """Limits, with what is parked; a rate limit in use; locks; a strike."""
    keys = store.keys
    lines = {("Shop::CaptureBatch", ""): 14, ("ImportCatalogue", "acme"): 38, ("ImportCatalogue", "globex"): 3}
    for (name, key), parked in lines.items():
        slots = keys.slots(name, key)
        queue = keys.queue(CLASSES[name][0]).encode()
        for number in range(parked):
            at = now - 9 * number
            store.call("ZADD", keys.parked(slots), int(1e6 * at), queue + b"\0" + payload(rng, name, at))
        store.pipeline([("HSET", keys.limits, name, 5), ("SADD", keys.parked_sets, slots)])
        override_limit(name, -1, 2 * HOUR, store=store)
    store.call("HSET", keys.limits, "ThumbnailJob", 8)
    for number in range(7):
        words = ["fixed_window", 10, "60.0", 0, f"j{number}"]
        run_script(store, Call(RATE, [keys.rate("partner-api")], words))
    for number in range(6):
        jid = f"{rng.getrandbits(96):024x}"
        store.call("SET", keys.lock(f"MonthlyReport:{rng.getrandbits(64):016x}"), jid, "EX", 600 + 300 * number)
    StrikeSet(store=store).add("defer", HOUR, name="WebhookDelivery", delay=300, reason="the partner is down")


PARTS: tuple[Callable[[Store, Random, float], None], ...] = (
    fill_queues,
    fill_sets,
    fill_history,
    fill_fleet,
    fill_cron,
    fill_batches,
    fill_limits,
)
