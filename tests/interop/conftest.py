"""Fixtures: Debian's Ruby Sidekiq beside kiqcluster, on the same Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kiqcluster.process.runtime import Setup, using_setup
from kiqcluster.sidekiq import ruby_json
from tests.interop.browser import Browser
from tests.interop.programs import RubyClient, RubyProgram, RubyServer, running_server
from tests.interop.stage import InteropStage, SharedStage
from tests.kit import RedisServer, wait_until


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
    with running_server(redis_server) as server:
        yield server


@pytest.fixture
def stage(stage_server: RedisServer, tmp_path: Path) -> Iterator[InteropStage]:
    """An empty Redis, and clusters on it with the jobs of tests/apps/interop.py."""
    stage = InteropStage(stage_server, tmp_path)
    yield stage
    stage.close()


@pytest.fixture(scope="module")
def shared_stage(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedStage]:
    """A stage with a cluster of one slot for `default` and one for `low`; it polls all the time."""
    stage = SharedStage(redis_server, tmp_path_factory.mktemp("stage"))
    stage.store.call("FLUSHALL")
    stage.cluster = stage.run_cluster("default", "low", "-c", "2", KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL="0.1")
    with using_setup(Setup(store=stage.store)):
        stage.cluster.wait_ready(2)
        wait_until(lambda: stage.store.call("SCARD", "processes") == 2, "both processes to register")
        yield stage
    stage.cluster.close()
    stage.store.call("FLUSHALL")
    stage.close()


@pytest.fixture
def site(shared_stage: SharedStage) -> SharedStage:
    """The shared stage, without jobs."""
    shared_stage.clear_jobs()
    return shared_stage
