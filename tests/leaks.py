"""Leaks: fail the test that leaves something behind, with the name of it, and not the test that meets it later.

1. Leaks.pytest_fixture_setup      what a fixture of a module or of the run starts may stay
2. Leaks.watching                  around each test: threads, child processes, the state of this process, and the
                                   clients and the settings of the shared Redis are the same afterwards
3. Leaks.pytest_runtest_teardown   after each file: no process is left that one of its tests has started, however deep

Something that is about to end gets SETTLE_SECONDS.  A test that leaves nothing waits for nothing: it costs a fraction
of a millisecond, and one command more where it uses the shared Redis.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from kiqcluster.application.registry import current_registry
from kiqcluster.process.runtime import current_setup
from kiqcluster.store import Store
from tests import forkserver
from tests.kit import PAUSE, is_alive

__all__ = ["Leaks"]

SETTLE_SECONDS = 3.0  # for processes and threads that are ending
LOOK_SECONDS = 0.01  # between looks meanwhile
MARK = "STARTED_BY_TESTS"  # in the environment of every process that a test starts; the pid of the tests' process
SERVER = "kiq_server"  # the fixture with the Redis that tests of a process share
# Threads that no call ends, by the begin of their names.
STAY = {
    "sentry.monitor": "ends within 10 s after its client was closed",
    "kiq.async": "ends with its store, which pytest holds for a moment more (redis/test_results.py)",
}
USES_SERVER = "kiq_redis"  # the fixture of a test that does
FIELD = re.compile(r"(\S+?)=(\S*)")  # of a line of CLIENT LIST


def _setup() -> tuple[object, ...]:
    setup = current_setup()
    chains = (setup.client_middleware, setup.server_middleware)
    lists = (setup.error_handlers, setup.death_handlers, setup.due_sources)
    return (id(setup), setup.settings.copy(), *map(len, chains), *map(len, lists), setup.delivery, setup.deferral)


# The state of this process that tests change, and give back.
STATE: Mapping[str, Callable[[], Any]] = {
    "environment variables": lambda: {k: v for k, v in os.environ.items() if k not in ("PYTEST_CURRENT_TEST", MARK)},
    "the working directory": os.getcwd,
    "handlers of signals": lambda: {number.name: signal.getsignal(number) for number in HANDLED},
    "the current registry": lambda: id(current_registry()),
    "the current set-up": _setup,
    "our logger": lambda: (LOGGER.handlers[:], LOGGER.level, LOGGER.propagate),
}
HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)
LOGGER = logging.getLogger("kiqcluster")


class Leaks:
    """Watches the tests of one process.

    kept_children, kept_threads: may be there after a test, since a wider fixture started them, or an earlier test was
    failed for them.
    """

    def __init__(self) -> None:
        self._store: Store | None = None  # of the shared Redis, once there is one
        self._settings: dict[Any, Any] = {}  # of that server
        self._kept_clients: set[str] = set()  # ids of its clients that are known to be kept
        self._kept_children: set[int] = set()
        self._kept_threads: set[threading.Thread] = set(threading.enumerate())
        self._state: dict[str, Any] = {}  # at the begin of the test
        self._has_failed = False  # the test has, which excuses it
        os.environ[MARK] = str(os.getpid())

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        if fixturedef.scope == "function":
            return (yield)
        children, threads, before = _children(), set(threading.enumerate()), _read_state()
        value = yield
        self._kept_children |= _children() - children
        self._kept_threads |= set(threading.enumerate()) - threads
        self._state |= {name: now for name, now in _read_state().items() if now != before[name]}
        if fixturedef.argname == SERVER:
            self._store = value.store()
            self._settings = _settings_of(self._store)
        return value

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        self._has_failed = report.failed or (report.when != "setup" and self._has_failed)
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
        yield
        if sys.platform == "linux" and (nextitem is None or nextitem.path != item.path):
            left = _settled(self._descendants)
            self._end(left)
            if left and not self._has_failed:
                pytest.fail("tests of this file have left processes: " + _listed(map(_described, left)), pytrace=False)

    @contextmanager
    def watching(self, request: pytest.FixtureRequest) -> Iterator[None]:
        """Fail after a `with` block that leaves something."""
        uses_server = USES_SERVER in request.fixturenames
        self._state = _read_state()
        self._kept_children |= _children()
        self._kept_threads = {thread for thread in (*self._kept_threads, *threading.enumerate()) if thread.is_alive()}
        yield
        children, threads = _settled(self._new_children), _settled(self._new_threads)
        clients = _settled(self._strange_clients) if uses_server else {}
        left = [f"the process {_described(pid)}" for pid in children]
        left += [f"the thread {thread.name}" for thread in threads]
        left += [f"a connection to the shared Redis from {clients[name]}" for name in clients]
        left += [f"{name}: {difference}" for name, difference in self._changes(uses_server=uses_server)]
        self._end(children)
        self._kept_threads |= threads
        if left and not self._has_failed:
            pytest.fail("the test leaves " + _listed(left), pytrace=False)

    def _new_children(self) -> set[int]:
        return {pid for pid in _children() - self._kept_children - forkserver.own_pids() if is_alive(pid)}

    def _new_threads(self) -> set[threading.Thread]:
        found = set(threading.enumerate()) - self._kept_threads
        return {each for each in found - _threads_of_asgiref() if not each.name.startswith(tuple(STAY))}

    def _strange_clients(self) -> dict[str, str]:
        """Return address → description of the clients of the shared server that neither we nor a wider fixture is.

        We connect by its socket, and programs by its port; some tests call a program's code in this process.
        """
        if self._store is None:
            return {}
        listed = [dict(FIELD.findall(line)) for line in self._store.call("CLIENT", "LIST").decode().splitlines()]
        ports = {each["id"]: int(each["addr"].rpartition(":")[2]) for each in listed if "/" not in each["addr"]}
        self._kept_clients &= ports.keys()
        if ports.keys() == self._kept_clients:
            return {}
        pids = {each.laddr.port: each.pid for each in psutil.net_connections("tcp")}
        strange = {}
        for client in ports.keys() - self._kept_clients:
            pid = pids.get(ports[client])
            if pid == os.getpid() or (pid is not None and self._is_kept(pid)):
                self._kept_clients.add(client)
            elif pid is not None:  # else it is closed, and Redis will notice
                strange[client] = f"the process {_described(pid)}"
        return strange

    def _is_kept(self, pid: int) -> bool:
        """Return whether a process is one of a wider fixture, or was started by one."""
        with suppress(psutil.NoSuchProcess):
            family = {pid, *(parent.pid for parent in psutil.Process(pid).parents())}
            return bool(family & self._kept_children)
        return False

    def _changes(self, *, uses_server: bool) -> Iterator[tuple[str, str]]:
        """Yield what has changed in this process and in the shared server, and put the latter back."""
        now = _read_state()
        yield from (
            (name, _difference(before, now[name])) for name, before in self._state.items() if before != now[name]
        )
        if uses_server and self._store is not None:
            settings = _settings_of(self._store)
            if settings != self._settings:
                yield "settings of the shared Redis", _difference(self._settings, settings)
                changed = [name for name, value in self._settings.items() if settings.get(name) != value]
                self._store.pipeline([("CONFIG", "SET", name, self._settings[name]) for name in changed])

    def _descendants(self) -> set[int]:
        """Return the processes that were started by tests of this process, and are not to stay."""
        mark = f"{MARK}={os.getpid()}".encode()
        pids = {int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()}
        marked = {pid for pid in pids - {os.getpid()} - forkserver.own_pids() if mark in _environment(pid)}
        return {pid for pid in marked if is_alive(pid) and not self._is_kept(pid)}

    def _end(self, pids: set[int]) -> None:
        """Kill processes, so that they disturb no later test."""
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._kept_children |= pids


def _settled(look: Callable[[], Any]) -> Any:
    """Return what a look finds, once that is nothing, or has not become nothing within SETTLE_SECONDS."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while (found := look()) and time.monotonic() < deadline:
        PAUSE.wait(LOOK_SECONDS)
    return found


def _read_state() -> dict[str, Any]:
    return {name: read() for name, read in STATE.items()}


def _settings_of(store: Store) -> dict[Any, Any]:
    words = store.call("CONFIG", "GET", "*")
    settings = dict(zip(words[::2], words[1::2], strict=True))
    del settings[b"port"]  # the server has one from the moment on that somebody asks for it
    return settings


def _children() -> set[int]:
    """Return the child processes of this one; none where the system does not list them."""
    found: set[int] = set()
    for task in os.listdir("/proc/self/task") if os.path.isdir("/proc/self/task") else ():  # noqa: PTH112, PTH208  # it is asked after each test
        with suppress(OSError), open(f"/proc/self/task/{task}/children", "rb") as file:  # noqa: PTH123
            found.update(map(int, file.read().split()))
    return found


def _threads_of_asgiref() -> set[threading.Thread]:
    """Return the thread of asgiref's one pool, which stays as long as the process."""
    module = sys.modules.get("asgiref.sync")
    return set() if module is None else set(module.SyncToAsync.single_thread_executor._threads)


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or is not ours
        return []


def _described(pid: int) -> str:
    """Return pid, command line and the test that has started a process."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        command = "ended"
    name = b"PYTEST_CURRENT_TEST="
    tests = [each.removeprefix(name).decode() for each in _environment(pid) if each.startswith(name)]
    return f"{pid} ({command[:160]}), started in {tests[0] if tests else 'no test'}"


def _difference(before: Any, now: Any) -> str:
    if isinstance(before, dict):
        names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        return _listed(f"{name} was {before.get(name)!r}, is {now.get(name)!r}" for name in names)
    return f"was {before!r}, is {now!r}"


def _listed(each: Any) -> str:
    return "; ".join(each)
