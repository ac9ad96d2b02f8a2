"""The fetch coordinator, step by step: no thread, no lock, no server."""

from __future__ import annotations

import pytest

from kiqcluster.sidekiq.outcome import Done, Requeue
from kiqcluster.store.engine.units import Reserved, Settlement, Unit
from kiqcluster.worker.fetch.batch import Batch, BatchState, FetchMode
from kiqcluster.worker.fetch.concurrency_limit import WATCH_SECONDS, ConcurrencyLimit
from kiqcluster.worker.fetch.coordinator import (
    BATCH_DELAY_SECONDS,
    MAX_UNIT_WAIT_SECONDS,
    FetchCoordinator,
)
from kiqcluster.worker.fetch.prefetch import Prefetch
from tests.unit.worker.fetch.stage import QUEUE, SENT, Stage


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
def coordinator(stage: Stage) -> FetchCoordinator:
    return stage.coordinator


def claimed(coordinator: FetchCoordinator, own_demand: int = 1) -> Batch:
    """Return the batch that a taker has to flush."""
    batch = coordinator.take(own_demand)
    assert isinstance(batch, Batch)
    return batch


def flush(stage: Stage, batch: Batch) -> Batch | None:
    """Make the round trip of a batch; return the one that follows it."""
    if batch.sent is None:
        send(stage, batch)
    if batch.sent is not None:
        stage._receive(batch)
    return stage.coordinator.close(batch, went_well=True)


def send(stage: Stage, batch: Batch, *, ahead: bool = False) -> None:
    if stage.coordinator.build_request(batch, ahead=ahead):
        batch.sent = SENT
        stage.replies[id(batch)] = stage.redis.run(batch)


def take_at_hand(coordinator: FetchCoordinator) -> list[Unit]:
    units = []
    while coordinator.supply.units:
        unit = coordinator.take_at_hand()
        assert unit is not None
        units.append(unit)
    return units


class TestStates:
    def test_one_taker_flushes_and_the_others_wait(self, coordinator: FetchCoordinator) -> None:
        claimed(coordinator)

        assert coordinator.batches.state is BatchState.FLUSHING
        assert coordinator.take(1) is None

    def test_a_batch_in_transit_is_received_by_the_next_taker(self, stage: Stage) -> None:
        stage.push()
        batch = claimed(stage.coordinator)
        send(stage, batch)
        stage.coordinator.leave_in_transit(batch)
        assert stage.coordinator.batches.state is BatchState.IN_TRANSIT

        assert claimed(stage.coordinator) is batch

        assert stage.coordinator.batches.state is BatchState.FLUSHING
        flush(stage, batch)
        assert stage.coordinator.batches.state is BatchState.NONE
        assert stage.coordinator.take_at_hand() is not None

    def test_units_at_hand_come_before_a_batch_in_transit(self, stage: Stage) -> None:
        stage.push(2)
        flush(stage, claimed(stage.coordinator, own_demand=1))
        stage.coordinator.redis_view.is_reserve_due = True
        stage.coordinator.supply.low_watermark = 1
        batch = claimed(stage.coordinator)
        send(stage, batch, ahead=True)
        stage.coordinator.leave_in_transit(batch)

        assert isinstance(stage.coordinator.take(1), Unit)
        assert stage.coordinator.take(1) is batch

    def test_a_failed_batch_leaves_none_behind_and_its_outcomes_wait(self, stage: Stage) -> None:
        stage.push()
        flush(stage, claimed(stage.coordinator))
        (unit,) = take_at_hand(stage.coordinator)
        stage.coordinator.hand_in(Settlement(unit, Done()))
        batch = claimed(stage.coordinator)
        send(stage, batch)

        stage.coordinator.on_failure(batch.settlements, is_lost=True)
        following = stage.coordinator.close(batch, went_well=False)

        assert following is None
        assert stage.coordinator.batches.state is BatchState.NONE
        assert stage.coordinator.redis_view.is_uncertain
        assert [each.unit for each in stage.coordinator.supply.finished] == [unit]


class TestMode:
    def test_a_quiet_process_settles_and_reserves_nothing(self, stage: Stage) -> None:
        stage.push(2)
        flush(stage, claimed(stage.coordinator))
        unit = stage.coordinator.take_at_hand()
        assert unit is not None

        stage.coordinator.quiet()
        assert stage.coordinator.take(1) is None
        stage.coordinator.hand_in(Settlement(unit, Done()))
        flush(stage, claimed(stage.coordinator))

        assert list(stage.redis.queue) == [b"job-1"]
        assert stage.redis.done == {b"job-0": 1}

    def test_units_that_arrive_after_a_quiet_go_back(self, stage: Stage) -> None:
        stage.push()
        batch = claimed(stage.coordinator)
        send(stage, batch)
        stage.coordinator.quiet()
        stage.is_manager_awake = False

        flush(stage, batch)

        assert stage.is_manager_awake
        back, _ = stage.coordinator.check_overdue(())
        assert back is not None
        flush(stage, back)
        assert list(stage.redis.queue) == [b"job-0"]
        assert not stage.redis.held

    def test_an_ended_process_gives_out_nothing_and_cannot_resume(self, stage: Stage) -> None:
        stage.push()
        flush(stage, claimed(stage.coordinator))

        stage.coordinator.end()
        stage.coordinator.quiet()
        stage.coordinator.resume()

        assert stage.coordinator.mode is FetchMode.ENDED
        assert stage.coordinator.take(1) is None


class TestDemand:
    def test_a_batch_reserves_what_is_demanded_and_what_its_flusher_takes(self, stage: Stage) -> None:
        stage.push(10)
        stage.coordinator.set_demand(3)

        flush(stage, claimed(stage.coordinator, own_demand=2))

        assert len(stage.coordinator.supply.units) == 5

    def test_an_event_loop_asks_for_as_many_units_as_it_has_places(self, stage: Stage) -> None:
        """One taker of many units: it sets the demand, takes without waiting, and flushes where it likes."""
        stage.push(5)
        coordinator, free, running = stage.coordinator, 4, []

        while (taken := coordinator.take_at_hand() or coordinator.take(free - len(running))) is not None:
            if isinstance(taken, Batch):
                flush(stage, taken)
            else:
                running.append(taken)
            if len(running) == free:
                break
        assert [unit.payload for unit in running] == [b"job-%d" % number for number in range(4)]

        for unit in running:
            coordinator.hand_in(Settlement(unit, Done()))
        batch = claimed(coordinator, free)
        flush(stage, batch)
        assert [unit.payload for unit in take_at_hand(coordinator)] == [b"job-4"]
        assert stage.redis.done.total() == 4

    def test_starvation_is_reported_once_when_somebody_waits(self, stage: Stage) -> None:
        flush(stage, claimed(stage.coordinator))
        assert not stage.is_manager_awake

        stage.coordinator.set_demand(1)

        assert stage.is_manager_awake
        assert stage.coordinator.queues_to_arm() == [QUEUE]
        stage.is_manager_awake = False
        stage.coordinator.set_demand(2)
        assert not stage.is_manager_awake

    def test_a_push_while_nobody_waits_is_not_wanted(self, coordinator: FetchCoordinator) -> None:
        assert coordinator.on_wakeup(QUEUE) == (False, None)

    def test_a_push_sends_a_batch_for_the_taker_that_is_woken(self, stage: Stage) -> None:
        flush(stage, claimed(stage.coordinator))
        stage.coordinator.set_demand(1)
        stage.push()

        is_wanted, batch = stage.coordinator.on_wakeup(QUEUE)

        assert is_wanted
        assert batch is not None
        send(stage, batch, ahead=True)
        stage.coordinator.leave_in_transit(batch)
        assert claimed(stage.coordinator) is batch


class TestAhead:
    @pytest.fixture(autouse=True)
    def _steady_depth(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Prefetch, "record_finished", lambda *_: None)
        stage.coordinator.supply.prefetch.depth = 8
        stage.push(100)

    def test_a_full_batch_sets_the_low_watermark(self, stage: Stage) -> None:
        flush(stage, claimed(stage.coordinator))

        assert len(stage.coordinator.supply.units) == 8
        assert stage.coordinator.supply.low_watermark == 4

    def test_the_taker_that_reaches_it_flushes_and_leaves_the_batch_in_transit(self, stage: Stage) -> None:
        flush(stage, claimed(stage.coordinator))
        units = [stage.coordinator.take_at_hand() for _ in range(4)]

        assert None not in units
        assert stage.coordinator.take_at_hand() is None
        batch = claimed(stage.coordinator)
        assert stage.coordinator.build_request(batch, ahead=True)

    def test_a_batch_that_leaves_few_at_hand_is_followed_by_the_next(self, stage: Stage) -> None:
        batch = claimed(stage.coordinator)
        send(stage, batch)
        stage._receive(batch)
        for _ in range(4):
            stage.coordinator.supply.units.popleft()  # others were fast

        following = stage.coordinator.close(batch, went_well=True)

        assert following is not None
        assert stage.coordinator.batches.state is BatchState.FLUSHING


class TestLimit:
    """One of three takers runs: enough is prefetched, and the jobs are short."""

    @pytest.fixture(autouse=True)
    def _one_runs(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Prefetch, "record_finished", lambda *_: None)
        monkeypatch.setattr(ConcurrencyLimit, "lower", lambda *_: None)
        stage.add_takers(3)
        stage.coordinator.supply.prefetch.depth = 8
        stage.push(100)
        stage.coordinator.set_demand(2)
        flush(stage, claimed(stage.coordinator))
        stage.coordinator.supply.limit.current = 1

    def test_the_one_that_runs_takes_on(self, coordinator: FetchCoordinator) -> None:
        assert coordinator.take_at_hand() is not None
        assert isinstance(coordinator.take(1), Unit)

    def test_a_taker_beyond_the_limit_waits_beside_units_at_hand(self, coordinator: FetchCoordinator) -> None:
        coordinator.set_demand(1)

        assert coordinator.take(1) is None
        assert coordinator.supply.units

    def test_takers_that_run_wait_when_the_limit_is_lowered_until_few_enough_run(
        self, stage: Stage, coordinator: FetchCoordinator
    ) -> None:
        coordinator.supply.limit.current = 3
        coordinator.set_demand(0)
        while len(coordinator.supply.units) > coordinator.supply.low_watermark:
            coordinator.take_at_hand()
        batch = claimed(coordinator)
        coordinator.supply.limit.current = 1
        flush(stage, batch)

        assert coordinator.take_at_hand() is None
        assert coordinator.take(1) is None
        coordinator.set_demand(1)
        assert coordinator.take_at_hand() is None
        assert coordinator.take(1) is None
        coordinator.set_demand(2)
        assert coordinator.take_at_hand() is not None

    def test_one_of_those_that_wait_watches(self, coordinator: FetchCoordinator) -> None:
        assert [coordinator.supply.begin_watch() for _ in range(3)] == [WATCH_SECONDS, None, None]

    def test_the_watcher_takes_over_from_a_blocked_job(self, stage: Stage, coordinator: FetchCoordinator) -> None:
        coordinator.take_at_hand()
        coordinator.supply.begin_watch()

        stage.clock.time += WATCH_SECONDS
        coordinator.supply.demand = 1
        coordinator.supply.end_watch(is_flushing=coordinator.batches.state is BatchState.FLUSHING)

        assert isinstance(coordinator.take(1), Unit)

    def test_the_watcher_stays_while_units_are_taken(self, stage: Stage, coordinator: FetchCoordinator) -> None:
        for _ in range(2):
            coordinator.supply.begin_watch()
            stage.clock.time += WATCH_SECONDS
            stage.clock.used += WATCH_SECONDS
            for _ in range(4):
                assert coordinator.supply.units.popleft()
            coordinator.supply.demand = 1
            coordinator.supply.end_watch(is_flushing=coordinator.batches.state is BatchState.FLUSHING)
            coordinator.supply.demand = 2

        assert coordinator.supply.limit.current == 1

    def test_nobody_is_woken_for_units_while_one_watches(self, stage: Stage, coordinator: FetchCoordinator) -> None:
        woken: list[None] = []
        coordinator._wake_taker = lambda: woken.append(None)
        coordinator.supply.begin_watch()

        assert isinstance(coordinator.take(1), Unit)
        assert not woken
        coordinator.supply.is_watched = False
        assert isinstance(coordinator.take(1), Unit)
        assert len(woken) == 1  # somebody has to watch

    def test_as_many_units_are_next_as_takers_wait_beside_them(self, coordinator: FetchCoordinator) -> None:
        assert coordinator.supply.units_ahead() == list(coordinator.supply.units)[:2]

        coordinator.set_demand(0)
        assert coordinator.supply.units_ahead() == []

    def test_none_is_next_where_all_takers_may_run(self, coordinator: FetchCoordinator) -> None:
        coordinator.supply.limit.current = coordinator.supply.limit.most

        assert coordinator.supply.units_ahead() == []

    def test_without_prefetch_all_may_run(self, stage: Stage, coordinator: FetchCoordinator) -> None:
        coordinator.supply.low_watermark = 0
        coordinator.redis_view.is_reserve_due = False
        coordinator.set_demand(0)

        assert coordinator.supply.begin_watch() is None
        assert isinstance(coordinator.take(1), Unit)


class TestOverdue:
    def unit(self, stage: Stage) -> Unit:
        stage.push()
        flush(stage, claimed(stage.coordinator))
        unit = stage.coordinator.take_at_hand()
        assert unit is not None
        return unit

    def test_nothing_here_needs_no_check(self, coordinator: FetchCoordinator) -> None:
        assert coordinator.check_overdue(()) == (None, None)

    def test_an_outcome_that_is_left_behind_wakes_the_manager_once(self, stage: Stage) -> None:
        unit = self.unit(stage)
        stage.is_manager_awake = stage.coordinator.supply.is_manager_notified = False

        stage.coordinator.hand_in(Settlement(unit, Done()))

        assert stage.is_manager_awake

    def test_an_outcome_is_settled_once_it_has_waited_for_the_delay(self, stage: Stage) -> None:
        unit = self.unit(stage)
        stage.coordinator.redis_view.is_reserve_due = False
        assert stage.coordinator.take_at_hand(Settlement(unit, Done())) is None

        assert stage.coordinator.check_overdue(()) == (None, pytest.approx(BATCH_DELAY_SECONDS))
        stage.clock.time += BATCH_DELAY_SECONDS
        batch, _ = stage.coordinator.check_overdue(())

        assert batch is not None
        flush(stage, batch)
        assert stage.redis.done == {b"job-0": 1}
        assert stage.coordinator.redis_view.is_reserve_due  # its taker still has to look for work

    def test_units_that_have_waited_too_long_go_back_and_their_queues_get_a_penalty(self, stage: Stage) -> None:
        stage.push(3)
        stage.coordinator.set_demand(2)
        flush(stage, claimed(stage.coordinator))
        stage.clock.time += MAX_UNIT_WAIT_SECONDS
        stage.clock.used += MAX_UNIT_WAIT_SECONDS

        batch, _ = stage.coordinator.check_overdue([QUEUE])

        assert batch is not None
        assert stage.coordinator.build_request(batch, ahead=False)
        assert [type(each.outcome) for each in batch.settlements] == [Requeue] * 3
        assert not stage.coordinator.supply.units
        assert stage.coordinator.supply.prefetch.depth == 0

    def test_a_wait_in_which_the_process_stood_still_does_not_count(self, stage: Stage) -> None:
        stage.push(3)
        stage.coordinator.set_demand(2)
        flush(stage, claimed(stage.coordinator))
        stage.clock.time += 2 * MAX_UNIT_WAIT_SECONDS

        stage.coordinator.check_overdue([QUEUE])
        is_kept = len(stage.coordinator.supply.units) == 3
        for _ in range(round(MAX_UNIT_WAIT_SECONDS / BATCH_DELAY_SECONDS) + 1):  # the manager comes in time
            stage.clock.time += BATCH_DELAY_SECONDS
            stage.coordinator.check_overdue([QUEUE])

        assert is_kept
        assert not stage.coordinator.supply.units

    def test_a_batch_in_transit_that_nobody_needs_is_received_by_the_manager(self, stage: Stage) -> None:
        stage.push()
        batch = claimed(stage.coordinator)
        send(stage, batch)
        stage.coordinator.leave_in_transit(batch)

        assert stage.coordinator.check_overdue(())[0] is None
        stage.clock.time += BATCH_DELAY_SECONDS
        assert stage.coordinator.check_overdue(()) == (batch, 0.0)

    def test_while_somebody_flushes_the_manager_waits(self, stage: Stage) -> None:
        unit = self.unit(stage)
        claimed(stage.coordinator)
        stage.coordinator.hand_in(Settlement(unit, Done()))
        stage.clock.time += 1.0

        assert stage.coordinator.check_overdue(()) == (None, BATCH_DELAY_SECONDS / 2)


def test_a_reset_process_holds_nothing_and_looks_for_work(stage: Stage) -> None:
    stage.push(2)
    stage.coordinator.set_demand(1)
    flush(stage, claimed(stage.coordinator))
    stage.coordinator.redis_view.is_uncertain = True

    stage.coordinator.reset()

    assert not stage.coordinator.supply.units
    assert not len(stage.in_flight)
    assert stage.coordinator.redis_view.is_reserve_due
    assert not stage.coordinator.redis_view.is_uncertain


def test_a_refused_reserve_waits_for_the_next_sweep(stage: Stage) -> None:
    batch = claimed(stage.coordinator)
    assert stage.coordinator.build_request(batch, ahead=False)

    stage.coordinator.on_reply(Reserved([], frozenset(), refusal="OOM", is_refused=True), batch)
    stage.coordinator.close(batch, went_well=True)
    stage.coordinator.set_demand(1)

    assert stage.coordinator.take(1) is None
    assert stage.coordinator.queues_to_arm() == []
    assert stage.coordinator.is_sweep_wanted()
