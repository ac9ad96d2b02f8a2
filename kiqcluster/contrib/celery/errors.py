"""Errors of the Celery compatibility layer, and those that a task of Celery raises or catches."""

from __future__ import annotations

from kiqcluster.errors import JobTimedOut, KiqError, PushError, RetryError

__all__ = [
    "MaxRetriesExceededError",
    "PushStopped",
    "Retry",
    "SoftTimeLimitExceeded",
    "Unsupported",
    "UnsupportedAttribute",
]

SoftTimeLimitExceeded = JobTimedOut  # raised by current_job().check_timeout(), never from outside


class Unsupported(KiqError):
    """The code uses a part of Celery that has no effect here; the message names the counterpart."""


class UnsupportedAttribute(Unsupported, AttributeError):
    """The same for an attribute of an object, so that hasattr(…), and getattr(…) with a default, take it for absent."""


class MaxRetriesExceededError(KiqError):
    """A task asked for a retry, and has none left."""


class PushStopped(PushError):
    """A client middleware stopped the push: there is no job, and so no result to return."""


class Retry(RetryError):
    """A task asked for a retry.  seconds: until then; None for the delay of the task.  exc: the reason, if given."""

    def __init__(self, message: str, seconds: float | None = None, exc: BaseException | None = None) -> None:
        super().__init__(message)
        self.seconds = seconds
        self.exc = exc
