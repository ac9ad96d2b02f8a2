"""Rate limits: how many starts each kind allows, and which times it promises to the others."""

from __future__ import annotations

import copy
import pickle
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from kiqcluster import Job, limits
from kiqcluster.errors import JobDefinitionError, OverLimit, UsageError
from kiqcluster.limits import RateLimit
from kiqcluster.sidekiq.payload import new_jid
from kiqcluster.store import Store
from kiqcluster.store.scripts import RATE, Call, run_script
from tests.kit import wait_until

pytestmark = pytest.mark.usefixtures("setup")

MARGIN_SECONDS = 0.1  # within which two calls in a row are made
CALLERS = 15  # of a walk
MAX_WALKS = 12  # until one had the machine for itself


def wait_of(store: Store, limit: RateLimit, was_promised: bool = False) -> float:
    """Ask for a start; return 0 if it was counted, else the seconds until it is allowed."""
    arguments = (limit.kind, limit.largest, repr(limit.seconds), int(was_promised), new_jid())
    return float(run_script(store, Call(RATE, [store.keys.rate("test")], arguments)))


def server_time(store: Store) -> float:
    seconds, microseconds = store.call("TIME")
    return int(seconds) + int(microseconds) / 1e6


LONG = [limits.fixed_window(3, 60), limits.sliding_window(3, 60), limits.leaky_bucket(3, per_second=0.05)]
SHORT = [limits.fixed_window(4, 0.1), limits.sliding_window(4, 0.1), limits.leaky_bucket(4, per_second=40)]


def kind(limit: RateLimit) -> str:
    return limit.kind


@pytest.mark.parametrize("limit", LONG, ids=kind)
def test_the_largest_number_of_starts_is_allowed_and_the_next_ones_get_times_one_after_another(
    store: Store, limit: RateLimit
) -> None:
    if limit.kind == "fixed_window":
        wait_until(lambda: server_time(store) % 60 < 55, "a minute with time enough")
    assert [wait_of(store, limit) for _ in range(3)] == [0, 0, 0]

    waits = [wait_of(store, limit) for _ in range(4)]

    assert 0 < waits[0] <= 60
    for before, after in pairwise(waits):
        assert after - before == pytest.approx(20, abs=MARGIN_SECONDS)
    assert 60 <= store.call("TTL", store.keys.rate("test")) <= 60 * 6


@pytest.mark.parametrize("limit", SHORT, ids=kind)
def test_never_too_many_however_many_threads_ask(store: Store, limit: RateLimit) -> None:
    """Each start lies between two readings of the clock: too many would have to lie in too short a time."""
    end = time.monotonic() + 0.6
    last = end + 30  # for a machine that is busy
    found: list[tuple[float, float]] = []

    def ask() -> None:
        while (before := time.monotonic()) < (end if len(found) > 2 * limit.largest else last):
            if wait_of(store, limit, was_promised=True) == 0:
                found.append((before, time.monotonic()))

    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(ask) for _ in range(4)]:
            each.result()
    starts = sorted(found)

    assert len(starts) > 2 * limit.largest
    if limit.kind == "leaky_bucket":
        longest = max(after for _, after in starts) - starts[0][0]
        assert len(starts) <= limit.largest + longest / limit.seconds + 1
    else:
        periods = 1 if limit.kind == "sliding_window" else 2  # two windows of the clock touch
        for first, later in zip(starts, starts[periods * limit.largest :], strict=False):
            assert later[1] - first[0] >= limit.seconds


@pytest.mark.parametrize("limit", SHORT, ids=kind)
def test_a_promised_start_is_allowed_at_its_time_and_is_not_overtaken(store: Store, limit: RateLimit) -> None:
    while wait_of(store, limit) == 0:
        pass
    promised = wait_of(store, limit)
    due = time.monotonic() + promised

    wait_until(lambda: time.monotonic() >= due, "the promised time")

    assert wait_of(store, limit, was_promised=True) == 0


def test_a_later_start_waits_behind_those_that_were_promised_a_time(store: Store) -> None:
    limit = limits.sliding_window(1, 0.2)
    assert wait_of(store, limit) == 0
    promised = [wait_of(store, limit) for _ in range(3)]
    due = time.monotonic() + promised[0]
    wait_until(lambda: time.monotonic() >= due, "the first promised time")

    later = wait_of(store, limit)

    assert later == pytest.approx(0.6, abs=MARGIN_SECONDS)
    assert wait_of(store, limit, was_promised=True) == 0


def test_one_that_comes_before_its_time_keeps_it(store: Store) -> None:
    limit = limits.sliding_window(1, 30)
    wait_of(store, limit)
    promised = wait_of(store, limit)

    assert wait_of(store, limit, was_promised=True) == pytest.approx(promised, abs=MARGIN_SECONDS)
    assert wait_of(store, limit) == pytest.approx(promised + 30, abs=MARGIN_SECONDS)


def test_after_a_limit_became_smaller_promised_starts_get_other_times(store: Store) -> None:
    before = limits.leaky_bucket(10, per_second=10)
    while wait_of(store, before) == 0:
        pass
    smaller = limits.leaky_bucket(1, per_second=0.1)

    waits = [wait_of(store, replace(smaller, seconds=0.2), was_promised=True) for _ in range(3)]

    assert waits[0] > 0.2
    for first, second in pairwise(waits):
        assert second - first == pytest.approx(0.2, abs=MARGIN_SECONDS)


@pytest.mark.quiet
def test_a_random_walk_of_promises_serves_everybody_nearly_in_order(store: Store) -> None:
    """Who is refused comes back at the promised time; it neither comes often in vain, nor does it fall far behind."""
    limit = limits.sliding_window(3, 0.3)
    for _ in range(MAX_WALKS):
        store.call("FLUSHALL")
        served, refusals, longest_pause = walk(store, limit)
        assert sorted(served) == list(range(CALLERS))
        if longest_pause < MARGIN_SECONDS / 4:  # nobody came back late, as where others use the machine
            break

    assert max(abs(place - number) for place, number in enumerate(served)) <= limit.largest
    assert refusals <= CALLERS


def walk(store: Store, limit: RateLimit) -> tuple[list[int], int, float]:
    """Have CALLERS ask, and those who were refused ask again at their times.

    Returns who was served, in order; how often a promise was not kept; the longest time for which nobody could ask.
    """
    rng, served, refusals = Random(7), list[int](), 0
    due_by_number: dict[int, float] = {}
    looked_at = longest_pause = 0.0

    def ask(number: int, was_promised: bool) -> None:
        nonlocal refusals
        wait = wait_of(store, limit, was_promised)
        if wait:
            refusals += was_promised
            due_by_number[number] = time.monotonic() + wait
        else:
            due_by_number.pop(number, None)
            served.append(number)

    def come_back() -> None:
        """Have those ask again whose time has come, in the order of their times."""
        nonlocal looked_at, longest_pause
        now = time.monotonic()
        looked_at, longest_pause = now, max(longest_pause, now - (looked_at or now))
        due = {number: due for number, due in due_by_number.items() if due <= now}
        for number in sorted(due, key=due.__getitem__):
            ask(number, was_promised=True)

    for number in range(CALLERS):
        begin = time.monotonic() + rng.random() * 0.03
        wait_until(lambda begin=begin: come_back() or time.monotonic() >= begin, "the next one to come")
        ask(number, was_promised=False)
    wait_until(lambda: come_back() or not due_by_number, "all to be served")
    return served, refusals, longest_pause


class TestInsideOfAJob:
    def test_a_start_over_the_limit_raises_and_says_when_it_is_allowed(self, store: Store) -> None:
        limit = limits.sliding_window(1, 30, name="crm")
        with limit:
            pass

        with pytest.raises(OverLimit, match=r"the limit crm allows no start for \d+\.\d{3} s") as raised, limit:
            pytest.fail("it was allowed")

        assert raised.value.seconds == pytest.approx(30, abs=MARGIN_SECONDS)
        for again in (copy.copy(raised.value), pickle.loads(pickle.dumps(raised.value))):
            assert (again.name, again.seconds) == ("crm", raised.value.seconds)

    def test_limits_of_one_name_share_a_count(self, store: Store) -> None:
        with limits.sliding_window(1, 30, name="crm"):
            pass

        with pytest.raises(OverLimit), limits.sliding_window(1, 30, name="crm"):
            pass
        with limits.sliding_window(1, 30, name="other"):
            pass

    def test_it_needs_a_name(self) -> None:
        with pytest.raises(UsageError, match="needs a name"), limits.sliding_window(1, 30):
            pass


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: limits.fixed_window(0, 60), "0 is not a number of starts"),
        (lambda: limits.fixed_window(True, 60), "True is not a number of starts"),
        (lambda: limits.fixed_window(1, 0), "0 does not fit"),
        (lambda: limits.sliding_window(1, float("nan")), "nan does not fit"),
        (lambda: limits.leaky_bucket(1, per_second=-1), "-1 does not fit"),
        (lambda: limits.leaky_bucket(1, 1, name="a\nb"), "is not a valid name"),
    ],
)
def test_what_is_not_a_limit_is_refused(make: Callable[[], RateLimit], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def test_another_value_of_the_option_is_refused_at_import() -> None:
    with pytest.raises(JobDefinitionError, match=r"limits\.sliding_window\(100, 60\)"):

        class Wrong(Job, rate_limit=5):  # type: ignore[arg-type]
            def perform(self) -> None: ...
