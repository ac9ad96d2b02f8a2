"""Fixtures: one real server for the run, an empty database and a fresh registry for each test that asks."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from kiqcluster.application.registry import Registry, using_registry
from kiqcluster.process.runtime import Setup, using_setup
from kiqcluster.store import Store
from tests.cpu_report import CpuReport
from tests.kit import ROOT, RedisServer, require, unavailable
from tests.leaks import Leaks
from tests.stage import Stage

# Objects between two garbage collections; after 700, as usual, they took a fourteenth of the time of the tests.
GARBAGE_COLLECTED_AT = 10_000


def pytest_configure(config: pytest.Config) -> None:
    """Have the programs that are started here heed signals that a background job of a shell ignores."""
    if "not full" in config.option.markexpr:
        settings.load_profile("short")
    gc.disable()  # nothing of a collection is garbage, and looking for it takes a fifth of the time
    config.pluginmanager.register(CpuReport(config), "cpu-report")
    config.pluginmanager.register(Leaks(), "leaks")
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_collection_finish() -> None:
    """Have the garbage collector leave alone what was imported and collected: it stays until the end."""
    gc.freeze()
    gc.set_threshold(GARBAGE_COLLECTED_AT)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[Any]:
    """Do the same after each file, with what its tests have imported: a collection looks at all that is left."""
    result = yield
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    return result


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """Say what pytest says nothing of: that no test has run, with several processes, and the result with -q twice."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        deselected = f", or -m {config.option.markexpr!r} leaves none" if config.option.markexpr else ""
        terminalreporter.write_line(f"no test has run: {' '.join(config.args)} has none{deselected}")
    if config.option.verbose < -1:
        line = ", ".join(text for text, _ in terminalreporter.build_summary_stats_line()[0])
        terminalreporter.write_line(
            f"{line or 'no test has run'} (one -q is set in pyproject.toml; two hide the summary)"
        )


# No property fails because the machine has other things to do.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("short", settings.get_profile("unhurried"), max_examples=40)  # the long form tries 100
settings.load_profile("unhurried")


@pytest.fixture(autouse=True)
def _leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves something behind (tests/leaks.py); the first fixture of a test, which ends last."""
    leaks = request.config.pluginmanager.get_plugin("leaks")
    with leaks.watching(request):
        yield


@pytest.fixture(scope="session")
def redis_server(kiq_server: RedisServer) -> RedisServer:
    """One server for the whole run."""
    return kiq_server


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """A server that the test may stop, start, lock and demote."""
    server = RedisServer()
    yield server
    server.close()


@pytest.fixture
def durable_server() -> Iterator[RedisServer]:
    """The same, and it forgets nothing when it is killed."""
    server = RedisServer(durable=True)
    yield server
    server.close()


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT]
    subprocess.run(pip, check=True, cwd=folder)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a PostgreSQL server for the whole run."""
    from tests.postgres import running_postgres  # few tests need SQLAlchemy

    with running_postgres() as url:
        yield url


@pytest.fixture(scope="session")
def sidekiq_is_there() -> None:
    """Skip loudly, or fail where everything is required, unless Ruby can load Sidekiq 6.4."""
    require("ruby", "ruby-sidekiq")
    answer = subprocess.run(
        ["ruby", "-e", 'require "sidekiq"; print Sidekiq::VERSION'], capture_output=True, text=True, check=False
    )
    if not answer.stdout.startswith("6.4."):
        found = answer.stdout or answer.stderr.partition("\n")[0]
        unavailable(f"Ruby has no Sidekiq 6.4 but {found!r} (Debian: apt-get install ruby-sidekiq)")


@pytest.fixture
def store(kiq_redis: RedisServer) -> Iterator[Store]:
    """An empty database; it is the one of the test's set-up only where that asks for it."""
    store = kiq_redis.store()
    yield store
    store.close()


@pytest.fixture
def registry() -> Iterator[Registry]:
    """A registry of the test's own."""
    with using_registry(Registry()) as registry:
        yield registry


@pytest.fixture
def setup(registry: Registry, request: pytest.FixtureRequest) -> Iterator[Setup]:
    """A set-up of the test's own; on the store or the stage of the test, if it has one."""
    store = next((request.getfixturevalue(name) for name in ("store", "stage") if name in request.fixturenames), None)
    with using_setup(Setup(store=store.store if isinstance(store, Stage) else store)) as setup:
        yield setup


@pytest.fixture
def stage_server(request: pytest.FixtureRequest, kiq_redis: RedisServer) -> RedisServer:
    """The server of a stage: the shared one, emptied; with a mark own_redis or durable_redis one of the test's own."""
    for mark, fixture in (("own_redis", "own_server"), ("durable_redis", "durable_server")):
        if request.node.get_closest_marker(mark):
            server: RedisServer = request.getfixturevalue(fixture)
            return server
    return kiq_redis


@pytest.fixture
def stage(stage_server: RedisServer, tmp_path: Path) -> Iterator[Stage]:
    """An empty Redis, and clusters on it that end with the test."""
    stage = Stage(stage_server, tmp_path)
    yield stage
    stage.close()
