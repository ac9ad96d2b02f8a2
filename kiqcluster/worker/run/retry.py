"""Retry: the next attempt of a job that failed.  Pure; endings.py asks the hooks, and makes the outcome.

plan          the payload keys that a failure writes, and whether attempts are left
backtrace     the traceback that it writes, by the option `backtrace`
trace         the traceback as Python prints it
wanted_delay  the seconds that the hook `retry_in` has answered; delay: the seconds until the next attempt
Counterpart: sidekiq job_retry.rb (8.1).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, cast

from kiqcluster.errors import CannotRun, Interrupted, RetryError, class_name, message_of
from kiqcluster.process.backoff import retry_delay, retry_jitter
from kiqcluster.process.boundary.calls import is_a
from kiqcluster.sidekiq import backtraces
from kiqcluster.sidekiq.outcome import Exactly
from kiqcluster.sidekiq.payload import Payload, seconds, stamp
from kiqcluster.sidekiq.ruby_json import JSON, is_unicode

__all__ = [
    "Plan",
    "backtrace",
    "cause_of",
    "delay",
    "describe_error",
    "plan",
    "trace",
    "wanted_backtrace",
    "wanted_delay",
    "was_interrupted",
]

OUR_FOLDER = str(Path(__file__).parents[1])
MAX_FRAMES = 100  # of a traceback
MAX_MESSAGE_CHARACTERS = 10_000  # of an error's message (sidekiq job_retry.rb)
# `<lambda>`, `<locals>` and `<module>` would be tags on Ruby's pages, and vanish.
TAGS_TO_PARENTHESES = str.maketrans("<>", "()")
MAX_DELAY_SECONDS = 10 * 366 * 86_400  # a hook that answers more is taken for a mistake


@dataclass(frozen=True, slots=True)
class Plan:
    """A failure, ready to be written.

    changes: payload keys.  count: failures before this one.  wanted: False for retry=False: nothing is kept.
    """

    changes: Mapping[str, JSON]
    count: int
    wanted: bool
    exhausted: bool


def plan(
    payload: Payload,
    queue: str,
    error: BaseException,
    option: JSON,
    max_retries: int,
    now: float,
    backtrace: str | None = None,
) -> Plan:
    """Return what a failure writes into the payload and whether attempts are left.

    queue: where the unit came from.  option: the `retry` in force; anything truthy that is no integer means
    max_retries, as in Ruby.  backtrace: as it is stored, None for none.
    """
    changes: dict[str, JSON] = {"queue": _queue(payload, queue), **describe_error(error)}
    before, first = payload.get("retry_count"), seconds(payload.get("failed_at"))
    count = 0
    # Other clients write null, and a count of 0, into a payload that has not failed yet.
    if type(before) is int and payload.get("failed_at") not in (None, False):
        count = max(0, before + 1)  # Ruby's "retry now" takes one off, so a first failure comes back with -1
        changes["retried_at"] = stamp(now)
    if first is None or "retried_at" not in changes:
        changes["failed_at"] = stamp(now)
    changes["retry_count"] = count
    if backtrace is not None:
        changes[backtraces.BACKTRACE] = backtrace
    limit = option if isinstance(option, int) and not isinstance(option, bool) else max_retries
    window = payload.get("retry_for")
    if isinstance(window, int | float) and not isinstance(window, bool) and window:
        age = now - (now if first is None else first)
        exhausted = window < age  # not a sum: an integer beyond the floats compares, but does not add
    else:
        exhausted = count >= limit
    return Plan(changes, count, option is not None and option is not False, exhausted)


def wanted_delay(answer: object) -> float | None:
    """Return the seconds that `retry_in` has answered, 0 for at once; None for what is no delay.

    A delay is a number of seconds or a timedelta, from 0 to MAX_DELAY_SECONDS.
    """
    if is_a(answer, timedelta):
        answer = timedelta.total_seconds(answer)
    elif type(answer) is bool or not is_a(answer, (int, float)):
        return None
    number: float = float.__add__(answer, 0.0) if is_a(answer, float) else int.__add__(cast("int", answer), 0)
    if not 0 <= number <= MAX_DELAY_SECONDS:
        return None
    return Exactly(number) if type(answer) is Exactly else number


def delay(wanted: float | None, count: int, rng: Random) -> float:
    """Return the seconds until the next attempt: as wanted, else by Sidekiq's curve; with jitter, unless Exactly so."""
    if wanted is None:
        return retry_delay(count, rng)
    return wanted if type(wanted) is Exactly else wanted + retry_jitter(count, rng)


def describe_error(error: BaseException) -> dict[str, JSON]:
    """Return error_class and error_message as Sidekiq stores them."""
    message = message_of(error)[:MAX_MESSAGE_CHARACTERS]
    if not is_unicode(message):
        message = message.encode(errors="replace").decode()
    return {"error_message": message, "error_class": class_name(error).translate(TAGS_TO_PARENTHESES)}


def wanted_backtrace(payload: Payload, options: Mapping[str, JSON], error: BaseException) -> JSON:
    """Return the option `backtrace` that is in force for an error.

    options: of the class.  Without the option: True, but for errors that say all by their message.
    """
    for given in (payload.get("backtrace"), options.get("backtrace")):
        if given is not None:
            return given
    return not is_a(error, (CannotRun, RetryError))


def backtrace(error: BaseException, wanted: JSON, pieces: Callable[[], Sequence[str]]) -> str | None:
    """Return the traceback of an error as it is stored, None for none.

    wanted: True for Python's own form; a number for so many lines of Sidekiq's, `file:line:in 'function'`, innermost
    first.
    pieces: returns what `trace` does.
    """
    if not wanted or _own(error, "__traceback__") is None:  # of one that was never raised, such as a hard time limit
        return None
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        return backtraces.encode(_sidekiqs(error)[:wanted])
    return backtraces.packed(pieces())


def trace(error: BaseException) -> list[str]:
    """Return the traceback as Python prints it, a frame or a message each: the innermost frames of the application."""
    try:
        summary = traceback.TracebackException.from_exception(error, limit=-MAX_FRAMES)
        summary.stack = traceback.StackSummary.from_list(own_frames(summary.stack))
        return list(summary.format())
    except BaseException as failure:  # noqa: BLE001  # a class may have a __traceback__ or a __cause__ of its own
        return [f"(its traceback cannot be shown: {class_name(failure)})"]


def cause_of(error: BaseException) -> BaseException | None:
    """Return what an error was made of, whatever a property of its class says."""
    cause = _own(error, "__cause__")
    return cast("BaseException | None", _own(error, "__context__") if cause is None else cause)


def was_interrupted(error: BaseException) -> bool:
    """Return whether the job turned our Interrupted into an error of its own."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if is_a(cause, Interrupted):
            return True
        seen.add(id(cause))
        cause = cause_of(cause)
    return False


def own_frames(frames: Iterable[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """Return the frames of the application: ours say nothing about its error."""
    every = list(frames)
    return [frame for frame in every if not frame.filename.startswith(OUR_FOLDER)] or every


def _queue(payload: Payload, queue: str) -> str:
    other = payload.get("retry_queue")
    return other if isinstance(other, str) and other else queue


def _sidekiqs(error: BaseException) -> list[str]:
    """Return `file:line:in 'function'`, innermost first, as Ruby's pages show them."""
    frames = own_frames(traceback.extract_tb(_own(error, "__traceback__")))
    return [
        f"{frame.filename}:{frame.lineno}:in '{frame.name}'".translate(TAGS_TO_PARENTHESES)
        for frame in reversed(frames)
    ]


def _own(error: BaseException, name: str) -> Any:
    """Return an attribute as the interpreter has set it."""
    return vars(BaseException)[name].__get__(error)
