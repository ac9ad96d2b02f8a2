"""A Redis whose scripts read a clock that a test sets: the scripts are the real ones, but for their source of time."""

from __future__ import annotations

import hashlib
import re
from types import ModuleType

import pytest

from kiqcluster.store import Store
from kiqcluster.store.scripts import Script

__all__ = ["ServerClock", "on_server_clock"]

KEY = "test:clock"
TIME = re.compile(r"redis\.(p?call)\('TIME'\)")
TO_TEST_CLOCK = rf"redis.\1('HMGET', '{KEY}', 'seconds', 'microseconds')"


def on_server_clock(script: Script, *changes: tuple[str, str]) -> Script:
    """Return a script that reads the test's clock.  changes: of its text, to take a rule out; each must be there."""
    text, count = TIME.subn(TO_TEST_CLOCK, script.text)
    assert count
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return Script(script.name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


class ServerClock:
    """The clock of a server.  ahead: seconds that it is ahead of the test's."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.ahead = 0.0

    def set(self, now: float) -> None:
        """now: epoch seconds of the test's clock."""
        microseconds = round((now + self.ahead) * 1e6)
        words = ("seconds", microseconds // 1_000_000, "microseconds", microseconds % 1_000_000)
        self._store.call("HSET", KEY, *words)

    def use(self, monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
        """Have the scripts that these modules run read this clock."""
        for module in modules:
            for name, value in list(vars(module).items()):
                if isinstance(value, Script) and TIME.search(value.text):
                    monkeypatch.setattr(module, name, on_server_clock(value))
