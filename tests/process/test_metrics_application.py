"""The application's own metrics on /metrics of a real cluster, whatever they are and whoever dies."""

from __future__ import annotations

import os
import signal

from prometheus_client.metrics_core import Metric

from tests.kit import wait_until
from tests.stage import Stage


def test_every_type_of_metric_is_there_with_nothing_to_configure(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "other", "-c", "1", app="tests.apps.shop")
    cluster.wait_ready(2)
    stage.push("sell", "a", 2.0)
    wait_until(lambda: cluster.metric('shop_all{slot="0"}') == 2, "the first slot's")
    stage.push("sell", "a", 3.0, queue="other")
    # Metric by metric: a worker may be looked at in the middle of a job.
    last = {("shop_size_count",): 2, ("shop_took_seconds_count",): 2, ("shop_door", "1", "shut"): 1}
    last |= {(f"shop_{mode}",): value for mode, value in (("sum", 5), ("livesum", 5), ("mostrecent", 3))}
    last |= {(f"shop_{mode}", "1"): 3 for mode in ("all", "liveall")}
    wait_until(lambda: last.items() <= shop(cluster.metric_families()).items(), f"the figures of both slots, {last}")

    families = cluster.metric_families()
    values = shop(families)
    assert [values["shop_size_bucket", bound] for bound in ("1.0", "5.0", "+Inf")] == [0, 2, 2]
    assert (values["shop_size_count",], values["shop_size_sum",]) == (2, 5)
    assert (values["shop_took_seconds_count",], values["shop_took_seconds_sum",]) == (2, 5)
    assert [values[f"shop_{mode}", slot] for mode in ("all", "liveall") for slot in "01"] == [2, 3, 2, 3]
    one_of_each = [values[f"shop_{mode}",] for mode in ("sum", "livesum", "min", "max", "mostrecent")]
    assert one_of_each == [5, 5, 2, 3, 3]
    assert values["shop_info", "Rome"] == 1
    assert (values["shop_door", "1", "shut"], values["shop_door", "1", "open"]) == (1, 0)
    exemplars = {
        s.name: s.exemplar.labels for n in ("shop_sold_total", "shop_size") for s in families[n].samples if s.exemplar
    }
    assert exemplars == {"shop_sold_total": {"trace_id": "t1"}, "shop_size_bucket": {"trace_id": "t2"}}


def shop(families: dict[str, Metric]) -> dict[tuple[str, ...], float]:
    """Return the application's samples: their names and the values of their labels → value."""
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for name, family in families.items()
        if name.startswith("shop")
        for sample in family.samples
    }


def test_gauges_of_the_dead_go_and_their_totals_stay(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "other", "-c", "1", app="tests.apps.shop")
    pids = cluster.wait_ready(2)
    for queue, value in (("default", 2.0), ("other", 3.0)):
        stage.push("sell", "a", value, queue=queue)
    wait_until(lambda: cluster.metric('shop_sold_total{thing="a"}') == 2, "the sum over both slots")
    wait_until(lambda: cluster.metric("shop_sum") == 5, "the gauges of both slots")
    wait_until(lambda: cluster.metric("shop_size_count") == 2, "the sizes of both slots")

    os.kill(pids[0], signal.SIGKILL)
    cluster.wait_for("child_ready", slot=0, count=2)

    # The replacement has the metrics as they are before a job has run.
    wait_until(lambda: cluster.metric("shop_sum") == 3, "the gauges to be those of the living")
    assert cluster.metric('shop_sold_total{thing="a"}') == 2
    assert cluster.metric("shop_size_count") == 2
    assert cluster.metric('shop_all{slot="1"}') == 3


def test_a_collector_that_hangs_or_fails_harms_only_its_own_figures(stage: Stage) -> None:
    app = stage.write_application("""
        import threading
        from kiqcluster import job
        from prometheus_client import Counter, REGISTRY
        from prometheus_client.registry import Collector

        ran = Counter("shop_ran", "x")

        class Bad(Collector):
            def describe(self):
                return []

        class Hanging(Bad):
            def collect(self):
                threading.Event().wait()

        class Failing(Bad):
            def collect(self):
                raise OSError("no database")

        REGISTRY.register(Failing())

        @job()
        def sell(hang):
            ran.inc()
            if hang:
                REGISTRY.register(Hanging())
    """)
    cluster = stage.run_cluster("default", "-c", "1", app=app)
    cluster.wait_ready()
    stage.push("sell", False)
    wait_until(lambda: cluster.metric("shop_ran_total") == 1, "the others' figures")
    stage.push("sell", True)
    done = 'sidekiq_jobs_completion_seconds_count{job_status="done",queue="default",worker="sell"}'
    wait_until(lambda: cluster.metric(done) == 2, "the second job")

    beat = 'kiqcluster_child_last_beat_timestamp_seconds{slot="0"}'
    before = cluster.metric(beat)
    stage.push("sell", False)
    wait_until(lambda: cluster.metric(done) == 3, "another job")
    wait_until(lambda: cluster.metric(beat) > before, "another beat")
    assert cluster.readiness() == (200, "")
    assert len(cluster.seen("collector_failed")) == 1
    assert cluster.stop() == 0


def test_what_the_application_counted_last_survives_its_orderly_end(stage: Stage) -> None:
    app = stage.write_application("""
        from kiqcluster import job
        from prometheus_client import Counter
        from tests.apps.basic import stubborn

        ran = Counter("shop_ran", "x")

        @job()
        def last(word):
            stubborn(word)
            ran.inc()
    """)
    cluster = stage.run_cluster("default", "-c", "1", app=app)
    pid = cluster.wait_ready()[0]
    stage.push("last", "a")
    stage.wait_noted("began a")
    os.kill(pid, signal.SIGTERM)
    stage.release()

    cluster.wait_for("child_died", child=pid)

    assert cluster.metric("shop_ran_total") == 1
