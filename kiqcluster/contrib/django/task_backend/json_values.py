"""JSON values: arguments and results of tasks as plain JSON.

Django's rule (normalize_json) leaves subclasses of str, int and float as they are: strings of templates (SafeString),
members of TextChoices and IntegerChoices.  JSON has none of them, so they become the value that they hold.

| value                          | of an argument      | of a result                                        |
|--------------------------------|---------------------|----------------------------------------------------|
| subclass of str, int, float    | the plain value     | the plain value                                    |
| key that is a number or None   | left to the push    | text, as json.dumps writes it                      |
| NaN, half a surrogate pair     | left to the push    | InvalidArguments                                   |
| more than MAX_RESULT_BYTES     | left to the push    | ValueError, where results are kept                 |

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kiqcluster.contrib.django.task_backend.framework import normalize_json
from kiqcluster.features.results import MAX_RESULT_BYTES
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.conversions import conversion
from kiqcluster.sidekiq.payload import check_storable
from kiqcluster.sidekiq.ruby_json import JSON

__all__ = ["arguments_as_json", "result_as_json"]

JSON_TYPES = (str, bytes, int, float, bool, type(None))


def arguments_as_json(value: Any, path: str) -> Any:
    """Return arguments as they are stored.  Raises TypeError that says what to pass in place of a value."""
    try:
        return _plain(normalize_json(value), _scalar)
    except TypeError as error:
        for place, misfit in _misfits(value, path):
            raise TypeError(f"{error}: {place}; {conversion(misfit)}") from error
        raise


def result_as_json(value: Any, *, is_kept: bool) -> JSON:
    """Return what a task has returned, as get_result will show it.

    is_kept: whether its size counts.  Raises TypeError or ValueError for what cannot be kept.
    """
    if value is None:
        return None
    result = _plain(normalize_json(value), _text_key)
    check_storable(result, "the result")
    size = len(ruby_json.encode(result)) if is_kept else 0
    if size > MAX_RESULT_BYTES:
        raise ValueError(f"the result has {size} bytes of JSON, and {MAX_RESULT_BYTES} are kept at most")
    return result


def _plain(value: Any, key: Callable[[Any], Any]) -> Any:
    """Return what normalize_json has returned, without subclasses.  key: makes a key of a mapping."""
    if isinstance(value, dict):
        fields: dict[Any, Any] = {}
        for name, each in value.items():
            if (plain := key(name)) in fields:
                raise TypeError(f"the key {name!r} is the same text in JSON as another one")
            fields[plain] = _plain(each, key)
        return fields
    if isinstance(value, list):
        return [_plain(each, key) for each in value]
    return _scalar(value)


def _scalar(value: Any) -> Any:
    """Return a scalar of a plain type.  str(value) would return what the subclass likes to show."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    return float.__float__(value) if isinstance(value, float) else value


def _text_key(value: Any) -> Any:
    plain = _scalar(value)
    return plain if isinstance(plain, str) else json.dumps(plain, allow_nan=False)


def _misfits(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the values that are not JSON, each with its place."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _misfits(each, f"{path}[{key!r}]")
    elif isinstance(value, Sequence) and not isinstance(value, JSON_TYPES):
        for index, each in enumerate(value):
            yield from _misfits(each, f"{path}[{index}]")
    elif not isinstance(value, JSON_TYPES):
        yield path, value
