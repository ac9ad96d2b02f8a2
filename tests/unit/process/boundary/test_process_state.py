"""The state that all jobs of a process share, and a job can change."""

from __future__ import annotations

import locale
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kiqcluster.process.boundary.process_state import changes, read


@pytest.fixture(autouse=True)
def _put_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before, mask = locale.setlocale(locale.LC_ALL), os.umask(0)
    os.umask(mask)
    monkeypatch.chdir(Path.cwd())
    yield
    os.umask(mask)
    locale.setlocale(locale.LC_ALL, before)
    monkeypatch.undo()
    time.tzset()


def move(tmp_path: Path, _monkeypatch: pytest.MonkeyPatch) -> None:
    os.chdir(tmp_path)


def mask(_tmp_path: Path, _monkeypatch: pytest.MonkeyPatch) -> None:
    os.umask(0o077)


def travel(_tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()


def speak(_tmp_path: Path, _monkeypatch: pytest.MonkeyPatch) -> None:
    locale.setlocale(locale.LC_NUMERIC, "C.UTF-8" if locale.setlocale(locale.LC_NUMERIC) == "C" else "C")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (move, "working directory"),
        pytest.param(
            mask, "umask", marks=pytest.mark.skipif(sys.platform != "linux", reason="it cannot be read there")
        ),
        (travel, "time zone"),
        (speak, "locale"),
    ],
)
def test_a_change_is_seen(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path, pytest.MonkeyPatch], None],
    what: str,
) -> None:
    before = read()
    assert list(changes(before, read())) == []

    change(tmp_path, monkeypatch)

    assert [each for each, _, _ in changes(before, read())] == [what]


def test_a_directory_that_is_gone_is_none(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()

    assert read().directory == ""
