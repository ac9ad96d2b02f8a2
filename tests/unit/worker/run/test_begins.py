"""Begins: who asks for which unit, and what each thread is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, NoReturn

import pytest

from kiqcluster import job, limits
from kiqcluster.application.registry import Registry
from kiqcluster.errors import RedisRefused, RedisUnavailable, ReplyLost, StoreError
from kiqcluster.process.job_context import JobContext
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.keys import Keys
from kiqcluster.sidekiq.outcome import Effect
from kiqcluster.sidekiq.ruby_json import encode
from kiqcluster.store.engine.begin_calls import Begin, Begun
from kiqcluster.store.engine.units import GO, BeginVerdict, Unit
from kiqcluster.worker.run.begins import MIN_PAUSE_SECONDS, Begins
from kiqcluster.worker.run.feature_rows import RowsAhead
from kiqcluster.worker.run.job_run import JobRun
from tests.kit import ManualClock, wait_until

PARK = BeginVerdict("park")


def unit_of(number: int, payload: bytes = b"") -> Unit:
    return Unit("default", payload, f"token-{number}", "me")


def enter(largest: int, key: str = "slots") -> Effect:
    return Effect("enter", key, (largest, "park"))


class Redis:
    """What is asked, and answered: by `verdicts` of tokens, else GO."""

    def __init__(self) -> None:
        self.trips: list[list[str]] = []
        self.released: list[list[str]] = []
        self.verdicts: dict[str, BeginVerdict | RedisRefused] = {}
        self.is_released = True
        self.during: Callable[[], object] = lambda: None

    def __call__(self, begins: Sequence[Begin], ended: Sequence[Unit]) -> Begun:
        self.trips.append([begin.unit.token for begin in begins])
        self.released.append([unit.token for unit in ended])
        self.during()
        return Begun([self.verdicts.get(begin.unit.token, GO) for begin in begins], self.is_released)


@pytest.fixture
def redis() -> Redis:
    return Redis()


CLOCK = ManualClock()
ROWS = [enter(20)]


def begins_of(redis: Redis, *ahead: Unit, rows: Sequence[Effect] = ROWS) -> Begins:
    """Return begins beside units that wait, which have these rows."""
    return Begins(redis, CLOCK, lambda: ahead, lambda unit: Begin(unit, rows, ["feature"] * len(rows)))


class TestBegin:
    def test_without_rows_nobody_is_asked(self, redis: Redis) -> None:
        unit = unit_of(1)

        assert begins_of(redis, unit_of(2)).begin(unit, []) is GO
        assert (redis.trips, unit.holds) == ([], False)

    def test_units_that_are_next_are_asked_for_in_the_same_round_trip(self, redis: Redis) -> None:
        own, second, third = [unit_of(number) for number in (1, 2, 3)]
        redis.verdicts = {"token-3": BeginVerdict("defer", 2.5)}
        begins = begins_of(redis, second, third)

        verdicts = [begins.begin(unit, ROWS) for unit in (own, second, third)]

        assert [verdict.action for verdict in verdicts] == ["go", "go", "defer"]
        assert redis.trips == [["token-1", "token-2", "token-3"]]
        assert (own.holds, second.holds) == (True, True), "whoever settles them from now on releases them"

    def test_a_thread_that_takes_such_a_unit_meanwhile_gets_its_answer(self, redis: Redis) -> None:
        own, second = unit_of(1), unit_of(2)
        begins = begins_of(redis, second)
        answered, asked = threading.Event(), threading.Event()
        redis.during = lambda: (asked.set(), answered.wait(10))
        verdicts: list[BeginVerdict] = []
        threads = [
            threading.Thread(target=lambda unit=unit: verdicts.append(begins.begin(unit, ROWS)))  # type: ignore[misc]
            for unit in (own, second)
        ]

        threads[0].start()
        assert asked.wait(10)
        threads[1].start()
        wait_until(lambda: threads[1].is_alive(), "the second thread")
        assert verdicts == []
        answered.set()
        for thread in threads:
            thread.join(10)

        assert verdicts == [GO, GO]
        assert redis.trips == [["token-1", "token-2"]]

    def test_a_unit_that_its_thread_asks_for_is_not_asked_for_ahead(self, redis: Redis) -> None:
        own, second = unit_of(1), unit_of(2)
        second.asked = Begin(second, ROWS)

        begins_of(redis, second).begin(own, ROWS)

        assert redis.trips == [["token-1"]]

    def test_a_unit_that_a_thread_takes_while_its_rows_are_made_is_left_to_it(self, redis: Redis) -> None:
        """It may come to its end without a begin, and its outcome be written by then."""
        own, second, third = [unit_of(number) for number in (1, 2, 3)]
        looks = iter([[second, third], [third]])
        begins = Begins(redis, CLOCK, lambda: next(looks, []), lambda unit: Begin(unit, ROWS))

        for unit in (own, second, third):
            begins.begin(unit, ROWS)

        assert redis.trips == [["token-1", "token-3"], ["token-2"]]

    def test_who_waits_for_the_answer_to_such_a_unit_asks_itself(self, redis: Redis) -> None:
        own, second = unit_of(1), unit_of(2)
        looks = iter([[second], []])
        waits: list[threading.Thread] = []
        verdicts: list[BeginVerdict] = []

        def look() -> list[Unit]:
            found = next(looks, [])
            if not found and not waits:
                waits.append(threading.Thread(target=lambda: verdicts.append(begins.begin(second, ROWS))))
                waits[0].start()
                wait_until(lambda: second.asked is not None and waits[0].is_alive(), "the second thread")
            return found

        begins = Begins(redis, CLOCK, look, lambda unit: Begin(unit, ROWS))

        begins.begin(own, ROWS)
        waits[0].join(10)

        assert verdicts == [GO]
        assert redis.trips == [["token-1"], ["token-2"]]

    @pytest.mark.parametrize("error", [RedisUnavailable("away"), ReplyLost("no answer")])
    def test_an_outage_is_told_to_all(self, redis: Redis, error: StoreError) -> None:
        def fail() -> None:
            raise error

        redis.during = fail
        own, second = unit_of(1), unit_of(2)
        begins = begins_of(redis, second)

        for unit in (own, second):
            with pytest.raises(type(error)):
                begins.begin(unit, ROWS)
            assert unit.holds, "it may have begun"
        assert len(redis.trips) == 1

    def test_a_refusal_is_told_to_its_unit_alone(self, redis: Redis) -> None:
        redis.verdicts = {"token-2": RedisRefused("WRONGTYPE no set")}
        own, second = unit_of(1), unit_of(2)
        begins = begins_of(redis, second)

        assert begins.begin(own, ROWS) is GO
        with pytest.raises(RedisRefused):
            begins.begin(second, ROWS)

    def test_if_the_thread_is_interrupted_that_asks_the_others_know_of_no_answer(self, redis: Redis) -> None:
        def interrupt() -> None:
            raise KeyboardInterrupt

        redis.during = interrupt
        own, second = unit_of(1), unit_of(2)
        begins = begins_of(redis, second)

        with pytest.raises(KeyboardInterrupt):
            begins.begin(own, ROWS)
        with pytest.raises(ReplyLost):
            begins.begin(second, ROWS)

    def test_rows_by_which_nothing_is_held_need_no_release(self, redis: Redis) -> None:
        unit = unit_of(1)

        begins_of(redis).begin(unit, [Effect("fixed_window", "rate", (9, "1.0", 0))])

        assert not unit.holds


class TestAhead:
    @pytest.mark.parametrize(("largest", "asked"), [(1, 1), (2, 1), (8, 4), (0, 10), (100, 10)])
    def test_half_of_the_places_is_left_to_others(self, redis: Redis, largest: int, asked: int) -> None:
        rows = [enter(largest)]

        begins_of(redis, *map(unit_of, range(2, 11)), rows=rows).begin(unit_of(1), rows)

        assert len(redis.trips[0]) == asked

    def test_after_one_was_parked_nobody_asks_ahead_for_a_while_the_next_time_for_longer(self, redis: Redis) -> None:
        redis.verdicts = {"parked": PARK}
        begins = Begins(redis, CLOCK, lambda: [Unit("default", b"", "parked", "me")], lambda unit: Begin(unit, ROWS))

        def asks_ahead(after: float) -> bool:
            CLOCK.time += after
            begins.begin(unit_of(1), ROWS)
            return "parked" in redis.trips[-1]

        assert asks_ahead(0.0)
        assert not asks_ahead(0.9 * MIN_PAUSE_SECONDS)
        assert asks_ahead(0.2 * MIN_PAUSE_SECONDS)
        assert not asks_ahead(1.9 * MIN_PAUSE_SECONDS)
        assert asks_ahead(0.2 * MIN_PAUSE_SECONDS)
        assert asks_ahead(10.0)
        assert asks_ahead(1.1 * MIN_PAUSE_SECONDS)

    def test_their_rows_are_of_limited_size(self, redis: Redis) -> None:
        rows = [Effect("clear", "key", ("x" * 30_000,))]

        begins_of(redis, *map(unit_of, range(2, 11)), rows=rows).begin(unit_of(1), rows)

        assert len(redis.trips[0]) == 3


class TestEnd:
    def run(self, places: object = None) -> JobRun:
        unit = unit_of(7)
        unit.holds = True
        context = JobContext({}, "default", "Job", threading.Event())
        context.places = places
        return JobRun(unit, 0.0, context)

    def test_what_has_ended_is_released_with_the_next_begin_once(self, redis: Redis) -> None:
        begins, run = begins_of(redis), self.run()
        begins.end(run)

        for number in (1, 2):
            begins.begin(unit_of(number), ROWS)

        assert redis.released == [["token-7"], []]
        assert not run.unit.holds, "its settle need not release it"

    def test_where_that_failed_the_settle_does(self, redis: Redis) -> None:
        redis.is_released = False
        begins, run = begins_of(redis), self.run()
        begins.end(run)

        begins.begin(unit_of(1), ROWS)

        assert run.unit.holds

    def test_a_thread_that_a_job_leaves_behind_may_take_places_until_the_settle(self, redis: Redis) -> None:
        begins, run = begins_of(redis), self.run(places=object())
        begins.end(run)

        begins.begin(unit_of(1), ROWS)

        assert run.unit.holds


class TestRowsAhead:
    @pytest.fixture
    def rows_ahead(self, setup: Setup, registry: Registry) -> RowsAhead:
        return RowsAhead(registry, Keys())

    def unit(self, name: str, *args: Any, **more: Any) -> Unit:
        return unit_of(1, encode({"class": name, "args": list(args), "jid": "j", "queue": "default", **more}))

    def test_they_are_those_of_its_turn(self, rows_ahead: RowsAhead) -> None:
        job(name="Sync", concurrency_limit=3, rate_limit=limits.fixed_window(5, 1))(lambda shop: None)

        begin = rows_ahead(self.unit("Sync", 1))

        assert begin is not None
        assert [row.operation for row in begin.rows] == ["fixed_window", "enter"]
        assert begin.names == ["rate_limit", "concurrency_limit"]

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"concurrency_limit": lambda: 3},
            {"rate_limit": limits.concurrent(3)},
            {"deduplicate": "until_executing"},
            {"concurrency_limit": 3, "policy": lambda run: None},
        ],
        ids="+".join,
    )
    def test_what_asks_the_application_or_acts_at_the_begin_waits_for_its_turn(
        self, rows_ahead: RowsAhead, options: dict[str, Any]
    ) -> None:
        job(name="Sync", **options)(lambda shop: None)

        assert rows_ahead(self.unit("Sync", 1)) is None

    @pytest.mark.parametrize(
        "options",
        [
            {"concurrency_limit": 3, "concurrency_key": str},
            {"deduplicate": "while_executing", "deduplicate_key": str},
        ],
        ids="+".join,
    )
    def test_functions_of_the_arguments_do_not(self, rows_ahead: RowsAhead, options: dict[str, Any]) -> None:
        job(name="Sync", **options)(lambda shop: None)

        first, other = rows_ahead(self.unit("Sync", 1)), rows_ahead(self.unit("Sync", 2))

        assert first is not None
        assert other is not None
        assert [row.operation for row in first.rows] == ["enter"]
        assert first.rows[0].key != other.rows[0].key

    def test_such_a_function_sees_no_other_job(self, rows_ahead: RowsAhead) -> None:
        """It runs in the thread of one."""
        tenant: ContextVar[str] = ContextVar("tenant", default="nobody")
        job(name="Sync", concurrency_limit=3, concurrency_key=lambda _shop: tenant.get())(lambda shop: None)
        tenant.set("of another job")

        begin = rows_ahead(self.unit("Sync", 1))

        assert begin is not None
        assert begin.rows[0].key == Keys().slots("Sync", "nobody")

    @pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
    def test_where_it_raises_it_is_called_again_at_its_turn(
        self, rows_ahead: RowsAhead, error: type[BaseException]
    ) -> None:
        def refuse(_shop: int) -> NoReturn:
            raise error

        job(name="Sync", concurrency_limit=3, concurrency_key=refuse)(lambda shop: None)

        assert rows_ahead(self.unit("Sync", 1)) is None

    def test_what_may_not_run_at_all_waits_for_its_turn(self, rows_ahead: RowsAhead) -> None:
        job(name="Sync", concurrency_limit=3)(lambda shop: None)
        suspect = self.unit("Sync", 1)
        suspect.deaths = 1
        expired = self.unit("Sync", 1, expiry=1.0)

        for unit in (suspect, expired, self.unit("Sync"), self.unit("Other", 1), unit_of(1, b"no job")):
            assert rows_ahead(unit) is None
