"""A job of limited capacity: its work is in the list `work`, and what is done in the list `ledger`."""

from __future__ import annotations

import time

from prometheus_client import Gauge

from kiqcluster import job
from kiqcluster.limited_capacity import LimitedCapacityJob
from kiqcluster.process.runtime import current_setup
from tests.apps.basic import note
from tests.apps.counting import counted

MOST = 2


def call(*words: str | int) -> object:
    return current_setup().current_store().call(*words)


class Drain(LimitedCapacityJob, queue="default"):
    def max_running_jobs(self) -> int:
        return MOST

    def remaining_work_count(self) -> int:
        return int(str(call("LLEN", "work")))

    def perform_work(self) -> None:
        """Take an item, and work on it until the key `open` exists."""
        with counted("Drain") as running:
            item = call("LPOP", "work")
            if item is None:
                return
            assert isinstance(item, bytes)
            call("RPUSH", "taken", item)
            while not call("EXISTS", "open"):
                time.sleep(0.005)
            time.sleep(0.005)
        note("did", item.decode(), "beside", running - 1)


REMAINING = Gauge("drain_remaining_work_count", "Items to take", multiprocess_mode="mostrecent")
REMAINING.set_function(lambda: Drain().remaining_work_count())


@job(queue="starts")
def start() -> None:
    Drain.perform_with_capacity()
    note("started")
