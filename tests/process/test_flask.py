"""`flask kiqcluster`: workers import the module that Flask has found, wherever it lies, and call its factory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import forkserver
from tests.kit import ROOT, TIMEOUT_SECONDS, RedisServer, wait_until

SHOP = """
from flask import Flask, current_app
from kiqcluster import job
from kiqcluster.contrib.flask import KiqCluster
from shop import words

@job(queue="mailers")
def welcome(name):
    current_app.logger.warning("%s of %s: %s %s", __name__, current_app.name, words.HELLO, name)

def create_app():
    app = Flask("a factory")
    KiqCluster(app)

    @app.cli.command("push")
    def push():
        welcome.perform_async("Ann")

    return app
"""
WELCOME = "shop.web of a factory: Hello Ann"

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose modules lie in a folder that is no package."""
    package = tmp_path / "project/src/shop"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "words.py").write_text('HELLO = "Hello"\n')
    (package / "web.py").write_text(SHOP)
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "project"


@pytest.fixture
def environ(redis_server: RedisServer) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KIQ_", "REDIS", "FLASK"))}
    return {**kept, "PYTHONPATH": str(ROOT), "REDIS_URL": redis_server.url}


@pytest.fixture
def flask(environ: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """Start the command `flask`; what it prints is in the file `log`."""
    started: list[subprocess.Popen[bytes]] = []

    def flask(directory: Path, *words: str) -> subprocess.Popen[bytes]:
        told = {**environ, "PWD": str(directory)}
        with (tmp_path / "log").open("ab") as log:
            command = [sys.executable, "-m", "flask", *words]
            started.append(forkserver.Popen(command, cwd=directory, env=told, stdout=log, stderr=subprocess.STDOUT))
        return started[-1]

    yield flask
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    "place", [pytest.param("of the project", marks=pytest.mark.full), "elsewhere", "through a link"]
)
def test_workers_import_what_flask_has_found(flask: Start, project: Path, place: str) -> None:
    log, directory, path = project.parent / "log", project, "src/shop/web.py"
    if place == "elsewhere":
        directory, path = project.parent / "elsewhere", f"{project}/src/shop/web.py:create_app()"
    elif place == "through a link":
        directory = project.parent / "current"
        directory.symlink_to(project)
    assert flask(directory, "--app", path, "push").wait(TIMEOUT_SECONDS) == 0, log.read_text()

    worker = flask(directory, "--app", path, "kiqcluster", "mailers", "-c", "2", "-t", "2")
    wait_until(lambda: WELCOME in log.read_text() or worker.poll() is not None, "the welcome")
    worker.send_signal(signal.SIGTERM)

    assert worker.wait(TIMEOUT_SECONDS) == 0, log.read_text()
    assert WELCOME in log.read_text()
    assert "Traceback" not in log.read_text()


def test_another_module_of_that_name_is_refused(flask: Start, project: Path) -> None:
    log, other = project.parent / "log", project / "shop.py"
    other.touch()

    assert flask(project, "--app", "src/shop/web", "kiqcluster", "mailers").wait(TIMEOUT_SECONDS) == 1

    assert f"workers would import shop of the working directory ({other})" in log.read_text()
    assert "-r MODULE:FUNCTION" in log.read_text()
