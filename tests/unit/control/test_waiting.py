"""Waiting: when it ends, and what it calls wrong; with views that the test makes up and a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from kiqcluster.control.cluster_document import ClusterStatus, WorkerStatus
from kiqcluster.control.control_messages import Message
from kiqcluster.control.transports import Answer
from kiqcluster.control.waiting import MAX_OUTAGE_SECONDS, MIN_PROBLEM_SECONDS, Waiter
from kiqcluster.errors import RedisRefused, RedisUnavailable, StoreError
from tests.kit import ManualClock

NAME = "app-1:1:a"
BUSY, IDLE = 2, 0


def status(
    busy: int = IDLE, *, quiet: bool = True, by: str = "kiqctl@x", roll: dict[str, Any] | None = None
) -> ClusterStatus:
    worker = WorkerStatus("app-1:2:b", 2, ("default",), 5, busy, quiet, 0, 0.0)
    return ClusterStatus(NAME, "app-1", "1", 1, (worker,), quiet_by=by, roll=roll)


def roll(state: str, *, ident: str = "mine", error: str = "") -> ClusterStatus:
    return status(roll={"id": ident, "state": state, "done": 1, "of": 2, "error": error})


class Script:
    """A way whose clusters do one thing after the other, a second each; the last goes on."""

    def __init__(self, *scenes: ClusterStatus | StoreError | None) -> None:
        self.clock = ManualClock(1_000.0)
        self._scenes = scenes
        self._began = self.clock.time

    def send(self, message: Message) -> Sequence[Answer]:
        raise AssertionError

    def statuses(self) -> Mapping[str, ClusterStatus]:
        scene = self._scenes[min(int(self.clock.time - self._began), len(self._scenes) - 1)]
        if isinstance(scene, StoreError):
            raise scene
        return {} if scene is None else {NAME: scene}

    @property
    def took(self) -> float:
        return self.clock.time - self._began

    def waiter(self) -> Waiter:
        def pause(seconds: float) -> None:
            self.clock.time += seconds

        return Waiter(self.clock, pause)


def drain(
    script: Script, timeout: float | None = None, report: Callable[[str], object] = lambda _: None
) -> dict[str, str]:
    return script.waiter().until_drained(script, [NAME], timeout, report)


def await_roll(script: Script, timeout: float | None = None) -> dict[str, str]:
    return script.waiter().until_rolled(script, [NAME], "mine", timeout, lambda _: None)


class TestDrained:
    def test_it_ends_when_nothing_runs(self) -> None:
        script, printed = Script(status(BUSY), status(1), status(IDLE)), list[str]()

        assert drain(script, report=printed.append) == {}
        assert 2.0 <= script.took < 3.0
        assert list(dict.fromkeys(printed)) == ["2 jobs still run", "1 job still runs"]

    def test_a_worker_that_still_fetches_has_not_drained_though_it_runs_nothing(self) -> None:
        script = Script(status(IDLE, quiet=False), status(IDLE))

        assert drain(script) == {}
        assert script.took >= 1.0

    def test_a_cluster_that_ends_has_drained(self) -> None:
        assert drain(Script(status(BUSY), None)) == {}

    def test_jobs_that_run_on_are_waited_for_as_long_as_it_takes(self) -> None:
        script = Script(*[status(BUSY)] * 5_000, status(IDLE))

        assert drain(script) == {}
        assert script.took >= 5_000

    def test_a_timeout_names_those_that_are_not_done(self) -> None:
        assert drain(Script(status(BUSY)), timeout=90.0) == {NAME: "not within 1m 30s"}

    def test_a_timeout_of_nothing_looks_once(self) -> None:
        assert drain(Script(status(IDLE)), timeout=0.0) == {}
        assert drain(Script(status(BUSY)), timeout=0.0) == {NAME: "not within 0s"}

    def test_a_quiet_that_has_ended_is_an_error_once_that_is_certain(self) -> None:
        script = Script(status(BUSY), status(BUSY, quiet=False, by=""))

        (problem,) = drain(script).values()

        assert "no longer quiet" in problem
        assert MIN_PROBLEM_SECONDS <= script.took < MIN_PROBLEM_SECONDS + 3

    def test_older_news_from_one_of_the_processes_is_no_error(self) -> None:
        script = Script(status(BUSY), status(BUSY, quiet=False, by=""), status(BUSY), status(IDLE))

        assert drain(script) == {}

    def test_what_is_wrong_now_and_then_is_no_error_however_often(self) -> None:
        wrong, right = status(BUSY, quiet=False, by=""), status(BUSY)

        assert drain(Script(*[wrong, right] * int(2 * MIN_PROBLEM_SECONDS), status(IDLE))) == {}


class TestRolled:
    def test_it_ends_when_the_roll_is_done(self) -> None:
        assert await_roll(Script(roll("rolling"), roll("rolling"), roll("done"))) == {}

    def test_a_roll_that_failed_is_an_error_with_its_reason(self) -> None:
        assert await_roll(Script(roll("rolling"), roll("failed", error="slot 0 did not boot"))) == {
            NAME: "slot 0 did not boot"
        }

    def test_a_cluster_between_two_processes_is_not_gone(self) -> None:
        assert await_roll(Script(roll("rolling"), *[None] * int(MIN_PROBLEM_SECONDS - 1), roll("done"))) == {}

    def test_a_cluster_that_is_gone_has_not_rolled(self) -> None:
        script = Script(roll("rolling"), None)

        assert await_roll(script) == {NAME: "is gone"}
        assert script.took < MIN_PROBLEM_SECONDS + 3

    def test_several_clusters_report_each_step_once(self) -> None:
        lines: list[str] = []

        class Two(Script):
            def statuses(self) -> Mapping[str, ClusterStatus]:
                return dict.fromkeys(("a", "b"), *super().statuses().values())

        script = Two(*[roll("rolling")] * 3, roll("done"))
        problems = script.waiter().until_rolled(script, ["a", "b"], "mine", None, lines.append)

        assert problems == {}
        assert lines == [f"{name}: 1 of 2 workers replaced" for name in ("a", "b")]

    def test_another_roll_is_not_ours(self) -> None:
        assert await_roll(Script(roll("done", ident="theirs"))) == {
            NAME: "reports another roll, theirs, which has replaced this one"
        }


class TestOutage:
    def test_an_outage_is_waited_for(self) -> None:
        max_outage = RedisUnavailable("no route")

        assert drain(Script(status(BUSY), *[max_outage] * int(MAX_OUTAGE_SECONDS - 5), status(IDLE))) == {}

    def test_one_that_lasts_is_raised(self) -> None:
        script = Script(status(BUSY), RedisUnavailable("no route"))

        with pytest.raises(RedisUnavailable):
            drain(script)
        assert MAX_OUTAGE_SECONDS <= script.took < MAX_OUTAGE_SECONDS + 3

    def test_a_timeout_holds_while_redis_is_away(self) -> None:
        assert drain(Script(RedisUnavailable("no route")), timeout=5.0) == {NAME: "not within 5s"}

    def test_a_refusal_is_raised_at_once(self) -> None:
        script = Script(RedisRefused("NOAUTH Authentication required."))

        with pytest.raises(RedisRefused):
            drain(script)
        assert script.took == 0
