"""Our workers in Ruby's process registry: what it shows, and what its buttons do."""

from __future__ import annotations

import re
import socket
import time

import pytest

from tests.apps.interop import Echo, fragile, hold
from tests.interop.stage import AT_ONCE_SECONDS
from tests.kit import http_get, is_alive, wait_until

pytestmark = [pytest.mark.ruby, pytest.mark.usefixtures("setup")]

PROCESSES = """
fields = %w[hostname started_at pid tag concurrency queues labels identity busy beat quiet rss rtt_us]
Sidekiq::ProcessSet.new.map { |process|
  fields.to_h { |name| [name, process[name]] }.merge("stopping" => process.stopping?)
}
"""
WORK = "Sidekiq::WorkSet.new.map { |identity, tid, work| [identity, tid, work] }"
STATS = """
stats = Sidekiq::Stats.new
%w[processed failed scheduled_size retry_size dead_size enqueued processes_size].to_h { |name|
  [name, stats.public_send(name)]
}
"""
ON_QUEUE = "Sidekiq::ProcessSet.new.find { |process| process.queues == [queue] }"


@pytest.fixture
def processes(ruby):
    """Ruby's view of all processes, by their queues."""
    return lambda: {",".join(each["queues"]): each for each in ruby(PROCESSES)}


@pytest.fixture
def press(ruby):
    """Call a method of Ruby's Process object, as its web page's buttons do."""
    return lambda button, queue: ruby(f"{ON_QUEUE}.{button}", queue=queue)


def test_ruby_sees_every_field_of_our_process(stage, processes):
    before = time.time()
    cluster = stage.run_cluster("default,low", "-c", "3")
    pid = cluster.wait_ready()[0]

    process = wait_until(processes, "the process to register")["default,low"]

    assert (process["hostname"], process["pid"], process["concurrency"]) == (socket.gethostname(), pid, 3)
    assert process["queues"] == ["default", "low"]
    assert re.fullmatch(rf"{re.escape(socket.gethostname())}:{pid}:[0-9a-f]{{12}}", process["identity"])
    assert before <= process["started_at"] <= process["beat"] <= time.time()
    assert (process["quiet"], process["stopping"], process["busy"]) == ("false", False, 0)
    assert isinstance(process["tag"], str)
    assert process["labels"] == ["kiqcluster"]
    assert process["rss"] > 1_000
    assert isinstance(process["rtt_us"], int)


def test_ruby_sees_the_jobs_that_run(stage, processes, press, ruby):
    cluster = stage.run_cluster("default", "-c", "2")
    cluster.wait_ready()
    wait_until(processes, "the process to register")
    jid = hold.set(tags=["vip"]).perform_async("é 🚀")
    wait_until(lambda: stage.store.call("LLEN", "began"), "the job to begin")

    press("dump_threads", "default")  # any signal is followed by a beat
    ((identity, tid, work),) = wait_until(lambda: ruby(WORK), "the running job to show", seconds=AT_ONCE_SECONDS)

    process = processes()["default"]
    assert identity == process["identity"]
    assert tid
    assert work["queue"] == "default"
    assert abs(work["run_at"] - time.time()) < 60
    assert isinstance(work["run_at"], int)
    assert (work["payload"]["jid"], work["payload"]["args"]) == (jid, ["é 🚀"])
    assert process["busy"] == ruby("Sidekiq::WorkSet.new.size") == 1
    assert ruby("Sidekiq::Stats.new.workers_size") == 1


def test_the_quiet_button_quiets_that_one_process(stage, processes, press):
    cluster = stage.run_cluster("default", "low", "-c", "1")
    cluster.wait_ready(2)
    wait_until(lambda: len(processes()) == 2, "both processes to register")

    press("quiet!", "default")

    wait_until(
        lambda: processes()["default"]["quiet"] == "true", "quiet to show in the registry", seconds=AT_ONCE_SECONDS
    )
    assert processes()["default"]["stopping"] is True
    assert processes()["low"]["quiet"] == "false"
    kept = Echo.perform_async("kept")
    stage.echo_of(Echo.set(queue="low").perform_async("runs"))  # the other process goes on
    wait_until(lambda: stage.store.call("LLEN", "queue:default") == 1, "the job of its wakeup to be back in the queue")

    press("stop!", "default")
    assert stage.echo_of(kept)["args"] == ["kept"]  # its replacement is not quiet


def test_the_stop_button_has_the_process_replaced(stage, processes, press):
    cluster = stage.run_cluster("default", "-c", "2")
    old = cluster.wait_ready()[0]
    wait_until(processes, "the process to register")

    press("stop!", "default")

    new = wait_until(lambda: cluster.pids()[0] != old and cluster.pids()[0], "a replacement", seconds=AT_ONCE_SECONDS)
    wait_until(
        lambda: [each["pid"] for each in processes().values()] == [new], "the new process alone to be registered"
    )
    assert not is_alive(old)
    metrics = http_get(cluster.port, "/metrics")[2].decode()
    assert 'kiqcluster_child_restarts_total{reason="remote_stop",slot="0"} 1.0' in metrics
    assert stage.echo_of(Echo.perform_async("after"))["args"] == ["after"]


def test_a_stopped_process_finishes_the_job_that_runs(stage, processes, press):
    cluster = stage.run_cluster("default", "-c", "1")
    old = cluster.wait_ready()[0]
    wait_until(processes, "the process to register")
    hold.perform_async("x")
    wait_until(lambda: stage.store.call("LLEN", "began"), "the job to begin")

    press("stop!", "default")
    cluster.wait_for("worker_stopping", pid=old)
    stage.store.call("RPUSH", "release", "x")

    wait_until(lambda: cluster.pids()[0] != old, "a replacement")
    assert stage.store.call("LLEN", "began") == 1
    assert stage.store.call("GET", "stat:processed") == b"1"


def test_ruby_counts_what_we_processed(stage, ruby):
    stage.run_cluster("default", "-c", "2")
    Echo.perform_bulk([[number] for number in range(5)])
    fragile.perform_bulk([["a"], ["b"]])
    fragile.set(retry=0).perform_async("c")
    fragile.set(retry=False).perform_async("d")
    Echo.perform_in(3_600)
    Echo.set(queue="waiting").perform_async()

    wait_until(lambda: ruby(STATS)["processed"] >= 9, "nine jobs to be counted")
    wait_until(lambda: ruby(STATS)["processes_size"], "the process to register")

    sizes = {"scheduled_size": 1, "retry_size": 2, "dead_size": 1, "enqueued": 1, "processes_size": 1}
    assert ruby(STATS) == {"processed": 9, "failed": 4, **sizes}
    history = "history = Sidekiq::Stats::History.new(2); [history.processed.values.sum, history.failed.values.sum]"
    assert ruby(history) == [9, 4]
    assert ruby("Sidekiq::Stats.new.queues") == {"waiting": 1, "default": 0}


def test_a_cluster_that_left_is_gone_from_the_registry(stage, processes):
    cluster = stage.run_cluster("default")
    wait_until(processes, "the process to register")

    assert cluster.stop() == 0

    assert processes() == {}
    assert stage.store.call("SCARD", "processes") == 0
