"""The execution metrics that a worker writes: each run once, whatever becomes of commands and replies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kiqcluster.api.execution_metrics import ExecutionMetrics
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.process.runtime import Runtime, Setup
from kiqcluster.process.tallies import EXECUTION_BUCKETS, Executions
from kiqcluster.store import Store
from kiqcluster.store.scripts import ONCE
from kiqcluster.worker.metrics.execution_metrics import BATCH_JOBS, ExecutionMetricsWriter
from kiqcluster.worker.run.run_report import UNREGISTERED
from tests.kit import ManualClock, RedisServer, wait_until
from tests.proxy import Fault, Proxy

RECORD = "kiq:executions:me"


class Bench:
    """A writer whose jobs run when the test says so, on a connection that the test may break."""

    def __init__(self, near: Store, far: Store, setup: Setup) -> None:
        self.near = near
        self.far = far
        self.clock = ManualClock(1_795_174_799.0)  # 2026-11-20 11:39:59 UTC
        self.ran: dict[str, Executions] = {}
        self.refusals: list[str] = []
        events = Events()
        events.listen(lambda event, fields: self.refusals.append(str(fields["error"])))
        self.runtime = Runtime(Config(), far, setup, events, self.clock)
        self.writer = ExecutionMetricsWriter(self.runtime, far.keys, lambda: dict(self.ran), "me")

    def run(self, name: str = "Mail", times: int = 1, ms: int = 1) -> None:
        before = self.ran.get(name, Executions())
        slots = (before.buckets[0] + times, *before.buckets[1:])
        self.ran[name] = Executions(before.processed + times, before.failed, before.ms + times * ms, slots)

    def flush(self) -> None:
        with self.far.borrowed() as connection:
            self.writer.flush(connection)

    def counted(self, name: str = "Mail") -> int:
        """Return how many runs Redis shows, in whichever minute; the histograms must agree."""
        job = ExecutionMetrics(store=self.near, clock=self.clock).for_job(name)
        assert sum(job.histogram) == job.processed
        return job.processed


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    with Proxy(("127.0.0.1", redis_server.port)) as proxy:
        yield proxy


@pytest.fixture
def bench(store: Store, proxy: Proxy, setup: Setup) -> Iterator[Bench]:
    store.call("SCRIPT", "LOAD", ONCE.text)
    far = Store(proxy.url)
    yield Bench(store, far, setup)
    far.close()


def test_each_run_counts_in_the_minute_in_which_it_is_written(bench: Bench, store: Store) -> None:
    bench.run(times=3)
    bench.flush()
    bench.clock.time += 60
    bench.run(times=2, ms=5)
    bench.flush()
    bench.flush()

    assert store.call("HGETALL", "j|261120|11:39") == [b"Mail|ms", b"3", b"Mail|p", b"3"]
    assert store.call("HGETALL", "j|261120|11:40") == [b"Mail|ms", b"10", b"Mail|p", b"2"]
    assert store.call("HGETALL", "j|261120|11:4") == store.call("HGETALL", "j|20261120|11:40")
    assert store.call("GET", "h|Mail-20-11:39") == store.call("GET", "Mail-20-11:39") == b"\0\3"


def test_they_are_kept_as_long_as_ruby_keeps_them(bench: Bench, store: Store) -> None:
    bench.run()
    bench.flush()

    ttls = {key.decode(): store.call("TTL", key) for key in store.call("KEYS", "*")}

    assert ttls.pop("j|261120|11:3") == pytest.approx(259_200, abs=5)
    assert ttls.pop(RECORD) == pytest.approx(3_600, abs=5)
    assert ttls == pytest.approx(dict.fromkeys(ttls, 28_800), abs=5)
    assert set(ttls) == {
        *("j|261120|11:39", "j|20261120|11:39", "h|Mail-20-11:39", "Mail-20-11:39"),
        "kiq:executed:261120:11:39",
    }


def test_a_bucket_that_is_full_stays_full(bench: Bench, store: Store) -> None:
    bench.run(times=70_000)
    bench.flush()

    assert store.call("GET", "h|Mail-20-11:39") == b"\xff\xff"


def test_without_new_runs_redis_is_not_asked(bench: Bench, proxy: Proxy) -> None:
    bench.ran["Mail"] = Executions()

    bench.flush()

    assert proxy.accepted == 0


def test_jobs_that_end_meanwhile_do_not_keep_it(bench: Bench) -> None:
    """It writes what was counted when it began: on a busy worker there is always more."""

    def ran() -> dict[str, Executions]:
        bench.run()
        return dict(bench.ran)

    bench.writer = ExecutionMetricsWriter(bench.runtime, bench.far.keys, ran, "me")

    bench.flush()

    assert bench.counted() == 1


def test_any_number_of_jobs_is_written(bench: Bench) -> None:
    for number in range(2 * BATCH_JOBS + 1):
        bench.run(f"Job{number}")

    bench.flush()

    assert len(ExecutionMetrics(store=bench.near, clock=bench.clock).top_jobs()) == 2 * BATCH_JOBS + 1


def test_names_that_nobody_registered_are_left_out(bench: Bench, store: Store) -> None:
    bench.run(UNREGISTERED)

    bench.flush()

    assert store.call("KEYS", "*") == []


class TestFaults:
    def test_what_could_not_be_sent_is_written_later_and_once(self, bench: Bench, proxy: Proxy) -> None:
        bench.run(times=2)
        with proxy.away():
            bench.flush()
            bench.run(times=3)
            bench.flush()
        assert bench.counted() == 0

        bench.flush()
        bench.flush()

        assert bench.counted() == 5

    @pytest.mark.parametrize("times", [1, 3])
    def test_what_ran_without_an_answer_runs_no_second_time(self, bench: Bench, proxy: Proxy, times: int) -> None:
        bench.run(times=2)
        fault = proxy.lose_replies(ONCE.digest.encode(), times)
        for _ in range(times):
            bench.flush()
        assert (fault.hits, bench.counted()) == (times, 2)

        bench.run(times=3)
        bench.flush()

        assert bench.counted() == 5

    def test_what_was_cut_off_on_its_way_is_sent_again(self, bench: Bench, proxy: Proxy) -> None:
        bench.run(times=2)
        proxy.halve(ONCE.digest.encode())
        bench.flush()
        assert bench.counted() == 0

        bench.flush()

        assert bench.counted() == 2

    def test_what_arrives_after_it_was_given_up_changes_nothing(self, bench: Bench, proxy: Proxy, store: Store) -> None:
        bench.run(times=2)
        fault: Fault = proxy.hold(ONCE.digest.encode())
        bench.flush()
        bench.run(times=3)
        bench.flush()
        assert bench.counted() == 5

        before = store.call("INFO", "commandstats").decode()
        proxy.release(fault)
        wait_until(lambda: _calls(store.call("INFO", "commandstats").decode()) > _calls(before), "it to arrive")

        assert bench.counted() == 5

    def test_a_minute_that_was_tried_keeps_its_runs(self, bench: Bench, proxy: Proxy, store: Store) -> None:
        bench.run()
        proxy.lose_replies(ONCE.digest.encode())
        bench.flush()

        bench.clock.time += 600
        bench.run()
        bench.flush()

        assert [store.call("HGET", f"j|261120|11:{minute}", "Mail|p") for minute in (39, 49)] == [b"1", b"1"]

    def test_a_server_that_lost_its_data_gets_what_it_has_not(self, bench: Bench, proxy: Proxy, store: Store) -> None:
        bench.run(times=2)
        proxy.lose_replies(ONCE.digest.encode())
        bench.flush()
        store.call("FLUSHALL")

        bench.flush()

        assert bench.counted() == 2

    def test_a_full_server_refuses_the_whole_and_that_is_said_once(self, bench: Bench, store: Store) -> None:
        bench.run()
        store.call("CONFIG", "SET", "maxmemory", "1")
        try:
            for _ in range(3):
                bench.flush()
        finally:
            store.call("CONFIG", "SET", "maxmemory", "0")
        assert [each.split()[0] for each in bench.refusals] == ["OOM"]
        assert store.call("KEYS", "*") == []

        bench.flush()

        assert bench.counted() == 1

    def test_a_key_that_is_no_hash_costs_its_own_figures(self, bench: Bench, store: Store) -> None:
        store.call("SET", "j|261120|11:39", "mine")
        bench.run()
        bench.flush()
        bench.flush()

        assert store.call("GET", "j|261120|11:39") == b"mine"
        assert store.call("HGET", "j|20261120|11:39", "Mail|p") == b"1"
        assert [each.split()[0] for each in bench.refusals] == ["WRONGTYPE"]


class TestFinish:
    def test_it_writes_the_rest_and_leaves_no_record(self, bench: Bench, store: Store) -> None:
        bench.run()
        bench.flush()
        bench.run()

        with bench.far.borrowed() as connection:
            bench.writer.finish(connection)

        assert bench.counted() == 2
        assert store.call("EXISTS", RECORD) == 0

    def test_a_batch_without_an_answer_keeps_its_record_for_it_may_arrive_yet(
        self, bench: Bench, proxy: Proxy, store: Store
    ) -> None:
        bench.run()
        proxy.lose_replies(ONCE.digest.encode())

        with bench.far.borrowed() as connection:
            bench.writer.finish(connection)

        assert store.call("EXISTS", RECORD) == 1


def _calls(stats: str) -> int:
    """Return how many scripts a server has run by their digest."""
    (line,) = [line for line in stats.splitlines() if line.startswith("cmdstat_evalsha:")]
    return int(line.partition("calls=")[2].partition(",")[0])


def test_what_is_written_is_what_the_query_reads(bench: Bench) -> None:
    slots = tuple(range(1, len(EXECUTION_BUCKETS) + 2))
    bench.ran["Mail"] = Executions(sum(slots) + 4, 4, 12_345, slots)

    bench.flush()

    job = ExecutionMetrics(store=bench.near, clock=bench.clock).for_job("Mail", minutes=1)
    assert (job.processed, job.failed, job.ms, job.histogram) == (sum(slots) + 4, 4, 12_345, slots)
