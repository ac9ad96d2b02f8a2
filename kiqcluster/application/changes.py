"""Changes: where the value that a job would get differs from the one that a push was given.  Pure.

A push takes a value or its JSON, also mixed: the dict of an order may have a date in it.  So text is accepted where the
type is a date, but not within an instance of a class, whose fields have the values themselves.

| given                                  | the job gets                                                      |
|----------------------------------------|-------------------------------------------------------------------|
| a date, a Decimal, another value       | an equal one                                                      |
| a member of an Enum                    | that member, or an equal text or number                           |
| an instance of a class with fields     | an instance of the same class, with equal fields                  |
| a list or tuple; a set                 | a list or tuple; a set; with equal elements                       |
| a dict                                 | a dict with as many keys                                          |
| JSON, not within an instance           | what the type makes of it; text for bytes is base64, and a float  |
|                                        | has all digits of an integer                                      |

Where the annotation says Any, all of them arrive as plain JSON.  losses.py is for models of pydantic: it compares two
values, neither of which is JSON.
"""

from __future__ import annotations

import binascii
import dataclasses
import typing
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Set
from datetime import time
from decimal import Decimal
from enum import Enum
from functools import cache
from typing import Any, NamedTuple

import msgspec

from kiqcluster.application.losses import holds_any, is_same
from kiqcluster.sidekiq.conversions import a_type, key_conversion

__all__ = ["Changed", "check_unchanged", "fields_of"]

JSON_ATOMS = frozenset({str, int, float, bool, type(None)})
PLAIN = JSON_ATOMS | {list, tuple, dict}  # what Any becomes
TYPES_OF_BYTES = frozenset({bytes, bytearray, memoryview})
UNSET = object()
FIELD, ITEM, KEY = ".{}", "[{}]", "[{!r}]"  # forms of steps
NO_FIELD = "there is no such field"
NOT_BASE64 = "it is text, but not base64, which is the JSON of bytes; pass bytes"
NOT_EXACT = "a float does not hold all digits of this integer; annotate int"
KEY_TYPE = "a key: JSON has text as keys, for which numbers, dates and such may stand, but no other type"
SAME_KEYS = "two of its keys are the same text in JSON; pass keys of one type"
NO_OFFSET = "its zone has no offset of whole minutes without a date; pass a datetime, or a time without a zone"
CHANGED = (
    "the job would get another value: the constructor of its class changes it, or its JSON does not hold all of it"
)


class Changed(Exception):  # it says what happened
    """The job would get another value.  steps: the path to it, backwards."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.steps = list[str]()

    @property
    def path(self) -> str:
        return "".join(reversed(self.steps))


class Fields(NamedTuple):
    """The fields of a class; those whose annotation holds Any; fields by their keys in JSON, also that of a tag: ""."""

    names: tuple[str, ...]
    any_names: frozenset[str]
    by_key: dict[str, str]


def check_unchanged(given: Any, read: Any, *, is_any: bool, is_json: bool = True) -> None:
    """Check that a job gets what was given.  Raises Changed, RecursionError.

    read: what msgspec has made of it.  is_any: the annotation holds Any.  is_json: it is not within an instance.
    """
    kind: Any = type(given)
    if kind in JSON_ATOMS:
        _check_atom(given, read, is_json)
    elif isinstance(given, Mapping):
        _check_mapping(given, read, is_any, is_json)
    elif (fields := fields_of(kind)) is not None:
        _check_instance(given, read, is_any, fields)
    elif isinstance(given, list | tuple):
        _check_array(given, read, is_any, is_json)
    elif isinstance(given, Set):
        if isinstance(read, Set):
            _check_elements(given, read, is_any, is_json)
        elif not is_any or type(read) not in PLAIN:
            raise _other(given, read)
    elif isinstance(given, str) and not isinstance(given, Enum):  # of a subclass
        _check_atom(str.__str__(given), read, is_json)
    elif not _is_value_kept(given, read) and not (is_any and type(read) in PLAIN):
        raise _other(given, read)


def _check_part(form: str, step: Any, given: Any, read: Any, is_any: bool, is_json: bool) -> None:
    if is_json and type(given) is str and type(read) not in TYPES_OF_BYTES:  # most values of JSON
        return
    try:
        check_unchanged(given, read, is_any=is_any, is_json=is_json)
    except Changed as change:
        change.steps.append(form.format(step))
        raise


def _other(given: Any, read: Any) -> Changed:
    if type(given) is type(read):
        return Changed(CHANGED)
    return Changed(f"the job would get {a_type(read)}, not {a_type(given)}; pass a value of the type in the annotation")


# values without parts


def _check_atom(given: Any, read: Any, is_json: bool) -> None:
    kind: Any = type(given)
    if kind is int and type(read) is float and int(float(given)) != given:
        raise Changed(NOT_EXACT)
    if is_json:
        if kind is str and type(read) in TYPES_OF_BYTES and not _is_base64(given):
            raise Changed(NOT_BASE64)
    elif not is_same(given, read) or (kind is float and type(read) is not float):
        raise _other(given, read)


def _is_base64(text: str) -> bool:
    try:
        return b64encode(b64decode(text)) == text.encode()
    except (binascii.Error, ValueError):
        return False


def _is_value_kept(given: Any, read: Any) -> bool:
    if isinstance(given, Enum):
        return given is read or (not isinstance(read, Enum) and is_same(given, read))
    if isinstance(given, time) and given.tzinfo is not None:  # the zone may have no offset, or one with seconds
        written = msgspec.convert(msgspec.to_builtins(read), type(read))
        if given != written or read.tzinfo is None:
            raise Changed(NO_OFFSET)
    return is_same(given, read) and not (isinstance(given, Decimal) and type(read) is float)  # few floats are equal


# values with parts


@cache
def fields_of(kind: Any) -> Fields | None:
    """Return the fields of a dataclass, Struct, attrs class or NamedTuple; None for another class."""
    if dataclasses.is_dataclass(kind):
        names = tuple(each.name for each in dataclasses.fields(kind))
    elif issubclass(kind, msgspec.Struct):
        names = kind.__struct_fields__
    elif hasattr(kind, "__attrs_attrs__"):
        names = tuple(each.name for each in kind.__attrs_attrs__)
    elif issubclass(kind, tuple) and hasattr(kind, "_fields"):
        names = kind._fields
    else:
        return None
    try:
        hints = typing.get_type_hints(kind)
    except (NameError, AttributeError, TypeError):  # a name that is not known here; the class may hold anything
        hints = {}
    any_names = frozenset(name for name in names if holds_any(hints.get(name, Any)))
    by_key = dict(zip(getattr(kind, "__struct_encode_fields__", names), names, strict=True))
    if (config := getattr(kind, "__struct_config__", None)) and config.tag_field is not None:
        by_key[config.tag_field] = ""
    return Fields(names, any_names, by_key)


def _check_instance(given: Any, read: Any, is_any: bool, fields: Fields) -> None:
    if type(read) is type(given):
        for name in fields.names:
            part, other = getattr(given, name, UNSET), getattr(read, name, UNSET)
            if part is not other:
                _check_part(FIELD, name, part, other, name in fields.any_names, False)
    elif not is_any or type(read) not in PLAIN:
        raise _other(given, read)
    elif isinstance(read, dict):
        for key, name in fields.by_key.items():
            if name and key in read:
                _check_part(FIELD, name, getattr(given, name), read[key], True, False)
    else:
        _check_array(list(given), read, True, False)


def _check_array(given: list[Any] | tuple[Any, ...], read: Any, is_any: bool, is_json: bool) -> None:
    kind: Any = type(read)
    fields = fields_of(kind)
    if fields is None and isinstance(read, list | tuple):
        if len(given) != len(read) and not is_json:
            raise _other(given, read)
        for index, (part, other) in enumerate(zip(given, read, strict=False)):  # a constructor may change a list
            if part is not other:
                _check_part(ITEM, index, part, other, is_any, is_json)
    elif not is_json:
        raise _other(given, read)
    elif fields is not None:  # a NamedTuple; a Struct that is written as an array, with its tag before the fields
        first = 0 if isinstance(read, tuple) or read.__struct_config__.tag is None else 1
        for index, (part, name) in enumerate(zip(given[first:], fields.names, strict=False), first):
            _check_part(ITEM, index, part, getattr(read, name), name in fields.any_names, True)
    else:
        _check_elements(given, read, is_any, True)


def _check_elements(given: Iterable[Any], read: Set[Any], is_any: bool, is_json: bool) -> None:
    """Check the elements of a set, whose order says nothing."""
    if isinstance(given, Set) and len(given) != len(read):
        raise Changed("two of its elements are the same in JSON; pass elements of one type")
    if not read:
        return
    same = {each: each for each in read}
    for index, part in enumerate(given):
        try:
            other = same[part]
        except (KeyError, TypeError):  # JSON
            other = next((each for each in read if _is_kept(part, each, is_any, is_json)), next(iter(read)))
        _check_part(ITEM, index, part, other, is_any, is_json)


def _is_kept(given: Any, read: Any, is_any: bool, is_json: bool) -> bool:
    try:
        check_unchanged(given, read, is_any=is_any, is_json=is_json)
    except Changed:
        return False
    return True


def _check_mapping(given: Mapping[Any, Any], read: Any, is_any: bool, is_json: bool) -> None:
    if isinstance(read, dict):
        _check_keys(given, read, is_any, is_json)
        return
    kind: Any = type(read)
    fields = fields_of(kind)
    if fields is None or not is_json:
        raise _other(given, read)
    for key, part in given.items():
        name = fields.by_key.get(key)
        if name is None:
            raise _at(FIELD, key, NO_FIELD)
        if name and part is not (other := getattr(read, name, UNSET)):
            _check_part(FIELD, key, part, other, name in fields.any_names, True)


def _check_keys(given: Mapping[Any, Any], read: dict[Any, Any], is_any: bool, is_json: bool) -> None:
    kinds = set(map(type, read))
    for key, part in given.items():
        if key in read:
            found = key
        elif (found := _read_key(key, read, kinds)) is UNSET:
            raise _at(FIELD, key, NO_FIELD)
        elif not is_any and (type(key) is not str or not is_json):
            raise Changed(
                f"a key: the job would get {a_type(found)}, not {a_type(key)}; annotate and pass keys of one type"
            )
        elif isinstance(found, bytes) and not _is_base64(key):
            raise Changed(f"a key: {NOT_BASE64}")
        if part is not (other := read[found]):
            _check_part(KEY, key, part, other, is_any, is_json)
    if len(read) < len(given) or (kinds - {str} and len(_texts(read)) < len(read)):
        raise Changed(SAME_KEYS)


def _texts(read: dict[Any, Any]) -> dict[str, None]:
    """Return keys as text, as JSON has them.  Raises Changed."""
    try:
        texts: dict[str, None] = msgspec.to_builtins(dict.fromkeys(read), str_keys=True)
    except TypeError as error:
        for key in read:
            if isinstance(key, str) and str(key) is key and type(key) is not str:  # a SafeString
                raise Changed(f"a key: {key_conversion(key)}") from error
        raise Changed(KEY_TYPE) from error
    return texts


def _read_key(key: Any, read: dict[Any, Any], kinds: set[type]) -> Any:
    """Return the key that was made of one in JSON, or of another type; UNSET if there is none."""
    text = next(iter(msgspec.to_builtins({key: None}, str_keys=True)))
    for kind in kinds:
        try:
            (found,) = msgspec.convert({text: None}, dict[kind, None], str_keys=True)  # type: ignore[valid-type]
        except msgspec.ValidationError:  # it is a key of one of the other types
            continue
        if found in read:
            return found
    return UNSET


def _at(form: str, step: Any, reason: str) -> Changed:
    change = Changed(reason)
    change.steps.append(form.format(step))
    return change
