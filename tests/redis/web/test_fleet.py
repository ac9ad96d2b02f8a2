"""The pages of clusters, running jobs, routes and strikes: what they show, and what Redis holds after each action."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from html import unescape

import pytest

from kiqcluster.api import StrikeSet
from kiqcluster.application.registry import Registry, using_registry
from kiqcluster.control.control_messages import Message
from kiqcluster.control.stacks import Stacks
from kiqcluster.job import job as declare
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.config import Config
from kiqcluster.process.runtime import Setup, using_setup
from kiqcluster.sidekiq.routing import digest, parse_rules
from kiqcluster.store import Store
from kiqcluster.web import Role, User
from kiqcluster.web.routing import table
from kiqcluster.web.views.fleet import orders
from kiqcluster.web.views.fleet.threads import shown_stacks
from tests.fake_supervisor import publish
from tests.kit import RedisServer
from tests.redis.web import fleet
from tests.redis.web.site import CountingStore, Site, snapshot
from tests.stored_jobs import NOW, add_entries, entry_numbers, fill_queue, job

MAX_ROUND_TRIPS = 6
PROCESSES, JOBS_EACH = 500, 10
BUDGET_SECONDS = 0.1
BUDGET_FACTOR = 4  # of a machine that runs other tests beside this one
LARGE_PAGES = ("/clusters", "/busy", "/busy?class=job&page=40", "/routes", "/clusters?page=9")


def said(site: Site, path: str, form: dict[str, str] | None = None) -> str:
    """Do something; return what the next page says about it."""
    answer = site.post(path, form)
    assert answer.status_code == 303, answer.text
    found = re.search(r'class="message message-(\w+)"[^>]*>([^<]*)<', site.get(answer.headers["Location"]).text)
    assert found is not None
    return unescape(f"{found[1]}: {found[2]}")


class TestOrders:
    def test_a_quiet_has_the_lease_that_was_chosen_and_names_who_asked(self, site: Site) -> None:
        supervisor = fleet.start(site.store)

        text = said(site, f"/clusters/{supervisor.name}/quiet", {"lease": "900"})

        ((_, message),) = supervisor.received
        assert (message.action, message.scope, message.lease, message.by) == ("quiet", "cluster", 900.0, "web@ada")
        assert text.startswith("done: app-1:100")
        page = site.get("/clusters").text
        assert "quiet by web@ada" in page
        assert re.search(r'data-countdown="(\d+)', page)

    @pytest.mark.parametrize(("lease", "seconds"), [("", None), ("0", 0.0)])
    def test_a_quiet_without_a_lease_and_one_without_an_end(
        self, site: Site, lease: str, seconds: float | None
    ) -> None:
        supervisor = fleet.start(site.store)

        said(site, f"/clusters/{supervisor.name}/quiet", {"lease": lease})

        assert supervisor.received[0][1].lease == seconds

    @pytest.mark.parametrize("lease", ["7", "-1", "1e9", "nan", "x"])
    def test_another_lease_is_refused(self, site: Site, lease: str) -> None:
        supervisor = fleet.start(site.store)

        answer = site.post(f"/clusters/{supervisor.name}/quiet", {"lease": lease})

        assert answer.status_code == 400
        assert supervisor.received == []

    def test_a_refusal_is_said_with_its_reason(self, site: Site) -> None:
        supervisor = fleet.start(site.store)
        supervisor.answer = lambda _: "a roll is under way"

        text = said(site, f"/clusters/{supervisor.name}/reload")

        assert text == f"failed: {supervisor.name}: a roll is under way"
        assert site.events[-1][1]["result"] == "failed"

    def test_an_order_that_nobody_reads_is_taken_back(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(orders, "ANSWER_SECONDS", 0.3)
        fleet.publish_cluster(site.store, "app-9:100:aa", "app-9:101:bb")

        text = said(site, "/clusters/app-9:100:aa/roll")

        assert "did not answer" in text
        assert site.store.call("EXISTS", site.store.keys.control("app-9:101:bb")) == 0

    def test_a_cluster_that_is_gone_is_said_to_be(self, site: Site) -> None:
        assert said(site, "/clusters/app-9:1:x/roll") == "failed: app-9:1:x is gone."

    def test_a_roll_shows_how_far_it_is_and_why_it_failed(self, site: Site) -> None:
        supervisor = fleet.start(site.store)
        said(site, f"/clusters/{supervisor.name}/roll")
        rolling = site.get("/clusters").text
        supervisor.end_roll("failed", "slot 1 did not boot\nTraceback: <b>boom</b>")
        failed, alone = site.get("/clusters").text, site.get(f"/clusters/{supervisor.name}").text

        assert "rolls: 0 of 2" in rolling
        assert "slot 1 did not boot" in failed
        assert "Traceback" not in failed
        assert "Traceback: &lt;b&gt;boom" in alone

    def test_a_process_is_quieted_alone_and_resumed(self, site: Site) -> None:
        supervisor = fleet.start(site.store)
        one, other = supervisor.workers

        said(site, f"/processes/{one}/quiet", {"lease": "300"})
        is_quiet = [site.store.call("HGET", each, "quiet") for each in (one, other)]
        said(site, f"/processes/{one}/resume")

        assert is_quiet == [b"true", b"false"]
        assert site.store.call("HGET", one, "quiet") == b"false"
        assert [(name, message.scope, message.lease) for name, message in supervisor.received] == [
            (one, "process", 300.0),
            (one, "process", None),
        ]

    @pytest.mark.parametrize(("action", "word"), [("quiet", b"TSTP"), ("stop", b"TERM"), ("dump", b"TTIN")])
    def test_a_process_of_ruby_gets_a_signal(self, site: Site, action: str, word: bytes) -> None:
        publish(site.store, "ruby-1:7:ab", labels=[], version="8.0.9")

        text = said(site, f"/processes/ruby-1:7:ab/{action}")

        assert "within ten seconds" in text
        assert site.store.call("LRANGE", "ruby-1:7:ab-signals", 0, -1) == [word]

    def test_a_process_of_ruby_has_no_button_for_what_it_cannot_do(self, site: Site) -> None:
        publish(site.store, "ruby-1:7:ab", labels=[], version="8.0.9")
        before = snapshot(site.store)

        assert "/ruby-1:7:ab/resume" not in site.get("/processes/ruby-1:7:ab").text
        assert site.post("/processes/ruby-1:7:ab/resume").status_code == 400
        assert snapshot(site.store) == before

    def test_a_user_with_an_enormous_odd_name_gives_orders_too(self, store: Store, setup: Setup) -> None:
        supervisor = fleet.start(store)
        site = Site(store, authorize=lambda _: User("\x1bé" * 500, Role.ADMIN))

        assert said(site, f"/clusters/{supervisor.name}/roll").startswith("done")
        assert supervisor.received[0][1].by.startswith("web@\\x1bé")


class TestStacks:
    def test_those_that_a_dump_has_brought_are_shown(self, site: Site) -> None:
        supervisor = fleet.start(site.store)

        said(site, f"/clusters/{supervisor.name}/dump")
        cluster, process = (
            site.get(f"/clusters/{supervisor.name}").text,
            site.get(f"/processes/{supervisor.workers[0]}").text,
        )

        assert f"in {supervisor.workers[1]}" in cluster
        assert f"in {supervisor.workers[0]}" in process

    def test_those_of_a_process_that_has_ended_are_still_shown(self, site: Site) -> None:
        fleet.tell_stacks(site.store, "app-1:7:ab", "--- kiq.processor/0: Job j1\n  File here")

        text = site.get("/processes/app-1:7:ab").text

        assert "is not registered" in text
        assert "File here" in text

    def test_frames_of_ours_are_left_out_where_a_job_runs(self) -> None:
        ours = '  File "/x/kiqcluster/worker/run/execution.py", line 3, in run\n    perform()'
        theirs = '  File "/app.py", line 1, in perform\n    wait()'
        text = f"--- kiq.processor/0: Job j1, for 3 s\n{ours}\n{theirs}\n--- kiq.poller\n{ours}"

        shown = shown_stacks(Stacks(NOW, text))

        ((busy,), (idle,)) = shown.busy, shown.idle
        assert (busy.head, busy.left_out) == ("kiq.processor/0: Job j1, for 3 s", 1)
        assert busy.text == theirs
        assert idle.text == ours

    def test_a_text_of_another_form_is_shown_as_it_is(self) -> None:
        text = "Thread 0x1 (most recent call first):\n  File x"

        assert shown_stacks(Stacks(NOW, text, is_own=False)).rest == text


class TestBusy:
    def test_the_oldest_come_first_with_progress_and_masked_arguments(self, site: Site) -> None:
        fleet.publish_cluster(site.store, "app-2:100:aa", "app-2:101:bb")
        raw = [job(1), json.dumps({"class": "Mail", "args": ["secret@example.com"], "jid": "m1"}).encode()]
        fleet.run(site.store, "app-2:101:bb", *raw)
        site.store.call("SET", site.store.keys.progress("j1"), b'{"done":1,"total":4}')
        site.store.call("HSET", site.store.keys.iteration("j1"), "ex", 3, "c", "77", "rt", "1.5")

        text = site.get("/busy").text

        assert text.index(">Mail<") < text.rindex(">Job<")
        assert "25 %" in text
        assert "3 runs" in text
        assert "secret@example.com" not in text

    def test_they_are_filtered_by_class_and_queue(self, site: Site) -> None:
        publish(site.store, "app-1:7:ab")
        fleet.run(site.store, "app-1:7:ab", job(1, **{"class": "Import"}))
        publish(site.store, "ruby-1:8:cd", labels=[])
        fleet.run(site.store, "ruby-1:8:cd", job(2, **{"class": "Mailer"}), queue="mailers")

        def shown(query: str) -> list[str]:
            return re.findall(r"<b>(Import|Mailer)</b>", site.get(f"/busy?{query}").text)

        assert sorted(shown("")) == ["Import", "Mailer"]
        assert shown("class=impor") == ["Import"]
        assert shown("queue=mailers") == ["Mailer"]
        assert shown("class=import&queue=mailers") == []

    def test_a_job_that_runs_is_marked_and_its_process_told(self, site: Site) -> None:
        supervisor = fleet.start(site.store)
        worker, keys = supervisor.workers[0], site.store.keys
        supervisor.deafen(worker)
        fleet.running(site.store, worker, 1)
        site.store.call("HSET", keys.members, worker, "1")
        site.store.call("HSET", keys.inflight(worker), "1:x", b"default\0" + job(1))

        text = said(site, "/busy/cancel", {"jid": "j1"})

        assert "was told to end" in text
        assert site.store.call("ZSCORE", keys.cancelled, "j1") is not None
        told = [Message.read(each).action for each in site.store.call("LRANGE", keys.control(worker), 0, -1)]
        assert told == ["cancel"]

    def test_a_job_that_has_ended_is_said_to_have(self, site: Site) -> None:
        assert said(site, "/busy/cancel", {"jid": "gone"}) == "failed: The job was not found: it has ended."

    def test_a_job_that_waits_again_is_dropped(self, site: Site) -> None:
        add_entries(site.store, "retry", (NOW, job(1)), (NOW, job(2)))

        said(site, "/busy/cancel", {"jid": "j1"})

        assert entry_numbers(site.store, "retry") == [2]
        assert entry_numbers(site.store, site.store.keys.dropped) == [1]

    def test_the_supervisor_is_asked_to_kill_the_process_of_one_job(self, site: Site) -> None:
        supervisor = fleet.start(site.store)
        fleet.running(site.store, supervisor.workers[1], 1)

        text = said(site, "/busy/kill", {"jid": "j1", "process": supervisor.workers[1]})

        assert text.startswith("done")
        ((_, message),) = supervisor.received
        assert (message.action, message.scope, message.jid) == ("kill", "cluster", "j1")

    def test_what_has_no_supervisor_cannot_be_killed(self, site: Site) -> None:
        publish(site.store, "ruby-1:8:cd", labels=[])
        fleet.running(site.store, "ruby-1:8:cd", 1)

        assert "/busy/kill" not in site.get("/busy").text
        assert said(site, "/busy/kill", {"jid": "j1", "process": "ruby-1:8:cd"}).startswith("failed")

    @pytest.mark.parametrize("jid", ["", "a\nb", "x" * 201])
    def test_what_is_no_id_is_refused(self, site: Site, jid: str) -> None:
        assert site.post("/busy/cancel", {"jid": jid}).status_code == 400


class TestDeploy:
    def test_who_holds_the_lock_and_how_far_it_is(self, site: Site) -> None:
        site.store.call("SET", site.store.keys.deploy, "ada@build-1:42", "PX", 600_000)
        fleet.publish_cluster(site.store, "app-2:100:aa", "app-2:101:bb", quiet_by="deploy@ada@build-1:42")
        fleet.publish_cluster(site.store, "app-3:100:aa", "app-3:101:bb", quiet_by="deploy@old@build-1:41")

        text = " ".join(site.get("/clusters").text.split())

        assert "ada@build-1:42" in text
        assert "quiet by it: 1 of 2 clusters" in text
        assert "1 cluster is quiet by a deploy that is over" in text

    def test_marks_are_listed_the_newest_first(self, site: Site) -> None:
        now = SystemClock.now()
        for days, label in ((2, "older"), (1, "newer")):
            at = datetime.fromtimestamp(now, UTC) - timedelta(days=days)
            site.store.call("HSET", site.store.keys.deploys(f"{at:%Y%m%d}"), f"{at:%Y-%m-%dT%H:%M:00Z}", label)

        text = site.get("/clusters").text

        assert text.index(">newer<") < text.index(">older<")


class TestRoutes:
    @pytest.fixture
    def routed(self, store: Store) -> Iterator[Site]:
        rules = parse_rules([["name=slow", "batch"]])
        setup = Setup(config=Config(routing=rules), store=store)
        publish(store, "app-1:7:ab", routing=digest(rules))
        publish(store, "app-1:8:ab", routing="other")
        with using_setup(setup):
            yield Site(store)

    def test_without_classes_it_says_that_it_does_not_know(self, routed: Site) -> None:
        fill_queue(routed.store, [1], "mailers")
        with using_registry(Registry()):
            text = routed.get("/routes").text

        assert "only the application knows" in text
        assert "<code>name=slow</code>" in text
        assert "as here" in text
        assert "others than here" in text
        assert "<b>Job</b>" in text  # seen in a queue

    def test_each_class_goes_where_its_rule_says(self, routed: Site) -> None:
        with using_registry(Registry()):
            declare(queue="slow")(report)
            declare(queue="mailers")(mail)
            text = " ".join(routed.get("/routes").text.split())

        assert re.search(r"<b>report</b></td> <td><a [^>]*>batch</a> <span [^>]*>declared: slow</span>", text)
        assert re.search(r"<b>mail</b></td> <td><a [^>]*>mailers</a></td>", text)
        assert "no rule matches" in text


def report() -> None:
    """A job."""


def mail(address: str) -> None:
    """A job."""


class TestStrikes:
    FORM = {"class": "Job", "arguments": "0=1", "action": "drop", "for": "2h", "reason": "it fails"}

    def test_the_preview_counts_what_would_be_struck_and_changes_nothing(self, site: Site) -> None:
        fill_queue(site.store, [1, 1, 2], "default")
        add_entries(site.store, "retry", (NOW, job(1)))
        before = snapshot(site.store)

        text = site.post("/strikes/add", {**self.FORM, "confirmed": None}).text

        assert "Of 4 waiting jobs that were looked at, 3 are meant now (default: 2, Retries: 1)." in text
        assert "cannot be undone" not in text
        assert snapshot(site.store) == before

    def test_it_says_when_an_argument_is_known_to_the_application_only(self, site: Site) -> None:
        text = site.post("/strikes/add", {**self.FORM, "arguments": "order_id=7", "confirmed": None}).text

        assert "only the application knows which argument is called order_id" in text

    def test_a_strike_is_stored_as_the_form_says(self, site: Site) -> None:
        site.post("/strikes/add", {**self.FORM, "arguments": '0=1\n1="a b"\n2=x y'})

        ((strike, count),) = StrikeSet(store=site.store).list()
        assert (strike.name, strike.action, strike.reason, strike.by) == ("Job", "drop", "it fails", "web@ada")
        assert strike.arguments == {"0": 1, "1": "a b", "2": "x y"}
        assert 7_100 < strike.until - SystemClock.now() <= 7_200
        assert count == 0

    @pytest.mark.parametrize(
        "changes",
        [
            {"class": "", "arguments": ""},
            {"arguments": "7"},
            {"arguments": "=7"},
            {"action": "kill"},
            {"for": ""},
            {"for": "0"},
            {"for": "soon"},
            {"delay": "x", "action": "defer"},
            {"class": "x" * 501},
            {"for": "9999999999d"},
            {"arguments": "\n".join(f"{number}={'x' * 200}" for number in range(60))},
        ],
    )
    def test_what_is_no_strike_is_refused(self, site: Site, changes: dict[str, str]) -> None:
        answer = site.post("/strikes/add", {**self.FORM, **changes})

        assert answer.status_code == 400
        assert StrikeSet(store=site.store).list() == []

    def test_who_may_only_look_does_not_see_the_values(self, store: Store, setup: Setup) -> None:
        StrikeSet(store=store).add("drop", 60, name="Job", arguments={"mail": "ada@example.com"})

        assert "ada@example.com" not in Site(store, Role.VIEW).get("/strikes").text
        assert "ada@example.com" in Site(store, Role.OPERATE).get("/strikes").text

    def test_one_that_is_gone_is_said_to_be(self, site: Site) -> None:
        assert said(site, "/strikes/remove", {"id": "abc"}).startswith("failed")


class TestScale:
    @pytest.fixture
    def large(self, store: Store, setup: Setup, redis_server: RedisServer) -> Iterator[CountingStore]:
        """500 processes in 250 clusters, and 10 running jobs in each."""
        for cluster in range(PROCESSES // 2):
            host = f"app-{cluster}"
            names = [f"{host}:{pid}:{'b' * 12}" for pid in (101, 102)]
            fleet.publish_cluster(store, f"{host}:100:{'a' * 12}", *names)
            for name in names:
                fleet.running(store, name, *range(JOBS_EACH))
        made = CountingStore(redis_server.url)
        yield made
        made.close()

    def test_500_processes_that_are_busy_stay_in_the_budget(self, large: CountingStore) -> None:
        """CPU seconds: other work of the machine changes them little."""
        site = Site(large)
        for path in LARGE_PAGES:
            site.get(path)
            seconds = []
            for _ in range(3):
                large.round_trips, began = 0, time.process_time()
                assert site.get(path).status_code == 200
                seconds.append(time.process_time() - began)

            assert large.round_trips <= MAX_ROUND_TRIPS, path
            assert min(seconds) < BUDGET_SECONDS * BUDGET_FACTOR, path


def test_no_two_pages_have_one_key() -> None:
    keys = [each.key for each in table().navigation() if each.key]

    assert sorted(keys) == sorted(set(keys))


def test_the_foot_names_version_redis_and_clock(site: Site) -> None:
    text = site.get("/clusters").text

    assert f"<span>{site.store.address}</span>" in text
    assert re.search(r"<time datetime=\"[^\"]+\" data-show=\"clock\">", text)
