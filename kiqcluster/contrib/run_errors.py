"""What integrations share about runs: errors that are no failures, and errors of their own that must not be the job's.

Code that runs after a job never changes its outcome: a job that is done would run again.
Runs in: processor threads and the event loop.
"""

from __future__ import annotations

import asyncio
import os

from kiqcluster.errors import Interrupted, JobCancelled, NormalFailure, OverLimit, as_exception
from kiqcluster.ipc.forks import exit_if_other_process
from kiqcluster.process.runtime import current_setup

__all__ = ["CANCELLED", "PUT_OFF", "SuppressErrors"]

CANCELLED = (JobCancelled, asyncio.CancelledError)
PUT_OFF = (Interrupted, OverLimit, NormalFailure)  # the run ended early, and nothing is wrong


class SuppressErrors:
    """Reports what a block raises and goes on: a library that fails is not a failure of a job.

    A job that has run would else run again, and one without retries be lost.  Never around the job itself.
    A library may raise anything, as in process/boundary/calls: a timeout of gevent is no Exception.  Only Ctrl-C, which
    comes to the main thread of a program that pushes, is passed on.
    context: names the integration to error handlers.
    """

    def __init__(self, context: str) -> None:
        self._context = context
        self._pid = 0  # of the process that has entered a block: the same for all its threads

    def __enter__(self) -> None:
        self._pid = os.getpid()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if error is None or issubclass(type(error), KeyboardInterrupt):
            return False
        exit_if_other_process(self._pid, error)
        current_setup().notify_error_handlers(as_exception(error), {"context": self._context})
        return True
