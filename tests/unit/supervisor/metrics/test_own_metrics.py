"""Own metrics: what the supervisor knows itself; no counter goes back when children die."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from kiqcluster.control.orders import BY_SIGNAL
from kiqcluster.ipc.negotiation import TEXT
from kiqcluster.sidekiq.queue_groups import parse_group
from kiqcluster.supervisor.cluster.child import Child, LastBeat
from kiqcluster.supervisor.cluster.expansion import SlotPlan
from kiqcluster.supervisor.cluster.slots import Slot
from kiqcluster.supervisor.cluster.state import ClusterState, Roll, RollPhase
from kiqcluster.supervisor.fork import reap
from kiqcluster.supervisor.metrics.own_metrics import REASONS, TURN_WINDOW_SECONDS, USAGE_CACHE_SECONDS, OwnMetrics
from tests.kit import ManualClock, wait_until

UNUSED_PID = 1 << 22  # beyond every pid
CPU_SECONDS = 0.3  # CPU seconds


class Stage:
    def __init__(self) -> None:
        self.clock = ManualClock(1_000.0)
        self.state = ClusterState(
            slots=[Slot(SlotPlan(number, parse_group("*"), {}, "random", 1)) for number in range(2)]
        )
        self.own = OwnMetrics(self.state, self.clock)

    def child(self, pid: int = UNUSED_PID, slot: int = 0) -> Child:
        """Return a new process, in charge of a slot."""
        child = Child(pid, None, started_at=990.0, beat=LastBeat(990.0))  # type: ignore[arg-type]  # it has no socket
        self.state.slots[slot].child = child
        return child

    def shown(self) -> dict[str, float]:
        steps = self.own.page(TEXT)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                lines = [line for line in end.value.splitlines() if not line.startswith("#")]
                return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}

    def of_slot(self, name: str, slot: int = 0) -> float | None:
        return self.shown().get(f'kiqcluster_{name}{{slot="{slot}"}}')


@pytest.fixture
def stage() -> Stage:
    """Two slots without processes."""
    return Stage()


class TestSlots:
    def test_slots_are_counted_by_state(self, stage: Stage) -> None:
        stage.child().ready_at = 995.0

        shown = stage.shown()
        states = {name: shown[f'kiqcluster_children{{state="{name}"}}'] for name in ("ready", "backoff", "booting")}
        assert states == {"ready": 1, "backoff": 1, "booting": 0}

    def test_restarts_of_every_reason_are_there_from_the_start(self, stage: Stage) -> None:
        stage.state.slots[1].restarts["killed"] += 2

        shown = stage.shown()
        for reason in REASONS:
            assert shown[f'kiqcluster_child_restarts_total{{reason="{reason}",slot="0"}}'] == 0
        assert shown['kiqcluster_child_restarts_total{reason="killed",slot="1"}'] == 2

    def test_a_process_is_told_by_its_slot(self, stage: Stage) -> None:
        child = stage.child()
        child.ready_at, child.beat.epoch, child.generation, child.beat.prefetched = 992.5, 5_000.0, 3, 7
        child.beat.redis = True

        assert stage.of_slot("child_boot_seconds") == 2.5
        assert stage.of_slot("child_last_beat_timestamp_seconds") == 5_000
        assert stage.of_slot("child_generation") == 3
        assert stage.of_slot("prefetched_units") == 7
        assert stage.of_slot("redis_up") == 1

    def test_what_only_a_process_can_have_is_not_there_without_one(self, stage: Stage) -> None:
        stage.child()

        names = ("child_resident_memory_bytes", "child_open_fds", "child_generation", "prefetched_units", "redis_up")
        assert all(stage.of_slot(name, slot=1) is None for name in names)
        assert stage.of_slot("child_boot_seconds") is None
        assert stage.of_slot("redis_up") is None  # it boots, and nobody knows

    def test_a_slot_that_backs_off_tells_for_how_long(self, stage: Stage) -> None:
        slot = stage.state.slots[0]
        slot.history = replace(slot.history, not_before=1_004.5)

        assert stage.of_slot("child_backoff_seconds") == 4.5
        stage.child()
        assert stage.of_slot("child_backoff_seconds") == 0


class TestProcesses:
    def test_a_live_process_has_memory_descriptors_and_cpu(self, stage: Stage) -> None:
        stage.child(os.getpid())

        assert (stage.of_slot("child_resident_memory_bytes") or 0) > 1e6
        assert (stage.of_slot("child_open_fds") or 0) > 2
        assert (stage.of_slot("child_cpu_seconds_total") or 0) > 0

    def test_after_its_end_what_was_read_last_stays(self, stage: Stage) -> None:
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        try:
            stage.child(process.pid)
            before = stage.of_slot("child_resident_memory_bytes")
            assert before
        finally:
            process.kill()
            process.communicate()
        stage.clock.time += USAGE_CACHE_SECONDS
        after = stage.of_slot("child_resident_memory_bytes")

        assert after == before

    def test_cpu_and_round_trips_of_the_dead_stay(self, stage: Stage) -> None:
        child = stage.child(os.getpid())
        child.beat.round_trips, child.beat.round_trip_seconds = 5, 0.5
        before = stage.of_slot("child_cpu_seconds_total") or 0
        stage.state.slots[0].child = None
        stage.own.on_child_exit(stage.state.slots[0], child)
        younger = stage.child()
        younger.beat.round_trips, younger.beat.round_trip_seconds = 2, 0.25

        assert (stage.of_slot("child_cpu_seconds_total") or 0) >= before > 0
        assert stage.of_slot("fetch_round_trips_total") == 7
        assert stage.of_slot("fetch_round_trip_seconds_total") == 0.75

    def test_no_counter_falls_by_the_order_in_which_children_end(self, stage: Stage) -> None:
        slot = stage.state.slots[0]
        children = [stage.child(UNUSED_PID + number) for number in range(3)]
        for child, seconds in zip(children, (0.3, 0.2, 0.1), strict=True):
            child.ending.cpu = child.beat.round_trip_seconds = seconds
        slot.child, slot.leaving = children[0], children[1:]
        before = stage.of_slot("child_cpu_seconds_total"), stage.of_slot("fetch_round_trip_seconds_total")

        for child in children[:0:-1]:
            slot.leaving.remove(child)
            stage.own.on_child_exit(slot, child)

        assert before == (stage.of_slot("child_cpu_seconds_total"), stage.of_slot("fetch_round_trip_seconds_total"))

    def test_what_a_process_used_after_the_last_look_counts_once_it_is_dead(self, stage: Stage) -> None:
        burns = f"try: input()\nexcept EOFError: pass\nimport time\nwhile time.process_time() < {CPU_SECONDS}: pass"
        process = subprocess.Popen([sys.executable, "-c", burns], stdin=subprocess.PIPE)
        assert process.stdin is not None
        child = stage.child(process.pid)
        before = stage.of_slot("child_cpu_seconds_total") or 0

        process.stdin.close()
        child.ending.cpu = wait_until(lambda: reap(process.pid), "it to end").cpu
        process.wait()
        stage.state.slots[0].child = None
        stage.own.on_child_exit(stage.state.slots[0], child)

        assert before < CPU_SECONDS <= (stage.of_slot("child_cpu_seconds_total") or 0)

    def test_in_a_rolling_restart_all_processes_of_a_slot_count(self, stage: Stage) -> None:
        slot = stage.state.slots[0]
        old = stage.child()
        old.beat.round_trips = 5
        slot.leaving.append(old)
        stage.child(UNUSED_PID + 1).beat.round_trips = 2
        assert stage.of_slot("fetch_round_trips_total") == 7

        slot.leaving.clear()
        stage.own.on_child_exit(slot, old)
        assert stage.of_slot("fetch_round_trips_total") == 7


class TestCluster:
    def test_without_a_quiet_its_figures_are_zero(self, stage: Stage) -> None:
        shown = stage.shown()

        names = ("", "_since_timestamp_seconds", "_lease_remaining_seconds", "_lease_expirations_total")
        assert [shown[f"kiqcluster_quiet{name}"] for name in names] == [0, 0, 0, 0]

    @pytest.mark.parametrize(("lease", "left"), [(60.0, 50.0), (0.0, math.inf)])
    def test_a_quiet_tells_since_when_and_for_how_long(self, stage: Stage, lease: float, left: float) -> None:
        stage.state.quiet.begin(BY_SIGNAL, lease, 990.0, 7_000.0)

        shown = stage.shown()
        assert shown["kiqcluster_quiet"] == 1
        assert shown["kiqcluster_quiet_since_timestamp_seconds"] == 7_000
        assert shown["kiqcluster_quiet_lease_remaining_seconds"] == left

    def test_what_has_happened_is_counted(self, stage: Stage) -> None:
        state = stage.state
        state.rolls["failed"] += 1
        state.reloads["done"] += 2
        state.recovered, state.fenced, state.quiet.expirations, stage.own.refused = 3, 4, 5, 6
        state.roll = Roll("x")
        state.restart_needed = "1.2 is installed"

        shown = stage.shown()
        assert shown['kiqcluster_rolls_total{result="failed"}'] == 1
        assert shown['kiqcluster_rolls_total{result="done"}'] == 0
        assert shown['kiqcluster_reloads_total{result="done"}'] == 2
        assert shown["kiqcluster_recovered_units_total"] == 3
        assert shown["kiqcluster_lost_memberships_total"] == 4
        assert shown["kiqcluster_quiet_lease_expirations_total"] == 5
        assert shown["kiqcluster_series_refused_total"] == 6
        assert shown["kiqcluster_rolling"] == shown["kiqcluster_restart_needed"] == 1
        state.roll.phase = RollPhase.DONE
        assert stage.shown()["kiqcluster_rolling"] == 0

    def test_the_longest_turn_is_forgotten_after_a_while(self, stage: Stage) -> None:
        seen = []
        for seconds, later in (
            (0.5, 0.0),
            (0.1, TURN_WINDOW_SECONDS / 2),
            (0.1, TURN_WINDOW_SECONDS),
            (0.2, TURN_WINDOW_SECONDS),
            (0.1, 5 * TURN_WINDOW_SECONDS),
        ):
            stage.clock.time += later
            stage.own.record_turn(seconds)
            seen.append(stage.shown()["kiqcluster_supervisor_longest_turn_seconds"])

        assert seen == [0.5, 0.5, 0.5, 0.2, 0.1]
