"""The pytest plugin: the kit as fixtures.  pytest finds it by itself (entry point pytest11).

kiq_fake, kiq_inline   modes for a test; so does @pytest.mark.kiq("fake"), and `kiq_mode = fake` for a whole suite
kiq_clock              kiqcluster's clock, standing still
kiq_setup              middleware, handlers and settings that end with the test
kiq_redis, kiq_store   an empty database of a server of the run's own, and clients that push to it
kiq_cluster            real clusters on that database
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from kiqcluster.runtime import Setup, current_setup
from kiqcluster.store import Store
from kiqcluster.testing.clock import FrozenClock, frozen_clock
from kiqcluster.testing.cluster import Cluster
from kiqcluster.testing.declarations import forgetting_declarations, forgetting_local_jobs
from kiqcluster.testing.memory import Fake, Inline
from kiqcluster.testing.modes import fake, inline
from kiqcluster.testing.server import RedisServer

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

MODES = ("fake", "inline", "real")
ON_REDIS = {"kiq_store", "kiq_cluster"}  # fixtures whose tests want their jobs in Redis
SOON = {"KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL": "0.2"}  # seconds; what is due in a test's cluster runs when it is due


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare `kiq_mode` of pytest.ini."""
    parser.addini(
        "kiq_mode", "what becomes of kiqcluster's jobs in tests that do not say: fake, inline or real", default="real"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, and check `kiq_mode`."""
    config.addinivalue_line(
        "markers", "kiq(mode): have kiqcluster's jobs kept (fake), run at once (inline) or sent (real)"
    )
    _checked(config.getini("kiq_mode"), "kiq_mode")


def _checked(mode: object, place: str) -> str:
    if mode not in MODES:
        raise pytest.UsageError(f"{place} = {mode!r} is no mode; the modes are {', '.join(MODES)}")
    return str(mode)


@pytest.fixture(scope="session", autouse=True)
def _kiq_suite(request: pytest.FixtureRequest) -> Iterator[None]:
    """Put what is around the tests in the suite's mode too: setUpClass, fixtures of wider scopes, their ends."""
    modes: dict[str, Callable[[], AbstractContextManager[object]]] = {"fake": fake, "inline": inline}
    with modes.get(request.config.getini("kiq_mode"), nullcontext)():
        yield


@pytest.fixture(autouse=True)
def _kiq_mode(request: pytest.FixtureRequest) -> Iterator[None]:
    """Put the test in the mode of its marker or, failing that, of pytest.ini; leave it whatever the test did."""
    setup = current_setup()
    before = setup.delivery
    marker = request.node.get_closest_marker("kiq")
    if marker is not None:
        mode = _checked(marker.args[0] if len(marker.args) == 1 else marker.args, "@pytest.mark.kiq")
    elif ON_REDIS & set(request.fixturenames):
        mode = "real"
    else:
        mode = request.config.getini("kiq_mode")
        if mode == "real":
            mode = None  # nobody says anything: a mode that a wider fixture is in stays
    if mode == "real":
        setup.delivery = None
    elif mode is not None:
        request.getfixturevalue(f"kiq_{mode}")
    yield
    setup.delivery = before


@pytest.fixture
def kiq_fake() -> Iterator[Fake]:
    """Keep the test's jobs from Redis: `kiq_fake.assert_enqueued(Welcome, 7)`, `kiq_fake.drain()`."""
    with forgetting_local_jobs(), fake() as jobs:
        yield jobs


@pytest.fixture
def kiq_inline() -> Iterator[Inline]:
    """Run the test's jobs before their push returns, unless they are due later."""
    with forgetting_local_jobs(), inline() as jobs:
        yield jobs


@pytest.fixture
def kiq_clock() -> Iterator[FrozenClock]:
    """Stop kiqcluster's clock: `kiq_clock.move(60)`, `.set(datetime(…))`, `.now()`."""
    with frozen_clock() as clock:
        yield clock


@pytest.fixture
def kiq_setup() -> Iterator[Setup]:
    """The set-up, and what the test adds to it ends with the test: middleware, handlers, hooks, settings, jobs."""
    with forgetting_declarations() as setup:
        yield setup


@pytest.fixture(scope="session")
def kiq_server() -> Iterator[RedisServer]:
    """One server for the whole run, or for each process of pytest-xdist; started for the first test that asks."""
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
