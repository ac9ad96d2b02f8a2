"""Outbox and inbox with real processes: a kill at every step, workers that relay, and the command without workers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql
from sqlalchemy.orm import Session

from kiqcluster import job
from kiqcluster.application.registry import Registry, using_registry
from kiqcluster.contrib.sqlalchemy import metadata, outbox
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.config import Config
from kiqcluster.process.runtime import Setup, using_setup
from tests import forkserver
from tests.kit import ROOT, wait_until
from tests.stage import Stage

APP = "tests.apps.shipped"
RELAY_STEPS = ("locked", "pushed", "deleted", "committed")


def a_ship(order_id: str) -> None:
    """Stands for the job of the application."""


class Shop:
    """The database of the application tests/apps/shipped.py, and processes that use it."""

    def __init__(self, url: str, stage: Stage) -> None:
        self.stage = stage
        self.environ = {"SHIPPED_DATABASE": url, "REDIS_URL": stage.redis.url}
        self.engine = sql.create_engine(url)
        tables = "CREATE TABLE orders (id TEXT PRIMARY KEY)", "CREATE TABLE shipments (id {}, order_id TEXT)"
        serial = "SERIAL PRIMARY KEY" if self.engine.dialect.name == "postgresql" else "INTEGER PRIMARY KEY"
        metadata.drop_all(self.engine)
        metadata.create_all(self.engine)
        with self.engine.begin() as connection:
            for name in ("orders", "shipments"):
                connection.exec_driver_sql(f"DROP TABLE IF EXISTS {name}")
            for statement in tables:
                connection.exec_driver_sql(statement.format(serial))

    def output(self, *words: str) -> str:
        """Run Python; return what it prints."""
        done = forkserver.run([sys.executable, *words], cwd=ROOT, env={**os.environ, **self.environ}, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def write(self, *orders: str) -> None:
        """Commit orders whose jobs only a relay pushes."""
        with using_setup(Setup(store=self.stage.store, config=Config())), using_registry(Registry()):
            ship = job(name="ship")(a_ship)
            with Session(self.engine) as session, session.begin():
                outbox(session, ship, push_after_commit=False).perform_bulk([[each] for each in orders])

    def shipped(self) -> list[str]:
        with self.engine.connect() as connection:
            return sorted(row[0] for row in connection.exec_driver_sql("SELECT order_id FROM shipments"))

    def run_cluster(self, *arguments: str) -> Any:
        return self.stage.run_cluster("default", *arguments, app=APP, **self.environ)


@pytest.fixture(params=["sqlite", "postgresql"])
def shop(request: pytest.FixtureRequest, stage: Stage, tmp_path: Path) -> Iterator[Shop]:
    is_sqlite = request.param == "sqlite"
    shop = Shop(f"sqlite:///{tmp_path / 'shop.db'}" if is_sqlite else request.getfixturevalue("postgres"), stage)
    yield shop
    shop.engine.dispose()


@pytest.mark.parametrize("shop", [pytest.param("sqlite", marks=pytest.mark.full), "postgresql"], indirect=True)
def test_a_relay_and_a_web_process_are_killed_at_each_step(shop: Shop) -> None:
    found = json.loads(shop.output("-m", "tests.apps.shipped_kills"))

    jobs_in_queue = {
        # step: rows that waited after the kill, jobs that are in the queue once another relay has run
        "locked": (3, 3),
        "pushed": (3, 3 + 6),
        "deleted": (3, 3 + 6 + 6),
        "committed": (0, 3 + 6 + 6 + 3),
        "web added": (0, 18),
        "web flushed": (0, 18),
        "web committed": (1, 19),
    }
    assert found == {step: [signal.SIGKILL, *numbers] for step, numbers in jobs_in_queue.items()}
    assert len({payload["jid"] for payload in shop.stage.queued()}) == 13, "a second push has the jid of the first"

    cluster = shop.run_cluster("-c", "4")
    wait_until(lambda: not any(shop.stage.remaining().values()), "all jobs to have run")
    cluster.close()
    relayed = [f"{step} {number}" for step in RELAY_STEPS for number in range(3)]
    assert shop.shipped() == sorted([*relayed, "web committed"]), "each took effect once, however often it was pushed"


@pytest.mark.parametrize("shop", ["sqlite"], indirect=True)
def test_a_quiet_worker_goes_on_relaying(shop: Shop) -> None:
    cluster = shop.run_cluster()
    cluster.wait_ready(1)
    cluster.signal(signal.SIGTSTP)
    cluster.wait_for("worker_quiet")  # before that it would run the job
    shop.write("a")
    wait_until(lambda: shop.stage.queued(), "the job to be in its queue")
    wait_until(lambda: "kiq_outbox_rows" in cluster.metric_families(), "the gauge to be on /metrics")


def test_a_database_that_does_not_answer_delays_nothing_else(stage: Stage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql+psycopg://kiq@127.0.0.1:{silent.getsockname()[1]}/x"
        cluster = stage.run_cluster("default", app=APP, SHIPPED_DATABASE=url)
        cluster.wait_ready(1)
        connection, _ = silent.accept()  # the relay waits for an answer now
        stage.push("ship", "x", at=SystemClock.now() + 1)
        wait_until(lambda: not stage.store.call("ZCARD", "schedule"), "the poller to move the job")
        connection.close()


@pytest.mark.parametrize("shop", ["postgresql"], indirect=True)
def test_the_command_relays_until_it_is_told_to_end(shop: Shop) -> None:
    line = [sys.executable, "-m", "kiqcluster.contrib.outbox", "-r", APP, "relay"]
    relay = forkserver.Popen(line, cwd=ROOT, env={**os.environ, **shop.environ}, stderr=subprocess.DEVNULL)
    try:
        shop.write("a")
        wait_until(lambda: shop.stage.queued(), "the relay to push the job")
        relay.send_signal(signal.SIGTERM)
        assert relay.wait(20) == 0
    finally:
        relay.kill()
        relay.wait(20)
