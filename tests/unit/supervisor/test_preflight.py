"""Preflight: what a start with the configuration of a new release would change, or why it would fail."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from kiqcluster.errors import UsageError
from kiqcluster.process.config import Config
from kiqcluster.sidekiq.queue_groups import Group, parse_group
from kiqcluster.sidekiq.selectors import attributes_of
from kiqcluster.supervisor.cluster.expansion import groups_from, plan_slots
from kiqcluster.supervisor.cluster.slots import Slot
from kiqcluster.supervisor.preflight import PreflightReport, prepare

KNOWN = frozenset({"default", "mailers"})
RUNNING = Config(groups=("default", "mailers"))
JOBS = [attributes_of("A", "default", {"urgency": "high"}), attributes_of("B", "mailers", {})]


def preflight(new: Config, running: Config = RUNNING) -> PreflightReport:
    """Return that of a cluster which runs two groups."""
    slots = [Slot(plan) for plan in plan_slots([parse_group(text) for text in running.groups], KNOWN, running)]
    return prepare(lambda: (new, groups_from((), (), new)), slots, running)(
        lambda config: (KNOWN | {*config.queues}, JOBS)
    )


def test_the_same_configuration_changes_nothing() -> None:
    assert preflight(RUNNING) == PreflightReport()


@pytest.mark.parametrize("groups", [("default",), ("default", "mailers", "default"), ("default=2", "mailers")])
def test_other_groups_wait_for_a_reload(groups: tuple[str, ...]) -> None:
    assert preflight(Config(groups=groups)) == PreflightReport(reload=("groups",))


def test_the_same_groups_in_another_order_or_from_the_command_line_do_not() -> None:
    slots = [Slot(plan) for plan in plan_slots([parse_group("default")], KNOWN, RUNNING)]
    given = [parse_group("default")]

    assert preflight(Config(groups=("mailers", "default"))) == PreflightReport()
    assert prepare(lambda: (Config(groups=("x",)), given), slots, RUNNING)(lambda _: (KNOWN, JOBS)) == PreflightReport()


def test_other_numbers_of_threads_are_another_group_only_where_they_differ() -> None:
    assert preflight(Config(groups=RUNNING.groups, concurrency=7)) == PreflightReport(reload=("groups",))
    assert preflight(Config(groups=RUNNING.groups, max_concurrency=5)) == PreflightReport()


def test_settings_wait_for_a_reload_or_a_new_supervisor() -> None:
    new = Config(groups=RUNNING.groups, stop_timeout=5.0, max_retries=3, redis="redis://elsewhere", log_level="debug")

    assert preflight(new) == PreflightReport(reload=("stop.timeout", "max_retries"), restart=("redis", "log.level"))


def test_selectors_are_evaluated_over_the_jobs_of_the_release() -> None:
    assert preflight(Config(queue_selector=True, groups=("urgency=high",))) == PreflightReport(reload=("groups",))
    assert "no registered job matches" in preflight(Config(queue_selector=True, groups=("tags=x",))).error


def test_a_configuration_that_cannot_be_used_is_why_a_start_would_fail(tmp_path: Path) -> None:
    def refuse() -> tuple[Config, Sequence[Group]]:
        raise UsageError("there is no setting 'concurency'")

    def vanish() -> tuple[Config, Sequence[Group]]:
        os.chdir(tmp_path / "gone")
        raise AssertionError

    assert prepare(refuse, [], RUNNING)(lambda _: (KNOWN, JOBS)).error == "there is no setting 'concurency'"
    assert "gone" in prepare(vanish, [], RUNNING)(lambda _: (KNOWN, JOBS)).error
    assert "leaves no queue" in preflight(Config(groups=("*",), negate=True)).error
