"""Converters: the values of one type ↔ JSON, as it is in payloads and as Ruby reads it.

write   a value, or its JSON, → its JSON in one form.  Raises Misfit with the path within it: `.lines[2].price`
read    its JSON → the value.  Raises Misfit

| type                              | JSON                                                                          |
|-----------------------------------|-------------------------------------------------------------------------------|
| dataclass, Struct, attrs, TypedDict, model | an object                                                            |
| NamedTuple, tuple, set, frozenset | an array; that of a set is in order                                           |
| datetime, date, time              | text, ISO 8601; a datetime has a zone                                         |
| timedelta                         | text, ISO 8601: P1DT90.5S                                                     |
| Decimal, UUID, bytes              | text; that of bytes is base64                                                 |
| Enum                              | its value                                                                     |

msgspec converts all but models of pydantic, which do so themselves.  That library is imported by who has such a model.
"""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache, partial, reduce, wraps
from typing import Any, Protocol, TypeVar, cast
from uuid import UUID

import msgspec

from kiqcluster.application.annotations import Needs, has_class_defaults
from kiqcluster.application.changes import Changed, check_unchanged, fields_of
from kiqcluster.application.losses import first_loss, holds_any
from kiqcluster.application.subclasses import as_base
from kiqcluster.errors import JobDefinitionError
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.conversions import conversion, result_conversion, type_name
from kiqcluster.sidekiq.ruby_json import JSON

__all__ = ["Converter", "Misfit", "converter_of", "plain"]

# What msgspec says: "Expected `int`, got `str` - at `$.lines[2].price`", also "- at `key` in `$.counts`".
MESSAGE = re.compile(r"(?P<reason>.*?)(?: - at (?P<key>`key` in )?`\$(?P<path>.*)`)?", re.DOTALL)
STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
ANY_KEY = "..."
MISPLACED = object()  # it fits no type in which values are checked
NAIVE = "has no time zone; pass an aware one, such as datetime.now(UTC)"
ATOMS = frozenset({str, int, float, bool, type(None), datetime, date, Decimal})
LOWEST_PYDANTIC = (2, 6)  # older ones find some losses in JSON only late, or not at all
TIMES = (datetime,)
KEPT = (datetime, date, timedelta, Decimal, UUID, bytes, bytearray)  # so that none of them fits where text is wanted
MAX_DEPTH = 100  # of a value in which a culprit is looked for


class Misfit(ValueError):  # it says what happened
    """A value does not fit its type.  path: where in the value, "" for all of it."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


Convert = TypeVar("Convert", bound=Callable[[Any, Any], Any])


def _limited(convert: Convert) -> Convert:
    """Wrap a method of a converter: a value that is nested beyond Python's limit is a Misfit."""

    @wraps(convert)
    def limited(self: Any, value: Any) -> Any:
        try:
            return convert(self, value)
        except RecursionError as error:
            raise Misfit("", "it is nested too deeply") from error

    return cast(Convert, limited)


class Converter(Protocol):
    """Converts the values of one type."""

    def write(self, value: Any) -> JSON:
        """Return a value as JSON, also one that is that already.  Raises Misfit."""

    def read(self, value: JSON) -> Any:
        """Return the value of its JSON.  Raises Misfit."""


def converter_of(annotation: Any, path: str, needs: Needs) -> Converter:
    """Return the converter of a type with needs.  path: what messages call its values.

    Raises JobDefinitionError."""
    if Needs.PYDANTIC in needs:
        return PydanticConverter(annotation, path)
    return MsgspecConverter(annotation, path, needs)


def plain(value: Any) -> JSON:
    """Return a result that has no declared type as JSON: those of the table above.  Raises TypeError for others."""
    try:
        return _as_lists(msgspec.to_builtins(value, str_keys=True, enc_hook=_dumped, order="deterministic"))
    except _Foreign as error:  # callers keep the name of its class
        found = error.value
        raise TypeError(
            f"a value of the result is of type {type_name(found)}, which is not JSON: {result_conversion(found)}"
        ) from error


def _dumped(value: Any) -> Any:
    if hasattr(type(value), "__pydantic_validator__") and hasattr(value, "model_dump"):
        return value.model_dump(mode="json", by_alias=True)
    return _as_base(value)


class _Foreign(TypeError):
    """A value of a type that has no form in JSON."""

    def __init__(self, value: Any) -> None:
        super().__init__(f"it is of type {type_name(value)}, which is not JSON: {conversion(value)}")
        self.value = value


class _Naive(ValueError):
    """A datetime without a zone."""


# msgspec


class MsgspecConverter:
    """Converts by msgspec; without looking at each value in Python, but for those of types that need it."""

    def __init__(self, annotation: Any, path: str, needs: Needs) -> None:
        self._type = annotation
        self._order: Any = "deterministic" if Needs.ORDER in needs else None
        self._has_times = Needs.ZONES in needs
        self._kept = TIMES if self._has_times else ()  # until its zone has been looked at
        self._holds_any = holds_any(annotation)
        self._is_looked_at = bool(needs & (Needs.ZONES | Needs.LISTS))
        self._has_text_keys = Needs.KEYS in needs
        self._has_defaults = Needs.DEFAULTS in needs
        try:
            msgspec.json.Decoder(annotation)
        except (TypeError, ValueError) as error:  # it says which types cannot be together
            text = str(error).replace("`", "")
            raise JobDefinitionError(
                f"{path} cannot be converted: {text}. Declare one of the types; of several classes of objects, make "
                "each a msgspec.Struct with tag=True"
            ) from error
        except RecursionError as error:
            raise JobDefinitionError(f"{path} cannot be converted: an alias names itself; use a dataclass") from error

    @_limited
    def write(self, value: Any) -> JSON:
        try:
            found = msgspec.to_builtins(value, enc_hook=_as_base, builtin_types=KEPT)
        except _Foreign as error:
            raise Misfit(_path_to(value, partial(operator.is_, error.value)), str(error)) from error
        except (TypeError, ValueError) as error:
            raise Misfit("", str(error)) from error
        typed = self._typed(found)
        try:
            check_unchanged(value, typed, is_any=self._holds_any)
            written = self._written(typed)
            if self._has_text_keys:  # a key that is a number may come back as text
                check_unchanged(typed, self._typed(written), is_any=self._holds_any, is_json=False)
        except Changed as change:
            raise Misfit(change.path, change.reason) from change
        return written

    @_limited
    def read(self, value: JSON) -> Any:
        typed = self._typed(value)
        if self._has_times:
            if isinstance(typed, datetime):
                if typed.tzinfo is None:
                    raise Misfit("", NAIVE)
            elif typed is not None:
                self._written(typed)
        return typed

    def _typed(self, value: JSON) -> Any:
        try:
            typed = msgspec.convert(value, self._type, str_keys=True)
            if self._has_defaults:
                _complete(typed)
            return typed
        except msgspec.ValidationError as error:
            path, reason = self._explained(error, value)
            raise Misfit(path, reason) from error

    def _written(self, typed: Any) -> JSON:
        try:
            if not self._is_looked_at:
                return msgspec.to_builtins(typed, str_keys=True, order=self._order)
            return _as_lists(msgspec.to_builtins(typed, str_keys=True, order=self._order, builtin_types=self._kept))
        except _Naive as error:
            raise Misfit(_path_to(typed, _is_naive), NAIVE) from error
        except (TypeError, ValueError) as error:  # a key that is a tuple
            raise Misfit("", str(error)) from error

    def _explained(self, error: msgspec.ValidationError, value: JSON) -> tuple[str, str]:
        """Return where an error lies, also in dicts, of which msgspec does not say the key; and the reason."""
        message = str(error)
        found = MESSAGE.fullmatch(message)
        assert found is not None, "it matches anything"
        reason = found["reason"].replace("`", "")
        reason = reason[:1].lower() + reason[1:]
        steps = [int(index) if index.isdigit() else name or index for name, index in STEP.findall(found["path"] or "")]
        path = ""
        for at, step in enumerate(steps):
            if step == ANY_KEY:
                value, steps[at] = self._culprit(value, steps[:at], message)
                path += f"[{steps[at]!r}]"
            else:
                path += f"[{step}]" if isinstance(step, int) else f".{step}"
        return path, f"a key: {reason}" if found["key"] else reason

    def _culprit(self, value: JSON, steps: list[Any], message: str) -> tuple[JSON, Any]:
        """Return the value with one key only in a dict of it: the first at which the conversion fails; and that key.

        It halves the dict.  Each try ends in the dict, at MISPLACED, since constructors around it may need all keys.
        """
        try:
            held: Any = reduce(operator.getitem, steps, value)
            keys = list(held)
        except (LookupError, TypeError):  # the name of a field has a point or a bracket
            return value, ANY_KEY
        while len(keys) > 1:
            middle = len(keys) // 2
            tried = {**{key: held[key] for key in keys[:middle]}, keys[middle]: MISPLACED}
            is_before = self._message(_with(value, steps, tried)) == message
            keys = keys[:middle] if is_before else keys[middle:]
        return _with(value, steps, {keys[0]: held[keys[0]]}), keys[0]

    def _message(self, value: JSON) -> str:
        try:
            msgspec.convert(value, self._type, str_keys=True)
        except msgspec.ValidationError as error:
            return str(error)
        return ""


def _as_base(value: Any) -> Any:
    if (found := as_base(value)) is None:
        raise _Foreign(value)
    return found


def _with(value: Any, steps: list[Any], part: Any) -> Any:
    """Return a copy of JSON with another part at a place."""
    if not steps:
        return part
    step, *rest = steps
    copied = dict(value) if isinstance(value, dict) else list(value)
    copied[step] = _with(value[step], rest, part)
    return copied


@cache
def _fields(cls: type[Any]) -> tuple[tuple[str, ...], tuple[tuple[str, Any], ...]] | None:
    """Return the fields of a dataclass or Struct, and the defaults that its class has; None for other classes."""
    if not dataclasses.is_dataclass(cls):
        return (cls.__struct_fields__, ()) if issubclass(cls, msgspec.Struct) else None
    fields = dataclasses.fields(cls)
    defaults = [(each.name, each.default) for each in fields if each.default is not dataclasses.MISSING]
    return tuple(each.name for each in fields), tuple(defaults) if has_class_defaults(cls) else ()


def _complete(value: Any) -> None:
    """Give each dataclass the attributes that its own constructor would: msgspec leaves defaults to the class."""
    kind: Any = type(value)
    if kind is dict:
        for each in value.values():
            _complete(each)
    elif kind is list or kind is tuple:
        for each in value:
            _complete(each)
    elif (found := _fields(kind)) is not None:
        names, defaults = found
        for name, default in defaults:
            value.__dict__.setdefault(name, default)
        for name in names:
            each = getattr(value, name)
            if type(each) not in ATOMS:
                _complete(each)


def _as_lists(value: Any) -> JSON:
    """Return a tree with lists in place of tuples, and times as text.  Raises _Naive."""
    kind = type(value)
    if kind is dict:
        return {key: _as_lists(each) for key, each in value.items()}
    if kind is list or kind is tuple:
        return [_as_lists(each) for each in value]
    return _iso(value) if isinstance(value, datetime) else value


def _iso(when: datetime) -> str:
    """Return a time as ISO 8601, with an offset of whole minutes.  Raises _Naive."""
    offset = when.utcoffset()
    if offset is None:
        raise _Naive
    if offset.seconds % 60 or offset.microseconds:  # local times of the 19th century
        when = when.astimezone(UTC)
    text: str = msgspec.to_builtins(when)
    return text


def _is_naive(value: Any) -> bool:
    return isinstance(value, datetime) and value.tzinfo is None


def _path_to(value: Any, is_it: Callable[[Any], bool]) -> str:
    """Return the path at which a value lies within another one; "" if it is not found."""
    return next(_paths(value, is_it, 0), "")


def _paths(value: Any, is_it: Callable[[Any], bool], depth: int) -> Iterator[str]:
    if is_it(value):
        yield ""
    elif depth < MAX_DEPTH:
        for step, each in _parts(value):
            yield from (f"{step}{path}" for path in _paths(each, is_it, depth + 1))


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", each) for key, each in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{index}]", each) for index, each in enumerate(value))
    else:
        kind: Any = type(value)
        names = fields.names if (fields := fields_of(kind)) else ()
        yield from ((f".{name}", getattr(value, name)) for name in names if hasattr(value, name))


# pydantic


class PydanticConverter:
    """Converts by pydantic, with the rules of its models: which keys they refuse, which times they take."""

    def __init__(self, annotation: Any, path: str) -> None:
        import pydantic

        if tuple(map(int, pydantic.VERSION.split(".")[:2])) < LOWEST_PYDANTIC:
            lowest = ".".join(map(str, LOWEST_PYDANTIC))
            raise JobDefinitionError(
                f"{path} cannot be converted: pydantic {lowest} or newer is needed, and {pydantic.VERSION} is there; "
                f"run `pip install 'pydantic>={lowest}'`"
            )
        self._invalid = pydantic.ValidationError
        self._holds_any = holds_any(annotation)
        try:
            self._adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(annotation)
        except pydantic.PydanticUserError as error:  # a type that it does not know, a name that it cannot find
            raise JobDefinitionError(f"{path} cannot be converted: {error.message}") from error

    @_limited
    def write(self, value: Any) -> JSON:
        try:
            typed = self._typed(value)
            written = self._adapter.dump_python(typed, mode="json", by_alias=True, warnings=False)
            read = self._adapter.validate_json(ruby_json.encode(written))  # what the job will do
        except self._invalid as error:
            raise self._misfit(error) from error
        except (TypeError, ValueError) as error:
            raise Misfit("", str(error)) from error
        if lost := first_loss(typed, read, is_any=self._holds_any):
            path, reason = lost
            raise Misfit(path, f"JSON does not hold all of it: {reason}")
        return written

    @_limited
    def read(self, value: JSON) -> Any:
        try:
            return self._adapter.validate_json(ruby_json.encode(value))
        except self._invalid as error:
            raise self._misfit(error) from error

    def _typed(self, value: Any) -> Any:
        try:
            encoded = ruby_json.encode(value)
            is_json = ruby_json.decode(encoded) == value  # it encodes dataclasses and bytes as well, in its own way
        except (TypeError, ValueError):  # a model
            is_json = False
        return self._adapter.validate_json(encoded) if is_json else self._adapter.validate_python(value)

    def _misfit(self, error: Any) -> Misfit:
        first = error.errors(include_url=False, include_context=False)[0]
        steps = (f"[{each}]" if isinstance(each, int) else f".{each}" for each in first["loc"])
        return Misfit("".join(steps), first["msg"])
