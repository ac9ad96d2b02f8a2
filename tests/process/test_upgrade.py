"""Workers of two releases of kiqcluster in one fleet."""

from __future__ import annotations

from kiqcluster.errors import ExitCode
from kiqcluster.sidekiq.keys import FORMAT_VERSION
from tests.stage import Stage


def test_a_worker_that_is_too_old_for_its_fleet_does_not_start_and_says_so(stage: Stage) -> None:
    stage.store.call("SET", "kiq:format", FORMAT_VERSION + 1)

    cluster = stage.run_cluster("default", "-c", "1")

    assert cluster.wait() == ExitCode.REDIS_REFUSED
    assert any("Start the newer release" in line for line in cluster.lines)
    assert stage.members() == set()
