"""Carried on byte for byte: payloads with every key in every shape, and their members as they are spelled.

The scanner is the tests' own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from tests.shapes import BREAKING, KEYS, SHAPES

__all__ = ["JID", "each_alone", "golden_payloads", "left_alone", "spelled_members", "together"]

GOLDEN = Path(__file__).parent / "golden"
GAP = re.compile(r"[\s,:]*")
JID = "a" * 24
BASE = {
    "retry": "true",
    "queue": '"default"',
    "args": "[1.50]",
    "class": '"carried"',
    "jid": f'"{JID}"',
    "created_at": "1795168740.5",
}
# Keys that steer a run, or that Ruby's client needs; they are tried alone.
STEERING = {"class", "args", "jid", "queue", "retry", "dead", "compressed", "wrapped"}


def written_as(members: dict[str, str]) -> bytes:
    return ("{" + ",".join(f'"{key}":{value}' for key, value in members.items()) + "}").encode()


def each_alone() -> Iterator[tuple[str, bytes]]:
    """Yield a payload for each key in each shape."""
    for key in KEYS:
        for shape, text in SHAPES.items():
            yield f"{key}: {shape}", written_as({**BASE, key: text})


def together() -> Iterator[tuple[str, bytes]]:
    """Yield payloads with all keys in a shape, as far as Ruby can show them, and some with other spellings."""
    for shape, text in SHAPES.items():
        fitting = [key for key in KEYS if shape not in BREAKING.get(key, ()) and key not in STEERING]
        yield f"fitting: {shape}", written_as({**BASE, **dict.fromkeys(fitting, text)})
        breaking = [key for key in KEYS if shape in BREAKING.get(key, ()) and key not in STEERING]
        yield f"breaking: {shape}", written_as({**BASE, **dict.fromkeys(breaking, text)})
    whole = written_as({**BASE, **dict.fromkeys(set(KEYS) - STEERING - {"at"}, "null")})
    yield "keys that come twice", whole[:-1] + b',"x":1,"tags":[2],"x":2,"tags":["a"]}'
    yield "names with escapes", whole[:-1] + b',"\\u0078":1,"y\\/":2,"\\u00e9":3,"\xc3\xa8":4}'
    yield "spaces", whole[:-1].replace(b":null", b" : null ") + b', "x" : [ 1 , 2 ] }'
    yield "half a surrogate pair", whole[:-1] + b',"\\ud800":"\\ud800","x":1.50}'
    yield "beyond floats", whole[:-1] + b',"x":1e400,"y":1.50}'
    for each in golden_payloads():
        raw: bytes = each["bytes"].replace(json.loads(each["bytes"])["jid"].encode(), JID.encode())
        yield f"{each['by']}: {each['what']}", raw.replace(b"Shop::Ok", b"carried")
    yield "very deep", whole[:-1] + b',"x":' + b"[" * 300 + b"]" * 300 + b"}"


def golden_payloads() -> list[dict[str, Any]]:
    """Return what tests/golden/payloads.json has, `bytes` as bytes."""
    rows: list[dict[str, Any]] = json.loads((GOLDEN / "payloads.json").read_text(encoding="utf-8"))
    return [{**row, "bytes": row["bytes"].encode()} for row in rows]


def spelled_members(raw: bytes) -> list[tuple[str, str]]:
    """Return each member of a JSON object in its order: its name, and its name and value as they are spelled."""
    text, scanner = raw.decode(), json.JSONDecoder(parse_constant=_refuse)
    members, at = [], _after_gap(text, text.index("{") + 1)
    while text[at] != "}":
        name, end = scanner.raw_decode(text, at)
        start = _after_gap(text, end)
        _, value_end = scanner.raw_decode(text, start)
        members.append((name, f"{text[at:end]}:{text[start:value_end]}"))
        at = _after_gap(text, value_end)
    return members


def left_alone(raw: bytes, owned: Collection[str]) -> list[str]:
    """Return the members of a payload without some keys, as they are spelled."""
    return [spelled for name, spelled in spelled_members(raw) if name not in owned]


def _after_gap(text: str, at: int) -> int:
    gap = GAP.match(text, at)
    assert gap is not None
    return gap.end()


def _refuse(name: str) -> None:
    raise ValueError(name)
