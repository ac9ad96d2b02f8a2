"""--embedded: a private server that outlives the workers, survives its guardian, and keeps its data."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from kiqcluster.errors import RedisUnavailable, StoreError
from kiqcluster.sidekiq import ruby_json
from kiqcluster.store import Store
from tests import forkserver
from tests.kit import ROOT, Cluster, http_get, is_alive, wait_until
from tests.proc import wait_exited
from tests.stage import Jobs

RunEmbedded = Callable[..., Cluster]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: a unix socket's may not be long."""
    path = Path(tempfile.mkdtemp(prefix="kiq-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def run_embedded(folder: Path) -> Iterator[RunEmbedded]:
    """Start clusters with --embedded in the folder; they and their servers are gone afterwards."""
    running: list[Cluster] = []

    def run(*arguments: str) -> Cluster:
        each = Cluster(["-r", "tests.apps.basic", f"--embedded={folder}", *arguments])
        running.append(each)
        return each

    yield run
    for each in running:
        each.close()
    for process in holders_of(folder):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def holders_of(folder: Path) -> list[psutil.Process]:
    """Return the servers whose data is in this folder."""
    return [
        process
        for process in psutil.process_iter(["name", "cwd"])
        if process.info["name"].endswith("-server") and process.info["cwd"] == str(folder)
    ]


def ask(folder: Path, *command: str) -> Any:
    """Run a command on the folder's server; None while it is away."""
    store = Store(f"embedded:{folder}", timeout=1.0)
    try:
        return store.call(*command)
    except StoreError:
        return None
    finally:
        store.close()


def server_pid(folder: Path) -> int:
    info = wait_until(lambda: ask(folder, "INFO", "server"), "the embedded server to answer")
    return next(int(line[11:]) for line in info.decode().splitlines() if line.startswith("process_id:"))


def test_data_survives_a_restart_and_the_server_stops_last(run_embedded: RunEmbedded, folder: Path) -> None:
    first = run_embedded("default", "-c", "1")
    first.wait_ready()
    server = server_pid(folder)
    jobs = Jobs(Store(f"embedded:{folder}"))
    jobs.push("stubborn", "a")
    jobs.push("record", "b")
    jobs.wait_noted("began a")
    first.signal(signal.SIGTERM)
    first.wait_for("worker_quiet")
    jobs.release()  # the last outcome is settled while the supervisor stops

    assert first.wait() == 0
    wait_exited(server)
    assert not (folder / "redis.sock").exists()

    second = run_embedded("default", "-c", "1")
    second.wait_ready()
    jobs.wait_noted("ran b")
    assert jobs.notes() == ["began a", "ended a", "ran b"]
    assert second.stop() == 0


def test_nobody_else_reads_the_data_in_a_folder_that_was_made_for_it(run_embedded: RunEmbedded, folder: Path) -> None:
    folder.rmdir()

    run_embedded("default", "-c", "1").wait_ready()

    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_killed_server_is_started_again_with_its_data(run_embedded: RunEmbedded, folder: Path) -> None:
    cluster = run_embedded("default", "-c", "2")
    pid = cluster.wait_ready()[0]
    jobs = Jobs(Store(f"embedded:{folder}"))
    jobs.store.call("CONFIG", "SET", "appendfsync", "always")
    jobs.store.call("SET", "kept", "1")
    server = server_pid(folder)

    os.kill(server, signal.SIGKILL)
    wait_exited(server)

    assert wait_until(lambda: ask(folder, "GET", "kept"), "the data to be back") == b"1"
    jobs.push("record", "a")
    jobs.wait_noted("ran a")
    assert cluster.pids() == {0: pid}
    assert cluster.stop() == 0


def has_loaded(store: Store) -> bool:
    try:
        return bool(store.call("EXISTS", "any") == 0)
    except RedisUnavailable:
        return False


def test_a_killed_guardian_is_replaced(run_embedded: RunEmbedded, folder: Path) -> None:
    cluster = run_embedded("default", "-c", "2")
    pid = cluster.wait_ready()[0]
    server = server_pid(folder)
    guardian = psutil.Process(server).ppid()

    os.kill(guardian, signal.SIGKILL)

    wait_exited(guardian, server)  # nobody would stop it at the end
    assert server_pid(folder) != server
    store = Store(f"embedded:{folder}")
    wait_until(lambda: has_loaded(store), "the new server to have read its data")
    jobs = Jobs(store)
    jobs.push("record", "a")
    jobs.wait_noted("ran a")
    assert cluster.pids() == {0: pid}
    assert cluster.stop() == 0
    assert holders_of(folder) == []


def test_the_server_goes_when_everybody_was_killed(run_embedded: RunEmbedded, folder: Path) -> None:
    cluster = run_embedded("default", "-c", "1", "-t", "0.3")
    pid = cluster.wait_ready()[0]
    server = server_pid(folder)
    jobs = Jobs(Store(f"embedded:{folder}"))
    jobs.push("stubborn", "a")
    wait_until(lambda: ask(folder, "LLEN", "ledger"), "the job to run")

    os.kill(cluster.pid, signal.SIGKILL)

    wait_exited(pid, server)
    second = run_embedded("other", "-c", "1")
    second.wait_ready()
    assert jobs.queued_args() == ["a"]  # the worker could put it back before the server exited
    assert second.stop() == 0


def test_a_second_supervisor_waits_for_the_folder_and_takes_over(run_embedded: RunEmbedded, folder: Path) -> None:
    first = run_embedded("default", "-c", "1")
    first.wait_ready()
    server = server_pid(folder)
    second = run_embedded("other", "-c", "1")
    second.wait_ready()  # it works on the first one's server meanwhile

    assert [process.pid for process in holders_of(folder)] == [server]
    assert first.stop() == 0

    wait_exited(server)
    assert server_pid(folder) != server
    jobs = Jobs(Store(f"embedded:{folder}"))
    jobs.push("record", "a", queue="other")
    jobs.wait_noted("ran a")
    assert second.stop() == 0
    wait_until(lambda: holders_of(folder) == [], "the last server to end")


def test_a_supervisor_that_waits_for_the_folder_can_be_stopped(run_embedded: RunEmbedded, folder: Path) -> None:
    first = run_embedded("default", "-c", "1")
    first.wait_ready()
    server = server_pid(folder)
    second = run_embedded("other", "-c", "1")
    second.wait_ready()

    assert second.stop() == 0

    assert is_alive(server)
    assert first.process.poll() is None


def test_another_process_reaches_the_server_by_its_folder(run_embedded: RunEmbedded, folder: Path) -> None:
    cluster = run_embedded("default", "-c", "1")
    cluster.wait_ready()
    source = "from tests.apps.basic import record; print(record.perform_async('a'))"

    environ = {**os.environ, "REDIS_URL": f"embedded:{folder}"}
    done = forkserver.run([sys.executable, "-c", source], cwd=ROOT, env=environ)

    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip()) == 24
    Jobs(Store(f"embedded:{folder}")).wait_noted("ran a")


def test_jobs_find_the_server_in_the_url_that_every_client_understands(run_embedded: RunEmbedded, folder: Path) -> None:
    (folder / "application.py").write_text(
        "import os, redis\n"
        "from kiqcluster import job\n"
        "@job()\n"
        "def ask(): redis.from_url(os.environ['REDIS_URL']).rpush('ledger', 'asked')\n"
    )
    run_embedded("-r", str(folder / "application.py"), "default", "-c", "1").wait_ready()
    jobs = Jobs(Store(f"embedded:{folder}"))

    jobs.push("ask")

    jobs.wait_noted("asked")
    assert jobs.notes() == ["asked"]


def test_a_roll_and_a_reload_find_the_configuration_as_it_was(run_embedded: RunEmbedded, folder: Path) -> None:
    cluster = run_embedded("default", "-c", "1")
    cluster.wait_ready()

    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("roll_done")
    cluster.signal(signal.SIGHUP)
    cluster.wait_for("reloaded")

    status = ruby_json.decode(http_get(cluster.port, "/status")[2])
    assert (status["restart_needed"], status["reload_needed"], status["roll_needed"]) == ("", "", "")


def test_a_folder_that_cannot_be_locked_is_exit_2(run_embedded: RunEmbedded, folder: Path) -> None:
    (folder / "lock").mkdir()

    cluster = run_embedded("default")

    assert cluster.wait() == 2
    assert cluster.events == []


def test_a_guardian_that_cannot_work_is_replaced_ever_more_seldom(run_embedded: RunEmbedded, folder: Path) -> None:
    cluster = run_embedded("default", "-c", "1")
    cluster.wait_ready()
    server = server_pid(folder)
    (folder / "lock").rename(folder / "lock.before")
    (folder / "lock").mkdir()

    os.kill(psutil.Process(server).ppid(), signal.SIGKILL)
    waits = [cluster.wait_for("guardian_died", count=count)["seconds"] for count in (1, 2)]

    assert 0.7 <= waits[0] <= 1.0
    assert 1.4 <= waits[1] <= 2.0
    (folder / "lock").rmdir()
    jobs = Jobs(Store(f"embedded:{folder}"))
    wait_until(lambda: ask(folder, "PING"), "the server to be back")
    jobs.push("record", "a")
    jobs.wait_noted("ran a")
    assert cluster.stop() == 0


def test_a_server_that_does_not_start_is_told_and_tried_again(run_embedded: RunEmbedded, folder: Path) -> None:
    (folder / "appendonlydir").touch()  # where the server wants a folder

    cluster = run_embedded("default", "-c", "1")

    first, second = (cluster.wait_for("embedded_died", count=count) for count in (1, 2))
    assert first["seconds"] < second["seconds"]
    assert Path(first["log"]).exists()
    (folder / "appendonlydir").unlink()
    cluster.wait_ready()
    assert cluster.stop() == 0


def test_children_hold_the_pipe_that_keeps_the_server_and_nothing_else_of_it(
    run_embedded: RunEmbedded, folder: Path
) -> None:
    cluster = run_embedded("default", "other", "-c", "1")
    pids = cluster.wait_ready(2)
    guardian = psutil.Process(server_pid(folder)).ppid()

    read_ends = {pid: pipes(pid, "r") for pid in (cluster.pid, *pids.values(), guardian)}
    write_ends = {pid: pipes(pid, "w") for pid in (cluster.pid, *pids.values(), guardian)}

    (leash,) = read_ends[guardian] - output(cluster.pid)
    assert all(leash in write_ends[pid] for pid in (cluster.pid, *pids.values()))
    assert leash not in write_ends[guardian]
    assert all(leash not in read_ends[pid] for pid in pids.values())


def output(pid: int) -> set[str]:
    return {str(Path(f"/proc/{pid}/fd/{number}").readlink()) for number in (1, 2)}


def pipes(pid: int, mode: str) -> set[str]:
    """Return the pipes that a process has open for reading (r) or writing (w)."""
    found = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(fd.readlink())
            flags = int(Path(f"/proc/{pid}/fdinfo/{fd.name}").read_text().split()[3], 8)
        except FileNotFoundError:  # closed since it was listed
            continue
        if target.startswith("pipe:") and (flags & os.O_ACCMODE == os.O_WRONLY) == (mode == "w"):
            found.add(target)
    return found
