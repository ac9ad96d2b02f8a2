"""deploy/kubernetes: the API's schemas, deadlines in order, and that the parts name each other rightly."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kiqcluster.ctl.fleet import steer
from kiqcluster.process.config import STOP_GRACE_SECONDS, Config
from kiqcluster.process.config_sources import load
from kiqcluster.process.durations import parse_duration, parse_size
from tests.deploy.stage import need
from tests.kit import ROOT, Cluster, http_get, wait_until
from tests.stage import Stage

FOLDER = ROOT / "deploy" / "kubernetes"
VERSIONS = ("1.28", "1.32", "1.37")  # from the first whose kubelet kills a container as a whole

STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
COUNT = {"type": "integer", "minimum": 0}


def closed(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    """Return the schema of an object that has no other keys than these."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


SCALING = closed(
    ("policies",),
    stabilizationWindowSeconds={**COUNT, "maximum": 3600},
    policies={
        "type": "array",
        "items": closed(
            ("type", "value", "periodSeconds"),
            type={"enum": ["Pods", "Percent"]},
            value={"type": "integer", "minimum": 1},
            periodSeconds={"type": "integer", "minimum": 1, "maximum": 1800},
        ),
    },
)
# Ours, of the keys that we use: kubernetes-validate has no schemas of custom resources.  After the reference of
# KEDA 2.15 (ScaledObject, the Prometheus scaler) and of the Prometheus Operator's API (PodMonitor, v1).
CUSTOM = {
    ("keda.sh/v1alpha1", "ScaledObject"): closed(
        ("scaleTargetRef", "triggers"),
        scaleTargetRef=closed(("name",), name={"type": "string"}, kind={"type": "string"}),
        minReplicaCount=COUNT,
        maxReplicaCount=COUNT,
        pollingInterval=COUNT,
        advanced=closed(
            horizontalPodAutoscalerConfig=closed(behavior=closed(scaleUp=SCALING, scaleDown=SCALING)),
        ),
        triggers={
            "type": "array",
            "items": closed(
                ("type", "metadata"),
                type={"const": "prometheus"},
                metricType={"enum": ["Value", "AverageValue"]},
                metadata={
                    **STRINGS,  # numbers and booleans, too, are strings here
                    "required": ["serverAddress", "query", "threshold"],
                    "propertyNames": {"enum": ["serverAddress", "query", "threshold", "ignoreNullValues"]},
                },
            ),
        },
    ),
    ("monitoring.coreos.com/v1", "PodMonitor"): closed(
        ("selector", "podMetricsEndpoints"),
        selector=closed(matchLabels=STRINGS),
        jobLabel={"type": "string"},
        podMetricsEndpoints={
            "type": "array",
            "items": closed(
                ("port",),
                port={"type": "string"},
                path={"type": "string", "pattern": "^/"},
                interval={"type": "string", "pattern": "^[0-9]+s$"},
                scrapeTimeout={"type": "string", "pattern": "^[0-9]+s$"},
            ),
        },
    ),
}


def documents() -> list[dict[str, Any]]:
    yaml = need("yaml")
    return [each for path in sorted(FOLDER.glob("*.yaml")) for each in yaml.safe_load_all(path.read_text())]


def document(kind: str, name: str) -> dict[str, Any]:
    (found,) = [each for each in documents() if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def container(name: str) -> dict[str, Any]:
    (found,) = pod(name)["containers"]
    assert isinstance(found, dict)
    return found


def pod(name: str) -> dict[str, Any]:
    spec: dict[str, Any] = document("Deployment", name)["spec"]["template"]["spec"]
    return spec


def is_custom(each: dict[str, Any]) -> bool:
    return (each["apiVersion"], each["kind"]) in CUSTOM


class TestSchemas:
    @pytest.mark.parametrize("version", VERSIONS)
    def test_what_is_kubernetes_own_fits_its_api(self, version: str) -> None:
        validate = need("kubernetes_validate").validate
        own = [each for each in documents() if not is_custom(each)]

        assert sorted({each["kind"] for each in own}) == ["Deployment", "PodDisruptionBudget", "Service"]
        for each in own:
            validate(each, version, strict=True)

    def test_custom_resources_have_the_keys_of_their_reference(self) -> None:
        validate = need("jsonschema").validate
        custom = [each for each in documents() if is_custom(each)]

        assert sorted(each["kind"] for each in custom) == ["PodMonitor", "ScaledObject"]
        for each in custom:
            assert each.keys() == {"apiVersion", "kind", "metadata", "spec"}
            validate(each["spec"], CUSTOM[each["apiVersion"], each["kind"]])

    def test_a_slip_would_be_found(self) -> None:
        library = need("kubernetes_validate")
        worker = document("Deployment", "shop-worker")
        worker["spec"]["template"]["spec"]["terminationGracePeriodSecond"] = 110

        with pytest.raises(library.ValidationError):
            library.validate(worker, VERSIONS[-1], strict=True)


def environ(name: str) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container(name)["env"] if "value" in each}


def pre_stop() -> list[str]:
    command: list[str] = container("shop-worker")["lifecycle"]["preStop"]["exec"]["command"]
    return command


def pre_stop_option(name: str) -> float:
    (value,) = [word.partition("=")[2] for word in pre_stop() if word.startswith(f"--{name}=")]
    return parse_duration(value)


class TestDeadlines:
    def test_the_pod_is_killed_after_the_stop_is_over(self) -> None:
        config, _ = load({}, environ=environ("shop-worker"), directory=Path("/nonexistent"))
        grace = pod("shop-worker")["terminationGracePeriodSeconds"]

        # kiqcluster itself holds stop.platform_timeout > timeout + stop grace: load() raises otherwise.
        assert grace >= pre_stop_option("timeout") + config.stop_platform_timeout
        assert config.stop_platform_timeout > config.stop_timeout + STOP_GRACE_SECONDS

    def test_the_comment_tells_the_same_numbers(self) -> None:
        text = (FOLDER / "worker.yaml").read_text()
        numbers = re.search(r"preStop (\d+) \+ timeout (\d+) \+ stop grace (\d+) < \w+ (\d+)", text)
        rest = re.search(r"#   KIQ_STOP_PLATFORM_TIMEOUT (\d+)", text)

        assert numbers is not None
        assert rest is not None
        grace = pod("shop-worker")["terminationGracePeriodSeconds"]
        assert [float(each) for each in numbers.groups()] == [
            pre_stop_option("timeout"), Config.stop_timeout, STOP_GRACE_SECONDS, grace,
        ]  # fmt: skip
        assert rest[1] == environ("shop-worker")["KIQ_STOP_PLATFORM_TIMEOUT"]

    def test_a_pod_that_is_not_deleted_after_all_fetches_again(self) -> None:
        assert pre_stop_option("timeout") < pre_stop_option("lease") <= 600

    def test_a_worker_is_replaced_before_the_kernel_kills_the_container(self) -> None:
        per_worker = parse_size(environ("shop-worker")["KIQ_RECYCLE_MEMORY"])
        limit = container("shop-worker")["resources"]["limits"]["memory"]

        assert limit == "1Gi"
        assert per_worker * len(container("shop-worker")["args"]) < 1_000_000_000

    def test_a_boot_may_take_as_long_as_kiqcluster_lets_it(self) -> None:
        probe = container("shop-worker")["startupProbe"]

        assert probe["periodSeconds"] * probe["failureThreshold"] > Config.health_boot_timeout


class TestParts:
    def test_selectors_find_their_pods(self) -> None:
        for name in ("shop-worker", "shop-exporter"):
            deployment = document("Deployment", name)["spec"]
            labels = deployment["template"]["metadata"]["labels"].items()
            assert deployment["selector"]["matchLabels"].items() <= labels
            assert document("PodMonitor", "shop")["spec"]["selector"]["matchLabels"].items() <= labels
        budget = document("PodDisruptionBudget", "shop-worker")["spec"]
        assert budget["selector"] == document("Deployment", "shop-worker")["spec"]["selector"]
        service = document("Service", "shop-exporter")["spec"]
        assert service["selector"] == document("Deployment", "shop-exporter")["spec"]["selector"]["matchLabels"]
        assert document("ScaledObject", "shop-worker")["spec"]["scaleTargetRef"] == {"name": "shop-worker"}

    def test_ports_have_the_name_that_is_scraped(self) -> None:
        (endpoint,) = document("PodMonitor", "shop")["spec"]["podMetricsEndpoints"]
        for name in ("shop-worker", "shop-exporter"):
            assert [port["name"] for port in container(name)["ports"]] == [endpoint["port"]]

    def test_the_autoscaler_has_the_number_of_pods_to_itself(self) -> None:
        assert "replicas" not in document("Deployment", "shop-worker")["spec"]

    def test_the_threads_that_it_counts_are_those_of_a_pod(self) -> None:
        trigger = document("ScaledObject", "shop-worker")["spec"]["triggers"][1]
        threads = int(environ("shop-worker")["KIQ_CONCURRENCY"]) * len(container("shop-worker")["args"])

        assert float(trigger["metadata"]["threshold"]) == pytest.approx(0.8 * threads)

    def test_kiqcluster_itself_is_process_1(self) -> None:
        assert "command" not in container("shop-worker")  # the image's entry point
        assert "shareProcessNamespace" not in pod("shop-worker")

    def test_nobody_is_root(self) -> None:
        for name in ("shop-worker", "shop-exporter"):
            assert pod(name)["securityContext"]["runAsNonRoot"] is True
            assert container(name)["securityContext"]["allowPrivilegeEscalation"] is False

    def test_the_exporters_command_is_one(self) -> None:
        name, group, *words = container("shop-exporter")["command"]

        assert (name, group) == ("kiqctl", "exporter")
        assert words[1].endswith(f":{container('shop-exporter')['ports'][0]['containerPort']}")


class TestProbes:
    """What the manifests ask is asked of a real cluster."""

    def test_each_is_answered_and_the_pod_drains_before_it_stops(self, stage: Stage, tmp_path: Path) -> None:
        path = tmp_path / "control.sock"
        cluster: Cluster = stage.run_cluster("default", "-c", "1", KIQ_CONTROL=str(path))
        cluster.wait_ready()
        wait_until(lambda: cluster.is_ready(), "the cluster to be ready")
        worker = container("shop-worker")
        pages = {name: worker[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
        assert {name: http_get(cluster.port, page)[0] for name, page in pages.items()} == dict.fromkeys(pages, 200)

        name, action, *words = pre_stop()
        words = [word.replace("/run/kiqcluster/control.sock", str(path)) for word in words]
        assert (name, action) == ("kiqctl", "quiet")
        assert str(path) in " ".join(words)
        done = CliRunner().invoke(steer.quiet, words)

        assert done.exit_code == 0, done.output
        assert http_get(cluster.port, pages["readinessProbe"])[0] == 503  # a disruption budget counts it as gone
        assert http_get(cluster.port, pages["livenessProbe"])[0] == 200
        assert cluster.stop() == 0
