"""The exporter on what Ruby Sidekiq wrote: its queues and sets, and a Ruby process that listens."""

from __future__ import annotations

import time

import pytest

from kiqcluster.ctl.exporter.gauges import Gauges
from kiqcluster.store import Store
from tests.interop.programs import RubyClient, RubyServer
from tests.kit import wait_until

pytestmark = pytest.mark.ruby


def gauges(store: Store) -> dict[tuple[str, str], float]:
    """Return the value of each sample by its name and, where it has one, the label `name`."""
    return {
        (sample.name, sample.labels.get("name", "")): sample.value
        for metric in Gauges(store).read(time.time())
        for sample in metric.samples
    }


def test_what_ruby_enqueued_is_counted(store: Store, ruby_client: RubyClient) -> None:
    before = time.time()
    for _ in range(3):
        ruby_client("perform_async", "x", set={"queue": "low"})
    ruby_client("perform_in", 3_600, "x")

    found = gauges(store)

    assert found["sidekiq_queue_size", "low"] == found["sidekiq_jobs_enqueued_size", ""] == 3
    assert 0 <= found["sidekiq_queue_latency_seconds", "low"] <= time.time() - before + 1
    assert found["sidekiq_jobs_scheduled_size", ""] == 1
    assert found["sidekiq_schedule_set_backlog_size", ""] == 0
    assert found["kiqcluster_queue_unlistened", "low"] == 1


def test_what_a_ruby_process_listens_to_is_listened_to(
    ruby_server: RubyServer, store: Store, ruby_client: RubyClient
) -> None:
    wait_until(lambda: gauges(store)["sidekiq_processes_size", ""] == 1, "the Ruby process to show", seconds=30)
    ruby_client("perform_async", "x", set={"queue": "low"})

    found = gauges(store)

    assert found["kiqcluster_queue_unlistened", "ruby"] == 0
    assert found["kiqcluster_queue_unlistened", "low"] == 1
