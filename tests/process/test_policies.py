"""Policies in a real cluster: two processes heed a flag in Redis, and kills before the settle lose nothing."""

from __future__ import annotations

from typing import Any

from kiqcluster.api import DroppedSet, ScheduledSet
from kiqcluster.sidekiq.ruby_json import decode
from tests.kit import wait_until
from tests.stage import Stage

APP = "tests.apps.refused"
WORDS = ["a", "b", "c"]


def deferred(stage: Stage) -> list[Any]:
    return [decode(raw) for raw in stage.store.call("ZRANGE", "schedule", 0, -1)]


def test_a_flag_defers_and_drops_and_a_kill_before_the_settle_loses_and_doubles_nothing(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "default", "-c", "2", app=APP, KIQ_HEALTH_RESPAWN_BURST="100")
    cluster.wait_ready(2)
    stage.push("later", "before")
    stage.push("never", "before")
    stage.wait_noted("later before", "never before")

    stage.store.call("SADD", "off", "later", "never")
    stage.store.call("SET", "kills", 1)
    jids_by_name = {name: set(stage.push_many(name, [[word] for word in WORDS])) for name in ("later", "never")}
    jids = jids_by_name["later"] | jids_by_name["never"]
    wait_until(lambda: stage.remaining() == {"schedule": 3}, "all to be deferred or dropped")

    killed = {each.decode() for each in stage.store.call("SMEMBERS", "killed")}
    assert (len(killed), killed <= jids) == (2, True)  # one of each, once
    assert {each["jid"] for each in deferred(stage)} == jids_by_name["later"]
    assert {(each["deferred_by"], each["deferred_count"]) for each in deferred(stage)} == {("feature_flag", 1)}
    dropped = list(DroppedSet(store=stage.store))
    assert sorted(each.jid for each in dropped) == sorted(jids_by_name["never"])
    assert {each["dropped_by"] for each in dropped} == {"feature_flag"}
    assert sorted(stage.notes()) == ["later before", "never before"]

    stage.store.call("DEL", "off")
    for job_set in (ScheduledSet, DroppedSet):
        job_set(store=stage.store).add_all_to_queue()
    wait_until(lambda: len(stage.notes()) >= 8 and stage.remaining() == {}, "all to run")
    expected = [f"{name} {word}" for name in ("later", "never") for word in ["before", *WORDS]]
    assert sorted(stage.notes()) == sorted(expected)
    assert (stage.dead(), len(DroppedSet(store=stage.store))) == ([], 0)
