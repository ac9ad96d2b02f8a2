"""The pytest plugin: the kit as fixtures.  pytest finds it by itself (entry point pytest11).

kiq_fake, kiq_inline   modes for a test; so does @pytest.mark.kiq("fake"), and `kiq_mode = fake` for a whole suite
kiq_clock              kiqcluster's clock, standing still
kiq_setup              middleware, handlers and settings that end with the test
kiq_redis, kiq_store   an empty database of a server of the run's own, and clients that push to it
kiq_cluster            real clusters on that database

It lies beside the package, and imports it when a test needs it: pytest loads plugins in every run of an environment,
and most runs have nothing to do with jobs.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kiqcluster.process.delivery import Refusal
    from kiqcluster.process.runtime import Setup
    from kiqcluster.store import Store
    from kiqcluster.testing import Cluster, Fake, FrozenClock, Inline, RedisServer

__all__ = [
    "kiq_clock",
    "kiq_cluster",
    "kiq_fake",
    "kiq_inline",
    "kiq_redis",
    "kiq_server",
    "kiq_setup",
    "kiq_store",
    "pytest_addoption",
    "pytest_configure",
]

MODES = ("refuse", "fake", "inline", "real")
RUNTIME = "kiqcluster.process.runtime"  # has the set-up, whose pushes are to be refused
ON_REDIS = {"kiq_store", "kiq_cluster"}  # fixtures whose tests want their jobs in Redis
SOON = {"KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL": "0.2"}  # seconds; what is due in a test's cluster runs when it is due


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare `kiq_mode` of pytest.ini."""
    parser.addini(
        "kiq_mode",
        "what becomes of kiqcluster's jobs in tests that do not say: refuse, fake, inline or real",
        default="refuse",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, and check `kiq_mode`."""
    config.addinivalue_line(
        "markers", "kiq(mode): have kiqcluster's jobs refused, kept (fake), run at once (inline) or sent (real)"
    )
    _checked(config.getini("kiq_mode"), "kiq_mode")


def _checked(mode: object, place: str) -> str:
    if mode not in MODES:
        raise pytest.UsageError(f"{place} = {mode!r} is no mode; the modes are {', '.join(MODES)}")
    return str(mode)


class Acting(Loader):
    """A loader that does something once it has executed its module.  It wraps the other one, which may load others too.

    pytest's own loader, which rewrites assertions, is one object for all modules of an installed distribution.
    """

    def __init__(self, loader: Loader, act: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._act = act

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._act(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # such as get_source, for tracebacks


class WhenImported:
    """A finder that lets a function do something once a module of ours has been imported."""

    def __init__(self, name: str, act: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._act = act

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        if name != self._name:
            return None
        self.remove()
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = Acting(spec.loader, self._act)
        return spec

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)


@contextmanager
def _without_kit(mode: str) -> Iterator[None]:
    """Refuse pushes to the Redis of the configuration, or send them there; of an application imported later, too."""
    if RUNTIME in sys.modules:
        from kiqcluster.process.runtime import current_setup

        with current_setup().delivering(_receiver(mode)):
            yield
        return

    def decide(runtime: ModuleType) -> None:
        runtime.current_setup().delivery = _receiver(mode)

    finder = WhenImported(RUNTIME, decide)
    sys.meta_path.insert(0, finder)
    yield
    finder.remove()


def _receiver(mode: str) -> Refusal | None:
    from kiqcluster.process.delivery import Refusal

    return Refusal() if mode == "refuse" else None


@pytest.fixture(scope="session", autouse=True)
def _kiq_suite(request: pytest.FixtureRequest) -> Iterator[None]:
    """Put what is around the tests in the suite's mode too: setUpClass, fixtures of wider scopes, their ends."""
    with _mode(request.config.getini("kiq_mode")):
        yield


def _mode(name: str) -> AbstractContextManager[object]:
    if name in ("real", "refuse"):
        return _without_kit(name)
    from kiqcluster.testing import fake, inline

    return fake() if name == "fake" else inline()


@pytest.fixture(autouse=True)
def _kiq_mode(request: pytest.FixtureRequest) -> Iterator[None]:
    """Put the test in the mode of its marker or, failing that, of pytest.ini; leave it whatever the test did."""
    marker = request.node.get_closest_marker("kiq")
    mode = request.config.getini("kiq_mode")
    if marker is not None:
        mode = _checked(marker.args[0] if len(marker.args) == 1 else marker.args, "@pytest.mark.kiq")
    elif ON_REDIS & set(request.fixturenames):
        mode = "real"
    elif mode in ("refuse", "real"):
        mode = None  # nobody says anything: a mode that a wider fixture is in stays
    if mode is None and RUNTIME not in sys.modules:
        yield
        return
    from kiqcluster.process.runtime import current_setup

    setup = current_setup()
    before = setup.delivery
    if mode in ("refuse", "real"):
        setup.delivery = _receiver(mode)
    elif mode is not None:
        request.getfixturevalue(f"kiq_{mode}")
    yield
    setup.delivery = before


@pytest.fixture
def kiq_fake() -> Iterator[Fake]:
    """Keep the test's jobs from Redis: `kiq_fake.assert_enqueued(Welcome, 7)`, `kiq_fake.drain()`."""
    from kiqcluster.testing import fake, forgetting_local_jobs

    with forgetting_local_jobs(), fake() as jobs:
        yield jobs


@pytest.fixture
def kiq_inline() -> Iterator[Inline]:
    """Run the test's jobs before their push returns, unless they are due later."""
    from kiqcluster.testing import forgetting_local_jobs, inline

    with forgetting_local_jobs(), inline() as jobs:
        yield jobs


@pytest.fixture
def kiq_clock() -> Iterator[FrozenClock]:
    """Stop kiqcluster's clock: `kiq_clock.move(60)`, `.set(datetime(…))`, `.now()`."""
    from kiqcluster.testing import frozen_clock

    with frozen_clock() as clock:
        yield clock


@pytest.fixture
def kiq_setup() -> Iterator[Setup]:
    """The set-up, and what the test adds to it ends with the test: middleware, handlers, hooks, settings, jobs."""
    from kiqcluster.testing import forgetting_declarations

    with forgetting_declarations() as setup:
        yield setup


@pytest.fixture(scope="session")
def kiq_server() -> Iterator[RedisServer]:
    """One server for the whole run, or for each process of pytest-xdist; started for the first test that asks."""
    from kiqcluster.testing import RedisServer

    with RedisServer() as server:
        yield server


@pytest.fixture
def kiq_redis(kiq_server: RedisServer) -> RedisServer:
    """That server, empty: `.url` is where it listens, `.store()` talks to it."""
    kiq_server.clear()
    return kiq_server


@pytest.fixture
def kiq_store(kiq_redis: RedisServer) -> Iterator[Store]:
    """A store on an empty database, to which the test's pushes go in real mode."""
    from kiqcluster.process.runtime import current_setup

    setup = current_setup()
    before, setup.store = setup.store, kiq_redis.store()
    yield setup.store
    setup.store.close()
    setup.store = before


@pytest.fixture
def kiq_cluster(kiq_redis: RedisServer, kiq_store: Store) -> Iterator[Callable[..., Cluster]]:  # noqa: ARG001  # pushes go there
    """Start clusters on an empty database: `kiq_cluster("mailers", require="app.jobs")`; all are gone afterwards.

    Arguments are those of the command.  require: the application, or several; `-r`.  environ: variables.  Returns a
    Cluster that is ready.
    """
    from kiqcluster.testing import Cluster

    running: list[Cluster] = []

    def start(
        *arguments: str,
        require: str | tuple[str, ...] = (),
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Cluster:
        applications = (require,) if isinstance(require, str) else require
        words = [word for each in applications for word in ("-r", each)]
        place = kiq_redis.directory / f"{len(running)}.pid"  # not the one that the application's settings name
        settings = {**SOON, "KIQ_PIDFILE": str(place), "KIQ_CONTROL": f"{place}.sock", **(environ or {})}
        cluster = Cluster(["--redis", kiq_redis.url, *words, *arguments], settings, cwd)
        running.append(cluster)
        cluster.wait_ready()
        return cluster

    yield start
    for each in running:
        each.close()
