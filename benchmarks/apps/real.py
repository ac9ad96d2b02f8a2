"""The jobs in kiqcluster, with two that do what jobs usually do: `lock` and `usual`, and a mark of each.

In a module of its own: the other runs, memory above all, do not pay for its imports.
"""

from __future__ import annotations

import json
import logging
import threading
import time

from prometheus_client import Counter

import kiqcluster
from benchmarks import ledger
from benchmarks.apps.kiqcluster import DESCRIPTION, JOBS, push, push_many

__all__ = ["DESCRIPTION", "push", "push_many"]

STEPS = 300  # of the loop of a usual job: about 20 µs


class Waits:
    """What a pool or a metric keeps of its waits, under one lock."""

    lock = threading.Lock()
    seconds = 0.0


ORDERS = Counter("orders", "Orders seen")
LOG = logging.getLogger("usual")
LOG.propagate = False


def _open_log() -> None:
    handler = logging.FileHandler("usual.log", delay=True)
    handler.setFormatter(logging.Formatter("%(levelname)s [%(asctime)s #%(process)d] %(message)s"))
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)


_open_log()


def lock() -> None:
    """Take one lock that all jobs share, and read the clock twice."""
    began = time.monotonic()
    with Waits.lock:
        Waits.seconds += time.monotonic() - began


def usual(text: str) -> None:
    """Parse the argument, count, log a line, compute for about 20 µs."""
    order = json.loads(text)
    ORDERS.inc()
    LOG.info("order %s of %s", order["id"], order["customer"])
    total = 0
    for number in range(STEPS):
        total += number * number % 7
    assert total


def mark_lock() -> None:
    ledger.write("mark")
    lock()


def mark_usual(text: str) -> None:
    ledger.write("mark")
    usual(text)


JOBS.update({function.__name__: kiqcluster.job(function) for function in (lock, usual, mark_lock, mark_usual)})
