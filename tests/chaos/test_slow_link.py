"""A worker at the end of a slow line, with large payloads in both directions: everything ends, and once."""

from __future__ import annotations

import pytest

from tests.chaos.scale import sized
from tests.chaos.stage import ChaosStage
from tests.kit import wait_until
from tests.proxy import Proxy

# In the short form: redis/test_slow_link.py.
pytestmark = pytest.mark.full

BYTES_PER_SECOND = sized(4_000_000, 1_000_000)  # bytes per second in each direction
LARGE_JOBS, LARGE_JOB_CHARACTERS = sized(3, 20), sized(3_000_000, 20_000_000)  # characters of an argument
SMALL_JOBS = sized(20, 200)  # small ones behind them
FAILING_JOBS, FAILURE_CHARACTERS = sized(4, 10), sized(500_000, 1_000_000)  # jobs that fail at once
TIMEOUT_SECONDS = sized(60, 1_200)


def test_jobs_at_the_end_of_a_slow_line_all_run_once(stage: ChaosStage) -> None:
    sizes = [
        LARGE_JOB_CHARACTERS,
        *(stage.rng.randint(LARGE_JOB_CHARACTERS // 20, LARGE_JOB_CHARACTERS) for _ in range(LARGE_JOBS - 1)),
    ]
    large = stage.push_many("Work", [[0, "x" * size] for size in sizes])
    failing = stage.push_many("hold_and_fail", [["gate", "x" * FAILURE_CHARACTERS]] * FAILING_JOBS)
    small = stage.push_many("Work", [[0]] * SMALL_JOBS)

    with Proxy(("127.0.0.1", stage.redis.port), rate=BYTES_PER_SECOND) as line:
        cluster = stage.run_cluster("default", "-c", str(FAILING_JOBS + 2), "--redis", line.url)
        pid = cluster.wait_ready()[0]
        wait_until(
            lambda: stage.ledger.has_ended([*large, *small]), "all that do not wait to end", seconds=TIMEOUT_SECONDS
        )
        wait_until(
            lambda: stage.ledger.begun().keys() >= set(failing), "the failing ones to run", seconds=TIMEOUT_SECONDS
        )
        stage.ledger.open_gate("gate")
        wait_until(
            lambda: stage.store.call("ZCARD", "retry") == FAILING_JOBS,
            "the failures to be written",
            seconds=TIMEOUT_SECONDS,
        )
        wait_until(lambda: stage.remaining().keys() == {"retry"}, "all to be settled", seconds=TIMEOUT_SECONDS)

        assert cluster.pids() == {0: pid}
        assert cluster.stop() == 0
    audit = stage.ledger.audit([*large, *small, *failing])
    stage.report({**audit.counts(), "MB": sum(sizes) // 10**6})
    assert audit.lost == audit.strangers == audit.repeated.keys() == set()
