"""Fixtures: Debian's Ruby Sidekiq beside kiqcluster, on the same Redis."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kiqcluster.store import Store
from tests.interop.programs import RubyClient, RubyProgram, RubyServer
from tests.kit import RedisServer, wait_until

Echo = dict[str, Any]  # what an Echo job received: by ("python" or "ruby"), jid, args, payload


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
def ruby_web(sidekiq_is_there: None, redis_server: RedisServer) -> Iterator[Callable[..., dict[str, Any]]]:
    """GET pages of Sidekiq::Web: `ruby_web("/busy")` → {"/busy": [200, None]}."""
    program = RubyProgram("web.rb", redis_server.url)
    yield lambda *paths: program.ask({"get": paths})
    program.close()


@pytest.fixture(scope="module")
def ruby_server(sidekiq_is_there: None, redis_server: RedisServer) -> Iterator[RubyServer]:
    """A Sidekiq server process on the queue `ruby`; it polls the schedule and retry sets as well."""
    server = RubyServer(redis_server.url)
    yield server
    server.close()
    redis_server.store().call("FLUSHALL")  # no process of other modules' tests


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
