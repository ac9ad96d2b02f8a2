"""The screen of kiqctl top without a terminal (textual's own driver of tests), and the pictures that it shows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from kiqcluster.api.dashboard import MAX_ENTRIES, View, read_dashboard
from kiqcluster.api.throughput import Rate
from kiqcluster.ctl.text.rows import summary_lines
from kiqcluster.ctl.top.actions import Action
from kiqcluster.ctl.top.screen import MAX_ROWS, ActionDone, Refreshed, RefreshFailed, Screen
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq import ruby_json
from kiqcluster.store import Store
from tests.fake_supervisor import FakeSupervisor, publish
from tests.kit import TIMEOUT_SECONDS, ManualClock

NOW = 1_795_168_740.5
Scene = Callable[[Pilot[int]], Awaitable[None]]


@pytest.fixture
def fake_supervisor(store: Store) -> Iterator[FakeSupervisor]:
    here = FakeSupervisor(store, workers=2)
    yield here
    here.close()


def add(store: Store, key: str, *scores: float, **fields: Any) -> None:
    """Have jobs lie in a set."""
    for score in scores:
        payload = {"retry": True, "queue": "low", "args": [], "class": "SendInvoice", "jid": repr(score), **fields}
        store.call("ZADD", key, repr(score), ruby_json.encode(payload))


class TestDashboard:
    def test_it_takes_three_round_trips_whatever_there_is(
        self, store: Store, fake_supervisor: FakeSupervisor, setup: Setup
    ) -> None:
        for number in range(200):
            store.pipeline([("SADD", "queues", f"q{number}"), ("LPUSH", f"queue:q{number}", b"{}")])
        add(store, "retry", *(NOW + number for number in range(300)))
        counting = Counting(store)

        dashboard = read_dashboard(counting, ManualClock(NOW), View.RETRIES)

        assert counting.exchanges == 3
        assert (len(dashboard.queues), len(dashboard.processes), len(dashboard.entries)) == (200, 2, MAX_ENTRIES)

    def test_it_says_what_there_is(self, store: Store, fake_supervisor: FakeSupervisor, setup: Setup) -> None:
        fake_supervisor.run_jobs(2, 1)
        store.pipeline([("SET", "stat:processed", 10), ("SET", "stat:failed", 1), ("SADD", "paused", "low")])
        store.pipeline([("SADD", "queues", "default", "mailers"), ("LPUSH", "kiq:wake:mailers", b"{}")])
        store.call("LPUSH", "queue:mailers", ruby_json.encode({"class": "A", "enqueued_at": NOW}))
        add(store, "retry", NOW)
        add(store, "dead", NOW, NOW + 1)

        dashboard = read_dashboard(store, ManualClock(NOW + 5))

        assert (dashboard.processed, dashboard.failed, dashboard.enqueued) == (10, 1, 2)
        assert dashboard.sizes == {View.RETRIES: 1, View.SCHEDULED: 0, View.DEAD: 2}
        assert [(each.name, each.size, each.is_paused, each.processes) for each in dashboard.queues] == [
            ("default", 0, False, 2),
            ("low", 0, True, 0),
            ("mailers", 2, False, 0),
        ]
        assert (dashboard.busy, dashboard.concurrency, len(dashboard.clusters)) == (3, 10, 1)

    def test_of_the_dead_the_latest_come_first_and_of_the_others_those_that_are_due_next(
        self, store: Store, setup: Setup
    ) -> None:
        for key in ("dead", "retry", "schedule"):
            add(store, key, *(NOW + number for number in range(MAX_ENTRIES + 2)))

        def first_and_last(view: View, offset: int = 0) -> tuple[float, float]:
            entries = read_dashboard(store, ManualClock(NOW), view, offset).entries
            return entries[0].score - NOW, entries[-1].score - NOW

        assert first_and_last(View.DEAD) == (MAX_ENTRIES + 1, 2)
        assert first_and_last(View.RETRIES) == first_and_last(View.SCHEDULED) == (0, MAX_ENTRIES - 1)
        assert first_and_last(View.RETRIES, MAX_ENTRIES) == (MAX_ENTRIES, MAX_ENTRIES + 1)

    def test_what_runs_is_read_in_both_forms(self, store: Store, setup: Setup) -> None:
        job = ruby_json.encode({"class": "SendInvoice", "args": [7], "jid": "a"}).decode()
        running_job = ruby_json.encode({"queue": "low", "payload": job, "run_at": int(NOW)})
        for identity, key in (("ours:1:a", "ours:1:a:work"), ("ruby:2:b", "ruby:2:b:workers")):
            publish(store, identity)
            store.call("HSET", key, "tid1", running_job)

        work = read_dashboard(store, ManualClock(NOW), View.BUSY).work

        assert [(each.identity, each.tid, each.queue, each.job.display_class) for each in work] == [
            ("ours:1:a", "tid1", "low", "SendInvoice"),
            ("ruby:2:b", "tid1", "low", "SendInvoice"),
        ]

    def test_a_key_of_the_wrong_type_costs_its_own_figure(self, store: Store, setup: Setup) -> None:
        store.pipeline(
            [("SET", "retry", "x"), ("SET", "queue:odd", "x"), ("SADD", "queues", "odd"), ("SET", "a:1:b", 1)]
        )
        store.pipeline([("SADD", "processes", "a:1:b"), ("SET", "stat:processed", "odd"), ("SET", "stat:failed", 3)])

        dashboard = read_dashboard(store, ManualClock(NOW), View.RETRIES)

        assert (dashboard.sizes[View.RETRIES], dashboard.entries, dashboard.processed, dashboard.failed) == (
            0,
            [],
            0,
            3,
        )
        assert [(each.name, each.size) for each in dashboard.queues] == [("odd", 0)]
        assert dashboard.processes == []
        assert dashboard.unreadable == ("retry", "queue:odd", "a:1:b")
        assert summary_lines(dashboard, Rate())[2].endswith("0 dead; of another type: retry, queue:odd, a:1:b")

    def test_a_picture_without_such_a_key_says_nothing_of_it(self, store: Store, setup: Setup) -> None:
        dashboard = read_dashboard(store, ManualClock(NOW))

        assert dashboard.as_json()["unreadable"] == []
        assert summary_lines(dashboard, Rate())[2].endswith(" dead")


class Counting(Store):
    """A store that counts its round trips."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._locate = store._locate
        self.exchanges = 0

    def borrowed(self) -> Any:
        counting, loan = self, super().borrowed()

        class Counted:
            def __enter__(self) -> Any:
                self._connection = loan.__enter__()
                return self

            def __exit__(self, *error: Any) -> None:
                loan.__exit__(*error)

            def exchange_each(self, *arguments: Any) -> Any:
                counting.exchanges += 1
                return self._connection.exchange_each(*arguments)

        return Counted()


class TestScreen:
    def test_the_table_follows_what_is_there_and_the_cursor_its_row(self, store: Store, setup: Setup) -> None:
        add(store, "retry", *(NOW + 1e8 + number for number in range(5)))

        async def scene(pilot: Pilot[int]) -> None:
            table = pilot.app.query_one(DataTable)
            await pilot.press("4")
            await shown(pilot, lambda: table.row_count == 5)
            await pilot.press("j", "j")
            add(store, "retry", NOW + 1e7)
            await shown(pilot, lambda: table.row_count == 6)
            assert table.cursor_row == 3
            store.call("ZPOPMIN", "retry", 4)  # the one that is selected too
            await shown(pilot, lambda: table.row_count == 2)
            assert 0 <= table.cursor_row < 2

        play(store, scene)

    def test_home_and_end_are_the_first_and_the_last_row(self, store: Store, setup: Setup) -> None:
        add(store, "retry", *(NOW + 1e8 + number for number in range(50)))

        async def scene(pilot: Pilot[int]) -> None:
            table = pilot.app.query_one(DataTable)
            await pilot.press("4")
            await shown(pilot, lambda: table.row_count == 50)
            await pilot.press("end")
            await shown(pilot, lambda: table.cursor_row == 49)
            await pilot.press("home")
            await shown(pilot, lambda: table.cursor_row == 0)

        play(store, scene)

    def test_of_very_many_queues_those_that_wait_longest_are_shown(self, store: Store, setup: Setup) -> None:
        names = [f"q{number:04}" for number in range(MAX_ROWS + 100)]
        store.pipeline([("SADD", "queues", *names), ("LPUSH", "queue:q0555", b'{"enqueued_at": 1.5}')])

        async def scene(pilot: Pilot[int]) -> None:
            table = pilot.app.query_one(DataTable)
            await shown(pilot, lambda: table.row_count == MAX_ROWS)
            assert str(table.get_row_at(0)[0]) == "q0555"

        play(store, scene)

    def test_throughput_is_what_the_counters_gained(self, store: Store, setup: Setup) -> None:
        store.call("SET", "stat:processed", 1_000)

        async def scene(pilot: Pilot[int]) -> None:
            head = pilot.app.query_one("#head", Static)
            store.call("SET", "stat:processed", 2_000_000)
            await shown(pilot, lambda: "2,000,000 processed" in str(head.content))
            assert "jobs  0.0/s processed" not in str(head.content)

        play(store, scene)

    def test_the_keys_that_are_offered_are_those_of_the_view(self, store: Store, setup: Setup) -> None:
        async def scene(pilot: Pilot[int]) -> None:
            assert offered(pilot) == {"P"}
            await pilot.press("2")
            assert offered(pilot) == {"Q", "C"}
            await pilot.press("4")
            assert offered(pilot) == {"R", "K"}
            await pilot.press("6")
            assert offered(pilot) == {"R"}

        play(store, scene)

    def test_a_key_without_a_row_does_nothing(self, store: Store, setup: Setup) -> None:
        async def scene(pilot: Pilot[int]) -> None:
            await pilot.press("4", "R", "enter", "less_than_sign", "greater_than_sign", "j", "k", "space")
            assert len(pilot.app.screen_stack) == 1

        play(store, scene)

    def test_results_that_come_while_the_screen_closes_are_ignored(self, store: Store, setup: Setup) -> None:
        async def scene(_: Pilot[int]) -> None:
            """Do nothing."""

        screen = play(store, scene)

        # None of them raises, although there is no widget to show it.
        screen.on_refreshed(Refreshed(read_dashboard(store, SystemClock())))
        screen.on_refresh_failed(RefreshFailed("Redis is away"))
        screen.on_action_done(ActionDone(Action("kill SendInvoice", lambda: "killed"), "killed", has_failed=False))


def play(store: Store, scene: Scene) -> Screen:
    """Run the screen, and a scene on it; return it closed."""

    async def run() -> Screen:
        clock = SystemClock()
        screen = Screen(store, clock, 0.1, read_dashboard(store, clock))
        async with screen.run_test(size=(120, 30)) as pilot:
            await asyncio.wait_for(scene(pilot), TIMEOUT_SECONDS)
        return screen

    return asyncio.run(run())


async def shown(pilot: Pilot[int], is_so: Callable[[], bool]) -> None:
    """Wait until something is so."""
    while not is_so():
        await pilot.pause(0.01)


def offered(pilot: Pilot[int]) -> set[str]:
    """Return the keys in upper case on the line of keys."""
    active = pilot.app.screen.active_bindings.values()
    return {each.binding.key for each in active if each.enabled and each.binding.key.isupper()}
