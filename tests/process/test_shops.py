"""The shops of examples/: their own tests pass, and a real worker sends the receipt of an order."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import forkserver
from tests.kit import ROOT, RedisServer, wait_until

START = {
    "flask_shop": [sys.executable, "-m", "flask", "--app", "shop", "kiqcluster", "-c", "2", "-t", "2"],
    "fastapi_shop": [sys.executable, "-m", "kiqcluster", "-r", "shop.jobs", "mailers", "-c", "2", "-t", "2"],
}
ORDER = {
    "flask_shop": "from shop import create_app; client = create_app().test_client()",
    "fastapi_shop": "from fastapi.testclient import TestClient; from shop.main import app; client = TestClient(app)",
}
IS_SENT = {"flask_shop": "client.get('/orders/1').json", "fastapi_shop": "client.get('/orders/1').json()"}


@pytest.fixture(params=sorted(START))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def shop(name: str, tmp_path: Path) -> Path:
    """A copy of the project, as somebody may have made it."""
    return shutil.copytree(ROOT / "examples" / name, tmp_path / "project", ignore=shutil.ignore_patterns("__pycache__"))


@pytest.fixture
def environ(shop: Path, redis_server: RedisServer) -> dict[str, str]:
    ours = {"REDIS_URL": redis_server.url, "KIQ_LISTEN": "off"}  # its port may be taken on this machine
    return {**os.environ, "PYTHONPATH": f"{shop}{os.pathsep}{ROOT}", **ours}


@pytest.fixture
def run(shop: Path, environ: dict[str, str]) -> Callable[..., str]:
    """Run Python in the project; returns what it prints."""

    def run(*words: str) -> str:
        done = forkserver.run([sys.executable, *words], cwd=shop, env=environ, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture
def worker(name: str, shop: Path, environ: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    with (shop / "log").open("wb") as log:
        process = forkserver.Popen(START[name], cwd=shop, env=environ, stdout=log, stderr=subprocess.STDOUT)
    yield process
    process.kill()
    process.wait()


def test_its_tests_pass(run: Callable[..., str]) -> None:
    assert " passed" in run("-m", "pytest", "-p", "no:cacheprovider", "-W", "error", "-o", "addopts=")


def test_a_worker_sends_the_receipt_of_an_order(
    name: str, shop: Path, run: Callable[..., str], worker: subprocess.Popen[bytes]
) -> None:
    assert "201" in run("-c", f"{ORDER[name]}; print(client.post('/orders', data={{'mail': 'ann@example.com'}}))")
    log = shop / "log"
    wait_until(lambda: "ann@example.com" in log.read_text() or worker.poll() is not None, "the receipt")

    worker.send_signal(signal.SIGTERM)

    assert worker.wait(30) == 0, log.read_text()
    assert "True" in run("-c", f"{ORDER[name]}; print({IS_SENT[name]})")
    assert "Traceback" not in log.read_text()
