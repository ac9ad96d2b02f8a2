"""A worker at the end of a slow line, with large payloads in both directions: everything ends, and once."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from kiqcluster.store import Store
from tests.chaos.ledger import Ledger, remains
from tests.chaos.scale import sized
from tests.kit import Cluster, RedisServer, wait_until
from tests.process.stage import push_many
from tests.proxy import Proxy

Run = Callable[..., Cluster]
Report = Callable[[dict[str, Any]], None]

RATE = sized(4_000_000, 1_000_000)  # bytes per second in each direction
JOBS, LARGEST = sized(3, 20), sized(3_000_000, 20_000_000)  # large jobs, and characters in an argument of theirs
BEHIND = sized(20, 200)  # small ones behind them
FAILING, FAILURE = sized(4, 10), sized(500_000, 1_000_000)  # jobs that fail at once, and characters of each
PATIENCE = sized(60, 1_200)  # seconds


def test_jobs_at_the_end_of_a_slow_line_all_run_once(
    run: Run, store: Store, redis_server: RedisServer, ledger: Ledger, rng: Random, report: Report
) -> None:
    sizes = [LARGEST, *(rng.randint(LARGEST // 20, LARGEST) for _ in range(JOBS - 1))]
    large = push_many(store, "Work", [[0, "x" * size] for size in sizes])
    failing = push_many(store, "hold_and_fail", [["gate", "x" * FAILURE]] * FAILING)
    small = push_many(store, "Work", [[0]] * BEHIND)

    with Proxy(("127.0.0.1", redis_server.port), rate=RATE) as line:
        cluster = run("default", "-c", str(FAILING + 2), "--redis", line.url)
        pid = cluster.wait_ready()[0]
        wait_until(lambda: ledger.has_ended([*large, *small]), "all that do not wait to end", seconds=PATIENCE)
        wait_until(lambda: ledger.begun().keys() >= set(failing), "the failing ones to run", seconds=PATIENCE)
        ledger.open_gate("gate")
        wait_until(lambda: store.call("ZCARD", "retry") == FAILING, "the failures to be written", seconds=PATIENCE)
        wait_until(lambda: remains(store).keys() == {"retry"}, "all to be settled", seconds=PATIENCE)

        assert cluster.pids() == {0: pid}
        assert cluster.stop() == 0
    audit = ledger.audit([*large, *small, *failing])
    report({**audit.counts(), "MB": sum(sizes) // 10**6})
    assert audit.lost == audit.strangers == audit.repeated.keys() == set()
