"""What three versions of real Ruby Sidekiq left in Redis reads right through our API, and our workers run it."""

from __future__ import annotations

import base64
import json
import zlib
from datetime import UTC, datetime

import pytest

from kiqcluster.api import (
    DeadSet,
    ExecutionMetrics,
    History,
    ProcessSet,
    Queue,
    RetrySet,
    ScheduledSet,
    Stats,
    WorkSet,
    summaries,
)
from tests.interop.golden import VERSIONS, Golden
from tests.interop.programs import exact
from tests.kit import ManualClock, wait_until

WEIGHTS = {"critical": 3, "default": 2, "mailers": 0, "cronjob:tidy": 0}
SETS = {"schedule": ScheduledSet, "retry": RetrySet, "dead": DeadSet}
TIMES = ("created_at", "enqueued_at", "failed_at", "retried_at")
RUNS = {"7.3.10": (4, 4), "8.1.7": (5, 5)}  # of Shop::Fails: processed, failed


@pytest.fixture(params=VERSIONS)
def golden(request, store, setup):
    golden = Golden.read(request.param)
    golden.load(store)
    return golden


@pytest.fixture
def clock(golden):
    return ManualClock(golden.now)


def in_seconds(value):
    """Return a time as epoch seconds: floats are these already, integers are milliseconds."""
    return value / 1_000 if isinstance(value, int) else value


@pytest.mark.parametrize("name", SETS)
def test_every_field_of_every_entry_is_read(name, golden, clock):
    expected = golden.jobs(name)

    found = {entry.jid: entry for entry in SETS[name](clock=clock)}

    assert found.keys() == expected.keys()
    for jid, entry in found.items():
        payload = expected[jid]
        assert entry.payload == payload
        assert (entry.name, entry.display_class, entry.queue) == (payload["class"], payload["class"], payload["queue"])
        assert exact(entry.args) == exact(entry.display_args) == exact(payload["args"])
        assert entry.tags == payload.get("tags", [])
        assert entry.retry_count == payload.get("retry_count")
        assert (entry.error_class, entry.error_message) == (payload.get("error_class"), payload.get("error_message"))


@pytest.mark.parametrize("name", SETS)
def test_times_of_every_version_are_seconds(name, golden, clock):
    expected = golden.jobs(name)

    for entry in SETS[name](clock=clock):
        for field in TIMES:
            stored = expected[entry.jid].get(field)
            shown = getattr(entry, field)
            assert shown == (None if stored is None else in_seconds(stored))
            assert shown is None or golden.now - 60 < shown < golden.now + 30
        since = expected[entry.jid].get("enqueued_at", expected[entry.jid]["created_at"])
        assert entry.latency(golden.now + 60) == pytest.approx(golden.now + 60 - in_seconds(since))


def test_scores_are_times(golden, clock):
    for name, kind in SETS.items():
        scores = {json.loads(member)["jid"]: score for member, score in golden.keys[name]["value"]}

        assert {entry.jid: entry.score for entry in kind(clock=clock)} == scores
        assert all(entry.at == datetime.fromtimestamp(entry.score, UTC) for entry in kind(clock=clock))
        assert [entry.score for entry in kind(clock=clock)] == sorted(scores.values(), reverse=True)


def test_backtraces_are_read(golden, clock):
    lines = {entry.jid: entry.error_backtrace for entry in RetrySet(clock=clock)}

    for jid, payload in golden.jobs("retry").items():
        stored = payload.get("error_backtrace")
        assert lines[jid] == ([] if stored is None else json.loads(zlib.decompress(base64.b64decode(stored))))
    assert [len(each) for each in lines.values() if each] == [5, 5, 5]
    assert all("in `perform'" in each[0] for each in lines.values() if each)


def test_the_queue_that_nobody_listens_to_is_read(golden, clock):
    queue = Queue("nobody_listens", clock=clock)
    ((jid, payload),) = golden.jobs("queue:nobody_listens").items()

    (job,) = queue
    (found,) = (each for each in summaries(clock=clock) if each.name == "nobody_listens")

    assert job.payload == queue.find_job(jid).payload == payload
    assert (job["retry_for"], job["expiry"], job["traceparent"][:5]) == (3600, 1900000000.0, "00-0a")
    assert queue.latency() == found.latency == pytest.approx(golden.now - in_seconds(payload["enqueued_at"]))
    assert (found.size, found.processes, found.is_paused, len(queue)) == (1, 0, False, 1)
    assert {each.name: each.processes for each in summaries(clock=clock)} == {
        "nobody_listens": 0, "default": 1, "mailers": 1, "cronjob:tidy": 1
    }  # fmt: skip


def test_the_process_is_read(golden):
    (process,) = ProcessSet()

    assert (process.identity, process.host, process.pid) == (golden.identity, "vm", golden.info["pid"])
    assert process.tag == golden.info["tag"] == ("golden" if golden.version == "8.1.7" else "")
    assert process.version == ("" if golden.version == "6.4.1" else golden.version)
    assert process.queues == tuple(WEIGHTS)
    assert (process.concurrency, process.busy, process.is_quiet, process.is_ours) == (4, 1, False, False)
    assert process.rss == int(golden.process["rss"]) * 1_024
    assert (process.rtt_us, process.beat) == (int(golden.process["rtt_us"]), golden.now)
    assert process.started_at == golden.info["started_at"]
    assert (process.labels, process.is_embedded, process.cluster) == ((), False, None)
    assert 0 <= process.age < 60


def test_the_processes_capsules_are_read(golden):
    ((capsule,),) = (process.capsules for process in ProcessSet())

    assert (capsule.name, capsule.threads) == ("default", 4)
    if golden.version == "6.4.1":  # which tells of neither
        assert (capsule.mode, dict(capsule.weights)) == ("", dict.fromkeys(WEIGHTS, 1))
    else:
        assert (capsule.mode, dict(capsule.weights)) == ("weighted", WEIGHTS)


def test_all_processes_are_added_up(golden):
    processes = ProcessSet()

    assert (len(processes), processes.total_concurrency, processes.leader) == (1, 4, None)
    assert processes.total_rss == int(golden.process["rss"]) * 1_024
    assert processes[golden.identity].pid == golden.info["pid"]


def test_the_running_job_is_read(golden):
    (stored,) = golden.keys[f"{golden.identity}:{'workers' if golden.version == '6.4.1' else 'work'}"]["value"].values()
    job = json.loads(json.loads(stored)["payload"])

    (work,) = WorkSet()

    assert (work.identity, work.queue, work.run_at) == (golden.identity, "mailers", json.loads(stored)["run_at"])
    assert (work.job.jid, work.job.name, work.job.args) == (job["jid"], "Shop::Slow", [60])
    assert work.job.created_at == in_seconds(job["created_at"])
    assert WorkSet().size == 1
    assert WorkSet().find_work(job["jid"]) == work
    assert WorkSet().find_work("nobody") is None


def test_stats_are_read(golden, clock):
    stats = Stats(clock=clock)

    assert (stats.processed, stats.failed) == tuple(
        int(golden.keys[f"stat:{name}"]["value"]) for name in ("processed", "failed")
    )
    assert (stats.scheduled_size, stats.retry_size, stats.dead_size, stats.enqueued) == (2, 4, 1, 1)
    assert (stats.processes_size, stats.workers_size, stats.default_queue_latency) == (1, 1, 0)
    assert stats.queues == {"nobody_listens": 1, "cronjob:tidy": 0, "default": 0, "mailers": 0}
    assert next(iter(stats.queues)) == "nobody_listens"


def test_history_is_read(golden, clock):
    history = History(3, clock=clock)

    assert [day.isoformat() for day in history.processed] == ["2026-11-20", "2026-11-19", "2026-11-18"]
    assert list(history.processed.values()) == [int(golden.keys["stat:processed"]["value"]), 0, 0]
    assert list(history.failed.values()) == [int(golden.keys["stat:failed"]["value"]), 0, 0]


@pytest.mark.parametrize("golden", RUNS, indirect=True)
def test_metrics_are_read(golden, clock):
    metrics = ExecutionMetrics(clock=clock)
    fails = RUNS[golden.version]

    jobs = metrics.top_jobs(minutes=5)
    assert {name: (job.processed, job.failed, job.ms) for name, job in jobs.items()} == {
        "Shop::Ok": (5, 0, 0), "Shop::Fails": (*fails, 0), "Shop::Dies": (1, 1, 0)
    }  # fmt: skip
    job = metrics.for_job("Shop::Ok", minutes=5)
    assert (job.processed, job.failed, job.histogram[0], sum(job.histogram)) == (5, 0, 5, 5)
    ((minute, count),) = job.series.items()
    assert (minute.strftime("%Y-%m-%d %H:%M"), count.processed) == (
        "2026-11-20 11:38" if golden.version == "7.3.10" else "2026-11-20 11:39", 5
    )  # fmt: skip


@pytest.mark.parametrize("golden", ["8.1.7"], indirect=True)
def test_metrics_of_ten_minutes_are_read(golden, clock):
    jobs = ExecutionMetrics(clock=clock).top_jobs(hours=1, class_filter="ok")

    assert {name: (job.processed, job.failed) for name, job in jobs.items()} == {"Shop::Ok": (5, 0)}


@pytest.mark.parametrize("golden", ["6.4.1"], indirect=True)
def test_a_version_without_metrics_has_none(golden, clock):
    assert ExecutionMetrics(clock=clock).top_jobs() == {}


# and it runs


HEAD = """
import json
from kiqcluster import current_job, job
from kiqcluster.process.runtime import current_setup

def note(name, args):
    current_setup().current_store().call("RPUSH", "ran", json.dumps([current_job().jid, name, args]))

@job(name="Shop::Fails")
def fails(*args):
    note("Shop::Fails", args)
    raise ValueError("again")
"""


@pytest.fixture
def application(tmp_path):
    """Write a Python application with the Ruby shop's jobs: all but Shop::Fails succeed, and note what they were."""
    path = tmp_path / "shop.py"
    jobs = "\n".join(
        f"@job(name={name!r})\ndef {name.split('::')[1].lower()}(*args):\n    note({name!r}, args)\n"
        for name in ("Shop::Ok", "Shop::Dies", "Shop::Slow", "Missing::Klass")
    )
    path.write_text(f"{HEAD}\n{jobs}")
    return str(path)


def test_our_worker_runs_what_lies_in_queues_and_sets(golden, stage, application):
    stored = {name: golden.jobs(name) for name in ("queue:nobody_listens", *SETS)}
    expected = {jid: payload for jobs in stored.values() for jid, payload in jobs.items()}

    assert (RetrySet().retry_all(), DeadSet().retry_all(), ScheduledSet().add_all_to_queue()) == (4, 1, 2)
    stage.run_cluster("nobody_listens,default", "-c", "2", app=application)

    wait_until(lambda: stage.store.call("LLEN", "ran") == len(expected), "everything to run")
    wait_until(lambda: not stage.holders(), "every outcome to be written")
    ran = [json.loads(line) for line in stage.store.call("LRANGE", "ran", 0, -1)]
    assert {jid: [name, exact(args)] for jid, name, args in ran} == {
        jid: [payload["class"], exact(payload["args"])] for jid, payload in expected.items()
    }
    assert (stage.store.call("ZCARD", "dead"), stage.store.call("ZCARD", "schedule")) == (0, 0)


def test_a_job_that_failed_there_goes_on_failing_here(golden, stage, application):
    before = {jid: each for jid, each in golden.jobs("retry").items() if each["class"] == "Shop::Fails"}
    for raw in stage.store.call("ZRANGE", "retry", 0, -1):
        stage.store.call("ZADD", "retry", 1, raw)  # due

    stage.run_cluster("default", "-c", "2", app=application, KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL="0.1")

    wait_until(lambda: stage.store.call("ZCOUNT", "retry", golden.now, "+inf") == 3, "three more failures")
    after = {entry.jid: entry for entry in RetrySet()}
    assert after.keys() == before.keys()
    for jid, entry in after.items():
        assert entry.retry_count == before[jid]["retry_count"] + 1
        assert (entry["failed_at"], entry["created_at"]) == (before[jid]["failed_at"], before[jid]["created_at"])
        assert isinstance(entry["retried_at"], float)
        assert (entry.error_class, entry.tags) == ("ValueError", ["t1", "t2"])
        assert exact(entry.args) == exact(before[jid]["args"])
        assert 0 < len(entry.error_backtrace) <= 5
