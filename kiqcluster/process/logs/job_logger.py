"""Job logger: a class of the application around every run, as Sidekiq's `job_logger`.

`prepare(item, proceed)` is the outer half, for a context of the log; `call(item, queue, proceed)` the inner one, for
the lines.  Both call `proceed()` once.  Each thread has an instance of its own.  What the class does wrong fails no job
that has run: it is reported, and an error of the job is raised again if `call` keeps it back.

Runs in: processor threads, as server middleware.  Counterpart: sidekiq job_logger.rb.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from kiqcluster.errors import as_exception
from kiqcluster.process.boundary.calls import name_of
from kiqcluster.process.runtime import Run, current_setup
from kiqcluster.sidekiq.outcome import Outcome
from kiqcluster.sidekiq.payload import Payload

__all__ = ["JobLogger", "JobLoggerMiddleware", "job_logger"]


class JobLogger(Protocol):
    """The two methods of a job logger.  item: the payload."""

    def prepare(self, item: Payload, proceed: Callable[[], None], /) -> object: ...

    def call(self, item: Payload, queue: str, proceed: Callable[[], None], /) -> object: ...


L = TypeVar("L", bound=type[JobLogger])


def job_logger(logger: L) -> L:
    """Have a class log every run of this process: `@job_logger class Lines: …`; it replaces an earlier one.

    kiqcluster's own lines stay: the setting log.jobs = off ends those of jobs that are done.
    """
    chain = current_setup().server_middleware
    if any(type(each) is JobLoggerMiddleware for each in chain):
        chain.remove(JobLoggerMiddleware)
    chain.prepend(JobLoggerMiddleware(logger))
    return logger


class JobLoggerMiddleware:
    """Server middleware around a job logger."""

    def __init__(self, logger: Callable[[], JobLogger]) -> None:
        self._make = logger
        self._local = threading.local()

    def __call__(self, run: Run, proceed: Callable[[], Outcome | None]) -> Outcome | None:
        job, logger = _Job(proceed), self._logger()

        def call() -> None:
            logger.call(run.payload, run.queue, job)

        try:
            self._call(logger, run, call, job)
            if not job.has_run:
                raise RuntimeError(f"{name_of(self._make)} has not called proceed(), so the job has not run")
            if job.error is not None:
                raise job.error
            return job.outcome
        finally:
            job.error = None  # it has frames that have the job

    def _call(self, logger: JobLogger, run: Run, call: Callable[[], None], job: _Job) -> None:
        try:
            logger.prepare(run.payload, call)
        except BaseException as raised:
            if not job.has_run or raised is job.error:
                raise
            current_setup().notify_error_handlers(as_exception(raised), {"context": "job_logger"})

    def _logger(self) -> JobLogger:
        """Return the instance of this thread."""
        logger: JobLogger | None = getattr(self._local, "logger", None)
        if logger is None:
            logger = self._local.logger = self._make()
        return logger


class _Job:
    """The rest of the chain, as a job logger calls it."""

    def __init__(self, proceed: Callable[[], Outcome | None]) -> None:
        self._proceed = proceed
        self.has_run = False
        self.outcome: Outcome | None = None
        self.error: BaseException | None = None

    def __call__(self) -> None:
        if self.has_run:
            raise RuntimeError("proceed() is called once; the job has run")
        self.has_run = True
        try:
            self.outcome = self._proceed()
        except BaseException as error:
            self.error = error
            raise
