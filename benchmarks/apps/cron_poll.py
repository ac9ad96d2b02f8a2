"""A poll of cron entries that are all due: `python -m benchmarks.apps.cron_poll URL ENTRIES`.

Adds the entries, prints `ready`, waits for a line, enqueues what is due, and prints what that took as JSON.
"""

from __future__ import annotations

import json
import sys
import time

from kiqcluster.application.registry import current_registry
from kiqcluster.job import job
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.process.metrics import JobMetrics
from kiqcluster.process.runtime import Runtime, current_setup
from kiqcluster.sidekiq.cron_entries import parse_entries
from kiqcluster.store import Store
from kiqcluster.store.cron import CronRow, write
from kiqcluster.worker.maintenance.cron_ticks import CronTicks


@job(queue="cron")
def tick(number: int) -> None: ...


def main(url: str, count: int) -> None:
    setup = current_setup()
    setup.config = Config(redis=url)
    store = setup.store = Store(url)
    due = int(time.time() // 60 * 60)
    table = {"schedule": "* * * * *", "job": "tick", "queue": "cron"}
    entries = parse_entries({f"entry {number}": {**table, "args": [number]} for number in range(count)})
    write(store, [CronRow("put", each.name, each.encoded(), due) for each in entries])
    ticks = CronTicks(Runtime(setup.config, store, setup, Events()), current_registry(), JobMetrics(1, list))
    print("ready", flush=True)
    sys.stdin.readline()
    since, cpu = time.perf_counter(), time.process_time()
    while ticks.move(due + 1.0).next_at is None:
        pass
    seconds, cpu = time.perf_counter() - since, time.process_time() - cpu
    print(json.dumps({"seconds": seconds, "cpu": cpu, "jobs": store.call("LLEN", "queue:cron")}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
