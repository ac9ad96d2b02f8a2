"""Each part of kiqcluster works as the user that the guide gives it, through all features, and needs no more."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kiqcluster.errors import ExitCode
from kiqcluster.process.config import Config
from kiqcluster.process.runtime import Setup, using_setup
from kiqcluster.store import Store
from kiqcluster.store.rights.lists import FEATURES
from kiqcluster.store.rights.trials import needed
from tests.apps import features
from tests.kit import RedisServer, wait_until
from tests.redis_cluster import RedisCluster
from tests.rights import user_of_guide
from tests.sentinel import SERVICE, SentinelGroup
from tests.stage import Stage

APPLICATION = "tests.apps.features"
OLD = shutil.which("redis-server")  # Debian's, of Redis 7.0


class Server:
    """Where a worker and an application connect, each as its user.

    url: with the place `{user}` for user and password.  admins: stores of all nodes, which may do everything.
    """

    def __init__(self, url: str, admins: list[Store]) -> None:
        self._url = url
        self.admins = admins
        for admin in admins:
            for name in ("worker", "client"):
                admin.call(*user_of_guide(name))

    def url(self, name: str) -> str:
        return self._url.format(user=f"{name}:pw@")

    def refused(self) -> list[object]:
        """Return what the users have tried in vain."""
        return [entry for admin in self.admins for entry in admin.call("ACL", "LOG")]


@contextmanager
def plain(program: str | None) -> Iterator[Server]:
    with RedisServer(program=program) as server:
        yield Server(server.url.replace("//", "//{user}"), [server.store()])


@contextmanager
def sentinel() -> Iterator[Server]:
    with SentinelGroup() as group:
        Store(group._own_url).call(*user_of_guide("sentinel"))
        options = "?sentinel_username=sentinel&sentinel_password=pw"
        url = f"redis+sentinel://{{user}}127.0.0.1:{group.port}/{SERVICE}/0{options}"
        yield Server(url, [each.store() for each in group.servers])


@contextmanager
def in_cluster() -> Iterator[Server]:
    with RedisCluster() as cluster:
        yield Server(cluster.url.replace("//", "//{user}"), [each.store() for each in cluster.nodes])


SERVERS = {"redis 7.0": lambda: plain(OLD), "newest": lambda: plain(None), "sentinel": sentinel, "cluster": in_cluster}


@pytest.fixture(
    params=[pytest.param(each, marks=[pytest.mark.full] * (each != "redis 7.0")) for each in SERVERS], ids=str
)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    made: Callable[[], object] = SERVERS[request.param]
    with made() as server:  # type: ignore[attr-defined]
        yield server


def test_a_worker_and_an_application_run_each_feature_with_their_rights(
    server: Server, stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = tmp_path / "notes"
    monkeypatch.setenv("NOTES", str(notes))
    cluster = stage.run_cluster(
        "*", "-c", "8", "--redis", server.url("worker"), app=APPLICATION, KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL="0.2"
    )
    cluster.wait_ready(1)

    with using_setup(Setup(config=Config(redis=server.url("client")))):
        features.use_all()  # as an application outside of a worker
        features.use_all_in_a_job.perform_async()  # and within one

    expected = Counter(features.EXPECTED) + Counter(each for each in features.EXPECTED if each not in ONCE)
    expected["started"] = 1
    wait_until(lambda: not expected - Counter(features.notes()), "each feature to do its work", seconds=60)
    assert "expired" not in features.notes()
    assert cluster.stop() == ExitCode.STOPPED
    assert cluster.seen("redis_refused") == []
    assert server.refused() == []


ONCE = {"tick", "unique", "rescheduled", "hangs"}  # of equal jobs, or whose process dies


@pytest.mark.own_redis
def test_a_boot_names_what_is_missing_by_the_features_that_are_in_use(stage: Stage) -> None:
    lacking = [f"-{name.lower()}" for name in ("HEXISTS", "SISMEMBER", "LMOVE")]
    stage.store.call(*user_of_guide("worker"), *lacking)
    url = stage.redis.url.replace("//", "//worker:pw@")

    refused = stage.run_cluster("*", "--redis", url, app=APPLICATION)

    assert refused.wait() == ExitCode.REDIS_REFUSED
    said = "\n".join(refused.lines)
    assert "HEXISTS (cron, deduplication, iterable jobs), LMOVE, SISMEMBER (cron)" in said
    stage.store.call("ACL", "SETUSER", "worker", "+lmove")
    plain_jobs = stage.run_cluster("default", "--redis", url, app="tests.apps.basic")
    plain_jobs.wait_ready(1)
    assert set(needed([])).isdisjoint({"HEXISTS", "SISMEMBER"}), "only features need them"
    assert FEATURES.keys() == {"cron", "deduplication", "iterable jobs", "limits"}
