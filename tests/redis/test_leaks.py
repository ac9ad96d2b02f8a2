"""Leaks: each kind of thing that a test can leave behind fails that test, by its name."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kiqcluster.application.registry import Registry, using_registry
from kiqcluster.process.runtime import current_setup
from tests import leaks
from tests.kit import RedisServer, wait_until
from tests.leaks import Leaks

Leak = Callable[[ExitStack, RedisServer], object]


@pytest.fixture
def watched(request: pytest.FixtureRequest, kiq_redis: RedisServer) -> Any:
    """The leaks of this run."""
    return request.config.pluginmanager.get_plugin("leaks")


@pytest.fixture
def ended() -> Iterator[ExitStack]:
    """Ends what the test leaves on purpose."""
    with ExitStack() as ended:
        yield ended


def leave_process(ended: ExitStack, _: RedisServer) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ended.enter_context(process)
    ended.callback(process.kill)


def leave_thread(ended: ExitStack, _: RedisServer) -> None:
    release = threading.Event()
    ended.callback(release.set)
    threading.Thread(target=release.wait, name="of a test").start()


def leave_variable(ended: ExitStack, _: RedisServer) -> None:
    os.environ["LEFT"] = "1"
    ended.callback(os.environ.pop, "LEFT")


def leave_directory(ended: ExitStack, server: RedisServer) -> None:
    ended.callback(os.chdir, Path.cwd())
    os.chdir(server.directory)


def leave_middleware(ended: ExitStack, _: RedisServer) -> None:
    handlers = current_setup().error_handlers
    handlers.append(print)
    ended.callback(handlers.remove, print)


def leave_log_handler(ended: ExitStack, _: RedisServer) -> None:
    logger, handler = logging.getLogger("kiqcluster"), logging.NullHandler()
    logger.addHandler(handler)
    ended.callback(logger.removeHandler, handler)


def leave_setting(_: ExitStack, server: RedisServer) -> None:
    server.store().call("CONFIG", "SET", "maxmemory", "1gb")


LEFT: dict[str, Leak] = {
    r"the process \d+ \(.*input\(\).*\), started in .*test_leaks.py::test_": leave_process,
    "the thread of a test": leave_thread,
    "environment variables: LEFT was None, is '1'": leave_variable,
    "the working directory": leave_directory,
    "the current set-up": leave_middleware,
    "the current registry": lambda ended, _: ended.enter_context(using_registry(Registry())),
    "our logger": leave_log_handler,
    "settings of the shared Redis: .*maxmemory": leave_setting,
}


@pytest.mark.parametrize("named", LEFT, ids=[leave.__name__ for leave in LEFT.values()])
def test_a_test_fails_for_what_it_leaves(
    named: str, watched: Leaks, ended: ExitStack, kiq_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaks, "SETTLE_SECONDS", 0.0)

    with pytest.raises(pytest.fail.Exception, match=f"the test leaves {named}"), watched.watching(request("kiq_redis")):
        LEFT[named](ended, kiq_redis)


def test_a_program_that_is_still_connected_is_named(
    watched: Leaks, ended: ExitStack, kiq_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"import socket; kept = socket.create_connection(('127.0.0.1', {kiq_redis.port})); input()"
    said = r"the test leaves the process .*; a connection to the shared Redis from the process \d+ \(.*input"
    monkeypatch.setattr(leaks, "SETTLE_SECONDS", 0.0)
    with pytest.raises(pytest.fail.Exception, match=said), watched.watching(request("kiq_redis")):
        process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
        ended.enter_context(process)
        ended.callback(process.kill)
        wait_until(watched._strange_clients, "it to connect")


def test_what_was_there_before_is_no_leak(watched: Leaks, ended: ExitStack, kiq_redis: RedisServer) -> None:
    leave_process(ended, kiq_redis)
    leave_thread(ended, kiq_redis)

    with watched.watching(request("kiq_redis")), socket.create_connection(("127.0.0.1", kiq_redis.port)):
        pass


def test_a_setting_of_redis_is_put_back(watched: Leaks, kiq_redis: RedisServer) -> None:
    store = kiq_redis.store()
    (name, before) = store.call("CONFIG", "GET", "maxmemory")
    with pytest.raises(pytest.fail.Exception), watched.watching(request("kiq_redis")):
        store.call("CONFIG", "SET", name, "1gb")

    assert store.call("CONFIG", "GET", name)[1] == before


def test_a_process_whose_parent_has_ended_is_found(watched: Leaks, ended: ExitStack) -> None:
    code = "import subprocess as s, sys; print(s.Popen([sys.executable, '-c', 'input()'], stdout=s.DEVNULL).pid)"
    reader, writer = os.pipe()
    ended.callback(os.close, writer)
    said = subprocess.run([sys.executable, "-c", code], stdin=reader, stdout=subprocess.PIPE, check=True).stdout
    os.close(reader)

    assert int(said) in watched._descendants()


def request(*fixtures: str) -> Any:
    """Return what a test's request says of its fixtures."""
    return SimpleNamespace(fixturenames=fixtures)
