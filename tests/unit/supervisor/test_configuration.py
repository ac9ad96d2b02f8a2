"""A reload that needs a shard which the supervisor does not have: it is refused, and nothing changes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest

from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.sidekiq.queue_groups import GroupSetting, parse_group
from kiqcluster.sidekiq.routing import parse_rules
from kiqcluster.store.shards import parse_shards
from kiqcluster.supervisor.catalogue import Catalogue
from kiqcluster.supervisor.cluster.expansion import SlotPlan
from kiqcluster.supervisor.cluster.slots import Slot
from kiqcluster.supervisor.cluster.state import ClusterState
from kiqcluster.supervisor.configuration import ClusterConfiguration
from kiqcluster.supervisor.release_paths import ReleasePaths
from tests.kit import ManualClock
from tests.unit.supervisor.rolling_restart_stage import FakeQuery

GROUPS = [parse_group("default")]
WITH_EU = Config(shards=parse_shards({"eu": "redis://127.0.0.1:1/1"}))
RULES = parse_rules([["tags=eu", "far", "eu"]])


@pytest.mark.parametrize(
    ("new", "of_code"),
    [
        (dataclasses.replace(WITH_EU, routing=RULES), ()),
        (dataclasses.replace(WITH_EU, groups=(GroupSetting("far", "eu"),)), ()),
        (dataclasses.replace(WITH_EU, shard="eu"), ()),
        (WITH_EU, RULES),
    ],
    ids=["routing", "groups", "shard", "routing of the application"],
)
def test_a_reload_that_names_a_new_shard_is_refused_and_changes_nothing(
    new: Config, of_code: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where the releases go as well
    old, state, query, events = Config(), ClusterState(), FakeQuery(), Events()
    slot = Slot(SlotPlan(0, GROUPS[0], {"default": 1}, "random", 1))
    state.slots.append(slot)
    processes = SimpleNamespace(config=old, known_queues={})
    failures: list[str] = []
    events.listen(lambda event, fields: failures.append(str(fields["error"])) if event == "reload_failed" else None)
    releases = ReleasePaths(tmp_path)
    configuration = ClusterConfiguration(
        old, GROUPS, state, processes, releases, query, lambda: (new, GROUPS), pytest.fail, events, ManualClock(1.0)
    )

    assert configuration.reload("one") is None
    query.answer(Catalogue((), rules=of_code))

    assert "there is no shard 'eu'" in failures[0]
    assert "restart the supervisor for shards" in failures[0]
    assert (configuration.config, processes.config, processes.known_queues) == (old, old, {})
    assert (state.slots, state.reload.state, state.reloads["failed"]) == ([slot], "failed", 1)
