"""The engine and the client as a state machine: in whatever order things happen, each job pushed is in one place.

Places are the queues, the wake lists, in flight, the retry, schedule and dead sets, and the account of those that have
ended.  Hypothesis chooses the order, and shows the shortest one that breaks the law.  KIQ_CHAOS=full looks much longer.
"""

from __future__ import annotations

from random import Random
from typing import ClassVar

import hypothesis
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kiqcluster import Client
from kiqcluster.errors import RedisRefused, RedisUnavailable, ReplyLost
from kiqcluster.process.config import Config
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.keys import Keys
from kiqcluster.store import Store
from tests.chaos.scale import sized
from tests.properties.model import KINDS, NOW, QUEUES, SMALL_BATCH, Fault, Process, Wire, WireStore, World

pytestmark = pytest.mark.timeout(sized(120, 3_600))
FLEET = 4  # processes that are awake at the most
FAR = NOW * 2  # a due time that no clock has reached
SPOILED = ("retry", "schedule", "dead", "queue:low")

faults = st.just(Fault.NONE) | st.sampled_from(Fault)
queues = st.sampled_from(QUEUES)
indexes = st.integers(0, 7)


# Functions with names: hypothesis parses the source of a lambda at each step, which Python 3.11.2 fails now and then.


def has_room(machine: Jobs) -> bool:
    return len(machine.world.awake()) < FLEET


def has_late_commands(machine: Jobs) -> bool:
    return bool(machine.world.late)


def is_spoiled(machine: Jobs) -> bool:
    return bool(machine.world.spoiled)


class Jobs(RuleBasedStateMachine):
    """A few processes; each rule is one thing that one of them, the network or somebody else does."""

    store: ClassVar[Store]

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.store)
        self.wire = Wire(self.world)
        self.client = Client(WireStore(self.wire, Keys()), Setup(config=Config()))

    @initialize()
    def somebody_is_there(self) -> None:
        self.world.spawn().round(0)

    def process(self, index: int) -> Process:
        """Return one that is awake; a new one where nobody is."""
        awake = self.world.awake()
        return awake[index % len(awake)] if awake else self.world.spawn()

    # jobs

    @rule(count=st.integers(1, 4), queue=queues, at=st.sampled_from([None, None, FAR]), fault=faults)
    def push(self, count: int, queue: str, at: float | None, fault: Fault) -> None:
        """One by itself, more of them in bulk; to a queue or to the schedule."""
        item = {"class": "any", "args": [[]] * count, "queue": queue, **({"at": at} if at else {})}
        self.wire.fault = fault
        try:
            jids = [self.client.push({**item, "args": []})] if count == 1 else self.client.push_bulk(item)
        except ReplyLost as error:
            self.world.maybe |= {jid.encode() for jid in error.jids}
        except RedisUnavailable:
            pass
        except RedisRefused:
            assert self.world.spoiled
        else:
            self.world.jobs |= {str(jid).encode() for jid in jids}
        self.wire.fault = Fault.NONE

    @rule(index=indexes, wanted=st.sampled_from([0, 1, 2, 4, 40]), fault=faults)
    def reserve(self, index: int, wanted: int, fault: Fault) -> None:
        """Settle what is finished, too; or resync, where that is due."""
        self.process(index).round(wanted, fault)

    @rule(index=indexes, fault=faults)
    def settle(self, index: int, fault: Fault) -> None:
        self.process(index).round(None, fault)

    @rule(index=indexes, which=st.lists(indexes, min_size=1, max_size=3), kind=st.sampled_from(KINDS))
    def finish(self, index: int, which: list[int], kind: str) -> None:
        """A job ends well, fails, is discarded, deferred, interrupted, or was not started."""
        process = self.process(index)
        for each in which:
            if tokens := process.unfinished():
                process.finish(tokens[each % len(tokens)], kind)

    @rule(index=indexes, fault=faults)
    def poll(self, index: int, fault: Fault) -> None:
        self.process(index).poll(fault)

    @rule(index=indexes, queue=queues)
    def arm_and_ring(self, index: int, queue: str) -> None:
        self.process(index).arm(queue)
        self.world.ring(len(self.world.armed) - 1)

    # processes

    @precondition(has_room)
    @rule()
    def start(self) -> None:
        self.world.spawn().round(0)

    @rule(index=indexes)
    def crash(self, index: int) -> None:
        self.process(index).die()

    @rule(index=indexes)
    def freeze(self, index: int) -> None:
        self.process(index).is_frozen = True

    @rule(index=indexes)
    def wake(self, index: int) -> None:
        frozen = [process for process in self.world.processes if process.is_alive and process.is_frozen]
        if frozen:
            frozen[index % len(frozen)].is_frozen = False

    @rule(
        index=indexes, whom=indexes, has_seen=st.sampled_from(["it is gone", "its beat", "an old beat"]), fault=faults
    )
    def recover(self, index: int, whom: int, has_seen: str, fault: Fault) -> None:
        """Any member, dead or not: only its own wake-up can tell."""
        process = self.process(index)
        scores = sorted(self.world.scores().items())
        if scores:
            identity, score = scores[whom % len(scores)]
            process.sweep(identity, fault, {"it is gone": None, "its beat": score, "an old beat": 0}[has_seen])

    @rule(index=indexes)
    def quiet(self, index: int) -> None:
        """Units that have not started go back."""
        self.process(index).give_back()

    @rule(index=indexes)
    def resume(self, index: int) -> None:
        self.process(index).quiet = False

    @rule(index=indexes, fault=faults)
    def stop(self, index: int, fault: Fault) -> None:
        self.process(index).stop(fault)

    @rule(index=indexes, fault=faults)
    def resync(self, index: int, fault: Fault) -> None:
        process = self.process(index)
        process.unsure = True
        process.round(0, fault)

    # the network and the server

    @precondition(has_late_commands)
    @rule(index=indexes)
    def late_command(self, index: int) -> None:
        self.world.arrive(index % len(self.world.late))

    @rule(key=st.sampled_from(SPOILED))
    def spoil(self, key: str) -> None:
        """Somebody writes something of another type."""
        self.world.spoil(key)

    @precondition(is_spoiled)
    @rule()
    def mend(self) -> None:
        self.world.mend()

    @invariant()
    def each_job_is_in_exactly_one_place(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        """Whatever was done, it can all be finished."""
        self.world.calm(Random(0))


def test_each_pushed_job_is_in_exactly_one_place(store: Store, seed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kiqcluster.store.engine.engine.MAX_RETURNED", SMALL_BATCH)
    monkeypatch.setattr("kiqcluster.store.engine.settle_calls.MAX_OUTCOMES", SMALL_BATCH)
    print(f"KIQ_SEED={seed}")

    @hypothesis.seed(int(seed))
    class OnThisStore(Jobs):
        pass

    OnThisStore.store = store
    run_state_machine_as_test(
        OnThisStore,
        settings=settings(
            max_examples=sized(30, 5_000),
            stateful_step_count=sized(40, 100),
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )
