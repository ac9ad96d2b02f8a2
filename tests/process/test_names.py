"""Names of queues, classes, hosts and paths in every script, through a cluster and what is asked of it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from kiqcluster import Client
from kiqcluster.store import Store
from tests.apps import names
from tests.apps.names import NAMES
from tests.kit import Cluster, connect, free_port, http_get, wait_until
from tests.process.kiqctl import Kiqctl
from tests.stage import Stage

FOLDER = 'it\'s "名" 100% {x} é'
HOST = 'hôst:名 "x"'  # an address of IPv6 has colons as well
MAX_SHOWN_CHARACTERS = 200  # characters of a name that the log shows whole
TAG = "it's 名 \"\\"


def ran(cluster: Cluster) -> set[tuple[str, str]]:
    """Return queue and class of the jobs on /metrics."""
    text = http_get(cluster.port, "/metrics")[2].decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.labels["queue"], sample.labels["worker"]) for sample in samples if "worker" in sample.labels}


def listens(port: int) -> bool:
    """Return whether somebody listens at a port."""
    try:
        connect(port).close()
    except OSError:
        return False
    return True


def test_jobs_of_every_name_run_and_are_shown(stage: Stage, kiqctl: Kiqctl) -> None:
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory) / FOLDER
        folder.mkdir()
        config = folder / "名 config.toml"
        config.write_text(f"tag = {json.dumps(TAG)}\nconcurrency = 3\n")
        pidfile = folder / "a pid"
        application = folder / 'it\'s "an" app.py'
        application.write_text(Path(names.__file__).read_text())
        cluster = stage.run_cluster(
            ",".join(NAMES), "-C", str(config), "--pidfile", str(pidfile), app=str(application), DYNO=HOST
        )
        cluster.wait_ready()

        jids = [Client(stage.store).push({"class": name, "args": [name], "queue": name}) for name in NAMES]
        for jid in jids:
            cluster.wait_done(jid)

        wait_until(lambda: ran(cluster) >= {(name, name) for name in NAMES}, "every name to be on /metrics")
        assert all(cluster.seen("job_done", queue=name) for name in NAMES if len(name) < MAX_SHOWN_CHARACTERS)
        ((worker,),) = [each["workers"] for each in json.loads(kiqctl("ps", "--json").stdout)["clusters"]]
        assert worker["queues"] == list(NAMES)
        assert worker["identity"].startswith(f"{HOST}:{worker['pid']}:")
        assert kiqctl("busy").returncode == 0
        assert http_get(Path(f"{pidfile}.sock"), "/status")[0] == 200
        stored = stage.store.call("HGET", worker["identity"], "info")
        assert json.loads(stored)["tag"] == TAG
        assert cluster.stop() == 0


def test_the_exporter_has_queues_of_every_name(store: Store, kiqctl: Kiqctl) -> None:
    for name in NAMES:
        Client(store).push({"class": "note", "args": [], "queue": name})
    port = free_port()
    kiqctl.start("exporter", "--listen", f"127.0.0.1:{port}")
    wait_until(lambda: listens(port), "the exporter to listen")

    openmetrics = http_get(port, "/metrics", headers="Accept: application/openmetrics-text\r\n")[2].decode()
    text = http_get(port, "/metrics")[2].decode()

    for families in (parse_openmetrics(openmetrics), text_string_to_metric_families(text)):
        samples = [sample for family in families if family.name == "sidekiq_queue_size" for sample in family.samples]
        assert {sample.labels["name"]: sample.value for sample in samples} == dict.fromkeys(NAMES, 1)


def test_a_path_that_is_too_long_for_a_socket_is_said_in_a_sentence(stage: Stage, tmp_path: Path) -> None:
    folder = tmp_path / "名" / ("x" * 120)
    folder.mkdir(parents=True)

    refused = stage.run_cluster("default", "--listen", f"unix:{folder}/http.sock")
    without_control = stage.run_cluster("default", "--pidfile", str(folder / "pid"))

    assert refused.wait() == 2
    assert "too long" in "".join(refused.lines)
    assert "Traceback" not in "".join(refused.lines)
    assert "too long" in without_control.wait_for("control_off")["error"]
    without_control.wait_ready()
    assert without_control.stop() == 0
