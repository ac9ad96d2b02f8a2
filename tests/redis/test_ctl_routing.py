"""kiqctl routes, and kiqctl migrate --routing: where classes go, and that what waits follows."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kiqcluster.application.registry import Registry
from kiqcluster.sidekiq.routing import digest, parse_rules
from kiqcluster.store import Store
from kiqcluster.store.limits.parking import parked_sets
from tests.fake_supervisor import publish
from tests.redis.kiqctl import Kiqctl
from tests.stored_jobs import NOW, add_entries, entries, job, push_payloads, queued_numbers

APPLICATION = """
from kiqcluster import Job, job

print("imported")

class Mail(Job, queue="mailers", urgency="high"):
    def perform(self, number): ...

@job(queue="cleanup")
def clean(number): ...

class Inner(Job, queue="rails", tags=["rails"], active_job=True):
    def perform(self, number): ...
"""
RULES = [["urgency=high", "urgent"], ["name=cleanup", ""], ["tags=rails", "ruby"], ["name=nothing", "never"]]
WRAPPER = "ActiveJob::QueueAdapters::SidekiqAdapter::JobWrapper"


@dataclass(frozen=True)
class Tool:
    """kiqctl in a folder with an application and routing rules."""

    kiqctl: Kiqctl
    flags: tuple[str, ...]


@pytest.fixture
def tool(kiqctl: Kiqctl, registry: Registry, tmp_path: Path) -> Iterator[Tool]:
    (tmp_path / "kiqcluster.toml").write_text(f"routing = {json.dumps(RULES)}")
    (tmp_path / "routed_jobs.py").write_text(APPLICATION)
    yield Tool(kiqctl, ("-C", str(tmp_path / "kiqcluster.toml"), "-r", str(tmp_path / "routed_jobs.py")))
    sys.modules.pop("routed_jobs", None)


def in_set(store: Store, key: str) -> dict[int, str]:
    return {json.loads(raw)["args"][0]: json.loads(raw)["queue"] for raw in entries(store, key)}


class TestRoutes:
    def test_shows_where_each_class_goes_and_why(self, tool: Tool) -> None:
        document = tool.kiqctl.ask("routes", *tool.flags)

        shown = {each["class"]: (each["queue"], each["own_queue"], each["rule"]) for each in document["routes"]}
        assert shown == {
            "Mail": ("urgent", "mailers", 1),
            "clean": ("cleanup", "cleanup", 2),
            "Inner": ("ruby", "rails", 3),
        }
        assert [rule["classes"] for rule in document["rules"]] == [1, 1, 1, 0]
        assert document["digest"] == digest(parse_rules(RULES))

    def test_says_it_in_words(self, tool: Tool) -> None:
        result = tool.kiqctl("routes", *tool.flags)

        assert "Mail   urgent   1     urgency=high" in result.stdout
        assert "name=cleanup, which leaves its queue" in result.stdout
        assert "rule 4 (name=nothing) routes no class of this application" in result.stderr

    def test_a_node_with_other_rules_is_seen(self, tool: Tool, store: Store) -> None:
        publish(store, "app-1:1:a", routing=digest(parse_rules(RULES)))
        same = tool.kiqctl.ask("routes", *tool.flags, "--check")
        publish(store, "app-2:2:b")

        other = tool.kiqctl.ask("routes", *tool.flags, "--check", code=1)
        listed = tool.kiqctl.ask("routes", *tool.flags)

        assert (same["problem"], listed["ok"]) == (None, True)
        assert "1 of 2 processes here have other rules, as app-2:2:b (none)" in other["problem"]

    def test_processes_of_another_application_have_rules_of_their_own(self, tool: Tool, store: Store) -> None:
        own, rules = tool.flags[-1], digest(parse_rules(RULES))
        publish(store, "app-1:1:a", application=own, routing=rules)
        publish(store, "app-2:2:b", application="blog")

        document = tool.kiqctl.ask("routes", *tool.flags, "--check")

        assert document["problem"] is None
        assert document["fleet"] == [{"identity": "app-1:1:a", "application": own, "digest": rules}]

    def test_without_redis_it_says_so(self, tool: Tool) -> None:
        document = tool.kiqctl.ask("routes", *tool.flags, "--redis", "redis://127.0.0.1:1/0")

        assert "not compared with the fleet" in document["problem"]
        assert len(document["routes"]) == 3

    def test_rules_that_cannot_be_used_are_exit_2(self, tool: Tool, tmp_path: Path) -> None:
        (tmp_path / "kiqcluster.toml").write_text('routing = [["urgncy=high", "u"]]')

        assert "rule 1: selector" in tool.kiqctl.ask("routes", *tool.flags, code=2)["error"]

    def test_needs_an_application(self, kiqctl: Kiqctl) -> None:
        assert "no application given" in kiqctl.ask("routes", code=2)["error"]


class TestMigrate:
    def lay_out(self, store: Store) -> None:
        envelope = {"class": WRAPPER, "wrapped": "Inner"}
        for number, (name, queue) in enumerate(
            [("Mail", "mailers"), ("Mail", "urgent"), ("clean", "old"), ("Other", "mailers"), ("Mail", "x")]
        ):
            raw = job(number, **{"class": name, "queue": queue})
            push_payloads(store, [raw], queue)
            for key in ("schedule", "retry", "dead"):
                add_entries(store, key, (NOW + number, raw))
        inner = [{"job_class": "Inner", "arguments": [5]}]
        push_payloads(
            store,
            [job(5, **envelope, queue="rails").replace(b'"args":[5]', b'"args":' + json.dumps(inner).encode())],
            "rails",
        )
        late = {"class": "Mail", "queue": "retries", "retry_queue": "retries", "retry_count": 0}
        add_entries(store, "retry", (NOW, job(6, **late)))

    def test_waiting_jobs_follow_the_rules(self, tool: Tool, store: Store) -> None:
        self.lay_out(store)
        before = entries(store, "retry")

        dry = tool.kiqctl.ask("migrate", "--routing", *tool.flags, "--dry-run")
        assert entries(store, "retry") == before
        done = tool.kiqctl.ask("migrate", "--routing", *tool.flags, "--yes")

        assert dry["found"] == done["done"] == 10
        assert {(each["place"], each["to"]): each["jobs"] for each in dry["moves"]} == {
            (each["place"], each["to"]): each["jobs"] for each in done["moves"]
        }
        assert in_set(store, "schedule") == {0: "urgent", 1: "urgent", 2: "cleanup", 3: "mailers", 4: "urgent"}
        assert in_set(store, "retry")[6] == "retries"
        assert in_set(store, "dead")[0] == "mailers", "the dead are left in peace"
        assert queued_numbers(store, "urgent") == [1, 0, 4]
        assert queued_numbers(store, "cleanup") == [2]
        assert store.call("LLEN", "queue:ruby") == 1
        assert queued_numbers(store, "mailers") == [3], "no class of this application"
        assert set(entries(store, "schedule").values()) == {NOW + n for n in range(5)}
        assert tool.kiqctl.ask("migrate", "--routing", *tool.flags, "--dry-run")["found"] == 0

    def test_a_class_a_queue_and_the_dead(self, tool: Tool, store: Store) -> None:
        self.lay_out(store)

        tool.kiqctl("migrate", "--routing", *tool.flags, "--class", "Mail", "--from", "x", "--dead", "--yes")

        assert in_set(store, "dead") == {0: "mailers", 1: "urgent", 2: "old", 3: "mailers", 4: "urgent"}
        assert queued_numbers(store, "urgent") == [1, 4]
        assert queued_numbers(store, "mailers") == [0, 3]

    def test_parked_jobs_keep_their_place_in_line(self, tool: Tool, store: Store) -> None:
        slots, raws = store.keys.slots("Mail"), [job(n, **{"class": "Mail", "queue": "mailers"}) for n in range(3)]
        store.call("SADD", store.keys.parked_sets, slots)
        for place, raw in enumerate(raws):
            store.call("ZADD", store.keys.parked(slots), 1_795_168_740_000_001 + place, b"queue:mailers\0" + raw)
        assert list(parked_sets(store)) == [slots]

        document = tool.kiqctl.ask("migrate", "--routing", *tool.flags, "--yes")

        flat = store.call("ZRANGE", store.keys.parked(slots), 0, -1, "WITHSCORES")
        assert document["moves"] == [{"place": "parked Mail", "to": "urgent", "jobs": 3}]
        assert [entry.partition(b"\0")[0] for entry in flat[::2]] == [b"queue:urgent"] * 3
        assert [json.loads(entry.partition(b"\0")[2])["args"] for entry in flat[::2]] == [[0], [1], [2]]
        assert [int(score) for score in flat[1::2]] == [1_795_168_740_000_001 + place for place in range(3)]
        assert store.call("SISMEMBER", "queues", "urgent") == 1

    @pytest.mark.parametrize(
        ("words", "problem"),
        [
            (["--routing", "--to", "x"], "migrate where to?"),
            (["--class", "Mail"], "migrate where to?"),
            (["--routing", "--class", "Nobody"], "the application defines no class Nobody"),
        ],
    )
    def test_what_is_not_clear_is_refused(self, tool: Tool, words: list[str], problem: str) -> None:
        assert problem in tool.kiqctl.ask("migrate", *words, *tool.flags, code=2)["error"]
