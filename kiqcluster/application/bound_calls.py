"""Bound calls: what `perform` is called with, whichever of its defaults a push has given.

`f(1)` and `f(1, 30)` are one call of `def f(account, days=30)`: they are equal to deduplication, and the functions
`deduplicate_key` and `concurrency_key` get both arguments.

bound             the values of all parameters, as `perform` gets them
without_defaults  the arguments in JSON's types, without those at the end that are the defaults

Price: only for jobs with one of these options; a comparison for each argument that has a default.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import Parameter
from typing import Any

from kiqcluster.application.registry import BY_KEYWORD, Definition
from kiqcluster.process.boundary.calls import guarded
from kiqcluster.sidekiq import active_job, ruby_json
from kiqcluster.sidekiq.encryption import KEY_VERSION
from kiqcluster.sidekiq.payload import WRAPPERS, Payload
from kiqcluster.sidekiq.ruby_json import JSON

__all__ = ["bound", "without_defaults"]

WITHOUT_POSITION = (Parameter.VAR_POSITIONAL, *BY_KEYWORD)


def bound(definition: Definition, payload: Payload) -> tuple[Sequence[Any], dict[str, Any]]:
    """Return positional and keyword arguments of a job with their defaults, out of ActiveJob's envelope too.

    An encrypted argument stays as it is.  Arguments that do not fit are returned as they are: a run says so.
    Raises CannotDeserialize, MisfitArguments.
    """
    arguments = payload["args"]
    if payload["class"] in WRAPPERS:
        positions, keywords = active_job.deserialized(arguments[0])
    else:
        positions, keywords = definition.values(arguments, is_sealed=KEY_VERSION in payload), {}
        if len(positions) >= definition.most:
            return positions, keywords
    try:
        call = definition.called.bind(*positions, **keywords)
    except TypeError:
        return positions, keywords
    call.apply_defaults()
    return call.args, call.kwargs


def without_defaults(definition: Definition, payload: Payload) -> list[JSON]:
    """Return the arguments of a job as its payload has them, without those that its code would add by itself.

    Those in an envelope of ActiveJob are returned as they are.  Equal are values with the same JSON: True is not 1.
    """
    arguments: list[JSON] = payload["args"]
    if payload["class"] in WRAPPERS:
        envelope = active_job.unwrapped(payload)
        return arguments if envelope is None else envelope.arguments
    if len(arguments) <= definition.fewest:
        return arguments
    defaults = [each.default for each in definition.called.parameters.values() if each.kind not in WITHOUT_POSITION]
    count = len(arguments)
    while definition.fewest < count <= len(defaults):
        if not _is_default(definition, arguments, count - 1, defaults[count - 1]):
            break
        count -= 1
    return arguments[:count]


def _is_default(definition: Definition, arguments: list[JSON], index: int, default: Any) -> bool:
    """Return whether `perform` gets the same value for an argument as without it."""
    try:
        return ruby_json.encode(arguments[index]) == ruby_json.encode(default)
    except (TypeError, ValueError, RecursionError):
        return guarded(lambda _: False, lambda: _is_alike(definition.values(arguments)[index], default))


def _is_alike(value: Any, default: Any) -> bool:
    return type(value) is type(default) and bool(value == default)
