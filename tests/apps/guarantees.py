"""Jobs that use the guarantees of docs/concepts/limits.md together, each in another mixture.

Each run writes to a file what it is and when it began and ended (tests/chaos/runs.py); no Redis can lose that.
A job takes its subject, how long it runs, and a text of any length.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kiqcluster import Job, RetryError, Run, current_job, error_handler, job, limits
from kiqcluster.limited_capacity import LimitedCapacityJob
from kiqcluster.policies import Defer, Drop
from tests.chaos import runs
from tests.chaos.ledger import VARIABLE, noted

RETRY = {"retry_in": lambda *_: 0.05}
REFRESHES, EXPORTS, SWEEPS, CLEANERS, REPORTS, PRINTERS = 3, 2, 2, 3, 2, 2  # at once
SYNCS, COUNTS, CALLS = (5, 1.0), (5, 1.0), (5, 10.0)  # starts in so many seconds; CALLS: a burst, and then a second
DELIVERIES = (5, 20.0)  # the same
SYNC_SHARE = 0.1  # of the fleet's threads
SECONDS, HARD_SECONDS = 0.15, 0.3  # timeouts
DEFERRAL_SECONDS = 0.2
MAX_DEATHS = 3
PAUSED, WORK = "paused", "work"  # in the folder of the ledger: a file while Sweep is paused, pieces of CleanUp's work


def folder() -> Path:
    return Path(os.environ[VARIABLE]).parent


@contextmanager
def watched(milliseconds: float, *lines: str, text: str = "") -> Iterator[bool]:
    """Note begin and end, take a while, and give whether this is the first try.  lines: limits that count the run."""
    running = current_job()
    assert running is not None
    payload = running.payload
    facts = {
        "name": running.name,
        "queue": running.queue,
        "slot": os.environ["KIQ_SLOT"],
        "subject": str(payload["args"][0]),
        "text": runs.digest_of(text),
        "deferred_by": payload.get("deferred_by"),
        "correlation_id": running.correlation_id,
        "caller": running.meta.get("caller_id"),
        "expiry": payload.get("expiry"),
    }
    with noted(), runs.noted(*lines, **facts):
        time.sleep(milliseconds / 1_000)
        yield "retry_count" not in payload


@error_handler
def told(error: Exception, _: Any) -> None:
    """Note the class of each error that handlers are told of."""
    runs.write("told", error=type(error).__name__)


@job(
    name="Refresh",
    urgency="high",
    deduplicate="until_executed",
    deduplicate_key=lambda page, *_: page,
    reschedule_once=True,
    concurrency_limit=REFRESHES,
    expires_in=3_600,
    version=2,
    **RETRY,
)
def refresh(page: str, milliseconds: float, text: str = "") -> None:
    """One for each page at a time; no push of a page is in vain."""
    with watched(milliseconds, "refresh", f"refresh:{page}", text=text):
        pass


@job(
    name="Export",
    concurrency_limit=EXPORTS,
    concurrency_key=lambda account, *_: account,
    deduplicate="while_executing",
    deduplicate_key=lambda account, milliseconds, *_: f"{account} {milliseconds}",
    encrypt=True,
    **RETRY,
)
def export(account: str, milliseconds: float, text: str = "") -> None:
    """So many for each account, not two of the same arguments, and each fails the first time."""
    with watched(milliseconds, f"export:{account}", f"export:{account}:{milliseconds}", text=text) as is_first:
        if is_first:
            raise RetryError("the first try")


@job(name="Hang", timeout_hard=HARD_SECONDS, concurrency_limit=1, deduplicate="until_executed", **RETRY)
def hang(word: str, milliseconds: float, text: str = "") -> None:
    """The first run ends with its process, and the second one in time."""
    with watched(milliseconds, "hang", text=text) as is_first:
        if is_first:
            time.sleep(600)


@job(name="Slow", timeout=SECONDS, **RETRY)
def slow(word: str, milliseconds: float, text: str = "") -> None:
    """The first run ends itself when it is told that its time is over."""
    with watched(milliseconds, text=text) as is_first:
        running = current_job()
        while is_first and running is not None:
            time.sleep(0.01)
            running.check_timeout()


@job(name="Sync", rate_limit=limits.sliding_window(*SYNCS), concurrency_limit=f"{SYNC_SHARE:.0%}", **RETRY)
def sync(word: str, milliseconds: float, text: str = "") -> None:
    """So many a second, in a part of the fleet's threads."""
    with watched(milliseconds, "sync", text=text):
        pass


@job(name="Count", rate_limit=limits.fixed_window(*COUNTS), **RETRY)
def count(word: str, milliseconds: float, text: str = "") -> None:
    """So many in each second of the clock."""
    with watched(milliseconds, "count", text=text):
        pass


@job(
    name="Deliver",
    deduplicate="until_executing",
    deduplicate_scheduled=True,
    rate_limit=limits.leaky_bucket(DELIVERIES[0], per_second=DELIVERIES[1]),
    **RETRY,
)
def deliver(address: str, milliseconds: float, text: str = "") -> None:
    """A push that comes before this has begun is dropped."""
    with watched(milliseconds, "deliver", text=text):
        pass


@job(name="Call", **RETRY)
def call(word: str, milliseconds: float, text: str = "") -> None:
    """Asks for a start and for a place inside of its run."""
    with (
        limits.leaky_bucket(CALLS[0], per_second=CALLS[1], name="crm"),
        limits.concurrent(PRINTERS, wait=0.5, delay=0.2, name="printer"),
        watched(milliseconds, "call", "printer", text=text),
    ):
        pass


def decide(run: Run) -> Defer | Drop | None:
    """Drop what has the word `never`, and defer once what has the word `later`."""
    subject = str(run.payload["args"][0])
    if "never" in subject:
        return Drop("maintenance")
    return Defer(DEFERRAL_SECONDS, "maintenance") if "later" in subject and "deferred_by" not in run.payload else None


@job(
    name="Rebuild",
    deduplicate="until_and_while_executing",
    deduplicate_key=lambda index, *_: index,
    policy=decide,
    **RETRY,
)
def rebuild(index: str, milliseconds: float, text: str = "") -> None:
    """One of each index runs, and one waits."""
    with watched(milliseconds, f"rebuild:{index}", text=text):
        pass


@job(name="Mail", **RETRY)
def mail(customer: str, milliseconds: float, text: str = "") -> None:
    """Strikes are about some customers."""
    with watched(milliseconds, text=text):
        pass


@job(name="Offer", expires_in=1.0, **RETRY)
def offer(customer: str, milliseconds: float, text: str = "") -> None:
    """Begins within a second, or never."""
    with watched(milliseconds, text=text):
        pass


@job(name="Upgrade", version=2, **RETRY)
def upgrade(word: str, milliseconds: float, text: str = "") -> None:
    """A newer release pushes some of these."""
    with watched(milliseconds, text=text):
        pass


class Poison(Job, name="Poison", max_retries_after_interruption=MAX_DEATHS):
    """Kills its process, until it is given up."""

    def perform(self, word: str, milliseconds: float, text: str = "") -> None:
        with watched(milliseconds, text=text):
            os.kill(os.getpid(), signal.SIGKILL)

    def interruptions_exhausted(self, payload: dict[str, Any], error: Exception) -> None:
        runs.write("exhausted", jid=payload["jid"])


@job(name="Sweep", concurrency_limit=lambda: -1 if (folder() / PAUSED).exists() else SWEEPS, **RETRY)
def sweep(word: str, milliseconds: float, text: str = "") -> None:
    """Its limit is a function, and negative while a file is there."""
    with watched(milliseconds, "sweep", text=text):
        pass


@job(name="Report", tags=["far"], concurrency_limit=REPORTS, **RETRY)
def report(word: str, milliseconds: float, text: str = "") -> None:
    """Runs in the other shard, and pushes a job to the default one."""
    running = current_job()
    assert running is not None
    with watched(milliseconds, "report", text=text):
        child.perform_async(running.jid, milliseconds)


@job(name="Child", **RETRY)
def child(parent: str, milliseconds: float, text: str = "") -> None:
    """Is pushed by another job."""
    with watched(milliseconds, text=text):
        pass


class CleanUp(LimitedCapacityJob, name="CleanUp", tags=["far"]):
    """Takes files from a folder; one that is locked is another one's, until that ends or dies."""

    def max_running_jobs(self) -> int:
        return CLEANERS

    def remaining_work_count(self) -> int:
        return sum(1 for _ in (folder() / WORK).iterdir())

    def perform_work(self) -> None:
        with watched(0, "cleanup"):
            for path in (folder() / WORK).iterdir():
                with suppress(OSError), path.open() as file:  # gone, or locked
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    time.sleep(0.01)
                    path.unlink()
                    return
