"""A rolling deploy of kiqcluster itself: workers of the release before and of this one in one fleet, jobs running.

The release before is the last commit whose beats were counted in a hash (format 1).  It is taken from the repository's
history; a shallow clone has none, and the tests are skipped then: TestFormat1 in tests/conformance has the same rules
without its processes.  The long form alone runs processes of both.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import pytest

from kiqcluster import testing
from kiqcluster.errors import ExitCode
from kiqcluster.sidekiq.keys import FORMAT_VERSION
from kiqcluster.store import Store
from tests.kit import ROOT, unavailable, wait_until
from tests.proc import wait_exited
from tests.stage import Stage, pid_of

FORMAT_1 = "f5b9277"  # the last commit that writes it
RECOVER_AFTER_SECONDS = 3.0
SOON = {"KIQ_RECOVER_AFTER": str(RECOVER_AFTER_SECONDS), "KIQ_SILENCE_TIMEOUT": "0"}
MIN_BEATS = 12  # beats of each, in no less than recover_after
TIMEOUT_SECONDS = 60.0  # a silent process of format 1 is recovered after up to twice recover_after and a look

RunOld = Callable[..., testing.Cluster]


@pytest.fixture(scope="module")
def old_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    git = shutil.which("git")
    if git is None:
        unavailable("git is not installed, so the release before cannot be taken from the history")
    archive = subprocess.run([git, "archive", FORMAT_1, "kiqcluster"], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        unavailable(f"the history does not hold {FORMAT_1}: {archive.stderr.decode(errors='replace').strip()}")
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    return folder


@pytest.fixture
def run_old(old_release: Path, stage: Stage) -> Iterator[RunOld]:
    """Start clusters of the release before."""
    running: list[testing.Cluster] = []

    def run(*arguments: str) -> testing.Cluster:
        environ = {"PYTHONPATH": f"{old_release}{os.pathsep}{ROOT}", **SOON}
        options = ("-r", "tests.apps.basic", "--redis", stage.redis.url)
        running.append(testing.Cluster([*options, *arguments], environ, old_release))
        return running[-1]

    yield run
    for each in running:
        each.close()


def counts(store: Store) -> dict[str, int]:
    """Return how often each process has beaten, as format 1 counts."""
    flat = store.call("HGETALL", "kiq:beats")
    return {name.decode(): int(number) for name, number in zip(flat[::2], flat[1::2], strict=True)}


def wait_for_looks(stage: Stage) -> None:
    """Wait until everybody has looked at everybody else for longer than it takes to recover one."""
    before = counts(stage.store)

    def has_looked(name: str) -> bool:
        return counts(stage.store).get(name, 0) >= before.get(name, 0) + MIN_BEATS

    wait_until(lambda: all(map(has_looked, stage.members())), "everybody to look", TIMEOUT_SECONDS)


def identity_of(everybody: set[str], pid: int) -> str:
    (found,) = [name for name in everybody if pid_of(name) == pid]
    return found


def vanish(store: Store, identity: str, cluster: testing.Cluster) -> None:
    """Have a host vanish: nobody else can see that its process is gone."""
    store.call("HSET", "kiq:members", identity, "00000001 another-boot another-namespace 1 0")
    for pid in (cluster.pid, pid_of(identity)):
        os.kill(pid, signal.SIGKILL)
    wait_exited(pid_of(identity))


def wait_given_back(stage: Stage, dead: str, queue: str, jobs: list[str]) -> None:
    wait_until(
        lambda: dead not in stage.members() and dead not in stage.holders(), "it to be recovered", TIMEOUT_SECONDS
    )
    assert stage.queued_args(queue) == jobs


@pytest.mark.full
@pytest.mark.timeout(180)
def test_neither_release_takes_the_other_for_dead_and_each_recovers_the_other(stage: Stage, run_old: RunOld) -> None:
    old, new = run_old("default", "-c", "1"), stage.run_cluster("other", "-c", "1", **SOON)
    old_pid, new_pid = old.wait_ready()[0], new.wait_ready()[0]
    stage.push("stubborn", "a")
    stage.push("stubborn", "b", queue="other")
    stage.wait_noted("began a", "began b")
    everybody = stage.members()

    wait_for_looks(stage)
    assert stage.members() == everybody
    dead = identity_of(everybody, old_pid)
    vanish(stage.store, dead, old)
    wait_given_back(stage, dead, "default", ["a"])

    old = run_old("default", "-c", "1")
    wait_until(lambda: stage.notes().count("began a") == 2, "the job to run again, in the release before")
    old_pid = old.wait_ready()[0]
    wait_for_looks(stage)
    assert {pid_of(name) for name in stage.members()} == {old_pid, new_pid}
    dead = identity_of(everybody, new_pid)
    vanish(stage.store, dead, new)
    wait_given_back(stage, dead, "other", ["b"])

    stage.run_cluster("other", "-c", "1", **SOON).wait_ready()
    wait_until(lambda: stage.notes().count("began b") == 2, "the other job to run again")
    stage.release()
    stage.wait_noted("ended a", "ended b")
    stage.wait_settled()
    assert old.stop() == 0
    wait_until(
        lambda: not stage.store.call("EXISTS", "kiq:beats", "kiq:beats:1"),
        "the keys of format 1 to go",
        TIMEOUT_SECONDS,
    )
    assert stage.store.call("GET", "stat:processed") == b"2"


def test_a_worker_that_is_too_old_for_its_fleet_does_not_start_and_says_so(stage: Stage) -> None:
    stage.store.call("SET", "kiq:format", FORMAT_VERSION + 1)

    cluster = stage.run_cluster("default", "-c", "1")

    assert cluster.wait() == ExitCode.REDIS_REFUSED
    assert any("Start the newer release" in line for line in cluster.lines)
    assert stage.members() == set()
