"""What integrations share about runs: errors that are no failures, and errors of their own that must not be the job's.

Runs in: processor threads and the event loop.
"""

from __future__ import annotations

import asyncio

from kiqcluster.errors import Interrupted, JobCancelled, NormalFailure, OverLimit
from kiqcluster.process.runtime import current_setup

__all__ = ["CANCELLED", "PUT_OFF", "SuppressErrors"]

CANCELLED = (JobCancelled, asyncio.CancelledError)
PUT_OFF = (Interrupted, OverLimit, NormalFailure)  # the run ended early, and nothing is wrong


class SuppressErrors:
    """Reports what a block raises and goes on: a library that fails is not a failure of a job.

    A job that has run would else run again, and one without retries be lost.  Never around the job itself.
    context: names the integration to error handlers.
    """

    def __init__(self, context: str) -> None:
        self._context = context

    def __enter__(self) -> None:
        return

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        current_setup().notify_error_handlers(error, {"context": self._context})
        return True
