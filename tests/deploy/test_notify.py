"""A real cluster under what it takes for systemd: D10 of the deploy scenarios, and two instances of the unit."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kiqcluster.ipc import local_http
from kiqcluster.sidekiq import ruby_json
from kiqcluster.store import Store
from tests.deploy.stage import Manager, Unit, service
from tests.kit import ROOT, Cluster, wait_until
from tests.stage import Stage

UNIT = ROOT / "deploy" / "systemd" / "kiqcluster@.service"

# Slot 1 becomes ready when somebody writes the file `go`.
SLOW = """
    import os, time
    from pathlib import Path
    from kiqcluster import job, on
    from tests.apps.basic import record, stubborn

    @on("startup")
    def wait():
        while os.environ["KIQ_SLOT"] == "1" and not Path("go").exists():
            time.sleep(0.01)

    @job()
    def tell(path):
        Path(path).write_text(" ".join(os.environ))
"""

RunCluster = Callable[..., Cluster]


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a path short enough for the sockets in it."""
    folder = Path(tempfile.mkdtemp(prefix="kiq-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def manager(short: Path) -> Iterator[Manager]:
    manager = Manager(str(short / "notify"))
    yield manager
    manager.close()


@pytest.fixture
def slow(tmp_path: Path) -> str:
    """An application of which slot 1 takes its time."""
    path = tmp_path / "slow.py"
    path.write_text("\n".join(line.removeprefix("    ") for line in SLOW.splitlines()))
    return str(path)


@pytest.fixture
def start(stage: Stage, short: Path, manager: Manager, tmp_path: Path) -> RunCluster:
    """Run a cluster that believes systemd to have started it."""

    def start(*words: str, **environ: str) -> Cluster:
        folder = ("--directory", str(tmp_path))
        variables = {"NOTIFY_SOCKET": str(short / "notify"), "PYTHONPATH": str(ROOT)}
        return stage.run_cluster(*words, "-c", "1", *folder, **variables, **environ)

    return start


class TestD10:
    def test_ready_is_said_once_all_slots_are(
        self, start: RunCluster, slow: str, manager: Manager, tmp_path: Path, store: Store
    ) -> None:
        cluster = start("default", "other", app=slow)
        cluster.wait_for("child_ready", slot=0)
        wait_until(lambda: manager.status().startswith("1 of 2 slots ready"), "the status line to say so")
        assert manager.states() == []
        assert manager.count("EXTEND_TIMEOUT_USEC") >= 1

        (tmp_path / "go").touch()

        wait_until(lambda: manager.states() == ["READY"], "systemd to be told")
        wait_until(lambda: manager.status() == "2 of 2 slots ready, 0 busy", "the status line to follow")
        assert cluster.stop() == 0

    def test_a_quorum_is_enough(self, start: RunCluster, slow: str, manager: Manager, tmp_path: Path) -> None:
        cluster = start("default", "other", app=slow, KIQ_HEALTH_READY_QUORUM="1")

        wait_until(lambda: manager.states() == ["READY"], "systemd to be told")

        assert not cluster.seen("child_ready", slot=1)
        (tmp_path / "go").touch()
        cluster.wait_ready(2)

    def test_a_stop_is_told_and_asks_for_time_while_jobs_run(
        self, start: RunCluster, slow: str, manager: Manager, stage: Stage
    ) -> None:
        cluster = start("default", app=slow)
        stage.occupy(cluster)
        wait_until(lambda: manager.states() == ["READY"], "systemd to be told")
        asked = manager.count("EXTEND_TIMEOUT_USEC")

        cluster.signal(signal.SIGTERM)

        wait_until(lambda: manager.states() == ["READY", "STOPPING"], "systemd to be told")
        wait_until(lambda: manager.count("EXTEND_TIMEOUT_USEC") > asked, "systemd to be asked for time")
        stage.release()
        assert cluster.wait() == 0
        assert manager.states() == ["READY", "STOPPING"]

    def test_a_reload_and_a_rolling_restart_are_told_from_begin_to_end(
        self, start: RunCluster, slow: str, manager: Manager
    ) -> None:
        cluster = start("default", app=slow)
        wait_until(lambda: manager.states() == ["READY"], "systemd to be told")
        states = ["READY"]

        for number in (signal.SIGHUP, signal.SIGUSR2):
            cluster.signal(number)
            states += ["RELOADING", "READY"]
            wait_until(lambda: manager.states() == states, f"{number.name} to be told")  # noqa: B023

        times = [int(each["MONOTONIC_USEC"]) for each in manager.heard if "RELOADING" in each]
        assert times == sorted(times)
        cluster.wait_for("roll_done")

    def test_a_reload_that_fails_ends_too(self, start: RunCluster, slow: str, manager: Manager, tmp_path: Path) -> None:
        file = tmp_path / "kiqcluster.toml"
        file.write_text("stop.timeout = 25")
        cluster = start("default", "-C", str(file), app=slow)
        wait_until(lambda: manager.states() == ["READY"], "systemd to be told")

        file.write_text("stop.timeout = ")
        cluster.signal(signal.SIGHUP)

        wait_until(lambda: manager.states() == ["READY", "RELOADING", "READY"], "the failed reload to be told")
        cluster.wait_for("reload_failed")
        assert cluster.process.poll() is None
        assert manager.states() == ["READY", "RELOADING", "READY"]

    def test_the_loop_gives_signs_of_life_in_time(self, start: RunCluster, slow: str, manager: Manager) -> None:
        start("default", app=slow, WATCHDOG_USEC="500000").wait_ready()
        so_far = manager.count("WATCHDOG")

        wait_until(lambda: manager.count("WATCHDOG") >= so_far + 4, "four signs of life")

    def test_workers_know_nothing_of_it(
        self, start: RunCluster, slow: str, stage: Stage, manager: Manager, tmp_path: Path
    ) -> None:
        start("default", app=slow, WATCHDOG_USEC="30000000").wait_ready()

        stage.push("tell", str(tmp_path / "seen"))

        wait_until(lambda: (tmp_path / "seen").exists() and (tmp_path / "seen").read_text(), "the job to tell")
        names = (tmp_path / "seen").read_text().split()
        assert "KIQ_SLOT" in names
        assert {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & set(names) == set()


def answer(path: Path, page: str) -> tuple[int, dict[str, object]]:
    """Return status and document of a page, 0 while nobody listens there."""
    try:
        status, body = local_http.request(str(path), "GET", page, 5.0)
    except OSError:
        return 0, {}
    return status, ruby_json.decode(body)


class TestTwoInstances:
    def test_they_run_beside_each_other_with_the_units_variables(
        self, short: Path, stage: Stage, tmp_path: Path
    ) -> None:
        unit, pids = Unit(UNIT), {}
        with ExitStack() as stack:
            for instance in ("shop", "mail"):
                folder = short / "kiqcluster" / instance
                folder.mkdir(parents=True)
                environ = unit.environ(instance, str(short)) | {
                    "KIQ_GROUPS": "default other",
                    "KIQ_REQUIRE": "tests.apps.basic",
                    "REDIS_URL": stage.redis.url,
                    "PATH": os.environ["PATH"],
                    "PYTHONPATH": str(ROOT),
                }
                command = [sys.executable, "-m", "kiqcluster", "--directory", str(ROOT)]
                pids[instance] = stack.enter_context(service(command, environ, tmp_path / instance)).pid

            for instance, pid in pids.items():
                folder = short / "kiqcluster" / instance
                wait_until(lambda: answer(folder / "http.sock", "/readiness")[0] == 200, f"{instance} to be ready")  # noqa: B023
                assert answer(folder / "control.sock", "/status")[1]["pid"] == pid
                assert int((folder / "pid").read_text()) == pid
            stage.push("record", "a")
            stage.wait_noted("ran a")

        for instance in pids:
            assert list((short / "kiqcluster" / instance).iterdir()) == []
