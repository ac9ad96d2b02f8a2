"""Deploys, from end to end: what a person on call does on such a day, and what goes wrong then (D1 to D12)."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kiqcluster.store import Store
from tests.deploy.stage import Manager
from tests.kit import PAUSE, Cluster, RedisServer, http_get, is_alive, require, unavailable, wait_until
from tests.process.stage import (
    Capacity,
    Releases,
    children,
    dead,
    holders,
    identities,
    ledger,
    metric,
    occupy,
    pid_of,
    push,
    queued,
    readiness,
    release,
    restarts,
    wait_gone,
    wait_noted,
    wait_only_live,
    wait_roll,
    wait_settled,
    words,
)

RunCluster = Callable[..., Cluster]
Application = Callable[[str], str]


class Load:
    """A thread that enqueues for a `with` block, a job for each queue at a time; each notes a word of its own."""

    def __init__(self, store: Store, *queues: str) -> None:
        self.words: list[str] = []
        self._store = store
        self._queues = queues
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._push, daemon=True)

    def _push(self) -> None:
        while not self._over.is_set():
            number = len(self.words)
            for queue in self._queues:
                word = f"{queue}-{number}"
                push(self._store, "nap", word, 0.02 if number % 5 else 0.2, queue=queue)
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
        # A queue is empty as well while a bell holds its last job.
        wait_until(lambda: set(lines) <= set(ledger(self._store)), "each job to have run to its end", 60)
        wait_until(lambda: not any(self._store.pipeline(lengths)), "the queues to be empty", 60)
        wait_settled(self._store)
        times = Counter(ledger(self._store))
        assert {line: times[line] for line in lines if times[line] != 1} == {}


# D1


def test_d01_quiet_early_stop_late(run_cluster: RunCluster, store: Store) -> None:
    cluster = run_cluster("default", "-c", "2", "-t", "600")
    pid = occupy(cluster, store)[0]

    cluster.signal(signal.SIGTSTP)
    cluster.wait_for("worker_quiet")
    push(store, "record", "b")
    release(store)
    wait_noted(store, "ended a")  # what runs goes on
    wait_until(lambda: words(queued(store)) == ["b"], "what is new to stay in its queue")
    wait_settled(store)
    assert is_alive(pid)

    assert cluster.stop() == 0  # at once: nothing runs
    assert ledger(store) == ["began a", "ended a"]
    assert words(queued(store)) == ["b"]


# D2


@pytest.mark.parametrize("ends_by", ["resume", "lease"])
def test_d02_a_deploy_script_that_dies_half_way_leaves_no_fleet_quiet(
    run_cluster: RunCluster, store: Store, ends_by: str
) -> None:
    lease = "1" if ends_by == "lease" else "600"
    cluster = run_cluster("default", "other", "-c", "2", "--quiet-lease", lease)
    pids = occupy(cluster, store, 2)
    steps = f"kill -TSTP {cluster.pid}; sleep 600; kill -TERM {cluster.pid}"
    script = subprocess.Popen(["sh", "-c", steps], start_new_session=True)
    cluster.wait_for("worker_quiet", count=2)
    push(store, "record", "b")
    push(store, "record", "c", queue="other")

    os.killpg(script.pid, signal.SIGKILL)
    script.wait()
    if ends_by == "resume":
        cluster.signal(signal.SIGCONT)

    wait_noted(store, "ran b", "ran c")
    release(store)
    wait_noted(store, "ended a")
    assert Counter(ledger(store))["began a"] == 1  # what ran has noticed nothing
    assert {slot: each for slot, each in cluster.pids().items() if is_alive(each)} == pids
    assert [restarts(cluster, reason, slot) for slot in pids for reason in ("killed", "rolling", "crash")] == [0] * 6
    wait_until(lambda: readiness(cluster)[0] == 200, "the cluster to be ready")


# D3


def test_d03_a_roll_under_load_loses_nothing_and_runs_nothing_twice(
    run_cluster: RunCluster, store: Store, releases: Releases
) -> None:
    cluster = releases.run(run_cluster, "default", "other", "third", "-c", "2")
    before = cluster.wait_ready(3)

    with Load(store, "default", "other", "third") as load, Capacity(cluster) as capacity:
        wait_until(lambda: len(ledger(store)) > 20, "work to be done")
        releases.deploy("2")
        cluster.signal(signal.SIGUSR2)
        cluster.wait_for("roll_done")

    load.check()
    assert capacity.fewest_ready == 3
    assert capacity.most_processes <= 4
    assert set(before.values()).isdisjoint(cluster.pids().values())
    wait_only_live(store, *cluster.pids().values())
    assert cluster.stop() == 0


# D4


def test_d04_a_release_that_does_not_boot_costs_nothing(
    run_cluster: RunCluster, store: Store, releases: Releases
) -> None:
    cluster = releases.run(run_cluster, "default", "other", "-c", "2")
    pids = cluster.wait_ready(2)

    with Load(store, "default", "other") as load, Capacity(cluster) as capacity:
        cluster.signal(signal.SIGTSTP)
        releases.deploy("2", "@on('startup')\ndef connect(): raise RuntimeError('no database')")
        cluster.signal(signal.SIGUSR2)
        cluster.wait_for("roll_failed")
        wait_until(lambda: len(ledger(store)) > 20, "the old release to go on")

    report = wait_roll(store, "failed")
    assert (report["done"], report["of"]) == (0, 2)
    assert "slot 0" in report["error"]
    assert {slot: each for slot, each in cluster.pids().items() if is_alive(each)} == pids
    assert capacity.most_processes <= 3
    load.check()
    os.kill(pids[0], signal.SIGKILL)
    push(store, "release")
    wait_noted(store, "release 1")
    assert cluster.stop() == 0


# D5


def test_d05_a_reload_changes_what_has_changed_and_nothing_else(
    run_cluster: RunCluster, store: Store, tmp_path: Path
) -> None:
    file = tmp_path / "kiqcluster.toml"
    file.write_text('groups = ["default", "stays", "goes"]\nconcurrency = 1')
    cluster = run_cluster("-C", str(file))
    pids = cluster.wait_ready(3)
    push(store, "stubborn", "on the one that goes", queue="goes")
    push(store, "stubborn", "on the one that stays", queue="stays")
    wait_noted(store, "began on the one that goes", "began on the one that stays")
    file.write_text('groups = ["stays", "comes", "default"]\nconcurrency = 1')

    cluster.signal(signal.SIGHUP)
    push(store, "record", "a", queue="comes")
    wait_noted(store, "ran a")
    assert is_alive(pids[2])  # it has a job to finish
    release(store)

    wait_noted(store, "ended on the one that goes", "ended on the one that stays")
    wait_gone(pids[2])
    assert len(ledger(store)) == 5
    added = cluster.wait_for("child_ready", count=4)["child"]
    wait_only_live(store, pids[0], pids[1], added)


# D6


def test_d06_a_job_that_outlasts_every_deploy_is_put_back_and_buried_when_it_has_had_its_chances(
    run_cluster: RunCluster, store: Store, releases: Releases
) -> None:
    releases.deploy(
        "1", "@job(max_retries_after_interruption=1)\ndef endless(word):\n    note('began', word)\n    time.sleep(600)"
    )
    cluster = releases.run(run_cluster, "default", "-c", "1", "-t", "0.2")
    push(store, "endless", "a")
    wait_noted(store, "began a")

    cluster.signal(signal.SIGUSR2)
    wait_until(lambda: ledger(store) == ["began a", "began a"], "the job to run again")
    cluster.wait_for("roll_done")
    assert dead(store) == []
    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("roll_done", count=2)

    wait_until(lambda: dead(store), "the job to be buried")
    assert (words(dead(store)), dead(store)[0]["interrupted_count"]) == (["a"], 2)
    assert queued(store) == []
    assert ledger(store) == ["began a", "began a"]


# D7


def test_d07_the_job_of_a_killed_child_runs_on_its_sibling(
    run_cluster: RunCluster, store: Store, releases: Releases
) -> None:
    """The slot itself cannot boot: the release has been removed under its feet."""
    releases.deploy("1", "assert not pathlib.Path('../../broken').exists()")
    cluster = releases.run(run_cluster, "default", "default", "-c", "1")
    pids = cluster.wait_ready(2)
    push(store, "stubborn", "a")
    wait_noted(store, "began a")
    killed = wait_until(lambda: [pid_of(name) for name in holders(store)], "somebody to hold the job")[0]
    (releases.current.parent / "broken").touch()

    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: ledger(store) == ["began a", "began a"], "the sibling to run it")
    release(store)

    wait_noted(store, "ended a")
    wait_only_live(store, *set(pids.values()) - {killed})


# D8


@pytest.mark.parametrize("seconds", [1, pytest.param(61, marks=pytest.mark.full)])
def test_d08_a_redis_that_is_away_is_waited_for_and_no_process_is_replaced(
    run_cluster: RunCluster, own_server: RedisServer, application: Application, tmp_path: Path, seconds: float
) -> None:
    """It comes back empty, as after a fail-over to nothing: everybody shows up again."""
    app = application("""
        import os
        import pathlib
        from kiqcluster import on
        from tests.apps.basic import nap

        @on("heartbeat")
        def note_it():
            with pathlib.Path("heartbeats").open("a") as file:
                file.write(f"{os.getpid()}\\n")
    """)
    limits = {"KIQ_BOOT_TIMEOUT": "5", "KIQ_SILENCE_TIMEOUT": "10"}
    options = ("default", "other", "-c", "1", "--directory", str(tmp_path), "--redis", own_server.url)
    cluster = run_cluster(*options, app=app, **limits)
    pids = cluster.wait_ready(2)
    wait_until(lambda: heartbeats(tmp_path) == Counter(pids.values()), "both workers to show")

    own_server.kill()
    until = time.monotonic() + seconds
    wait_until(lambda: http_get(cluster.port, "/readiness")[0] == 503, "the cluster not to be ready")
    assert http_get(cluster.port, "/liveness")[0] == 200
    wait_until(lambda: time.monotonic() > until, "the outage to be over", seconds + 5)
    own_server.start()
    store = own_server.store()
    push(store, "record", "a")
    push(store, "record", "b", queue="other")

    wait_noted(store, "ran a", "ran b")
    # At least once: who shows before it is told that nobody knows it any more shows anew under its next identity.
    wait_until(lambda: min(heartbeats(tmp_path).values()) >= 2, "both workers to show again")
    wait_only_live(store, *pids.values())
    wait_until(lambda: listed(store) == sorted(pids.values()), "both workers, and nobody else, to be listed")
    assert len(cluster.seen("child_started")) == 2


def listed(store: Store) -> list[int]:
    """Return the pids of the processes that Sidekiq's pages list."""
    return sorted(pid_of(name.decode()) for name in store.call("SMEMBERS", "processes"))


def heartbeats(directory: Path) -> Counter[int]:
    """Return pid → how often it has shown."""
    file = directory / "heartbeats"
    return Counter(map(int, file.read_text().split())) if file.exists() else Counter()


# D9


def press(store: Store, pid: int, name: str) -> None:
    """Ruby's web page and API push the name to the process' list."""
    identity = next(each for each in identities(store) if pid_of(each) == pid)
    store.call("LPUSH", f"{identity}-signals", name)


def test_d09_the_buttons_of_the_web_page_reach_one_process(run_cluster: RunCluster, store: Store) -> None:
    cluster = run_cluster("default", "other", "-c", "1")
    pids = occupy(cluster, store, 2)

    press(store, pids[0], "TSTP")
    cluster.wait_for("worker_quiet", pid=pids[0])
    push(store, "record", "b")
    push(store, "record", "c", queue="other")
    wait_noted(store, "ran c")
    wait_until(lambda: readiness(cluster) == (503, "slot 0 is quiet"), "readiness to name the slot")
    press(store, pids[0], "TERM")
    release(store)

    wait_noted(store, "ended a", "ran b")  # by its replacement
    assert restarts(cluster, "remote_stop") == 1
    assert Counter(ledger(store))["began a"] == 1
    wait_only_live(store, cluster.wait_for("child_ready", slot=0, count=2)["child"], pids[1])
    wait_until(lambda: readiness(cluster)[0] == 200, "the cluster to be ready")


# D10


def test_d10_systemd_hears_of_each_step(run_cluster: RunCluster, store: Store) -> None:
    """When each is said, and what happens when it cannot be: tests/deploy/test_notify.py."""
    with tempfile.TemporaryDirectory(prefix="kiq-") as folder:  # the path of a socket must be short
        manager = Manager(f"{folder}/notify")
        cluster = run_cluster("default", "other", "-c", "1", NOTIFY_SOCKET=f"{folder}/notify", WATCHDOG_USEC="400000")
        wait_until(lambda: manager.words() == ["READY"], "systemd to hear of the start")
        assert metric(cluster, 'kiqcluster_children{state="ready"}') == 2
        occupy(cluster, store, 2)

        cluster.signal(signal.SIGUSR2)
        wait_until(lambda: manager.words() == ["READY", "RELOADING"], "systemd to hear of the roll")
        release(store)
        wait_until(lambda: manager.words() == ["READY", "RELOADING", "READY"], "systemd to hear of its end")
        store.call("DEL", "release")
        push(store, "stubborn", "b")
        wait_noted(store, "began b")
        so_far = manager.count("EXTEND_TIMEOUT_USEC"), manager.count("WATCHDOG")
        cluster.signal(signal.SIGTERM)

        wait_until(lambda: manager.words()[3:] == ["STOPPING"], "systemd to hear of the stop")
        wait_until(lambda: manager.count("EXTEND_TIMEOUT_USEC") > so_far[0], "systemd to be asked for time")
        wait_until(lambda: manager.count("WATCHDOG") > so_far[1], "a sign of life while jobs are waited for")
        release(store)
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


def test_d11_as_process_1_it_buries_the_dead_that_others_leave_and_counts_them_as_nobodys(
    store: Store, redis_server: RedisServer, application: Application
) -> None:
    app = application("""
        import subprocess
        from kiqcluster import job
        from tests.apps.basic import note

        @job()
        def leave_somebody_behind():
            subprocess.run(["sh", "-c", "setsid sleep 600 & exec true"])
            note("left somebody behind")
    """)
    words = ("-r", app, "default", "other", "-c", "1", "--redis", redis_server.url)
    with own_pid_namespace() as unshare:
        cluster = Cluster(words, through=unshare)
    try:
        cluster.wait_ready(2)
        (supervisor,) = children(cluster.pid)
        wait_until(lambda: len(children(supervisor)) == 2, "the catalogue child to be reaped")
        workers = set(children(supervisor))
        push(store, "leave_somebody_behind")
        wait_noted(store, "left somebody behind")
        (adopted,) = wait_until(lambda: set(children(supervisor)) - workers, "process 1 to adopt it")

        os.kill(adopted, signal.SIGTERM)

        wait_until(lambda: set(children(supervisor)) == workers, "it to be buried")
        assert sum(metric(cluster, f'kiqcluster_children{{state="{state}"}}') for state in ("ready", "backoff")) == 2
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
    run_cluster: RunCluster, store: Store, releases: Releases, slots: int, rolls: int
) -> None:
    queues = [f"queue{number}" for number in range(slots)]
    cluster = releases.run(run_cluster, *queues, "-c", "2")
    cluster.wait_ready(slots)

    with Load(store, *queues) as load, Capacity(cluster) as capacity:
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
    wait_gone(*{each["child"] for each in cluster.seen("child_started")} - set(pids))
    wait_only_live(store, *pids)
    wait_until(lambda: listed(store) == pids, "the workers, and nobody else, to be listed")
    assert cluster.stop() == 0
    assert identities(store) == holders(store) == set()
