"""Spans of a real cluster: all that ended are exported before its processes are gone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kiqcluster import Client
from kiqcluster.process.runtime import Setup
from tests.kit import Cluster, wait_until
from tests.stage import Stage
from tests.tracing import instrumented

RunCluster = Callable[..., Cluster]


@pytest.fixture
def traced(stage: Stage, tmp_path: Path) -> RunCluster:
    """Start a cluster that writes its spans to a file."""
    environ = {"KIQ_SPANS": str(tmp_path / "spans")}
    return lambda *arguments, **more: stage.run_cluster(*arguments, app="tests.apps.traced", **environ, **more)


@pytest.fixture
def spans(tmp_path: Path) -> Callable[[str], list[dict[str, Any]]]:
    """Return the exported spans of a name."""

    def spans(name: str) -> list[dict[str, Any]]:
        path = tmp_path / "spans"
        lines = path.read_text().splitlines() if path.exists() else []
        return [span for span in map(json.loads, lines) if span["name"] == name]

    return spans


def ids(context: dict[str, Any]) -> tuple[int, int]:
    return int(context["trace_id"], 16), int(context["span_id"], 16)


@pytest.mark.parametrize("more", [(), ("--preload",)], ids=["each loads it", "preload"])
def test_every_span_of_every_process_is_exported_before_it_ends(
    traced: RunCluster, stage: Stage, setup: Setup, spans: Callable[[str], list[dict[str, Any]]], more: tuple[str, ...]
) -> None:
    cluster = traced("default", "low", "-c", "3", *more)
    with instrumented() as pushed:
        Client().push_bulk({"class": "outer", "args": [[number] for number in range(50)]})
    stage.wait_noted(*(f"inner {number}" for number in range(50)))
    stage.wait_settled()
    assert spans("default process") == []  # none is due yet

    assert cluster.stop() == 0

    outer, publish, inner = spans("default process"), spans("low publish"), spans("low process")
    assert (len(outer), len(publish), len(inner)) == (50, 50, 50)
    origins = {(span.context.trace_id, span.context.span_id) for span in pushed.all() if span.context}
    assert {ids(span["links"][0]["context"]) for span in outer} == origins
    by_id = {ids(span["context"])[1]: span for span in outer}
    assert all(ids(span["context"])[0] == ids(by_id[int(span["parent_id"], 16)]["context"])[0] for span in publish)
    assert {ids(span["links"][0]["context"]) for span in inner} == {ids(span["context"]) for span in publish}
    assert len({span["pid"] for span in outer} & {span["pid"] for span in inner}) == 0


def test_a_failure_and_a_job_cut_short_by_a_stop_have_their_spans(
    traced: RunCluster, stage: Stage, spans: Callable[[str], list[dict[str, Any]]]
) -> None:
    cluster = traced("default", "-c", "2", "-t", "0.3")
    stage.push("failing")
    stage.push("stubborn", "a")
    stage.wait_noted("failing", "began a")

    assert cluster.stop() == 0

    found = {span["attributes"]["messaging.sidekiq.job_class"]: span for span in spans("default process")}
    assert found["failing"]["status"]["status_code"] == "ERROR"
    assert [event["name"] for event in found["stubborn"]["events"]][-1] == "interrupted"


def test_a_collector_that_does_not_answer_holds_up_no_stop(traced: RunCluster, stage: Stage) -> None:
    cluster = traced("default", "-c", "1", KIQ_EXPORT="hangs")
    stage.push_many("outer", [[1], [2]])
    wait_until(lambda: stage.store.call("LLEN", "queue:low") == 2, "the jobs to run")

    assert cluster.stop() == 0  # a worker that waits for it is killed in the end, which is another code

    assert "hangs" in stage.notes()
