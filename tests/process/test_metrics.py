"""/metrics of a real cluster: what is told, and what becomes of it when processes die."""

from __future__ import annotations

import gzip
import os
import re
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from kiqcluster.sidekiq import ruby_json
from tests.kit import ROOT, Cluster, RedisServer, free_port, http_get, require, wait_until
from tests.kit import cluster as running_cluster
from tests.proc import count_descriptors
from tests.stage import Jobs, Stage

RESIDENT = "kiqcluster_supervisor_resident_memory_bytes"
JOB_CLASSES = 200


def totals(cluster: Cluster) -> dict[str, float]:
    """Return series → value of everything that must never fall."""
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in cluster.metric_families().values()
        if family.type in ("counter", "histogram", "summary")
        for sample in family.samples
    }


def fallen(before: dict[str, float], now: dict[str, float]) -> list[str]:
    """Return the series that are less than they were, or gone."""
    return [series for series, value in before.items() if now.get(series, -1.0) < value]


@pytest.fixture(scope="module")
def served() -> Iterator[Cluster]:
    """Two slots that have run and failed a few jobs, on a server of their own."""
    server = RedisServer()
    jobs = Jobs(server.store())
    with running_cluster("-r", "tests.apps.basic", "--redis", server.url, "default", "cronjob:*", "-c", "2") as cluster:
        cluster.wait_ready(2)
        jobs.push("record", "a")
        jobs.push("broken", "b")
        failed = 'sidekiq_jobs_failed_total{queue="default",worker="broken"}'
        wait_until(lambda: cluster.metric(failed) == 1, "the metrics of the jobs")
        wait_until(lambda: cluster.metric('kiqcluster_redis_up{slot="1"}') == 1, "a beat of each slot")
        yield cluster
    server.close()


# what is told


ONLY_WHERE_DECLARED = {  # series of rules, and of jobs with an urgency, a timeout, a limit or a refusal: none is here
    "kiqcluster_routing_rules_info",
    "sidekiq_jobs_skipped_by_reason_total",
    "sidekiq_jobs_timed_out_total",
    "sidekiq_jobs_rate_limited_total",
    "sidekiq_jobs_normal_failures_total",
    "sidekiq_concurrency_limit_deferred_jobs_total",
    *(
        f"gitlab_sli_sidekiq_{side}_apdex{kind}_total"
        for side in ("execution", "queueing")
        for kind in ("", "_success")
    ),
}


def documented() -> dict[str, tuple[str, set[str]]]:
    """Return name → type and labels of the tables in docs/metrics.md."""
    row = re.compile(r"^\| `((?:sidekiq|kiqcluster|gitlab_sli)_\w+)` \| (\w+) \| ([^|]+) \| .+ \|$", re.MULTILINE)
    found = row.findall((ROOT / "docs/metrics.md").read_text())
    return {name: (kind, set(labels.strip().split(", ")) - {"–"}) for name, kind, labels in found}


def test_the_tables_in_the_docs_are_what_is_there(served: Cluster) -> None:
    live = {
        name: (family.type, {label for sample in family.samples for label in sample.labels} - {"le"})
        for name, family in served.metric_families().items()
    }

    assert live == {name: row for name, row in documented().items() if name not in ONLY_WHERE_DECLARED}


def test_promtool_finds_nothing_to_complain_of_in_our_series(served: Cluster) -> None:
    promtool = require("promtool", "prometheus")
    page = http_get(served.port, "/metrics")[2]
    assert {line.split(b"_")[0] for line in page.splitlines() if not line.startswith(b"#")} == {
        b"sidekiq",
        b"kiqcluster",
    }

    checked = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, timeout=30, check=False)

    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


def test_a_compressed_page_is_the_same_page(served: Cluster) -> None:
    _, headers, body = http_get(served.port, "/metrics", headers="Accept-Encoding: gzip\r\n")

    assert headers["content-encoding"] == "gzip"
    assert len(body) == int(headers["content-length"])
    text, plain = gzip.decompress(body), http_get(served.port, "/metrics")[2]
    assert len(body) < len(plain) / 4
    assert [line.split()[0] for line in text.splitlines()] == [line.split()[0] for line in plain.splitlines()]


def test_every_slot_tells_of_its_process(served: Cluster) -> None:
    for slot in (0, 1):
        labels = f'{{slot="{slot}"}}'
        assert served.metric(f"kiqcluster_child_resident_memory_bytes{labels}") > 1e6
        assert served.metric(f"kiqcluster_child_open_fds{labels}") > 5
        cpu = f"kiqcluster_child_cpu_seconds_total{labels}"
        wait_until(
            lambda cpu=cpu: served.metric(cpu) > 0,
            "it to have used a hundredth of a second, as finely as that is told",
        )
        assert 0 < served.metric(f"kiqcluster_child_boot_seconds{labels}") < 60
        trips = f"kiqcluster_fetch_round_trips_total{labels}"
        wait_until(lambda trips=trips: served.metric(trips) > 0, "a beat after its first round trip")
        assert served.metric(f"kiqcluster_fetch_round_trip_seconds_total{labels}") > 0
        assert served.metric(f"kiqcluster_child_backoff_seconds{labels}") == 0
    assert served.metric('kiqcluster_children{state="ready"}') == 2
    assert served.metric("kiqcluster_supervisor_resident_memory_bytes") > 1e6


def test_cpu_is_that_of_the_job_and_not_its_duration(stage: Stage) -> None:
    app = stage.write_application("""
        import time
        from kiqcluster import job

        @job()
        def wait(seconds):
            time.sleep(seconds)

        @job()
        def spin(seconds):
            until = time.thread_time() + seconds
            while time.thread_time() < until:
                pass
    """)
    cluster = stage.run_cluster("default", "-c", "1", app=app)
    stage.push("wait", 0.3)
    stage.push("spin", 0.3)

    def seconds(of: str, name: str) -> float:
        return cluster.metric(f'sidekiq_jobs_{of}_seconds_sum{{job_status="done",queue="default",worker="{name}"}}')

    cluster.wait_ready()
    wait_until(lambda: min(seconds("completion", "wait"), seconds("completion", "spin")) > 0, "both to be counted")

    assert seconds("completion", "wait") >= 0.3
    assert seconds("cpu", "wait") < 0.1
    assert 0.3 <= seconds("cpu", "spin") <= seconds("completion", "spin") + 0.001


def test_what_a_job_declares_is_a_label_of_its_series(stage: Stage) -> None:
    app = stage.write_application("""
        from kiqcluster import job

        @job(urgency="low", feature_category="mail", resource_boundary="cpu", external_dependencies=True)
        def send():
            pass
    """)
    cluster = stage.run_cluster("default", "-c", "1", app=app)
    cluster.wait_ready()
    declared = 'boundary="cpu",external_dependencies="yes",feature_category="mail"'
    labels = f'{declared},queue="default",urgency="low",worker="send"'

    wait_until(lambda: f"sidekiq_jobs_failed_total{{{labels}}} 0.0" in page_of(cluster), "the job's series")
    assert 'sidekiq_jobs_failed_total{queue="default",worker="record"} 0.0' in page_of(cluster)


def test_runs_and_waits_are_judged_by_the_targets_of_their_urgency(stage: Stage) -> None:
    """The waits: one is over the target of urgency high, and within that of low; throttled jobs may wait for ever."""
    app = stage.write_application("""
        from kiqcluster import job

        @job(urgency="high")
        def high(): ...

        @job(urgency="low")
        def low(): ...

        @job(urgency="throttled")
        def throttled(): ...
    """)
    cluster = stage.run_cluster("default", "-c", "1", app=app)
    cluster.wait_ready()
    for name in ("high", "low", "throttled"):
        stage.push(name)
        late = {"class": name, "args": [], "jid": f"{name:0<24}", "enqueued_at": int((time.time() - 30) * 1_000)}
        stage.store.call("LPUSH", "queue:default", ruby_json.encode(late))

    def apdex(side: str, name: str) -> list[float]:
        labels = f'{{queue="default",urgency="{name}",worker="{name}"}}'
        samples = [f"gitlab_sli_sidekiq_{side}_apdex{kind}_total{labels}" for kind in ("_success", "")]
        values = dict(line.rsplit(" ", 1) for line in page_of(cluster) if line.startswith(tuple(samples)))
        return [float(values[each]) for each in samples if each in values]

    wait_until(lambda: apdex("execution", "throttled") == [2, 2], "the runs to be counted")
    assert (apdex("execution", "high"), apdex("execution", "low")) == ([2, 2], [2, 2])
    assert (apdex("queueing", "high"), apdex("queueing", "low"), apdex("queueing", "throttled")) == ([1, 2], [2, 2], [])
    assert not [line for line in page_of(cluster) if line.startswith("gitlab_sli") and 'worker="record"' in line]


def page_of(cluster: Cluster) -> list[str]:
    return http_get(cluster.port, "/metrics")[2].decode().splitlines()


def test_a_quiet_is_told_with_its_lease(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1", KIQ_QUIET_LEASE="900")
    cluster.wait_ready()
    names = ("", "_since_timestamp_seconds", "_lease_remaining_seconds", "_lease_expirations_total")

    def quiet_samples() -> list[float]:
        return [cluster.metric(f"kiqcluster_quiet{name}") for name in names]

    assert quiet_samples() == [0, 0, 0, 0]
    cluster.signal(signal.SIGTSTP)
    wait_until(lambda: quiet_samples()[0] == 1, "quiet to be told")
    assert quiet_samples()[1] > 1.7e9
    assert 800 < quiet_samples()[2] <= 900
    cluster.signal(signal.SIGCONT)
    wait_until(lambda: quiet_samples() == [0, 0, 0, 0], "its end to be told")


@pytest.mark.own_redis
def test_an_outage_of_redis_is_told(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1")
    cluster.wait_ready()
    up = 'kiqcluster_redis_up{slot="0"}'
    wait_until(lambda: cluster.metric(up) == 1, "Redis to be there")

    stage.redis.kill()
    wait_until(lambda: f"{up} 0.0" in page_of(cluster), "the outage to be told")
    stage.redis.start()
    wait_until(lambda: cluster.metric(up) == 1, "its end to be told")


# deaths


def test_no_counter_falls_and_nothing_grows_whatever_children_do(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "other", "-c", "2", app="tests.apps.shop")
    cluster.wait_ready(2)
    stage.push_many("sell", [["a", 1.5]] * 20)
    wait_until(lambda: cluster.metric('shop_sold_total{thing="a"}') == 20, "the metrics of all jobs")
    before, open_files = totals(cluster), count_descriptors(cluster.pid)
    everything = set(before)

    for death in range(1, 11):
        slot = death % 2
        os.kill(cluster.pids()[slot], (signal.SIGKILL, signal.SIGTERM)[death % 3 == 0])
        cluster.wait_for("child_died", count=death)
        now = totals(cluster)
        assert fallen(before, now) == []
        cluster.wait_for("child_ready", count=2 + death)
        before = now
    stage.push("sell", "a", 1.5)
    wait_until(lambda: cluster.metric('shop_sold_total{thing="a"}') == 21, "the metrics of one more job")

    assert fallen(before, totals(cluster)) == []
    assert set(totals(cluster)) == everything
    assert count_descriptors(cluster.pid) <= open_files + 1  # one may just be scraped
    assert sum(cluster.restarts(reason, slot) for reason in ("killed", "remote_stop") for slot in (0, 1)) == 10


def test_units_that_are_given_back_are_counted(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1")
    pid = stage.occupy(cluster)[0]

    os.kill(pid, signal.SIGKILL)
    stage.release()
    stage.wait_noted("ended a")
    stage.wait_settled()

    wait_until(lambda: cluster.metric("kiqcluster_recovered_units_total") == 1, "the unit to be counted")
    assert stage.notes() == ["began a", "began a", "ended a"]


# scale


@contextmanager
def prometheus(program: str, port: int, folder: Path) -> Iterator[Callable[[str], list[float]]]:
    """Run a Prometheus that scrapes a cluster; yield what asks it: a query → the values of its result."""
    own = free_port()
    (folder / "prometheus.yml").write_text(f"""
global: {{scrape_interval: 500ms, scrape_timeout: 400ms}}
scrape_configs: [{{job_name: kiq, static_configs: [{{targets: ["127.0.0.1:{port}"]}}]}}]
""")
    process = subprocess.Popen(
        [program, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
         f"--web.listen-address=127.0.0.1:{own}", "--log.level=error"],
        stdout=subprocess.DEVNULL,
    )  # fmt: skip

    def ask(query: str) -> list[float]:
        try:
            status, _, body = http_get(own, f"/api/v1/query?query={quote(query)}", headers="Connection: close\r\n")
        except OSError:  # it does not listen yet
            return []
        if status != 200:  # it still starts
            return []
        return [float(each["value"][1]) for each in ruby_json.decode(body).get("data", {}).get("result", ())]

    try:
        yield ask
    finally:
        process.terminate()
        process.wait()


def processed(cluster: Cluster) -> int:
    """Return how many jobs the slots have told of; asking for that makes no page."""
    slots = ruby_json.decode(http_get(cluster.port, "/status")[2])["slots"]
    return sum(slot["processed"] for slot in slots)


@pytest.mark.quiet
@pytest.mark.full
def test_a_scrape_of_many_classes_is_quick_and_holds_up_nobody(stage: Stage) -> None:
    """Slack is for other work of the machine; docs/metrics.md has the figures of a quiet one."""
    app = stage.write_application(f"""
        from kiqcluster import Job

        for number in range({JOB_CLASSES}):
            type(f"Acme{{number}}Worker", (Job,), {{"perform": lambda self: None}})
    """)
    cluster = stage.run_cluster(*["default"] * 4, "-c", "1", app=app)
    cluster.wait_ready(4)
    took = []
    for count in (1, 2, 3):
        for number in range(JOB_CLASSES):
            stage.push_many(f"Acme{number}Worker", [[]] * 2)
        wait_until(lambda done=2 * JOB_CLASSES * count: processed(cluster) == done, "all jobs to be told of")
        began = time.monotonic()
        assert len(page_of(cluster)) > JOB_CLASSES * 58  # every row of which has changed
        took.append(time.monotonic() - began)

    assert statistics.median(took) < 0.5  # promised: 0.2
    assert cluster.metric("kiqcluster_supervisor_longest_turn_seconds") < 0.2  # promised: 0.02


@pytest.mark.full
def test_a_prometheus_scrapes_through_two_hundred_respawns_and_sees_no_counter_fall(
    stage: Stage, tmp_path: Path
) -> None:
    program = require("prometheus", "prometheus")
    cluster = stage.run_cluster("default", "other", "-c", "2")
    cluster.wait_ready(2)
    with prometheus(program, cluster.port, tmp_path) as ask:
        stage.push("record", "0")
        wait_until(lambda: ask('up{job="kiq"}') == [1.0], "a first scrape")
        before, memory, open_files = len(totals(cluster)), 0.0, 0
        for death in range(1, 201):
            if death == 50:  # by then it has whatever it needs
                memory, open_files = cluster.metric(RESIDENT), count_descriptors(cluster.pid)
            os.kill(cluster.pids()[death % 2], signal.SIGKILL)
            cluster.wait_for("child_ready", count=2 + death)
            stage.push("record", str(death))
        wait_until(lambda: sum(ask("sum(kiqcluster_child_restarts_total)")) == 200, "Prometheus to have seen them all")

        names = {series.partition("[")[0] for series in totals(cluster)}
        assert {name: ask(f"max(resets({name}[30m]))") for name in names} == {name: [0.0] for name in names}
        assert ask('min_over_time(up{job="kiq"}[30m])') == [1.0]
        assert len(totals(cluster)) == before
        assert cluster.metric(RESIDENT) <= memory + 1e6
        assert count_descriptors(cluster.pid) <= open_files + 1  # Prometheus may just scrape
