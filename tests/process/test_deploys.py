"""Deploys, from end to end: what a person on call does on such a day, and what goes wrong then (D1 to D12)."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kiqcluster.store import Store
from tests.deploy.stage import Manager
from tests.kit import PAUSE, Cluster, http_get, is_alive, require, unavailable, wait_until
from tests.proc import children, wait_exited
from tests.process.capacity import Capacity
from tests.process.releases import Releases
from tests.stage import Jobs, Stage, pid_of


class Load:
    """A thread that enqueues for a `with` block, a job for each queue at a time; each notes a word of its own."""

    def __init__(self, jobs: Jobs, *queues: str) -> None:
        self.words: list[str] = []
        self._jobs = jobs
        self._queues = queues
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._push, daemon=True)

    def _push(self) -> None:
        while not self._over.is_set():
            number = len(self.words)
            for queue in self._queues:
                word = f"{queue}-{number}"
                self._jobs.push("nap", word, 0.02 if number % 5 else 0.2, queue=queue)
                self.words.append(word)
            PAUSE.wait(0.01 * len(self._queues))  # a good part of what two threads a queue can do

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def check(self) -> None:
        """Assert that each job ran to its end, once, and that nothing of any is left."""
        lines = [f"{verb} {word}" for word in self.words for verb in ("began", "ended")]
        lengths = [("LLEN", f"queue:{queue}") for queue in self._queues]
        # A queue is also empty while its last job is in a wake list.
        wait_until(lambda: set(lines) <= set(self._jobs.notes()), "each job to have run to its end", 60)
        wait_until(lambda: not any(self._jobs.store.pipeline(lengths)), "the queues to be empty", 60)
        self._jobs.wait_settled()
        times = Counter(self._jobs.notes())
        assert {line: times[line] for line in lines if times[line] != 1} == {}


# D1


def test_d01_quiet_early_stop_late(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "2", "-t", "600")
    pid = stage.occupy(cluster)[0]

    cluster.signal(signal.SIGTSTP)
    cluster.wait_for("worker_quiet")
    stage.push("record", "b")
    stage.release()
    stage.wait_noted("ended a")  # what runs goes on
    wait_until(lambda: stage.queued_args() == ["b"], "what is new to stay in its queue")
    stage.wait_settled()
    assert is_alive(pid)

    assert cluster.stop() == 0  # at once: nothing runs
    assert stage.notes() == ["began a", "ended a"]
    assert stage.queued_args() == ["b"]


# D2


@pytest.mark.parametrize("ends_by", ["resume", "lease"])
def test_d02_a_deploy_script_that_dies_half_way_leaves_no_fleet_quiet(stage: Stage, ends_by: str) -> None:
    lease = "1" if ends_by == "lease" else "600"
    cluster = stage.run_cluster("default", "other", "-c", "2", "--quiet-lease", lease)
    pids = stage.occupy(cluster, 2)
    steps = f"kill -TSTP {cluster.pid}; sleep 600; kill -TERM {cluster.pid}"
    script = subprocess.Popen(["sh", "-c", steps], start_new_session=True)
    cluster.wait_for("worker_quiet", count=2)
    stage.push("record", "b")
    stage.push("record", "c", queue="other")

    os.killpg(script.pid, signal.SIGKILL)
    script.wait()
    if ends_by == "resume":
        cluster.signal(signal.SIGCONT)

    stage.wait_noted("ran b", "ran c")
    stage.release()
    stage.wait_noted("ended a")
    assert Counter(stage.notes())["began a"] == 1  # what ran has noticed nothing
    assert {slot: each for slot, each in cluster.pids().items() if is_alive(each)} == pids
    assert [cluster.restarts(reason, slot) for slot in pids for reason in ("killed", "rolling", "crash")] == [0] * 6
    wait_until(lambda: cluster.readiness()[0] == 200, "the cluster to be ready")


# D3


def test_d03_a_roll_under_load_loses_nothing_and_runs_nothing_twice(stage: Stage, releases: Releases) -> None:
    cluster = releases.run(stage, "default", "other", "third", "-c", "2")
    before = cluster.wait_ready(3)

    with Load(stage, "default", "other", "third") as load, Capacity(cluster) as capacity:
        wait_until(lambda: len(stage.notes()) > 20, "work to be done")
        releases.deploy("2")
        cluster.signal(signal.SIGUSR2)
        cluster.wait_for("roll_done")

    load.check()
    assert capacity.fewest_ready == 3
    assert capacity.most_processes <= 4
    assert set(before.values()).isdisjoint(cluster.pids().values())
    stage.wait_members(*cluster.pids().values())
    assert cluster.stop() == 0


# D4


def test_d04_a_release_that_does_not_boot_costs_nothing(stage: Stage, releases: Releases) -> None:
    cluster = releases.run(stage, "default", "other", "-c", "2")
    pids = cluster.wait_ready(2)

    with Load(stage, "default", "other") as load, Capacity(cluster) as capacity:
        cluster.signal(signal.SIGTSTP)
        releases.deploy("2", "@on('startup')\ndef connect(): raise RuntimeError('no database')")
        cluster.signal(signal.SIGUSR2)
        cluster.wait_for("roll_failed")
        wait_until(lambda: len(stage.notes()) > 20, "the old release to go on")

    report = stage.wait_roll("failed")
    assert (report["done"], report["of"]) == (0, 2)
    assert "slot 0" in report["error"]
    assert {slot: each for slot, each in cluster.pids().items() if is_alive(each)} == pids
    assert capacity.most_processes <= 3
    load.check()
    os.kill(pids[0], signal.SIGKILL)
    stage.push("release")
    stage.wait_noted("release 1")
    assert cluster.stop() == 0


# D5


def test_d05_a_reload_changes_what_has_changed_and_nothing_else(stage: Stage, tmp_path: Path) -> None:
    file = tmp_path / "kiqcluster.toml"
    file.write_text('groups = ["default", "stays", "goes"]\nconcurrency = 1')
    cluster = stage.run_cluster("-C", str(file))
    pids = cluster.wait_ready(3)
    stage.push("stubborn", "on the one that goes", queue="goes")
    stage.push("stubborn", "on the one that stays", queue="stays")
    stage.wait_noted("began on the one that goes", "began on the one that stays")
    file.write_text('groups = ["stays", "comes", "default"]\nconcurrency = 1')

    cluster.signal(signal.SIGHUP)
    stage.push("record", "a", queue="comes")
    stage.wait_noted("ran a")
    assert is_alive(pids[2])  # it has a job to finish
    stage.release()

    stage.wait_noted("ended on the one that goes", "ended on the one that stays")
    wait_exited(pids[2])
    assert len(stage.notes()) == 5
    added = cluster.wait_for("child_ready", count=4)["child"]
    stage.wait_members(pids[0], pids[1], added)


# D6


def test_d06_a_job_that_outlasts_every_deploy_is_put_back_and_buried_when_it_has_had_its_chances(
    stage: Stage, releases: Releases
) -> None:
    releases.deploy(
        "1", "@job(max_retries_after_interruption=2)\ndef endless(word):\n    note('began', word)\n    time.sleep(600)"
    )
    cluster = releases.run(stage, "default", "-c", "1", "-t", "0.2")
    stage.push("endless", "a")
    stage.wait_noted("began a")

    cluster.signal(signal.SIGUSR2)
    wait_until(lambda: stage.notes() == ["began a", "began a"], "the job to run again")
    cluster.wait_for("roll_done")
    assert stage.dead() == []
    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("roll_done", count=2)

    wait_until(lambda: stage.dead(), "the job to be buried")
    assert (stage.dead_args(), stage.dead()[0]["interrupted_count"]) == (["a"], 2)
    assert stage.queued() == []
    assert stage.notes() == ["began a", "began a"]


# D7


def test_d07_the_job_of_a_killed_child_runs_on_its_sibling(stage: Stage, releases: Releases) -> None:
    """The slot itself cannot boot: the release has been removed under its feet."""
    releases.deploy("1", "assert not pathlib.Path('../../broken').exists()")
    cluster = releases.run(stage, "default", "default", "-c", "1")
    pids = cluster.wait_ready(2)
    stage.push("stubborn", "a")
    stage.wait_noted("began a")
    killed = wait_until(lambda: [pid_of(name) for name in stage.holders()], "somebody to hold the job")[0]
    (releases.current.parent / "broken").touch()

    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: stage.notes() == ["began a", "began a"], "the sibling to run it")
    stage.release()

    stage.wait_noted("ended a")
    assert stage.notes() == ["began a", "began a", "ended a"]
    stage.wait_members(*set(pids.values()) - {killed})


# D8


@pytest.mark.own_redis
@pytest.mark.parametrize("seconds", [1, pytest.param(61, marks=pytest.mark.full)])
def test_d08_a_redis_that_is_away_is_waited_for_and_no_process_is_replaced(
    stage: Stage, tmp_path: Path, seconds: float
) -> None:
    """It comes back empty, as after a fail-over to nothing: everybody shows up again."""
    app = stage.write_application("""
        import os
        import pathlib
        from kiqcluster import on
        from tests.apps.basic import nap

        @on("heartbeat")
        def note_it():
            with pathlib.Path("heartbeats").open("a") as file:
                file.write(f"{os.getpid()}\\n")
    """)
    limits = {"KIQ_HEALTH_BOOT_TIMEOUT": "5", "KIQ_HEALTH_SILENCE_TIMEOUT": "10"}
    options = ("default", "other", "-c", "1", "--directory", str(tmp_path), "--redis", stage.redis.url)
    cluster = stage.run_cluster(*options, app=app, **limits)
    pids = cluster.wait_ready(2)
    wait_until(lambda: heartbeats(tmp_path) == Counter(pids.values()), "both workers to show")

    stage.redis.kill()
    until = time.monotonic() + seconds
    wait_until(lambda: http_get(cluster.port, "/readiness")[0] == 503, "the cluster not to be ready")
    assert http_get(cluster.port, "/liveness")[0] == 200
    wait_until(lambda: time.monotonic() > until, "the outage to be over", seconds + 5)
    stage.redis.start()
    stage.push("record", "a")
    stage.push("record", "b", queue="other")

    stage.wait_noted("ran a", "ran b")
    # At least once: who shows before it is told that nobody knows it any more shows anew under its next identity.
    wait_until(lambda: min(heartbeats(tmp_path).values()) >= 2, "both workers to show again")
    stage.wait_members(*pids.values())
    wait_until(lambda: listed(stage.store) == sorted(pids.values()), "both workers, and nobody else, to be listed")
    assert len(cluster.seen("child_started")) == 2


def listed(store: Store) -> list[int]:
    """Return the pids of the processes that Sidekiq's pages list."""
    return sorted(pid_of(name.decode()) for name in store.call("SMEMBERS", "processes"))


def heartbeats(directory: Path) -> Counter[int]:
    """Return pid → how often it has shown."""
    file = directory / "heartbeats"
    return Counter(map(int, file.read_text().split())) if file.exists() else Counter()


# D9


def press(stage: Stage, pid: int, name: str) -> None:
    """Ruby's web page and API push the name to the process' list."""
    identity = next(each for each in stage.members() if pid_of(each) == pid)
    stage.store.call("LPUSH", f"{identity}-signals", name)


def test_d09_the_buttons_of_the_web_page_reach_one_process(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "other", "-c", "1")
    pids = stage.occupy(cluster, 2)

    press(stage, pids[0], "TSTP")
    cluster.wait_for("worker_quiet", pid=pids[0])
    stage.push("record", "b")
    stage.push("record", "c", queue="other")
    stage.wait_noted("ran c")
    wait_until(lambda: cluster.readiness() == (503, "slot 0 is quiet"), "readiness to name the slot")
    press(stage, pids[0], "TERM")
    stage.release()

    stage.wait_noted("ended a", "ran b")  # by its replacement
    assert cluster.restarts("remote_stop") == 1
    assert Counter(stage.notes())["began a"] == 1
    stage.wait_members(cluster.wait_for("child_ready", slot=0, count=2)["child"], pids[1])
    wait_until(lambda: cluster.readiness()[0] == 200, "the cluster to be ready")


# D10


def test_d10_systemd_hears_of_each_step(stage: Stage) -> None:
    """When each is said, and what happens when it cannot be: tests/deploy/test_notify.py."""
    with tempfile.TemporaryDirectory(prefix="kiq-") as folder:  # the path of a socket must be short
        manager = Manager(f"{folder}/notify")
        cluster = stage.run_cluster(
            "default", "other", "-c", "1", NOTIFY_SOCKET=f"{folder}/notify", WATCHDOG_USEC="400000"
        )
        wait_until(lambda: manager.states() == ["READY"], "systemd to hear of the start")
        assert cluster.metric('kiqcluster_children{state="ready"}') == 2
        stage.occupy(cluster, 2)

        cluster.signal(signal.SIGUSR2)
        wait_until(lambda: manager.states() == ["READY", "RELOADING"], "systemd to hear of the roll")
        stage.release()
        wait_until(lambda: manager.states() == ["READY", "RELOADING", "READY"], "systemd to hear of its end")
        stage.store.call("DEL", "release")
        stage.push("stubborn", "b")
        stage.wait_noted("began b")
        so_far = manager.count("EXTEND_TIMEOUT_USEC"), manager.count("WATCHDOG")
        cluster.signal(signal.SIGTERM)

        wait_until(lambda: manager.states()[3:] == ["STOPPING"], "systemd to hear of the stop")
        wait_until(lambda: manager.count("EXTEND_TIMEOUT_USEC") > so_far[0], "systemd to be asked for time")
        wait_until(lambda: manager.count("WATCHDOG") > so_far[1], "a sign of life while jobs are waited for")
        stage.release()
        assert cluster.wait() == 0
        manager.close()


# D11


@contextmanager
def own_pid_namespace() -> Iterator[tuple[str, ...]]:
    """Yield the command by which a cluster becomes process 1, as in a container."""
    unshare = (require("unshare", "util-linux"), "-pf", "--mount-proc", "--kill-child")
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        unavailable("this machine lets us make no pid namespace (it takes root, or user namespaces)")
    yield unshare


def test_d11_as_process_1_it_buries_the_dead_that_others_leave_and_counts_them_as_nobodys(stage: Stage) -> None:
    app = stage.write_application("""
        import subprocess
        from kiqcluster import job
        from tests.apps.basic import note

        @job()
        def leave_somebody_behind():
            subprocess.run(["sh", "-c", "setsid sleep 600 & exec true"])
            note("left somebody behind")
    """)
    words = ("-r", app, "default", "other", "-c", "1", "--redis", stage.redis.url)
    with own_pid_namespace() as unshare:
        cluster = Cluster(words, through=unshare)
    try:
        cluster.wait_ready(2)
        (supervisor,) = children(cluster.pid)
        wait_until(lambda: len(children(supervisor)) == 2, "the catalogue child to be reaped")
        workers = set(children(supervisor))
        stage.push("leave_somebody_behind")
        stage.wait_noted("left somebody behind")
        (adopted,) = wait_until(lambda: set(children(supervisor)) - workers, "process 1 to adopt it")

        os.kill(adopted, signal.SIGTERM)

        wait_until(lambda: set(children(supervisor)) == workers, "it to be buried")
        assert sum(cluster.metric(f'kiqcluster_children{{state="{state}"}}') for state in ("ready", "backoff")) == 2
        assert len(cluster.seen("child_started")) == 2
        os.kill(supervisor, signal.SIGTERM)
        assert cluster.wait() == 0
    finally:
        cluster.close()


# D12


@pytest.mark.parametrize(
    ("slots", "rolls"), [(3, 2), pytest.param(10, 10, marks=[pytest.mark.full, pytest.mark.timeout(600)])]
)
def test_d12_roll_after_roll_leaves_no_orphan_no_zombie_and_no_stranger(
    stage: Stage, releases: Releases, slots: int, rolls: int
) -> None:
    queues = [f"queue{number}" for number in range(slots)]
    cluster = releases.run(stage, *queues, "-c", "2")
    cluster.wait_ready(slots)

    with Load(stage, *queues) as load, Capacity(cluster) as capacity:
        for count in range(1, rolls + 1):
            releases.deploy(f"next-{count}")
            cluster.signal(signal.SIGUSR2)
            cluster.wait_for("roll_done", seconds=120, count=count)

    load.check()
    pids = sorted(cluster.pids().values())
    assert len(pids) == slots
    assert capacity.fewest_ready >= slots - 1
    assert capacity.most_processes <= slots + 1
    assert len(cluster.seen("child_started")) == slots * (rolls + 1)
    wait_until(lambda: sorted(children(cluster.pid)) == pids, "everybody else to be gone")
    wait_exited(*{each["child"] for each in cluster.seen("child_started")} - set(pids))
    stage.wait_members(*pids)
    wait_until(lambda: listed(stage.store) == pids, "the workers, and nobody else, to be listed")
    assert cluster.stop() == 0
    assert stage.members() == stage.holders() == set()
