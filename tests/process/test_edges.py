"""Edges of a worker's life: wakeups at the end, refusals, a hung server, a server without INFO."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from itertools import product
from pathlib import Path

import pytest

from kiqcluster.errors import ExitCode
from kiqcluster.store import Store
from tests import forkserver
from tests.kit import PAUSE, Cluster, RedisServer, wait_until
from tests.stage import Stage


def test_what_rings_while_the_last_worker_stops_is_left_in_its_queue(stage: Stage) -> None:
    pushed = 0
    for _ in range(4):
        cluster = stage.run_cluster("default", "-c", "2", "-t", "2")
        cluster.wait_ready()
        is_over = threading.Event()

        def trickle(is_over: threading.Event = is_over) -> None:
            nonlocal pushed
            while not is_over.is_set():
                stage.push("record", str(pushed))
                pushed += 1
                PAUSE.wait(0.002)

        pusher = threading.Thread(target=trickle)
        pusher.start()
        try:
            wait_until(lambda: len(stage.notes()), "the first jobs to run")
            assert cluster.stop() == 0
        finally:
            is_over.set()
            pusher.join()
        assert stage.store.call("KEYS", "kiq:wake:*") == []
        assert stage.holders() == set()
        assert len(stage.queued()) + len(stage.notes()) == pushed


@pytest.mark.parametrize(
    ("closing", "closed"),
    [
        (">&- 2>&- <&-", [0, 1, 2]),
        *(pytest.param(f"{name}&-", [number], marks=pytest.mark.full) for number, name in enumerate(("<", ">", "2>"))),
    ],
)
def test_a_cluster_whose_streams_are_closed_works_and_has_no_socket_in_their_place(
    stage: Stage, closing: str, closed: list[int]
) -> None:
    shell = ["sh", "-c", f'exec "$@" {closing}', "sh"]
    cluster = Cluster(["-r", "tests.apps.basic", "--redis", stage.redis.url, "default"], through=shell)
    try:
        stage.push("record", "heard")
        wait_until(lambda: stage.notes() == ["ran heard"], "the job to run")
        streams = [str(Path(f"/proc/{cluster.pid}/fd/{number}").readlink()) for number in closed]

        assert streams == ["/dev/null"] * len(closed)
        assert cluster.stop() == 0
    finally:
        cluster.close()


@pytest.mark.parametrize(
    "closing", ["<&- >&- 2>&-", *(pytest.param(one, marks=pytest.mark.full) for one in (">&-", "2>&-"))]
)
def test_kiqctl_does_its_work_with_closed_streams(stage: Stage, closing: str) -> None:
    stage.store.call("ZADD", "dead", 1, '{"class":"Work","args":[],"jid":"0123456789abcdef01234567","queue":"default"}')
    kiqctl = [sys.executable, "-m", "kiqcluster.ctl"]
    redis = ["--redis", stage.redis.url]
    for words in (["stats", "--json"], ["dead", "delete", "--all", "--yes"]):
        shell = ["sh", "-c", f'exec "$@" {closing}', "sh", *kiqctl, *words, *redis]

        assert subprocess.run(shell, check=False, timeout=150).returncode == 0

    assert stage.store.call("ZCARD", "dead") == 0


WORDS = {
    "text": (["stats"], 1),
    "json": (["stats", "--json"], 1),
    "failure": (["stats", "--json", "--redis", "nonsense"], 2),
}
STREAMS = {"output": ">/dev/full", "both": ">/dev/full 2>&1"}
BUFFERED: dict[str, dict[str, str]] = {"buffered": {}, "unbuffered": {"PYTHONUNBUFFERED": "1"}}
# Each pair of values is in the short form, each three of them in the long one.
SHORT = {
    *("text-output-buffered", "text-both-unbuffered", "json-output-unbuffered"),
    *("json-both-buffered", "failure-output-buffered", "failure-both-unbuffered"),
}


def on_a_full_disk(streams: str, words: list[str], environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a module with some of its streams on a full disk, named as a shell names them; return the rest."""
    with Path("/dev/full").open("w") as full:
        output = full if streams.startswith(">") else subprocess.DEVNULL
        errors = full if "2>" in streams else subprocess.PIPE
        command = [sys.executable, "-m", *words]
        with forkserver.Popen(command, env=environ, stdout=output, stderr=errors, text=True) as process:
            _, stderr = process.communicate(timeout=30)
    return subprocess.CompletedProcess(command, process.returncode, "", stderr or "")


@pytest.mark.parametrize(
    ("streams", "words", "code", "buffered"),
    [
        pytest.param(STREAMS[stream], *WORDS[word], BUFFERED[buffer], id=name, marks=marks)
        for word, stream, buffer in product(WORDS, STREAMS, BUFFERED)
        for name in [f"{word}-{stream}-{buffer}"]
        for marks in [[] if name in SHORT else [pytest.mark.full]]
    ],
)
def test_a_full_disk_is_no_traceback_of_kiqctl(
    redis_server: RedisServer, streams: str, words: list[str], code: int, buffered: dict[str, str]
) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    environ |= {"REDIS_URL": redis_server.url, **buffered}
    done = on_a_full_disk(streams, ["kiqcluster.ctl", *words], environ)

    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert ("No space left on device" in done.stderr) == (streams == ">/dev/full")


@pytest.mark.parametrize(
    ("words", "streams", "code"),
    [
        ("kiqcluster --help", ">/dev/full", 1),
        ("kiqcluster --version", ">/dev/full 2>&1", 1),
        ("kiqcluster --nonsense", "2>/dev/full", 2),
        ("kiqcluster.ctl --help", ">/dev/full", 1),
        ("kiqcluster.ctl nonsense", "2>/dev/full", 2),
        ("kiqcluster.ctl stats --nonsense", ">/dev/full 2>&1", 2),
    ],
)
def test_a_full_disk_changes_no_exit_code_and_is_no_traceback(words: str, streams: str, code: int) -> None:
    done = on_a_full_disk(streams, words.split(), dict(os.environ))

    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


ESCAPES = """
import os
from kiqcluster.supervisor.fork import fork

def run():
    raise RuntimeError("a child that fails")

try:
    pid = fork(run, lambda: None, "child")
except BaseException:
    os._exit(3)  # the child, in its parent's code
_, status = os.waitpid(pid, 0)
os._exit(10 + os.waitstatus_to_exitcode(status))
"""


def test_a_child_that_cannot_say_why_it_fails_does_not_go_on_as_its_parent() -> None:
    with Path("/dev/full").open("w") as full:
        parent = forkserver.Popen([sys.executable, "-c", ESCAPES], stderr=full)

    assert parent.wait(30) == 10 + ExitCode.UNEXPECTED


def test_a_quiet_that_comes_during_the_boot_holds_from_the_first_fetch_on(
    stage: Stage, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("slow")
    (folder / "slow.py").write_text(
        "import os, pathlib, time\nfrom tests.apps.basic import *\n"
        f"gate = pathlib.Path({str(folder / 'gate')!r})\n"
        "while 'KIQ_SLOT' in os.environ and not gate.exists(): time.sleep(0.01)\n"
    )
    stage.push("record", "early")
    cluster = stage.run_cluster("default", app=str(folder / "slow.py"))
    cluster.wait_for("child_started")

    cluster.signal(signal.SIGTSTP)
    cluster.wait_for("cluster_quiet")
    (folder / "gate").touch()
    cluster.wait_for("child_ready")
    wait_until(
        lambda: stage.store.call("HGET", process_key(stage.store), "quiet") == b"true", "the process to say quiet"
    )

    assert len(stage.queued()) == 1
    cluster.signal(signal.SIGCONT)
    wait_until(lambda: stage.notes() == ["ran early"], "the job after resume")


def process_key(store: Store) -> str:
    for identity in store.call("SMEMBERS", "processes"):
        return str(identity.decode())
    return "none yet"


@pytest.mark.own_redis
def test_redis_away_at_boot_is_said_and_so_is_its_return(stage: Stage) -> None:
    stage.redis.kill()
    cluster = stage.run_cluster("default")
    cluster.wait_for("redis_awaited")
    assert cluster.seen("redis_back") == []

    stage.redis.start()

    cluster.wait_ready()
    cluster.wait_for("redis_back")
    assert cluster.seen("redis_lost") == []  # it has never been there
    assert cluster.stop() == 0


@pytest.mark.own_redis
def test_a_stop_beside_a_hung_server_leaves_within_its_grace(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-t", "1")
    cluster.wait_ready()
    # It has no question open whose lost answer might hold jobs.
    wait_until(lambda: b" cmd=blmove " in stage.store.call("CLIENT", "LIST"), "the worker to have found nothing")

    with stage.redis.stalled():
        assert cluster.stop() == 0


@pytest.mark.own_redis
def test_units_that_cannot_be_put_back_are_told_and_recovered_at_the_next_start(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-t", "1")
    cluster.wait_ready()
    stage.push("stubborn", "x")
    wait_until(lambda: stage.notes() == ["began x"], "the job to run")

    with stage.redis.stalled():
        assert cluster.stop() == 1
    cluster.wait_for("cluster_stranded")

    stage.store.call("RPUSH", "release", "now")
    stage.run_cluster("default")
    wait_until(lambda: "ended x" in stage.notes(), "the job to run again")


def test_a_worker_killed_during_the_stop_leaves_its_units_to_a_sibling(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "other", "-c", "1", "-t", "20")
    pids = cluster.wait_ready(2)
    stage.push("stubborn", "x")
    stage.push("stubborn", "y", queue="other")
    wait_until(lambda: len(stage.notes()) == 2, "both jobs to run")

    cluster.signal(signal.SIGTERM)
    cluster.wait_for("worker_stopping", count=2)
    os.kill(pids[0], signal.SIGKILL)

    wait_until(lambda: stage.queued_args() == ["x"], "the sibling to put the job back")
    stage.store.call("RPUSH", "release", "now")
    assert cluster.wait() == 0
    assert stage.store.call("LLEN", "queue:default") == 1  # where Ruby looks
    assert not cluster.seen("cluster_stranded")


def test_an_idle_worker_does_not_spin_when_redis_refuses_every_reserve(stage: Stage) -> None:
    stage.store.call("SET", stage.store.keys.paused, "no set")
    cluster = stage.run_cluster("default")
    cluster.wait_for("redis_refused")

    before = int(stage.store.call("INFO", "stats").decode().split("total_commands_processed:")[1].split()[0])
    PAUSE.wait(2)
    after = int(stage.store.call("INFO", "stats").decode().split("total_commands_processed:")[1].split()[0])

    assert after - before < 200


def test_an_outcome_that_redis_refuses_is_put_back_at_the_stop(stage: Stage) -> None:
    stage.store.call("SET", stage.store.keys.retry, "no zset")
    stage.push("broken", "x")
    cluster = stage.run_cluster("default", "-c", "1")
    cluster.wait_for("redis_refused", operation="an outcome")
    stage.push("record", "others go on")
    wait_until(lambda: "ran others go on" in stage.notes(), "another job to run")

    assert cluster.stop() == 0

    assert len(stage.queued()) == 1
    assert stage.store.call("HLEN", stage.store.keys.members) == 0
    assert len(cluster.seen("redis_refused", operation="an outcome")) == 1  # the poller cannot read that set either


@pytest.mark.own_redis
def test_a_server_without_info_is_served_all_the_same(stage: Stage) -> None:
    stage.store.call("ACL", "SETUSER", "default", "-info")
    cluster = stage.run_cluster("default")
    cluster.wait_ready()
    stage.push("record", "x")
    wait_until(lambda: stage.notes() == ["ran x"], "the job to run")

    wait_until(lambda: stage.store.call("SCARD", "processes"), "the first heartbeat")
    identity = process_key(stage.store)
    stage.store.call("LPUSH", f"{identity}-signals", "TSTP")

    wait_until(lambda: stage.store.call("HGET", identity, "quiet") == b"true", "the remote signal to be heard")
    assert cluster.seen("child_died") == []


def test_a_job_whose_thread_dies_before_it_begins_runs_in_another(stage: Stage) -> None:
    path = stage.write_application(
        """
        from kiqcluster.ipc.running_jobs import RunningJobs

        start = RunningJobs.start

        def starve(*_):
            RunningJobs.start = start
            raise MemoryError

        RunningJobs.start = starve
        """
    )
    cluster = stage.run_cluster("default", "-c", "1", app=path)
    pids = cluster.wait_ready()

    stage.push("record", "a")

    stage.wait_noted("ran a")
    stage.wait_settled()
    assert cluster.pids() == pids
