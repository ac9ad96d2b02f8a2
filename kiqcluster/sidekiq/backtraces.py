"""Backtraces: the key error_backtrace of a payload, in Sidekiq's form, and Python's tracebacks in it.  Pure.

encode   lines → base64(zlib(JSON array of texts)), as Sidekiq since 6.0.1; a plain array crashes the pages of 7 and 8
decode   the stored text → lines
packed   a traceback as Python prints it → the stored text: of a bounded size, and shown right by Ruby's pages

Ruby's pages put the lines into HTML as they are.  So the lines of a Python traceback are stored as HTML: characters of
source code as entities, indentation as no-break spaces.  `decode` takes both back.
"""

from __future__ import annotations

import base64
import binascii
import html
import re
import zlib
from collections.abc import Sequence

from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.ruby_json import JSON, is_unicode

__all__ = ["BACKTRACE", "MAX_BACKTRACE_BYTES", "MAX_TRACEBACK_CHARACTERS", "decode", "encode", "packed"]

BACKTRACE = "error_backtrace"  # the key
MAX_BACKTRACE_BYTES = 10_000_000  # of an unpacked backtrace: any process may have stored it
MAX_BACKTRACE_LINES = 100_000
MAX_TRACEBACK_CHARACTERS = 8_000  # of a stored traceback of Python
HEAD_CHARACTERS = 2_000  # of a longer one, that are kept from its begin; the others are from its end
MAX_PIECE_CHARACTERS = 1_000  # of a frame, or of a message
TITLE = "Traceback (most recent call last):"  # which no line of Ruby's is
NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"
INDENTATION = re.compile("^ +", re.MULTILINE)
FASTEST = 1  # of zlib: a third of the time, and 8 % more bytes


def encode(lines: Sequence[str]) -> str:
    """Return lines in the form of Sidekiq since 6.0.1."""
    return base64.b64encode(zlib.compress(ruby_json.encode(list(lines)), FASTEST)).decode()


def decode(stored: JSON) -> list[str] | None:
    """Return the lines of a stored backtrace (6.4's base64 has line breaks), or None if it is not a backtrace."""
    if not isinstance(stored, str):
        return None
    try:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(base64.b64decode(stored), MAX_BACKTRACE_BYTES)
        if not unpacker.eof or ruby_json.has_more_values(text, MAX_BACKTRACE_LINES):
            return None
        lines = ruby_json.decode(text)
    except (binascii.Error, zlib.error, ValueError):
        return None
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        return None
    return [_from_html(line) for line in lines] if any(line.endswith(TITLE) for line in lines) else lines


def packed(pieces: Sequence[str]) -> str:
    """Return a traceback in the form of `encode`.  pieces: as `traceback` formats it; a frame or a message each."""
    return encode(_as_html("\n".join(_bounded(pieces))).split("\n"))


def _bounded(pieces: Sequence[str]) -> list[str]:
    """Return all pieces without their last line breaks, or the first and the last ones."""
    short = [_shortened(piece.rstrip("\n"), MAX_PIECE_CHARACTERS) for piece in pieces]
    sizes = [len(piece) + 1 for piece in short]
    if (left_out := sum(sizes) - MAX_TRACEBACK_CHARACTERS) <= 0:
        return short
    first = _fitting(sizes, HEAD_CHARACTERS)
    last = _fitting(sizes[first:][::-1], MAX_TRACEBACK_CHARACTERS - HEAD_CHARACTERS)
    end = len(short) - last
    left_out = sum(sizes[first:end])
    return [*short[:first], f"  … {left_out} characters are left out …", *short[end:]]


def _fitting(sizes: Sequence[int], most: int) -> int:
    """Return how many of the first pieces have so many characters together."""
    count, total = 0, 0
    for size in sizes:
        total += size
        if total > most:
            break
        count += 1
    return count


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _as_html(text: str) -> str:
    sound = text if is_unicode(text) else text.encode(errors="replace").decode()
    return INDENTATION.sub(lambda found: NO_BREAK_SPACE * len(found[0]), html.escape(sound, quote=False))


def _from_html(line: str) -> str:
    bare = line.lstrip(NO_BREAK_SPACE)
    return " " * (len(line) - len(bare)) + html.unescape(bare)
