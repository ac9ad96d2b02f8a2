"""Metrics of the cluster: frames of real snapshots in, a page out, and no step back whatever children do."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator

import pytest
from prometheus_client import Counter, Enum, Gauge, Histogram, Info
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from kiqcluster.ipc.negotiation import OPENMETRICS, TEXT
from kiqcluster.supervisor.metrics import page as module
from kiqcluster.supervisor.metrics.aggregate import Series
from tests.metrics_stage import Stage


@pytest.fixture
def stage() -> Stage:
    """A cluster that nobody has reported to."""
    return Stage()


FAILED = 'sidekiq_jobs_failed_total{worker="Mail"}'


class TestTotals:
    def test_counters_are_summed_over_slots_without_a_slot_label(self, stage: Stage) -> None:
        stage.worker(0).count(3)
        stage.worker(1).count(4)

        assert stage.shown()[FAILED] == 7

    def test_a_newer_value_of_a_child_takes_the_place_of_the_older(self, stage: Stage) -> None:
        worker = stage.worker()
        worker.count(3)
        worker.count(5)

        assert stage.shown()[FAILED] == 5

    def test_what_a_dead_child_counted_stays(self, stage: Stage) -> None:
        worker = stage.worker()
        worker.count(3)
        worker.die()
        assert stage.shown()[FAILED] == 3

        stage.worker().count(1)
        assert stage.shown()[FAILED] == 4

    def test_folding_twice_or_what_was_never_there_changes_nothing(self, stage: Stage) -> None:
        worker = stage.worker()
        worker.count(3)
        for each in (worker, worker, stage.worker(), stage.worker(7)):
            each.die()

        assert stage.shown()[FAILED] == 3

    def test_histograms_stay_whole(self, stage: Stage) -> None:
        for _ in range(2):
            worker = stage.worker()
            Histogram("size", "of mails", buckets=[1, 5], registry=worker.registry).observe(2.5)
            worker.report()
            worker.die()

        shown = stage.shown()
        assert [shown[f'size_bucket{{le="{bound}"}}'] for bound in ("1.0", "5.0", "+Inf")] == [0, 2, 2]
        assert (shown["size_count"], shown["size_sum"]) == (2, 5.0)

    def test_a_thousand_respawns_leave_the_same_series_and_no_source(self, stage: Stage) -> None:
        worker = stage.worker()
        worker.count(1)
        before = stage.shown()

        for _ in range(1_000):
            worker.die()
            worker = stage.worker()
            worker.count(1)

        after = stage.shown()
        assert after.keys() == before.keys()
        assert after[FAILED] == 1_001
        assert len(stage.metrics._sources) == 1

    def test_respawns_that_nobody_scrapes_leave_no_row(self, stage: Stage) -> None:
        def come_and_go() -> int:
            """Have a worker with a counter and a gauge report and die; return how many rows there are in memory."""
            worker = stage.worker()
            worker.gauge(5, "pool")
            worker.count(1)
            worker.die()
            stage.catch_up()
            gc.collect()
            return sum(issubclass(type(each), Series) for each in gc.get_objects())  # no lazy object is asked

        first = come_and_go()

        assert [come_and_go() for _ in range(3)] == [first] * 3
        assert "pool" not in stage.page()

    def test_no_sum_goes_back_by_a_last_digit_when_children_die(self, stage: Stage) -> None:
        workers = [stage.worker(slot) for slot in range(7)]
        for number, worker in enumerate(workers):
            worker.count(0.1 * (number + 1) + 1e9 * (number % 2))
        shown = [stage.shown()[FAILED]]

        for worker in workers:
            worker.die()
            shown.append(stage.shown()[FAILED])

        assert len(set(shown)) == 1

    def test_a_counter_that_the_application_resets_goes_on(self, stage: Stage) -> None:
        worker = stage.worker()
        for value in (5, 2, 3):
            worker.count(value)

        assert stage.shown()[FAILED] == 8

    @pytest.mark.parametrize("value", [math.inf, math.nan, 1.7e308])
    def test_counters_beyond_all_numbers_break_no_scrape(self, stage: Stage, value: float) -> None:
        workers = [stage.worker(slot) for slot in range(2)]
        for worker in workers:
            worker.count(value)
        assert FAILED in stage.shown()
        for worker in workers:
            worker.die()

        assert repr(stage.shown()[FAILED]) == ("nan" if value != value else "inf")


class TestGauges:
    def test_an_applications_gauge_has_the_slot_as_label(self, stage: Stage) -> None:
        for slot in (0, 1):
            worker = stage.worker(slot)
            Gauge("pool", "x", ["db"], registry=worker.registry).labels("main").set(slot + 5.0)
            worker.report()

        assert stage.shown()['pool{db="main",slot="0"}'] == 5
        assert stage.shown()['pool{db="main",slot="1"}'] == 6

    def test_its_own_label_of_that_name_is_kept_under_another(self, stage: Stage) -> None:
        worker = stage.worker(1)
        Gauge("pool", "x", ["slot"], registry=worker.registry).labels("a").set(5)
        worker.report()

        assert stage.shown()['pool{exported_slot="a",slot="1"}'] == 5

    @pytest.mark.parametrize(
        ("mode", "expected"),
        [
            ("sum", 9),
            ("livesum", 9),
            ("min", 2),
            ("livemin", 2),
            ("max", 4),
            ("livemax", 4),
            ("mostrecent", 2),
            ("livemostrecent", 2),
        ],
    )
    def test_its_multiprocess_mode_says_what_becomes_of_several(self, stage: Stage, mode: str, expected: float) -> None:
        gauges = []
        workers = [stage.worker(slot) for slot in range(3)]
        for worker in workers:
            gauges.append(Gauge("pool", "x", registry=worker.registry, multiprocess_mode=mode))  # type: ignore[arg-type]
        for index, value in ((2, 4), (1, 3), (0, 2)):
            gauges[index].set(value)
            workers[index].report()

        assert stage.shown()["pool"] == expected

    def test_the_most_recent_is_whoever_has_set_it_last(self, stage: Stage) -> None:
        first, second = stage.worker(0), stage.worker(1)
        shown = []
        for worker, value in ((first, 1), (second, 2), (first, 3)):
            worker.gauge(value, "pool", "mostrecent")
            shown.append(stage.shown()["pool"])

        assert shown == [1, 2, 3]

    @pytest.mark.parametrize("mode", ["all", "sum", "min", "max", "mostrecent"])
    def test_those_of_a_dead_child_go(self, stage: Stage, mode: str) -> None:
        worker = stage.worker()
        worker.gauge(5, "pool", mode)
        assert any(series.startswith("pool") for series in stage.shown())
        worker.die()

        assert not any(series.startswith("pool") for series in stage.shown())
        assert "pool" not in stage.page()

    def test_in_a_rolling_restart_the_younger_process_speaks_for_its_slot(self, stage: Stage) -> None:
        old, young = stage.worker(0), stage.worker(0)
        old.gauge(1, "pool")
        young.gauge(2, "pool")
        old.gauge(3, "pool")
        assert stage.shown()['pool{slot="0"}'] == 2
        young.die()

        assert stage.shown()['pool{slot="0"}'] == 3

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_values_that_are_no_numbers_do_not_break_a_scrape(self, stage: Stage, value: float) -> None:
        stage.worker().gauge(value, "odd")

        assert repr(stage.shown()['odd{slot="0"}']) == repr(value)


class TestOtherTypes:
    def test_an_info_is_there_once(self, stage: Stage) -> None:
        for slot in (0, 1):
            worker = stage.worker(slot)
            Info("shop", "x", registry=worker.registry).info({"version": "1.2", "note": 'a "b"\n\\c'})
            worker.report()

        assert stage.shown()['shop_info{note="a \\"b\\"\\n\\\\c",version="1.2"}'] == 1

    def test_an_enum_tells_the_state_of_each_slot(self, stage: Stage) -> None:
        worker = stage.worker(1)
        Enum("gate", "x", states=["open", "shut"], registry=worker.registry).state("shut")
        worker.report()

        shown = stage.shown()
        assert (shown['gate{gate="open",slot="1"}'], shown['gate{gate="shut",slot="1"}']) == (0, 1)

    def test_exemplars_are_there_for_who_asks_for_openmetrics(self, stage: Stage) -> None:
        worker = stage.worker()
        Counter("sold", "x", registry=worker.registry).inc(2, {"trace_id": "abc"})
        Histogram("size", "x", buckets=[1], registry=worker.registry).observe(0.5, {"trace_id": "def"})
        worker.report()
        page = stage.page(OPENMETRICS)

        exemplars = {
            sample.name: (sample.exemplar.labels, sample.exemplar.value)
            for family in parse_openmetrics(page)
            for sample in family.samples
            if sample.exemplar
        }
        assert exemplars == {"sold_total": ({"trace_id": "abc"}, 2.0), "size_bucket": ({"trace_id": "def"}, 0.5)}
        assert "trace_id" not in stage.page(TEXT)


class TestReleases:
    """Old and new code report side by side while a roll goes on."""

    def test_a_histogram_with_other_buckets_takes_the_place_of_the_old_one(self, stage: Stage) -> None:
        old, new = stage.worker(0), stage.worker(1)
        for worker, buckets in ((old, [1, 5]), (new, [2])):
            Histogram("size", "x", buckets=buckets, registry=worker.registry).observe(0.5)
            worker.report()
        old.report()
        old.die()

        lines = [line for line in stage.page().splitlines() if line.startswith("size")]
        assert lines == ['size_bucket{le="2.0"} 1.0', 'size_bucket{le="+Inf"} 1.0', "size_count 1.0", "size_sum 0.5"]

    def test_a_metric_of_another_type_takes_the_place_of_the_old_one(self, stage: Stage) -> None:
        old, new = stage.worker(0), stage.worker(1)
        Counter("things", "x", registry=old.registry).inc(5)
        Gauge("things", "x", registry=new.registry, multiprocess_mode="sum").set(3)
        for worker in (old, new, old):
            worker.report()
        old.die()

        assert {series: value for series, value in stage.shown().items() if "things" in series} == {"things": 3}

    def test_what_the_application_removes_is_gone_once_nobody_has_it(self, stage: Stage) -> None:
        counters = []
        workers = [stage.worker(slot) for slot in (0, 1)]
        for worker in workers:
            counter = Counter("sold", "x", ["thing"], registry=worker.registry)
            counter.labels("a").inc(2)
            counters.append(counter)
            worker.report()

        counters[0].remove("a")
        workers[0].report()
        assert stage.shown()['sold_total{thing="a"}'] == 4
        counters[1].clear()
        workers[1].report()
        assert "sold" not in stage.page()


class TestLimits:
    def test_no_child_speaks_for_the_cluster(self, stage: Stage) -> None:
        stage.worker().gauge(1, "kiqcluster_quiet")

        assert stage.shown()["kiqcluster_quiet"] == 0
        assert stage.page().count("# TYPE kiqcluster_quiet ") == 1

    def test_a_name_that_is_ours_is_refused_aloud_and_once(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        for value in (1, 2):
            stage.worker().gauge(value, "kiqcluster_sold")
        stage.worker().gauge(1, "sold")
        assert "kiqcluster_sold" not in stage.page()
        assert stage.refused == ["kiqcluster_sold"]

        for number in range(2 * module.MAX_REFUSED_NAMES):
            stage.worker().gauge(1, f"kiqcluster_{number}")
        stage.catch_up()
        assert len(stage.refused) == module.MAX_REFUSED_NAMES

    def test_labels_without_end_fill_no_memory(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "MAX_SERIES", 10)
        worker = stage.worker()
        counter = Counter("sold", "x", ["customer"], registry=worker.registry)
        for number in range(30):
            counter.labels(str(number)).inc()
        worker.report()
        worker.count(1)

        shown = stage.shown()
        assert sum(series.startswith("sold_total") for series in shown) == 10
        assert shown["kiqcluster_series_refused_total"] == 21

    def test_room_that_is_given_back_is_used_again(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "MAX_SERIES", 1)
        for value in (1, 2, 3):
            worker = stage.worker()
            worker.gauge(value, f"pool_{value}")
            assert stage.shown()[f'pool_{value}{{slot="0"}}'] == value
            worker.die()
            stage.catch_up()

    def test_a_page_after_a_death_tells_of_it(self, stage: Stage) -> None:
        """Whoever scrapes waits for what has come in before."""
        worker = stage.worker()
        worker.count(3)
        steps = stage.metrics.scrape(TEXT)
        next(steps)
        assert stage.metrics.is_behind
        stage.catch_up()
        assert not stage.metrics.is_behind

        with pytest.raises(StopIteration) as end:
            while True:
                next(steps)
        assert FAILED in end.value.value.decode()

    def test_catching_up_stops_when_its_time_is_over(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "SERIES_PER_STEP", 10)
        worker = stage.worker()
        counter = Counter("sold", "x", ["customer"], registry=worker.registry)
        for number in range(100):
            counter.labels(str(number)).inc()
        worker.report()

        turns = 0
        while stage.metrics.is_behind:
            stage.metrics.catch_up(stage.clock.monotonic())
            turns += 1
        assert turns > 10


@pytest.mark.parametrize(
    ("form", "parse"), [(TEXT, parse_text), (OPENMETRICS, parse_openmetrics)], ids=["text", "openmetrics"]
)
def test_prometheus_own_parser_reads_every_type(
    stage: Stage, form: str, parse: Callable[[str], Iterator[object]]
) -> None:
    worker = stage.worker(3)
    registry = worker.registry
    Counter("sold", 'help with "quotes", \\ and\nlines', ["thing"], registry=registry).labels('a"\\\n').inc()
    Gauge("pool", "x", registry=registry).set(-1.5)
    Histogram("size", "x", registry=registry).observe(3)
    Info("shop", "x", registry=registry).info({"a": "b"})
    Enum("gate", "x", states=["open", "shut"], registry=registry)
    worker.report()

    families = {family.name: family for family in parse(stage.page(form))}  # type: ignore[attr-defined]

    assert families["sold"].samples[0].labels == {"thing": 'a"\\\n'}
    assert families["sold"].documentation == 'help with "quotes", \\ and\nlines'
    assert families["size"].type == "histogram"
    assert families["pool"].samples[0].labels == {"slot": "3"}
    assert {"gate", "kiqcluster_recovered_units"} <= families.keys()
