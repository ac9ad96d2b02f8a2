"""InFlight: no held unit is out of sight at any moment, and units that come back keep their order."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from kiqcluster.sidekiq.outcome import Dead, Done, Requeue
from kiqcluster.store.engine.units import ANY_DEATHS, Settlement, Unit
from kiqcluster.worker.fetch.in_flight import (
    FORGOTTEN_LOOK_SECONDS,
    LAST_CHANCE_DELAY_SECONDS,
    MAX_SETTLE_BYTES,
    REFUSED_RETRY_SECONDS,
    STALE_UNIT_SECONDS,
    SUSPECT_DELAY_SECONDS,
    InFlight,
    lowest_limit,
)


def units(*numbers: int, deaths: int = 0) -> list[Unit]:
    return [Unit("default", b"%d" % number, f"1.1.{number:05d}", "me", deaths) for number in numbers]


def payloads(batch: list[Settlement]) -> list[bytes]:
    return [settlement.unit.payload for settlement in batch]


@pytest.fixture
def in_flight() -> InFlight:
    return InFlight()


@pytest.fixture
def eager_switches() -> Iterator[None]:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def test_a_unit_is_held_until_redis_has_written_its_outcome(in_flight: InFlight) -> None:
    in_flight.add(units(1, 2), at=5.0)
    first, _ = held = units(1, 2)
    in_flight.finished.append(Settlement(first, Done()))

    batch = in_flight.take_waiting(now=6.0)

    assert in_flight.tokens == [unit.token for unit in held]
    in_flight.remove(batch)
    assert in_flight.tokens == ["1.1.00002"]


def test_the_outcomes_of_a_failed_batch_wait_again_in_their_order(in_flight: InFlight) -> None:
    in_flight.finished += [Settlement(unit, Done()) for unit in units(1, 2)]
    in_flight.returned += units(6, 5)
    lost = in_flight.take_waiting(now=0.0)
    in_flight.finished += [Settlement(unit, Done()) for unit in units(3)]
    in_flight.returned += units(4, 7)

    in_flight.restore(lost)
    in_flight.acknowledge()

    again = in_flight.take_waiting(now=0.0)
    assert payloads(again) == [b"1", b"2", b"3", b"7", b"6", b"5", b"4"]  # the oldest returned one is put back last
    assert [type(each.outcome) for each in again] == [Done] * 3 + [Requeue] * 4


def test_refused_outcomes_share_the_bytes_of_the_batch_that_sends_them_again(in_flight: InFlight) -> None:
    large = [Settlement(unit, Dead(b"x" * 600_000, 1.0)) for unit in units(1, 2)]
    in_flight.add(units(1, 2), at=5.0)
    in_flight.keep_refused(large[:1], {"1.1.00001": "WRONGTYPE"}, now=10.0)
    in_flight.finished.append(large[1])

    assert in_flight.take_waiting(now=10.0 + REFUSED_RETRY_SECONDS) == large[1:]
    in_flight.acknowledge()
    assert in_flight.take_waiting(now=10.0 + REFUSED_RETRY_SECONDS) == large[:1]


def test_a_refused_outcome_of_any_size_does_not_wait_for_a_batch_without_others(in_flight: InFlight) -> None:
    large = Settlement(units(1)[0], Dead(b"x" * 2 * MAX_SETTLE_BYTES, 1.0))
    in_flight.keep_refused([large], {large.unit.token: "WRONGTYPE"}, now=10.0)
    in_flight.finished += [Settlement(unit, Done()) for unit in units(2, 3)]

    assert in_flight.take_waiting(now=10.0 + REFUSED_RETRY_SECONDS)[2:] == [large]


def test_a_refused_outcome_is_tried_again_after_its_pause_only(in_flight: InFlight) -> None:
    batch = [Settlement(unit, Done()) for unit in units(1, 2)]
    in_flight.keep_refused(batch, {"1.1.00002": "WRONGTYPE"}, now=10.0)

    assert in_flight.take_waiting(now=10.0 + REFUSED_RETRY_SECONDS / 2) == []
    assert payloads(in_flight.take_waiting(now=10.0 + REFUSED_RETRY_SECONDS)) == [b"2"]


@pytest.mark.usefixtures("eager_switches")
def test_a_hard_stop_sees_every_outcome_whatever_a_batch_does_meanwhile(in_flight: InFlight) -> None:
    in_flight.finished.append(Settlement(units(1)[0], Done()))
    is_over = threading.Event()

    def flush() -> None:
        while not is_over.is_set():
            in_flight.restore(in_flight.take_waiting(now=0.0))
            in_flight.acknowledge()
            is_over.wait(1e-5)  # a failed batch pauses for far longer

    flusher = threading.Thread(target=flush)
    flusher.start()
    seen = [len(in_flight.unacknowledged()) for _ in range(20_000)]
    is_over.set()
    flusher.join()

    assert min(seen) >= 1


def test_after_a_fence_nothing_is_held_but_outcomes_are_still_sent(in_flight: InFlight) -> None:
    in_flight.add(units(1, 2, deaths=3), at=0.0)
    in_flight.returned += units(2)
    in_flight.finished.append(Settlement(units(1)[0], Done()))

    in_flight.clear()

    assert len(in_flight) == 0
    assert payloads(in_flight.take_waiting(now=0.0)) == [b"1"]
    assert in_flight.most_deaths([], now=0.0) == ANY_DEATHS


@pytest.mark.parametrize(
    ("limit", "deaths", "later"), [(3, 1, 1), (3, 2, 0), (2, 1, 0), (1, 1, 0), (10, 8, 8), (10, 9, 0)]
)
def test_the_next_suspect_starts_when_the_one_before_has_ended_or_has_run_for_a_while(
    limit: int, deaths: int, later: int
) -> None:
    """In between: only if neither would be buried for the other."""
    in_flight = InFlight(limit)
    (suspect,) = units(1, deaths=deaths)
    in_flight.add([suspect], at=100.0)

    assert in_flight.most_deaths([], now=100.0 + SUSPECT_DELAY_SECONDS / 2) == 0
    assert in_flight.most_deaths([], now=100.0 + SUSPECT_DELAY_SECONDS) == later
    assert in_flight.most_deaths([], now=100.0 + LAST_CHANCE_DELAY_SECONDS) == ANY_DEATHS
    assert in_flight.most_deaths([Settlement(suspect, Done())], now=100.0) == ANY_DEATHS
    in_flight.remove([Settlement(suspect, Done())])
    assert in_flight.most_deaths([], now=100.0) == ANY_DEATHS


@pytest.mark.parametrize(
    ("limits", "lowest"), [([3, None, 2], 2), ([-1, None], -1), ([-1, 5], 5), ([3, -1], 3), ([3, 0], 0)]
)
def test_the_class_that_bears_the_fewest_deaths_says_how_far_apart_suspects_start(
    limits: list[int | None], lowest: int
) -> None:
    """Its job has its last chance before those of other classes have."""
    assert lowest_limit(limits) == lowest


def test_a_suspect_that_still_runs_is_not_forgotten_when_a_later_one_has_ended(in_flight: InFlight) -> None:
    first, second = units(1, 2, deaths=1)
    in_flight.add([first], at=100.0)
    in_flight.add([second], at=101.0)

    assert in_flight.most_deaths([], now=101.0) == 0  # the lead is the latest one's
    in_flight.remove([Settlement(second, Done())])

    assert in_flight.most_deaths([], now=102.0) == 1
    assert in_flight.most_deaths([Settlement(first, Done())], now=102.0) == ANY_DEATHS


def test_a_suspect_whose_outcome_redis_refuses_runs_no_more(in_flight: InFlight) -> None:
    (suspect,) = units(1, deaths=2)
    outcome = Settlement(suspect, Done())
    in_flight.add([suspect], at=100.0)

    in_flight.keep_refused([outcome], {suspect.token: "OOM"}, now=100.0)

    assert in_flight.most_deaths([], now=100.0) == ANY_DEATHS


class TestForgottenUnits:
    OLD = STALE_UNIT_SECONDS + FORGOTTEN_LOOK_SECONDS + 0.1

    def test_a_unit_that_nobody_has_at_two_looks_is_put_back(self, in_flight: InFlight) -> None:
        (unit,) = units(1)
        in_flight.add([unit], at=0.0)

        counts = [in_flight.return_forgotten([], self.OLD + after) for after in (0, 5, 10)]

        assert counts == [0, 1, 0]
        assert [each.unit for each in in_flight.take_waiting(self.OLD)] == [unit]

    def test_one_that_a_thread_may_be_about_to_start_is_left_alone(self, in_flight: InFlight) -> None:
        in_flight.add(units(1), at=0.0)

        assert [in_flight.return_forgotten([], now) for now in (0.0, self.OLD / 2, self.OLD - 0.2)] == [0, 0, 0]

    def test_one_that_is_known_at_one_of_two_looks_in_a_row_is_left_alone(self, in_flight: InFlight) -> None:
        (unit,) = units(1)
        in_flight.add([unit], at=0.0)

        assert [in_flight.return_forgotten(others, self.OLD) for others in ([], [unit], [], [unit])] == [0, 0, 0, 0]

    def test_units_at_hand_that_run_or_have_an_outcome_are_left_alone(self, in_flight: InFlight) -> None:
        running, finished, taken, refused, returned = units(1, 2, 3, 4, 5)
        in_flight.add([running, finished, taken, refused, returned], at=0.0)
        in_flight.finished.append(Settlement(taken, Done()))
        in_flight.take_waiting(1.0)
        in_flight.finished.append(Settlement(finished, Done()))
        in_flight.keep_refused([Settlement(refused, Done())], {refused.token: "no"}, 1.0)
        in_flight.returned.append(returned)

        assert [in_flight.return_forgotten([running], self.OLD) for _ in range(3)] == [0, 0, 0]

    def test_the_outcomes_of_a_batch_that_crashed_are_sent_again(self, in_flight: InFlight) -> None:
        lost, later = units(1, 2)
        in_flight.add([lost, later], at=0.0)
        in_flight.finished.append(Settlement(lost, Done()))
        in_flight.take_waiting(1.0)  # and never acknowledged
        in_flight.finished.append(Settlement(later, Done()))

        counts = [in_flight.return_forgotten([], self.OLD) for _ in range(3)]

        assert counts == [0, 0, 0]
        assert in_flight.take_waiting(self.OLD) == [Settlement(lost, Done())]
        in_flight.acknowledge()
        assert in_flight.take_waiting(self.OLD) == [Settlement(later, Done())]
