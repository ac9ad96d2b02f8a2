"""Control messages at a worker: what it does itself, what it passes up, what it is told and what it tells."""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kiqcluster.control import control_messages
from kiqcluster.control.control_messages import Message
from kiqcluster.control.stacks import STACKS_TTL_SECONDS, read_stacks
from kiqcluster.ipc.frames import Channel, Frame
from kiqcluster.store import Store
from tests import forkserver
from tests.kit import ROOT, TIMEOUT_SECONDS, RedisServer, wait_until
from tests.stage import Stage, pid_of

STATE = {"supervisor": "here:1:a", "slots": 1, "quiet_by": "", "lease_remaining": None}


class LoneWorker:
    """A worker whose supervisor is the test: frames are sent and received by hand."""

    def __init__(self, store: Store, redis: str) -> None:
        self.store = store
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "tests.apps.lone_worker", str(theirs.fileno()), redis]
        self.process = forkserver.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()], stdout=subprocess.DEVNULL)
        theirs.close()
        self.channel = Channel(ours)
        self.frames: list[Frame] = []
        self.wait_for("ready")
        self.identity = self.wait_for("hello")["identity"]

    def receive(self, seconds: float = 0.0) -> None:
        if not self.channel.closed and select.select([self.channel], [], [], seconds)[0]:
            self.frames += self.channel.receive()

    def wait_for(self, kind: str, after: int = 0, condition: Callable[[Frame], bool] = lambda _: True) -> Frame:
        """Return the first frame of that kind that does, from the `after`-th on."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            for frame in self.frames[after:]:
                if frame["type"] == kind and condition(frame):
                    return frame
            self.receive(0.1)
        pytest.fail(f"no such frame {kind}; there were {[frame['type'] for frame in self.frames[after:]]}")

    def kinds(self) -> set[str]:
        self.receive()
        return {frame["type"] for frame in self.frames}

    def tell(self, action: str, scope: str = "process", **fields: Any) -> None:
        control_messages.send(self.store, self.identity, Message(action, scope, by="kiqctl@x", **fields))

    def field(self, name: str) -> Any:
        """Return what the worker publishes of itself."""
        return self.store.call("HGET", self.identity, name)

    def cluster(self) -> Any:
        raw = self.field("kiq_cluster")
        return None if raw is None else json.loads(raw)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.channel.close()


@pytest.fixture
def worker(stage: Stage) -> Iterator[LoneWorker]:
    worker = LoneWorker(stage.store, stage.redis.url)
    yield worker
    worker.close()


# up


def test_a_message_for_the_cluster_goes_up_and_the_worker_does_nothing_itself(worker: LoneWorker, stage: Stage) -> None:
    worker.tell("quiet", scope="cluster", lease=60.0, id="m1")

    message = worker.wait_for("control")["message"]

    sent = {"action": "quiet", "scope": "cluster", "lease": 60.0, "by": "kiqctl@x", "id": "m1", "whose": ""}
    assert message == {**sent, "jid": "", "pid": 0}
    stage.push("record", "a")
    stage.wait_noted("ran a")
    assert "quiet" not in worker.kinds()


@pytest.mark.parametrize("action", ["resume", "roll", "reload", "stop", "dump"])
def test_every_other_one_goes_up_too(worker: LoneWorker, action: str) -> None:
    worker.tell(action, scope="cluster", id="m1")

    assert worker.wait_for("control")["message"]["action"] == action


def test_what_is_no_message_goes_nowhere_and_the_worker_serves_on(worker: LoneWorker, stage: Stage) -> None:
    stage.store.call("RPUSH", f"kiq:control:{worker.identity}", "TSTP", '{"action":"roll","scope":"process"}', b"\xff")
    worker.tell("dump", scope="cluster", id="behind them")

    assert worker.wait_for("control")["message"]["id"] == "behind them"
    stage.push("record", "a")
    stage.wait_noted("ran a")
    assert [frame["type"] for frame in worker.frames].count("control") == 1


# this one alone


def test_a_process_is_quiet_by_itself_and_tells_its_supervisor_for_how_long(worker: LoneWorker, stage: Stage) -> None:
    worker.tell("quiet", lease=60.0)

    frame = worker.wait_for("quiet")

    assert frame == {"type": "quiet", "quiet": True, "own": True, "lease": 60.0, "by": "kiqctl@x"}
    wait_until(lambda: worker.field("quiet") == b"true", "quiet to show", seconds=5)
    stage.push("record", "a")
    wait_until(lambda: stage.queued_args() == ["a"], "the job to stay in its queue")
    worker.tell("resume")
    stage.wait_noted("ran a")
    assert worker.wait_for("quiet", condition=lambda frame: not frame["quiet"])["own"] is True
    wait_until(lambda: worker.field("quiet") == b"false", "that it fetches again to show", seconds=5)


def test_a_quiet_that_the_supervisor_asks_for_is_not_its_own(worker: LoneWorker) -> None:
    worker.channel.send("quiet", until=None)

    assert worker.wait_for("quiet") == {
        "type": "quiet", "quiet": True, "own": False, "lease": None, "by": "supervisor"
    }  # fmt: skip


def test_a_quiet_worker_is_busy_with_no_more_jobs_than_it_has_threads(worker: LoneWorker, stage: Stage) -> None:
    """It holds more while Redis takes long to take back what was fetched ahead."""
    threads = 2
    stage.push_many("record", [[number] for number in range(5_000)])
    wait_until(lambda: len(stage.notes()) > 50, "jobs to run")
    frames = len(worker.frames)

    stage.store.call("CLIENT", "PAUSE", 3_000, "WRITE")
    worker.channel.send("quiet", until=None)

    busy = worker.wait_for("beat", frames, lambda frame: frame["quiet"])["busy"]
    stage.store.call("CLIENT", "UNPAUSE")
    assert 0 < busy <= threads
    wait_until(lambda: worker.field("busy") == b"0", "that it is drained to show")


def test_a_process_that_is_to_stop_drains_and_says_bye(worker: LoneWorker, stage: Stage) -> None:
    stage.push("stubborn", "a")
    stage.wait_noted("began a")

    worker.tell("stop")
    wait_until(lambda: worker.field("quiet") == b"true", "it to drain")
    stage.release()

    worker.wait_for("bye")
    assert worker.process.wait(TIMEOUT_SECONDS) == 0
    assert stage.notes() == ["began a", "ended a"]
    assert stage.store.call("SMEMBERS", "processes") == []


def test_threads_are_dumped_by_the_one_that_is_asked(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "other", "-c", "1")
    pids = cluster.wait_ready(2)
    asked = next(name for name in stage.members() if pid_of(name) == pids[1])

    control_messages.send(stage.store, asked, Message("dump", "process"))

    cluster.wait_for("threads", pid=pids[1])
    assert cluster.seen("threads", pid=pids[0]) == []


def test_the_threads_of_a_dump_are_kept_in_redis_for_a_while_and_those_that_run_jobs_come_first(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "2")
    cluster.wait_ready()
    jid = stage.push("stubborn", "a")
    stage.wait_noted("began a")
    (name,) = stage.members()

    control_messages.send(stage.store, name, Message("dump", "process"))

    wait_until(lambda: read_stacks(stage.store, [name]), "the stacks to show")
    told = read_stacks(stage.store, [name])[name]
    first, _, _ = told.text.partition("\n---")
    assert jid in first
    assert "in stubborn" in first
    assert told.is_own
    assert 0 < stage.store.call("TTL", stage.store.keys.stacks(name)) <= STACKS_TTL_SECONDS
    stage.release()


# down


def test_what_the_supervisor_does_shows_in_redis_at_once(worker: LoneWorker) -> None:
    worker.channel.send("cluster", state=STATE)
    wait_until(lambda: worker.cluster() == STATE, "the state to show", seconds=5)

    worker.channel.send("cluster", state={**STATE, "slots": 3})

    wait_until(lambda: worker.cluster()["slots"] == 3, "the later state to show", seconds=5)
    assert worker.cluster() == {**STATE, "slots": 3}


def test_a_state_that_is_told_while_redis_is_away_shows_when_it_is_back(
    durable_server: RedisServer,
) -> None:
    store = durable_server.store()
    worker = LoneWorker(store, durable_server.url)
    durable_server.kill()

    worker.channel.send("cluster", state=STATE)
    durable_server.start()

    wait_until(lambda: worker.cluster() == STATE, "the state to show")
    worker.tell("dump", scope="cluster", id="after it")
    assert worker.wait_for("control")["message"]["id"] == "after it"
    worker.close()


# the beat


def test_a_beat_tells_how_much_was_done(worker: LoneWorker, stage: Stage) -> None:
    first = worker.wait_for("beat")
    assert (first["processed"], first["prefetched"]) == (0, 0)

    for number in range(7):
        stage.push("record", str(number))
    stage.push("broken", "x")

    beat = worker.wait_for("beat", condition=lambda frame: frame["processed"] == 8)
    assert beat["round_trips"] > first["round_trips"]
    assert 0 < beat["round_trip_seconds"] < TIMEOUT_SECONDS


def test_jobs_that_share_a_round_trip_count_as_one(worker: LoneWorker, stage: Stage) -> None:
    worker.channel.send("quiet", until=None)
    worker.wait_for("quiet")
    for number in range(200):
        stage.push("record", str(number))
    worker.channel.send("resume")
    wait_until(lambda: len(stage.notes()) == 200, "the jobs to run")
    stage.wait_settled()

    beat = worker.wait_for("beat", len(worker.frames), lambda frame: frame["processed"] == 200)

    assert 2 <= beat["round_trips"] < 200


# drain progress


def test_a_quiet_worker_shows_within_a_moment_that_nothing_runs_any_more(worker: LoneWorker, stage: Stage) -> None:
    """Not only at its next beat, for which kiqctl --wait would wait ten seconds."""
    stage.push("stubborn", "a")
    stage.push("stubborn", "b")
    stage.wait_noted("began a", "began b")
    worker.channel.send("quiet", until=None)
    wait_until(lambda: worker.field("quiet") == b"true", "quiet to show", seconds=5)
    worker.wait_for("beat", len(worker.frames), lambda frame: frame["quiet"] and frame["busy"] == 2)
    assert worker.field("busy") == b"2"

    stage.release()

    wait_until(lambda: worker.field("busy") == b"0", "it to show that nothing runs", seconds=5)
    assert worker.field("quiet") == b"true"
