"""kiqctl deploy with several shards: one lock, one quiet and one wait for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kiqcluster.api import deploys
from kiqcluster.control.deploy_lock import DeployLock
from kiqcluster.store import Store
from tests.fake_supervisor import FakeSupervisor
from tests.kit import RedisServer
from tests.redis.kiqctl import Kiqctl

OWNER = ("--owner", "mira")


@pytest.fixture
def eu(own_server: RedisServer) -> Iterator[Store]:
    store = Store(own_server.url, name="eu")
    yield store
    store.close()


@pytest.fixture
def flags(own_server: RedisServer, tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "kiqcluster.toml").write_text(f'[shards.eu]\nredis = "{own_server.url}"')
    return "-C", str(tmp_path / "kiqcluster.toml")


@pytest.fixture
def near(store: Store) -> Iterator[FakeSupervisor]:
    supervisor = FakeSupervisor(store, "near")
    yield supervisor
    supervisor.close()


@pytest.fixture
def far(eu: Store) -> Iterator[FakeSupervisor]:
    supervisor = FakeSupervisor(eu, "far")
    yield supervisor
    supervisor.close()


def test_begin_waits_for_the_jobs_of_all_shards(
    kiqctl: Kiqctl, flags: tuple[str, ...], near: FakeSupervisor, far: FakeSupervisor, store: Store, eu: Store
) -> None:
    far.run_jobs(1, 0)

    early = kiqctl.ask("deploy", "begin", "--wait", "--timeout", "0.2s", *OWNER, *flags, code=1)
    far.run_jobs(0, 0)
    done = kiqctl.ask("deploy", "begin", "--wait", *OWNER, *flags)

    assert {each["name"]: each["error"] for each in early["clusters"]} == {near.name: None, far.name: "not within 0s"}
    assert [each["name"] for each in done["clusters"]] == [far.name, near.name]
    assert [len(deploys.marks(store=each)) for each in (store, eu)] == [1, 1]
    aborted = kiqctl.ask("deploy", "abort", *OWNER, *flags)
    assert (aborted["ok"], far.actions[-1], near.actions[-1]) == (True, "rollback", "rollback")
    assert [DeployLock(each, "mira").look().owner for each in (store, eu)] == ["", ""]


def test_a_deploy_of_one_shard_and_one_of_all_exclude_each_other(
    kiqctl: Kiqctl, flags: tuple[str, ...], near: FakeSupervisor, far: FakeSupervisor, store: Store, eu: Store
) -> None:
    kiqctl.ask("deploy", "begin", "--shard", "eu", "--owner", "juri", *flags)

    refused = kiqctl.ask("deploy", "begin", *OWNER, *flags, code=6)

    assert "juri" in refused["error"]
    assert (near.actions, far.actions) == ([], ["quiet"])
    assert DeployLock(store, "mira").look().owner == "", "what it took before it was refused is free again"
    assert kiqctl.ask("deploy", "status", *OWNER, *flags, code=6)["owner"] == "juri"
    forced = kiqctl.ask("deploy", "begin", "--force", *OWNER, *flags)
    assert forced["taken_from"] == "juri"
    kiqctl.ask("deploy", "abort", "--shard", "eu", "--owner", "juri", *flags, code=6)
    assert DeployLock(eu, "mira").look().owner == "mira"


def test_while_a_shard_is_away_the_others_are_asked_and_it_is_not_done(
    kiqctl: Kiqctl, flags: tuple[str, ...], near: FakeSupervisor, own_server: RedisServer
) -> None:
    own_server.kill()

    begun = kiqctl.ask("deploy", "begin", *OWNER, *flags, code=1)
    rolled = kiqctl.ask("deploy", "commit", "--patience", "0.2s", *OWNER, *flags, code=1)
    looked = kiqctl.ask("deploy", "status", *OWNER, *flags, code=1)

    assert {each["name"]: bool(each["error"]) for each in begun["clusters"]} == {near.name: False, "shard eu": True}
    assert near.actions == ["quiet", "roll"]
    assert "cannot reach Redis" in rolled["error"]
    assert (looked["owner"], looked["missing"]) == ("mira", ["eu"])
    alone = kiqctl.ask("deploy", "abort", "--shard", "default", *OWNER, *flags)
    assert alone["ok"]


def test_begin_says_which_workers_it_cannot_see(
    kiqctl: Kiqctl, flags: tuple[str, ...], near: FakeSupervisor, far: FakeSupervisor
) -> None:
    children = [{"slot": number, "pid": 100 + number, "state": "ready", "shard": "us"} for number in (1, 2)]
    near.change(children=children)
    far.change(children=[{**children[0], "shard": "eu"}])

    done = kiqctl.ask("deploy", "begin", "--wait", *OWNER, *flags, code=1)

    errors = {each["name"]: each["error"] for each in done["clusters"]}
    assert errors[far.name] is None
    assert "has workers in us, of which the configuration here does not know" in errors[near.name]
