"""The stored backtrace: Sidekiq's form, Python's tracebacks in it, and their size."""

from __future__ import annotations

import base64
import zlib

import pytest

from kiqcluster.sidekiq import backtraces, ruby_json
from kiqcluster.sidekiq.backtraces import MAX_TRACEBACK_CHARACTERS, TITLE

FRAME = '  File "/app/<string>.py", line {}, in <module>\n    if a < b & c: raise "x"  # &lt;\n       ^^^^^\n'
PIECES = [f"{TITLE}\n", FRAME.format(1), FRAME.format(2), "shop.Error: <b>no</b>\nmore\n"]


def stored_lines(stored: str) -> list[str]:
    """Return the lines as Ruby's pages get them."""
    lines: list[str] = ruby_json.decode(zlib.decompress(base64.b64decode(stored)))
    return lines


def test_lines_come_back() -> None:
    lines = ["/app/jobs.py:3:in 'perform'", "é:1:in 'f'", "x.rb:1:in `<main>' &lt;"]

    assert backtraces.decode(backtraces.encode(lines)) == lines


def test_the_line_breaks_of_sidekiq_6_do_not_matter() -> None:
    lines = [f"/some/long/path/{number}.rb:{number}:in `perform'" for number in range(50)]
    stored = base64.encodebytes(zlib.compress(ruby_json.encode(lines))).decode()

    assert "\n" in stored.strip()
    assert backtraces.decode(stored) == lines


def test_a_traceback_comes_back_as_python_printed_it() -> None:
    assert backtraces.decode(backtraces.packed(PIECES)) == "".join(PIECES).splitlines()


def test_rubys_pages_put_it_into_html_as_it_is() -> None:
    lines = stored_lines(backtraces.packed(PIECES))

    assert not any("<" in line for line in lines)
    assert lines[2] == '\u00a0\u00a0\u00a0\u00a0if a &lt; b &amp; c: raise "x"  # &amp;lt;'


@pytest.mark.parametrize("frames", [0, 20, 5_000])
@pytest.mark.parametrize("message", ["no", "x" * 100_000, "line\n" * 20_000, "\ud800 <" * 9_000])
def test_its_size_is_bounded_and_it_has_both_ends(frames: int, message: str) -> None:
    pieces = [f"{TITLE}\n", *map(FRAME.format, range(frames)), f"shop.Error: {message}\n"]

    lines = backtraces.decode(backtraces.packed(pieces))

    assert lines is not None
    assert len("\n".join(lines)) < MAX_TRACEBACK_CHARACTERS + 100
    assert lines[0] == TITLE
    assert any(line.startswith("shop.Error: ") for line in lines)
    assert frames == 0 or any(f"line {frames - 1}, in" in line for line in lines)
    assert any("characters are left out" in line for line in lines) == (frames > 40)
