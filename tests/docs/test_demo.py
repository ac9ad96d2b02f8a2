"""The demonstration of `make demo`."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.demo import free_port
from tests.kit import ROOT

ADDRESSES = re.compile(r"^Metrics: http://127\.0\.0\.1:\d+/metrics\nWeb pages: http://127\.0\.0\.1:\d+/$", re.MULTILINE)


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty working directory with a short path: a unix socket's may not be long."""
    with tempfile.TemporaryDirectory(prefix="kiq-") as name:
        yield Path(name)


def demonstrate(folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("KIQ_", "REDIS_"))}
    return subprocess.run(
        [sys.executable, "-m", "examples.demo"],
        cwd=folder,
        env={**clean, "PYTHONPATH": str(ROOT), **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.full
def test_without_a_terminal_it_ends_once_every_job_is_done(folder: Path) -> None:
    done = demonstrate(folder, KIQ_LISTEN="off")  # it chooses the address itself

    assert (done.returncode, done.stderr) == (0, "")
    assert "Ctrl-C" not in done.stdout
    assert re.search(
        r"^Metrics: http://127\.0\.0\.1:\d+/metrics\nWeb pages: http://127\.0\.0\.1:\d+/$", done.stdout, re.MULTILINE
    )


def test_a_cluster_that_stops_early_is_told_in_one_line(folder: Path) -> None:
    done = demonstrate(folder, KIQ_STOP_TIMEOUT="0")

    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("The demonstration ends early")


def test_it_takes_another_port_where_its_usual_one_is_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        chosen = free_port(port)

    assert chosen != port
    assert capsys.readouterr().out == f"Port {port} is in use; this run uses {chosen} instead.\n"
