"""JSON exactly as Ruby prints it, because Ruby finds entries again by their bytes.

Compact, raw UTF-8, only `"`, `\\` and control characters escaped, floats in Ruby's form, integers of any size.
msgspec encodes when its form equals Ruby's; slow paths handle floats that Ruby prints differently, lone surrogates and
integers beyond Python's digit limit.

Ruby has two forms of floats (ruby_float.py), by the version of its json gem; `write_floats_as` chooses one for the
whole process.  Readers take both.

Source: golden dumps of Ruby 6.4.1, 7.3.10 and 8.1.7, and the generators of json 2.6 and 2.16.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import islice
from typing import Any

import msgspec

from kiqcluster.sidekiq.ruby_float import FORMS, FloatForm, ruby_float

__all__ = [
    "JSON",
    "Undecodable",
    "decode",
    "encode",
    "encode_arrays",
    "has_more_values",
    "is_unicode",
    "members",
    "patch",
    "ruby_float",
    "ruby_reads",
    "ruby_writes",
    "write_floats_as",
]

JSON = Any  # a decoded value: dict, list, str, int, float, bool or None, nested

MAX_INT_DIGITS = 4_300  # CPython refuses str ↔ int beyond this many digits (sys.int_info)
# Of the only integer beyond that in one text, or of several that take as long: time grows by the square of the digits,
# and 100 000 of them take a second.
MAX_LONG_DIGITS = 25_000

QUOTE = ord('"')
RUBY_MAX_NESTING = 100  # levels at which Ruby's parser stops

# Matches numbers, and strings so that numbers inside them are left alone.  Only floats have a point or an exponent.
STRING_OR_NUMBER = re.compile(rb'"(?:[^"\\]++|\\.)*+"|-?[0-9]++(?:\.[0-9]++)?+(?:[eE][-+]?[0-9]++)?+', re.DOTALL)

# Matches what begins a value, but in strings.
STRING_OR_STRUCTURE = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[{,]', re.DOTALL)

# Separators in an object that is known to be well-formed; each always matches.
SPACE, COLON, COMMA = re.compile(r"\s*"), re.compile(r"\s*:\s*"), re.compile(r"\s*,?\s*")

encode_fast = msgspec.json.Encoder().encode
encode_lines_fast = msgspec.json.Encoder().encode_lines
decode_fast = msgspec.json.Decoder().decode
decode_raw_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class InForce:
    """Holder of the form of floats in use; reading the configuration sets it."""

    form = FORMS["2.12"]


def write_floats_as(version: str) -> None:
    """Use the floats of this version of Ruby's json gem, in the whole process.  version: a key of FORMS."""
    InForce.form = FORMS[version]


class Undecodable(ValueError):
    """The bytes are not JSON by Ruby's rules, or their integers have too many digits."""


def encode(value: JSON) -> bytes:
    """Return the bytes that Ruby's JSON.generate would print.

    Raises TypeError, ValueError or RecursionError for values that JSON cannot represent, or that `decode` would refuse.
    """
    try:
        encoded = encode_fast(value)
    except (ValueError, OverflowError):  # an integer beyond the digit limit, or a lone surrogate
        encoded = _encode_slowly(value).encode()
        decode(encoded)  # raises for integers with more digits than readers take
        return encoded
    form = InForce.form
    if isinstance(value, float):
        return _encode_slowly(value).encode()
    if form.may_differ.search(encoded):
        return _with_floats(encoded, form)
    return encoded


def _with_floats(encoded: bytes, form: FloatForm) -> bytes:
    """Return JSON with each float in this form."""

    def written(found: re.Match[bytes]) -> bytes:
        text = found[0]
        if text[0] == QUOTE or not (b"." in text or b"e" in text):
            return text
        return form.write(float(text)).encode()

    return STRING_OR_NUMBER.sub(written, encoded)


def encode_arrays(arrays: Sequence[list[JSON]]) -> list[bytes] | None:
    """Return `encode` of each array, encoded together; None when msgspec alone cannot encode one of them."""
    try:
        lines = encode_lines_fast(arrays)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None
    if InForce.form.may_differ.search(lines):
        lines = _with_floats(lines, InForce.form)
    encoded = lines.split(b"\n")[:-1]  # in JSON, a line break within a string is an escape
    return encoded if len(encoded) == len(arrays) else None  # msgspec.Raw may hold anything


def decode(raw: bytes) -> JSON:
    """Return the decoded value; NaN and Infinity are not JSON.

    Raises Undecodable, with the parser's reason.
    """
    try:
        return decode_fast(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        # msgspec refuses lone surrogates, floats out of range and very long integers; other programs may write them.
        try:
            return json.loads(raw.decode(), parse_constant=_refuse_constant, parse_int=IntegerReader())
        except (ValueError, RecursionError) as error:
            raise Undecodable(f"{type(error).__name__}: {error}") from error


def has_more_values(raw: bytes, most: int) -> bool:
    """Return whether JSON has more than `most` values.  A member of an object is one, an empty list counts twice.

    For JSON that was unpacked from a few bytes: `[],` has three bytes, and takes 64 of memory.
    """
    if raw.count(b",") + raw.count(b"[") + raw.count(b"{") < most:
        return False
    structure = (found for found in STRING_OR_STRUCTURE.finditer(raw) if raw[found.start()] != QUOTE)
    return next(islice(structure, most - 1, None), None) is not None


class IntegerReader:
    """Reads the integers of one text of JSON.  Raises ValueError where they would take too long."""

    def __init__(self) -> None:
        self._left = MAX_LONG_DIGITS**2

    def __call__(self, digits: str) -> int:
        """Return an integer."""
        if len(digits) < MAX_INT_DIGITS:
            return int(digits)
        self._left -= len(digits) ** 2
        if self._left < 0:
            raise ValueError(f"its integers take longer to read than one of {MAX_LONG_DIGITS} digits")
        return int(Decimal(digits))


def patch(raw: bytes, changes: Mapping[str, JSON], without: Collection[str] = ()) -> bytes:
    """Return the JSON object `raw` with some keys replaced, added at the end, or left out.

    All other keys are carried on byte for byte: their names and values as another producer has spelled them, also
    those that it has written twice.  Raises Undecodable if `raw` is not a JSON object.
    """
    fields = members(raw)
    try:
        if encode_fast(fields) == raw:  # it has no name that is spelled with escapes, none twice, and no spaces
            for key in without:
                fields.pop(key, None)
            for key, value in changes.items():
                fields[key] = msgspec.Raw(encode(value))
            return encode_fast(fields)
    except UnicodeEncodeError:  # a name with half a surrogate pair
        pass
    return _patch_spelled(raw, changes, without)


def _patch_spelled(raw: bytes, changes: Mapping[str, JSON], without: Collection[str]) -> bytes:
    """Do what `patch` does where the members have to keep the spelling of their names."""
    written, left = list[str](), dict(changes)
    for key, spelled, value in _spelled_members(raw):
        if key in without:
            continue
        if key in left:
            written.append(f"{spelled}:{encode(left.pop(key)).decode()}")
        elif key not in changes:
            written.append(f"{spelled}:{value}")
    written += [f"{encode(key).decode()}:{encode(value).decode()}" for key, value in left.items()]
    return ("{" + ",".join(written) + "}").encode()


def members(raw: bytes) -> dict[str, Any]:
    """Return the members of the JSON object `raw`; bytes(…) of each gives its original text.

    Raises Undecodable if `raw` is not a JSON object.
    """
    try:
        fields: dict[str, Any] = decode_raw_fields(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):  # lone surrogates, 1e400: msgspec cannot skip them
        fields = {key: msgspec.Raw(value.encode()) for key, _, value in _spelled_members(raw)}
    return fields


def _spelled_members(raw: bytes) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each member of a JSON object, and its name and value as they are spelled."""
    if not isinstance(decode(raw), dict):
        raise Undecodable("not a JSON object")
    text, scanner = raw.decode(), json.JSONDecoder(parse_int=IntegerReader())
    at = _skip(SPACE, text, text.index("{") + 1)
    while text[at] != "}":
        key, end = scanner.raw_decode(text, at)
        start = _skip(COLON, text, end)
        _, value_end = scanner.raw_decode(text, start)
        yield key, text[at:end], text[start:value_end]
        at = _skip(COMMA, text, value_end)


def _skip(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


def ruby_reads(raw: bytes) -> bool:
    """Return whether Ruby can parse these bytes, which we can parse, and write them again."""
    try:
        return ruby_writes(decode(raw))
    except Undecodable:
        return False


def ruby_writes(value: JSON) -> bool:
    """Return whether Ruby can parse this value, and write it again.

    It cannot with half a surrogate pair, more than 100 levels, or a number out of range: it reads 1e400 as infinity.
    """
    return _has_room(value, RUBY_MAX_NESTING)


def _has_room(value: JSON, levels: int) -> bool:
    if isinstance(value, str):
        return is_unicode(value)
    if isinstance(value, dict):
        return levels > 0 and all(is_unicode(key) and _has_room(each, levels - 1) for key, each in value.items())
    if isinstance(value, list):
        return levels > 0 and all(_has_room(each, levels - 1) for each in value)
    return not isinstance(value, float) or value - value == 0


def _encode_slowly(value: JSON) -> str:
    if isinstance(value, dict):
        pairs = (f"{_encode_key(key)}:{_encode_slowly(each)}" for key, each in value.items())
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_encode_slowly, value)) + "]"
    if isinstance(value, float):
        if value - value != 0:
            raise ValueError(f"{value} is not a JSON number")
        return InForce.form.write(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(Decimal(value)) if value.bit_length() > MAX_INT_DIGITS else str(value)
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
    """Return a key as the fast encoder writes it, which takes numbers and some others.  Raises TypeError."""
    if not isinstance(key, str):
        return encode_fast({key: None}).decode()[1 : -len(":null}")]
    return _encode_slowly(key)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")
