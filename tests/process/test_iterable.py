"""Iterable jobs in a real cluster: they go on where they were after stops, kills, failures and turns of others."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from kiqcluster.api import DroppedSet, WorkSet
from kiqcluster.client.results import Progress
from kiqcluster.control.cancellation import cancel_in
from kiqcluster.sidekiq import ruby_json
from tests.kit import wait_until
from tests.stage import Stage

APP = "tests.apps.iterable"
KINDS = pytest.mark.parametrize("kind", ["Steps", "AsyncSteps"])


def state(stage: Stage, jid: str) -> dict[str, Any]:
    found = stage.store.call("HGETALL", f"it-{jid}")
    return {key.decode(): ruby_json.decode(value) for key, value in zip(found[::2], found[1::2], strict=True)}


def done(stage: Stage, word: str) -> list[int]:
    return [int(line.split()[2]) for line in stage.notes() if line.startswith(f"did {word} ")]


def released(stage: Stage, word: str) -> None:
    stage.store.call("SADD", "released", word)


@KINDS
def test_it_goes_on_after_a_stop_where_it_was(stage: Stage, kind: str) -> None:
    cluster = stage.run_cluster("default", "-c", "1", app=APP)
    jid = stage.push(kind, "a", 9, 4)
    stage.wait_noted("gate a")

    assert cluster.stop() == 0

    kept = state(stage, jid)
    assert (kept["ex"], kept["c"]) == (1, 5)  # the fourth gave way to the stop, and was done
    assert kept["rt"] > 0.03
    assert 0 < stage.store.call("TTL", f"it-{jid}") <= 30 * 86_400
    assert [(each["jid"], each.get("interrupted_count")) for each in stage.queued()] == [(jid, None)]
    stage.run_cluster("default", "-c", "1", app=APP)
    stage.wait_noted("complete a")
    assert done(stage, "a") == list(range(9))
    assert [line for line in stage.notes() if not line.startswith("did")] == [
        "start a",
        "gate a",
        "stop a",
        "resume a 5",
        "stop a",
        "complete a",
    ]
    wait_until(lambda: not stage.remaining(), "it to be settled")
    assert stage.store.call("EXISTS", f"it-{jid}") == 0
    assert stage.store.call("GET", "stat:processed") == b"1"


@KINDS
def test_it_goes_on_after_a_kill_from_what_it_has_saved(stage: Stage, kind: str) -> None:
    cluster = stage.run_cluster("default", "-c", "1", app=APP)
    jid = stage.push(kind, "a", 60, 50)
    stage.wait_noted("gate a")
    saved = state(stage, jid)["c"]
    assert 0 < saved <= 50
    (pid,) = cluster.wait_ready(1).values()

    os.kill(pid, signal.SIGKILL)
    released(stage, "a")

    stage.wait_noted("complete a")
    assert f"resume a {saved}" in stage.notes() or any(line.startswith("start") for line in stage.notes()[1:])
    assert sorted(set(done(stage, "a"))) == list(range(60))
    assert len(done(stage, "a")) == 60 + 50 - saved  # those since the last save are done again
    wait_until(lambda: not stage.store.call("EXISTS", f"it-{jid}"), "the state to be removed")


def test_it_is_retried_at_the_item_that_has_failed(stage: Stage) -> None:
    stage.run_cluster("default", "-c", "1", app=APP)

    jid = stage.push("Failing", "a", 3)

    stage.wait_noted("complete a")
    assert done(stage, "a") == [0, 1, 2, 3, 4]
    assert "resume a 3" in stage.notes()
    wait_until(lambda: not stage.store.call("EXISTS", f"it-{jid}"), "the state to be removed")


def test_a_forced_stop_keeps_where_it_was(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1", "-t", "0.3", app="tests.apps.iterable_stubborn")
    jid = stage.push("Stubborn", "a")
    stage.wait_noted("gate a")

    assert cluster.stop() == 0

    assert (state(stage, jid)["ex"], state(stage, jid)["c"]) == (1, 2)
    assert [each["interrupted_count"] for each in stage.queued()] == [1]


@KINDS
def test_one_that_runs_is_cancelled_at_its_next_item(stage: Stage, kind: str) -> None:
    stage.run_cluster("default", "-c", "1", app=APP)
    jid = stage.push(kind, "a", 9, 4)
    stage.wait_noted("gate a")

    assert cancel_in(stage.store, jid).running == 1

    wait_until(lambda: not stage.remaining().keys() - {"kiq:dropped"}, "it to end")
    (raw,) = stage.store.call("ZRANGE", stage.store.keys.dropped, 0, -1)
    assert ruby_json.decode(raw)["dropped_by"] == "cancelled"
    assert stage.store.call("EXISTS", f"it-{jid}") == 0
    assert "complete a" not in stage.notes()
    assert stage.notes()[-2:] == [f"cancel a {5 if kind == 'Steps' else 4}", "stop a"]  # async: where it waits


def test_one_whose_process_died_after_the_cancel_begins_anew_once_somebody_wants_it_back(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1", app="tests.apps.iterable_stubborn")
    jid = stage.push("Stubborn", "a")
    stage.wait_noted("gate a")
    stage.store.call("HSET", f"it-{jid}", "ex", "1", "c", "2", "rt", "0.5")
    assert cancel_in(stage.store, jid).running == 1
    assert stage.store.call("HEXISTS", f"it-{jid}", "cancelled") == 1

    (pid,) = cluster.wait_ready(1).values()  # its job may begin before the supervisor hears that it is ready
    os.kill(pid, signal.SIGKILL)

    wait_until(lambda: stage.store.call("ZCARD", stage.store.keys.dropped) == 1, "it to be dropped at its begin")
    assert stage.store.call("EXISTS", f"it-{jid}") == 0
    DroppedSet(store=stage.store).add_all_to_queue()
    wait_until(lambda: stage.notes() == ["gate a", "gate a"], "it to begin anew")


def test_a_cancel_of_ruby_ends_it_with_its_next_save(stage: Stage) -> None:
    """As Sidekiq's `cancel!` does it: a field of the state, and no message."""
    stage.run_cluster("default", "-c", "1", app=APP)
    jid = stage.push("Steps", "a", 100_000)
    stage.wait_noted("did a 3")

    stage.store.call("HSETNX", f"it-{jid}", "cancelled", "1700000000")

    stage.wait_noted("stop a")
    assert any(line.startswith("cancel a ") for line in stage.notes())
    wait_until(lambda: not stage.store.call("EXISTS", f"it-{jid}"), "the state to be removed")
    assert stage.queued() == []


def test_one_that_ruby_has_cancelled_before_its_first_run_does_no_item(stage: Stage) -> None:
    jid = stage.push("Steps", "a", 9)
    stage.store.call("HSET", f"it-{jid}", "cancelled", "1700000000")

    stage.run_cluster("default", "-c", "1", app=APP)

    stage.wait_noted("stop a")
    wait_until(lambda: not stage.store.call("EXISTS", f"it-{jid}"), "the state to be removed")
    assert stage.notes() == ["cancel a None", "stop a"]
    assert stage.store.call("ZCARD", stage.store.keys.dropped) == 1


def test_it_goes_on_where_a_run_of_ruby_was(stage: Stage) -> None:
    jid = stage.push("Steps", "a", 5)
    stage.store.call("HSET", f"it-{jid}", "ex", "2", "c", "3", "rt", "12.5")

    stage.run_cluster("default", "-c", "1", app=APP)

    stage.wait_noted("complete a")
    assert stage.notes()[0] == "resume a 3"
    assert done(stage, "a") == [3, 4]


def test_it_says_how_far_it_has_come(stage: Stage) -> None:
    stage.run_cluster("default", "-c", "1", app=APP)
    stage.push("Steps", "a", 9, 4)
    stage.wait_noted("gate a")

    wait_until(
        lambda: [each.progress for each in WorkSet(store=stage.store)] == [Progress(4, 9)], "its progress to be told"
    )


def test_others_of_its_queue_have_their_turn(stage: Stage) -> None:
    jid = stage.push("Turns", "a", 40)
    for number in range(3):
        stage.push("record", f"{number}")

    stage.run_cluster("default", "-c", "1", app=APP)

    stage.wait_noted("complete a", "ran 0", "ran 1", "ran 2")
    assert stage.notes().index("ran 2") < stage.notes().index("complete a")
    assert done(stage, "a") == list(range(40))
    assert sum(line.startswith("resume") for line in stage.notes()) >= 3
    wait_until(lambda: not stage.remaining(), "it to be settled")
    assert stage.store.call("EXISTS", f"it-{jid}") == 0
    assert stage.store.call("GET", "stat:processed") == b"4"


def test_a_state_that_cannot_be_read_is_no_beginning(stage: Stage) -> None:
    jid = stage.push("Steps", "a", 5)
    stage.store.call("HSET", f"it-{jid}", "ex", "2", "c", "{", "rt", "12.5")

    stage.run_cluster("default", "-c", "1", app=APP)

    wait_until(lambda: stage.store.call("ZCARD", "retry") == 1, "it to fail")
    (raw,) = stage.store.call("ZRANGE", "retry", 0, -1)
    assert ruby_json.decode(raw)["error_class"] == "kiqcluster.errors.MalformedIteration"
    assert stage.notes() == []


def test_a_child_that_an_item_forks_does_no_further_items(stage: Stage) -> None:
    application = stage.write_application("""
        import os
        from kiqcluster.errors import AbortIteration
        from kiqcluster.iterable import IterableJob, sequence_enumerator
        from tests.apps.basic import note

        class Fork(IterableJob):
            def build_enumerator(self, way, *, cursor):
                if way == "enumerator":
                    return self.forking()
                return sequence_enumerator(range(3), cursor=cursor)

            def forking(self):
                for number in range(3):
                    self.fork()
                    yield number, number

            def each_iteration(self, number, way):
                note("did", way, number)
                if way == "item":
                    self.fork()
                if way == "abort" and self.fork():
                    raise AbortIteration

            def fork(self):
                pid = os.fork()
                if pid:
                    os.waitpid(pid, 0)
                return not pid

            def on_stop(self):
                note("stop", self.arguments[0])
    """)
    ways = ("enumerator", "item", "abort")
    for way in ways:
        stage.push("Fork", way)

    stage.run_cluster("default", "-c", "1", app=application)

    stage.wait_noted(*(f"stop {way}" for way in ways))
    wait_until(lambda: not stage.remaining(), "all jobs to be settled")
    assert {way: stage.notes().count(f"stop {way}") for way in ways} == dict.fromkeys(ways, 1)
    assert {way: done(stage, way) for way in ways} == {way: [0, 1, 2] for way in ways}


COUNTING = """
    import pathlib, time
    from kiqcluster.iterable import IterableJob, loop, sequence_enumerator

    loop.SAVE_SECONDS = 0.05

    class Count(IterableJob):
        def build_enumerator(self, count, *, cursor):
            return sequence_enumerator(range(count), cursor=cursor)

        def each_iteration(self, number, count):
            with open("did", "a") as did:  # no Redis: it is away
                did.write(f"{number}\\n")
            time.sleep(0.01)
"""


@pytest.mark.durable_redis
def test_it_goes_on_while_redis_is_away(stage: Stage, tmp_path: Path) -> None:
    application = stage.write_application(COUNTING)
    stage.run_cluster("default", "-c", "1", "--directory", str(tmp_path), app=application)
    jid = stage.push("Count", 300)

    def did() -> list[str]:
        return (tmp_path / "did").read_text().split() if (tmp_path / "did").exists() else []

    wait_until(lambda: len(did()) > 20, "it to run")
    stage.redis.kill()
    before = len(did())
    wait_until(lambda: len(did()) > before + 100, "it to go on without Redis")
    stage.redis.start()

    wait_until(lambda: stage.store.call("GET", "stat:processed") == b"1", "it to end")
    assert did() == [f"{number}" for number in range(300)]
    assert stage.store.call("EXISTS", f"it-{jid}") == 0
    assert stage.store.call("GET", "stat:failed") in (None, b"0")
