"""Two releases, the newer of which has changed the arguments of a job: each payload runs where it is understood."""

from __future__ import annotations

import os
import signal
from textwrap import dedent
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


def release(stage: Stage, name: str, source: str) -> str:
    """Write the application of a release, and return the argument of -r."""
    path = stage.folder / f"{name}.py"
    path.write_text(dedent(source))
    return str(path)


def scheduled(stage: Stage) -> list[Any]:
    return [decode(raw) for raw in stage.store.call("ZRANGE", "schedule", 0, -1)]


def make_due(stage: Stage) -> None:
    for raw in stage.store.call("ZRANGE", "schedule", 0, -1):
        stage.store.call("ZADD", "schedule", "XX", 1, raw)


def test_payloads_of_the_newer_release_wait_for_it_and_older_ones_run(stage: Stage) -> None:
    old = stage.run_cluster("default", app=release(stage, "old", OLD), KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL="0.1")
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
    new = stage.run_cluster("default", app=release(stage, "new", NEW), KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL="0.1")
    stage.push("resize", "c", version=1)
    make_due(stage)

    stage.wait_noted("new b 640 2", "new c 0 1")
    assert new.stop() == 0
    assert sorted(stage.notes()) == ["new b 640 2", "new c 0 1", "old a"]
    assert stage.remaining() == {}


def test_two_releases_that_share_a_queue_run_each_job_once_where_it_is_understood(stage: Stage) -> None:
    fast = {"KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL": "0.1"}
    old = stage.run_cluster("default", "-c", "2", app=release(stage, "old", OLD), **fast)
    old.wait_ready(1)
    new = stage.run_cluster("default", "-c", "2", app=release(stage, "new", NEW), **fast)
    new.wait_ready(1)
    numbers = [str(number) for number in range(60)]

    for number in numbers:
        stage.push("resize", number, 7, version=2)
        stage.push("resize", number, version=1)
    os.kill(old.pids()[0], signal.SIGKILL)

    def have_run() -> bool:
        make_due(stage)  # the next look at those that wait, which is 30 s away
        return len(stage.notes()) >= 2 * len(numbers) and not stage.remaining()

    wait_until(have_run, "all to run")
    notes = [line.split() for line in stage.notes()]
    assert sorted(words[1] for words in notes if words[2:] == ["7", "2"]) == sorted(numbers)
    assert all(words[0] == "new" for words in notes if words[2:] == ["7", "2"])
    assert {words[1] for words in notes if words[2:] != ["7", "2"]} == set(numbers)
    assert {tuple(words[2:]) for words in notes} <= {("7", "2"), ("0", "1"), ()}
