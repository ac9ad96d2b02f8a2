"""JSON values: results of tasks as plain JSON.

Django's rule (normalize_json) leaves subclasses of str, int and float as they are: strings of templates (SafeString),
members of TextChoices and IntegerChoices.  JSON has none of them, so they become the value that they hold.

| value of a result              | becomes                                           |
|--------------------------------|---------------------------------------------------|
| subclass of str, int, float    | the plain value                                   |
| key that is a number or None   | text, as json.dumps writes it                     |
| NaN, half a surrogate pair     | InvalidArguments                                  |
| more than MAX_RESULT_BYTES     | ValueError, where results are kept                |

Pure.
"""

from __future__ import annotations

import json
from typing import Any

from kiqcluster.contrib.django.task_backend.framework import normalize_json
from kiqcluster.features.results import MAX_RESULT_BYTES
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.payload import check_storable
from kiqcluster.sidekiq.ruby_json import JSON

__all__ = ["result_as_json"]


def result_as_json(value: Any, *, is_kept: bool) -> JSON:
    """Return what a task has returned, as get_result will show it.

    is_kept: whether its size counts.  Raises TypeError or ValueError for what cannot be kept.
    """
    if value is None:
        return None
    result = _plain(normalize_json(value))
    check_storable(result, "the result")
    size = len(ruby_json.encode(result)) if is_kept else 0
    if size > MAX_RESULT_BYTES:
        raise ValueError(f"the result has {size} bytes of JSON, and {MAX_RESULT_BYTES} are kept at most")
    return result


def _plain(value: Any) -> Any:
    """Return what normalize_json has returned, without subclasses."""
    if isinstance(value, dict):
        fields: dict[Any, Any] = {}
        for name, each in value.items():
            if (plain := _text_key(name)) in fields:
                raise TypeError(f"the key {name!r} is the same text in JSON as another one")
            fields[plain] = _plain(each)
        return fields
    if isinstance(value, list):
        return [_plain(each) for each in value]
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
