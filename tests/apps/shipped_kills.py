"""Kills a relay and a web process at each of their steps: `python -m tests.apps.shipped_kills`.

Each dies in a fork of this process.  Prints a line of JSON: step → how the process ended, rows that waited then, and
jobs in the queue; after each step this process relays what is left.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import Any

import sqlalchemy as sql
from sqlalchemy.orm import Session

from kiqcluster.contrib.outbox import relay
from kiqcluster.contrib.outbox.sender import Sender
from kiqcluster.contrib.sqlalchemy import OutboxJob, outbox
from kiqcluster.contrib.sqlalchemy.table import SqlBatch
from kiqcluster.process.runtime import current_setup
from tests.apps.shipped import Order, engine, ship
from tests.kit import wait_until

__all__ = ["RELAY_STEPS", "WEB_STEPS"]

RELAY_STEPS = ("locked", "pushed", "deleted", "committed")
WEB_STEPS = ("web added", "web flushed", "web committed")


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def then_die(function: Callable[..., Any]) -> Callable[..., None]:
    def call(*args: Any) -> None:
        function(*args)
        die()

    return call


def relay_until(step: str) -> None:
    if step == "locked":
        relay.push = die  # type: ignore[assignment]
    elif step == "pushed":
        relay.push = then_die(relay.push)  # type: ignore[assignment]
    elif step == "deleted":
        SqlBatch.delete = then_die(SqlBatch.delete)  # type: ignore[method-assign]
    else:
        relay.Relay._report = die  # type: ignore[assignment, method-assign]
    source().move()


def write_until(step: str) -> None:
    Sender.send = lambda *_: None  # type: ignore[assignment, method-assign]  # it has not come so far
    with Session(engine) as session:
        session.add(Order(id=step))
        outbox(session, ship).enqueue(step)
        if step != "web added":
            session.flush()
        if step == "web committed":
            session.commit()
        die()


def source() -> Any:
    return current_setup().due_sources[0]


def died(step: str, act: Callable[[str], None]) -> int:
    """Return the status of a fork that acts."""
    pid = os.fork()
    if pid == 0:
        engine.dispose(close=False)
        act(step)
        os._exit(1)
    return os.waitpid(pid, 0)[1]


def count_rows() -> int:
    with Session(engine) as session:
        return session.scalar(sql.select(sql.func.count()).select_from(OutboxJob)) or 0


def is_relayed() -> bool:
    """Relay; return whether nothing waits.  A server notices a little later that the dead one's locks are free."""
    source().move()
    return not count_rows()


def observe(status: int) -> tuple[int, int, int]:
    waiting = count_rows()
    wait_until(is_relayed, "all rows to be relayed")
    return status, waiting, current_setup().current_store().call("LLEN", "queue:default")


def main() -> None:
    found = {}
    for step in RELAY_STEPS:
        with Session(engine) as session, session.begin():
            names = [[f"{step} {number}"] for number in range(3)]
            outbox(session, ship, push_after_commit=False).perform_bulk(names)
        found[step] = observe(died(step, relay_until))
    for step in WEB_STEPS:
        found[step] = observe(died(step, write_until))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
