"""Losses: where a value differs from the one that its JSON gives back.  Pure; imports no library.

`==` alone would not do, since a class may leave fields out of its own.  So this module looks into models, dataclasses,
lists and mappings, and compares only the values in them by `==`.  Private attributes of a model are not compared: they
hold caches and the like, and a constructor makes them anew.
"""

from __future__ import annotations

import dataclasses
import typing
from collections import deque
from collections.abc import Collection, Mapping, Sequence, Set
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import cache
from typing import Any
from uuid import UUID

from kiqcluster.application.annotations import SCALARS, is_alias
from kiqcluster.sidekiq.conversions import a_type

__all__ = ["first_loss", "holds_any", "is_same"]

MISSING = "the job would not get it"
SAME_KEYS = "two of its keys are the same text; pass keys of one type"
CHANGED = (
    "the job would get another value. pydantic does not write all of this one (SecretStr, exclude=True, a serializer), "
    "or its constructor changes it; pass what it is found by"
)
ATOMS = frozenset({str, int, float, bool, type(None), datetime, date, Decimal, UUID})
UNSET = object()
ARRAYS = (list, tuple, deque)
WRITTEN_AS_JSON = (*SCALARS, Enum, Set)  # where the annotation says Any; a model there is refused
OPEN = (Any, object, list, dict, tuple, set, frozenset, Sequence, Mapping)  # annotations that say nothing of the values

Path = tuple[Any, ...]  # the path of the value around it, the form of a step, the step
Fields = tuple[tuple[str, ...], frozenset[str]]  # their names, and those whose annotation holds Any


def first_loss(given: Any, read: Any, *, is_any: bool = False) -> tuple[str, str] | None:
    """Return the path to the first difference, and its meaning; None if JSON holds all of a value.

    is_any: the annotation says Any, so that dates and such arrive as plain JSON.
    """
    seen = set[tuple[int, int]]()  # constructors may link values in a circle
    pairs: list[tuple[Path, Any, Any, bool]] = [((), given, read, is_any)]  # grows in the loop, and keeps ids unique
    for path, one, other, is_any in pairs:
        if (pair := (id(one), id(other))) in seen:
            continue
        seen.add(pair)
        parts = _parts(one, other)
        if parts is None:
            if reason := _difference(one, other, is_any):
                return _text(path), reason
            continue
        ones, others, form, open_ones = parts
        for step, part in ones.items():
            if step in others:
                if not _is_same_atom(part, others[step]):
                    pairs.append(((path, form, step), part, others[step], is_any or step in open_ones))
            elif not is_any or isinstance(step, str):  # JSON has keys of other types as text
                return _text((path, form, step)), MISSING
        if len(others) > len(ones):
            return _text(path), CHANGED
        if len(others) < len(ones):
            return _text(path), SAME_KEYS
    return None


def _is_same_atom(one: Any, other: Any) -> bool:
    return one is other or (type(one) in ATOMS and type(one) is type(other) and one == other)


def _parts(one: Any, other: Any) -> tuple[Mapping[Any, Any], Mapping[Any, Any], str, Collection[str]] | None:
    """Return what two values hold, by steps; the form of a step, and which of them are any.  None for other values."""
    kind: Any = type(one)
    if (fields := _fields(kind)) is not None and kind is type(other):
        extra = getattr(one, "__pydantic_extra__", None) or ()
        return _held(one, fields), _held(other, fields), ".{}", {*fields[1], *extra}
    if isinstance(one, ARRAYS) and isinstance(other, ARRAYS):
        return dict(enumerate(one)), dict(enumerate(other)), "[{!r}]", ()
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one, other, "[{!r}]", ()
    return None


def _held(model: Any, fields: Fields) -> dict[str, Any]:
    """Return the values of the fields that are set, and of those beyond the declaration."""
    held = {name: value for name in fields[0] if (value := getattr(model, name, UNSET)) is not UNSET}
    return {**held, **extra} if (extra := getattr(model, "__pydantic_extra__", None)) else held


def _difference(one: Any, other: Any, is_any: bool) -> str | None:
    kind: Any = type(one)
    if is_any and isinstance(one, WRITTEN_AS_JSON):
        return None
    if _fields(kind) is None and is_same(one, other):
        return None
    if kind is not type(other):
        return f"the job would get {a_type(other)}, not {a_type(one)}; annotate the class that the value has"
    return CHANGED


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values are equal, or do not tell: numbers that are none, arrays, classes without an `==`."""
    if isinstance(one, datetime) and isinstance(other, datetime) and one.tzinfo and other.tzinfo:
        return one - other == timedelta(0)  # PEP 495: `==` is false in an hour that a zone has twice
    try:
        if one == other or (one != one and other != other):
            return True
    except (TypeError, ValueError, ArithmeticError, RecursionError):  # an array; Decimal("sNaN")
        return type(one) is type(other)
    own: Any = type(one).__eq__
    return type(one) is type(other) and own is object.__eq__


@cache
def _fields(kind: type[Any]) -> Fields | None:
    """Return the fields of a model or dataclass, and those whose annotation holds Any; None for other classes."""
    if hasattr(kind, "__pydantic_validator__"):
        before_2_10 = getattr(kind, "model_fields", {})
        declared = getattr(kind, "__pydantic_fields__", None) or before_2_10
        hints = {name: each.annotation for name, each in declared.items()}
    elif dataclasses.is_dataclass(kind):
        hints = {each.name: each.type for each in dataclasses.fields(kind)}
        try:
            hints |= typing.get_type_hints(kind)
        except (NameError, AttributeError, TypeError):  # a name that is not known here
            pass
        hints = {each.name: hints[each.name] for each in dataclasses.fields(kind)}
    else:
        return None
    return tuple(hints), frozenset(name for name, hint in hints.items() if holds_any(hint))


def holds_any(annotation: Any) -> bool:
    """Return whether an annotation leaves the type of some value in it open, or may do so."""
    return _holds_any(annotation, [])


def _holds_any(annotation: Any, seen: list[Any]) -> bool:
    if any(annotation is each for each in OPEN) or isinstance(annotation, typing.TypeVar):
        return True
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if is_alias(annotation) or is_alias(origin):  # it may hold itself, too
        return True
    if typing.is_typeddict(origin or annotation) and not any(annotation is each for each in seen):
        seen.append(annotation)
        try:
            arguments += tuple(typing.get_type_hints(origin or annotation).values())
        except (NameError, AttributeError, TypeError):  # a name that is not known here
            return True
    elif hasattr(annotation, "__supertype__"):  # NewType
        arguments = (annotation.__supertype__,)
    elif any(origin is each for each in OPEN) and not arguments:  # typing.List
        return True
    return any(_holds_any(each, seen) for each in arguments)


def _text(path: Path) -> str:
    steps = list[str]()
    while path:
        path, form, step = path
        steps.append(form.format(step))
    return "".join(reversed(steps))
