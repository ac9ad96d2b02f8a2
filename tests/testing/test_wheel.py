"""The wheel: what it installs has the plugin, and pytest finds it there."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.kit import ROOT

SUITE = """
from kiqcluster import job
from kiqcluster.testing import assert_enqueued, drain

@job(queue="mailers")
def welcome(user_id): print("welcome", user_id)

def test_it(kiq_fake, kiq_clock):
    welcome.perform_in(60, 7)
    assert_enqueued(welcome, 7, queue="mailers", in_=60)
    kiq_clock.move(60)
    assert drain() == 1

def test_redis(kiq_store):
    welcome.perform_async(8)
    assert kiq_store.call("LLEN", "queue:mailers") == 1
"""


def run(*words: str | Path, cwd: Path) -> str:
    """Run a command to its end; return what it printed."""
    done = subprocess.run([str(word) for word in words], cwd=cwd, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_fresh_environment_with_the_wheel_has_the_plugin(tmp_path: Path) -> None:
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, ROOT, cwd=tmp_path)
    (wheel,) = tmp_path.glob("kiqcluster-*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    run(python, "-m", "pip", "install", "-q", f"kiqcluster[testing] @ {wheel.as_uri()}", cwd=tmp_path)
    suite = tmp_path / "suite"
    suite.mkdir()
    (suite / "test_app.py").write_text(SUITE)

    output = run(python, "-m", "pytest", "-W", "error", "-p", "no:cacheprovider", cwd=suite)

    assert "2 passed" in output
    assert "kiqcluster-" in output  # among the plugins that pytest names
