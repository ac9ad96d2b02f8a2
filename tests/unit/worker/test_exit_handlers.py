"""Exit handlers of a forked process: a program that makes a temporary directory, and forks."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
from pathlib import Path
from tempfile import TemporaryDirectory
from kiqcluster.worker.exit_handlers import disown_finalizers, run_exit_handlers

shared = TemporaryDirectory()
pid = os.fork()
if pid == 0:
    if sys.argv[1] == "disowned":
        disown_finalizers()
    own = TemporaryDirectory(dir=shared.name if sys.argv[1] == "disowned" else None)
    run_exit_handlers(5.0, 1, lambda _seconds: None)
    os._exit(Path(own.name).exists())
print(os.waitpid(pid, 0)[1], Path(shared.name).exists())
"""


@pytest.mark.parametrize(("way", "told"), [("disowned", "0 True"), ("as Python does", "0 False")])
def test_a_worker_removes_its_own_directories_only(way: str, told: str) -> None:
    """A directory that was made before the fork is the supervisor's, and every worker's."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM, way], capture_output=True, text=True, check=True)

    assert ended.stdout.strip() == told
