"""Rules: which values the options and settings of Celery can have here.  Pure.

The layer raises Unsupported by these rules, and the checker reports by them.

UNREAD           stands for a value that the checker could not read; every rule accepts it
Refused          an option that cannot have its value, and the reason
of_declaration   options of @shared_task and @app.task
of_call          of apply_async and send_task
of_retry         of self.retry
of_revoke        of AsyncResult.revoke
no_expiry        whether a job can expire after some seconds
most_retries     max_retries of a declaration
of_settings      keys of app.conf, and the URLs that Celery(…) gets
seconds_of       a number or a timedelta → seconds
rate_of          "10/m" → a rate limit of the fleet
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import isfinite
from typing import Any, Final, NamedTuple

from kiqcluster import limits
from kiqcluster.application.options import OPTIONS
from kiqcluster.contrib.celery.catalogue import JSON_ONLY
from kiqcluster.contrib.celery.routes import unusable_route
from kiqcluster.errors import UsageError

__all__ = [
    "IGNORED_WHEN_FALSE",
    "MAX_RETRIES",
    "UNREAD",
    "Refused",
    "most_retries",
    "no_expiry",
    "of_call",
    "of_declaration",
    "of_retry",
    "of_revoke",
    "of_settings",
    "rate_of",
    "seconds_of",
]

MAX_RETRIES = 3  # of a task that declares no number, as in Celery
PERIODS = {"s": 1, "m": 60, "h": 3_600}
IGNORED_WHEN_FALSE = frozenset({"track_started", "store_errors_even_if_ignored", "pydantic"})  # of a declaration
REDIS_SCHEMES = ("redis://", "rediss://", "unix://", "redis+sentinel://", "redis+cluster://")
MISFIT = "{name} = {value!r} does not fit; it takes "


class _Unread:
    """The type of UNREAD."""

    def __repr__(self) -> str:
        return "…"


UNREAD: Final = _Unread()


class Refused(NamedTuple):
    """An option that cannot have its value.  reason: names the option."""

    option: str
    reason: str


@dataclass(frozen=True, slots=True)
class Kind:
    """The values that an option takes.  text: the reason for any other, with {name} and {value!r}."""

    takes: Callable[[Any], bool]
    text: str

    @property
    def or_none(self) -> Kind:
        return Kind(lambda value: value is None or self.takes(value), self.text)


def seconds_of(value: Any) -> float | None:
    """Return the seconds of a number or a timedelta, None for anything else, infinity included."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if isfinite(value) else None
    except OverflowError:  # an integer beyond the floats
        return None


def rate_of(value: Any) -> limits.RateLimit | None:
    """Return the limit of "10/m", "5/s", "100/h", or of a number of starts a second; None for 0, which is no limit.

    A fraction has a window of another length, since starts are whole: "2.5/s" is 2 in 0.8 s, "0.5/s" 1 in 2 s.
    Raises ValueError for a value that is no rate.
    """
    if not value:
        return None
    number, slash, period = str(value).partition("/")
    count = float(number)
    seconds = PERIODS[period if slash else "s"] if not slash or period in PERIODS else 0
    if isinstance(value, bool) or not (count >= 0 and isfinite(count) and seconds):
        raise ValueError(f"{value!r} is no rate")
    if count == 0:
        return None
    starts = max(1, int(count))
    try:
        return limits.sliding_window(starts, seconds * starts / count)
    except UsageError as error:
        raise ValueError(f"{value!r} is beyond what a limit can count") from error


def _is_rate(value: Any) -> bool:
    try:
        rate_of(value)
    except ValueError:
        return False
    return True


def _is_json(value: Any) -> bool:
    return value in ("json", "application/json")


def _is_redis(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(REDIS_SCHEMES)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_error(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def _is_ttl(value: Any) -> bool:
    seconds = seconds_of(value)
    return seconds is not None and seconds == int(seconds) and OPTIONS["result_ttl"].accepts(int(seconds))


def _is_factor(value: Any) -> bool:
    seconds = None if isinstance(value, timedelta) else seconds_of(value)
    return isinstance(value, bool) or (seconds is not None and seconds >= 0)


TRUE = Kind(lambda value: value is True, "{name} is always True here; remove it")
NAME = Kind(lambda value: not value or (isinstance(value, str) and value.isprintable()), MISFIT + "printable text")
TEXT = Kind(lambda value: isinstance(value, str), MISFIT + "text")
JSON_NAME = Kind(_is_json, "{name} = {value!r}: " + JSON_ONLY)
JSON_NAMES = Kind(
    lambda value: isinstance(value, list | tuple | set) and bool(value) and all(map(_is_json, value)), JSON_NAME.text
)
REDIS = Kind(_is_redis, "{name} takes the URL of a Redis; jobs and results are kept in one")
QUEUE = Kind(OPTIONS["retry_queue"].accepts, MISFIT + "the name of a queue, without spaces, commas, = and *")
COUNT = Kind(_is_count, MISFIT + "a whole number, 0 or more, or None for no limit")
ERRORS = Kind(
    lambda value: isinstance(value, list | tuple | set | frozenset) and all(map(_is_error, value)),
    MISFIT + "a tuple of errors, such as (ValueError,)",
)
RATE = Kind(_is_rate, MISFIT + "a text such as '10/m', with s, m or h, or 0 for no limit")
MOMENT = Kind(lambda value: seconds_of(value) is not None, MISFIT + "a finite number of seconds, or a timedelta")
LIMIT = Kind(
    lambda value: OPTIONS["timeout"].accepts(seconds_of(value)),
    MISFIT + "a finite number of seconds, more than 0 and at most three years, or a timedelta",
)
BACKOFF = Kind(_is_factor, MISFIT + "a finite number, 0 or more, or True or False")
TTL = Kind(
    _is_ttl,
    MISFIT + "whole seconds, at least 1, or a timedelta: results always expire here; ignore_result=True keeps none",
)
ETA = Kind(lambda value: isinstance(value, datetime | timedelta), MISFIT + "an aware datetime")
END = Kind(lambda value: ETA.takes(value) or MOMENT.takes(value), MISFIT + "seconds, or an aware datetime")
KEYWORDS = Kind(lambda value: isinstance(value, Mapping), MISFIT + "a mapping with max_retries and countdown")

DECLARED: Mapping[str, Kind] = {
    "name": NAME,
    "queue": QUEUE.or_none,
    "max_retries": COUNT.or_none,
    "default_retry_delay": MOMENT,
    "autoretry_for": ERRORS.or_none,
    "dont_autoretry_for": ERRORS.or_none,
    "retry_kwargs": KEYWORDS.or_none,
    "retry_backoff": BACKOFF.or_none,
    "retry_backoff_max": MOMENT,
    **dict.fromkeys(
        ("retry_jitter", "acks_late", "acks_on_failure_or_timeout", "reject_on_worker_lost", "typing"), TRUE
    ),
    "rate_limit": RATE,
    "time_limit": LIMIT.or_none,
    "soft_time_limit": LIMIT.or_none,
    "expires": LIMIT.or_none,
    "serializer": JSON_NAME,
    "result_expires": TTL,  # a setting, which tasks get as an option
}
RETRY_KEYWORDS: Mapping[str, Kind] = {"max_retries": COUNT.or_none, "countdown": MOMENT.or_none}
CALLED: Mapping[str, Kind] = {
    "countdown": MOMENT,
    "eta": ETA,
    "expires": END,
    "queue": QUEUE,
    "task_id": TEXT,
    "serializer": JSON_NAME,
}
RETRIED: Mapping[str, Kind] = {"countdown": MOMENT, "eta": ETA, "max_retries": COUNT}
REVOKED: Mapping[str, Kind] = {
    "terminate": Kind(
        lambda value: not value,
        "revoke(terminate=True) of Celery does not work here: no thread is ever killed; call revoke(), and let "
        "the task call current_job().check_cancelled()",
    )
}
SET: Mapping[str, Kind] = {
    "broker_url": REDIS,
    "result_backend": REDIS.or_none,
    "accept_content": JSON_NAMES,
    "task_serializer": JSON_NAME,
    "result_serializer": JSON_NAME,
    "task_default_queue": QUEUE.or_none,
    "result_expires": TTL,
    "task_time_limit": LIMIT.or_none,
    "task_soft_time_limit": LIMIT.or_none,
    **dict.fromkeys(
        (
            "task_acks_late", "task_reject_on_worker_lost", "task_acks_on_failure_or_timeout", "enable_utc",
            "task_create_missing_queues", "broker_connection_retry", "broker_connection_retry_on_startup",
        ),
        TRUE,
    ),
}  # fmt: skip


def of_declaration(options: Mapping[str, Any]) -> Iterator[Refused]:
    """Yield the options of a declaration that would have no effect, or another one than in Celery."""
    yield from _of_values(DECLARED, options)
    keywords = options.get("retry_kwargs")
    if isinstance(keywords, Mapping):
        for key in sorted(keywords.keys() - RETRY_KEYWORDS.keys()):
            yield Refused("retry_kwargs", f"retry_kwargs takes max_retries and countdown, not {key}")
        for _, reason in _of_values(RETRY_KEYWORDS, keywords):
            yield Refused("retry_kwargs", f"retry_kwargs: {reason}")
    if not options.get("autoretry_for"):
        for key in ("retry_kwargs", "retry_backoff", "dont_autoretry_for"):
            if _is_set(options.get(key)):
                yield Refused(key, f"{key} has no effect without autoretry_for; name the errors that are retried")
    soft, hard = seconds_of(options.get("soft_time_limit")), seconds_of(options.get("time_limit"))
    if soft is not None and hard is not None and soft >= hard > 0:
        yield Refused("soft_time_limit", "soft_time_limit has to be less than time_limit: the task ends itself first")


def most_retries(options: Mapping[str, Any]) -> Any:
    """Return how often a task is retried that declares these options; None for no limit."""
    keywords = options.get("retry_kwargs") or {}
    if not isinstance(keywords, Mapping):
        return UNREAD
    return keywords.get("max_retries", options.get("max_retries", MAX_RETRIES))


def of_call(options: Mapping[str, Any]) -> Iterator[Refused]:
    """Yield the options of a push that cannot be kept; an option that is None is not given."""
    given = {key: value for key, value in options.items() if value is not None}
    yield from _of_values(CALLED, given)
    if {"countdown", "eta"} <= given.keys():
        yield Refused("eta", "apply_async takes countdown or eta, not both")
    end, due = seconds_of(given.get("expires")), seconds_of(given.get("countdown", given.get("eta", 0)))
    if end is not None and due is not None and (reason := no_expiry(given["expires"], end - max(0, due))) is not None:
        yield Refused("expires", reason)


def no_expiry(expires: Any, seconds: float) -> str | None:
    """Return the reason why a job cannot expire so many seconds after it is due, None where it can."""
    if seconds <= 0:
        return f"expires = {expires!r} is before the job is due; it would never run"
    if not OPTIONS["expires_in"].accepts(seconds):
        return f"expires = {expires!r} does not fit; it takes at most three years"
    return None


def of_retry(options: Mapping[str, Any], declared: Any) -> Iterator[Refused]:
    """Yield the options of self.retry that cannot be kept.  declared: max_retries of the task, None for no limit."""
    given = {key: value for key, value in options.items() if value is not None}
    yield from _of_values(RETRIED, given)
    if {"countdown", "eta"} <= given.keys():
        yield Refused("eta", "self.retry takes countdown or eta, not both")
    most = given.get("max_retries")
    if _is_count(most) and _is_count(declared) and most > declared:
        yield Refused(
            "max_retries",
            f"self.retry(max_retries={most}) is more than the task declares, {declared}, and the payload has that "
            f"number; declare max_retries={most}",
        )


def of_revoke(options: Mapping[str, Any]) -> Iterator[Refused]:
    """Yield the options of AsyncResult.revoke that cannot be kept."""
    yield from _of_values(REVOKED, options)


def of_settings(values: Mapping[str, Any]) -> Iterator[Refused]:
    """Yield the settings of one app that cannot be kept, together or each by itself."""
    yield from _of_values(SET, values)
    if _is_read(routes := values.get("task_routes")) and (reason := unusable_route(routes)) is not None:
        yield Refused("task_routes", reason)
    broker, backend = values.get("broker_url"), values.get("result_backend")
    if _is_redis(broker) and _is_redis(backend) and broker != backend:
        yield Refused("result_backend", "results are in the Redis of the jobs; leave result_backend out")


def _of_values(kinds: Mapping[str, Kind], values: Mapping[str, Any]) -> Iterator[Refused]:
    for name, value in values.items():
        kind = kinds.get(name)
        if kind is not None and _is_read(value) and not kind.takes(value):
            yield Refused(name, kind.text.format(name=name, value=value))


def _is_read(value: Any) -> bool:
    """Return whether no part of a value is UNREAD."""
    if isinstance(value, Mapping):
        return all(_is_read(key) and _is_read(each) for key, each in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_read, value))
    return value is not UNREAD


def _is_set(value: Any) -> bool:
    return value is not UNREAD and bool(value)
