"""The process manager: who is asked to recover the units of a dead process, where slots serve several shards."""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any, cast

import pytest

from kiqcluster.ipc.frames import Channel
from kiqcluster.ipc.running_jobs import RunningJobs
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.sidekiq.queue_groups import parse_group
from kiqcluster.supervisor.cluster.child import Child, LastBeat
from kiqcluster.supervisor.cluster.expansion import SlotPlan
from kiqcluster.supervisor.cluster.slots import Slot
from kiqcluster.supervisor.cluster.state import ClusterState
from kiqcluster.supervisor.processes import ProcessManager
from tests.kit import ManualClock


class Shards:
    """Slots 0 and 1 in the default shard, 2 and 3 in another one, with a ready child each."""

    def __init__(self) -> None:
        clock, events = ManualClock(1_000.0), Events()
        self.state, self.events = ClusterState(), list[str]()
        events.listen(lambda event, _: self.events.append(event))
        unused, selector = cast(Any, None), selectors.DefaultSelector()
        self.processes = ProcessManager(Config(), self.state, unused, unused, selector, events, clock, Random(1))
        self._selector = selector
        self._ends: dict[int, Channel] = {}
        for number, shard in enumerate(("", "", "eu", "eu")):
            group = replace(parse_group("default"), shard=shard)
            slot = Slot(SlotPlan(number, group, {"default": 1}, "random", 1))
            ours, theirs = socket.socketpair()
            slot.child = Child(os.getpid(), Channel(ours), 1_000.0, LastBeat(1_000.0))
            slot.child.ready_at = 1_000.0
            self._ends[number] = Channel(theirs)
            self.state.slots.append(slot)

    def asked(self) -> dict[int, list[str]]:
        """Return slot → the identities that its child was asked to recover."""
        found: dict[int, list[str]] = {}
        for number, channel in self._ends.items():
            for frame in channel.receive():
                found[number] = sorted(frame["orphans"])
        return found

    def close(self) -> None:
        for slot in self.state.slots:
            for child in slot.children():
                child.channel.close()
        for channel in self._ends.values():
            channel.close()
        self._selector.close()


@pytest.fixture
def shards() -> Iterator[Shards]:
    shards = Shards()
    yield shards
    shards.close()


def test_units_are_recovered_by_a_process_of_their_shard(shards: Shards) -> None:
    slots = shards.state.slots
    slots[1].orphans["default:1"], slots[2].orphans["eu:2"], slots[3].orphans["eu:3"] = (), (), ()

    shards.processes.ask_sibling_to_recover()

    assert shards.asked() == {0: ["default:1"], 2: ["eu:2", "eu:3"]}


def test_nobody_is_asked_where_the_shard_has_no_process(shards: Shards) -> None:
    slots = shards.state.slots
    slots[2].orphans["eu:2"] = ()
    for slot in slots[2:]:
        assert slot.child is not None
        slot.child.ending.is_dead = True

    shards.processes.ask_sibling_to_recover()

    assert shards.asked() == {}


def test_a_retired_slot_leaves_its_orphans_to_one_of_its_shard(shards: Shards) -> None:
    slots = list(shards.state.slots)
    for slot in slots[2:]:
        assert slot.child is not None
        slot.child.channel.close()
    slots[2].orphans["eu:2"], slots[2].is_retiring, slots[2].child = (), True, None
    shards.processes._remove_retired_slots()

    assert (slots[3].orphans, slots[0].orphans) == ({"eu:2": ()}, {})

    slots[3].is_retiring, slots[3].child = True, None
    shards.processes._remove_retired_slots()
    assert (slots[0].orphans, shards.events) == ({}, ["cluster_stranded"]), (
        "others recover them after health.recover_after"
    )


def test_a_job_whose_process_is_being_killed_already_needs_no_other_kill(shards: Shards) -> None:
    child = shards.state.slots[0].child
    assert child is not None
    child.running_jobs = RunningJobs(1)
    child.running_jobs.start(0, "token", b'{"class":"slow","jid":"j"}')
    assert shards.processes.kill_job("other", "ann") == "runs no job other"

    child.ending.kill_reason = "silent"

    assert shards.processes.kill_job("j", "ann") is None
    assert child.ending.blamed_token == "", "why it is killed says who is to blame"
    child.running_jobs.close()
