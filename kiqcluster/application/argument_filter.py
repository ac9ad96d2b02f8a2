"""Argument filter: which arguments of a job logs and web pages show.

Numbers are shown, and what the class declares (`loggable_arguments`).  An encrypted argument never is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from kiqcluster.application.registry import ENVELOPE, Definition
from kiqcluster.process.logs.log import plain
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.active_job import unwrapped
from kiqcluster.sidekiq.encryption import KEY_VERSION
from kiqcluster.sidekiq.payload import ENCRYPT, Payload
from kiqcluster.sidekiq.ruby_json import JSON

__all__ = ["HIDDEN_ARGUMENT", "LEFT_OUT_ARGUMENTS", "filtered", "json_size", "shown_arguments"]

HIDDEN_ARGUMENT = "[FILTERED]"  # in place of one that is not shown, as in GitLab's lines
LEFT_OUT_ARGUMENTS = "..."  # in place of all beyond the limit
MAX_ARGUMENT_BYTES = 10_240  # of all arguments that a line shows


def shown_arguments(payload: Payload, definition: Definition | None) -> list[JSON]:
    """Return arguments for the log: those that may not be shown are filtered, all together have a limit."""
    arguments = payload["args"]
    if definition is not None and definition.signature is ENVELOPE:
        envelope = unwrapped(payload)
        arguments = [] if envelope is None else envelope.arguments
    return filtered(arguments, payload, definition)


def filtered(arguments: list[JSON], payload: Payload, definition: Definition | None) -> list[JSON]:
    """Return the arguments of a payload, unwrapped by the caller, as `shown_arguments` does."""
    loggable = () if definition is None else definition.local.get("loggable_arguments", ())
    is_encrypted = bool(payload.get(ENCRYPT)) or KEY_VERSION in payload
    return list(_limited(_filtered(arguments, loggable, is_encrypted=is_encrypted)))


def _filtered(arguments: list[JSON], loggable: Collection[int], *, is_encrypted: bool) -> Iterator[JSON]:
    for position, value in enumerate(arguments):
        is_secret = is_encrypted and position == len(arguments) - 1
        is_shown = position in loggable or (isinstance(value, int | float) and not isinstance(value, bool))
        yield value if is_shown and not is_secret else HIDDEN_ARGUMENT


def _limited(arguments: Iterator[JSON]) -> Iterator[JSON]:
    size = 0
    for value in arguments:
        size += json_size(value)
        if size > MAX_ARGUMENT_BYTES:
            yield LEFT_OUT_ARGUMENTS
            return
        yield value


def json_size(value: JSON) -> int:
    """Return how many bytes of JSON a value has; about as many where Ruby could not read it."""
    try:
        return len(ruby_json.encode(value))
    except ValueError:  # a number out of range
        return len(ruby_json.encode(plain(value)))
