"""Strikes in a real cluster: set and removed with kiqctl, heeded by every process, counted, and nothing is lost."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kiqcluster.api import DroppedSet, ScheduledSet, StrikeSet
from kiqcluster.errors import UsageError
from kiqcluster.features.strikes import MAX_STRIKE_BYTES, Strike
from kiqcluster.sidekiq import ruby_json
from kiqcluster.store import Store
from tests.kit import wait_until
from tests.process.kiqctl import Kiqctl
from tests.stage import Stage


@pytest.fixture
def kiqctl(stage: Stage) -> Iterator[Kiqctl]:
    running = Kiqctl(stage.redis.url)
    yield running
    running.close()


def document(kiqctl: Kiqctl, *words: str) -> Any:
    done = kiqctl(*words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def add(kiqctl: Kiqctl, *words: str) -> str:
    """Add a strike against the job `record`; return its id."""
    identifier: str = document(kiqctl, "strike", "add", "record", *words)["strike"]["id"]
    return identifier


def listed(kiqctl: Kiqctl) -> list[Any]:
    strikes: list[Any] = document(kiqctl, "strike", "list")["strikes"]
    return strikes


def test_jobs_are_deferred_and_dropped_while_a_strike_lasts(stage: Stage, kiqctl: Kiqctl) -> None:
    deferring = add(kiqctl, "word=later", "--defer", "1h", "--reason", "down")
    dropping = add(kiqctl, "0=never", "--drop")
    cluster = stage.run_cluster("default", "default", "-c", "2")
    cluster.wait_ready(2)  # each worker has read the strikes before its first job

    jid_by_word = {word: stage.push("record", word) for word in ("later", "never", "fine")}
    wait_until(lambda: stage.remaining() == {"schedule": 1}, "one to be deferred, one dropped")

    assert stage.notes() == ["ran fine"]
    (deferred,) = [ruby_json.decode(raw) for raw in stage.store.call("ZRANGE", "schedule", 0, -1)]
    assert (deferred["deferred_by"], deferred["deferred_count"]) == (f"strike:{deferring}", 1)
    (dropped,) = DroppedSet(store=stage.store)
    assert (dropped.jid, dropped["dropped_by"]) == (jid_by_word["never"], f"strike:{dropping}")
    assert {each["id"]: each["struck"] for each in listed(kiqctl)} == {deferring: 1, dropping: 1}

    assert kiqctl("strike", "remove", deferring, dropping).returncode == 0
    stage.ask_for_beats()

    def have_run() -> bool:
        """Return whether both have run; until the beat of their worker, they are struck once more."""
        for job_set in (ScheduledSet, DroppedSet):
            job_set(store=stage.store).add_all_to_queue()
        return len(stage.notes()) == 3

    wait_until(have_run, "both to run")
    assert set(stage.notes()) == {"ran fine", "ran later", "ran never"}
    wait_until(lambda: stage.remaining() == {}, "all to be settled")
    assert (listed(kiqctl), len(DroppedSet(store=stage.store))) == ([], 0)


def test_a_running_cluster_heeds_a_strike_with_its_next_beat(stage: Stage, kiqctl: Kiqctl) -> None:
    cluster = stage.run_cluster("default", "-c", "2")
    cluster.wait_ready()
    stage.push("record", "before")
    stage.wait_noted("ran before")

    StrikeSet(store=stage.store).add("drop", 60, name="record")
    stage.ask_for_beats()

    def is_heeded() -> bool:
        stage.push("record", "after")
        return len(DroppedSet(store=stage.store)) > 0

    wait_until(is_heeded, "a job to be dropped")
    assert {entry.args[0] for entry in DroppedSet(store=stage.store)} == {"after"}


def test_a_kill_before_the_settle_strikes_a_job_once_and_an_ended_strike_lets_it_run(stage: Stage) -> None:
    strikes = StrikeSet(store=stage.store)
    dropping, deferring = strikes.add("drop", 60, name="never"), strikes.add("defer", 60, name="later", delay=3_600)
    stage.store.call("SET", "kills", 1)
    cluster = stage.run_cluster(
        "default", "default", "-c", "1", app="tests.apps.refused", KIQ_HEALTH_RESPAWN_BURST="100"
    )
    cluster.wait_ready(2)

    jids = {stage.push("never", "a"), stage.push("later", "a")}
    wait_until(lambda: stage.remaining() == {"schedule": 1}, "both to be struck")

    assert {each.decode() for each in stage.store.call("SMEMBERS", "killed")} == jids
    assert (len(DroppedSet(store=stage.store)), stage.notes()) == (1, [])
    assert {strike.id: count for strike, count in strikes.list()} == {dropping.id: 1, deferring.id: 1}

    strikes.remove(deferring.id)
    brief = strikes.add("drop", 2, name="later")  # ends by the clock of each process; nothing tells it
    stage.ask_for_beats()

    def has_run() -> bool:
        stage.push("later", "b")
        return "later b" in stage.notes()

    wait_until(lambda: brief.until < time.time() and has_run(), "a job to run once the strike has ended")
    assert strikes.list() == [(dropping, 1)]


class TestApi:
    def test_strikes_that_have_ended_are_not_listed_and_go_with_the_next(self, store: Store) -> None:
        strikes = StrikeSet(store=store)
        ended = Strike("3fa9c1", "SendInvoice", "drop", 1.0)
        store.call("HSET", store.keys.strikes, ended.id, ended.encoded(), "broken", "{")
        store.call("HSET", store.keys.strikes, "huge", '{"name":"a","action":"drop","until":1%s}' % ("0" * 400))
        store.call("HSET", store.keys.struck, ended.id, 5, "removed a moment ago", 1)

        assert strikes.list() == []
        alive = strikes.add("drop", 60, arguments={"order_id": 7})

        assert strikes.list() == [(alive, 0)]
        assert store.call("HKEYS", store.keys.strikes) == [alive.id.encode()]
        assert store.call("EXISTS", store.keys.struck) == 0
        store.call("HSET", store.keys.struck, alive.id, "many")
        assert strikes.list() == [(alive, 0)]

    def test_one_about_every_job_and_the_one_after_the_hundredth_are_refused(self, store: Store) -> None:
        strikes = StrikeSet(store=store)
        with pytest.raises(UsageError, match="a paused queue"):
            strikes.add("drop", 60)
        for number in range(100):
            strikes.add("drop", 60, name=f"Job{number}")

        with pytest.raises(UsageError, match="100 strikes already"):
            strikes.add("drop", 60, name="SendInvoice")

    def test_one_that_workers_would_not_read_is_refused(self, store: Store) -> None:
        with pytest.raises(UsageError, match="bytes"):
            StrikeSet(store=store).add("drop", 60, arguments={"0": "x" * MAX_STRIKE_BYTES})

        assert store.call("EXISTS", store.keys.strikes) == 0

    @pytest.mark.parametrize(
        ("action", "seconds", "delay"),
        [("deffer", 60, 5), ("drop", 0, 5), ("drop", -1, 5), ("drop", float("nan"), 5), ("defer", 60, 0)],
    )
    def test_one_that_cannot_work_is_refused(self, store: Store, action: str, seconds: float, delay: float) -> None:
        with pytest.raises(UsageError, match="pass"):
            StrikeSet(store=store).add(action, seconds, name="SendInvoice", delay=delay)

        assert store.call("EXISTS", store.keys.strikes) == 0

    def test_one_is_removed_once(self, store: Store) -> None:
        strikes = StrikeSet(store=store)
        added = strikes.add("drop", 60, name="SendInvoice")

        assert [strikes.remove(added.id) for _ in range(2)] == [True, False]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("SendInvoice",), "pass --defer SECONDS or --drop"),
        (("SendInvoice", "--drop", "--defer", "5m"), "pass --defer SECONDS or --drop"),
        (("A", "B", "--drop"), "a strike is about one class"),
        (("=7", "--drop"), "NAME=VALUE"),
    ],
)
def test_what_is_not_a_strike_is_refused(stage: Stage, kiqctl: Kiqctl, words: tuple[str, ...], message: str) -> None:
    done = kiqctl("strike", "add", *words)

    assert (done.returncode, stage.store.call("EXISTS", stage.store.keys.strikes)) == (2, 0)
    assert message in done.stderr


def test_the_removal_of_one_that_is_not_there_fails(kiqctl: Kiqctl) -> None:
    done = kiqctl("strike", "remove", "000000")

    assert done.returncode == 1
    assert "000000 is not there" in done.stdout
