"""The harness counts jobs and counters where a test fails: what it finds forbids a second run (tests/ci/reruns.py)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests import kit
from tests.kit import Cluster, JobsMiscounted
from tests.stage import Stage

NAMED = "kiqcluster_jobs_processed_total"


def log_of(*events: tuple[str, str]) -> Any:
    """Return a cluster that has logged these events of jobs."""
    return SimpleNamespace(
        seen=lambda name: [{"event": name, "ctx": {"jid": jid}} for event, jid in events if event == name],
        close=lambda: None,
    )


def test_jobs_that_redis_has_or_that_are_done_are_accounted_for(stage: Stage) -> None:
    waiting, done, scheduled = stage.push("record"), stage.push("record"), stage.push("record", at=4e9)
    stage.store.call("LREM", "queue:default", 0, stage.store.call("LINDEX", "queue:default", 0))
    stage.store.call("HSET", "kiq:inflight:me", "1:default", f'{{"jid":"{stage.push("record", queue="away")}"}}')
    stage.store.call("DEL", "queue:away")
    stage._clusters.append(log_of(("job_done", done)))

    assert waiting
    assert scheduled
    assert stage.miscount() == ""


def test_a_job_that_is_nowhere_is_lost(stage: Stage) -> None:
    lost = stage.push("record")
    stage.store.call("DEL", "queue:default")

    assert stage.miscount() == f"lost: {lost}"


def test_a_job_that_is_done_twice_is_said(stage: Stage) -> None:
    jid = stage.push("record")
    stage._clusters.append(log_of(("job_done", jid), ("job_done", jid)))

    assert stage.miscount() == f"done twice: {jid}"


@pytest.mark.own_redis
def test_without_redis_nobody_can_say(stage: Stage) -> None:
    stage.push("record")
    stage.redis.kill()

    assert stage.miscount().startswith("Redis cannot say which jobs it has")


def test_a_counter_that_falls_is_no_matter_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster.__new__(Cluster)
    cluster.port, cluster._counters = 1, {}
    pages = iter([f'{NAMED}{{queue="a"}} 7.0\nkiqcluster_busy 5\n', f'{NAMED}{{queue="a"}} 6.0\nkiqcluster_busy 2\n'])
    monkeypatch.setattr(kit, "http_get", lambda *_, **__: (200, {}, next(pages).encode()))

    assert cluster.metric("kiqcluster_busy") == 5.0
    with pytest.raises(JobsMiscounted, match=rf'counters fell: {NAMED}{{queue="a"}} from 7 to 6'):
        cluster.metric("kiqcluster_busy")
