"""StatsD: the datagrams that real clients send of runs."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from datadog.dogstatsd import DogStatsd
from statsd import StatsClient

from kiqcluster import Client, Interrupted, job
from kiqcluster.application.registry import Registry
from kiqcluster.contrib import statsd
from kiqcluster.contrib.statsd import instrument
from kiqcluster.errors import UsageError
from kiqcluster.process.runtime import Setup
from kiqcluster.testing import drain, fake

pytestmark = pytest.mark.usefixtures("setup")

Read = Callable[[], list[str]]


@pytest.fixture
def agent() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as agent:
        agent.bind(("127.0.0.1", 0))
        agent.settimeout(10)
        yield agent


@pytest.fixture
def read(agent: socket.socket) -> Read:
    """Return the lines that have arrived, without their times; the last line is sent by the test itself."""

    def read() -> list[str]:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"end", agent.getsockname())
        lines: list[str] = []
        while (received := agent.recv(65_536).decode()) != "end":
            lines += received.split("\n")
        return [re.sub(r":[\d.]+(\|(?:ms|d))", r":T\1", line) for line in lines if line]

    return read


@pytest.fixture
def dog(agent: socket.socket) -> Iterator[DogStatsd]:
    dog = DogStatsd("127.0.0.1", agent.getsockname()[1], disable_telemetry=True, disable_buffering=True)
    yield dog
    dog.stop()


@pytest.fixture
def plain(agent: socket.socket) -> Iterator[StatsClient]:
    client = StatsClient("127.0.0.1", agent.getsockname()[1])
    yield client
    client.close()


@pytest.fixture(autouse=True)
def jobs(registry: Registry, setup: Setup) -> Iterator[None]:
    @job(queue="mailers", name="Acme::Welcome")
    def welcome() -> None: ...

    @job(queue="mailers", name="rates")
    async def rates() -> None: ...

    @job(queue="mailers", name="broken", retry=False)
    def broken() -> None:
        raise ZeroDivisionError

    @job(queue="mailers", name="stopped", retry=False)
    def stopped() -> None:
        raise Interrupted

    with fake():
        yield


def run(name: str) -> None:
    Client().push({"class": name, "args": [], "queue": "mailers", **({"retry": False} if name == "broken" else {})})
    drain(raise_errors=False)


class TestDatadog:
    def test_a_run_is_counted_and_timed_with_tags(self, dog: DogStatsd, read: Read) -> None:
        instrument(dog)

        run("Acme::Welcome")

        tags = "#worker:Acme::Welcome,queue:mailers"
        assert read() == [
            f"sidekiq.jobs.count:1|c|{tags}",
            f"sidekiq.jobs.success:1|c|{tags}",
            f"sidekiq.jobs.perform:T|ms|{tags}",
        ]

    def test_a_failure_has_its_error_and_a_death(self, dog: DogStatsd, read: Read) -> None:
        instrument(dog, prefix="")

        run("broken")

        tags = "#worker:broken,queue:mailers"
        assert read() == [
            f"jobs.count:1|c|{tags}",
            f"jobs.failure:1|c|{tags},error_type:ZeroDivisionError",
            f"jobs.perform:T|ms|{tags}",
            f"jobs.dead:1|c|{tags}",
        ]

    def test_distributions_on_demand_and_async_jobs(self, dog: DogStatsd, read: Read) -> None:
        instrument(dog, distributions=True)

        run("rates")

        assert [line.partition("|#")[0] for line in read()] == [
            "sidekiq.jobs.count:1|c",
            "sidekiq.jobs.success:1|c",
            "sidekiq.jobs.perform:T|ms",
            "sidekiq.jobs.perform_dist:T|d",
        ]

    def test_what_is_buffered_goes_out_at_the_end(self, agent: socket.socket, setup: Setup, read: Read) -> None:
        dog = DogStatsd(
            "127.0.0.1",
            agent.getsockname()[1],
            disable_telemetry=True,
            disable_buffering=False,
            flush_interval=0,  # no thread of its own: a fork of another test would wait for it
        )
        instrument(dog)
        run("Acme::Welcome")
        assert read() == []

        for hook in setup.hooks.of("exit"):
            hook()

        assert len(read()) == 3
        dog.stop()


class TestPlain:
    def test_names_have_the_class_at_the_end(self, plain: StatsClient, read: Read) -> None:
        instrument(plain)

        run("Acme::Welcome")

        assert read() == [
            "sidekiq.jobs.count:1|c",
            "sidekiq.jobs.count.Acme_Welcome:1|c",
            "sidekiq.jobs.success:1|c",
            "sidekiq.jobs.success.Acme_Welcome:1|c",
            "sidekiq.jobs.perform:T|ms",
            "sidekiq.jobs.perform.Acme_Welcome:T|ms",
        ]

    def test_an_interrupted_run_is_neither_success_nor_failure(self, plain: StatsClient, read: Read) -> None:
        instrument(plain)

        run("stopped")

        totals = [line for line in read() if "stopped" not in line]
        assert totals == ["sidekiq.jobs.count:1|c", "sidekiq.jobs.perform:T|ms"]


class Timeout(BaseException):
    """As gevent has one."""


@pytest.mark.parametrize("kind", [OSError, SystemExit, Timeout])
def test_a_client_that_fails_fails_no_job(setup: Setup, kind: type[BaseException]) -> None:
    class Broken:
        def incr(self, _name: str) -> None:
            raise kind("no route")

        def timing(self, name: str, _milliseconds: float) -> None:
            self.incr(name)

    told: list[tuple[Exception, Any]] = []
    setup.error_handlers.append(lambda error, context: told.append((error, context["context"])))
    instrument(Broken())

    run("Acme::Welcome")

    assert {context for _, context in told} == {"statsd"}


def test_anything_else_is_refused(setup: Setup) -> None:
    with pytest.raises(UsageError, match="no client of StatsD"):
        instrument(object())
    assert len(setup.server_middleware) == 0


def test_so_are_distributions_without_a_client_that_can_send_them(setup: Setup, plain: StatsClient) -> None:
    instrument(plain)
    before = list(setup.server_middleware)

    with pytest.raises(UsageError, match=r"distributions=True needs a client with distribution"):
        instrument(plain, distributions=True)
    assert list(setup.server_middleware) == before


def test_again_replaces_and_undoing_removes(setup: Setup, plain: StatsClient) -> None:
    instrument(plain)
    instrument(plain)
    assert (len(setup.server_middleware), len(setup.death_handlers), len(setup.hooks.of("exit"))) == (1, 1, 1)

    statsd.uninstrument()

    assert (len(setup.server_middleware), len(setup.death_handlers)) == (0, 0)
