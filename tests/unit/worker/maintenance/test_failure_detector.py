"""Whether a process may recover others: decided from its own beats alone."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from kiqcluster.worker.maintenance.failure_detector import (
    MAX_CLOCK_SLIP_SHARE,
    MAX_GAP_SHARE,
    Observation,
    Window,
    may_recover,
    observe,
    pause,
)

SILENCE_LIMIT_SECONDS = 60.0
SERVER = "a" * 40


def seen(at: float, *, took: float = 0.0, server: str = SERVER, ahead: float = 1e9) -> Observation:
    """ahead: seconds that the server's clock is ahead of ours."""
    return Observation(at, at + took, server, at + took / 2 + ahead)


def ready(*row: Observation) -> list[bool]:
    """Return after each beat whether the process may recover others."""
    window, found = None, []
    for each in row:
        window = observe(window, each, SILENCE_LIMIT_SECONDS)
        found.append(may_recover(window, each.asked, SILENCE_LIMIT_SECONDS))
    return found


def test_after_the_whole_time_and_not_before() -> None:
    assert ready(*[seen(at) for at in range(0, 80, 10)]) == [False] * 6 + [True] * 2
    assert not may_recover(None, 1e9, SILENCE_LIMIT_SECONDS)


def test_the_time_counts_from_the_answer_of_the_first_to_the_question_of_the_last() -> None:
    row = [seen(0, took=5.0), *[seen(at) for at in range(10, 61, 10)]]

    assert ready(*row, seen(64.9))[-1] is False
    assert ready(*row, seen(65))[-1] is True


def test_another_server_begins_anew() -> None:
    row = [seen(at, server=SERVER if at < 60 else "b" * 40) for at in range(0, 130, 10)]

    assert ready(*row) == [False] * 12 + [True]


def test_a_server_that_does_not_say_who_it_is_is_another_one_each_time() -> None:
    assert not any(ready(*[seen(at, server="") for at in range(0, 200, 10)]))


def test_a_gap_begins_anew() -> None:
    """Whoever was frozen does not know whether the others were."""
    late = SILENCE_LIMIT_SECONDS * MAX_GAP_SHARE + 0.1

    assert ready(*[seen(at) for at in range(0, 70, 10)], seen(60 + late))[-2:] == [True, False]
    assert ready(*[seen(at) for at in range(0, 70, 10)], seen(70, took=late - 10))[-2:] == [True, False]


def test_a_clock_that_was_set_begins_anew_whichever_it_was_and_wherever_to() -> None:
    row = [seen(at) for at in range(0, 70, 10)]

    for step in (
        3_600,
        -3_600,
        SILENCE_LIMIT_SECONDS * MAX_CLOCK_SLIP_SHARE + 0.1,
        -SILENCE_LIMIT_SECONDS * MAX_CLOCK_SLIP_SHARE - 0.1,
    ):
        assert ready(*row, seen(70, ahead=1e9 + step))[-2:] == [True, False]


def test_a_clock_that_drifts_does_not() -> None:
    row = [seen(at, ahead=1e9 + at * 0.0005) for at in range(0, 1_000, 10)]  # as fast as ntpd slews

    assert all(ready(*row)[6:])


def test_a_slow_round_trip_is_no_step_of_a_clock() -> None:
    row = [seen(at) for at in range(0, 70, 10)]

    assert ready(*row, replace(seen(70, took=8.0), server_time=70 + 1e9))[-1] is True
    assert ready(*row, replace(seen(70, took=8.0), server_time=78 + 1e9))[-1] is True


@given(st.floats(0.1, 1e5), st.integers())
def test_beats_are_sent_in_time(limit: float, seed: int) -> None:
    seconds = pause(limit, Random(seed))

    assert 0 < seconds <= limit * MAX_GAP_SHARE / 2  # a round trip and a busy machine have room, too


# a law: whoever may recover has beaten without a gap, a step or another server for the whole time

steps = st.tuples(
    st.sampled_from([0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 2.0, 3.0]),  # seconds since the beat before
    st.sampled_from([0.0, 0.0, 0.0, 0.3, 2.5]),  # of the round trip
    st.sampled_from([False] * 9 + [True]),  # another server
    st.sampled_from([0.0] * 9 + [5.0, -5.0]),  # step of its clock
    st.sampled_from([False] * 9 + [True]),  # refused
)


@given(st.lists(steps, max_size=80))
def test_nobody_is_ready_whose_beats_were_disturbed(row: list[tuple[float, float, bool, float, bool]]) -> None:
    limit, at, ahead, server = 6.0, 0.0, 1e9, 0
    window: Window | None = None
    since = last = 0.0
    for waited, took, is_other, step, is_refused in row:
        at, server, ahead = at + waited, server + is_other, ahead + step
        if is_refused:
            window = None
            continue
        is_first = window is None
        window = observe(window, seen(at, took=took, server=str(server), ahead=ahead), limit)
        at += took
        if is_first or is_other or step or at - last > limit * MAX_GAP_SHARE:
            since = at
        last = at

        assert not may_recover(window, at - took, limit) or at - took - since >= limit
