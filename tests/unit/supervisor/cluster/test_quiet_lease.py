"""QuietLease: who may end it, and that it ends by itself."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiqcluster.control.orders import BY_SIGNAL
from kiqcluster.supervisor.cluster.quiet_lease import QuietLease

KIQCTL = "kiqctl@host"


def quiet_by(by: str, lease: float = 60.0, now: float = 1_000.0) -> QuietLease:
    quiet = QuietLease()
    assert quiet.begin(by, lease, now, 1_795_168_740.5)
    return quiet


def test_there_is_none_at_the_start() -> None:
    quiet = QuietLease()

    assert not quiet
    assert (quiet.by, quiet.until, quiet.expirations) == ("", inf, 0)
    assert quiet.remaining(1_000.0) is None
    assert not quiet.expire(1e12)
    assert not quiet.end(BY_SIGNAL)
    assert not quiet.end(KIQCTL)


@pytest.mark.parametrize(
    ("began", "ends", "is_over"),
    [(BY_SIGNAL, BY_SIGNAL, True), (BY_SIGNAL, KIQCTL, True), (KIQCTL, KIQCTL, True), (KIQCTL, BY_SIGNAL, False)],
)
def test_a_signal_ends_only_what_a_signal_began(began: str, ends: str, is_over: bool) -> None:
    quiet = quiet_by(began)

    assert quiet.end(ends) is is_over
    assert bool(quiet) is not is_over
    assert quiet.by == ("" if is_over else began)


def test_anybody_who_asks_by_name_may_end_what_another_began() -> None:
    assert quiet_by("kiqctl@one").end("kiqctl@another")


class TestLease:
    def test_it_ends_the_quiet_at_its_time_once_and_is_counted(self) -> None:
        quiet = quiet_by(KIQCTL, lease=60.0)

        assert not quiet.expire(1_059.9)
        assert quiet.expire(1_060.0)
        assert not quiet
        assert not quiet.expire(1_061.0)
        assert quiet.expirations == 1
        assert quiet.remaining(1_061.0) is None

    def test_a_quiet_that_was_ended_before_does_not_expire(self) -> None:
        quiet = quiet_by(BY_SIGNAL)
        quiet.end(BY_SIGNAL)

        assert not quiet.expire(1e12)
        assert quiet.expirations == 0

    def test_0_has_no_end(self) -> None:
        quiet = quiet_by(BY_SIGNAL, lease=0.0)

        assert not quiet.expire(1e12)
        assert quiet.remaining(1e12) is None

    def test_what_is_left_of_it_runs_down_to_0(self) -> None:
        quiet = quiet_by(BY_SIGNAL, lease=60.0)

        assert [quiet.remaining(now) for now in (1_000.0, 1_045.0, 1_060.0, 1_100.0)] == [60.0, 15.0, 0.0, 0.0]

    def test_the_next_quiet_has_one_of_its_own(self) -> None:
        quiet = quiet_by(BY_SIGNAL, lease=60.0)
        quiet.expire(1_060.0)

        quiet.begin(BY_SIGNAL, 0.0, 2_000.0, 0.0)

        assert quiet.since == 2_000.0
        assert not quiet.expire(1e12)
        assert quiet.expirations == 1


class TestWithinAnother:
    def test_it_is_not_new_and_its_lease_counts_from_now(self) -> None:
        quiet = quiet_by(BY_SIGNAL, lease=60.0)

        assert not quiet.begin(BY_SIGNAL, 60.0, 1_050.0, 1_795_168_790.5)
        assert quiet.remaining(1_050.0) == 60.0
        assert (quiet.since, quiet.since_epoch) == (1_000.0, 1_795_168_740.5)

    def test_who_asks_by_name_has_it_from_then_on(self) -> None:
        quiet = quiet_by(BY_SIGNAL)
        quiet.begin(KIQCTL, 60.0, 1_010.0, 0.0)

        assert quiet.by == KIQCTL
        assert not quiet.end(BY_SIGNAL)

    def test_a_signal_does_not_make_it_end_by_signal(self) -> None:
        quiet = quiet_by(KIQCTL)
        quiet.begin(BY_SIGNAL, 60.0, 1_010.0, 0.0)

        assert quiet.by == KIQCTL
        assert not quiet.end(BY_SIGNAL)


STEPS = st.one_of(
    st.tuples(st.just("begin"), st.sampled_from([BY_SIGNAL, "kiqctl@a", "kiqctl@b"]), st.floats(0.1, 100)),
    st.tuples(st.just("end"), st.sampled_from([BY_SIGNAL, "kiqctl@a"]), st.just(0.0)),
    st.tuples(st.just("wait"), st.just(""), st.floats(0, 200)),
)


@given(st.lists(STEPS, max_size=30))
def test_whatever_was_asked_for_it_is_over_when_the_longest_lease_is(steps: list[tuple[str, str, float]]) -> None:
    quiet, now, expired = QuietLease(), 0.0, 0
    for step, by, seconds in steps:
        if step == "begin":
            quiet.begin(by, seconds, now, now)
        elif step == "end":
            quiet.end(by)
        else:
            now += seconds
            expired += quiet.expire(now)
        assert bool(quiet) == (quiet.remaining(now) is not None)

    expired += quiet.expire(now + 100)

    assert not quiet
    assert quiet.expirations == expired
