"""The hooks of a push: a feature takes part by those that it has, whichever way a job is pushed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest

from kiqcluster import Client, job
from kiqcluster.application.registry import Definition
from kiqcluster.client.reenqueue import added, enqueued
from kiqcluster.features.stacks import Stacks, using_stacks
from kiqcluster.process.config import MIN_LIMITED_BYTES
from kiqcluster.process.runtime import Push, Setup
from kiqcluster.sidekiq.outcome import Effect
from kiqcluster.sidekiq.payload import Payload
from kiqcluster.sidekiq.ruby_json import JSON
from kiqcluster.store.entry_moves import Told
from tests.unit.features.test_size_limiter import Written


class Feature:
    """Has all hooks, and notes their calls."""

    key = "noted"

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def on_draft(self, options: Mapping[str, JSON]) -> Mapping[str, JSON]:
        self.calls.append("on_draft")
        return {**options, "noted": 1}

    def on_named_jid(self, push: Push) -> Iterable[Effect]:
        self.calls.append("on_named_jid")
        return [Effect("unmark", "named", (push.payload["jid"],))]

    def is_used_by(self, definition: Definition) -> bool:
        return definition.queue == "used"

    def on_push(self, push: Push, definition: Definition) -> Iterable[Effect]:
        self.calls.append("on_push")
        return [Effect("count_refused", "pushed", (definition.name,))]

    def on_encode(self, _setup: Setup, push: Push, _definition: Definition | None) -> None:
        self.calls.append("on_encode")
        push.payload = {**push.payload, "noted": 2}

    def looks_at(self, _setup: Setup, size: int) -> bool:
        return size >= MIN_LIMITED_BYTES

    def on_encoded(self, _setup: Setup, _name: str, _definition: Definition | None, encoded: bytes) -> bytes:
        self.calls.append("on_encoded")
        return encoded.replace(b'"noted":2', b'"noted":3')

    def on_moved_by_hand(self, payload: Payload, _now: float) -> Collection[str]:
        self.calls.append("on_moved_by_hand")
        return ["held"] if "held" in payload else []

    def on_dropped(self, raw: bytes, reason: str) -> Iterable[Told]:
        self.calls.append("on_dropped")
        return [Told("1", 60, raw + reason.encode())]


@pytest.fixture
def calls() -> list[str]:
    return []


@pytest.fixture(autouse=True)
def features(calls: list[str]) -> Any:
    with using_stacks(Stacks(client=(Feature(calls),))):
        yield


LARGE = "x" * MIN_LIMITED_BYTES


def test_the_hooks_come_in_order_and_each_sees_what_the_one_before_has_done(written: Written, calls: list[str]) -> None:
    used = job(name="used", queue="used")(lambda text: None)

    Client().push({"class": used, "args": [LARGE], "jid": "7"})

    assert calls == ["on_draft", "on_named_jid", "on_push", "on_encode", "on_encoded"]
    assert [row.operation for row in written.jobs[0].rows] == ["unmark", "count_refused"]
    assert written.payloads()[0]["noted"] == 3


def test_a_bulk_push_has_them_too(written: Written, calls: list[str]) -> None:
    used = job(name="used", queue="used")(lambda text: None)

    used.perform_bulk([[LARGE], ["small"]])

    assert calls == ["on_draft", "on_push", "on_encode", "on_encoded", "on_push", "on_encode"]
    assert [each["noted"] for each in written.payloads()] == [3, 2]


def test_a_class_that_is_not_registered_has_all_but_those_of_classes(written: Written, calls: list[str]) -> None:
    Client().push({"class": "Unknown", "args": [1]})

    assert calls == ["on_draft", "on_encode"]
    assert written.jobs[0].rows == ()


WAITS = b'{"class":"X","jid":"1","queue":"q","args":[],"held":1}'


def test_a_waiting_job_that_somebody_moves_loses_what_would_keep_it_from_running(
    setup: Setup, calls: list[str]
) -> None:
    assert b"held" in enqueued(setup, WAITS, 0.0).new
    assert calls == []

    assert b"held" not in added(setup, WAITS, 0.0).new
    assert calls == ["on_moved_by_hand"]


def test_whoever_waits_for_a_job_is_told_that_middleware_drops_it(setup: Setup, calls: list[str]) -> None:
    setup.client_middleware.add(lambda _push, _call_next: None)

    move = enqueued(setup, WAITS, 0.0)

    assert (move.verb, move.told) == ("drop", [Told("1", 60, WAITS + b"middleware")])
    assert calls == ["on_dropped"]
