"""Pidfile: what is no pidfile keeps what it has."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from kiqcluster.errors import UsageError
from kiqcluster.supervisor.pidfile import Pidfile


def test_a_link_is_refused_and_its_target_keeps_what_it_has(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("123\n")
    (tmp_path / "pid").symlink_to(target)

    with pytest.raises(UsageError, match="symbolic link"):
        Pidfile(str(tmp_path / "pid")).acquire()

    assert target.read_text() == "123\n"


@pytest.mark.parametrize("words", ["[settings]\n", "1 2\n", "7" * 100])
def test_a_file_that_holds_no_pid_is_refused_and_keeps_what_it_has(tmp_path: Path, words: str) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(words)

    with pytest.raises(UsageError, match="something other than a pid"):
        Pidfile(str(path)).acquire()

    assert path.read_text() == words


@pytest.mark.parametrize("words", ["", "4711\n", " 4711 "])
def test_an_empty_file_and_a_stale_pid_are_written_over(tmp_path: Path, words: str) -> None:
    path = tmp_path / "pid"
    path.write_text(words)
    pidfile = Pidfile(str(path))

    pidfile.acquire()

    assert path.read_text() == f"{os.getpid()}\n"
    pidfile.release()
    assert not path.exists()


def test_a_full_disk_is_refused_in_a_sentence_and_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(UsageError, match="cannot be written"):
            Pidfile(str(path)).acquire()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert not path.exists()
    pidfile = Pidfile(str(path))
    pidfile.acquire()
    pidfile.release()
