"""Stdio: standard input, output and error of a process, also where they are closed or a terminal shows them."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

__all__ = ["NUMBERS", "clean", "drop_output", "flush_output", "occupy", "prepare"]

NUMBERS = (0, 1, 2)  # of the standard streams


def prepare() -> None:
    """Make standard streams that a command, and the jobs of its workers, can write to; its first step."""
    _open_missing()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what the locale's encoding lacks is shown as an escape
            stream.reconfigure(errors="backslashreplace")


def _open_missing() -> None:
    """Open /dev/null for each standard stream that was closed (`>&-`).

    Otherwise the next socket gets the number of that stream, and with it what children and C libraries print.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode, encoding="utf-8", errors="backslashreplace")  # noqa: SIM115  # open until the process ends
            os.set_inheritable(stream.fileno(), True)  # it has the lowest free number: that of the missing stream
            setattr(sys, name, stream)


def occupy() -> None:
    """Open /dev/null at each number of a standard stream that is closed: call it before a connection is opened.

    A job that closes one (`open(1, "w")` does, at its end) would have the next connection get the number, and all that
    is printed and logged be sent to Redis.  Raises OSError.
    """
    for number in NUMBERS:
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened in NUMBERS:
                os.set_inheritable(opened, True)
            else:
                os.close(opened)  # another thread was sooner


def drop_output() -> None:
    """Redirect output and errors to /dev/null: the last flush of a stream that cannot be written would fail."""
    with Path(os.devnull).open("wb") as null:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(null.fileno(), stream.fileno())


def clean(text: str) -> str:
    """Return a text with an escape for each character that is not printable: \\n, \\x1b, \\u202e."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def flush_output() -> None:
    """Flush output and errors, so that a forked process does not print the same again."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # the terminal is gone, or the stream was closed
            continue
