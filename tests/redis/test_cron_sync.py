"""Cron entries that applications declare: who has which, and that Redis has them whatever it loses."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kiqcluster.api import CronSet
from kiqcluster.application.registry import Registry
from kiqcluster.errors import ExitCode, UsageError
from kiqcluster.job import job
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.process.runtime import Runtime, Setup
from kiqcluster.sidekiq.cron_entries import CronEntry, parse_entries
from kiqcluster.store import Store
from kiqcluster.store.cron import CronRow, Mark, read_entries, write
from kiqcluster.worker.maintenance import cron_sync
from kiqcluster.worker.maintenance.cron_sync import CronSync, Step, next_step
from tests.redis.kiqctl import Kiqctl
from tests.redis.web.site import Site

DAILY = {"schedule": "@daily", "job": "report"}
Told = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def now(store: Store) -> float:
    """The time of Redis, in which ticks are due."""
    seconds, micros = store.call("TIME")
    return int(seconds) + int(micros) / 1e6


@pytest.fixture
def told() -> Told:
    """The events of all processes."""
    return []


Start = Callable[..., CronSync]


@pytest.fixture
def start(store: Store, setup: Setup, registry: Registry, told: Told) -> Start:
    """Start a process: `start(a={…}, application="shop")`; its keywords are the entries that it declares."""

    @job
    def report(number: int = 0) -> None: ...

    def make(application: str = "app", **entries: object) -> CronSync:
        setup.config = Config(require=("app",), cron=parse_entries(entries), cron_application=application)
        events = Events()
        events.listen(lambda event, fields: told.append((event, dict(fields))))
        runtime = Runtime(setup.config, store, setup, events)
        return CronSync(runtime, registry, "", lambda key, at: None, frozenset({"local"}))

    return make


def ticks(store: Store) -> dict[str, float | None]:
    """Return id of each entry → the tick that it awaits."""
    return {each.id: each.next_at for each in read_entries(store)}


def stored(store: Store, identifier: str) -> CronEntry:
    (found,) = read_entries(store, [identifier])
    return CronEntry.read(identifier, found.raw)


def run_process(store: Store, application: str, sync: CronSync | None = None) -> None:
    """Have a process of an application in Sidekiq's list of processes.  sync: of that process."""
    identity = f"host:1:{application}-{sync.digest if sync else ''}"
    info = {"application": application, "queues": ["q"], **({"cron": sync.digest} if sync else {})}
    store.call("SADD", store.keys.processes, identity)
    store.call("HSET", store.keys.process(identity), "info", json.dumps(info))
    store.call("EXPIRE", store.keys.process(identity), 60)


def end_processes(store: Store) -> None:
    store.call("DEL", store.keys.processes)


class TestDeclared:
    def test_what_is_declared_is_written_once_and_removed_when_it_is_gone(
        self, store: Store, start: Start, now: float
    ) -> None:
        start(a=DAILY, b=DAILY).keep()
        CronSet(store=store).add("by hand", "* * * * *", "Report", queue="q")

        found = ticks(store)
        assert set(found) == {"a@app", "b@app", "by hand"}
        assert stored(store, "a@app").queue == "cronjob:report"
        assert stored(store, "a@app").options["retry"] == 0
        assert found["a@app"] == found["b@app"] == (now // 86_400 + 1) * 86_400
        store.call("CONFIG", "RESETSTAT")
        start(a=DAILY, b=DAILY).keep()
        assert b"cmdstat_hset" not in store.call("INFO", "commandstats")

        start(b=DAILY).keep()
        assert set(ticks(store)) == {"b@app", "by hand"}
        start().keep()
        assert set(ticks(store)) == {"by hand"}

    def test_removed_entries_are_named_for_two_applications_may_have_one_name(
        self, store: Store, start: Start, told: Told
    ) -> None:
        for entries in ({"shared": DAILY, "nightly": DAILY}, {"billing": DAILY}, {"billing": DAILY}):
            start(**entries).keep()

        removed = [fields for event, fields in told if event == "cron_entries_removed"]
        assert [(each["names"], each["application"]) for each in removed] == [("nightly, shared", "app")]
        assert set(ticks(store)) == {"billing@app"}

    def test_an_entry_that_is_the_same_keeps_the_tick_that_it_awaits(
        self, store: Store, start: Start, now: float
    ) -> None:
        start(a=DAILY, b=DAILY).keep()
        for each in ("a@app", "b@app"):
            store.call("ZADD", store.keys.cron_ticks, now - 30, each)

        start(a={**DAILY, "args": [1]}, b={"schedule": "@hourly", "job": "report"}).keep()

        found = ticks(store)
        assert found["a@app"] == pytest.approx(now - 30), "a tick that is due is not lost by a deploy"
        assert found["b@app"] == (now // 3_600 + 1) * 3_600

    def test_a_disabled_entry_stays_disabled_unless_the_declaration_says_otherwise(
        self, store: Store, start: Start
    ) -> None:
        start(a=DAILY).keep()
        assert CronSet(store=store).disable("a")

        start(a={**DAILY, "retry": 2}).keep()
        assert ticks(store) == {"a@app": None}
        start(a={**DAILY, "enabled": True}).keep()
        assert ticks(store)["a@app"] is not None

    def test_an_entry_that_is_declared_is_not_changed_by_hand(self, store: Store, start: Start) -> None:
        start(a=DAILY).keep()

        verbs = (("put", "{}"), ("remove", ""), ("disable", ""))
        rows = [*(CronRow(verb, "a@app", word, 5) for verb, word in verbs), CronRow("remove", "no")]
        assert write(store, rows) == ["DECLARED", "DECLARED", "DONE", "ABSENT"]
        with pytest.raises(UsageError, match="take another name"):
            CronSet(store=store).add("a", "* * * * *", "report", queue="cronjob:report")

    def test_only_the_process_that_began_last_writes(self, store: Store) -> None:
        store.call("HSET", store.keys.cron_applications, "app", "writing other")

        assert write(store, [CronRow("put", "a@app", "{}", 5)], "app", Mark("writing", "mine")) is None
        assert read_entries(store) == []

    def test_a_forbidden_key_keeps_no_worker_from_starting(self, store: Store, setup: Setup, start: Start) -> None:
        errors: list[str] = []
        setup.error_handlers.append(lambda error, context: errors.append(str(context["context"])))
        store.call("SET", store.keys.cron, "x")
        sync = start(a=DAILY)

        sync.refuse_held()
        sync.keep()

        assert errors == ["cron", "cron"]


class TestOwners:
    def test_applications_have_entries_of_one_name_in_queues_of_their_own(self, store: Store, start: Start) -> None:
        for application in ("shop", "blog"):
            run_process(store, application)
            sync = start(application, daily={**DAILY, "queue": application})
            sync.refuse_held()
            sync.keep()
        assert set(ticks(store)) == {"daily@shop", "daily@blog"}

        start("blog").keep()

        assert set(ticks(store)) == {"daily@shop"}, "an application removes its own"

    def test_an_application_that_would_run_each_tick_of_another_again_is_refused_with_both_names(
        self, store: Store, start: Start
    ) -> None:
        start("shop", daily=DAILY).keep()
        before = store.call("HGETALL", store.keys.cron)
        run_process(store, "shop")
        sync = start("blog", daily={**DAILY, "schedule": "@hourly"}, other=DAILY)

        with pytest.raises(UsageError, match=r"'blog'.* 'shop', which runs \(host:1:shop") as caught:
            sync.refuse_held()

        assert caught.value.exit_code == ExitCode.NAME_IN_USE
        sync.keep()  # as it does where both have started at the same time
        assert store.call("HGET", store.keys.cron, "daily@shop") == before[1]
        assert set(ticks(store)) == {"daily@shop", "other@blog"}

    def test_a_process_of_the_next_release_is_not_refused(self, store: Store, start: Start) -> None:
        start("shop", daily=DAILY).keep()
        run_process(store, "shop")

        sync = start("shop", daily={**DAILY, "schedule": "@hourly"})
        sync.refuse_held()
        sync.keep()

        assert stored(store, "daily@shop").schedule.text == "@hourly"

    def test_a_renamed_application_takes_its_entries_over_once_the_old_name_runs_no_more(
        self, store: Store, start: Start, told: Told, now: float
    ) -> None:
        start("old", daily=DAILY, gone=DAILY).keep()
        store.call("ZADD", store.keys.cron_ticks, now - 30, "daily@old")
        store.call("LPUSH", store.keys.cron_history("daily@old"), "b", "a")
        run_process(store, "old")
        sync = start("new", daily=DAILY)
        with pytest.raises(UsageError):
            sync.refuse_held()

        end_processes(store)
        sync.refuse_held()
        sync.keep()

        assert set(ticks(store)) == {"daily@new", "gone@old"}
        assert ticks(store)["daily@new"] == pytest.approx(now - 30), "a tick that is due is not lost by the new name"
        assert store.call("LRANGE", store.keys.cron_history("daily@new"), 0, -1) == [b"a", b"b"]
        assert not store.call("EXISTS", store.keys.cron_history("daily@old"))
        assert ("cron_entries_taken_over", {"names": "daily", "application": "new", "others": "old"}) in told

    def test_an_entry_that_was_disabled_is_so_under_the_new_name(self, store: Store, start: Start) -> None:
        start("old", daily=DAILY).keep()
        CronSet(store=store).disable("daily")

        start("new", daily=DAILY).keep()

        assert ticks(store) == {"daily@new": None}
        assert store.call("SMEMBERS", store.keys.cron_disabled) == [b"daily@new"]

    def test_both_that_start_at_the_same_time_are_told_and_one_has_the_entry(
        self, store: Store, start: Start, told: Told
    ) -> None:
        syncs = [start(each, daily=DAILY) for each in ("shop", "blog")]
        for application, sync in zip(("shop", "blog"), syncs, strict=True):
            sync.refuse_held()
            run_process(store, application)

        for sync in syncs:
            sync.keep()
        for sync in syncs:
            sync.keep()

        assert set(ticks(store)) == {"daily@shop"}
        assert [event for event, _ in told if event == "cron_entry_held"] == ["cron_entry_held"], "said once"

        end_processes(store)
        syncs[1].keep()
        assert set(ticks(store)) == {"daily@blog"}, "an entry that has come free is taken"

    def test_an_entry_that_was_added_by_hand_becomes_the_declared_one(
        self, store: Store, start: Start, now: float
    ) -> None:
        entries = CronSet(store=store)
        for name, queue in (("daily", "cronjob:report"), ("daily too", "q")):
            entries.add(name, "@daily", "report", queue=queue)
        store.call("ZADD", store.keys.cron_ticks, now - 30, "daily")

        start(daily=DAILY, **{"daily too": DAILY}).keep()

        found = ticks(store)
        assert set(found) == {"daily@app", "daily too@app", "daily too"}
        assert found["daily@app"] == pytest.approx(now - 30)

    def test_a_queue_that_changes_leaves_tick_and_switch_as_they_are(
        self, store: Store, start: Start, now: float
    ) -> None:
        start(a=DAILY, b=DAILY).keep()
        store.call("ZADD", store.keys.cron_ticks, now - 30, "a@app")
        CronSet(store=store).disable("b")

        start(a={**DAILY, "queue": "q"}, b={**DAILY, "queue": "q"}).keep()

        assert ticks(store) == {"a@app": pytest.approx(now - 30), "b@app": None}

    def test_names_with_an_at_sign_are_told_apart(self, store: Store, start: Start) -> None:
        run_process(store, "b")
        run_process(store, "a@b")
        start("b", **{"x@a": DAILY}).keep()
        start("a@b", x=DAILY).refuse_held()  # the ids are equal
        CronSet(store=store).add("x", "@daily", "report", queue="cronjob:report")

        assert [each.name for each in CronSet(store=store).list()] == ["x", "x@a"]

        start("a@b", y=DAILY).keep()
        sync = start("b", **{"x@a": DAILY})
        for _ in range(2):
            sync.keep()
        assert set(ticks(store)) == {"x", "x@a@b", "y@a@b"}, "an application removes none of another"

    def test_what_an_application_that_runs_no_more_has_declared_is_removed_by_hand(
        self, store: Store, start: Start
    ) -> None:
        start("shop", daily=DAILY).keep()
        run_process(store, "shop")
        entries = CronSet(store=store)
        with pytest.raises(UsageError, match="declared by the application shop, which runs"):
            entries.remove("daily")

        end_processes(store)

        assert entries.remove("daily")
        assert ticks(store) == {}


def test_a_process_without_an_expiry_is_not_in_the_way(store: Store, start: Start) -> None:
    start("shop", daily=DAILY).keep()
    run_process(store, "shop")
    with pytest.raises(UsageError):
        start("blog", daily=DAILY).refuse_held()

    store.call("PERSIST", store.keys.process("host:1:shop-"))

    start("blog", daily=DAILY).refuse_held()


class TestUnserved:
    """Entries whose jobs wait in a queue from which no process fetches."""

    def test_they_are_named_once_and_again_when_a_queue_is_served_no_more(
        self, store: Store, start: Start, told: Told
    ) -> None:
        queues = {"a": "local", "b": "q", "c": "nobody's", "d": "nobody's"}
        sync = start(**{name: {**DAILY, "queue": queue} for name, queue in queues.items()})

        run_process(store, "blog")  # it fetches from q
        for _ in range(2):
            sync.keep()
        end_processes(store)
        sync.keep()

        unserved = [(fields["queue"], fields["names"]) for event, fields in told if event == "cron_queue_unserved"]
        assert unserved == [("nobody's", "c, d"), ("q", "b")]

    def test_lists_and_pages_show_them(self, store: Store, start: Start, kiqctl: Kiqctl) -> None:
        run_process(store, "blog")
        start("blog", a={**DAILY, "queue": "q"}).keep()
        start("shop", b={**DAILY, "queue": "default"}).keep()

        shown = {each["name"]: each for each in kiqctl.ask("cron", "list")["entries"]}
        assert [(shown[name]["served"], shown[name]["runs"]) for name in "ab"] == [(True, True), (False, False)]
        (line,) = [each for each in kiqctl("cron", "list").stdout.splitlines() if each.startswith("b ")]
        assert "default (no worker)" in line
        assert line.endswith("shop (not running)")
        site = Site(store)
        for page, marks in (("/cron", 1), ("/cron/a@blog", 0), ("/cron/b@shop", 1)):
            text = site.get(page).text
            assert text.count("no worker") == text.count("not running") == marks, page
        assert "/cron/b@shop/remove" in site.get("/cron/b@shop").text
        assert "/cron/a@blog/remove" not in site.get("/cron/a@blog").text


class TestLost:
    @pytest.fixture(params=["after a minute", "at a restart"])
    def again(self, request: pytest.FixtureRequest, start: Start) -> Callable[[CronSync], None]:
        """What a process does next: its next look, or the first one of the process after it."""
        entries = {"a": DAILY, "b": DAILY, "off": {**DAILY, "enabled": False}}

        def go_on(sync: CronSync) -> None:
            if request.param == "after a minute":
                sync.keep()
            else:
                start(**entries).keep()

        return go_on

    @pytest.fixture
    def sync(self, start: Start) -> CronSync:
        sync = start(a=DAILY, b=DAILY, off={**DAILY, "enabled": False})
        sync.keep()
        return sync

    @pytest.mark.parametrize(
        "commands",
        [
            [("DEL", "kiq:cron")],
            [("DEL", "kiq:cron:ticks")],
            [("DEL", "kiq:cron:applications")],
            [("DEL", "kiq:cron:disabled")],
            [("DEL", "kiq:cron", "kiq:cron:ticks")],
            [("HDEL", "kiq:cron", "a@app"), ("ZREM", "kiq:cron:ticks", "a@app")],
            [("HDEL", "kiq:cron", "a@app")],
            [("ZREM", "kiq:cron:ticks", "a@app")],
            [("HSET", "kiq:cron", "a@app", "{")],
            [("HSET", "kiq:cron", "gone@app", '{"application":"app","schedule":"@daily"}')],
            [("FLUSHDB",)],
        ],
        ids=lambda commands: " ".join(commands[0]) + (" …" if len(commands) > 1 else ""),
    )
    def test_what_redis_has_lost_comes_back(
        self,
        store: Store,
        sync: CronSync,
        again: Callable[[CronSync], None],
        now: float,
        commands: list[tuple[str, ...]],
    ) -> None:
        keys = (store.keys.cron, store.keys.cron_ticks)
        before = [store.call("HGETALL", keys[0]), store.call("ZRANGE", keys[1], 0, -1, "WITHSCORES")]
        for command in commands:
            store.call(*command)

        again(sync)

        assert set(ticks(store).values()) == {(now // 86_400 + 1) * 86_400, None}
        assert dict(zip(*[iter(store.call("HGETALL", keys[0]))] * 2, strict=True)) == dict(
            zip(*[iter(before[0])] * 2, strict=True)
        )
        assert store.call("ZRANGE", keys[1], 0, -1, "WITHSCORES") == before[1]
        assert store.call("SMEMBERS", store.keys.cron_disabled) == [b"off@app"]

    def test_what_comes_back_is_named(self, store: Store, sync: CronSync, told: Told) -> None:
        store.call("HDEL", store.keys.cron, "b@app")

        sync.keep()
        sync.keep()

        restored = [fields for event, fields in told if event == "cron_entries_restored"]
        assert restored == [{"names": "b", "application": "app"}]

    def test_a_switch_of_an_operator_is_no_loss(self, store: Store, sync: CronSync) -> None:
        entries = CronSet(store=store)
        entries.disable("a")
        entries.enable("off")

        sync.keep()

        assert {name for name, at in ticks(store).items() if at is None} == {"a@app"}

    def test_a_look_that_finds_all_changes_nothing(self, store: Store, sync: CronSync) -> None:
        store.call("CONFIG", "RESETSTAT")

        sync.keep()

        statistics = store.call("INFO", "commandstats")
        assert b"cmdstat_hset" not in statistics
        assert b"cmdstat_evalsha" not in statistics

    def test_what_another_process_has_not_finished_is_finished(self, store: Store, sync: CronSync) -> None:
        """Also if no process looks twice: what each of them has seen before does not count."""
        store.call("DEL", store.keys.cron)
        seconds = int(store.call("TIME")[0])
        store.call("HSET", store.keys.cron_applications, "app", f"writing {seconds - 10}-other")
        sync.keep()
        sync.keep()
        assert ticks(store) == {}

        store.call("HSET", store.keys.cron_applications, "app", f"writing {seconds - 61}-other")
        sync.keep()

        assert set(ticks(store)) == {"a@app", "b@app", "off@app"}


class TestClocks:
    YEAR = 365 * 86_400

    @pytest.mark.parametrize("is_declared", [True, False])
    @pytest.mark.parametrize("schedule", ["0 * * * *", "@yearly"])
    def test_a_tick_that_a_clock_which_was_ahead_has_put_off_is_brought_back(
        self, store: Store, start: Start, now: float, told: Told, schedule: str, is_declared: bool
    ) -> None:
        sync = start(**({"a": {"schedule": schedule, "job": "report"}} if is_declared else {}))
        if not is_declared:
            CronSet(store=store).add("a", schedule, "report", queue="q")
        sync.keep()
        before = ticks(store)
        (identifier,) = before
        store.call("ZADD", store.keys.cron_ticks, repr(now + 2 * self.YEAR), identifier)

        sync.keep()

        assert ticks(store) == before
        assert [event for event, _ in told].count("cron_ticks_brought_back") == 1

    def test_a_tick_that_a_process_takes_seconds_too_early_is_not_taken_twice(
        self, store: Store, start: Start, now: float
    ) -> None:
        sync = start(a={"schedule": "* * * * *", "job": "report"})
        sync.keep()
        minute = now // 60 * 60 + 120
        store.call("ZADD", store.keys.cron_ticks, repr(minute), "a@app")

        sync.keep()

        assert ticks(store) == {"a@app": minute}

    def test_ticks_are_looked_at_again_when_the_clock_has_gone_back(
        self, store: Store, start: Start, now: float
    ) -> None:
        sync = start(a={"schedule": "0 * * * *", "job": "report"})
        sync.keep()
        before = ticks(store)
        store.call("ZADD", store.keys.cron_ticks, repr(now + self.YEAR + 3_600), "a@app")
        sync._bring_back(now + self.YEAR)  # a look while the clock is ahead: the tick is right then

        sync.keep()

        assert ticks(store) == before


HOURLY = {"schedule": "@hourly", "job": "report"}


class TestReleases:
    @pytest.fixture
    def begin(self, store: Store, start: Start) -> Start:
        """Start a process that is listed, as a worker is before its poller starts, and has its first look done."""

        def make(**entries: object) -> CronSync:
            sync = start(**entries)
            run_process(store, "app", sync)
            sync.keep()
            return sync

        return make

    def test_an_old_process_does_not_write_over_a_newer_release(self, store: Store, begin: Start) -> None:
        old = begin(daily=DAILY)
        begin(daily=HOURLY)
        store.call("HDEL", store.keys.cron, "daily@app")

        old.keep()

        assert ticks(store) == {}

    def test_the_newer_release_wins_also_when_the_mark_is_lost(self, store: Store, begin: Start) -> None:
        old, new = begin(daily=DAILY), begin(daily=HOURLY)
        store.call("DEL", store.keys.cron_applications)

        for sync in (old, new, old):
            sync.keep()

        assert stored(store, "daily@app").schedule.text == "@hourly"

    def test_a_release_has_its_entries_back_when_the_one_that_started_after_it_has_ended(
        self, store: Store, begin: Start
    ) -> None:
        """Its replacement came up, wrote its entries, and died before the roll went on; or one old worker was
        replaced beside a new release, and then the old release ended."""
        stays = begin(daily=HOURLY, extra=DAILY)
        begin(daily=DAILY)
        assert set(ticks(store)) == {"daily@app"}

        end_processes(store)
        run_process(store, "app", stays)
        stays.keep()

        assert set(ticks(store)) == {"daily@app", "extra@app"}
        assert stored(store, "daily@app").schedule.text == "@hourly"

    def test_a_release_without_entries_is_one_as_well(self, store: Store, begin: Start) -> None:
        old = begin(daily=DAILY)
        begin()

        old.keep()
        assert ticks(store) == {}

        end_processes(store)
        old.keep()
        assert set(ticks(store)) == {"daily@app"}

    def test_of_several_that_are_left_the_newest_wins(self, store: Store, begin: Start) -> None:
        left = [begin(daily=DAILY), begin(daily=HOURLY)]
        begin(daily={**DAILY, "args": [1]})
        end_processes(store)
        for sync in left:
            run_process(store, "app", sync)

        for sync in (*left, *left):
            sync.keep()

        assert stored(store, "daily@app").schedule.text == "@hourly"

    def test_a_process_of_another_application_does_not_count(self, store: Store, begin: Start, start: Start) -> None:
        old = begin(daily=DAILY)
        begin()
        end_processes(store)
        run_process(store, "blog", start())  # it declares no entries, as the release that has ended

        old.keep()

        assert set(ticks(store)) == {"daily@app"}

    def test_where_the_list_of_processes_cannot_be_read_the_others_are_taken_to_live(
        self, store: Store, begin: Start
    ) -> None:
        old = begin(daily=DAILY)
        begin(daily=HOURLY)
        store.call("DEL", store.keys.processes)
        store.call("SET", store.keys.processes, "x")

        old.keep()

        assert stored(store, "daily@app").schedule.text == "@hourly"

    def test_a_second_application_of_one_name_is_said_once_a_deploy_would_be_over(
        self, begin: Start, told: Told, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first, second = begin(daily=DAILY), begin(weekly=DAILY)

        first.keep()
        assert "cron_entries_superseded" not in dict(told), "a deploy may be under way"
        monkeypatch.setattr(cron_sync, "DEPLOY_SECONDS", 0.0)
        for _ in range(2):
            first.keep()
            second.keep()

        superseded = [fields for event, fields in told if event == "cron_entries_superseded"]
        assert [each["names"] for each in superseded] == ["daily"]


@pytest.mark.parametrize(
    ("mark", "state", "step"),
    [
        (None, {}, Step.WRITE),
        (Mark("own", "5"), {}, Step.COMPARE),
        (Mark("own", "5"), {"is_first": True}, Step.COMPARE),
        (Mark("other", "5"), {"is_first": True}, Step.WRITE),
        (Mark("other", "5"), {}, Step.WRITE),
        (Mark("other", "15"), {}, Step.WRITE_IF_ENDED),
        (Mark("other", "?"), {}, Step.WRITE),
        (Mark("writing", "token"), {}, Step.LEAVE),
        (Mark("writing", "token"), {"is_given_up": True}, Step.WRITE),
        (Mark("writing", "token"), {"is_first": True}, Step.WRITE),
    ],
)
def test_the_process_that_started_last_declares_while_one_of_its_release_lives(
    mark: Mark | None, state: dict[str, bool], step: Step
) -> None:
    assert next_step(mark, Mark("own", "10"), **{"is_first": False, "is_given_up": False, **state}) is step


class TestNames:
    """kiqctl and the API take a name, and an id where several have it."""

    def test_a_name_that_one_application_has_will_do(self, store: Store, start: Start, kiqctl: Kiqctl) -> None:
        start("shop", daily=DAILY).keep()
        entries = CronSet(store=store)

        for name in ("daily", "daily@shop"):
            status = entries.get(name)
            assert status is not None
            assert (status.id, status.name) == ("daily@shop", "daily")
            assert kiqctl("cron", "show", name).stdout.startswith("daily  @daily")
        jid = entries.enqueue("daily")
        assert [run.jid for run in entries.history("daily")] == [run.jid for run in entries.history("daily@shop")]
        assert [run.jid for run in entries.history("daily")] == [jid]

    def test_a_name_that_several_have_is_refused_with_their_ids(
        self, store: Store, start: Start, kiqctl: Kiqctl
    ) -> None:
        for application in ("shop", "blog"):
            start(application, daily={**DAILY, "queue": application}).keep()

        refused = kiqctl("cron", "disable", "daily")
        assert refused.exit_code != 0
        assert "write daily@blog or daily@shop" in refused.stderr
        assert kiqctl("cron", "disable", "daily@shop").exit_code == 0
        assert {name for name, at in ticks(store).items() if at is None} == {"daily@shop"}
        shown = {each["id"]: each["enabled"] for each in kiqctl.ask("cron", "list")["entries"]}
        assert shown == {"daily@blog": True, "daily@shop": False}
        start("shop", daily={**DAILY, "queue": "shop"}, weekly=DAILY).keep()
        lines = kiqctl("cron", "list").stdout.splitlines()[1:]
        assert [line.split()[0] for line in lines] == ["daily@blog", "daily@shop", "weekly"]
        page = Site(store).get("/cron").text
        assert all(f"<b>{name}</b>" in page for name in ("daily@blog", "daily@shop", "weekly"))
