"""The testing kit: for tests of applications, and our own.

modes         fake, inline, real; functions for the current mode: assert_enqueued, drain, …
  memory      their implementation    jobs: the jobs in it    running: a worker's Execution, without Redis
clock         a frozen clock
idempotency   run_twice
declarations  removes jobs and middleware after a test
server        a private Redis server    cluster: a real cluster    waiting: for a state, with a deadline

_kiqcluster_pytest.py, beside the package, has fixtures for all of it; pytest finds it by itself.  Only that module
imports pytest: the others work with any test runner.
"""

from kiqcluster.testing.clock import FrozenClock, frozen_clock
from kiqcluster.testing.cluster import Cluster
from kiqcluster.testing.declarations import forgetting_declarations, forgetting_local_jobs
from kiqcluster.testing.idempotency import run_twice
from kiqcluster.testing.jobs import EnqueuedJob, PerformedJob
from kiqcluster.testing.memory import Fake, Inline
from kiqcluster.testing.modes import (
    assert_enqueued,
    current_fake,
    dead,
    drain,
    enqueued,
    fake,
    inline,
    performed,
    real,
    refute_enqueued,
    retries,
)
from kiqcluster.testing.server import RedisServer
from kiqcluster.testing.waiting import wait_until

__all__ = [
    "Cluster",
    "EnqueuedJob",
    "Fake",
    "FrozenClock",
    "Inline",
    "PerformedJob",
    "RedisServer",
    "assert_enqueued",
    "current_fake",
    "dead",
    "drain",
    "enqueued",
    "fake",
    "forgetting_declarations",
    "forgetting_local_jobs",
    "frozen_clock",
    "inline",
    "performed",
    "real",
    "refute_enqueued",
    "retries",
    "run_twice",
    "wait_until",
]
