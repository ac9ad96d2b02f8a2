"""Declare: the options of a Celery task → options of a job, and the rule by which the task is retried.  Pure.

options_of    checks the options; one that has no effect here raises Unsupported
Retries       which failures are retried, and after how many seconds
rate_limit    "10/m" → a rate limit of the fleet
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, TypedDict

from kiqcluster import limits
from kiqcluster.contrib.celery.catalogue import DECLARATION, find, refusal
from kiqcluster.contrib.celery.errors import MaxRetriesExceededError, Retry, Unsupported
from kiqcluster.contrib.celery.settings import accepts
from kiqcluster.errors import CannotRun, JobTimedOut
from kiqcluster.sidekiq.outcome import KILL

__all__ = ["RESULT_SECONDS", "Declared", "Retries", "TaskOptions", "options_of", "rate_limit"]

RESULT_SECONDS = 86_400  # that a result is kept, as in Celery
MAX_RETRIES, RETRY_SECONDS, MAX_BACKOFF_SECONDS = 3, 180.0, 600.0  # Celery's defaults
NO_END = 2**31 - 1  # retries of max_retries=None
AT_ONCE_SECONDS = 0.001  # a hook that answers 0 would get the usual delay
PERIODS = {"s": 1, "m": 60, "h": 3_600}
IGNORED_WHEN_FALSE = frozenset({"track_started", "store_errors_even_if_ignored", "pydantic"})
RETRY_KEYWORDS = frozenset({"max_retries", "countdown"})


class TaskOptions(TypedDict, total=False):
    """Options of @shared_task and @app.task that work."""

    name: str | None
    queue: str | None
    max_retries: int | None
    default_retry_delay: float
    autoretry_for: tuple[type[BaseException], ...]
    dont_autoretry_for: tuple[type[BaseException], ...]
    retry_kwargs: Mapping[str, float | None]
    retry_backoff: bool | int
    retry_backoff_max: float
    retry_jitter: Literal[True]
    acks_late: Literal[True]
    acks_on_failure_or_timeout: Literal[True]
    reject_on_worker_lost: Literal[True]
    rate_limit: str | float | None
    time_limit: float | None
    soft_time_limit: float | None
    ignore_result: bool
    expires: float | None
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
        if isinstance(error, Retry):
            return max(AT_ONCE_SECONDS, self.seconds if error.seconds is None else error.seconds)
        if self.max_retries is not None and count >= self.max_retries:  # a payload pushed elsewhere may allow more
            return KILL
        is_final = isinstance(error, MaxRetriesExceededError | CannotRun)
        is_killed = isinstance(error, JobTimedOut) and error.option == "timeout_hard"
        if is_final or is_killed or not isinstance(error, self.retried) or isinstance(error, self.excepted):
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
        _check(name, key, value)
    retries = _retries(name, options)
    job: dict[str, Any] = {
        "retry": NO_END if retries.max_retries is None else retries.max_retries,
        "retry_in": retries.retry_in,
    }
    for theirs, ours in (
        ("queue", "queue"),
        ("expires", "expires_in"),
        ("time_limit", "timeout_hard"),
        ("soft_time_limit", "timeout"),
    ):
        if options.get(theirs) is not None:
            job[ours] = options[theirs]
    if options.get("rate_limit"):
        job["rate_limit"] = rate_limit(name, options["rate_limit"])
    if not options.get("ignore_result"):
        job["result_ttl"] = options.get("result_expires") or RESULT_SECONDS
    return Declared(job, retries)


def _check(name: str, key: str, value: Any) -> None:
    if key == "result_expires" or (key in IGNORED_WHEN_FALSE and not value):
        return
    is_known = key in TaskOptions.__annotations__
    if not is_known or find(DECLARATION, key).verdict == "none":
        raise refusal(DECLARATION, key, name)
    if (reason := accepts(key, value)) is not None:
        raise Unsupported(f"{name}: {reason}")
    _check_finite(name, key, value)


def _check_finite(name: str, key: str, value: Any) -> None:
    if isinstance(value, float) and not isfinite(value):
        raise Unsupported(f"{name}: {key} = {value!r} does not fit; it takes a finite number")


def _retries(name: str, options: Mapping[str, Any]) -> Retries:
    keywords: Mapping[str, Any] = options.get("retry_kwargs") or {}
    if unknown := sorted(keywords.keys() - RETRY_KEYWORDS):
        raise Unsupported(f"{name}: retry_kwargs takes max_retries and countdown, not {unknown[0]}")
    for key, value in keywords.items():
        _check_finite(name, f"retry_kwargs[{key!r}]", value)
    retried = tuple(options.get("autoretry_for") or ())
    for key in ("retry_kwargs", "retry_backoff", "dont_autoretry_for"):
        if options.get(key) and not retried:
            raise Unsupported(f"{name}: {key} has no effect without autoretry_for; name the errors that are retried")
    most = keywords.get("max_retries", options.get("max_retries", MAX_RETRIES))
    return Retries(
        max_retries=most,
        seconds=float(options.get("default_retry_delay", RETRY_SECONDS)),
        retried=retried,
        excepted=tuple(options.get("dont_autoretry_for") or ()),
        automatic_seconds=keywords.get("countdown"),
        backoff=float(options.get("retry_backoff") or 0),
        max_backoff=float(options.get("retry_backoff_max", MAX_BACKOFF_SECONDS)),
    )


def rate_limit(name: str, text: str | float) -> limits.RateLimit:
    """Return the limit of "10/m", "5/s", "100/h", or of a number of starts a second.  Raises Unsupported."""
    number, _, period = str(text).partition("/")
    try:
        count = float(number)
    except ValueError:
        count = 0
    seconds: float = PERIODS.get(period or "s", 0)
    if 0 < count < 1:  # 0.5/s: one in two seconds
        count, seconds = 1, seconds / count
    if not (count > 0 and seconds > 0 and isfinite(count) and isfinite(seconds)):
        raise Unsupported(f"{name}: rate_limit = {text!r} does not fit; it takes a text such as '10/m'")
    return limits.sliding_window(int(count), seconds)
