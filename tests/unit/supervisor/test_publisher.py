"""Publisher: what children publish of their cluster, and how often it is sent to them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from kiqcluster.control.orders import AlreadyLogged
from kiqcluster.sidekiq.queue_groups import parse_group
from kiqcluster.supervisor.cluster.child import Child, Ending, LastBeat
from kiqcluster.supervisor.cluster.expansion import SlotPlan
from kiqcluster.supervisor.cluster.slots import Slot
from kiqcluster.supervisor.cluster.state import ClusterState, ReloadReport
from kiqcluster.supervisor.publisher import (
    MAX_ANSWERS,
    MAX_CHILDREN,
    MAX_INTERVAL_SECONDS,
    MIN_INTERVAL_SECONDS,
    Publisher,
)
from tests.kit import ManualClock


class FakeProcesses:
    """Its children are told nothing; what they would be is kept."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self.published: list[dict[str, Any]] = []

    def children(self) -> Iterator[tuple[Slot, Child]]:
        for slot in self._state.slots:
            for child in slot.children():
                yield slot, child

    def broadcast(self, kind: str, **fields: Any) -> None:
        assert kind == "cluster"
        self.published.append(json.loads(json.dumps(fields["state"])))


class Stage:
    """A cluster of some slots whose children serve."""

    def __init__(self, slots: int) -> None:
        self.state = ClusterState()
        self.clock = ManualClock(1_000.0)
        self.processes = FakeProcesses(self.state)
        for number in range(slots):
            slot = Slot(SlotPlan(number, parse_group("default"), {"default": 1}, "random", 1))
            slot.child = self.child(number)
            self.state.slots.append(slot)
        self.publisher = Publisher("here:1:abc", self.state, self.processes, self.clock)  # type: ignore[arg-type]

    def child(self, number: int, *, redis: bool = True, **fields: Any) -> Child:
        about = {"ready_at": 900.0, "release": "/r/1", **fields}
        return Child(100 + number, None, 0.0, LastBeat(0.0, redis=redis), **about)  # type: ignore[arg-type]  # it has no socket

    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(json.dumps(self.publisher.document()))["children"]
        return rows

    def tell(self, after: float = 0.0) -> int:
        """Have a turn after so many seconds; return how often it has been told."""
        self.clock.time += after
        self.publisher.publish_if_due()
        return len(self.processes.published)


@pytest.fixture
def stage() -> Stage:
    return Stage(2)


def test_each_process_has_a_row_with_the_release_that_it_runs(stage: Stage) -> None:
    slot = stage.state.slots[1]
    assert slot.child is not None
    slot.leaving.append(replace(slot.child, pid=7, ending=Ending(stop_deadline=1_005.0)))
    slot.child = stage.child(1, release="/r/2", generation=1, ready_at=None, waits_for="Redis", redis=False)

    first, second, third = stage.rows()

    assert first == {
        "slot": 0, "pid": 100, "state": "ready", "release": "/r/1", "generation": 0, "backoff": 0.0, "waits_for": "",
        "redis": True, "restarts": 0, "died_at": None,
    }  # fmt: skip
    assert (second["pid"], second["state"], second["waits_for"], second["redis"]) == (101, "booting", "Redis", False)
    assert (second["release"], second["generation"]) == ("/r/2", 1)
    assert (third["slot"], third["pid"], third["state"], third["release"]) == (1, 7, "stopping", "/r/1")


def test_a_slot_that_backs_off_has_a_row_without_a_process(stage: Stage) -> None:
    slot = stage.state.slots[0]
    slot.child, slot.history = None, replace(slot.history, not_before=1_005.25)

    row = stage.rows()[0]

    assert (row["pid"], row["state"], row["backoff"]) == (None, "backoff", 5.2)


def test_of_very_many_those_that_do_not_serve_are_told_of_first() -> None:
    stage = Stage(MAX_CHILDREN + 10)
    stage.state.slots[-1].child = None

    rows = stage.rows()

    assert len(rows) == MAX_CHILDREN
    assert rows[0]["state"] == "backoff"


def test_what_concerns_the_cluster_is_told_at_once_and_else_now_and_then(stage: Stage) -> None:
    assert [stage.tell(), stage.tell(), stage.tell(MAX_INTERVAL_SECONDS / 2)] == [1, 1, 1]

    stage.state.quiet.begin("Ann", 60.0, stage.clock.time, 5.0)

    assert [stage.tell(), stage.tell(), stage.tell(MAX_INTERVAL_SECONDS)] == [2, 2, 3]
    assert [each["quiet_by"] for each in stage.processes.published] == ["", "Ann", "Ann"]


def test_how_a_reload_goes_is_told_at_once(stage: Stage) -> None:
    assert stage.tell() == 1
    assert stage.processes.published[0]["reload"] is None

    stage.state.reload = ReloadReport("mine")
    assert stage.tell() == 2
    stage.state.reload.state, stage.state.reload.error = "failed", "no TOML"

    assert stage.tell() == 3
    assert [(each["reload"]["id"], each["reload"]["state"]) for each in stage.processes.published[1:]] == [
        ("mine", "reloading"),
        ("mine", "failed"),
    ]


def test_what_concerns_one_process_waits_until_a_second_has_passed(stage: Stage) -> None:
    child = stage.state.slots[0].child
    assert child is not None
    stage.tell()

    child.beat.redis = False

    assert [
        stage.tell(MIN_INTERVAL_SECONDS / 2),
        stage.tell(MIN_INTERVAL_SECONDS / 2),
        stage.tell(MIN_INTERVAL_SECONDS),
    ] == [1, 2, 2]
    assert [each["children"][0]["redis"] for each in stage.processes.published] == [True, False]


def test_the_latest_answers_are_shown(stage: Stage) -> None:
    for number in range(MAX_ANSWERS + 3):
        stage.publisher.answer(str(number), None)
    stage.publisher.answer("last", AlreadyLogged("no such file"))
    stage.tell()

    answers = stage.processes.published[0]["answers"]

    assert len(answers) == MAX_ANSWERS
    assert answers["last"] == "no such file"
