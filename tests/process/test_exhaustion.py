"""What the system has no more of: work goes on with what there is, is said, and is whole again when there is more."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kiqcluster import Client
from kiqcluster.errors import ExitCode, RedisRefused, StoreError
from kiqcluster.process.config import Config
from kiqcluster.process.runtime import Setup
from kiqcluster.store import Store
from tests.kit import ROOT, RedisServer, cluster, unavailable, wait_until
from tests.stage import Jobs, Stage

CONTROL_GROUPS = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))
STREAM_DESCRIPTORS = 3  # descriptors below which a limit would make poll() fail, too
# Eight stacks fit into the address space that is left; the ninth thread fails in the kernel.
FEW_THREADS = """
    import pathlib, resource, threading
    from kiqcluster import job, on
    from tests.apps.basic import nap, note

    LIMIT = resource.getrlimit(resource.RLIMIT_AS)
    STACK_BYTES = 1 << 30

    @on("startup")
    def take_nearly_all():
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
        threading.stack_size(STACK_BYTES)
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 17 * STACK_BYTES // 2, LIMIT[1]))

    @job()
    def close_after_fork():
        threading.stack_size(0)
        resource.setrlimit(resource.RLIMIT_AS, LIMIT)
        note("let go")
"""


@contextmanager
def limited(pid: int, kind: int, most: int) -> Iterator[None]:
    """Give a process that runs a lower limit for a `with` block."""
    before = resource.prlimit(pid, kind)
    resource.prlimit(pid, kind, (most, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, kind, before)


def test_a_worker_that_gets_few_threads_works_with_these_and_has_all_once_there_are_more(stage: Stage) -> None:
    stage.push_many("record", [[f"{number}"] for number in range(20)])

    cluster = stage.run_cluster("default", "-c", "6", app=stage.write_application(FEW_THREADS))

    pid = cluster.wait_ready()[0]
    wait_until(lambda: len(stage.notes()) == 20, "the jobs to be done by fewer threads")
    cluster.wait_for("service_crashed")
    stage.push("close_after_fork")
    stage.wait_noted("let go")
    stage.push_many("nap", [[f"{number}", 1.0] for number in range(6)])
    wait_until(lambda: sum(line.startswith("began") for line in stage.notes()) == 6, "all six to run at once")
    assert not any(line.startswith("ended") for line in stage.notes())
    denied = cluster.seen("service_crashed")
    assert all("no thread" in each["msg"] for each in denied)
    assert len({each["service"] for each in denied}) == len(denied)
    assert cluster.pids() == {0: pid}
    assert cluster.restarts("crash") == 0
    assert cluster.stop() == 0


def test_a_supervisor_without_descriptors_or_memory_for_a_worker_tries_again_and_goes_on(stage: Stage) -> None:
    cluster = stage.run_cluster("default")
    cluster.wait_ready()
    for number, (kind, most) in enumerate([(resource.RLIMIT_NOFILE, STREAM_DESCRIPTORS), (resource.RLIMIT_AS, 0)]):
        pid = cluster.pids()[0]  # beside it, the catalogue child may still be about to end
        with limited(cluster.pid, kind, most):
            os.kill(pid, signal.SIGKILL)
            cluster.wait_for("fork_failed", slot=0, count=number + 1)
        wait_until(lambda: cluster.readiness()[0] == 200, "a worker to be ready again")
        stage.push("record", f"{number}")
        wait_until(lambda number=number: f"ran {number}" in stage.notes(), "its jobs to run")
    assert cluster.stop() == 0


def test_a_worker_without_descriptors_is_back_when_it_has_some(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "2")
    pid = cluster.wait_ready()[0]
    with limited(pid, resource.RLIMIT_NOFILE, STREAM_DESCRIPTORS):
        stage.store.call("CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "yes")
        stage.push_many("record", [[f"{number}"] for number in range(20)])
        cluster.wait_for("redis_lost")
    wait_until(lambda: len(stage.notes()) == 20, "the jobs to be done")
    assert sorted(stage.notes()) == sorted(f"ran {number}" for number in range(20))
    assert cluster.pids() == {0: pid}
    assert cluster.restarts("crash") == 0
    assert cluster.stop() == 0


def test_a_cluster_that_starts_without_descriptors_says_so_in_a_sentence() -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (7, 7))

    words = ["-m", "kiqcluster", "-r", "tests.apps.basic", "--listen", "off", "default"]
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, preexec_fn=limit, capture_output=True, text=True, check=False, timeout=120
    )

    assert done.returncode == ExitCode.UNEXPECTED
    assert done.stderr.startswith("kiqcluster: the cluster cannot start ([Errno 24]")
    assert "Traceback" not in done.stderr


@contextmanager
def without_processes(*pids: int) -> Iterator[None]:
    """Have these processes start neither processes nor threads for a `with` block.

    Root is bound by a control group only; others by a limit of their own.
    """
    if os.geteuid() != 0:
        with ExitStack() as limits:
            for pid in pids:
                limits.enter_context(limited(pid, resource.RLIMIT_NPROC, 1))
            yield
        return
    root = next((each for each in CONTROL_GROUPS if (each / "cgroup.procs").exists()), None)
    if root is None:
        unavailable("there is no control group for pids")
    group = root / f"kiq-{os.getpid()}"
    try:
        group.mkdir()
        (group / "pids.max").write_text("1")
    except OSError as error:
        unavailable(f"no control group can be made ({error})")
    try:
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        (group / "pids.max").write_text("max")
        for pid in (group / "cgroup.procs").read_text().split():
            (root / "cgroup.procs").write_text(pid)
        wait_until(lambda: _removed(group), "the control group to be empty")


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        return False
    return True


FORKING = """
    import os
    from kiqcluster import job
    from tests.apps.basic import note

    @job(retry=0)
    def split():
        try:
            pid = os.fork()
        except OSError as error:
            note("no fork", error.errno)
            raise
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        note("fork")
"""


def test_forks_that_fail_cost_a_job_its_run_and_a_slot_its_time(stage: Stage) -> None:
    cluster = stage.run_cluster("default", app=stage.write_application(FORKING))
    pid = cluster.wait_ready()[0]
    stage.push("record", "before")  # so that its threads have begun
    stage.wait_noted("ran before")
    with without_processes(cluster.pid, pid):
        stage.push("split")
        stage.wait_noted(f"no fork {errno.EAGAIN}")
        cluster.wait_for("job_failed")
        stage.push("record", "beside")
        stage.wait_noted("ran beside")
        os.kill(pid, signal.SIGKILL)
        cluster.wait_for("fork_failed")

    stage.push("split")
    stage.wait_noted("fork")
    assert cluster.stop() == 0


# Jobs that need nothing of Redis: what it refuses them would be their own failure.
QUICK = """
    import pathlib, threading
    from kiqcluster import job

    GATE = pathlib.Path(__file__).with_name("gate")

    @job()
    def hold():
        while not GATE.exists():
            threading.Event().wait(0.01)
"""


def take_clients(server: RedisServer, store: Store) -> None:
    store.call("CONFIG", "SET", "maxclients", 1)
    store.call("CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "yes")


def take_memory(server: RedisServer, store: Store) -> None:
    store.call("CONFIG", "SET", "maxmemory", 1)


def take_disk(server: RedisServer, store: Store) -> None:
    """Have it fail to write a snapshot: it takes no writes until it has written one."""
    store.call("CONFIG", "SET", "save", "1 1")
    shutil.rmtree(server.directory)
    wait_until(lambda: "MISCONF" in said_to_a_write(store), "the server to take no writes")


def said_to_a_write(store: Store) -> str:
    try:
        store.call("SET", "x", "1")
    except RedisRefused as error:
        return str(error)
    return ""


def give_back(server: RedisServer, store: Store) -> None:
    server.directory.mkdir(exist_ok=True)
    for name, value in (("maxclients", 10_000), ("maxmemory", 0), ("save", "")):
        store.call("CONFIG", "SET", name, value)
    store.call("BGSAVE")
    wait_until(lambda: said_to_a_write(store) == "", "the server to take writes")


@pytest.mark.own_redis
@pytest.mark.parametrize("take", [take_clients, take_memory, take_disk])
def test_a_redis_that_runs_out_loses_and_repeats_no_job(
    stage: Stage, tmp_path: Path, take: Callable[[RedisServer, Store], None]
) -> None:
    stage.push_many("hold", [[]] * 20)
    app = stage.write_application(QUICK)
    with cluster("-r", app, "--redis", stage.redis.url, "-c", "3", "default") as running:
        pids = running.wait_ready()
        wait_until(lambda: stage.holders(), "jobs to run")
        take(stage.redis, stage.store)
        with pytest.raises(StoreError):
            Client(Store(stage.redis.url), Setup(config=Config())).push({"class": "hold", "args": []})

        (tmp_path / "gate").touch()
        if take is take_memory:  # scripts that drain go on
            wait_until(lambda: stage.store.call("GET", "stat:processed") == b"20", "the jobs to be done")
        else:
            running.wait_for("redis_lost")
        give_back(stage.redis, stage.store)

        wait_until(lambda: stage.store.call("GET", "stat:processed") == b"20", "the jobs to be done")
        stage.wait_settled()
        stage.push("hold")
        wait_until(lambda: stage.store.call("GET", "stat:processed") == b"21", "a later job to be done")
        assert stage.store.call("GET", "stat:failed") is None
        assert running.pids() == pids
        assert running.stop() == 0


@pytest.mark.own_redis
def test_a_worker_that_starts_while_redis_has_no_room_waits_for_it(stage: Stage, tmp_path: Path) -> None:
    stage.push("record", "early")
    take_disk(stage.redis, stage.store)
    with cluster("-r", "tests.apps.basic", "--redis", stage.redis.url, "default") as running:
        running.wait_for("redis_awaited")
        give_back(stage.redis, stage.store)

        wait_until(lambda: stage.notes() == ["ran early"], "the job to be done")
        assert running.seen("child_died") == []
        assert running.stop() == 0


@pytest.mark.own_redis
def test_a_replica_that_needs_all_data_again_and_again_costs_no_job(stage: Stage) -> None:
    stage.store.call("CONFIG", "SET", "repl-diskless-sync-delay", 0)
    stage.store.call("EVAL", "for at = 1, 20000 do redis.call('SET', at, string.rep('x', 1000)) end", 0)
    with cluster("-r", "tests.apps.basic", "--redis", stage.redis.url, "default") as running, RedisServer() as replica:
        pids, follower, pushed = running.wait_ready(), replica.store(), list[str]()

        def follows() -> bool:
            stage.push("record", f"{len(pushed)}")
            pushed.append(f"ran {len(pushed)}")
            return bool(follower.call("ROLE")[3] == b"connected")

        for _ in range(3):
            follower.call("REPLICAOF", "127.0.0.1", stage.redis.port)
            wait_until(follows, "the replica to follow")
            follower.call("REPLICAOF", "NO", "ONE")
            follower.call("FLUSHALL")

        wait_until(lambda: len(stage.notes()) >= len(pushed), "the jobs to be done")
        assert b"sync_full:3" in stage.store.call("INFO", "stats")
        assert sorted(stage.notes()) == sorted(pushed)
        assert running.pids() == pids
        assert running.stop() == 0


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A disk of 4 MB."""
    folder = Path(tempfile.mkdtemp(prefix="kiq-", dir="/tmp"))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        folder.rmdir()
        unavailable(f"only root can mount a small disk ({mounted.stderr.strip()})")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
    folder.rmdir()


@pytest.mark.full
def test_a_private_server_on_a_full_disk_keeps_what_it_has_and_goes_on_when_there_is_room(
    small_disk: Path, stage: Stage, tmp_path: Path
) -> None:
    with cluster("-r", stage.write_application(QUICK), f"--embedded={small_disk}", "default") as running:
        pids = running.wait_ready()
        store = Store(f"unix://{small_disk / 'redis.sock'}")
        jobs = Jobs(store)
        jobs.push_many("hold", [[]] * 20)
        filler = small_disk / "filler"
        with pytest.raises(OSError, match="No space left"):
            filler.write_bytes(b"x" * (8 << 20))
        wait_until(lambda: "MISCONF" in said_to_a_write(store), "the server to take no writes")
        (tmp_path / "gate").touch()
        running.wait_for("redis_lost")

        filler.unlink()

        wait_until(lambda: store.call("GET", "stat:processed") == b"20", "the jobs to be done")
        jobs.wait_settled()
        assert running.pids() == pids
        assert running.stop() == 0
