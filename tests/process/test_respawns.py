"""Invariant 7: whatever children do, no counter goes back and nothing grows."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import psutil
import pytest

from tests.kit import Cluster, wait_until
from tests.proc import count_descriptors
from tests.prometheus import prometheus
from tests.stage import Stage

SLOTS = 2
SCRAPED = 'job="kiqcluster"'
# With their names as a label: resets() drops that of the metric, and then could not tell them apart.
# Two gauges have series for the jobs that run at that moment only.
LASTING = f'{{__name__!~"sidekiq_(running_jobs|longest_running_job_seconds)",{SCRAPED}}}'
CUMULATIVE = f'label_replace({{__name__=~".+_(total|count|sum|bucket)",{SCRAPED}}}, "series", "$1", "__name__", "(.+)")'


def killings(cluster: Cluster, count: int) -> Iterator[int]:
    """Kill that many children, each when all are ready; yield how many it were."""
    cluster.wait_ready(SLOTS)
    for number in range(count):
        slot = number % SLOTS
        pid = cluster.pids()[slot]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda slot=slot, pid=pid: cluster.pids().get(slot, pid) != pid, "the next child to be ready")
        yield number + 1


@pytest.mark.parametrize("kills", [10, pytest.param(200, marks=pytest.mark.full)])
def test_prometheus_sees_no_counter_go_back_and_no_series_come_through_respawns(stage: Stage, kills: int) -> None:
    cluster = stage.run_cluster("default", "other", "-c", "2", KIQ_HEALTH_RESPAWN_BURST="1000")
    with prometheus(cluster.port) as scrapes:
        for number in killings(cluster, kills):
            stage.push_many("record", [["x"]] * 50)
            stage.push_many("record", [["x"]] * 50, queue="other")
            if number == kills // 4:
                wait_until(lambda: scrapes.value(f"sum(kiqcluster_child_restarts_total{{{SCRAPED}}})"), "a scrape")
                before = scrapes.series(LASTING)
        stage.wait_settled()
        wait_until(
            lambda: stage.store.call("LLEN", "queue:default") + stage.store.call("LLEN", "queue:other") == 0,
            "all to run",
        )
        restarts = f"sum(kiqcluster_child_restarts_total{{{SCRAPED}}})"
        wait_until(lambda: scrapes.value(restarts) == kills, "every restart to be scraped")

        assert {
            str(each["metric"]): each["value"][1] for each in scrapes.query(f"resets({CUMULATIVE}[10m:250ms]) > 0")
        } == {}
        assert scrapes.series(LASTING) == before
        assert scrapes.value(f"min_over_time(up{{{SCRAPED}}}[1h])") == 1


@pytest.mark.parametrize(("kills", "warm_up"), [(30, 10), pytest.param(1_000, 100, marks=pytest.mark.full)])
def test_the_supervisor_does_not_grow_with_the_children_that_it_replaces(
    stage: Stage, kills: int, warm_up: int, record_property: Callable[[str, object], None]
) -> None:
    cluster = stage.run_cluster("default", "other", "-c", "2", KIQ_HEALTH_RESPAWN_BURST="2000")
    supervisor = psutil.Process(cluster.pid)
    for number in killings(cluster, kills):
        if number == warm_up:
            size, files = supervisor.memory_full_info().uss, count_descriptors(cluster.pid)

    grown = supervisor.memory_full_info().uss - size
    record_property("grown_bytes", grown)
    print(f"{kills - warm_up} respawns: the supervisor grew by {grown / 1e6:.2f} MB")
    wait_until(
        lambda: count_descriptors(cluster.pid) <= files, f"{files} open descriptors"
    )  # it looks into /proc now and then
    assert grown <= 1_000_000
    assert supervisor.status() != psutil.STATUS_ZOMBIE
    assert [each for each in supervisor.children(recursive=True) if each.status() == psutil.STATUS_ZOMBIE] == []
