"""A program that the tests start from a process with its modules imported runs as if it had been started plainly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import forkserver
from tests.kit import ROOT

APP = ["-r", "tests.apps.basic", "default"]


@pytest.fixture(autouse=True)
def _is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the server used where `make test-all` has all other tests do without it."""
    monkeypatch.delenv("KIQ_FORKSERVER", raising=False)


def outcome(popen: type[subprocess.Popen[str]], words: list[str], cwd: Path) -> tuple[int, str, str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "KIQ_STOP_TIMEOUT": "7", "TZ": "Asia/Tokyo"}
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
        pytest.param(["kiqcluster", "--nonsense"], marks=pytest.mark.full),
        ["kiqcluster.ctl", "nonsense"],
        pytest.param(["kiqcluster.ctl", "--version"], marks=pytest.mark.full),
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


@pytest.mark.parametrize("words", [["-c", "import sys; print(sys.argv, sys.path[0], __name__)", "x"], ["a.py", "x"]])
def test_so_are_those_of_sources(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("HERE = 7")
    (tmp_path / "a.py").write_text(
        "import sys, other; print(sys.argv, sys.path[0], __name__, __file__, other.HERE); sys.exit(3)"
    )

    def told(run: Callable[..., subprocess.CompletedProcess[str]], **options: Any) -> tuple[int, str]:
        done = run([sys.executable, *words], cwd=tmp_path, **options)
        return done.returncode, done.stdout

    assert told(forkserver.run) == told(subprocess.run, capture_output=True, text=True)


class TestInstalled:
    """A program that a shell starts."""

    @pytest.fixture
    def kiqctl(self, tmp_path: Path) -> Path:
        forkserver.install(tmp_path / "kiqctl", "kiqcluster.ctl")
        return tmp_path / "kiqctl"

    @pytest.mark.parametrize(
        "words",
        [
            *(pytest.param([word], marks=pytest.mark.full) for word in ("--version", "nonsense")),
            ["stats", "--redis", "redis://127.0.0.1:1/0"],
        ],
    )
    def test_it_prints_and_ends_as_it_does_elsewhere(self, kiqctl: Path, words: list[str]) -> None:
        plain = [sys.executable, "-m", "kiqcluster.ctl", *words]
        served, expected = (
            subprocess.run(each, cwd=ROOT, capture_output=True, text=True) for each in ([str(kiqctl), *words], plain)
        )

        assert (served.returncode, served.stdout, served.stderr) == (
            expected.returncode,
            expected.stdout,
            expected.stderr,
        )

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
    def test_a_signal_ends_it_everywhere(self, tmp_path: Path, number: signal.Signals) -> None:
        (tmp_path / "waits.py").write_text("import sys; print('here', flush=True); sys.stdin.read()")
        forkserver.install(tmp_path / "waits", "waits")
        pipe = subprocess.PIPE
        with subprocess.Popen([str(tmp_path / "waits")], cwd=tmp_path, stdin=pipe, stdout=pipe, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()  # it runs

            process.send_signal(number)

            process.stdout.read()  # until nobody can write any more
        assert process.returncode == -number


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


@pytest.mark.parametrize("name", ["LANG", "SSL_CERT_FILE"])
def test_a_program_that_lacks_a_variable_which_changes_nothing_is_started_by_the_server(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, os.environ.get(name, "C.UTF-8"))
    environ = {each: value for each, value in os.environ.items() if each != name}

    with forkserver.Popen([sys.executable, "-c", "input()"], env=environ, stdin=subprocess.PIPE) as process:
        command = psutil.Process(process.pid).cmdline()

    assert "tests.forkserver" in command
