"""A program that the tests start from a process with its modules imported runs as if it had been started plainly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests import forkserver
from tests.kit import ROOT

APP = ["-r", "tests.apps.basic", "default"]


def outcome(popen: type[subprocess.Popen[str]], words: list[str], cwd: Path) -> tuple[int, str, str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "KIQ_TIMEOUT": "7", "TZ": "Asia/Tokyo"}
    with popen(
        [sys.executable, "-m", *words], cwd=cwd, env=environ, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        stdout, stderr = process.communicate(timeout=60)
    return process.returncode, stdout, stderr


@pytest.mark.parametrize(
    "words",
    [
        ["kiqcluster", "--print-config", *APP],
        ["kiqcluster", "--nonsense"],
        ["kiqcluster.ctl", "nonsense"],
        ["kiqcluster.ctl", "--version"],
    ],
)
def test_output_and_exit_code_are_those_of_a_plain_start(words: list[str], tmp_path: Path) -> None:
    served = outcome(forkserver.Popen, words, tmp_path)

    assert served == outcome(subprocess.Popen, words, tmp_path)


def test_the_process_is_a_child_of_the_tests_in_a_session_of_its_own() -> None:
    words = [sys.executable, "-m", "kiqcluster", *APP, "--listen", "off", "--redis", "redis://127.0.0.1:1/0"]
    with forkserver.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        running = psutil.Process(process.pid)
        session, parent, command = os.getsid(process.pid), running.ppid(), running.cmdline()
        process.send_signal(signal.SIGKILL)

    assert process.returncode == -signal.SIGKILL
    assert (session, parent) == (process.pid, os.getpid())
    assert "tests.forkserver" in command  # else these tests compare nothing


def test_a_program_that_finds_another_kiqcluster_first_runs_that(tmp_path: Path) -> None:
    (tmp_path / "kiqcluster").mkdir()
    (tmp_path / "kiqcluster" / "__init__.py").touch()
    (tmp_path / "kiqcluster" / "__main__.py").write_text("print('another')")

    assert outcome(forkserver.Popen, ["kiqcluster"], tmp_path) == (0, "another\n", "")


@pytest.mark.parametrize(("name", "value"), [("PYTHONUTF8", "1"), ("LC_ALL", "C"), ("KIQ_FORKSERVER", "0")])
def test_a_program_whose_interpreter_would_differ_is_started_plainly(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {**os.environ, name: value}
    if name == "KIQ_FORKSERVER":
        monkeypatch.setenv(name, value)
    words = [sys.executable, "-m", "kiqcluster", *APP, "--listen", "off", "--redis", "redis://127.0.0.1:1/0"]

    with forkserver.Popen(words, cwd=ROOT, env=environ, stdout=subprocess.DEVNULL) as process:
        command = psutil.Process(process.pid).cmdline()
        process.kill()

    assert "tests.forkserver" not in command
