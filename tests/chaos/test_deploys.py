"""Deploys: two at once, ended and killed at any moment, under a link that moves and a Redis that goes away.

Whatever happens to them, the cluster fetches again, all of its workers run one release, and no job is lost.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests import forkserver
from tests.chaos.pusher import Pusher
from tests.chaos.scale import sized
from tests.chaos.stage import ChaosStage
from tests.kit import PAUSE, ROOT, Cluster, RedisServer, is_alive, require, wait_until
from tests.proxy import Proxy

# In the short form: process/test_deploys.py, process/test_deploy_outage.py, deploy/test_release.py.
pytestmark = pytest.mark.full

ROUNDS = sized(1, 50)
LEASE_SECONDS = 30.0  # longer than a release takes here, also on a machine that has other things to do
DEPLOY_TIMEOUT_SECONDS = 180.0  # that a deploy may take
OUTAGE_SECONDS = sized((1.0, 2.0), (6.0, 15.0))  # for which Redis is away
STEPS = sized(("commit",), ("begin", "release", "commit", "roll", "abort"))
EXIT_HELD, EXIT_TERMINATED, EXIT_INTERRUPTED = 6, 128 + signal.SIGTERM, 128 + signal.SIGINT
EVENTS = ("none", "link", "TERM", "INT", "KILL worker")
EVENTS += sized((), ("KILL", "KILL kiqctl"))  # after which leases are waited for


class Site:
    """Releases in folders, a link to one of them, and a cluster of two workers that runs it.  redis: for kiqctl."""

    def __init__(self, folder: Path, redis: str) -> None:
        self.folder = folder
        self.redis = redis
        self.cluster: Cluster
        kiqctl = folder / "kiqctl"
        forkserver.install(kiqctl, "kiqcluster.ctl")
        for number in range(1, 5):
            (folder / f"releases/{number}").mkdir(parents=True)
            (folder / f"releases/{number}/app.py").write_text("import tests.apps.chaos\n")
        self.move_link("1")

    def start(self, stage: ChaosStage, *arguments: str) -> None:
        words = ("default", "default", "-c", "2", "--directory", str(self.folder / "current"), *arguments)
        self.cluster = stage.run_cluster(*words, app="app", PYTHONPATH=str(ROOT))
        self.cluster.wait_ready(2)

    def deploy(self, name: str, seconds: float) -> subprocess.Popen[bytes]:
        """Start a deploy of that release, which takes so long by itself."""
        before = (self.folder / "current").resolve().name
        environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "REDIS_URL": self.redis}
        undo = f"ln -sfn releases/{before} current"
        release = f"sleep {seconds:.2f}; ln -sfn releases/{name} current"
        script = [str(ROOT / "deploy/rolling-deploy"), "--lease", f"{LEASE_SECONDS:g}s", "--undo", undo]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [*script, "--", "sh", "-c", release], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**environ, "KIQCTL": str(self.folder / "kiqctl")},
            )  # fmt: skip

    def move_link(self, name: str) -> None:
        other = self.folder / "other"
        other.unlink(missing_ok=True)
        other.symlink_to(f"releases/{name}")
        other.rename(self.folder / "current")

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def running(self) -> list[str]:
        """Return the release of each slot; of one without a process, nothing."""
        return [Path(slot["release"] or "").name for slot in self.cluster.slots()]

    def is_at_rest(self) -> bool:
        """Return whether all slots serve, with nothing under way."""
        is_busy = self.cluster.metric("kiqcluster_rolling") or self.cluster.metric("kiqcluster_quiet")
        return not is_busy and self.cluster.is_ready()

    def wait_at_rest(self) -> str:
        """Return the release that all workers run."""
        wait_until(self.is_at_rest, "the cluster to work as before", DEPLOY_TIMEOUT_SECONDS)
        (name,) = set(self.running())
        return name


@pytest.fixture
def site(tmp_path: Path, redis_server: RedisServer) -> Site:
    require("bash", "bash")
    return Site(tmp_path, redis_server.url)


def end(script: subprocess.Popen[bytes], site: Site) -> int:
    try:
        return script.wait(DEPLOY_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        script.kill()
        pytest.fail(f"a deploy did not end; the log is\n{site.log()}")


def disturb(event: str, script: subprocess.Popen[bytes], site: Site, stage: ChaosStage) -> None:
    """Disturb a deploy, or what runs beside it."""
    match event.split():
        case ["link"]:
            site.move_link(stage.rng.choice("1234"))
        case ["TERM" | "INT" | "KILL" as name]:
            with suppress(ProcessLookupError):
                script.send_signal(signal.Signals[f"SIG{name}"])
        case ["KILL", "kiqctl"]:
            with suppress(psutil.NoSuchProcess):
                for child in psutil.Process(script.pid).children():
                    child.kill()
        case ["KILL", "worker"]:
            kill_worker(site, stage)


def kill_worker(site: Site, stage: ChaosStage) -> int:
    """Kill the worker of a slot, if it has one; return its slot."""
    slot = stage.rng.choice(site.cluster.slots())
    if slot["pid"] and is_alive(slot["pid"]):
        os.kill(slot["pid"], signal.SIGKILL)
        stage.ledger.died(slot["pid"])
    return int(slot["slot"])


def check_respawn(site: Site, name: str, stage: ChaosStage) -> None:
    """Assert that whoever dies is replaced by one of the release that runs."""
    before = {slot["pid"] for slot in site.cluster.slots()}
    kill_worker(site, stage)
    wait_until(
        lambda: {slot["pid"] for slot in site.cluster.slots()} - before - {None},
        "another worker",
        DEPLOY_TIMEOUT_SECONDS,
    )
    wait_until(site.is_at_rest, "it to serve", DEPLOY_TIMEOUT_SECONDS)
    assert set(site.running()) == {name}, site.log()


def test_two_deploys_at_once_under_a_link_that_moves_leave_one_release_and_lose_no_job(
    stage: ChaosStage, site: Site
) -> None:
    site.start(stage)
    results: Counter[str] = Counter()

    with Pusher(stage.store, stage.rng) as pusher:
        for _ in range(ROUNDS):
            event = stage.rng.choice(EVENTS)
            first = site.deploy(stage.rng.choice("1234"), stage.rng.uniform(0.0, 1.0))
            PAUSE.wait(stage.rng.uniform(0.0, 2.0))
            second = site.deploy(stage.rng.choice("1234"), stage.rng.uniform(0.0, 1.0))
            PAUSE.wait(stage.rng.uniform(0.0, 4.0))
            disturb(event, stage.rng.choice([first, second]), site, stage)

            codes = [end(first, site), end(second, site)]
            results.update([event, *map(str, codes)])
            name = site.wait_at_rest()
            check_respawn(site, name, stage)
            wait_until(
                lambda: not stage.store.call("EXISTS", stage.store.keys.deploy),
                "the lock to be free",
                60.0 + LEASE_SECONDS,
            )
            assert set(codes) <= {
                0,
                1,
                EXIT_HELD,
                EXIT_TERMINATED,
                EXIT_INTERRUPTED,
                -signal.SIGKILL,
                128 + signal.SIGKILL,
            }
    wait_until(lambda: stage.ledger.has_ended(pusher.certain), "all jobs to end", DEPLOY_TIMEOUT_SECONDS)
    wait_until(lambda: stage.remaining() == {}, "all to be settled", DEPLOY_TIMEOUT_SECONDS)

    audit = stage.ledger.audit(pusher.certain)
    stage.report({"rounds": ROUNDS, **dict(sorted(results.items())), **audit.counts()})
    assert audit.lost == audit.unexplained == frozenset()
    assert audit.strangers <= pusher.unknown


@contextmanager
def redis_away(proxy: Proxy, seconds: float) -> Iterator[None]:
    """Have Redis away from here on, for so many seconds; it is back when the block has ended."""
    until = time.monotonic() + seconds
    with proxy.away():
        yield
        wait_until(lambda: time.monotonic() >= until, "the outage to be over", seconds + 5.0)


def reached(step: str, site: Site, script: subprocess.Popen[bytes]) -> Callable[[], bool]:
    """Return what tells that a deploy has come to a step."""
    calls = {"begin": "deploy begin", "release": "sleep", "commit": "deploy commit", "roll": "deploy commit"}

    def is_there() -> bool:
        if step == "roll":
            return site.cluster.metric("kiqcluster_rolling") == 1
        with suppress(psutil.NoSuchProcess):
            family = psutil.Process(script.pid).children(recursive=True)
            return any(calls.get(step, "sleep") in " ".join(each.cmdline()) for each in family)
        return script.poll() is not None

    return is_there


@pytest.mark.parametrize("step", STEPS)
def test_a_deploy_outlasts_an_outage_of_redis_at_each_of_its_steps(stage: ChaosStage, site: Site, step: str) -> None:
    with Proxy(("127.0.0.1", stage.redis.port)) as proxy:
        site.redis = proxy.url
        site.start(stage, "--redis", proxy.url)
        since = time.monotonic()
        script = site.deploy("2", 0.5)
        wait_until(reached(step, site, script), f"the deploy to come to {step}", DEPLOY_TIMEOUT_SECONDS)

        with redis_away(proxy, stage.rng.uniform(*OUTAGE_SECONDS)):
            if step == "abort":
                script.send_signal(signal.SIGTERM)
        code = end(script, site)
        name = site.wait_at_rest()

    took = time.monotonic() - since
    stage.report({"outage at": step, "code": code, "release": name, "seconds": f"{took:.1f}"})
    # `begin` may have failed, before anything was done, or with an answer that was lost.  All others get there.
    ends = {"begin": [(0, "2"), (1, "1")], "abort": [(EXIT_TERMINATED, "1")]}
    assert (code, name) in ends.get(step, [(0, "2")]), site.log()
    assert site.cluster.is_ready()
