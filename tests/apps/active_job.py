"""Jobs that a Rails application has, or enqueues.  What they received goes to the list `echoes`, as Python shows it."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from kiqcluster import Job, current_job, job
from kiqcluster.process.runtime import current_setup


def echo(*args: Any) -> None:
    running = current_job()
    assert running is not None
    facts = {"by": "python", "jid": running.jid, "name": running.name, "received": repr(args)}
    current_setup().current_store().call("RPUSH", "echoes", json.dumps(facts))


class SampleJob(Job, active_job=True):
    def perform(self, *args: Any, **keywords: Any) -> None:
        echo(args, keywords)


@job(name="StrictJob", active_job=True)
def strict(order: int, *, currency: str, note: str = "none") -> None:
    echo(order, currency, note)


@job(name="RemindJob", active_job=True, queue="reminders")
def remind(customer: int, after: timedelta) -> None:
    echo(customer, after)


@job(name="FragileJob", active_job=True)
def fragile(*args: Any) -> None:
    raise ValueError("broken in Python ✗")


@job(name="HoldJob", active_job=True)
def hold(word: str) -> None:
    """Runs until the list `release` has something for it, or long enough for a test to look."""
    running = current_job()
    assert running is not None
    store = current_setup().current_store()
    store.call("RPUSH", "began", running.jid)
    store.call("BLPOP", "release", 4)
