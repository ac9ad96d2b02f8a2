"""Jobs of a fleet of Python and Ruby: tests/interop/ruby/mixed.rb has the same.  Their ledger is in tests/chaos."""

from __future__ import annotations

import time

from kiqcluster import current_job, job
from tests.chaos.ledger import write


class Unready(Exception):
    """A first attempt."""


@job(name="Work")
def work(milliseconds: float) -> None:
    run(milliseconds)


@job(name="Flaky", retry=5)
def flaky(milliseconds: float) -> None:
    """Fails once, and is retried."""
    run(milliseconds, fails=True)


@job(name="Doomed", retry=0)
def doomed(milliseconds: float) -> None:
    """Fails once, and is dead until somebody revives it."""
    run(milliseconds, fails=True)


def run(milliseconds: float, *, fails: bool = False) -> None:
    running = current_job()
    assert running is not None
    write("begin", running.jid)
    time.sleep(milliseconds / 1_000)
    if fails and "failed_at" not in running.payload:
        raise Unready(running.jid)
    write("end", running.jid)
