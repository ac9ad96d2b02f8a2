"""Jobs whose names Ruby knows too.  What Echo received goes to the list `echoes`, in the form of Ruby's Echo."""

from __future__ import annotations

import json
from typing import Any

from kiqcluster import Client, Job, current_job, job
from kiqcluster.process.runtime import current_setup

MAX_HOLD_SECONDS = 4  # below the time-out of a Redis call


class Echo(Job):
    def perform(self, *args: Any) -> None:
        running = current_job()
        assert running is not None
        # The standard library's JSON, so that a fault of ours cannot hide itself.
        echo = {"by": "python", "jid": running.jid, "args": args, "payload": running.payload}
        current_setup().current_store().call("RPUSH", "echoes", json.dumps(echo))


@job(name="Acme::Fragile", backtrace=True)
def fragile(*args: Any) -> None:
    """Fails until the key `mended` exists."""
    store = current_setup().current_store()
    if not store.call("EXISTS", "mended"):
        raise ValueError("broken in Python ✗")
    store.call("RPUSH", "echoes", json.dumps({"by": "python", "jid": jid(), "args": args}))


@job(name="Relay")
def relay(fails: bool, queue: str = "ruby") -> None:
    """Says what it knows of its caller, and enqueues a job of Ruby's; may fail until the key `mended` exists."""
    running, store = current_job(), current_setup().current_store()
    assert running is not None
    if fails and not store.call("EXISTS", "mended"):
        raise ValueError("broken in Python ✗")
    facts = {"locale": running.locale, "cattr": running.cattr, "correlation_id": running.correlation_id}
    store.call("RPUSH", "echoes", json.dumps({"by": "python", "jid": running.jid, **facts}))
    Client().push({"class": "Tell", "args": [], "queue": queue})


@job(retry=5)
def strict(word: str, number: int) -> None:
    """Takes two arguments, and no others."""


@job()
def hold(*args: Any) -> None:
    """Runs until the list `release` has something for it, or long enough for a test to look."""
    store = current_setup().current_store()
    store.call("RPUSH", "began", jid())
    store.call("BLPOP", "release", MAX_HOLD_SECONDS)


@job(name="Hold")
def held(*args: Any) -> None:
    """Runs as long, under a name that Ruby can have too; says so at its end like an Echo."""
    hold(*args)
    current_setup().current_store().call("RPUSH", "echoes", json.dumps({"by": "python", "jid": jid(), "args": args}))


def jid() -> str:
    running = current_job()
    assert running is not None
    return running.jid
