"""Pushes with shards: which Redis a job goes to, and what strict mode refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import kiqcluster
from kiqcluster import api
from kiqcluster.client.client import Client
from kiqcluster.errors import UnroutedCall
from kiqcluster.job import Job
from kiqcluster.process.config import Config
from kiqcluster.process.delivery import Ready
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.routing import parse_rules
from kiqcluster.store import Store
from kiqcluster.store.shards import parse_shards

SHARDED = Config(
    shards=parse_shards({"eu": "redis://127.0.0.1:1/1", "us": "redis://127.0.0.1:1/2"}),
    routing=parse_rules([["urgency=high", "urgent", "eu"], ["tags=own", ""]]),
)


class Pushes:
    """Takes the jobs of a test; shards: the name of the shard of each, None for the default one."""

    def __init__(self) -> None:
        self.shards: list[str | None] = []

    def deliver(self, jobs: list[Ready], store: Store | None) -> bool:
        self.shards += [None if store is None else store.name] * len(jobs)
        return True


@pytest.fixture
def pushes(setup: Setup) -> Pushes:
    setup.config, setup.delivery = SHARDED, Pushes()
    return setup.delivery


def declare(name: str, **options: Any) -> type[Job]:
    class Declared(Job, name=name, **options):
        def perform(self, number: int = 0) -> None: ...

    return Declared


def test_a_class_goes_to_the_shard_of_its_rule(pushes: Pushes) -> None:
    urgent, own, plain = declare("Urgent", urgency="high"), declare("Own", tags=["own"]), declare("Plain")

    urgent.perform_async()
    urgent.set(queue="elsewhere").perform_in(60)  # another queue of its shard
    urgent.perform_bulk([[1]])
    Client().push({"class": "Urgent", "args": []})
    own.perform_async()
    plain.perform_async()

    assert pushes.shards == ["eu", "eu", "eu", "eu", None, None]


def test_via_takes_the_name_of_a_shard_and_goes_before_rules(pushes: Pushes, setup: Setup) -> None:
    urgent = declare("Urgent", urgency="high")

    with Client.via("us") as client:
        urgent.perform_async()
        client.push({"class": "Ruby", "args": []})
        with Client.via("default"):
            urgent.perform_async()
    urgent.perform_async()

    assert pushes.shards == ["us", "us", "default", "eu"]
    assert setup.shard("us") is setup.shard("us")


def test_a_push_that_waits_for_a_commit_keeps_the_shard_of_its_call(pushes: Pushes, setup: Setup) -> None:
    waiting: list[Callable[[], object]] = []
    setup.deferral = lambda definition, write: not waiting.append(write)
    setup.config = replace(SHARDED, strict_routing=True)
    plain = declare("Plain")

    with Client.via("us"):
        plain.perform_async()
        asyncio.run(plain.aenqueue())
    with kiqcluster.allow_unrouted():
        plain.perform_bulk([[]])
    with pytest.raises(UnroutedCall):
        plain.perform_async()
    for write in waiting:
        write()

    assert pushes.shards == ["us", "us", None]


class TestStrict:
    @pytest.fixture(autouse=True)
    def strict(self, pushes: Pushes, setup: Setup) -> None:
        setup.config = replace(SHARDED, strict_routing=True)

    def test_pushes_without_a_route_are_refused(self, pushes: Pushes) -> None:
        plain = declare("Plain")

        for push in (
            plain.perform_async,
            lambda: plain.perform_bulk([[1]]),
            lambda: Client().push({"class": "Ruby", "args": []}),
        ):
            with pytest.raises(UnroutedCall, match="add a routing rule for the class"):
                push()
        assert pushes.shards == []

    def test_routed_ones_and_allowed_ones_are_not(self, pushes: Pushes) -> None:
        plain = declare("Plain")

        declare("Urgent", urgency="high").perform_async()
        declare("Own", tags=["own"]).perform_async()
        with kiqcluster.allow_unrouted():
            plain.perform_async()
        with Client.via("us"):
            plain.perform_async()
        Client(Store("redis://127.0.0.1:1/3", name="other")).push({"class": "Ruby", "args": []})

        assert pushes.shards == ["eu", None, None, "us", "other"]
        with pytest.raises(UnroutedCall):
            plain.perform_async()

    def test_inspections_without_a_shard_are_refused(self, setup: Setup) -> None:
        with pytest.raises(UnroutedCall, match="this inspection has no shard"):
            api.Queue("default")
        with kiqcluster.allow_unrouted():
            api.Queue("default")
        with Client.via("eu"):
            api.Queue("default")
        api.RetrySet(store=setup.shard("us"))

    def test_without_shards_nothing_is_refused(self, pushes: Pushes, setup: Setup) -> None:
        setup.config = Config(strict_routing=True)

        declare("Plain").perform_async()

        assert pushes.shards == [None]
