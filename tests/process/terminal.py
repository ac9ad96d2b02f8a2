"""A program in a terminal of a test's own, and what its screen shows (pyte reads what is written to it)."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Mapping, Sequence

import pyte
import pytest

from tests.forkserver import Login
from tests.kit import ROOT, TIMEOUT_SECONDS, wait_until


def without_size(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment that says nothing of a terminal's size: pytest-xdist tells its workers of its own."""
    return {name: value for name, value in environ.items() if name not in ("COLUMNS", "LINES")}


class Terminal:
    """A pseudo-terminal with a program in it.

    Shared with the thread that reads: `_screen`, `_text`, `_ever`, under `_lock`.
    """

    def __init__(self, command: Sequence[str], columns: int = 100, lines: int = 30, **environ: str) -> None:
        self._keyboard, inside = pty.openpty()
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self._ever: set[str] = set()  # lines that the screen has shown
        self._text: str | None = None  # of the screen, as long as nothing has been written since it was asked for
        self._lock = threading.Lock()
        self.resize(columns, lines)
        known = {**without_size(os.environ), "TERM": "xterm-256color", "PYTHONPATH": str(ROOT), **environ}
        self.process = Login(command, inside, cwd=ROOT, env=known)
        self._before = termios.tcgetattr(self._keyboard)
        os.close(inside)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def lines(self) -> list[str]:
        """What the screen shows, without the spaces at the ends."""
        return self.text.split("\n")

    @property
    def text(self) -> str:
        with self._lock:
            if self._text is None:
                self._text = "\n".join(line.rstrip() for line in self._screen.display)
            return self._text

    def colour_of(self, word: str) -> str:
        """Return the colour of a word that the screen shows; `default` where it has none."""
        with self._lock:
            at = next(number for number, line in enumerate(self._screen.display) if word in line)
            return str(self._screen.buffer[at][self._screen.display[at].index(word)].fg)

    def press(self, keys: str) -> None:
        os.write(self._keyboard, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        with self._lock:
            self._text = None
            self._screen.resize(lines, columns)
        fcntl.ioctl(self._keyboard, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def wait_shown(self, *words: str) -> str:
        """Wait until the screen shows all of these; return what it shows."""
        try:
            wait_until(lambda: all(word in self.text for word in words), f"the screen to show {words}")
        except BaseException:
            print(self.text)
            raise
        return self.text

    def wait_told(self, word: str) -> None:
        """Wait until the screen shows a word, or has shown it: a notice goes away by itself."""

        def is_told() -> bool:
            with self._lock:
                return any(word in line for line in self._ever)

        wait_until(is_told, f"the screen to show {word}")

    def wait(self, seconds: float = TIMEOUT_SECONDS) -> int:
        """Return the program's exit code, once the screen shows all that it has written."""
        try:
            code = self.process.wait(seconds)
            self._reader.join(seconds)
            return code
        except subprocess.TimeoutExpired:
            pytest.fail(f"the program did not end within {seconds:g} s; its screen shows\n{self.text}")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    @property
    def is_as_before(self) -> bool:
        """Whether lines are edited and echoed again, as they were before the program began."""
        return termios.tcgetattr(self._keyboard)[:4] == self._before[:4]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(TIMEOUT_SECONDS)
        os.close(self._keyboard)

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._keyboard, 65_536)
            except OSError:  # nobody has the other end any more
                return
            with self._lock:
                self._text = None
                self._stream.feed(data)
                self._ever.update(line.rstrip() for line in self._screen.display)
