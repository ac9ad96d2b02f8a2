"""Views over all shards: kiqctl stats, queues and ps, the exporter, and the shards of the api."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kiqcluster import api
from kiqcluster.ctl.exporter import exporter as exporter_module
from kiqcluster.ctl.exporter.exporter import Exporter
from kiqcluster.errors import StoreError
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.config import Config
from kiqcluster.process.runtime import Setup, using_setup
from kiqcluster.store import Store
from kiqcluster.store.shards import parse_shards, shards_digest
from tests.fake_supervisor import FakeSupervisor, publish
from tests.kit import RedisServer, wait_until
from tests.redis.kiqctl import Kiqctl
from tests.stored_jobs import NOW, add_entries, job, push_payloads

VIEWS = ("limits", "strike", "locks")


@pytest.fixture
def eu(own_server: RedisServer) -> Iterator[Store]:
    store = Store(own_server.url, name="eu")
    yield store
    store.close()


@pytest.fixture
def flags(store: Store, eu: Store, own_server: RedisServer, tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "kiqcluster.toml").write_text(f'[shards.eu]\nredis = "{own_server.url}"')
    for each, queue, count in ((store, "near", 2), (eu, "far", 3)):
        push_payloads(each, [job(number, queue=queue) for number in range(count)], queue)
        add_entries(each, "retry", (NOW, job(9)))
        each.call("SET", "stat:processed", 10 * count)
        publish(each, f"{queue}-1:7:a")
    return "-C", str(tmp_path / "kiqcluster.toml")


def test_stats_sums_up_all_shards(kiqctl: Kiqctl, flags: tuple[str, ...]) -> None:
    whole, part = kiqctl.ask("stats", "--history", "1", *flags), kiqctl.ask("stats", "--shard", "eu", *flags)

    names = ("processed", "enqueued", "retries", "processes")
    assert [whole[name] for name in names] == [50, 5, 2, 2]
    assert [part[name] for name in names] == [30, 3, 1, 1]
    assert [whole["shards"][shard]["enqueued"] for shard in ("default", "eu")] == [2, 3]
    assert {(each["name"], each["shard"]) for each in whole["queues"]} == {("near", "default"), ("far", "eu")}
    assert ("shards" in part, len(whole["history"])) == (False, 1)


def test_queues_lists_those_of_all_shards(kiqctl: Kiqctl, flags: tuple[str, ...]) -> None:
    rows = kiqctl.ask("queues", *flags)["queues"]

    assert {(each["name"], each["shard"], each["size"]) for each in rows if each["size"]} == {
        ("near", "default", 2), ("far", "eu", 3),
    }  # fmt: skip
    assert re.search(r"^far +eu +3", kiqctl("queues", *flags).stdout, re.MULTILINE)
    assert "shard" not in kiqctl.ask("queues", "--shard", "default", *flags)["queues"][0]


def test_ps_shows_the_processes_of_all_shards(kiqctl: Kiqctl, flags: tuple[str, ...]) -> None:
    shown = kiqctl("ps", *flags).stdout

    assert ("near-1:7" in shown, "far-1:7" in shown) == (True, True)
    assert "near-1:7" not in kiqctl("ps", "--shard", "eu", *flags).stdout


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--shard", "us"], "there is no shard 'us'; there is eu"),
        (["--shard", "eu", "--redis", "redis://127.0.0.1:1/0"], "give one of them"),
    ],
)
def test_a_shard_that_cannot_be_meant_is_exit_2(
    kiqctl: Kiqctl, flags: tuple[str, ...], words: list[str], problem: str
) -> None:
    assert problem in kiqctl.ask("retries", *words, *flags, code=2)["error"]


@pytest.mark.usefixtures("flags")
def test_the_exporter_labels_samples_by_shard_and_survives_the_outage_of_one(
    store: Store, eu: Store, own_server: RedisServer
) -> None:
    outages: list[StoreError | None] = []
    clock = SystemClock()
    exporter = Exporter(store, clock, 0.0, outages.append, [eu])
    before = exporter.page("", "")[1].decode()
    own_server.kill()

    after = exporter.page("", "")[1].decode()

    assert 'sidekiq_queue_size{name="near",shard="default"} 2.0' in before
    assert 'sidekiq_queue_size{name="far",shard="eu"} 3.0' in before
    assert before.count("# TYPE sidekiq_jobs_retry_size gauge") == 1
    assert 'sidekiq_queue_size{name="near",shard="default"} 2.0' in after
    assert 'kiqcluster_exporter_up{shard="default"} 1.0' in after
    assert 'kiqcluster_exporter_up{shard="eu"} 0.0' in after
    assert ('shard="eu"} 3.0' in after, len(outages)) == (False, 1)


def test_a_slow_shard_holds_up_no_other(
    store: Store, eu: Store, flags: tuple[str, ...], own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is frozen: it accepts, and says nothing.  The look at it goes on, and is the next one's."""
    monkeypatch.setattr(exporter_module, "LOOK_SECONDS", 0.3)
    exporter = Exporter(eu, SystemClock(), 0.0, lambda _: None, [store])
    with own_server.stalled():
        late = exporter.page("", "")[1].decode()
    after = wait_until(
        lambda: 'exporter_up{shard="eu"} 1.0' in (page := exporter.page("", "")[1].decode()) and page, "it to answer"
    )

    assert 'sidekiq_queue_size{name="near",shard="default"} 2.0' in late
    assert ('kiqcluster_exporter_up{shard="eu"} 0.0' in late, 'shard="eu"} 3.0' in late) == (True, False)
    assert 'sidekiq_queue_size{name="far",shard="eu"} 3.0' in str(after)


def test_one_redis_under_two_names_counts_once(
    kiqctl: Kiqctl, flags: tuple[str, ...], own_server: RedisServer, tmp_path: Path
) -> None:
    (tmp_path / "kiqcluster.toml").write_text(
        f'[shards.eu]\nredis = "{own_server.url}"\n[shards.again]\nredis = "{own_server.url}"'
    )

    assert kiqctl.ask("stats", *flags)["enqueued"] == 5
    assert "the shards eu and again are one Redis, which counts once, as eu" in kiqctl("stats", *flags).stderr


def test_limits_strikes_and_locks_are_those_of_all_shards(
    kiqctl: Kiqctl, flags: tuple[str, ...], store: Store, eu: Store
) -> None:
    for each in (store, eu):
        each.call("HSET", each.keys.limits, "Mail", 3)
        each.call("SET", each.keys.lock("Mail:abc"), f"jid-{each.name}")

    kiqctl.ask("limits", "set", "Mail", "2", *flags)
    added = kiqctl.ask("strike", "add", "Mail", "--drop", *flags)["strike"]["id"]
    limits, strikes = kiqctl.ask("limits", *flags)["limits"], kiqctl.ask("strike", *flags)["strikes"]
    locks = kiqctl.ask("locks", *flags)["locks"]

    assert [(each["shard"], each["override"]) for each in limits] == [("default", 2), ("eu", 2)]
    assert [(each["shard"], each["id"]) for each in strikes] == [("default", added), ("eu", added)]
    assert [(each["shard"], each["jid"]) for each in locks] == [("default", "jid-default"), ("eu", "jid-eu")]
    assert [re.search(r"^\S+ +eu ", kiqctl(name, *flags).stdout, re.MULTILINE) is None for name in VIEWS] == [False] * 3
    assert kiqctl.ask("limits", "reset", "Mail", "--shard", "eu", *flags)["changed"] is True
    assert kiqctl.ask("limits", "reset", "Mail", *flags)["changed"] is True
    assert kiqctl.ask("strike", "remove", added, *flags)["removed"] == {added: True}
    assert kiqctl.ask("locks", "release", "jid-eu", "--yes", *flags)["done"] == 1
    assert "shard" not in kiqctl.ask("locks", "--shard", "default", *flags)["locks"][0]
    assert (store.call("HLEN", store.keys.strikes), eu.call("HLEN", eu.keys.strikes)) == (0, 0)


def test_a_signal_reaches_the_supervisors_of_all_shards(
    kiqctl: Kiqctl, flags: tuple[str, ...], store: Store, eu: Store, own_server: RedisServer
) -> None:
    for each in (store, eu):
        each.call("FLUSHDB")
    near, far = FakeSupervisor(store, "near"), FakeSupervisor(eu, "far")
    publish(eu, "ruby-1:9:c", labels=[])

    kiqctl.ask("signal", "TSTP", "--all", *flags)
    kiqctl.ask("signal", "CONT", far.name, *flags)
    kiqctl.ask("dump", *flags)

    assert (near.actions, far.actions) == (["quiet", "dump"], ["quiet", "resume", "dump"])
    assert eu.call("LRANGE", "ruby-1:9:c-signals", 0, -1) == [b"TTIN", b"TSTP"]
    own_server.kill()
    assert "near" in str(kiqctl.ask("signal", "CONT", "--all", *flags, code=1)["clusters"])
    for each in (near, far):
        each.close()


def test_other_maps_of_shards_are_seen(kiqctl: Kiqctl, flags: tuple[str, ...], store: Store, tmp_path: Path) -> None:
    (tmp_path / "mapped_jobs.py").write_text("from kiqcluster import job\n@job\ndef mapped(): ...\n")
    words = ("routes", "--check", "-r", str(tmp_path / "mapped_jobs.py"), *flags)
    (tmp_path / "kiqcluster.toml").write_text('[shards.eu]\nredis = "redis://:x@127.0.0.1:1/0"')
    config = parse_shards({"eu": "redis://:secret@127.0.0.1:1/0"})
    publish(store, "near-1:7:a", shards=shards_digest(config))
    assert "other [shards]" not in str(kiqctl.ask(*words, code=1)["problem"]), "the shard is away, and no more"
    publish(store, "near-2:7:a", shards=shards_digest(parse_shards({"eu": "redis://127.0.0.1:2/0"})))

    assert "1 of 2 processes have other [shards], as near-2:7:a" in kiqctl.ask(*words, code=1)["problem"]
    page = Exporter(store, SystemClock(), 0.0, lambda _: None).page("", "")[1].decode()
    assert page.count("kiqcluster_shard_map_processes{") == 2


def test_one_shard_has_no_label(store: Store) -> None:
    page = Exporter(store, SystemClock(), 0.0, lambda _: None).page("", "")[1].decode()

    assert "kiqcluster_exporter_up 1.0" in page
    assert "shard=" not in page


@pytest.mark.usefixtures("flags")
def test_the_api_walks_over_all_shards(store: Store, own_server: RedisServer) -> None:
    config = Config(shards=parse_shards({"eu": own_server.url}))
    with using_setup(Setup(config=config, store=store)):
        found = [(shard.name, queue.name, len(queue)) for shard in api.shards() for queue in api.Queue.all(store=shard)]

    assert found == [("default", "near", 2), ("eu", "far", 3)]


def test_a_shard_that_is_away_is_left_out_and_said(
    kiqctl: Kiqctl, flags: tuple[str, ...], own_server: RedisServer
) -> None:
    own_server.kill()

    stats, queues = kiqctl.ask("stats", *flags, code=1), kiqctl.ask("queues", *flags, code=1)
    words = {name: kiqctl(name, *flags) for name in ("stats", "queues", "ps", "busy")}

    assert (stats["enqueued"], stats["missing"], queues["missing"]) == (2, ["eu"], ["eu"])
    assert "near-1:7" in words["ps"].stdout
    assert all("the shard eu is left out: cannot reach Redis" in each.stderr for each in words.values())
    assert {each.exit_code for each in words.values()} == {1}
    assert "shard eu" not in kiqctl("stats", "--shard", "eu", *flags).stderr, "nothing is left to show: it is an error"


def test_a_beginning_of_ids_in_two_shards_kills_nothing(
    kiqctl: Kiqctl, flags: tuple[str, ...], store: Store, eu: Store
) -> None:
    for each, identity, jid in ((store, "near-1:7:a", "abcdef111"), (eu, "far-1:7:a", "abcdef222")):
        raw = json.dumps({"class": "Slow", "args": [], "jid": jid})
        each.call("HSET", f"{identity}:work", "tid", json.dumps({"queue": "q", "payload": raw, "run_at": int(NOW)}))

    error = kiqctl.ask("kill", "abcdef", *flags, code=2)["error"]

    assert "abcdef is the beginning of 2 ids; write more of it: abcdef111, abcdef222" in error
