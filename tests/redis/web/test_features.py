"""The pages of classes, cron, batches and limits: what they show, and what is in Redis after their actions."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest

from kiqcluster import job
from kiqcluster.api import CronSet, concurrency_limits, mark
from kiqcluster.application.registry import Registry
from kiqcluster.batches import Batch, NormalFailure
from kiqcluster.job import JobFunction
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.ruby_json import decode
from kiqcluster.store import Store
from kiqcluster.web import Role
from tests.in_process_worker import Worker
from tests.kit import ManualClock
from tests.redis.web.features import add_executions
from tests.redis.web.scenes.limits import hold, park
from tests.redis.web.site import CountingStore, Site, entry_keys
from tests.stored_jobs import NOW
from tests.stored_jobs import job as payload_of

pytestmark = pytest.mark.usefixtures("setup")


class Still(ManualClock):
    """Its wall clock stands still."""

    def now(self) -> float:
        return NOW


def words(text: str) -> str:
    """Return what a reader sees of a page."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", text.partition("<main")[2])).split())


class TestClasses:
    @pytest.fixture
    def ran(self, store: Store) -> Site:
        """Ruby 7, Ruby 8 and we have run jobs of one class; ours are in the keys of all."""
        at = datetime.fromtimestamp(NOW, UTC) - timedelta(minutes=3)
        keys = store.keys
        store.call("HSET", keys.executions(at), "Mail|p", 4, "Mail|f", 1, "Mail|ms", 40, "Quick|p", 1, "Quick|ms", 1)
        store.call("HSET", keys.executions_7(at), "Mail|p", 5, "Mail|f", 1, "Mail|ms", 50)
        store.call("HSET", keys.own_executions(at), "Mail|p", 3, "Mail|f", 1, "Mail|ms", 30)
        store.call("HSET", keys.executions_rollup(at), "Mail|p", 4, "Mail|f", 1, "Mail|ms", 40)
        store.call("SET", keys.histogram("Mail", at), b"\0\3\0\0\0\1")
        return Site(store, clock=Still())

    def test_runs_of_ruby_and_ours_count_once(self, ran: Site) -> None:
        row = words(ran.get("/classes").text)

        assert "Mail 6 1 16.7 % 12 ms 60 ms" in row
        assert row.index("Mail 6") < row.index("Quick 1")

    def test_a_longer_time_has_figures_by_ten_minutes_and_says_what_is_missing(self, ran: Site) -> None:
        text = words(ran.get("/classes?span=24h").text)

        assert "Mail 4 1 25.0 %" in text
        assert "Runs of Ruby's Sidekiq 7 are missing here" in text
        assert "are missing here" not in words(ran.get("/classes?span=8h").text)

    def test_classes_are_found_by_a_part_of_their_name(self, ran: Site) -> None:
        text = words(ran.get("/classes?q=mai").text)

        assert "Mail" in text
        assert "Quick" not in text

    def test_one_class_shows_how_long_runs_took_over_time(self, ran: Site) -> None:
        text = ran.get("/classes/Mail").text

        table = words("<main" + text.partition('<table class="heat">')[2].partition("</table>")[0])
        assert "≤ 45 ms 1 1" in table
        assert "≤ 30 ms 0 " in table
        assert "≤ 20 ms 3 3" in table

    def test_deploys_are_marked_in_charts_and_in_the_table(self, ran: Site) -> None:
        at = datetime.fromtimestamp(NOW, UTC) - timedelta(minutes=5)
        mark("v2 'quoted'", at, store=ran.store)

        text = ran.get("/classes/Mail").text

        (drawn,) = {unescape(each) for each in re.findall(r"data-marks='([^']+)'", text)}
        minute = int(at.replace(second=0, microsecond=0).timestamp())
        assert json.loads(drawn) == [[minute, "v2 'quoted'"]]
        assert "v2 'quoted'" in words(text)

    def test_the_running_minute_is_not_drawn(self, ran: Site) -> None:
        add_executions(ran.store, b"Mail", NOW + 120)

        text = ran.get("/classes/Mail").text

        chart = json.loads(unescape(re.findall(r"data-chart='([^']+)'", text)[0]))
        assert len(chart[0]) == 59
        assert chart[0][-1] < NOW - 60

    @pytest.mark.parametrize("span", ["1h", "8h", "24h", "72h"])
    def test_each_time_takes_at_most_six_round_trips(self, ran: Site, redis_server: Any, span: str) -> None:
        store = CountingStore(redis_server.url)
        site = Site(store, clock=Still())
        for path in ("/classes", "/classes/Mail"):
            store.round_trips = 0
            assert site.get(f"{path}?span={span}").status_code == 200
            assert 0 < store.round_trips <= 6
        store.close()


class TestCron:
    def add(self, store: Store, name: str = "nightly", **more: Any) -> CronSet:
        entries = CronSet(store=store)
        entries.add(name, "30 2 * * 1-5", "Report", ["secret", 7], queue="reports", tz="Europe/Berlin", **more)
        return entries

    def test_an_entry_shows_its_schedule_its_next_ticks_and_hides_its_arguments(self, store: Store) -> None:
        self.add(store, description="for the board")
        site = Site(store, clock=Still())

        text = words(site.get("/cron/nightly").text)

        assert "30 2 * * 1-5 At 02:30 on Monday through Friday" in text
        assert "Europe/Berlin" in text
        assert "2026-11-23 01:30:00 UTC" in text
        assert "[FILTERED], 7" in text
        assert "secret" not in text
        assert "for the board" in text

    def test_words_of_a_schedule_are_english_only(self, store: Store) -> None:
        self.add(store)

        assert "Monday" not in Site(store).get("/cron/nightly", {"Accept-Language": "ja"}).text

    def test_enqueue_now_pushes_the_job_and_the_history_leads_to_it(self, store: Store) -> None:
        self.add(store)
        site = Site(store)

        site.post("/cron/nightly/enqueue")

        (raw,) = store.call("LRANGE", "queue:reports", 0, -1)
        assert decode(raw)["args"] == ["secret", 7]
        text = words(site.get("/cron/nightly").text)
        assert decode(raw)["jid"] in text
        assert "by hand" in text

    def test_enqueue_now_says_so_where_a_lock_keeps_the_job_out(self, store: Store) -> None:
        @job(queue="reports", deduplicate="until_executed")
        def report() -> None: ...

        CronSet(store=store).add("once", "0 9 * * *", report)
        held = CronSet(store=store).enqueue("once")
        site = Site(store)

        site.post("/cron/once/enqueue")

        assert f"The job {held} holds the lock; nothing was enqueued." in words(site.get("/cron/once").text)
        assert store.call("LLEN", "queue:reports") == 1

    def test_a_late_tick_and_a_late_job_are_said_to_be(self, store: Store) -> None:
        self.add(store)
        store.call("ZADD", store.keys.cron_ticks, NOW - 300, "nightly")
        line = json.dumps({"jid": "j7", "tick": NOW - 90_000, "at": NOW - 86_400})
        store.call("LPUSH", store.keys.cron_history("nightly"), line)

        text = words(Site(store, clock=Still()).get("/cron").text)

        assert "late by 5m" in text
        assert "late by 1h" in text

    @pytest.mark.parametrize(("klass", "status", "is_said"), [
        ("Report", "enabled", True), ("Report", "disabled", False), ("Other", "enabled", False)
    ])  # fmt: skip
    def test_an_entry_that_sidekiq_cron_enqueues_as_well_is_said_to_be(
        self, store: Store, klass: str, status: str, is_said: bool
    ) -> None:
        self.add(store)
        store.call("SADD", store.keys.cron_jobs("default"), "cron_job:default:nightly")
        record = {"name": "nightly", "cron": "30 2 * * 1-5", "klass": klass, "status": status}
        store.call("HSET", "cron_job:default:nightly", *(word for pair in record.items() for word in pair))

        assert ("enqueued here as well" in words(Site(store).get("/cron").text)) is is_said

    def test_disable_and_enable_change_the_awaited_tick(self, store: Store) -> None:
        self.add(store)
        site = Site(store)

        site.post("/cron/nightly/disable")
        disabled = store.call("ZSCORE", store.keys.cron_ticks, "nightly")
        site.post("/cron/nightly/enable")

        assert disabled is None
        assert float(store.call("ZSCORE", store.keys.cron_ticks, "nightly")) > SystemClock.now()

    def test_an_entry_that_an_application_declares_is_not_removed(self, store: Store) -> None:
        self.add(store)
        raw = decode(store.call("HGET", store.keys.cron, "nightly"))
        store.call("HSET", store.keys.cron, "nightly@shop", json.dumps({**raw, "application": "shop"}))
        store.call("SADD", store.keys.processes, "host:1:a")
        store.call("HSET", store.keys.process("host:1:a"), "info", '{"application": "shop"}')
        store.call("EXPIRE", store.keys.process("host:1:a"), 60)
        site = Site(store)

        assert "/cron/nightly@shop/remove" not in site.get("/cron/nightly@shop").text
        assert site.post("/cron/nightly@shop/remove").status_code == 409
        assert store.call("HEXISTS", store.keys.cron, "nightly@shop") == 1

    def test_records_of_sidekiq_cron_are_shown_with_why_they_cannot_be_taken_over(self, store: Store) -> None:
        store.call("SADD", "cron_jobs:default", "cron_job:default:a", "cron_job:default:b")
        for name, more in (("a", ()), ("b", ("active_job", "1"))):
            fields = ("name", name, "klass", "Purge", "cron", "0 3 * * *", "queue_name", "low", *more)
            store.call("HSET", f"cron_job:default:{name}", *fields)

        text = words(Site(store).get("/cron").text)

        assert "Purge low – kiqctl cron import" in text
        assert "it is an Active Job of Rails" in text

    def test_a_removed_entry_is_not_found(self, store: Store) -> None:
        assert Site(store).get("/cron/gone").status_code == 404


class TestBatches:
    @pytest.fixture
    def worker(self, store: Store, setup: Setup, registry: Registry) -> Worker:
        return Worker(store, setup, registry)

    @pytest.fixture
    def row(self, worker: Worker) -> JobFunction[..., Any]:
        @job(name="HandleRow", loggable_arguments=[0], retry=0)
        def handle_row(city: str, name: str) -> None:
            worker.during(city)

        return handle_row

    def fail(self, worker: Worker, runs: int) -> None:
        def during(city: str) -> None:
            raise NormalFailure(f"<b>no price in {city}")

        worker.during = during
        for _ in range(runs):
            worker.run()

    def test_failed_rows_are_shown_with_messages_and_arguments_that_may_be_shown(
        self, store: Store, worker: Worker, row: JobFunction[..., Any]
    ) -> None:
        batch = Batch.create("import", row, [[f"city {number}", "Bob"] for number in range(30)])
        self.fail(worker, 30)
        site = Site(store)

        first, second = (words(site.get(f"/batches/{batch.id}?page={page}").text) for page in (1, 2))

        time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\S*(?: UTC)?"
        assert re.search(rf'failed {time} "city 29", \[FILTERED\] {time} <b>no price in city 29', first)
        assert "Bob" not in first
        assert (first.count("[FILTERED]"), second.count("[FILTERED]")) == (25, 5)
        assert "complete, with failures 100.0 % of 30 jobs" in first

    def test_the_hook_formats_arguments_of_rows_too(
        self, store: Store, worker: Worker, row: JobFunction[..., Any]
    ) -> None:
        batch = Batch.create("import", row, [["Rome", "Bob"]])
        self.fail(worker, 1)

        text = Site(store, format_arguments=lambda name, args: f"{name} of {args[1]}").get(f"/batches/{batch.id}").text

        assert "HandleRow of Bob" in text

    @pytest.fixture
    def mixed(self, store: Store, row: JobFunction[..., Any]) -> Batch:
        """A batch of a class that shows an argument, with a job of one that does not."""

        @job(name="Secret")
        def secret(text: str) -> None: ...

        made = Batch.create("import", row, [["Rome", "Bob"]])
        made.add(secret, [["hunter2"]])
        made.mark([each.jid for each in made.jobs()], "failed")
        return made

    def test_arguments_are_filtered_by_the_class_of_each_job(self, store: Store, mixed: Batch) -> None:
        text = words(Site(store).get(f"/batches/{mixed.id}").text)

        assert '"Rome", [FILTERED]' in text
        assert "hunter2" not in text

    def test_the_hook_is_told_the_class_of_each_job(self, store: Store, mixed: Batch) -> None:
        text = Site(store, format_arguments=lambda name, args: f"{name} of {args[-1]}").get(f"/batches/{mixed.id}").text

        assert "HandleRow of Bob" in text
        assert "Secret of hunter2" in text

    def test_a_job_whose_class_an_earlier_release_has_not_kept_shows_numbers_and_is_not_for_the_hook(
        self, store: Store, mixed: Batch
    ) -> None:
        for each in mixed.jobs():
            store.call("HSET", store.keys.batch(mixed.id), f"p{each.jid}", b'["hunter2",987654321]')

        plain = words(Site(store).get(f"/batches/{mixed.id}").text)
        hooked = words(Site(store, format_arguments=lambda name, args: str(args)).get(f"/batches/{mixed.id}").text)

        assert plain.count("[FILTERED], 987654321") == 2
        assert hooked.count("[FILTERED]") == 2
        assert "hunter2" not in plain + hooked
        assert "987654321" not in hooked

    def test_the_list_shows_counts_and_a_bar_and_children_are_linked(
        self, store: Store, worker: Worker, row: JobFunction[..., Any]
    ) -> None:
        parent = Batch.create("import", row, [["Rome", "x"], ["Oslo", "x"]])
        child = Batch.create("suppliers", row, [["Bern", "x"]], parent=parent)
        worker.run()
        site = Site(store)

        text = site.get("/batches").text

        assert "import " + parent.id + " HandleRow running 50.0 % 2 1 0 1 0 0" in words(text)
        assert '<rect class="bar-good" x="0.0" width="50.0" height="6"/>' in text
        assert f'href="/batches/{child.id}"' in site.get(f"/batches/{parent.id}").text
        assert f'href="/batches/{parent.id}"' in site.get(f"/batches/{child.id}").text

    def test_cancelling_asks_with_the_count_and_keeps_the_reason(
        self, store: Store, row: JobFunction[..., Any]
    ) -> None:
        batch = Batch.create("import", row, [["Rome", "x"], ["Oslo", "x"]])
        site = Site(store)

        asked = site.post(f"/batches/{batch.id}/cancel", {"reason": "wrong file", "confirmed": None})
        site.post(f"/batches/{batch.id}/cancel", {"reason": "wrong file"})

        assert "2 jobs have not begun" in asked.text
        assert 'name="reason" value="wrong file"' in asked.text
        assert (batch.status().state, batch.status().reason) == ("cancelled", "wrong file")

    def test_a_batch_that_is_open_can_be_closed(self, store: Store, row: JobFunction[..., Any]) -> None:
        with pytest.raises(ValueError, match="died"), Batch.open("import") as batch:
            batch.add(row, [["Rome", "x"]])
            raise ValueError("died")
        site = Site(store)
        assert f"/batches/{batch.id}/close" in site.get(f"/batches/{batch.id}").text

        site.post(f"/batches/{batch.id}/close")

        assert not batch.status().is_open
        assert f"/batches/{batch.id}/close" not in site.get(f"/batches/{batch.id}").text

    def test_one_who_may_only_look_sees_no_buttons(self, store: Store, row: JobFunction[..., Any]) -> None:
        batch = Batch.create("import", row, [["Rome", "x"]])

        assert (
            "<button"
            not in Site(store, Role.VIEW).get(f"/batches/{batch.id}").text.partition("<main")[2].partition("</main>")[0]
        )

    def test_an_unknown_batch_is_not_found(self, store: Store) -> None:
        assert Site(store).get("/batches/" + "0" * 24).status_code == 404


class TestLimits:
    def test_a_limit_shows_who_holds_places_and_what_is_parked(self, store: Store) -> None:
        park(store, "Sync", [payload_of(number) for number in range(30)], "shop 7")
        hold(store, "Sync", payload_of(99), "shop 7")
        site = Site(store)

        listed = site.get("/limits").text
        (path,) = {unescape(each) for each in re.findall(r'href="(/limits/concurrency/[^"]+)"', listed)}
        first, second = words(site.get(path).text), words(site.get(f"{path}&page=2").text)

        assert "Sync shop 7 1 1 30" in words(listed)
        assert "Job j99 99 default app-1:4242:ab" in first
        assert ("j24" in first, "j25" in first) == (True, False)
        assert ("j24" in second, "j25" in second) == (False, True)

    def test_an_override_is_in_force_for_a_while(self, store: Store) -> None:
        park(store, "Sync", [payload_of(1)])
        site = Site(store)

        site.post("/limits/concurrency/Sync/override", {"number": "-1", "seconds": "3600"})

        (limit,) = concurrency_limits(store=store)
        assert (limit.limit, limit.override) == (1, -1)
        assert limit.override_until is not None
        assert 3_500 < limit.override_until - SystemClock.now() <= 3_600
        assert "nothing runs ends in" in words(site.get("/limits").text)

    @pytest.mark.parametrize("form", [{"number": "many"}, {"number": "9" * 20}, {"number": "1", "seconds": "5"}, {}])
    def test_what_is_no_limit_changes_nothing(self, store: Store, form: dict[str, str]) -> None:
        park(store, "Sync", [payload_of(1)])

        answer = Site(store).post("/limits/concurrency/Sync/override", {"seconds": "900", **form})

        assert answer.status_code == 400
        assert concurrency_limits(store=store)[0].override is None

    def test_selected_parked_jobs_are_deleted_and_others_stay(self, store: Store) -> None:
        park(store, "Sync", [payload_of(number) for number in range(5)], "shop 7")
        park(store, "Sync", [payload_of(9)], "shop 8")
        site = Site(store)
        page = site.get("/limits/concurrency/Sync?key=shop+7").text
        keys = re.findall(r'name="key" value="([^"]+)"', page)

        site.post("/limits/concurrency/Sync/delete", {"line": "shop 7", "key": keys[1:3]})

        left = store.call("ZRANGE", store.keys.parked(store.keys.slots("Sync", "shop 7")), 0, -1)
        assert [decode(each.partition(b"\0")[2])["args"] for each in left] == [[0], [3], [4]]
        assert store.call("ZCARD", store.keys.parked(store.keys.slots("Sync", "shop 8"))) == 1

    def test_jobs_that_were_parked_at_one_time_are_told_apart(self, store: Store) -> None:
        park(store, "Sync", [payload_of(0)])
        line = store.keys.parked(store.keys.slots("Sync"))
        (entry, score) = store.call("ZRANGE", line, 0, -1, "WITHSCORES")
        store.call("ZADD", line, score, entry.replace(b"j0", b"j1"), score, entry.replace(b"j0", b"j2"))
        site = Site(store)
        keys = re.findall(r'name="key" value="([^"]+)"', site.get("/limits/concurrency/Sync").text)

        site.post("/limits/concurrency/Sync/delete", {"key": keys[1]})

        left = [decode(each.partition(b"\0")[2])["jid"] for each in store.call("ZRANGE", line, 0, -1)]
        assert left == ["j0", "j2"]

    def test_all_parked_jobs_of_one_key_are_deleted_after_a_question(self, store: Store) -> None:
        park(store, "Sync", [payload_of(number) for number in range(1_200)], "shop 7")
        park(store, "Sync", [payload_of(9)], "shop 8")
        site = Site(store)

        asked = site.post("/limits/concurrency/Sync/clear", {"line": "shop 7", "confirmed": None})
        site.post("/limits/concurrency/Sync/clear", {"line": "shop 7"})

        assert "Delete all jobs that Sync shop 7 has parked, 1,200 jobs, for good?" in unescape(asked.text)
        assert [each.parked for each in concurrency_limits(store=store)] == [1]

    def test_a_lock_that_another_job_holds_by_now_is_left_to_it(self, store: Store) -> None:
        store.call("SET", store.keys.lock("Report:a"), "j1", "EX", 100)
        site = Site(store)
        assert "Report j1" in words(site.get("/limits/locks").text)
        store.call("SET", store.keys.lock("Report:a"), "j2", "EX", 100)

        site.post("/limits/locks/release", {"lock": entry_keys(store).seal("Report:a"), "jid": "j1"})

        assert store.call("GET", store.keys.lock("Report:a")) == b"j2"
        assert site.events[-1][1]["result"] == "failed"

    def test_locks_are_looked_for_in_parts(self, store: Store, redis_server: Any) -> None:
        store.pipeline([("SET", f"other:{number}", "x") for number in range(30_000)])
        store.pipeline([("SET", store.keys.lock(f"Report:{number}"), "j1") for number in range(30)])
        counting = CountingStore(redis_server.url)
        site, path, found = Site(counting), "/limits/locks", set()

        for _ in range(10):
            counting.round_trips = 0
            text = site.get(path).text
            assert counting.round_trips <= 6
            found |= set(re.findall(r'name="lock" value="([^"]+)"', text))
            following = re.search(r'rel="next" href="([^"]+)"', text)
            if following is None:
                break
            path = unescape(following[1])

        counting.close()
        assert len(found) == 30
