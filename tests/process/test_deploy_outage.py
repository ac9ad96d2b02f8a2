"""kiqctl deploy while Redis is away: it goes on trying, and this host's clusters hear of it by their sockets."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kiqcluster.store import Store
from tests.kit import Cluster, RedisServer, wait_until
from tests.process.kiqctl import Kiqctl
from tests.process.stage import metric, push, wait_noted
from tests.proxy import Proxy

RunCluster = Callable[..., Cluster]


@pytest.fixture
def socket() -> Iterator[str]:
    """A path that is short enough for one."""
    with tempfile.TemporaryDirectory(prefix="kiq-") as folder:
        yield str(Path(folder) / "control.sock")


def test_commit_and_abort_outlast_an_outage_and_the_cluster_of_this_host_hears_of_them_meanwhile(
    run_cluster: RunCluster, redis_server: RedisServer, store: Store, socket: str
) -> None:
    with Proxy(("127.0.0.1", redis_server.port)) as proxy:
        kiqctl = Kiqctl(proxy.url)
        cluster = run_cluster("default", "-c", "1", "--redis", proxy.url, KIQ_CONTROL=socket)
        cluster.wait_ready()
        owner = ("--owner", "this deploy")
        assert kiqctl("deploy", "begin", *owner).returncode == 0
        assert metric(cluster, "kiqcluster_quiet") == 1
        push(store, "record", "a")

        with proxy.away():
            commit = kiqctl.start("deploy", "commit", *owner, "--socket", socket)
            cluster.wait_for("roll_started")
        done = kiqctl.end(commit)

        assert done.returncode == 0, done.stderr
        assert len(cluster.seen("roll_started")) == len(cluster.seen("roll_done")) == 1
        wait_noted(store, "ran a")

        assert kiqctl("deploy", "begin", *owner).returncode == 0
        with proxy.away():
            abort = kiqctl.start("deploy", "abort", *owner, "--socket", socket)
            wait_until(lambda: metric(cluster, "kiqcluster_quiet") == 0, "the cluster to fetch again")
        done = kiqctl.end(abort)

        assert done.returncode == 0, done.stderr
        assert len(cluster.seen("roll_started")) == 1  # nothing had to be rolled back
        assert store.call("EXISTS", store.keys.deploy) == 0
        kiqctl.close()


def test_a_socket_of_a_cluster_that_is_in_no_deploy_of_ours_is_told_nothing(
    run_cluster: RunCluster, redis_server: RedisServer, store: Store, socket: str
) -> None:
    with Proxy(("127.0.0.1", redis_server.port)) as proxy:
        kiqctl = Kiqctl(proxy.url)
        cluster = run_cluster("default", "-c", "1", KIQ_CONTROL=socket)
        cluster.wait_ready()
        assert kiqctl("deploy", "begin", "--owner", "another").returncode == 0

        with proxy.away():
            done = kiqctl("deploy", "abort", "--socket", socket, "--patience", "1s")

        assert done.returncode == 1
        assert metric(cluster, "kiqcluster_quiet") == 1
        kiqctl.close()
