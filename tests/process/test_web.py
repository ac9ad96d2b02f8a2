"""kiqctl web: serves the pages until it is told to end; what it refuses."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from socket import create_connection
from urllib.parse import urlencode

import pytest

from kiqcluster.errors import ExitCode
from tests import forkserver
from tests.kit import ROOT, TIMEOUT_SECONDS, RedisServer, free_port, wait_until
from tests.stage import Stage

OPEN = "users or tokens"


@contextmanager
def web(redis: RedisServer, folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run it in a folder; end it afterwards."""
    port = free_port()
    words = [sys.executable, "-m", "kiqcluster.ctl", "web", "--redis", redis.url, "--listen", f"127.0.0.1:{port}"]
    process = forkserver.Popen(
        [*words, *options], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ()
    )
    try:
        yield process, port
    finally:
        process.kill()
        process.communicate()


def environ() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KIQ_", "REDIS_"))}
    return {**kept, "PYTHONPATH": str(ROOT)}


def ask(port: int, method: str, path: str, headers: dict[str, str], body: str = "") -> HTTPResponse:
    connection = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
    connection.request(method, path, body, {"Connection": "close", **headers})
    return connection.getresponse()


def answers(port: int) -> bool:
    try:
        return ask(port, "GET", "/", {}).status == 200
    except OSError:
        return False


@pytest.fixture(scope="module")
def port(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a server that no test ends."""
    with web(redis_server, tmp_path_factory.mktemp("web")) as (_, port):
        wait_until(lambda: answers(port), "the pages to answer")
        yield port


def test_the_pages_are_served_until_a_signal(stage: Stage, tmp_path: Path) -> None:
    with web(stage.redis, tmp_path) as (process, port):
        wait_until(lambda: answers(port), "the pages to answer")

        process.send_signal(signal.SIGTERM)

        assert process.wait(TIMEOUT_SECONDS) == 0


def test_a_path_of_the_command_line_is_in_every_link(stage: Stage, tmp_path: Path) -> None:
    with web(stage.redis, tmp_path, "--root-path", "/ops/jobs") as (_, port):
        wait_until(lambda: answers(port), "the pages to answer")

        text = ask(port, "GET", "/queues", {}).read().decode()

    assert 'href="/ops/jobs/queues' in text
    assert 'href="/queues' not in text


def test_a_change_is_a_line_of_the_log(stage: Stage, tmp_path: Path) -> None:
    stage.push("quick", 1)
    with web(stage.redis, tmp_path) as (process, port):
        wait_until(lambda: answers(port), "the pages to answer")
        page = ask(port, "GET", "/", {})
        cookie = page.headers["Set-Cookie"].partition(";")[0]
        token = re.search(r'name="csrf_token" value="([^"]+)"', page.read().decode())
        assert token is not None
        headers = {
            "Origin": f"http://127.0.0.1:{port}",
            "Cookie": cookie,
            "Content-Type": "application/x-www-form-urlencoded",
        }

        code = ask(port, "POST", "/queues/default/pause", headers, urlencode({"csrf_token": token[1]})).status

        assert code == 303
        assert stage.store.call("SISMEMBER", "paused", "default") == 1
        process.send_signal(signal.SIGINT)
        line, _ = process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode == 0
        assert '"event":"web_action"' in line.replace(" ", "")


def test_other_hosts_are_not_let_in_without_a_word_about_who_may(stage: Stage, tmp_path: Path) -> None:
    with web(stage.redis, tmp_path, "--listen", f"0.0.0.0:{free_port()}") as (process, _):
        _, error = process.communicate(timeout=TIMEOUT_SECONDS)

    assert process.returncode == ExitCode.USAGE
    assert OPEN in error


def test_nobody_is_let_in_through_a_proxy_without_a_word_about_who_may(port: int) -> None:
    for name in ("X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Forwarded", "X-Real-IP", "Via"):
        assert ask(port, "GET", "/", {name: "10.0.0.7"}).status == 403, name


def test_a_large_body_is_refused_before_it_is_read(port: int) -> None:
    with create_connection(("127.0.0.1", port), TIMEOUT_SECONDS) as client:
        client.sendall(b"POST /preferences HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000000\r\n\r\n")

        assert b" 413 " in client.recv(100)


def test_many_open_tabs_leave_room_for_more(port: int) -> None:
    with ExitStack() as tabs:
        for _ in range(150):
            tab = tabs.enter_context(closing(HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)))
            tab.request("GET", "/preferences")
            tab.getresponse().read()

        assert ask(port, "GET", "/", {}).status == 200


def test_a_taken_address_is_said(port: int, redis_server: RedisServer, tmp_path: Path) -> None:
    with web(redis_server, tmp_path, "--listen", f"127.0.0.1:{port}") as (second, _):
        assert second.wait(TIMEOUT_SECONDS) == ExitCode.ADDRESS_IN_USE


def test_a_slip_in_the_table_is_said(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "kiqcluster.toml").write_text("[web]\nusers = ['ada admin hunter2']\n")
    with web(stage.redis, tmp_path) as (process, _):
        _, error = process.communicate(timeout=TIMEOUT_SECONDS)

    assert process.returncode == ExitCode.USAGE
    assert "not a hash" in error
    assert "hunter2" not in error


def test_with_the_application_the_pages_know_where_each_class_goes(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("from kiqcluster import job\n\n@job(queue='slow')\ndef report(): ...\n")
    (tmp_path / "kiqcluster.toml").write_text("routing = [['name=slow', 'batch']]\n")
    with web(stage.redis, tmp_path, "-r", "shop") as (_, port):
        wait_until(lambda: answers(port), "the pages to answer")

        text = " ".join(ask(port, "GET", "/routes", {}).read().decode().split())

    assert re.search(r"<b>report</b></td> <td><a [^>]*>batch</a> <span [^>]*>declared: slow<", text)


def test_an_application_that_does_not_load_is_said(stage: Stage, tmp_path: Path) -> None:
    with web(stage.redis, tmp_path, "-r", "nowhere") as (process, _):
        _, error = process.communicate(timeout=TIMEOUT_SECONDS)

    assert process.returncode == ExitCode.APPLICATION
    assert "nowhere" in error
