"""kiqctl as a process of its own, and what it has said so far."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kiqcluster.ctl.command import command
from kiqcluster.ctl.text.pager import DefaultListGroup
from kiqcluster.store import Store
from tests import forkserver
from tests.kit import ROOT, TIMEOUT_SECONDS, wait_until


def all_commands() -> dict[str, Any]:
    """Return every command by its words; a group that is a command by itself, too."""
    found: dict[str, Any] = {}
    for name, each in command.commands.items():
        found |= {f"{name} {sub}": inner for sub, inner in getattr(each, "commands", {}).items()} or {name: each}
        if isinstance(each, DefaultListGroup):
            found[name] = each
    return found


def examples(words: str) -> list[list[str]]:
    """Return the calls of a command that its help has, each as the words after `kiqctl`."""
    lines = [line.strip().partition("    ")[0] for line in all_commands()[words].help.splitlines()]
    return [shlex.split(line)[1:] for line in lines if f"{line} ".startswith(f"kiqctl {words} ")]


@dataclass(slots=True)
class Running:
    """A kiqctl that runs.  lines: printed so far."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    reader: threading.Thread | None = None


class Kiqctl:
    """Runs kiqctl on a Redis; None leaves it to the environment of the call."""

    def __init__(self, redis: str | None) -> None:
        self._redis = redis
        self._running: list[Running] = []

    def __call__(self, *words: str, cwd: Path = ROOT, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        return self.end(self.start(*words, cwd=cwd, **environ))

    def start(self, *words: str, cwd: Path = ROOT, **environ: str) -> Running:
        """Start it; what it prints is read as it comes."""
        known = {} if self._redis is None else {"REDIS_URL": self._redis}
        command = [sys.executable, "-m", "kiqcluster.ctl", *words]
        strange = ("REDIS_URL", "COLUMNS", "LINES")  # pytest-xdist tells its workers of its own terminal
        clean = {name: value for name, value in os.environ.items() if name not in strange}
        process = forkserver.Popen(
            command, cwd=cwd, env={**clean, "PYTHONPATH": str(ROOT), **known, **environ},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        running = Running(process)
        running.reader = threading.Thread(target=self._read, args=(running,), daemon=True)
        running.reader.start()
        self._running.append(running)
        return running

    def end(self, running: Running, seconds: float = 2 * TIMEOUT_SECONDS) -> subprocess.CompletedProcess[str]:
        """Wait for its end; stdout is all that it has printed."""
        assert running.reader is not None
        assert running.process.stderr is not None
        try:
            code = running.process.wait(seconds)
        except subprocess.TimeoutExpired:
            running.process.kill()
            pytest.fail(f"kiqctl did not end within {seconds:g} s; it printed {running.lines}")
        running.reader.join()
        stderr = running.process.stderr.read()
        self._close(running)
        return subprocess.CompletedProcess(running.process.args, code, "".join(running.lines), stderr)

    def wait_printed(self, running: Running, line: str) -> None:
        wait_until(lambda: f"{line}\n" in running.lines, f"kiqctl to print {line!r}")

    @staticmethod
    def looks(store: Store) -> int:
        """Return how often somebody has looked at the process list since the server's start."""
        text: str = store.call("INFO", "commandstats").decode()
        line: Any = next((each for each in text.splitlines() if each.startswith("cmdstat_hmget:")), "calls=0,")
        return int(line.partition("calls=")[2].partition(",")[0])

    def close(self) -> None:
        for running in self._running:
            running.process.kill()
            running.process.wait()
            assert running.reader is not None
            running.reader.join(TIMEOUT_SECONDS)  # else it may find its pipe closed
            self._close(running)

    @staticmethod
    def _close(running: Running) -> None:
        for pipe in (running.process.stdout, running.process.stderr):
            if pipe is not None:
                pipe.close()

    @staticmethod
    def _read(running: Running) -> None:
        assert running.process.stdout is not None
        for line in running.process.stdout:
            running.lines.append(line)
