"""The exporter: what its gauges say of a real Redis, how seldom it looks, and what it does while Redis is away."""

from __future__ import annotations

import gzip
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kiqcluster.ctl.exporter.exporter import Exporter
from kiqcluster.errors import ExitCode, StoreError
from kiqcluster.features.strikes import Strike
from kiqcluster.store import Store
from kiqcluster.store.scripts import RATE, Call, run_script
from tests import forkserver
from tests.fake_supervisor import publish
from tests.kit import ROOT, TIMEOUT_SECONDS, ManualClock, RedisServer, free_port, http_get, require, wait_until
from tests.redis.web.site import CountingStore

NOW = ManualClock().time


class Clock(ManualClock):
    """Its wall clock stands still: jobs do not age while the exporter's looks do."""

    def now(self) -> float:
        return NOW


class Bench:
    """An exporter whose clock the test moves."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.clock = Clock()
        self.errors: list[StoreError | None] = []
        self.asked = 0
        self.exporter = Exporter(store, self.clock, 5.0, self.errors.append)

    def scrape(self) -> dict[str, float]:
        """Return the samples of a new look, each as it is written on the page."""
        self.clock.time += 5
        return read(self.exporter.page("", "")[1].decode())

    def looks(self) -> int:
        """Return how often the counters were read."""
        found = re.search(rb"cmdstat_get:calls=(\d+)", self.store.call("INFO", "commandstats"))
        return 0 if found is None else int(found[1]) // 2

    def reads(self) -> int:
        """Return how often the server has read from clients, but for this."""
        found = re.search(rb"total_reads_processed:(\d+)", self.store.call("INFO", "stats"))
        assert found is not None
        self.asked += 1
        return int(found[1]) - self.asked

    def push(self, queue: str, *jobs: bytes) -> None:
        self.store.pipeline([("SADD", "queues", queue), ("LPUSH", f"queue:{queue}", *jobs)])


def read(page: str) -> dict[str, float]:
    samples = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            samples[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return samples


def job(**times: float) -> bytes:
    return json.dumps({"class": "X", "args": [], "jid": "a", **times}).encode()


@pytest.fixture
def bench(store: Store) -> Bench:
    """An exporter of an empty database."""
    return Bench(store)


class TestQueues:
    def test_size_latency_and_age_are_those_of_the_job_that_is_fetched_next(self, bench: Bench) -> None:
        bench.push("default", job(created_at=NOW - 90, enqueued_at=NOW - 30), job(created_at=NOW, enqueued_at=NOW))

        samples = bench.scrape()

        assert samples["sidekiq_queue_size{name=default}"] == 2
        assert samples["sidekiq_queue_latency_seconds{name=default}"] == pytest.approx(30, abs=0.01)
        assert samples["kiqcluster_queue_oldest_job_age_seconds{name=default}"] == pytest.approx(90, abs=0.01)
        assert samples["sidekiq_default_queue_latency_seconds"] == pytest.approx(30, abs=0.01)
        assert samples["sidekiq_jobs_enqueued_size"] == 2

    def test_a_job_in_the_wake_list_counts_and_comes_first(self, bench: Bench) -> None:
        """The wake list of a fleet that is gone; Ruby's pages do not show it."""
        bench.push("default", job(enqueued_at=NOW))
        bench.store.call("LPUSH", "kiq:wake:default", job(enqueued_at=NOW - 60))

        samples = bench.scrape()

        assert samples["sidekiq_queue_size{name=default}"] == 2
        assert samples["sidekiq_queue_latency_seconds{name=default}"] == pytest.approx(60, abs=0.01)

    @pytest.mark.parametrize("at", [NOW - 30, int((NOW - 30) * 1_000), int(NOW - 30)])
    def test_the_times_of_every_sidekiq_are_read(self, bench: Bench, at: float) -> None:
        bench.push("default", job(enqueued_at=at))

        assert bench.scrape()["sidekiq_queue_latency_seconds{name=default}"] == pytest.approx(30, abs=1)

    @pytest.mark.parametrize("oldest", [b"no JSON", b"[1]", b"null", b"\xff", job(), b'{"enqueued_at":"soon"}'])
    def test_a_job_without_a_time_has_a_size_and_no_latency(self, bench: Bench, oldest: bytes) -> None:
        bench.push("default", oldest)

        samples = bench.scrape()

        assert samples["sidekiq_queue_size{name=default}"] == 1
        assert "sidekiq_queue_latency_seconds{name=default}" not in samples
        assert "sidekiq_default_queue_latency_seconds" not in samples

    def test_times_that_lie_ahead_are_no_negative_latency(self, bench: Bench) -> None:
        bench.push("default", job(created_at=NOW + 900, enqueued_at=NOW + 900))

        assert bench.scrape()["sidekiq_queue_latency_seconds{name=default}"] == 0

    def test_an_empty_queue_has_zeros(self, bench: Bench) -> None:
        bench.store.call("SADD", "queues", "low")

        samples = bench.scrape()

        assert samples["sidekiq_queue_size{name=low}"] == 0
        assert samples["sidekiq_queue_latency_seconds{name=low}"] == 0

    def test_paused_queues_are_told(self, bench: Bench) -> None:
        bench.store.call("SADD", "queues", "low", "high")
        bench.store.call("SADD", "paused", "low")

        samples = bench.scrape()

        assert samples["sidekiq_queue_paused{name=low}"] == 1
        assert samples["sidekiq_queue_paused{name=high}"] == 0

    def test_queues_that_nobody_listens_to_are_told(self, bench: Bench) -> None:
        bench.push("orphaned", job(enqueued_at=NOW))
        bench.push("ours", job(enqueued_at=NOW))
        bench.push("rubys", job(enqueued_at=NOW))
        publish(bench.store, "app-1:1:a", queues=["ours", "fresh"])
        publish(bench.store, "rails-1:1:a", queues=["rubys"], labels=[])

        samples = bench.scrape()

        unlistened = {name: value for name, value in samples.items() if name.startswith("kiqcluster_queue_unlistened")}
        assert unlistened == {
            "kiqcluster_queue_unlistened{name=orphaned}": 1,
            "kiqcluster_queue_unlistened{name=ours}": 0,
            "kiqcluster_queue_unlistened{name=rubys}": 0,
            "kiqcluster_queue_unlistened{name=fresh}": 0,  # listened to before the first push
        }

    def test_names_with_every_character_are_escaped(self, bench: Bench) -> None:
        name = 'a"b\\c\né'
        bench.push(name, job(enqueued_at=NOW))

        assert bench.scrape()[f"sidekiq_queue_size{{name={name}}}"] == 1


class TestSets:
    def test_sizes_and_how_late_the_poller_is(self, bench: Bench) -> None:
        bench.store.call("ZADD", "schedule", NOW - 60, "a", NOW - 5, "b", NOW + 900, "c")
        bench.store.call("ZADD", "retry", NOW + 900, "d")
        bench.store.call("ZADD", "dead", 5, "e", 6, "f")

        samples = bench.scrape()

        sizes = [samples[f"sidekiq_jobs_{name}_size"] for name in ("scheduled", "retry", "dead")]
        assert sizes == [3, 1, 2]
        assert samples["sidekiq_schedule_set_processing_delay_seconds"] == pytest.approx(60, abs=0.01)
        assert samples["sidekiq_schedule_set_backlog_size"] == 2
        assert samples["sidekiq_retry_set_processing_delay_seconds"] == 0
        assert samples["sidekiq_retry_set_backlog_size"] == 0

    def test_counters_are_sidekiqs(self, bench: Bench) -> None:
        bench.store.call("SET", "stat:processed", 12)
        bench.store.call("SET", "stat:failed", 3)

        samples = bench.scrape()

        assert (samples["sidekiq_jobs_processed_total"], samples["sidekiq_stat_failed_total"]) == (12, 3)

    def test_processes_and_what_they_run(self, bench: Bench) -> None:
        publish(bench.store, "app-1:1:a", busy=3)
        publish(bench.store, "rails-1:1:a", busy=2, labels=[])
        bench.store.call("SADD", "processes", "gone:1:a")

        samples = bench.scrape()

        assert (samples["sidekiq_processes_size"], samples["sidekiq_workers_size"]) == (2, 5)


class TestGuarantees:
    def test_each_strike_in_force_has_its_count(self, bench: Bench) -> None:
        mine, all_sevens = Strike("3fa9c1", "Mail", "drop", NOW + 60), Strike("88b1d0", "", "defer", NOW + 60, 5)
        ended = Strike("000000", "Mail", "drop", NOW)
        for strike in (mine, all_sevens, ended):
            bench.store.call("HSET", bench.store.keys.strikes, strike.id, strike.encoded())
        bench.store.call("HSET", bench.store.keys.strikes, "broken", "{")
        bench.store.call("HSET", bench.store.keys.struck, mine.id, 14, ended.id, 3)

        told = {name: value for name, value in bench.scrape().items() if name.startswith("kiqcluster_struck_jobs")}

        assert told == {
            "kiqcluster_struck_jobs_total{action=drop,strike=3fa9c1,worker=Mail}": 14,
            "kiqcluster_struck_jobs_total{action=defer,strike=88b1d0,worker=}": 0,
        }

    def test_dropped_jobs_and_suspects_are_counted(self, bench: Bench) -> None:
        bench.store.call("ZADD", bench.store.keys.dropped, NOW, job(), NOW, job(created_at=NOW))
        bench.store.call("HSET", bench.store.keys.suspects, "a" * 40, 1)

        samples = bench.scrape()

        assert samples["kiqcluster_dropped_jobs_size"] == 2
        assert samples["kiqcluster_suspects_size"] == 1

    def test_the_oldest_tick_that_nobody_has_taken_is_told(self, bench: Bench) -> None:
        bench.store.call("ZADD", bench.store.keys.cron_ticks, NOW - 90, "daily_report", NOW + 60, "cleanup")

        samples = bench.scrape()

        assert samples["kiqcluster_cron_entries"] == 2
        assert samples["kiqcluster_cron_processing_delay_seconds"] == 90

    def test_a_tick_to_come_is_not_late(self, bench: Bench) -> None:
        bench.store.call("ZADD", bench.store.keys.cron_ticks, NOW + 60, "cleanup")

        assert bench.scrape()["kiqcluster_cron_processing_delay_seconds"] == 0

    def test_rate_limits_are_told_with_what_is_used_of_them(self, bench: Bench) -> None:
        for word in ("a", "b", "c"):
            arguments = ("sliding_window", 2, "60.0", 0, word)
            run_script(bench.store, Call(RATE, [bench.store.keys.rate("crm")], arguments))

        samples = bench.scrape()

        labels = "{kind=sliding_window,name=crm}"
        assert [samples[f"kiqcluster_rate_limit_{name}{labels}"] for name in ("used", "max", "promised")] == [2, 2, 1]

    def test_of_very_many_rate_limits_five_hundred_are_told(self, bench: Bench) -> None:
        for number in range(510):
            arguments = ("sliding_window", 2, "60.0", 0, "a")
            run_script(bench.store, Call(RATE, [bench.store.keys.rate(f"crm {number}")], arguments))

        assert sum(name.startswith("kiqcluster_rate_limit_used") for name in bench.scrape()) == 500


class TestBatches:
    def batch(self, bench: Bench, identifier: str, created_at: float, **fields: object) -> None:
        """Write a batch; its place among the others is by its creation."""
        words = [word for pair in {"created_at": created_at, "is_open": "0", **fields}.items() for word in pair]
        bench.store.call("HSET", bench.store.keys.batch(identifier), *words)
        bench.store.call("ZADD", bench.store.keys.batches, created_at, identifier)

    def told(self, bench: Bench) -> dict[str, float]:
        """Return what a new look tells of batches that is not 0."""
        found = bench.scrape().items()
        return {name.removeprefix("kiqcluster_"): value for name, value in found if "batches" in name and value}

    def test_batches_that_have_not_ended_are_counted_by_state(self, bench: Bench) -> None:
        self.batch(bench, "running", NOW - 1)
        self.batch(bench, "open", NOW - 10, is_open="1")
        self.batch(bench, "left", NOW - 3_700, is_open="1")
        self.batch(bench, "cancelled", NOW - 9_000, cancelled_at=NOW)
        self.batch(bench, "complete", NOW - 1, completed_at=NOW)
        bench.store.call("ZADD", bench.store.keys.batches, NOW, "expired")

        assert self.told(bench) == {
            "batches{state=open}": 2,
            "batches{state=running}": 1,
            "batches{state=cancelled}": 1,
            "batches_left_open": 1,
        }

        bench.store.call("HSET", bench.store.keys.batch("left"), "is_open", "0", "completed_at", NOW)
        assert self.told(bench)["batches{state=open}"] == 1

    def test_no_look_reads_more_than_its_share_of_very_many_batches(self, bench: Bench) -> None:
        """All of them are known after some looks; and those that have vanished are not."""
        for number in range(2_300):
            self.batch(bench, f"t{number}", NOW - 10_000 + number, is_open="1" if number < 100 else "0")

        counts = []
        for _ in range(4):
            before = bench.store.call("INFO", "commandstats")
            counts.append(self.told(bench)["batches{state=running}"])
            assert hmgets(bench.store.call("INFO", "commandstats")) - hmgets(before) <= 1_000

        assert counts == [1_000, 1_500, 2_000, 2_200]
        assert self.told(bench)["batches_left_open"] == 100
        bench.store.call("ZREMRANGEBYRANK", bench.store.keys.batches, 0, 2_199)
        for _ in range(2):
            left = self.told(bench)
        assert left == {"batches{state=running}": 100}

    def test_forged_batches_cost_nothing_but_themselves(self, bench: Bench) -> None:
        for number, forged in enumerate(("nan", "-inf", "", "soon", "1e999")):
            self.batch(bench, f"{number}", NOW)
            bench.store.call("HSET", bench.store.keys.batch(f"{number}"), "created_at", forged, "is_open", "1")
        bench.store.call("ZADD", bench.store.keys.batches, NOW, "no hash", NOW, b"\xff\0", NOW, "x" * 100_000)
        bench.store.call("SET", bench.store.keys.batch("no hash"), "x")

        assert self.told(bench) == {"batches{state=open}": 5}


def hmgets(stats: bytes) -> int:
    """Return how often fields of a hash were read."""
    found = re.search(rb"cmdstat_hmget:calls=(\d+)", stats)
    return 0 if found is None else int(found[1])


class TestOddData:
    def test_an_empty_redis_has_zeros(self, bench: Bench) -> None:
        samples = bench.scrape()

        assert samples.pop("kiqcluster_exporter_up") == 1
        assert samples.pop("kiqcluster_exporter_look_seconds") == 0  # the clock stands still
        assert set(samples.values()) == {0}
        assert "sidekiq_jobs_processed_total" in samples

    @pytest.mark.parametrize(
        ("key", "lost"),
        [
            ("queue:default", "sidekiq_queue_size{name=default}"),
            ("kiq:wake:default", "sidekiq_queue_size{name=default}"),
            ("schedule", "sidekiq_jobs_scheduled_size"),
            ("dead", "sidekiq_jobs_dead_size"),
            ("kiq:cron:ticks", "kiqcluster_cron_entries"),
            ("kiq:cron:ticks", "kiqcluster_cron_processing_delay_seconds"),
            ("stat:failed", "sidekiq_stat_failed_total"),
            ("kiq:dropped", "kiqcluster_dropped_jobs_size"),
            ("kiq:batches", "kiqcluster_batches_left_open"),
        ],
    )
    def test_a_key_of_the_wrong_type_costs_its_own_series_only(self, bench: Bench, key: str, lost: str) -> None:
        bench.push("low", job(enqueued_at=NOW))
        bench.store.call("SADD", "queues", "default")
        before = bench.scrape()
        bench.store.call("DEL", key)
        bench.store.call("HSET", key, "a", "b")

        after = bench.scrape()

        assert lost in before
        assert lost not in after
        assert after["kiqcluster_exporter_up"] == 1
        assert after["sidekiq_queue_size{name=low}"] == 1

    def test_ten_thousand_queues_and_large_sets_are_not_read_whole(self, bench: Bench) -> None:
        names = [f"q{number}" for number in range(10_000)]
        bench.store.pipeline([("SADD", "queues", *names), ("LPUSH", "queue:q7", *[job(enqueued_at=NOW)] * 5_000)])
        for at in range(0, 100_000, 10_000):
            words = [word for number in range(at, at + 10_000) for word in (number, f"entry {number}")]
            bench.store.call("ZADD", "schedule", *words)
        bench.store.call("CONFIG", "RESETSTAT")

        samples = bench.scrape()

        assert samples["sidekiq_queue_size{name=q7}"] == 5_000
        assert samples["sidekiq_jobs_scheduled_size"] == samples["sidekiq_schedule_set_backlog_size"] == 100_000
        assert sum(name.startswith("sidekiq_queue_size") for name in samples) == 10_000
        stats = bench.store.call("INFO", "stats").decode()
        sent = int(stats.partition("total_net_output_bytes:")[2].split()[0])
        assert sent < 1_000_000  # bytes; the set alone has more


class TestSharing:
    def test_a_look_at_what_is_known_costs_one_round_trip(self, own_server: RedisServer) -> None:
        """On a server of its own: the end of a connection that another test has left is a read as well."""
        bench = Bench(own_server.store())
        publish(bench.store, "a:1:x", queues=("default", "low"))
        bench.push("default", job(created_at=NOW))
        bench.scrape()

        before = bench.reads()
        known = bench.scrape()
        assert bench.reads() == before + 1

        bench.push("new", job(created_at=NOW))
        new = bench.scrape()
        assert bench.reads() == before + 1 + 1 + 2  # the push; what is new is asked for by itself
        assert new.keys() > known.keys()
        assert new["sidekiq_queue_size{name=new}"] == 1

    def test_scrapes_within_a_few_seconds_share_a_look(self, bench: Bench) -> None:
        first = bench.exporter.page("", "")
        bench.push("default", job(enqueued_at=NOW))

        assert bench.exporter.page("", "") == first
        bench.clock.time += 5
        assert read(bench.exporter.page("", "")[1].decode())["sidekiq_queue_size{name=default}"] == 1

    def test_scrapes_at_the_same_time_share_one_too(self, bench: Bench) -> None:
        before, pages = bench.looks(), list[bytes]()
        threads = [threading.Thread(target=lambda: pages.append(bench.exporter.page("", "")[1])) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT_SECONDS)

        assert bench.looks() == before + 1
        assert len(pages) == 20
        assert len(set(pages)) == 1

    def test_whoever_waits_for_a_redis_that_does_not_answer_waits_once(self, own_server: RedisServer) -> None:
        store = CountingStore(f"unix://{own_server.socket}", timeout=0.5)
        bench = Bench(store)
        bench.exporter.page("", "")
        bench.clock.time += 5
        store.round_trips = 0
        pages: list[bytes] = []

        with own_server.stalled():
            threads = [threading.Thread(target=lambda: pages.append(bench.exporter.page("", "")[1])) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(TIMEOUT_SECONDS)

        assert (len(pages), store.round_trips) == (8, 1)
        assert {read(page.decode())["kiqcluster_exporter_up"] for page in pages} == {0}


class TestOutage:
    def test_while_redis_is_away_it_says_so_and_nothing_else(self, own_server: RedisServer) -> None:
        bench = Bench(own_server.store())
        assert bench.scrape()["kiqcluster_exporter_up"] == 1

        own_server.kill()
        away = [bench.scrape(), bench.scrape()]
        own_server.start()
        back = bench.scrape()

        assert [set(samples) for samples in away] == 2 * [
            {"kiqcluster_exporter_up", "kiqcluster_exporter_look_seconds"}
        ]
        assert [samples["kiqcluster_exporter_up"] for samples in away] == [0, 0]
        assert back["kiqcluster_exporter_up"] == 1
        assert "sidekiq_jobs_processed_total" in back
        assert [each is None for each in bench.errors] == [False, True]  # once each

    def test_a_redis_that_refuses_is_away_too(self, own_server: RedisServer) -> None:
        bench = Bench(own_server.store())
        bench.store.call("CONFIG", "SET", "requirepass", "secret")
        bench.store.close()

        assert bench.scrape()["kiqcluster_exporter_up"] == 0


class TestForms:
    def test_openmetrics_if_the_scraper_takes_it(self, bench: Bench) -> None:
        kind, body = bench.exporter.page("application/openmetrics-text;version=9.9.9, text/plain", "")

        assert kind.startswith("application/openmetrics-text")
        assert body.endswith(b"# EOF\n")

    def test_text_otherwise(self, bench: Bench) -> None:
        weighed = "text/plain;q=0.6, application/openmetrics-text;q=0.5"
        refused = "application/openmetrics-text;q=0"
        for accept in ("", "*/*", "text/plain;version=0.0.4", "nonsense;;;", weighed, refused):
            assert bench.exporter.page(accept, "")[0].startswith("text/plain")

    @pytest.mark.parametrize(
        ("encodings", "is_zipped"),
        [
            ("gzip", True),
            ("deflate, GZIP;q=0.5", True),
            ("", False),
            ("identity", False),
            ("gzip;q=0", False),
            ("gzip; q = 0", False),
        ],
    )
    def test_gzip_if_the_scraper_takes_it(self, bench: Bench, encodings: str, is_zipped: bool) -> None:
        plain = bench.exporter.page("", "")[1]
        body = bench.exporter.page("", encodings)[1]

        assert (gzip.decompress(body) if is_zipped else body) == plain

    def test_promtool_finds_nothing_to_complain_of(self, bench: Bench) -> None:
        promtool = require("promtool", "prometheus")
        bench.push("default", job(created_at=NOW, enqueued_at=NOW))
        publish(bench.store, "app-1:1:a")

        page = bench.exporter.page("", "")[1]
        checked = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True)

        assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_the_page_lists_every_metric_and_no_other(bench: Bench) -> None:
    page = (ROOT / "docs/reference/exporter.md").read_text()
    bench.push("default", job(created_at=NOW, enqueued_at=NOW))

    samples = {re.sub(r"\{name=.*", "{name}", name) for name in bench.scrape()}

    assert samples == set(re.findall(r"^\| `((?:sidekiq|kiqcluster)_\w+(?:\{name\})?)` \|", page, re.MULTILINE))


# the command


@contextmanager
def exporter(redis: str, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run `kiqctl exporter` for a `with` block; yield it and its port."""
    port = free_port()
    command = [sys.executable, "-m", "kiqcluster.ctl", "exporter", "--listen", f"127.0.0.1:{port}", "--redis", redis]
    process = forkserver.Popen([*command, *words], cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: answers(port), "the exporter to listen")
        yield process, port
    finally:
        process.kill()
        process.wait()


def answers(port: int) -> bool:
    try:
        return http_get(port, "/")[0] == 200
    except OSError:
        return False


def test_the_command_serves_metrics_and_ends_with_term(store: Store, redis_server: RedisServer) -> None:
    store.call("SET", "stat:processed", 12)

    with exporter(redis_server.url) as (process, port):
        status, headers, body = http_get(port, "/metrics")
        assert status == 200
        assert headers["content-type"].startswith("text/plain; version=0.0.4")
        assert b"sidekiq_jobs_processed_total 12.0" in body
        assert http_get(port, "/metrics", headers="Accept-Encoding: gzip\r\n")[1]["content-encoding"] == "gzip"
        head = http_get(port, "/metrics", method="HEAD")
        assert (head[0], head[2], head[1]["content-length"]) == (200, b"", headers["content-length"])
        assert http_get(port, "/other")[0] == 404
        assert http_get(port, "/metrics", method="POST")[0] == 405

        process.send_signal(signal.SIGTERM)

        assert process.wait(TIMEOUT_SECONDS) == ExitCode.STOPPED


def test_the_command_lives_through_an_outage_also_one_at_its_start(own_server: RedisServer) -> None:
    own_server.kill()

    with exporter(own_server.url, "--cache", "0") as (process, port):
        assert b"kiqcluster_exporter_up 0.0" in http_get(port, "/metrics")[2]
        own_server.start()
        wait_until(lambda: b"kiqcluster_exporter_up 1.0" in http_get(port, "/metrics")[2], "Redis to be back")
        own_server.kill()
        assert b"kiqcluster_exporter_up 0.0" in http_get(port, "/metrics")[2]
        assert process.poll() is None


def test_clients_that_say_nothing_hold_nobody_up(store: Store, redis_server: RedisServer) -> None:
    with exporter(redis_server.url) as (_, port):
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(50)]

        assert http_get(port, "/metrics")[0] == 200

        for each in silent:
            each.close()


@pytest.mark.parametrize(
    ("listen", "code"),
    [
        (lambda taken: f"127.0.0.1:{taken}", ExitCode.ADDRESS_IN_USE),
        (lambda _: "off", ExitCode.USAGE),
        (lambda _: "unix:x.sock", ExitCode.USAGE),
        (lambda _: "somewhere", ExitCode.USAGE),
        (lambda _: "203.0.113.7:9168", ExitCode.USAGE),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_with_its_code(
    redis_server: RedisServer, listen: Callable[[int], str], code: ExitCode
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = listen(taken.getsockname()[1])
        command = [sys.executable, "-m", "kiqcluster.ctl", "exporter", "--listen", address]
        done = forkserver.run([*command, "--redis", redis_server.url], cwd=ROOT, timeout=TIMEOUT_SECONDS)

    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


def test_a_password_that_is_wrong_at_the_start_is_refused_with_its_code(own_server: RedisServer) -> None:
    own_server.store().call("CONFIG", "SET", "requirepass", "secret")
    command = [sys.executable, "-m", "kiqcluster.ctl", "exporter", "--listen", f"127.0.0.1:{free_port()}"]

    done = forkserver.run([*command, "--redis", own_server.url], cwd=ROOT, timeout=TIMEOUT_SECONDS)

    assert done.returncode == ExitCode.REDIS_REFUSED
    assert "redis://:PASSWORD@" in done.stderr
