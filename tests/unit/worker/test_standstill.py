"""Whose beat has stood still: decided from looks alone."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from kiqcluster.worker.standstill import LONGEST_GAP, Look, Watch, judge, pause, without

LIMIT = 60.0
EVERY = 10.0


def look(at: float, *, connection: int = 1, took: float = 0.0, **beats: str) -> Look:
    return Look(at, at + took, connection, beats)


def judged(*looks: Look, limit: float = LIMIT) -> list[list[str]]:
    """Return whom each look finds standing still."""
    watch, found = None, []
    for each in looks:
        watch, still = judge(watch, each, limit)
        found.append(sorted(still))
    return found


def steady(until: float, **beats: str) -> list[Look]:
    return [look(at, **beats) for at in range(0, int(until) + 1, int(EVERY))]


def test_one_that_stands_still_for_the_whole_time_is_found_and_not_before() -> None:
    found = judged(*steady(70, dead="4"))

    assert found == [[], [], [], [], [], [], ["dead"], ["dead"]]


def test_what_was_seen_standing_still_is_told_with_its_beat() -> None:
    watch, still = None, {}
    for each in steady(60, dead="4", fenced="fenced"):
        watch, still = judge(watch, each, LIMIT)

    assert still == {"dead": "4", "fenced": "fenced"}


def test_one_that_beats_once_is_given_the_whole_time_again() -> None:
    looks = [look(at, slow="1" if at < 50 else "2") for at in range(0, 120, 10)]

    assert judged(*looks) == [[]] * 11 + [["slow"]]


def test_a_number_that_went_back_is_a_sign_of_life_too() -> None:
    """A fail-over may have forgotten the last beats."""
    looks = [look(at, slow="2" if at < 50 else "1") for at in range(0, 110, 10)]

    assert judged(*looks) == [[]] * 11


def test_another_connection_starts_everything_anew() -> None:
    looks = [look(at, connection=1 if at < 60 else 2, dead="1") for at in range(0, 120, 10)]

    assert judged(*looks) == [[]] * 12


def test_a_look_that_came_late_starts_everything_anew() -> None:
    """Who was frozen does not know whether the others were."""
    late = LIMIT * LONGEST_GAP + 0.1

    assert judged(*steady(50, dead="1"), look(50 + late, dead="1"), look(60 + late, dead="1")) == [[]] * 8


def test_an_answer_that_came_late_starts_everything_anew() -> None:
    assert judged(*steady(50, dead="1"), look(60, took=11.0, dead="1"), look(80, dead="1")) == [[]] * 8


def test_a_look_that_failed_starts_everything_anew() -> None:
    watch, _ = judge(None, look(0, dead="1"), LIMIT)

    assert judge(None, look(60, dead="1"), LIMIT)[1] == {}
    assert judge(watch, look(10, dead="1"), LIMIT)[0].since["dead"] == ("1", 0.0)


def test_a_newcomer_is_watched_from_its_first_look_on() -> None:
    looks = [look(at, **({"new": "1"} if at >= 40 else {})) for at in range(0, 110, 10)]

    assert judged(*looks) == [[]] * 10 + [["new"]]


def test_one_that_was_acted_on_is_watched_from_the_start() -> None:
    watch, still = None, {}
    for each in steady(60, dead="1", other="1"):
        watch, still = judge(watch, each, LIMIT)
    assert watch is not None and len(still) == 2  # noqa: PT018

    watch, still = judge(without(watch, "dead"), look(70, dead="1", other="1"), LIMIT)

    assert list(still) == ["other"]


def test_the_ends_of_a_round_trip_never_make_a_standstill_longer() -> None:
    """Answered at 5, asked at 64: the beat may have moved just before the first and just after the second."""
    looks = [look(0, took=5.0, dead="1"), *[look(at, dead="1") for at in range(10, 61, 10)], look(64, dead="1")]

    assert judged(*looks)[-1] == []
    assert judged(*looks, look(65, dead="1"))[-1] == ["dead"]


@given(st.floats(0.1, 1e5), st.integers())
def test_looks_are_made_in_time(limit: float, seed: int) -> None:
    seconds = pause(limit, Random(seed))

    assert 0 < seconds <= limit * LONGEST_GAP / 2  # a round trip and a busy machine have room, too


# a law: whoever is found has not moved, and nothing has interrupted the watch, for the whole time

beats = st.dictionaries(st.sampled_from("abc"), st.integers(0, 2).map(str), max_size=3)
steps = st.tuples(
    st.sampled_from([0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 2.0, 3.0, 4.0]),  # seconds since the look before
    st.sampled_from([0.0, 0.0, 0.0, 0.3, 2.5]),  # of the round trip
    st.sampled_from([False] * 9 + [True]),  # reconnected
    st.sampled_from([False] * 9 + [True]),  # failed
    beats,
)


@given(st.lists(steps, max_size=60))
def test_nobody_is_found_who_has_moved_or_whom_nobody_watched(
    row: list[tuple[float, float, bool, bool, dict[str, str]]],
) -> None:
    limit, at, connection, watch = 6.0, 0.0, 1, None
    seen: list[Look] = []  # since the last interruption
    for waited, took, reconnected, failed, now in row:
        at += waited
        connection += reconnected
        if failed:
            watch, seen = None, []
            continue
        each = Look(at, at + took, connection, now)
        if seen and (reconnected or each.answered - seen[-1].answered > limit * LONGEST_GAP):
            seen = []
        at += took

        watch, still = judge(watch, each, limit)

        seen.append(each)
        for identity in now:
            stood = each.asked - _last_run(seen, identity)[0].answered
            assert (identity in still) == (stood >= limit)


def _last_run(looks: list[Look], identity: str) -> list[Look]:
    """Return the looks at the end that all show the same beat of an identity."""
    run: list[Look] = []
    for each in reversed(looks):
        if each.beats.get(identity) != looks[-1].beats[identity]:
            break
        run.append(each)
    return run[::-1]


def test_values_are_frozen() -> None:
    watch = Watch(1.0, 1, {"a": ("1", 0.5)})

    assert replace(watch, answered=2.0) != watch
    assert without(watch, "a").since == {}
    assert watch.since == {"a": ("1", 0.5)}
