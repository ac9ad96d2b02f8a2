"""Web processes, relays and workers are killed: each committed order is shipped once, and no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
import pytest
import sqlalchemy as sql

from kiqcluster.api import DeadSet, RetrySet
from kiqcluster.contrib.sqlalchemy import metadata
from tests.chaos.scale import MOST_KILLS, sized
from tests.chaos.stage import ChaosStage
from tests.kit import PAUSE, ROOT, Cluster, is_alive, wait_until
from tests.proc import kill

# In the short form: process/test_outbox.py kills a relay at each step.
pytestmark = pytest.mark.full

ORDERS = sized(300, 10_000)
KILL_INTERVAL_SECONDS = 0.3
TIMEOUT_SECONDS = sized(50, 1_800)
APP = "tests.apps.shipped"
TABLES = (
    "DROP TABLE IF EXISTS orders",
    "DROP TABLE IF EXISTS shipments",
    "CREATE TABLE orders (id TEXT PRIMARY KEY)",
    "CREATE TABLE shipments (id SERIAL PRIMARY KEY, order_id TEXT)",
)


@contextmanager
def process(environ: dict[str, str], *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a part of the application, with its forks."""
    started = subprocess.Popen([sys.executable, "-m", APP, *words], cwd=ROOT, env={**os.environ, **environ})
    try:
        yield started
    finally:
        left = forks(started)
        started.kill()  # first, or it would fork again
        started.wait(20)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def forks(parent: subprocess.Popen[bytes]) -> list[int]:
    if parent.poll() is not None:
        return []
    return [child.pid for child in psutil.Process(parent.pid).children()]


def strike(stage: ChaosStage, kinds: dict[str, list[int]], kills: Counter[str]) -> None:
    """Kill a process of one kind."""
    kind = stage.rng.choice(sorted(kinds))
    victims = [pid for pid in kinds[kind] if is_alive(pid)]
    if victims:
        kills[kind] += kill(stage.rng.choice(victims))


def column(engine: sql.Engine, query: str) -> Counter[str]:
    with engine.connect() as connection:
        return Counter(row[0] for row in connection.exec_driver_sql(query))


def victims(cluster: Cluster, web: subprocess.Popen[bytes], relay: subprocess.Popen[bytes]) -> dict[str, list[int]]:
    return {"web": forks(web), "relay": forks(relay), "worker": sorted(cluster.pids().values())}


def test_each_committed_order_is_shipped_once_whatever_is_killed(stage: ChaosStage, postgres: str) -> None:
    engine = sql.create_engine(postgres)
    metadata.drop_all(engine)
    metadata.create_all(engine)
    with engine.begin() as connection:
        for statement in TABLES:
            connection.exec_driver_sql(statement)
    environ = {"SHIPPED_DATABASE": postgres, "REDIS_URL": stage.redis.url}
    cluster = stage.run_cluster("default", "default", "-c", "4", app=APP, **environ)
    cluster.wait_ready(2)
    kills: Counter[str] = Counter()

    def is_over() -> bool:
        RetrySet(store=stage.store).add_all_to_queue()  # their time would be seconds away
        DeadSet(store=stage.store).add_all_to_queue()  # so many of their processes died
        if web.poll() is None:
            PAUSE.wait(KILL_INTERVAL_SECONDS)
            if kills.total() < MOST_KILLS:
                strike(stage, victims(cluster, web, relay), kills)
            return False
        is_empty = not column(engine, "SELECT jid FROM kiq_outbox")
        return is_empty and not any(stage.remaining().values())

    with process(environ, "web", str(ORDERS)) as web, process(environ, "relay") as relay:
        wait_until(is_over, "all jobs to have run", TIMEOUT_SECONDS)
    cluster.close()

    orders = column(engine, "SELECT id FROM orders")
    shipments = column(engine, "SELECT order_id FROM shipments")
    stage.report({"orders": len(orders), **{f"killed {kind}": number for kind, number in kills.items()}})
    engine.dispose()
    assert len(orders) >= ORDERS
    assert shipments == orders
