"""deploy/rolling-deploy, beside a kiqctl that notes what it is told: the order of things, and what failure leads to."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit import ROOT, is_alive, require, wait_until

SCRIPT = ROOT / "deploy" / "rolling-deploy"
BEGIN, COMMIT = "kiqctl deploy begin --lease 15m", "kiqctl deploy commit --patience 15m"
ASK, ABORT = "kiqctl deploy status", "kiqctl deploy abort --patience 15m"
HELD = "6\n"  # how kiqctl ends when somebody else has the lock

# Notes what it is told.  A file named like its second word says with which code to end; a FIFO makes it wait for that.
KIQCTL = """#!/bin/sh
echo "kiqctl $*" >> calls
if [ -e "$2" ]; then read code < "$2"; fi
exit "${code:-0}"
"""

Deploy = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def stage(tmp_path: Path) -> Path:
    """A folder with that kiqctl in it."""
    require("bash", "bash")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "kiqctl").write_text(KIQCTL)
    (tmp_path / "bin" / "kiqctl").chmod(0o755)
    return tmp_path


@pytest.fixture
def deploy(stage: Path) -> Deploy:
    """Start the script there."""

    def start(*words: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [SCRIPT, *words],
            cwd=stage,
            env={"PATH": f"{stage / 'bin'}:{os.environ['PATH']}"},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start


def calls(stage: Path) -> list[str]:
    """Return what was called, but for the question whose lock it is."""
    path = stage / "calls"
    return [line for line in path.read_text().splitlines() if line != ASK] if path.exists() else []


def code(script: subprocess.Popen[str]) -> int:
    """Return how it ended."""
    script.communicate(timeout=20)
    return script.returncode


def note(word: str) -> tuple[str, ...]:
    """Return a command that notes a word between what kiqctl is told."""
    return "sh", "-c", f"echo {word} >> calls"


class TestOrder:
    def test_quiet_comes_before_the_release_and_the_replacement_after_it(self, deploy: Deploy, stage: Path) -> None:
        assert code(deploy("--", *note("release"))) == 0

        assert calls(stage) == [BEGIN, "release", COMMIT]

    def test_options_go_where_they_belong(self, deploy: Deploy, stage: Path) -> None:
        words = ["--lease", "1h", "--label", "v 42", "--timeout", "20m", "--host", "a", "--host", "b"]

        assert code(deploy(*words, "--", *note("release"))) == 0

        assert calls(stage) == [
            "kiqctl deploy begin --lease 1h --label v 42 --host a --host b",
            "release",
            "kiqctl deploy commit --patience 1h --timeout 20m --host a --host b",
        ]

    def test_the_release_gets_its_words_and_our_input_as_they_are(self, deploy: Deploy, stage: Path) -> None:
        script = deploy(
            "--", "sh", "-c", 'cat > "$1"; echo "$2" >> "$1"', "sh", "a b", "--lease", stdin=subprocess.PIPE
        )

        script.communicate("hello\n", timeout=20)

        assert (stage / "a b").read_text() == "hello\n--lease\n"
        assert calls(stage) == [BEGIN, COMMIT]

    @pytest.mark.parametrize("words", [[], ["--lease"], ["--lease", "5m"], ["--what", "--", "true"], ["true"]])
    def test_nothing_is_done_when_it_is_called_wrongly(self, words: list[str], deploy: Deploy, stage: Path) -> None:
        assert code(deploy(*words)) == 2

        assert calls(stage) == []

    def test_nothing_is_released_where_there_is_no_kiqctl(self, deploy: Deploy, stage: Path) -> None:
        (stage / "bin" / "kiqctl").unlink()
        environ = {"PATH": f"{stage / 'bin'}:/usr/bin:/bin", "KIQCTL": "no-kiqctl-here"}

        done = subprocess.run([SCRIPT, "--", *note("release")], cwd=stage, env=environ, capture_output=True)

        assert done.returncode == 127
        assert calls(stage) == []


class TestFailure:
    def test_a_release_that_fails_resumes_the_fleet(self, deploy: Deploy, stage: Path) -> None:
        assert code(deploy("--", "sh", "-c", "exit 7")) == 7

        assert calls(stage) == [BEGIN, ABORT]

    def test_a_release_that_is_not_there_resumes_the_fleet(self, deploy: Deploy, stage: Path) -> None:
        assert code(deploy("--host", "a", "--", "./no-such-command")) == 127

        assert calls(stage) == [f"{BEGIN} --host a", f"{ABORT} --host a"]

    def test_a_fleet_that_would_not_be_quiet_gets_no_release(self, deploy: Deploy, stage: Path) -> None:
        (stage / "begin").write_text("1\n")

        assert code(deploy("--undo", "echo undone >> calls", "--", *note("release"))) == 1

        assert calls(stage) == [BEGIN, ABORT]  # some of it may be quiet

    def test_a_replacement_that_fails_resumes_the_fleet(self, deploy: Deploy, stage: Path) -> None:
        (stage / "commit").write_text("1\n")

        assert code(deploy("--", *note("release"))) == 1

        assert calls(stage) == [BEGIN, "release", COMMIT, ABORT]

    def test_what_was_released_is_undone_before_the_fleet_works_on(self, deploy: Deploy, stage: Path) -> None:
        (stage / "commit").write_text("1\n")

        assert code(deploy("--undo", "echo undone >> calls; exit 9", "--", *note("release"))) == 1

        assert calls(stage) == [BEGIN, "release", COMMIT, "undone", ABORT]

    def test_its_own_code_is_kept_when_the_fleet_cannot_be_resumed(self, deploy: Deploy, stage: Path) -> None:
        (stage / "abort").write_text("5\n")

        assert code(deploy("--", "sh", "-c", "exit 7")) == 7

        assert calls(stage) == [BEGIN, ABORT]

    def test_while_another_deploys_nothing_is_done(self, deploy: Deploy, stage: Path) -> None:
        (stage / "begin").write_text(HELD)

        assert code(deploy("--force", "--undo", "echo undone >> calls", "--", *note("release"))) == 6

        assert calls(stage) == [f"{BEGIN} --force"]

    def test_what_another_deploy_has_taken_is_left_to_it(self, deploy: Deploy, stage: Path) -> None:
        (stage / "commit").write_text("1\n")
        (stage / "status").write_text(HELD)

        assert code(deploy("--undo", "echo undone >> calls", "--", *note("release"))) == 1

        assert calls(stage) == [BEGIN, "release", COMMIT]


class TestSignals:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    def test_one_during_the_release_ends_that_and_resumes_the_fleet(
        self, number: signal.Signals, deploy: Deploy, stage: Path
    ) -> None:
        script = deploy("--undo", "echo undone >> calls", "--", "sh", "-c", "echo $$ > pid; exec sleep 600")
        wait_until(lambda: (stage / "pid").exists() and (stage / "pid").read_text().strip(), "the release to run")
        release = int((stage / "pid").read_text())

        script.send_signal(number)

        assert code(script) == 128 + number
        assert not is_alive(release)
        assert calls(stage) == [BEGIN, "undone", ABORT]

    @pytest.mark.parametrize(("step", "so_far"), [("begin", [BEGIN]), ("commit", [BEGIN, "release", COMMIT])])
    def test_one_while_kiqctl_waits_resumes_the_fleet(
        self, step: str, so_far: list[str], deploy: Deploy, stage: Path
    ) -> None:
        os.mkfifo(stage / step)
        script = deploy("--", *note("release"))
        wait_until(lambda: calls(stage) == so_far, f"kiqctl deploy {step}")

        script.send_signal(signal.SIGTERM)

        assert code(script) == 128 + signal.SIGTERM
        assert calls(stage) == [*so_far, ABORT]

    def test_a_second_one_does_not_keep_the_fleet_quiet(self, deploy: Deploy, stage: Path) -> None:
        os.mkfifo(stage / "abort")
        script = deploy("--", "sh", "-c", "exit 7")
        wait_until(lambda: calls(stage) == [BEGIN, ABORT], "kiqctl deploy abort")

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            script.send_signal(number)
        with (stage / "abort").open("w") as fifo:  # a reader is still there
            fifo.write("0\n")

        assert code(script) == 7


def test_shellcheck_has_nothing_to_say() -> None:
    done = subprocess.run([require("shellcheck", "shellcheck"), SCRIPT], capture_output=True, text=True)

    assert done.stdout == ""
