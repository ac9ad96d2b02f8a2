"""Shards: one supervisor with slots in two of them; each job stays in its own, whatever happens to it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit import RedisServer, freeze, wait_until
from tests.process.kiqctl import Kiqctl
from tests.stage import Jobs, Stage

APPLICATION = """
    import os, time
    from kiqcluster import Job, job
    from tests.apps.basic import note

    @job(tags=["eu"], retry=2, retry_in=lambda *_: 0.01)
    def fails(word):
        note("failed", word, os.environ["KIQ_SLOT"])
        raise ValueError

    @job(tags=["eu"])
    def far(word):
        note("far", word, os.environ["KIQ_SLOT"])
        near.perform_async(word)

    @job(queue="near")
    def near(word):
        note("near", word, os.environ["KIQ_SLOT"])
        if word != "back":
            far.perform_in(0.01, "back")

    @job(tags=["eu"])
    def killer(word):
        note("began", word, os.environ["KIQ_SLOT"])
        while not os.path.exists(word):
            time.sleep(0.01)
        note("ended", word, os.environ["KIQ_SLOT"])
"""
CONFIGURATION = """
routing = [["tags=eu", "far", "eu"]]

[shards.eu]
redis = "{eu}"

[[groups]]
queues = "near"

[[groups]]
queues = "far"
shard = "eu"

[[groups]]
queues = "far"
shard = "eu"
"""
RACED = 40  # jobs


@pytest.fixture
def eu(own_server: RedisServer) -> Iterator[Jobs]:
    jobs = Jobs(own_server.store())
    yield jobs
    jobs.store.close()


@pytest.fixture
def arguments(stage: Stage, own_server: RedisServer, tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "kiq.toml").write_text(CONFIGURATION.format(eu=own_server.url))
    return "-C", str(tmp_path / "kiq.toml"), "-c", "1"


def test_jobs_stay_in_their_shard(stage: Stage, eu: Jobs, arguments: tuple[str, ...], kiqctl: Kiqctl) -> None:
    cluster = stage.run_cluster(*arguments, app=stage.write_application(APPLICATION))
    pids = cluster.wait_ready(3)
    assert [slot.get("shard") for slot in cluster.slots()] == [None, "eu", "eu"]

    stage.push("near", "a", queue="near")  # pushes to the shard, from there back, and in time to the shard
    eu.push("fails", "b", queue="far", retry=2)

    stage.wait_noted("near a 0", "near back 0")
    wait_until(lambda: bool(eu.dead()), "the job to die in its shard", 60)
    assert eu.dead_args() == ["b"]
    assert [line for line in stage.notes() if line.startswith(("far", "failed")) and line.endswith("0")] == []
    assert sum(line.startswith("failed b") for line in stage.notes()) == 3
    assert {key for key in stage.remaining() if key in ("schedule", "retry", "dead")} == set()
    assert stage.members() != eu.members()
    listed = kiqctl("ps", "--json", *arguments[:2])
    assert all(f":{pid}:" in listed.stdout for pid in pids.values())
    alone = kiqctl("queues", "--json", "--shard", "eu", *arguments[:2])
    assert '"far"' in alone.stdout
    assert '"near"' not in alone.stdout


def test_a_killed_worker_is_recovered_by_one_of_its_shard(
    stage: Stage, eu: Jobs, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    cluster = stage.run_cluster(*arguments, app=stage.write_application(APPLICATION))
    pids = cluster.wait_ready(3)
    word = str(tmp_path / "go")
    eu.push("killer", word, queue="far")
    began = wait_until(lambda: [line for line in stage.notes() if line.startswith("began")], "the job to begin")
    slot = int(began[0].rpartition(" ")[2])

    os.kill(pids[slot], signal.SIGKILL)
    Path(word).touch()

    wait_until(lambda: any(line.startswith("ended") for line in stage.notes()), "the job to run again")
    assert {int(line.rpartition(" ")[2]) for line in stage.notes()} <= {1, 2}
    eu.wait_settled()
    assert sum(line.startswith("ended") for line in stage.notes()) == 1
    assert [key for key in eu.remaining() if key != "kiq:suspects"] == []
    assert stage.remaining() == {}


@pytest.mark.full
def test_a_frozen_worker_is_recovered_in_its_shard_and_settles_nothing_when_it_wakes(
    stage: Stage, eu: Jobs, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    """Before that, both workers of the shard race for its jobs."""
    cluster = stage.run_cluster(
        *arguments,
        app=stage.write_application(APPLICATION),
        KIQ_HEALTH_SILENCE_TIMEOUT="0",
        KIQ_HEALTH_RECOVER_AFTER="2",
    )
    pids = cluster.wait_ready(3)
    eu.push_many("far", [[str(number)] for number in range(RACED)], queue="far")
    wait_until(lambda: len([line for line in stage.notes() if line.startswith("near")]) >= RACED, "the race")
    ran = [line.split() for line in stage.notes() if line.startswith("far") and "back" not in line]
    assert sorted(words[1] for words in ran) == sorted(map(str, range(RACED))), "each of them once"
    assert {words[2] for words in ran} == {"1", "2"}
    word = str(tmp_path / "go")
    eu.push("killer", word, queue="far")
    began = wait_until(lambda: [line for line in stage.notes() if line.startswith("began")], "the job to begin")
    slot = int(began[0].rpartition(" ")[2])

    freeze(pids[slot])
    wait_until(lambda: sum(line.startswith("began") for line in stage.notes()) == 2, "the other one to run it")
    Path(word).touch()
    wait_until(lambda: any(line.startswith("ended") for line in stage.notes()), "it to end there")
    os.kill(pids[slot], signal.SIGCONT)
    cluster.wait_for("worker_fenced")

    wait_until(lambda: sum(line.startswith("ended") for line in stage.notes()) == 2, "it to end here, too")
    eu.wait_settled()
    assert {int(line.rpartition(" ")[2]) for line in stage.notes() if line.startswith("ended")} == {1, 2}
    assert [key for key in eu.remaining() if key != "kiq:suspects"] == []
    stage.wait_settled()
    assert int(eu.store.call("GET", "stat:processed")) == eu_runs(stage) - 1, "the late end counts for nothing"


def eu_runs(stage: Stage) -> int:
    """Return how many runs of jobs of the shard have noted something."""
    return sum(line.startswith(("far", "ended")) for line in stage.notes())


def test_the_default_shard_may_be_away(stage: Stage, eu: Jobs, arguments: tuple[str, ...]) -> None:
    """A worker needs its own Redis only."""
    nowhere = "redis://127.0.0.1:1/0"
    cluster = stage.run_cluster(
        *arguments, f"--redis={nowhere}", "--shard", "eu", "far", app=stage.write_application(APPLICATION)
    )
    cluster.wait_ready(1)

    assert [slot["shard"] for slot in cluster.slots()] == ["eu"]
    wait_until(lambda: len(eu.members()) == 1, "the worker to join its shard")
    assert stage.members() == set()


def test_an_order_reaches_the_supervisors_of_all_shards(
    stage: Stage, eu: Jobs, arguments: tuple[str, ...], tmp_path: Path, kiqctl: Kiqctl
) -> None:
    cluster = stage.run_cluster(*arguments, "--shard", "eu", "far", app=stage.write_application(APPLICATION))
    cluster.wait_ready(1)
    word = str(tmp_path / "go")
    eu.push("killer", word, queue="far")
    wait_until(lambda: any(line.startswith("began") for line in stage.notes()), "the job to begin")

    waiting = kiqctl.start("quiet", "--wait", "--json", *arguments[:2])
    cluster.wait_for("cluster_quiet")
    assert waiting.process.poll() is None, "the job still runs, in the other shard"
    Path(word).touch()

    assert kiqctl.end(waiting).returncode == 0
    resumed = kiqctl("resume", "--json", *arguments[:2])
    assert resumed.returncode == 0, resumed.stderr
    cluster.wait_for("cluster_resumed")
    committed = kiqctl("deploy", "commit", *arguments[:2])
    assert committed.returncode == 0, committed.stderr
    cluster.wait_for("roll_done")
