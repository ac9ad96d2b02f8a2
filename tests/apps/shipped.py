"""An application with an outbox in the database of SHIPPED_DATABASE; what its jobs do is rows there.

python -m tests.apps.shipped web <orders>   a web process: one transaction for each order
python -m tests.apps.shipped relay          a relay without a worker
Both work in a fork, and begin again when that is killed.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from itertools import count

import sqlalchemy as sql
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from kiqcluster import job
from kiqcluster.contrib.sqlalchemy import once, outbox, use_outbox
from kiqcluster.process.runtime import current_setup

__all__ = ["Base", "Order", "Shipment", "engine", "ship"]

engine = sql.create_engine(os.environ["SHIPPED_DATABASE"], pool_pre_ping=True)
use_outbox(engine, interval=0.2)
NEVER = threading.Event()


class Base(DeclarativeBase):
    pass


class Order(Base):
    """What the web process has committed."""

    __tablename__ = "orders"
    id: Mapped[str] = mapped_column(primary_key=True)


class Shipment(Base):
    """An effect of a job."""

    __tablename__ = "shipments"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[str]


@job(retry=25)
def ship(order_id: str) -> None:
    with Session(engine) as session, session.begin():
        if once(session):
            session.add(Shipment(order_id=order_id))


def write(orders: int) -> None:
    """Write orders until that many are committed; every third is rolled back with its job."""
    for number in count():
        identifier = f"{os.getpid()}-{number}"
        with Session(engine) as session, session.begin():
            session.add(Order(id=identifier))
            outbox(session, ship).enqueue(identifier)
            session.flush()
            if number % 3 == 2:
                session.rollback()
        if number % 20 == 0 and committed() >= orders:
            return


def committed() -> int:
    with Session(engine) as session:
        return session.scalar(sql.select(sql.func.count()).select_from(Order)) or 0


def relay() -> None:
    """Relay until killed."""
    (source,) = current_setup().due_sources
    while True:
        if not source.move():
            NEVER.wait(0.05)


def keep(act: Callable[[], None]) -> None:
    """Run a function in a fork, and again in another one whenever that is killed, until it returns."""
    while True:
        pid = os.fork()
        if pid == 0:
            act()
            os._exit(0)
        if os.waitpid(pid, 0)[1] == 0:
            return


if __name__ == "__main__":
    keep(partial(write, int(sys.argv[2])) if sys.argv[1] == "web" else relay)
