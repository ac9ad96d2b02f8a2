"""/metrics and the probes of a real cluster."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from kiqcluster.supervisor.http.server import MAX_CONNECTIONS
from tests.kit import TIMEOUT_SECONDS, Cluster, RedisServer, http_get, is_ready, require, wait_until
from tests.kit import cluster as running_cluster
from tests.proc import children
from tests.process.unread import unread_cluster
from tests.stage import Jobs, Stage

DONE = 'sidekiq_jobs_completion_seconds_count{job_status="done",queue="default",worker="record"}'


@pytest.fixture(scope="module")
def served() -> Iterator[Cluster]:
    """A cluster that has run a few jobs, for tests that only ask; other clusters run beside it, on another server."""
    server = RedisServer()
    jobs = Jobs(server.store())
    with running_cluster("-r", "tests.apps.basic", "--redis", server.url, "default", "cronjob:*", "-c", "2") as cluster:
        cluster.wait_ready(2)
        for word in ("a", "b", "c"):
            jobs.push("record", word)
        jobs.push("broken", "d")
        failed = 'sidekiq_jobs_failed_total{queue="default",worker="broken"}'
        wait_until(lambda: cluster.metric(DONE) == 3 and cluster.metric(failed) == 1, "the metrics of four jobs")
        yield cluster
    server.close()


# what is asked


def test_metrics_parse_and_tell_what_ran(served: Cluster) -> None:
    status, headers, body = http_get(served.port, "/metrics")

    assert status == 200
    assert headers["content-type"].startswith("text/plain; version=")
    families = {family.name: family for family in parse_text(body.decode())}
    assert families["sidekiq_jobs_completion_seconds"].type == "histogram"
    assert families["sidekiq_jobs_failed"].type == "counter"
    assert families["kiqcluster_children"].type == "gauge"
    failed = {sample.labels["worker"]: sample.value for sample in families["sidekiq_jobs_failed"].samples}
    assert failed["broken"] == 1
    states = {sample.labels["state"]: sample.value for sample in families["kiqcluster_children"].samples}
    assert states == {"ready": 2, "unresponsive": 0, "booting": 0, "quiet": 0, "stopping": 0, "backoff": 0}


def test_jobs_that_have_not_run_yet_are_there_with_0(served: Cluster) -> None:
    never = 'sidekiq_jobs_completion_seconds_count{job_status="fail",queue="cronjob:nightly",worker="Nightly"}'

    text = http_get(served.port, "/metrics")[2].decode()

    assert f"{never} 0.0" in text.splitlines()


def test_no_series_is_there_twice_and_none_names_a_pid(served: Cluster) -> None:
    lines = [line for line in http_get(served.port, "/metrics")[2].decode().splitlines() if not line.startswith("#")]

    series = [line.rpartition(" ")[0] for line in lines]
    assert len(series) == len(set(series))
    assert not any("pid=" in name for name in series)


def test_promtool_finds_nothing_to_complain_of(served: Cluster) -> None:
    promtool = require("promtool", "prometheus")
    body = http_get(served.port, "/metrics")[2]

    checked = subprocess.run([promtool, "check", "metrics"], input=body, capture_output=True, timeout=30, check=False)

    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


def test_openmetrics_is_served_to_whom_asks_for_it(served: Cluster) -> None:
    accept = "Accept: application/openmetrics-text; version=1.0.0\r\n"

    _, headers, body = http_get(served.port, "/metrics", headers=accept)

    assert headers["content-type"].startswith("application/openmetrics-text")
    assert {"sidekiq_jobs_failed", "kiqcluster_build"} <= {family.name for family in parse_openmetrics(body.decode())}


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text; version=abc",
        "text/plain; version=abc",
        "application/openmetrics-text; version=2.0.0; escaping=nonsense",
        "\x00\xff;;=,",
    ],
)
def test_an_accept_header_that_makes_no_sense_is_answered_like_others(served: Cluster, accept: str) -> None:
    assert http_get(served.port, "/metrics", headers=f"Accept: {accept}\r\n")[0] == 200
    assert http_get(served.port, "/liveness")[0] == 200


@pytest.mark.parametrize("path", ["/metrics", "/liveness", "/readiness", "/readiness?verbose=1"])
def test_head_is_get_without_the_body(served: Cluster, path: str) -> None:
    status, headers, body = http_get(served.port, path, "HEAD")

    assert (status, body) == (200, b"")
    assert int(headers["content-length"]) > 0
    assert http_get(served.port, path)[0] == 200


@pytest.mark.parametrize("path", ["/", "/metric", "/metrics/", "/../etc/passwd", "//metrics"])
def test_another_path_is_404(served: Cluster, path: str) -> None:
    assert http_get(served.port, path)[0] == 404
    assert http_get(served.port, path, "HEAD")[2] == b""


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "get"])
def test_another_method_is_405(served: Cluster, method: str) -> None:
    status, headers, _ = http_get(served.port, "/metrics", method)

    assert (status, headers["allow"]) == (405, "GET, HEAD")


def raw(port: int, data: bytes) -> bytes:
    """Send bytes, and return what comes back until the other side closes."""
    with socket.create_connection(("127.0.0.1", port), 5) as sock:
        sock.sendall(data)
        answer = b""
        while chunk := sock.recv(65_536):
            answer += chunk
        return answer


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /metrics\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
        b"GET /metrics SMTP/1\r\n\r\n",
    ],
)
def test_what_is_no_http_is_400(served: Cluster, data: bytes) -> None:
    assert raw(served.port, data).startswith(b"HTTP/1.1 400 ")


def test_a_request_without_end_is_cut_off(served: Cluster) -> None:
    with socket.create_connection(("127.0.0.1", served.port), 5) as sock:
        answer = b""
        try:
            sock.sendall(b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 9_000)
            while chunk := sock.recv(65_536):
                answer += chunk
        except ConnectionResetError:  # it was closed with bytes of ours unread
            pass

    assert not answer or answer.startswith(b"HTTP/1.1 431 ")


def test_clients_that_do_not_read_or_write_hold_nobody_up(served: Cluster) -> None:
    idle = [socket.create_connection(("127.0.0.1", served.port), 5) for _ in range(40)]
    try:
        for sock in idle[:20]:
            sock.sendall(b"GET /met")
        for sock in idle[20:]:
            sock.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")

        assert http_get(served.port, "/liveness")[0] == 200
        assert http_get(served.port, "/metrics")[0] == 200
    finally:
        for sock in idle:
            sock.close()


def test_of_more_clients_than_allowed_the_oldest_idle_ones_are_turned_away(served: Cluster) -> None:
    assert http_get(served.port, "/liveness")[0] == 200  # who has left before is known to have left by now
    surplus = 16
    crowd = []
    for _ in range(MAX_CONNECTIONS + surplus):
        crowd.append(socket.create_connection(("127.0.0.1", served.port), 5))
    try:
        wait_until(lambda: len(readable(crowd)) == surplus, "the surplus to be turned away")
        assert [sock.recv(1) for sock in crowd[:surplus]] == [b""] * surplus
        for sock in crowd[surplus:]:
            sock.sendall(b"GET /liveness HTTP/1.1\r\n\r\n")

        assert {sock.recv(65_536).partition(b"\r\n")[0] for sock in crowd[surplus:]} == {b"HTTP/1.1 200 OK"}
    finally:
        for sock in crowd:
            sock.close()


def readable(sockets: list[socket.socket]) -> list[socket.socket]:
    """Return those that have something to read, or have been closed by the other side."""
    return select.select(sockets, [], [], 0)[0]


def _serves(port: int) -> bool:
    try:
        return http_get(port, "/liveness")[0] == 200
    except (OSError, IndexError):  # turned away
        return False


# what happens


def test_counters_do_not_go_back_when_a_child_is_killed(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "2")
    cluster.wait_ready()
    for number in range(5):
        stage.push("record", str(number))
    wait_until(lambda: cluster.metric(DONE) == 5, "the metrics of five jobs")

    for respawns in (2, 3):
        before = counters(cluster)
        os.kill(cluster.pids()[0], signal.SIGKILL)
        cluster.wait_for("child_died", count=respawns - 1)
        assert not_less(counters(cluster), before)
        cluster.wait_for("child_ready", count=respawns)
        stage.push("record", f"after {respawns}")
        wait_until(lambda expected=3 + respawns + 1: cluster.metric(DONE) == expected, "the metrics of one more job")
        assert not_less(counters(cluster), before)


def counters(cluster: Cluster) -> dict[tuple[str, str], float]:
    return {
        (sample.name, str(sorted(sample.labels.items()))): sample.value
        for family in parse_text(http_get(cluster.port, "/metrics")[2].decode())
        if family.type in ("counter", "histogram")
        for sample in family.samples
    }


def not_less(now: dict[tuple[str, str], float], before: dict[tuple[str, str], float]) -> bool:
    return all(now.get(series, -1.0) >= value for series, value in before.items())


def test_what_a_child_counted_last_survives_its_orderly_end(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1")
    pid = stage.occupy(cluster)[0]
    os.kill(pid, signal.SIGTERM)
    stage.release()

    cluster.wait_for("child_died", child=pid)

    assert cluster.metric(DONE.replace("record", "stubborn")) == 1


def test_metrics_of_the_application_are_shown_too(stage: Stage) -> None:
    app = stage.write_application("""
        from kiqcluster import job
        from prometheus_client import Counter, Gauge

        sold = Counter("shop_sold", "Things sold", ["thing"])
        stock = Gauge("shop_stock", "Things left")

        @job()
        def sell(thing):
            sold.labels(thing).inc()
            stock.set(7)
    """)
    cluster = stage.run_cluster("default", "other", "-c", "1", app=app)
    cluster.wait_ready(2)
    stage.push("sell", "a")
    stage.push("sell", "a", queue="other")

    wait_until(lambda: cluster.metric('shop_sold_total{thing="a"}') == 2, "the sum over both slots")

    for slot in (0, 1):
        wait_until(lambda slot=slot: cluster.metric(f'shop_stock{{slot="{slot}"}}') == 7, "the slot's own value")
    assert cluster.metric('shop_sold_total{thing="a"}') == 2


def test_readiness_says_why_not(stage: Stage, tmp_path: Path) -> None:
    app = stage.write_application("""
        import os, pathlib, time
        from tests.apps.basic import stubborn
        gate = "children" if "KIQ_SLOT" in os.environ else "catalogue"
        while not pathlib.Path(gate).exists():
            time.sleep(0.01)
    """)
    cluster = stage.run_cluster("default", "-c", "1", "--directory", str(tmp_path), app=app)
    wait_until(lambda: _serves(cluster.port), "the listener")

    assert cluster.readiness() == (503, "the application is being imported")
    (tmp_path / "catalogue").touch()
    cluster.wait_for("child_started")
    assert cluster.readiness() == (503, "slot 0 is in booting")
    (tmp_path / "children").touch()
    wait_until(lambda: cluster.readiness() == (200, ""), "readiness")
    cluster.signal(signal.SIGTSTP)
    wait_until(lambda: cluster.readiness() == (503, "slot 0 is quiet"), "quiet to be told")
    cluster.signal(signal.SIGCONT)
    wait_until(lambda: cluster.readiness() == (200, ""), "readiness after CONT")
    stage.push("stubborn", "a")
    stage.wait_noted("began a")
    cluster.signal(signal.SIGTERM)
    wait_until(lambda: cluster.readiness() == (503, "stopping"), "stopping to be told")
    assert http_get(cluster.port, "/liveness")[0] == 200  # it drains, and nobody should kill it for that
    assert http_get(cluster.port, "/metrics")[0] == 200
    stage.release()
    assert cluster.wait() == 0


def test_the_probes_answer_while_every_child_is_stopped_in_its_tracks(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1")
    pid = cluster.wait_ready()[0]
    os.kill(pid, signal.SIGSTOP)
    try:
        assert http_get(cluster.port, "/liveness")[0] == 200
        assert http_get(cluster.port, "/metrics")[0] == 200
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_log_that_nobody_reads_holds_up_neither_probes_nor_respawns_nor_a_stop(durable_server: RedisServer) -> None:
    quiet = ("--log-level", "warning")  # with nothing to warn of, on that server, the workers write nothing
    with unread_cluster("-r", "tests.apps.basic", "--redis", durable_server.url, *quiet, "default") as (process, port):
        for count in (1, 2, 3):
            wait_until(lambda: len(children(process.pid)) == 1, "the worker to be the only child")
            os.kill(children(process.pid)[0], signal.SIGKILL)  # the supervisor has something to say
            sample = f'kiqcluster_child_restarts_total{{reason="killed",slot="0"}} {count}.0'
            wait_until(lambda line=sample: line in http_get(port, "/metrics")[2].decode(), "the death to be seen")
            wait_until(lambda: is_ready(port), "the replacement to be ready")
        assert http_get(port, "/liveness")[0] == 200

        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_SECONDS) == 0


def test_a_unix_socket_serves_the_same(stage: Stage, tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    cluster = stage.run_cluster("default", f"--listen=unix:{path}")
    cluster.wait_ready()

    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(5)
        sock.connect(str(path))
        sock.sendall(b"GET /liveness HTTP/1.1\r\n\r\n")
        answer = sock.recv(65_536)

    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert cluster.stop() == 0
    assert not path.exists()
