"""RollingRestart: which slot is replaced next, and when a roll goes on, ends or stops.  Its processes are fakes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from kiqcluster.supervisor.cluster.child import Ending
from kiqcluster.supervisor.cluster.recycling import MAX_MEMORY_STRIKES, MEMORY_CHECK_SECONDS
from kiqcluster.supervisor.cluster.respawn import History
from kiqcluster.supervisor.cluster.state import RollPhase
from kiqcluster.supervisor.rolling_restart import RECYCLE_RETRY_SECONDS, Target
from tests.unit.supervisor.rolling_restart_stage import Stage


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage(3)
    yield stage
    stage.processes.close()


class TestRoll:
    def test_slots_have_their_turn_one_after_the_other_once_the_one_before_has_left(self, stage: Stage) -> None:
        stage.roll()
        assert (stage.begun, stage.report()) == ([0], ("rolling", 0, 3))

        stage.promote(0)
        assert stage.begun == [0]
        stage.leave(0)
        assert (stage.begun, stage.report()) == ([0, 1], ("rolling", 1, 3))
        stage.renew(1)
        stage.renew(2)

        assert stage.begun == [0, 1, 2]
        assert stage.report() == ("done", 3, 3)
        assert stage.state.rolls == {"done": 1}
        assert [slot.restarts["rolling"] for slot in stage.state.slots] == [1, 1, 1]

    def test_nothing_is_replaced_before_the_new_release_has_told_what_it_has(self, stage: Stage) -> None:
        stage.restart.announce("one")

        stage.restart.turn()

        assert stage.begun == []
        assert stage.report()[0] == "rolling"

    def test_a_release_that_does_not_tell_ends_it_with_every_slot_as_it_was(self, stage: Stage) -> None:
        stage.restart.announce("one")
        stage.restart.fail("no module named shop")
        stage.restart.turn()

        assert stage.report() == ("failed", 0, 3)
        assert stage.begun == []
        assert stage.state.roll is not None
        assert stage.state.roll.error == "no module named shop"

    def test_a_successor_that_fails_ends_it_and_what_was_replaced_stays(self, stage: Stage) -> None:
        stage.roll()
        stage.renew(0)
        stage.fail(1)

        assert stage.report() == ("failed", 1, 3)
        assert stage.begun == [0, 1]
        assert stage.state.rolls == {"failed": 1}
        assert stage.happened[-1] == "roll_failed"
        assert stage.state.roll is not None
        assert stage.state.roll.error == "slot 1: exited with 1"

    def test_when_no_process_can_be_started_it_ends_too(self, stage: Stage) -> None:
        stage.processes.can_fork = False

        stage.roll()

        assert stage.report() == ("failed", 0, 3)

    def test_a_slot_without_a_child_is_hurried_and_waited_for(self, stage: Stage) -> None:
        stage.state.slots[0].child = None
        stage.state.slots[0].history = History(failures=3, not_before=1e9)
        stage.roll()
        assert stage.state.slots[0].history.not_before == 0.0
        assert stage.begun == []

        stage.respawn(0, ready=False)
        assert stage.begun == []
        stage.respawn(0)

        assert stage.begun == [1]
        assert stage.report() == ("rolling", 1, 3)

    def test_a_slot_without_a_child_that_fails_again_ends_it(self, stage: Stage) -> None:
        stage.state.slots[0].child = None
        stage.roll()

        stage.die(0)

        assert stage.report() == ("failed", 0, 3)

    def test_one_that_dies_before_its_turn_and_comes_back_renewed_is_not_renewed_again(self, stage: Stage) -> None:
        stage.roll()
        stage.die(2)
        stage.respawn(2)
        stage.renew(0)
        stage.renew(1)
        stage.restart.turn()

        assert stage.begun == [0, 1]
        assert stage.report() == ("done", 3, 3)

    def test_the_death_of_another_slot_does_not_end_it(self, stage: Stage) -> None:
        stage.roll()

        stage.die(2)

        assert stage.report()[0] == "rolling"

    def test_a_slot_that_goes_meanwhile_is_passed_over(self, stage: Stage) -> None:
        stage.roll()
        stage.state.slots[1].is_retiring = True
        stage.renew(0)
        assert stage.begun == [0, 2]

        del stage.state.slots[2]
        stage.restart.turn()

        assert stage.report()[0] == "done"

    def test_the_next_one_takes_over_and_begins_with_the_first_slot(self, stage: Stage) -> None:
        stage.roll("one")
        stage.renew(0)
        assert stage.begun == [0, 1]
        first = stage.state.roll

        stage.roll("two")

        assert first is not None
        assert (first.phase, "two" in first.error) == (RollPhase.SUPERSEDED, True)
        assert stage.processes.dropped == [1]
        assert stage.begun == [0, 1, 0]
        for number in range(3):
            stage.renew(number)
        assert stage.report() == ("done", 3, 3)
        assert stage.state.rolls == {"superseded": 1, "done": 1}
        assert "roll_failed" not in stage.happened

    def test_a_stop_ends_it_and_nothing_more_is_begun(self, stage: Stage) -> None:
        stage.roll()

        stage.restart.abandon()
        stage.state.stop_by = 2_000.0
        stage.restart.turn()

        assert stage.report()[0] == "failed"
        assert stage.processes.dropped == [0]
        assert stage.begun == [0]

    def test_slots_of_a_shard_that_is_away_come_last_and_are_waited_for(self, stage: Stage) -> None:
        slots = stage.state.slots
        slots[0].plan = replace(slots[0].plan, group=replace(slots[0].plan.group, shard="eu"))
        stage.roll()
        assert stage.begun == [0]
        assert slots[0].child is not None
        slots[0].child.beat.redis = False

        stage.restart.turn()
        assert (stage.begun, stage.processes.dropped) == ([0, 1], [0])
        for number in (1, 2):
            stage.renew(number)

        assert (stage.begun, stage.report()) == ([0, 1, 2], ("rolling", 2, 3))
        assert stage.state.roll is not None
        assert stage.state.roll.as_json()["waits_for"] == ["eu"]
        stage.restart.turn()
        assert stage.happened.count("roll_waits") == 1
        slots[0].child.beat.redis = True
        stage.restart.turn()
        assert "waits_for" not in stage.state.roll.as_json()
        stage.renew(0)
        assert stage.begun == [0, 1, 2, 0]
        assert stage.report() == ("done", 3, 3)

    def test_without_slots_it_is_done(self) -> None:
        stage = Stage(0)

        stage.roll()

        assert stage.report() == ("done", 0, 0)


class TestRollBack:
    def test_only_those_that_have_another_release_are_replaced(self, stage: Stage) -> None:
        stage.roll()
        stage.renew(0)
        before = Target(0, "")

        stage.restart.announce("back", before)
        stage.processes.generation = 0
        stage.restart.replace_all()
        stage.restart.turn()
        assert stage.processes.dropped == [1]  # what the other roll had begun
        stage.renew(0)

        assert stage.begun == [0, 1, 0]
        assert stage.report() == ("done", 3, 3)
        assert stage.state.rolls == {"superseded": 1, "done": 1}


class TestBakeTime:
    @pytest.fixture(autouse=True)
    def _five_seconds(self, stage: Stage) -> None:
        stage.processes.config = replace(stage.processes.config, roll_bake_time=5.0)

    def wait(self, stage: Stage, seconds: float) -> None:
        stage.clock.time += seconds
        stage.restart.turn()

    def test_the_next_slot_waits_until_the_new_process_has_lived_for_it_and_so_does_the_end(self, stage: Stage) -> None:
        stage.roll()
        for number in range(3):
            stage.renew(number)
            self.wait(stage, 4.9)
            assert (stage.begun, stage.report()[:2]) == ([*range(number + 1)], ("rolling", number))
            self.wait(stage, 0.2)

        assert stage.report() == ("done", 3, 3)

    def test_it_runs_while_the_one_before_finishes_its_jobs(self, stage: Stage) -> None:
        stage.roll()
        stage.promote(0)
        self.wait(stage, 6.0)
        assert stage.begun == [0]

        stage.leave(0)

        assert stage.begun == [0, 1]

    def test_a_new_process_that_dies_in_it_ends_the_roll(self, stage: Stage) -> None:
        stage.roll()
        stage.renew(0)
        self.wait(stage, 3.0)

        stage.die(0)

        assert (stage.begun, stage.report()) == ([0], ("failed", 0, 3))

    @pytest.mark.parametrize("reason", ["remote_stop", "job_killed", "job_timeout"])
    def test_one_that_somebody_has_ended_says_nothing_of_the_release(self, stage: Stage, reason: str) -> None:
        stage.roll()
        stage.renew(0)
        self.wait(stage, 3.0)

        stage.die(0, reason)
        stage.respawn(0)
        self.wait(stage, 4.9)
        assert (stage.begun, stage.report()) == ([0], ("rolling", 0, 3))
        self.wait(stage, 0.2)

        assert stage.begun == [0, 1]

    def test_one_that_dies_after_it_does_not_end_the_roll(self, stage: Stage) -> None:
        stage.roll()
        stage.renew(0)
        self.wait(stage, 5.0)

        stage.die(0)

        assert stage.report() == ("rolling", 1, 3)

    def test_who_is_recycled_runs_the_code_that_ran_and_does_not_wait(self, stage: Stage) -> None:
        for slot in stage.state.slots[:2]:
            assert slot.child is not None
            slot.child.job_limit, slot.child.beat.processed = 10.5, 11
        stage.restart.turn()

        stage.renew(0)

        assert stage.begun == [0, 1]


class TestWatch:
    def test_all_slots_are_restarted_at_once(self, stage: Stage) -> None:
        stage.processes.config = replace(stage.processes.config, watch=True, roll_bake_time=3_600.0)
        stage.state.slots[2].history = History(failures=3, not_before=stage.clock.time + 60)

        stage.roll()

        assert [slot for slot, _, _ in stage.processes.asked_to_stop] == [0, 1, 2]
        assert (stage.begun, stage.report()) == ([], ("rolling", 0, 3))
        assert stage.state.slots[2].history.not_before == 0.0
        for number in range(3):
            stage.respawn(number)
        assert stage.report() == ("done", 3, 3)  # the ones before may still run jobs
        assert [slot.restarts["rolling"] for slot in stage.state.slots] == [1, 1, 1]

    def test_a_worker_that_dies_while_it_boots_ends_the_roll(self, stage: Stage) -> None:
        stage.processes.config = replace(stage.processes.config, watch=True)

        stage.roll()
        stage.respawn(0, ready=False)
        stage.die(0)

        assert stage.report() == ("failed", 0, 3)


class TestQuiet:
    def test_replacements_of_a_quiet_cluster_serve(self, stage: Stage) -> None:
        stage.state.quiet.begin("signal", 60.0, 999.0, 0.0)

        stage.roll()

        assert stage.restart.ends_quiet
        assert stage.processes.begun == [(0, False)]

    def test_a_quiet_that_began_later_holds_for_them(self, stage: Stage) -> None:
        stage.roll()
        stage.clock.time += 1
        stage.state.quiet.begin("signal", 60.0, stage.clock.time, 0.0)
        stage.renew(0)

        assert not stage.restart.ends_quiet
        assert stage.processes.begun == [(0, False), (1, True)]

    def test_who_is_recycled_stays_quiet(self, stage: Stage) -> None:
        stage.state.quiet.begin("signal", 60.0, 999.0, 0.0)
        child = stage.state.slots[0].child
        assert child is not None
        child.job_limit = 0

        stage.restart.turn()

        assert stage.processes.begun == [(0, True)]

    def test_without_a_roll_there_is_nothing_that_ends_it(self, stage: Stage) -> None:
        stage.state.quiet.begin("signal", 60.0, 999.0, 0.0)

        assert not stage.restart.ends_quiet


class TestMaxJobs:
    @pytest.fixture(autouse=True)
    def _two_have_run_enough(self, stage: Stage) -> None:
        for slot in stage.state.slots[:2]:
            assert slot.child is not None
            slot.child.job_limit, slot.child.beat.processed = 10.5, 11

    def test_who_has_run_enough_is_replaced_one_at_a_time(self, stage: Stage) -> None:
        stage.restart.turn()
        stage.restart.turn()
        assert stage.begun == [0]
        stage.promote(0)
        assert stage.begun == [0]

        stage.leave(0)
        assert stage.begun == [0, 1]
        stage.renew(1)

        assert stage.begun == [0, 1]
        assert [slot.restarts["max_jobs"] for slot in stage.state.slots] == [1, 1, 0]
        assert stage.state.roll is None

    def test_who_has_not_stays(self, stage: Stage) -> None:
        for slot in stage.state.slots[:2]:
            assert slot.child is not None
            slot.child.beat.processed = 10

        stage.restart.turn()

        assert stage.begun == []

    def test_after_a_failure_the_next_has_its_turn_and_the_slot_waits(self, stage: Stage) -> None:
        stage.restart.turn()
        stage.fail(0)
        assert stage.begun == [0, 1]
        stage.renew(1)
        stage.clock.time += RECYCLE_RETRY_SECONDS - 1
        stage.restart.turn()
        assert stage.begun == [0, 1]

        stage.clock.time += 1
        stage.restart.turn()

        assert stage.begun == [0, 1, 0]
        assert stage.happened.count("recycle_failed") == 1

    @pytest.mark.parametrize(
        "change",
        [
            {"ending": Ending(kill_reason="silent")},
            {"ending": Ending(stop_deadline=2_000.0)},
            {"ending": Ending(said_bye=True)},
            {"ready_at": None},
        ],
    )
    def test_who_is_on_the_way_in_or_out_is_left_alone(self, stage: Stage, change: dict[str, object]) -> None:
        for slot in stage.state.slots:
            for name, value in change.items():
                setattr(slot.child, name, value)

        stage.restart.turn()

        assert stage.begun == []

    def test_a_roll_takes_over(self, stage: Stage) -> None:
        stage.restart.turn()

        stage.roll()

        assert stage.processes.dropped == [0]
        assert stage.begun == [0, 0]
        for number in range(3):
            stage.renew(number)
        assert stage.report() == ("done", 3, 3)
        assert [slot.restarts["rolling"] for slot in stage.state.slots] == [1, 1, 1]


ONE_MEGABYTE = 1_000_000
PLENTY = 1_000_000_000


class TestMemory:
    """Each child uses 5 MB, and would free 3 of them."""

    def look(self, stage: Stage, times: int = 1, **limits: int) -> None:
        """Have each slot be weighed so many times."""
        stage.processes.config = replace(stage.processes.config, **limits)
        for _ in range(times):
            for slot in stage.state.slots:
                if slot.child is not None:
                    slot.child.beat.rss, slot.child.beat.pss = 5_000_000, 3_000_000
                slot.memory_check_at = min(slot.memory_check_at, stage.clock.time)
            for _ in stage.state.slots:
                stage.restart.turn()
            stage.clock.time += MEMORY_CHECK_SECONDS

    def test_beyond_the_soft_limit_it_is_replaced_after_so_many_looks_in_a_row(self, stage: Stage) -> None:
        self.look(stage, MAX_MEMORY_STRIKES - 1, recycle_memory=ONE_MEGABYTE)
        assert stage.begun == []

        self.look(stage)

        assert stage.begun == [0]
        assert stage.processes.asked_to_stop == []
        stage.renew(0)
        assert stage.state.slots[0].restarts == {"max_rss": 1}
        assert stage.begun == [0, 1]

    def test_one_look_below_it_begins_the_count_anew(self, stage: Stage) -> None:
        self.look(stage, MAX_MEMORY_STRIKES - 1, recycle_memory=ONE_MEGABYTE)
        self.look(stage, 1, recycle_memory=PLENTY)
        self.look(stage, MAX_MEMORY_STRIKES - 1, recycle_memory=ONE_MEGABYTE)

        assert stage.begun == []

    def test_one_that_was_as_large_at_its_start_is_left_alone_for_the_next_would_be_too(self, stage: Stage) -> None:
        for slot in stage.state.slots:
            assert slot.child is not None
            slot.child.boot_memory = 3_000_000

        self.look(stage, MAX_MEMORY_STRIKES * 2, recycle_memory=ONE_MEGABYTE)

        assert stage.begun == []
        assert stage.happened == ["setting_doubtful"]
        self.look(stage, MAX_MEMORY_STRIKES, recycle_memory=PLENTY)
        assert stage.happened == ["setting_doubtful"]

    def test_one_that_has_not_told_yet_what_it_uses_is_looked_at_as_soon_as_it_has(self, stage: Stage) -> None:
        slot = stage.state.slots[0]
        assert slot.child is not None
        stage.processes.config = replace(stage.processes.config, recycle_memory_hard=ONE_MEGABYTE)
        slot.memory_check_at = 0.0
        stage.restart.turn()
        assert stage.processes.asked_to_stop == []

        slot.child.beat.rss = 5_000_000
        stage.restart.turn()

        assert stage.processes.asked_to_stop == [(0, 0.0, "max_rss")]

    def test_looks_are_some_seconds_apart(self, stage: Stage) -> None:
        self.look(stage, recycle_memory=ONE_MEGABYTE)
        stage.clock.time -= 1
        for _ in range(20):
            stage.restart.turn()

        assert [slot.memory_strikes for slot in stage.state.slots] == [1, 1, 1]

    def test_beyond_the_hard_limit_one_is_sent_away_at_once_and_the_others_are_succeeded(self, stage: Stage) -> None:
        """The floor is all but one."""
        self.look(stage, recycle_memory_hard=ONE_MEGABYTE)

        assert stage.processes.asked_to_stop == [(0, 0.0, "max_rss")]
        assert stage.begun == [1]

    @pytest.mark.parametrize(("floor", "sent_away"), [(0, [0, 1, 2]), (1, [0, 1]), (2, [0]), (3, [])])
    def test_as_many_serve_as_min_serving_says(self, stage: Stage, floor: int, sent_away: list[int]) -> None:
        self.look(stage, recycle_memory_hard=ONE_MEGABYTE, roll_min_serving=floor)

        assert [slot for slot, _, _ in stage.processes.asked_to_stop] == sent_away

    def test_below_the_limits_nothing_happens(self, stage: Stage) -> None:
        self.look(stage, MAX_MEMORY_STRIKES, recycle_memory=PLENTY, recycle_memory_hard=PLENTY)

        assert stage.begun == []
        assert stage.processes.asked_to_stop == []

    def test_without_limits_nobody_is_weighed(self, stage: Stage) -> None:
        self.look(stage, MAX_MEMORY_STRIKES)

        assert [slot.memory_strikes for slot in stage.state.slots] == [0, 0, 0]

    def test_a_replacement_that_failed_is_tried_again_later(self, stage: Stage) -> None:
        del stage.state.slots[1:]
        self.look(stage, MAX_MEMORY_STRIKES, recycle_memory=ONE_MEGABYTE)
        stage.fail(0)

        self.look(stage, MAX_MEMORY_STRIKES)
        assert stage.begun == [0]
        stage.clock.time += RECYCLE_RETRY_SECONDS
        self.look(stage)

        assert stage.begun == [0, 0]
