"""Declare: the options of a Celery task → options of a job, and the rule by which the task is retried.  Pure.

options_of    checks the options by the rules; one that has no effect here raises Unsupported
Retries       which failures are retried, and after how many seconds
rate_limit    "10/m" → a rate limit of the fleet
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypedDict

from kiqcluster import limits
from kiqcluster.contrib.celery.catalogue import DECLARATION, find, refusal
from kiqcluster.contrib.celery.errors import MaxRetriesExceededError, Retry, Unsupported
from kiqcluster.contrib.celery.requests import ASKED
from kiqcluster.contrib.celery.rules import (
    IGNORED_WHEN_FALSE,
    MAX_RETRIES,
    most_retries,
    of_declaration,
    rate_of,
    seconds_of,
)
from kiqcluster.errors import CannotRun, JobTimedOut
from kiqcluster.process.boundary.calls import is_a
from kiqcluster.sidekiq.outcome import KILL, Exactly

__all__ = ["RESULT_SECONDS", "Declared", "Retries", "TaskOptions", "options_of", "rate_limit"]

RESULT_SECONDS = 86_400  # that a result is kept, as in Celery
RETRY_SECONDS, MAX_BACKOFF_SECONDS = 180.0, 600.0  # Celery's defaults
NO_END = 2**31 - 1  # retries of max_retries=None
AT_ONCE_SECONDS = 0.001  # a hook that answers 0 would get the usual delay


class TaskOptions(TypedDict, total=False):
    """Options of @shared_task and @app.task that work."""

    name: str | None
    queue: str | None
    max_retries: int | None
    default_retry_delay: float | timedelta
    autoretry_for: tuple[type[BaseException], ...]
    dont_autoretry_for: tuple[type[BaseException], ...]
    retry_kwargs: Mapping[str, float | timedelta | None]
    retry_backoff: bool | int
    retry_backoff_max: float | timedelta
    retry_jitter: Literal[True]
    acks_late: Literal[True]
    acks_on_failure_or_timeout: Literal[True]
    reject_on_worker_lost: Literal[True]
    rate_limit: str | float | None
    time_limit: float | timedelta | None
    soft_time_limit: float | timedelta | None
    ignore_result: bool
    expires: float | timedelta | None
    serializer: Literal["json"]
    typing: Literal[True]


@dataclass(frozen=True, slots=True)
class Retries:
    """How a task is retried.  max_retries: None for no limit.  backoff: factor of the exponential delay, 0 for none."""

    max_retries: int | None = MAX_RETRIES
    seconds: float = RETRY_SECONDS
    retried: tuple[type[BaseException], ...] = ()
    excepted: tuple[type[BaseException], ...] = ()
    automatic_seconds: float | None = None
    backoff: float = 0
    max_backoff: float = MAX_BACKOFF_SECONDS

    def retry_in(self, count: int, error: BaseException, _payload: object = None) -> Any:
        """Return the seconds until the next attempt, or KILL for a failure that Celery would not retry.

        count: failures before this one.  The hook of the job.
        """
        asked = error if is_a(error, Retry) else ASKED.get()
        if isinstance(asked, Retry) or (asked is not None and asked.message):  # Celery has pushed it by now
            return Exactly(max(AT_ONCE_SECONDS, self.seconds if asked.seconds is None else asked.seconds))
        if self.max_retries is not None and count >= self.max_retries:  # a payload pushed elsewhere may allow more
            return KILL
        is_final = is_a(error, (MaxRetriesExceededError, CannotRun))
        is_killed = is_a(error, JobTimedOut) and error.option == "timeout_hard"
        if is_final or is_killed or not is_a(error, self.retried) or is_a(error, self.excepted):
            return KILL
        if self.backoff:
            return max(AT_ONCE_SECONDS, min(self.max_backoff, self.backoff * 2 ** min(count, 64)))
        return max(AT_ONCE_SECONDS, self.seconds if self.automatic_seconds is None else self.automatic_seconds)


@dataclass(frozen=True, slots=True)
class Declared:
    """A task as it is declared: the options of its job, and its retries."""

    options: dict[str, Any]
    retries: Retries


def options_of(name: str, options: Mapping[str, Any]) -> Declared:
    """Return what the options of a task mean here.  Raises Unsupported for one that would have no effect."""
    for key, value in options.items():
        _check_name(name, key, value)
    for refused in of_declaration({**options, "name": name}):
        raise Unsupported(f"{name}: {refused.reason}")
    retries = _retries(options)
    job: dict[str, Any] = {
        "retry": NO_END if retries.max_retries is None else retries.max_retries,
        "retry_in": retries.retry_in,
    }
    for theirs, ours in (("expires", "expires_in"), ("time_limit", "timeout_hard"), ("soft_time_limit", "timeout")):
        if (seconds := seconds_of(options.get(theirs))) is not None:
            job[ours] = seconds
    if options.get("queue") is not None:
        job["queue"] = options["queue"]
    if (limit := rate_of(options.get("rate_limit"))) is not None:
        job["rate_limit"] = limit
    if not options.get("ignore_result"):
        job["result_ttl"] = int(_seconds(options, "result_expires", RESULT_SECONDS))
    return Declared(job, retries)


def _check_name(name: str, key: str, value: Any) -> None:
    if key == "result_expires" or (key in IGNORED_WHEN_FALSE and not value):
        return
    is_known = key in TaskOptions.__annotations__
    if not is_known or find(DECLARATION, key).verdict == "none":
        raise refusal(DECLARATION, key, name)


def _retries(options: Mapping[str, Any]) -> Retries:
    keywords: Mapping[str, Any] = options.get("retry_kwargs") or {}
    return Retries(
        max_retries=most_retries(options),
        seconds=_seconds(options, "default_retry_delay", RETRY_SECONDS),
        retried=tuple(options.get("autoretry_for") or ()),
        excepted=tuple(options.get("dont_autoretry_for") or ()),
        automatic_seconds=seconds_of(keywords.get("countdown")),
        backoff=float(options.get("retry_backoff") or 0),
        max_backoff=_seconds(options, "retry_backoff_max", MAX_BACKOFF_SECONDS),
    )


def _seconds(options: Mapping[str, Any], key: str, default: float) -> float:
    """Return the seconds of an option that has passed the rules."""
    seconds = seconds_of(options.get(key))
    return default if seconds is None else float(seconds)


def rate_limit(name: str, text: str | float) -> limits.RateLimit | None:
    """Return the limit of a rate, None for none.  Raises Unsupported for a text that is no rate."""
    for refused in of_declaration({"rate_limit": text}):
        raise Unsupported(f"{name}: {refused.reason}")
    return rate_of(text)
