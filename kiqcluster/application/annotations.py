"""Annotations: which types the annotation of a parameter holds, and what they need on their way through JSON.

1. resolved   text, as `from __future__ import annotations` leaves it, → the types that it names
2. needs_of   a type → its needs; NOTHING for what JSON has already, and for types that nobody here can convert
"""

from __future__ import annotations

import collections.abc
import dataclasses
import sys
import typing
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag, auto
from inspect import Parameter, unwrap
from types import NoneType, UnionType
from typing import Any
from uuid import UUID

import msgspec

from kiqcluster.errors import JobDefinitionError
from kiqcluster.sidekiq.conversions import with_article

__all__ = [
    "SCALARS",
    "Namespace",
    "Needs",
    "Unresolved",
    "has_class_defaults",
    "is_alias",
    "names_of",
    "needs_of",
    "resolved",
]

Namespace = tuple[dict[str, Any], Mapping[str, Any]]  # names of a module; those of a class in it, which go first
PLAIN = (Parameter.empty, None, NoneType, Any, object, int, str, float, bool, list, dict)
SCALARS = (datetime, date, time, timedelta, Decimal, UUID, bytes, bytearray, memoryview)
CONTAINERS = frozenset(  # that are lists and objects in JSON
    {
        list,
        dict,
        *(getattr(collections.abc, name) for name in ("Sequence", "MutableSequence", "Collection", "Iterable")),
    }
    | {collections.abc.Mapping, collections.abc.MutableMapping}
)
KEYS = (str, int, float, date, time, timedelta, Decimal, UUID, bytes, Enum)  # that JSON has as text, and msgspec reads
NO_KEYS = (bool, datetime)  # … but not these
SETS = (set, frozenset, collections.abc.Set, collections.abc.MutableSet)
WRAPPERS = (typing.Required, typing.NotRequired, typing.Final)  # of the type of a field


class Needs(Flag):
    """What the values of a type need; NOTHING means that they are passed on as they are."""

    NOTHING = 0
    CONVERSION = auto()  # it is, or holds, a type that JSON lacks, or one whose fields are checked
    ZONES = auto()  # it holds times, which need a zone
    LISTS = auto()  # … tuples
    ORDER = auto()  # … sets, whose order may change from one process to the next
    KEYS = auto()  # … dicts whose keys are text or another type: both are text in JSON
    DEFAULTS = auto()  # … dataclasses whose fields have defaults
    MSGSPEC = auto()  # … Structs
    PYDANTIC = auto()  # … models, which only pydantic can convert


class Unresolved(Exception):  # it says what happened
    """A name in an annotation is not known, or not yet."""


@dataclasses.dataclass
class _Found:
    """What a walk through a type has found.

    foreign: where a type is that nobody here can convert, its name, and what helps.  keys: where a dict is with keys
    that msgspec refuses, and their type
    """

    needs: Needs = Needs.NOTHING
    foreign: str = ""
    keys: str = ""
    seen: list[Any] = dataclasses.field(default_factory=list)


# names


def names_of(target: Any) -> Namespace:
    """Return the global names that annotations of a job's class or function see, and those of the class."""
    function = unwrap(getattr(target, "perform", target))
    module = sys.modules.get(getattr(target, "__module__", ""))
    found = getattr(function, "__globals__", None)
    names: dict[str, Any] = found if isinstance(found, dict) else vars(module) if module is not None else {}
    return names, (vars(target) if isinstance(target, type) else {})


def resolved(annotation: Any, names: Namespace) -> Any:
    """Return the type that an annotation names.  Raises Unresolved for a name that is not known, or not yet."""
    if _is_plain(annotation):
        return annotation
    outer, inner = names
    try:
        return _hint(annotation, outer, inner)
    except NameError as error:
        known = _known_name(error.name)
        if known is None:
            raise Unresolved(f"{error}") from error
        # ruff and others have such names imported for type checkers only.
        return resolved(annotation, ({str(error.name): known, **outer}, inner))
    except Exception as error:  # an annotation may be any expression: text that is not a type, a call
        raise Unresolved(f"{type(error).__name__}: {error}") from error


def _hint(annotation: Any, outer: dict[str, Any], inner: Mapping[str, Any]) -> Any:
    def holder() -> None: ...

    holder.__annotations__ = {"it": annotation}
    return typing.get_type_hints(holder, outer, dict(inner), include_extras=True)["it"]


def _known_name(name: str | None) -> Any:
    return vars(collections.abc).get(str(name)) or vars(typing).get(str(name))


def _is_plain(annotation: Any) -> bool:
    return any(annotation is each for each in PLAIN)


# types


def needs_of(annotation: Any, path: str) -> Needs:
    """Return what the values of a type need.  path: what messages call them.

    Raises JobDefinitionError for one that holds both types that are converted and types that cannot be; Unresolved.
    """
    found = _Found()
    _walk(annotation, path, found)
    if Needs.CONVERSION not in found.needs:
        return Needs.NOTHING
    if found.foreign and Needs.PYDANTIC not in found.needs:
        raise JobDefinitionError(found.foreign)
    if found.keys and Needs.PYDANTIC not in found.needs:
        raise JobDefinitionError(
            f"{found.keys}, which cannot be the key of an object in JSON: annotate the keys as str, and pass them as "
            "text (a datetime as value.isoformat()); or pass a list of pairs"
        )
    if Needs.PYDANTIC in found.needs and Needs.MSGSPEC in found.needs:
        raise JobDefinitionError(
            f"{path} holds models of pydantic and Structs of msgspec, and neither library knows those of the other; "
            "use one of them, or dataclasses"
        )
    return found.needs


def _walk(annotation: Any, path: str, found: _Found) -> None:
    if _is_plain(annotation) or any(annotation is each for each in found.seen):
        return
    found.seen.append(annotation)
    origin = typing.get_origin(annotation)
    if isinstance(annotation, type) and origin is None:
        _walk_class(annotation, path, found)
        return
    if origin is typing.Literal or origin is typing.ClassVar:
        return
    arguments = list(typing.get_args(annotation))
    if origin is typing.Annotated:
        if any(isinstance(each, msgspec.Meta) for each in arguments[1:]):
            found.needs |= Needs.CONVERSION
        del arguments[1:]
    elif hasattr(annotation, "__supertype__"):  # NewType
        arguments = [annotation.__supertype__]
    elif is_alias(annotation):
        arguments = [_aliased(annotation)]
    elif is_alias(origin):  # Pair[int]
        arguments.append(origin)
    elif arguments and isinstance(origin, type) and issubclass(origin, Mapping):
        if not _may_be_key(arguments[0]):
            found.keys = found.keys or f"{path} has keys of the type {_name(arguments[0])}"
        if str in (kinds := _kinds(arguments[0])) and len(kinds) > 1:
            found.needs |= Needs.KEYS
    elif isinstance(origin, type) and origin is not UnionType and origin not in CONTAINERS:
        _walk(origin, path, found)
    for each in arguments:
        if each is not Ellipsis:
            _walk(each, path, found)


def _may_be_key(annotation: Any) -> bool:
    """Return whether values of a type can be keys in JSON; those of one of several types is enough."""
    return any(_is_key(each) for each in _kinds(annotation))


def _is_key(kind: Any) -> bool:
    if isinstance(kind, type) and typing.get_origin(kind) is None:
        is_open = kind is object or kind is Any  # the latter is a class from Python 3.11 on
        return is_open or (issubclass(kind, KEYS) and not issubclass(kind, NO_KEYS))
    return not isinstance(typing.get_origin(kind), type)


def _kinds(annotation: Any) -> list[Any]:
    """Return the types that the annotation of a key names."""
    origin = typing.get_origin(annotation)
    if is_alias(annotation):
        return _kinds(_aliased(annotation))
    if hasattr(annotation, "__supertype__"):
        return _kinds(annotation.__supertype__)
    if origin is typing.Annotated:
        return _kinds(annotation.__origin__)
    if origin is typing.Union or origin is UnionType:
        return [kind for each in typing.get_args(annotation) for kind in _kinds(each)]
    return [annotation]


def _name(annotation: Any) -> str:
    return (
        annotation.__qualname__ if isinstance(annotation, type) and not typing.get_args(annotation) else str(annotation)
    )


def is_alias(annotation: Any) -> bool:
    """Return whether it comes from `type X = …` (Python 3.12)."""
    return type(annotation).__name__ == "TypeAliasType"


def _aliased(alias: Any) -> Any:
    """Return the type that an alias names: Python looks at that when somebody asks.  Raises Unresolved."""
    try:
        return alias.__value__
    except Exception as error:  # it may be any expression
        raise Unresolved(f"{error}, in {alias.__name__}") from error


def _walk_class(cls: type[Any], path: str, found: _Found) -> None:
    if cls in CONTAINERS or cls is typing.Generic:
        return
    name = f"{cls.__module__}.{cls.__qualname__}"
    if issubclass(cls, (Enum, *SCALARS)):
        found.needs |= Needs.CONVERSION | (Needs.ZONES if issubclass(cls, datetime) else Needs.NOTHING)
        base = next(each for each in (Enum, *SCALARS) if issubclass(cls, each))
        if base not in (Enum, cls):
            found.foreign = found.foreign or (
                f"{path} is {with_article(name)}, which nobody makes of JSON: annotate "
                f"{base.__module__}.{base.__qualname__}, from which it derives; that is what the job gets"
            )
    elif cls in SETS:
        found.needs |= Needs.CONVERSION | Needs.ORDER
    elif hasattr(cls, "__pydantic_validator__"):  # of version 2: a model, or a dataclass of its own
        found.needs |= Needs.CONVERSION | Needs.PYDANTIC
    elif issubclass(cls, msgspec.Struct):
        found.needs |= Needs.CONVERSION | Needs.MSGSPEC
        _walk_fields(cls, path, found)
    elif dataclasses.is_dataclass(cls) or hasattr(cls, "__attrs_attrs__") or typing.is_typeddict(cls):
        found.needs |= Needs.CONVERSION
        if has_class_defaults(cls):
            found.needs |= Needs.DEFAULTS
        _walk_fields(cls, path, found)
    elif issubclass(cls, tuple):
        found.needs |= Needs.CONVERSION | Needs.LISTS
        if hasattr(cls, "_fields"):
            _walk_fields(cls, path, found)
    else:
        found.foreign = found.foreign or (
            f"{path} is {with_article(name)}, which has no form in JSON: pass what it is found by "
            "(its key, its path), or a dataclass"
        )


def has_class_defaults(cls: type[Any]) -> bool:
    """Return whether a dataclass has defaults which are attributes of the class, not of each instance."""
    if not dataclasses.is_dataclass(cls) or not hasattr(cls, "__dict__") or "__slots__" in vars(cls):
        return False
    return any(each.default is not dataclasses.MISSING for each in dataclasses.fields(cls))


def _walk_fields(cls: type[Any], path: str, found: _Found) -> None:
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except NameError as error:
        raise Unresolved(f"{error}, in {cls.__qualname__}") from error
    for name, hint in hints.items():
        while typing.get_origin(hint) in WRAPPERS:
            (hint,) = typing.get_args(hint)
        if not isinstance(hint, dataclasses.InitVar):
            _walk(hint, f"{path}.{name}", found)
