"""Calls: the options of apply_async → those of a push.  Pure but for the clock.

call_of         options → time, id and options of the push
seconds_until   a datetime → seconds from now
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from kiqcluster.contrib.celery.catalogue import CALL, find, refusal
from kiqcluster.contrib.celery.errors import Unsupported
from kiqcluster.contrib.celery.rules import no_expiry, of_call, seconds_of
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.durations import due_at

__all__ = ["Call", "call_of", "seconds_until"]


@dataclass(frozen=True, slots=True)
class Call:
    """The options of one push.  at: epoch seconds, None for at once.  task_id: None for a new one."""

    at: float | None = None
    task_id: str | None = None
    options: dict[str, Any] = field(default_factory=dict)


def call_of(name: str, options: Mapping[str, Any]) -> Call:
    """Return the options of a push.  Raises Unsupported for one that would have no effect; InvalidPush for a time."""
    given = {key: value for key, value in options.items() if value is not None}
    for key in given:
        if find(CALL, key).verdict != "works":
            raise refusal(CALL, key, name)
    for refused in of_call(given):
        raise Unsupported(f"{name}: {refused.reason}")
    now = SystemClock().now()
    at = None
    if countdown := seconds_of(given.get("countdown")):
        at = now + countdown
    elif "eta" in given:
        at = due_at(given["eta"], now)
    made: dict[str, Any] = {"queue": given["queue"]} if "queue" in given else {}
    if "expires" in given:
        made["expires_in"] = _seconds_to_begin(name, given["expires"], now, now if at is None else at)
    return Call(at, given.get("task_id"), made)


def _seconds_to_begin(name: str, expires: Any, now: float, due: float) -> float:
    """Return the seconds within which a job has to begin once it is due; Celery counts them from the push."""
    end = due_at(expires, now) if isinstance(expires, datetime | timedelta) else now + float(expires)
    if (reason := no_expiry(expires, end - due)) is not None:
        raise Unsupported(f"{name}: {reason}")
    return end - due


def seconds_until(eta: datetime) -> float:
    """Return the seconds until a time, 0 when it is past.  Raises InvalidPush for a datetime without a time zone."""
    now = SystemClock().now()
    return max(0.0, due_at(eta, now) - now)
