"""Conversions: advice in error messages how to convert a value to JSON before it is passed to a job.  Pure.

The module converts nothing and imports no library.  It recognizes a type and its subclasses by a name, or by a method
like `model_dump` or `tolist`.
"""

from __future__ import annotations

import dataclasses
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from uuid import UUID

__all__ = ["a_type", "conversion", "is_model", "key_conversion", "result_conversion", "type_name", "with_article"]

VOWELS = ("a", "e", "i", "o")  # not the u of user, unit and uuid
ANNOTATION = "; or name the type in the annotation of perform, which converts it (typed arguments)"
CONVERTED = (date, time, timedelta, Decimal, UUID, bytes, bytearray, tuple, set, frozenset)
CONVERTED_BY_ATTRIBUTE = ("__pydantic_validator__", "__attrs_attrs__", "__struct_fields__")
DEFAULT_ADVICE = "pass plain JSON values and look objects up by their id"
RESULT_ADVICE = "return plain JSON values; of an object, its id or a dict of its fields"
ADVICE_BY_METHOD = {  # attribute that only types of one library have → the advice
    "model_dump": 'pass value.model_dump(mode="json"), and Model.model_validate(fields) in the job',  # pydantic 2
    "__pydantic_model__": "pass json.loads(value.json())",  # pydantic 1, its dataclasses
    "__attrs_attrs__": "pass attrs.asdict(value)",
    "__struct_fields__": "pass msgspec.to_builtins(value)",
    "to_dict": "pass value.to_dict() if that has JSON values only",  # pandas, and many others
    "_asdict": "pass list(value), or value._asdict()",  # a named tuple
}
ADVICE_BY_NAME = {
    "datetime": "pass value.isoformat() or value.timestamp()",
    "date": "pass value.isoformat()",
    "time": "pass value.isoformat()",
    "timedelta": "pass value.total_seconds()",
    "ZoneInfo": "pass str(value)",
    "UUID": "pass str(value)",
    "Decimal": "pass str(value), and Decimal(text) in the job",
    "Fraction": "pass str(value), and Fraction(text) in the job",
    "complex": "pass [value.real, value.imag]",
    "bytes": "pass base64.b64encode(value).decode()",
    "bytearray": "pass base64.b64encode(value).decode()",
    "memoryview": "pass base64.b64encode(value).decode()",
    "tuple": "pass list(value)",
    "set": "pass sorted(value) or list(value)",
    "frozenset": "pass sorted(value) or list(value)",
    "deque": "pass list(value)",
    "range": "pass list(value)",
    "generator": "pass list(value)",
    "dict_keys": "pass list(value)",
    "dict_values": "pass list(value)",
    "QuerySet": 'pass list(value.values_list("pk", flat=True))',  # of Django
    "PurePath": "pass str(value)",
    "_BaseAddress": "pass str(value)",
    "_BaseNetwork": "pass str(value)",
    "BaseModel": "pass json.loads(value.json())",  # pydantic 1
    "Exception": "pass str(value)",
    "function": "pass its name, and look it up in the job",
    "type": "pass its name, and look it up in the job",
    # subclasses of types that JSON has
    "dict": "pass dict(value)",
    "list": "pass list(value)",
    "str": "pass str.__str__(value)",  # str(…) of a SafeString is a SafeString
    "float": "pass float(value)",
    "int": "pass int(value)",
}


def conversion(value: object) -> str:
    """Return advice what to pass instead of a value, as the end of a sentence."""
    return _advice(value) + (ANNOTATION if _has_converter(type(value)) else "")


def result_conversion(value: object) -> str:
    """Return advice what a job returns instead of a value, as the end of a sentence."""
    advice = _advice(value).removeprefix("pass ").partition(", and ")[0]
    return RESULT_ADVICE if _advice(value) == DEFAULT_ADVICE else f"return {advice}"


def key_conversion(key: object) -> str:
    """Return advice what to pass instead of a key of a dict, as the end of a sentence."""
    if isinstance(key, str):  # of a subclass; its repr may be that of plain text
        return f"it is of type {type_name(key)}, and JSON keys are plain text: {_advice(key)}"
    return f"JSON keys are strings: pass str({key!r})"


def type_name(value: object) -> str:
    """Return the name of a value's type for a message: `datetime.datetime`, `tuple`."""
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


def with_article(noun: str) -> str:
    """Return the name of a type with its article: `an int`, `a uuid.UUID`."""
    return f"{'an' if noun.lower().startswith(VOWELS) else 'a'} {noun}"


def a_type(value: object) -> str:
    """Return the name of a value's type with its article, `null` for None, for a message."""
    return "null" if value is None else with_article(type_name(value))


def is_model(kind: type) -> bool:
    """Return whether a class is a model of Django: its instances are rows, which a job looks up by their key."""
    return hasattr(kind, "_meta") and hasattr(kind, "pk")


def _has_converter(kind: type) -> bool:
    """Return whether an annotation of `perform` can name the type (application/converters.py)."""
    return (
        issubclass(kind, (Enum, *CONVERTED))
        or dataclasses.is_dataclass(kind)
        or any(hasattr(kind, name) for name in CONVERTED_BY_ATTRIBUTE)
    )


def _advice(value: object) -> str:
    kind = type(value)
    if is_model(kind):
        return f"pass value.pk, and {kind.__name__}.objects.get(pk=…) in the job"
    if isinstance(value, Enum):
        return f"pass value.value, and {kind.__name__}(…) in the job"
    if hasattr(kind, "tolist") and hasattr(kind, "item"):  # numpy, torch, jax
        return "pass value.tolist()" if getattr(value, "ndim", 0) else "pass value.item()"
    for method, remedy in ADVICE_BY_METHOD.items():
        if hasattr(kind, method):
            return remedy
    if dataclasses.is_dataclass(kind):
        return f"pass dataclasses.asdict(value), and {kind.__name__}(**fields) in the job"
    return next(
        (ADVICE_BY_NAME[base.__name__] for base in kind.__mro__ if base.__name__ in ADVICE_BY_NAME), DEFAULT_ADVICE
    )
