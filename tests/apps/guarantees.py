"""Jobs that use the guarantees of docs/guarantees.md together, each in another mixture."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from kiqcluster import RetryError, current_job, job, limits
from kiqcluster.process.runtime import current_setup
from tests.apps.basic import note
from tests.apps.counting import counted
from tests.chaos.ledger import noted

EXPORTS_AT_ONCE = 2  # for each account
SYNCS_PER_SECOND = 40

__all__ = ["EXPORTS_AT_ONCE", "SYNCS_PER_SECOND", "deliver", "export", "hang", "refresh", "sync"]


@contextmanager
def watched(line: str, milliseconds: float) -> Iterator[None]:
    """Note begin and end, and how many jobs of the line run; take a while."""
    with noted(), counted(line) as running:
        note("began", line, current_setup().current_store().call("INCR", "clock"), running)
        time.sleep(milliseconds / 1_000)
        yield


@job(
    name="Refresh",
    deduplicate="until_executed",
    deduplicate_key=lambda page, *_: page,
    reschedule_once=True,
    concurrency_limit=3,
    expires_in=3_600,
    version=2,
)
def refresh(page: str, milliseconds: float, ballast: str = "") -> None:
    """One for each page at a time; no push of a page is in vain."""
    with watched(f"refresh:{page}", milliseconds):
        pass


@job(
    name="Export",
    concurrency_limit=EXPORTS_AT_ONCE,
    concurrency_key=lambda account, *_: account,
    deduplicate="while_executing",
    encrypt=True,
    retry_in=lambda *_: 0.05,
)
def export(account: str, milliseconds: float, ballast: str = "") -> None:
    """So many for each account, not two of the same arguments, and each fails the first time."""
    with watched(f"export:{account}", milliseconds):
        running = current_job()
        if running is not None and "retry_count" not in running.payload:
            raise RetryError("the first try")


@job(
    name="Hang",
    timeout_hard=0.2,
    concurrency_limit=1,
    deduplicate="until_executed",
    retry_in=lambda *_: 0.05,
)
def hang(word: str, milliseconds: float, ballast: str = "") -> None:
    """The first run ends with its process, and the second one in time."""
    with watched("hang", milliseconds):
        running = current_job()
        if running is not None and "retry_count" not in running.payload:
            time.sleep(600)


@job(name="Sync", rate_limit=limits.sliding_window(SYNCS_PER_SECOND, 1), concurrency_limit="50%")
def sync(word: str, milliseconds: float, ballast: str = "") -> None:
    """So many a second, in half of the fleet's threads."""
    with watched("sync", milliseconds):
        pass


@job(
    name="Deliver",
    deduplicate="until_executing",
    deduplicate_scheduled=True,
    rate_limit=limits.leaky_bucket(20, per_second=200),
)
def deliver(address: str, milliseconds: float, ballast: str = "") -> None:
    """A push that comes before this has begun is dropped."""
    with watched(f"deliver:{address}", milliseconds):
        pass
