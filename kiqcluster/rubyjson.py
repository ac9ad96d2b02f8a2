"""JSON exactly as Ruby prints it, because Ruby finds entries again by their bytes.

Compact, raw UTF-8, only `"`, `\\` and control characters escaped, floats in Ruby's form (`1.0e+16`), integers of
any size.  msgspec does the work wherever its form is Ruby's; the slow paths serve extreme floats, lone
surrogates and integers beyond Python's digit limit.

Source: golden dumps of Ruby 6.4.1, 7.3.10 and 8.1.7, and json 2.6's generator.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec

__all__ = [
    "JSON",
    "Undecodable",
    "decode",
    "encode",
    "encode_arrays",
    "is_unicode",
    "members",
    "patch",
    "ruby_float",
    "ruby_reads",
]

JSON = Any  # what a decoded payload holds: dict, list, str, int, float, bool or None, nested

SMALLEST_PLAIN, LARGEST_PLAIN = 1e-4, 1e15  # |x| between them is printed alike by Ruby, Python and msgspec
INT_DIGITS_LIMIT = 4_300  # CPython refuses str ↔ int beyond this many digits (sys.int_info)

RUBY_NESTING = 100  # levels at which Ruby's parser stops

# Numbers in an array or object that msgspec may print unlike Ruby.  A string may hold such text too: that only costs
# the slow path.  Every payload is searched, so a match begins at few bytes and never goes back over a number.
EXTREME_NUMBER = re.compile(rb"[:,\[]-?(?:0\.0000|[0-9]{16,}+\.|[0-9]++(?:\.[0-9]++)?+e)")

# Between the members of an object that is known to be well-formed; each always matches.
SPACE, COLON, COMMA = re.compile(r"\s*"), re.compile(r"\s*:\s*"), re.compile(r"\s*,?\s*")

encode_fast = msgspec.json.Encoder().encode
encode_lines_fast = msgspec.json.Encoder().encode_lines
decode_fast = msgspec.json.Decoder().decode
decode_raw_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Undecodable(ValueError):
    """Bytes that are no JSON by Ruby's rules."""


def encode(value: JSON) -> bytes:
    """Return the bytes that Ruby's JSON.generate would print.

    Raises TypeError, ValueError or RecursionError for what JSON cannot hold.
    """
    try:
        encoded = encode_fast(value)
    except (ValueError, OverflowError):  # an integer beyond the digit limit, or a lone surrogate
        return _encode_slowly(value).encode()
    if EXTREME_NUMBER.search(encoded) or isinstance(value, float):
        return _encode_slowly(msgspec.to_builtins(value, str_keys=True)).encode()
    return encoded


def encode_arrays(arrays: Sequence[list[JSON]]) -> list[bytes] | None:
    """Return `encode` of each array, made all at once; None when one of them takes more than msgspec."""
    try:
        lines = encode_lines_fast(arrays)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None
    encoded = lines.split(b"\n")[:-1]  # in JSON, a line break within a string is an escape
    if len(encoded) != len(arrays) or EXTREME_NUMBER.search(lines):  # msgspec.Raw may hold anything
        return None
    return encoded


def decode(raw: bytes) -> JSON:
    """Return the decoded value; NaN and Infinity are no JSON.

    Raises Undecodable, with the parser's reason.
    """
    try:
        return decode_fast(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        # msgspec refuses lone surrogates, floats beyond the range and very long integers; others may have written them.
        try:
            return json.loads(raw.decode(), parse_constant=_refuse_constant, parse_int=_parse_int)
        except (ValueError, RecursionError) as error:
            raise Undecodable(f"{type(error).__name__}: {error}") from error


def patch(raw: bytes, changes: Mapping[str, JSON], without: Collection[str] = ()) -> bytes:
    """Return the JSON object `raw` with some keys replaced, added at the end, or left out.

    Values that are not named travel as the bytes they are, so floats and escapes of another producer survive.
    Raises Undecodable for what is no JSON object.
    """
    fields = members(raw)
    for key in without:
        fields.pop(key, None)
    for key, value in changes.items():
        fields[key] = msgspec.Raw(encode(value))
    try:
        return encode_fast(fields)
    except UnicodeEncodeError:  # a key with half a surrogate pair
        return b"{" + b",".join(encode(key) + b":" + bytes(value) for key, value in fields.items()) + b"}"


def members(raw: bytes) -> dict[str, Any]:
    """Return the members of the JSON object `raw`; bytes(…) of each is how it is written there.

    Raises Undecodable for what is no JSON object.
    """
    try:
        fields: dict[str, Any] = decode_raw_fields(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        fields = _split_fields(raw)  # lone surrogates, 1e400: msgspec does not look past them
    return fields


def _split_fields(raw: bytes) -> dict[str, Any]:
    """Return the members of a JSON object as raw bytes, by the standard library's scanner."""
    if not isinstance(decode(raw), dict):
        raise Undecodable("not a JSON object")
    text, scanner = raw.decode(), json.JSONDecoder(parse_int=_parse_int)
    fields: dict[str, Any] = {}
    at = _skip(SPACE, text, text.index("{") + 1)
    while text[at] != "}":
        key, at = scanner.raw_decode(text, at)
        start = _skip(COLON, text, at)
        _, at = scanner.raw_decode(text, start)
        fields[key] = msgspec.Raw(text[start:at].encode())
        at = _skip(COMMA, text, at)
    return fields


def _skip(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


def ruby_reads(raw: bytes) -> bool:
    """Return whether Ruby can parse these bytes, which we can: no half surrogate pairs, at most 100 levels."""
    try:
        value = decode(raw)
    except Undecodable:
        return False
    return _has_room(value, RUBY_NESTING)


def _has_room(value: JSON, levels: int) -> bool:
    if isinstance(value, str):
        return is_unicode(value)
    if isinstance(value, dict):
        return levels > 0 and all(is_unicode(key) and _has_room(each, levels - 1) for key, each in value.items())
    if isinstance(value, list):
        return levels > 0 and all(_has_room(each, levels - 1) for each in value)
    return True


def ruby_float(number: float) -> str:
    """Return a finite float as Ruby's Float#to_s prints it (flo_to_s in numeric.c: 17 digits fixed, else exponent)."""
    mantissa, _, exponent = f"{Decimal(repr(number)):e}".partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    digits = mantissa.lstrip("-").replace(".", "").rstrip("0") or "0"
    point = int(exponent) + 1  # digits before the decimal point
    if number == 0:
        return f"{sign}0.0"
    if 0 < point < len(digits):
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if len(digits) <= point <= 15:
        return f"{sign}{digits.ljust(point, '0')}.0"
    if -4 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    power = point - 1
    return f"{sign}{digits[0]}.{digits[1:] or '0'}e{'-' if power < 0 else '+'}{abs(power):02d}"


def _encode_slowly(value: JSON) -> str:
    if isinstance(value, dict):
        pairs = (f"{_encode_key(key)}:{_encode_slowly(each)}" for key, each in value.items())
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_encode_slowly, value)) + "]"
    if isinstance(value, float):
        if value - value != 0:
            raise ValueError(f"{value} is no JSON number")
        return ruby_float(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(Decimal(value)) if value.bit_length() > INT_DIGITS_LIMIT else str(value)
    if isinstance(value, str) and not is_unicode(value):
        return json.dumps(value)  # escapes, since UTF-8 has no bytes for half a surrogate pair
    return encode_fast(value).decode()


def is_unicode(text: str) -> bool:
    """Return whether the text can be written as UTF-8 (a lone surrogate cannot)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _encode_key(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"JSON keys are strings; {key!r} is {type(key).__name__}")
    return _encode_slowly(key)


def _parse_int(digits: str) -> int:
    return int(digits) if len(digits) < INT_DIGITS_LIMIT else int(Decimal(digits))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")
