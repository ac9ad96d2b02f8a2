"""Streams: the standard streams of a process, whatever has been done to them, and what may be written there."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["clean", "drop_output", "flush_output", "open_missing"]


def open_missing() -> None:
    """Have /dev/null stand in for standard streams that were closed (`>&-`).

    The next socket would get the number of one, and with it what children and C libraries print.  No character is
    refused: nobody reads them.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode, errors="backslashreplace")  # noqa: SIM115  # for as long as we live
            os.set_inheritable(stream.fileno(), True)  # it has the lowest free number: the one that was missing
            setattr(sys, name, stream)


def drop_output() -> None:
    """Have output and errors go nowhere, with what could not be written yet: the last flush of each would fail."""
    with Path(os.devnull).open("wb") as nowhere:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere.fileno(), stream.fileno())


def clean(text: str) -> str:
    """Return a text in which every character that is not printable is written as an escape: \\n, \\x1b, \\u202e."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def flush_output() -> None:
    """Write out what was printed, so that a forked process does not print it again."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # the terminal is gone, or the stream was closed
            continue
