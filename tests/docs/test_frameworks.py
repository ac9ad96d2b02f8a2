"""The pages about Flask and FastAPI: what they save runs as they say, and their tests are suites that pass."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forkserver
from tests.docs.test_docs import blocks
from tests.kit import ROOT, RedisServer, wait_until

FLASK, FASTAPI = ROOT / "docs/guides/flask.md", ROOT / "docs/guides/fastapi.md"
FILES = {FLASK: ["shop.py"], FASTAPI: ["jobs.py", "main.py"]}
REQUEST = {
    FLASK: "from shop import create_app; create_app().test_client().post('/users/7')",
    FASTAPI: "from fastapi.testclient import TestClient; from main import app; TestClient(app).post('/users/7')",
}


@pytest.fixture(params=[FLASK, FASTAPI], ids=["flask", "fastapi"])
def page(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A page; what it saves lies in the folder of the test."""
    page: Path = request.param
    saved = len(FILES[page])
    for name, block in zip(FILES[page], blocks(page, "python")[:saved], strict=True):
        (tmp_path / name).write_text(block)
    modules = [Path(name).stem for name in FILES[page]]
    later = [f"from {module} import *" for module in modules] + blocks(page, "python")[saved:]
    (tmp_path / "test_page.py").write_text("\n".join(later))
    return page


def environ(folder: Path, redis: RedisServer) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "REDIS_URL": redis.url}


def command(line: str) -> list[str]:
    """Return a command of a page, run by this Python."""
    program, *words = shlex.split(line.removeprefix("$ "))
    return [sys.executable, "-m", program, *words]


def test_its_tests_are_a_suite_that_passes(page: Path, tmp_path: Path, redis_server: RedisServer) -> None:
    words = ["-m", "pytest", "-W", "error", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]

    done = forkserver.run([sys.executable, *words], cwd=tmp_path, env=environ(tmp_path, redis_server), timeout=60)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.mark.full  # tests/process/test_shops.py does the same with the examples
def test_its_worker_runs_the_job_of_a_request(page: Path, tmp_path: Path, redis_server: RedisServer) -> None:
    (line,) = [line for line in blocks(page, "console") if re.search(r"kiqcluster .*mailers", line)]
    log, env = tmp_path / "log", environ(tmp_path, redis_server)
    with log.open("wb") as file:
        worker = subprocess.Popen(command(line), cwd=tmp_path, env=env, stdout=file, stderr=subprocess.STDOUT)
    try:
        subprocess.run([sys.executable, "-c", REQUEST[page]], cwd=tmp_path, env=env, check=True)

        wait_until(lambda: re.search("welcomes 7|welcome, 7", log.read_text()) or worker.poll() is not None, "the job")

        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0, log.read_text()
    finally:
        worker.kill()
        worker.wait()
    assert re.search("Ann's welcomes 7|welcome, 7", log.read_text())


@pytest.mark.parametrize("page", [FLASK], indirect=True)
def test_flask_has_kiqctl(page: Path, tmp_path: Path, redis_server: RedisServer) -> None:
    (line,) = [line for line in blocks(page, "console") if "kiqctl" in line]

    done = forkserver.run(command(line), cwd=tmp_path, env=environ(tmp_path, redis_server))

    assert done.returncode == 0, done.stderr
    assert "processed" in done.stdout.lower()


@pytest.mark.parametrize("page", [FASTAPI], indirect=True)
@pytest.mark.parametrize("requirement", [pytest.param("main", marks=pytest.mark.full), "main:make_app"])
def test_workers_may_import_the_web_application(
    page: Path, tmp_path: Path, redis_server: RedisServer, requirement: str
) -> None:
    with (tmp_path / "main.py").open("a") as main:
        main.write("\n\ndef make_app() -> FastAPI:\n    return app\n")

    words = [*command("kiqcluster -r"), requirement, "--list-queues", "mailers"]
    done = forkserver.run(words, cwd=tmp_path, env=environ(tmp_path, redis_server))

    assert done.returncode == 0, done.stderr
    assert "mailers" in done.stdout
