"""Fixtures: Debian's Ruby Sidekiq beside kiqcluster, on the same Redis."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from kiqcluster.process.runtime import Setup, using_setup
from kiqcluster.sidekiq import ruby_json
from kiqcluster.store import Store
from tests.interop.browser import Browser
from tests.interop.programs import RubyClient, RubyProgram, RubyServer
from tests.kit import Cluster, RedisServer, cluster, wait_until

JOB_KEYS = (b"queues", b"retry", b"schedule", b"dead", b"paused", b"echoes", b"began", b"release", b"mended")
Echo = dict[str, Any]  # what an Echo job received: by ("python" or "ruby"), jid, args, payload


@pytest.fixture(scope="package", autouse=True)
def old_json() -> Iterator[None]:
    """Write floats as Debian's json 2.6 does, in this process and in the clusters that it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KIQ_RUBY_JSON", "2.6")
        ruby_json.write_floats_as("2.6")
        yield
    ruby_json.write_floats_as("2.12")


@pytest.fixture(scope="session")
def ruby_client(sidekiq_is_there: None, redis_server: RedisServer) -> Iterator[RubyClient]:
    """Enqueue from Ruby: `ruby_client("perform_in", 5, "x", set={"queue": "low"})`."""
    program = RubyProgram("client.rb", redis_server.url)
    yield RubyClient(program)
    program.close()


@pytest.fixture(scope="session")
def ruby(sidekiq_is_there: None, redis_server: RedisServer) -> Iterator[Callable[..., Any]]:
    """Call Sidekiq's API in Ruby: `ruby("Sidekiq::RetrySet.new.find_job(jid).retry", jid=jid)`."""
    program = RubyProgram("api.rb", redis_server.url)
    yield lambda code, **local: program.ask({"ruby": code, "locals": local})
    program.close()


@pytest.fixture(scope="session")
def web_program(sidekiq_is_there: None, redis_server: RedisServer) -> Iterator[RubyProgram]:
    program = RubyProgram("web.rb", redis_server.url)
    yield program
    program.close()


@pytest.fixture(scope="session")
def ruby_web(web_program: RubyProgram) -> Callable[..., dict[str, Any]]:
    """GET pages of Sidekiq::Web: `ruby_web("/busy")` → {"/busy": [200, None]}."""
    return lambda *paths: web_program.ask({"get": paths})


@pytest.fixture
def browser(web_program: RubyProgram, request: pytest.FixtureRequest) -> Iterator[Browser]:
    """A browser on Sidekiq::Web; a test that says which buttons it presses (`presses`) has to have pressed them."""
    browser = Browser(web_program.ask)
    yield browser
    assert browser.posted >= getattr(request.function, "presses", set())


@pytest.fixture(scope="module")
def ruby_server(sidekiq_is_there: None, redis_server: RedisServer) -> Iterator[RubyServer]:
    """A Sidekiq server process on the queue `ruby`; it polls the schedule and retry sets as well."""
    server = RubyServer(redis_server.url)
    yield server
    server.close()
    redis_server.store().call("FLUSHALL")  # no process of other modules' tests


@dataclass(frozen=True)
class Site:
    """A cluster that stands while a module's tests come and go, and its Redis."""

    cluster: Cluster
    store: Store


@pytest.fixture(scope="module")
def standing(redis_server: RedisServer) -> Iterator[Site]:
    """A cluster with tests/apps/interop.py: one slot for `default`, one for `low`; it polls all the time."""
    store = redis_server.store()
    store.call("FLUSHALL")
    app = ("-r", "tests.apps.interop", "--redis", redis_server.url)
    often = {"KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL": "0.1"}
    with cluster("default", "low", "-c", "2", *app, environ=often) as running, using_setup(Setup(store=store)):
        running.wait_ready(2)
        wait_until(lambda: store.call("SCARD", "processes") == 2, "both processes to register")
        yield Site(running, store)
    store.call("FLUSHALL")


@pytest.fixture
def site(standing: Site) -> Site:
    """The standing cluster, with no job anywhere."""
    wait_until(lambda: not standing.store.call("KEYS", "kiq:inflight:*"), "every unit to be settled")
    keys = standing.store.call("KEYS", "*")
    jobs = [key for key in keys if key in JOB_KEYS or key.startswith((b"queue:", b"kiq:wake:", b"stat:"))]
    if jobs:
        standing.store.call("DEL", *jobs)
    return standing


@pytest.fixture
def echo_of(store: Store) -> Callable[[str], Echo]:
    """Wait for the Echo job with that jid, and return what it received."""

    def echo_of(jid: str) -> Echo:
        return wait_until(
            lambda: next((each for each in all_echoes(store) if each["jid"] == jid), None), f"job {jid} to run"
        )

    return echo_of


@pytest.fixture
def echoes(store: Store) -> Callable[[], list[Echo]]:
    """Return what all Echo jobs received so far."""
    return lambda: all_echoes(store)


def all_echoes(store: Store) -> list[Echo]:
    return [json.loads(each) for each in store.call("LRANGE", "echoes", 0, -1)]
