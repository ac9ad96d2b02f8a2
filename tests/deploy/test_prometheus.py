"""deploy/prometheus and deploy/grafana: promtool's word on the rules, and that they ask for metrics that exist."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from kiqcluster.ctl.exporter.exporter import Exporter
from kiqcluster.process.clock import SystemClock
from tests.deploy.stage import need
from tests.kit import ROOT, Cluster, http_get, require, wait_until
from tests.stage import Stage

FOLDER = ROOT / "deploy" / "prometheus"
RULES = [FOLDER / "recording.yml", FOLDER / "alerts.yml"]
CASES = sorted((ROOT / "tests" / "deploy" / "prometheus").glob("*.yml"))
DASHBOARD = ROOT / "deploy" / "grafana" / "kiqcluster.json"
WORD = re.compile(r"[a-z_][a-z0-9_:]*")
OF_THE_EXPORTER = ("queue:sidekiq_queue_latency_seconds:max", "queue:sidekiq_queue_size:max")  # for all instances
OURS = ("sidekiq_", "kiqcluster_", "kiq_", "gitlab_sli_sidekiq_")
SUFFIXES = ("_bucket", "_count", "_sum")


def promtool(*words: str | Path) -> str:
    """Return what promtool complains about.  It collects no garbage: that would take a fifth of its time."""
    program, environ = require("promtool", "prometheus"), {**os.environ, "GOGC": "off"}
    done = subprocess.run([program, *words], env=environ, capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@cache
def rules() -> list[dict[str, Any]]:
    documents = [need("yaml").safe_load(path.read_text()) for path in RULES]
    return [rule for document in documents for group in document["groups"] for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


@cache
def cases() -> list[dict[str, Any]]:
    return [case for path in CASES for case in need("yaml").safe_load(path.read_text())["tests"]]


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return dashboard


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the panels that show something."""
    return [each for each in dashboard["panels"] if each["type"] != "row"]


def expressions(dashboard: dict[str, Any]) -> Iterator[str]:
    """Yield the expressions of a dashboard, with a value in the place of each variable."""
    for each in panels(dashboard):
        yield from (target["expr"] for target in each["targets"])
    yield from (each["expr"] for each in dashboard["annotations"]["list"])


def filled(expression: str) -> str:
    """Return an expression as Grafana sends it."""
    for variable, value in (("$__rate_interval", "5m"), ("$job", ".*"), ("$instance", ".*")):
        expression = expression.replace(variable, value)
    return expression


class TestRules:
    def test_promtool_finds_no_fault(self) -> None:
        assert promtool("check", "rules", *RULES) == ""
        assert promtool("check", "config", FOLDER / "prometheus.yml") == ""

    @pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
    def test_its_cases_hold(self, path: Path) -> None:
        assert promtool("test", "rules", path) == ""

    def test_each_alert_has_a_case_that_fires_and_one_that_does_not(self) -> None:
        fires, rests = set(), set()
        for case in cases():
            for each in case.get("promql_expr_test", ()):
                found = re.match(r'ALERTS\{alertname="(\w+)"', each["expr"])
                if found:
                    (fires if each["exp_samples"] else rests).add(found[1])

        assert fires == rests == {rule["alert"] for rule in alerts()}

    def test_what_annotations_show_is_among_the_labels(self) -> None:
        labels: dict[str, set[str]] = {}
        for case in cases():
            for each in case.get("promql_expr_test", ()):
                for sample in each["exp_samples"]:
                    found = dict(re.findall(r'(\w+)="([^"]*)"', sample["labels"]))
                    labels.setdefault(found.get("alertname", ""), set()).update(found)

        for rule in alerts():
            shown = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
            assert shown <= labels[rule["alert"]], rule["alert"]

    def test_each_alert_says_how_bad_it_is_and_what_to_do(self) -> None:
        for rule in alerts():
            assert rule["alert"].startswith("Kiq")
            assert rule["labels"]["severity"] in ("critical", "warning")
            assert sorted(rule["annotations"]) == ["description", "summary"]


class TestDashboard:
    def test_it_has_what_grafana_asks_for(self, dashboard: dict[str, Any]) -> None:
        assert dashboard["uid"] == "kiqcluster"
        assert dashboard["title"]
        assert dashboard["schemaVersion"] >= 39
        assert [each["name"] for each in dashboard["templating"]["list"]] == ["datasource", "job", "instance"]
        for each in panels(dashboard):
            assert {"title", "type", "datasource", "gridPos", "fieldConfig", "options", "targets"} <= each.keys()
            assert each["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            references = [target["refId"] for target in each["targets"]]
            assert len(set(references)) == len(references) > 0

    def test_its_panels_have_names_numbers_and_places_of_their_own(self, dashboard: dict[str, Any]) -> None:
        for name in ("id", "title"):
            values = [each[name] for each in dashboard["panels"]]
            assert len(set(values)) == len(values)
        cells = [
            (x, y)
            for each in dashboard["panels"]
            for place in (each["gridPos"],)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ]
        assert len(set(cells)) == len(cells)
        assert max(x for x, _ in cells) < 24
        rows = sorted({y for _, y in cells})
        assert all(after == before + 1 for before, after in pairwise(rows))

    def test_what_supervisors_tell_is_of_the_instances_that_are_chosen(self, dashboard: dict[str, Any]) -> None:
        unbound = {rule["record"] for rule in rules() if "record" in rule} - set(OF_THE_EXPORTER)
        for text in expressions(dashboard):
            for name in WORD.findall(re.sub(r"{[^}]*}", "", text)):
                if name in unbound:
                    assert re.search(rf'{name}{{[^}}]*instance=~"\$instance"', text), text

    def test_no_panel_plots_a_lease_without_an_end(self, dashboard: dict[str, Any]) -> None:
        leases = [
            text for text in expressions(dashboard) if text.startswith("kiqcluster_quiet_lease_remaining_seconds")
        ]
        assert leases
        assert all("< +Inf" in text for text in leases)

    def test_prometheus_can_read_its_expressions(self, dashboard: dict[str, Any], tmp_path: Path) -> None:
        recorded = [
            {"record": f"panel:{number}", "expr": filled(text)} for number, text in enumerate(expressions(dashboard))
        ]
        assert "$" not in "".join(rule["expr"] for rule in recorded)
        path = tmp_path / "panels.yml"
        path.write_text(json.dumps({"groups": [{"name": "panels", "rules": recorded}]}))

        assert promtool("check", "rules", path) == ""


def asked_for() -> dict[str, str]:
    """Return each metric that a rule, the dashboard or the autoscaler asks for → one of the places."""
    dashboard = json.loads(DASHBOARD.read_text())
    texts = [(rule["expr"], rule.get("alert") or rule["record"]) for rule in rules()]
    texts += [(text, "dashboard") for text in expressions(dashboard)]
    texts += [(each["definition"], "dashboard") for each in dashboard["templating"]["list"] if "definition" in each]
    scaled = need("yaml").safe_load((ROOT / "deploy/kubernetes/keda.yaml").read_text())
    texts += [(each["metadata"]["query"], "keda.yaml") for each in scaled["spec"]["triggers"]]
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    return {
        word: place
        for text, place in texts
        for word in WORD.findall(re.sub(r'"[^"]*"', "", text))
        if word not in recorded and (word.startswith(OURS) or ":" in word)
    }


class TestNames:
    def test_what_is_asked_for_is_exported(self, stage: Stage) -> None:
        app = stage.write_application(
            """
            import sqlalchemy

            from kiqcluster import job
            from kiqcluster.contrib.sqlalchemy import metadata, use_outbox
            from kiqcluster.policies import Drop

            engine = sqlalchemy.create_engine("sqlite:///OUTBOX")
            metadata.create_all(engine)
            use_outbox(engine)

            @job(urgency="low")
            def judged(): ...

            @job(policy=lambda run: Drop())
            def never(): ...

            @job(concurrency_limit=-1)
            def paused(): ...
        """.replace("OUTBOX", f"{stage.folder}/outbox.db")
        )
        cluster: Cluster = stage.run_cluster("default", "-c", "1", app=app)
        cluster.wait_ready()
        stage.push("record", "a")
        stage.wait_noted("ran a")
        stage.push("never")
        stage.push("paused")
        wait_until(lambda: stage.store.call("HLEN", stage.store.keys.limits), "a limit to be known")
        counted = {"sidekiq_jobs_completion_seconds_count", "sidekiq_jobs_skipped_by_reason_total", "kiq_outbox_rows"}
        wait_until(lambda: counted <= live(cluster), "the jobs to be counted")
        exporter = Exporter(stage.store, SystemClock(), 0.0, lambda trouble: None)
        exported = live(cluster) | names(exporter.page("", "")[1].decode())

        asked = asked_for()

        assert len(asked) > 30
        assert {word: place for word, place in asked.items() if word not in exported} == {}

    def test_what_is_asked_for_is_in_the_documentations_tables(self) -> None:
        places = ("metrics.md", "reference/exporter.md", "guides/outbox.md")
        pages = [(ROOT / "docs" / name).read_text() for name in places]
        cells = re.findall(r"^\| (`.*?) \|", "\n".join(pages), re.MULTILINE)
        documented = {name for cell in cells for name in re.findall(r"`(\w+)", cell)}

        for word, place in asked_for().items():
            suffix = next((each for each in SUFFIXES if word.endswith(each)), "")
            assert {word, word.removesuffix(suffix)} & documented, f"{place} asks for {word}"


def live(cluster: Cluster) -> set[str]:
    return names(http_get(cluster.port, "/metrics")[2].decode())


def names(text: str) -> set[str]:
    """Return the names of all samples of a scrape, and of metrics that have none yet."""
    families = list(parse(text))
    samples = {sample.name for family in families for sample in family.samples}
    return samples | {family.name for family in families}
