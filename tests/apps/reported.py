"""An application that reports to Sentry, at the address KIQ_SENTRY."""

from __future__ import annotations

import asyncio
import logging
import os

import sentry_sdk

from kiqcluster import job
from kiqcluster.contrib import sentry
from tests.apps.basic import note
from tests.apps.basic import stubborn as stubborn

sentry_sdk.init(os.environ["KIQ_SENTRY"], traces_sample_rate=1.0)
sentry.instrument()


@job(retry=False)
def failing(number: int) -> None:
    note("failing", number)
    raise ValueError(f"on purpose {number}")


def log_as_django(_payload: object, error: BaseException) -> None:
    """Log the end of a task as Django does, before the error handlers of the job are called."""
    logging.getLogger("django_tasks").error("Task failed", exc_info=error)


@job(retry=0, retries_exhausted=log_as_django)
def failing_as_task() -> None:
    note("failing as task")
    raise ValueError("on purpose, of a task")


@job(retry=False)
async def failing_async() -> None:
    await asyncio.sleep(0)
    note("failing async")
    raise ValueError("on purpose, async")
