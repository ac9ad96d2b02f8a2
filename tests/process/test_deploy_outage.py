"""kiqctl deploy while Redis is away: it goes on trying, and this host's clusters hear of it by their sockets."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit import wait_until
from tests.process.kiqctl import Kiqctl
from tests.proxy import Proxy
from tests.stage import Stage


@pytest.fixture
def socket() -> Iterator[str]:
    """A path that is short enough for one."""
    with tempfile.TemporaryDirectory(prefix="kiq-") as folder:
        yield str(Path(folder) / "control.sock")


def test_commit_and_abort_outlast_an_outage_and_the_cluster_of_this_host_hears_of_them_meanwhile(
    stage: Stage, socket: str
) -> None:
    with Proxy(("127.0.0.1", stage.redis.port)) as proxy:
        kiqctl = Kiqctl(proxy.url)
        cluster = stage.run_cluster("default", "-c", "1", "--redis", proxy.url, KIQ_CONTROL=socket)
        cluster.wait_ready()
        owner = ("--owner", "this deploy")
        assert kiqctl("deploy", "begin", *owner).returncode == 0
        assert cluster.metric("kiqcluster_quiet") == 1
        stage.push("record", "a")

        with proxy.away():
            commit = kiqctl.start("deploy", "commit", *owner, "--socket", socket)
            cluster.wait_for("roll_started")
        done = kiqctl.end(commit)

        assert done.returncode == 0, done.stderr
        assert len(cluster.seen("roll_started")) == len(cluster.seen("roll_done")) == 1
        stage.wait_noted("ran a")

        assert kiqctl("deploy", "begin", *owner).returncode == 0
        with proxy.away():
            abort = kiqctl.start("deploy", "abort", *owner, "--socket", socket)
            wait_until(lambda: cluster.metric("kiqcluster_quiet") == 0, "the cluster to fetch again")
        done = kiqctl.end(abort)

        assert done.returncode == 0, done.stderr
        assert len(cluster.seen("roll_started")) == 1  # nothing had to be rolled back
        assert stage.store.call("EXISTS", stage.store.keys.deploy) == 0
        kiqctl.close()


def test_a_socket_of_a_cluster_that_is_in_no_deploy_of_ours_is_told_nothing(stage: Stage, socket: str) -> None:
    with Proxy(("127.0.0.1", stage.redis.port)) as proxy:
        kiqctl = Kiqctl(proxy.url)
        cluster = stage.run_cluster("default", "-c", "1", KIQ_CONTROL=socket)
        cluster.wait_ready()
        assert kiqctl("deploy", "begin", "--owner", "another").returncode == 0

        with proxy.away():
            done = kiqctl("deploy", "abort", "--socket", socket, "--patience", "1s")

        assert done.returncode == 1
        assert cluster.metric("kiqcluster_quiet") == 1
        kiqctl.close()
