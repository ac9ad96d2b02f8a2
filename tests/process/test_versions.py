"""Two releases, the newer of which has changed the arguments of a job: each payload runs where it is understood."""

from __future__ import annotations

from typing import Any

from kiqcluster.sidekiq.ruby_json import decode
from tests.kit import wait_until
from tests.stage import Stage

OLD = """
    from kiqcluster import job
    from tests.apps.basic import note

    @job(version=1)
    def resize(path):
        note("old", path)
"""
NEW = """
    from kiqcluster import current_job, job
    from tests.apps.basic import note

    @job(version=2)
    def resize(path, width=0):
        note("new", path, width, current_job().version)
"""


def scheduled(stage: Stage) -> list[Any]:
    return [decode(raw) for raw in stage.store.call("ZRANGE", "schedule", 0, -1)]


def make_due(stage: Stage) -> None:
    for raw in stage.store.call("ZRANGE", "schedule", 0, -1):
        stage.store.call("ZADD", "schedule", "XX", 1, raw)


def test_payloads_of_the_newer_release_wait_for_it_and_older_ones_run(stage: Stage) -> None:
    old = stage.run_cluster("default", app=stage.write_application(OLD), KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL="0.1")
    jid = stage.push("resize", "b", 640, version=2, retry=False)
    stage.push("resize", "a", version=1)
    stage.wait_noted("old a")
    wait_until(lambda: scheduled(stage), "the newer one to wait")

    make_due(stage)
    (waiting,) = wait_until(
        lambda: [each for each in scheduled(stage) if each["deferred_count"] == 2], "it to wait again"
    )
    assert (waiting["jid"], waiting["deferred_by"], waiting["args"]) == (jid, "version", ["b", 640])
    assert old.stop() == 0
    new = stage.run_cluster("default", app=stage.write_application(NEW), KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL="0.1")
    stage.push("resize", "c", version=1)
    make_due(stage)

    stage.wait_noted("new b 640 2", "new c 0 1")
    assert new.stop() == 0
    assert sorted(stage.notes()) == ["new b 640 2", "new c 0 1", "old a"]
    assert stage.remaining() == {}
