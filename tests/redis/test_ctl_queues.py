"""kiqctl queues, jobs and stats: what they show of queues of any kind, and what they change."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kiqcluster.store import Store
from tests.fake_supervisor import publish
from tests.redis.kiqctl import Kiqctl
from tests.stored_jobs import NOW, add_entries, job, push_payloads, queued_numbers

OURS, RUBYS = "app-1:100:aaaaaaaaaaaa", "rails-1:7:cccccccccccc"


def now_of(store: Store) -> float:
    seconds, micros = map(int, store.call("TIME"))
    return seconds + micros / 1e6


class TestQueues:
    def test_shows_what_waits_where_and_who_listens(self, kiqctl: Kiqctl, store: Store) -> None:
        now = now_of(store)
        push_payloads(store, [job(1, enqueued_at=now - 600), job(2, enqueued_at=int(now * 1_000))])
        push_payloads(store, [job(3, enqueued_at=now - 60)], "low")
        store.call("LMOVE", "queue:low", "kiq:wake:low", "RIGHT", "LEFT")
        store.call("SADD", "paused", "low")
        publish(store, OURS, queues=["default", "low"])
        publish(store, RUBYS, queues=["default"], labels=[])

        default, low = kiqctl.ask("queues")["queues"]

        assert (default["name"], default["size"], default["is_paused"]) == ("default", 2, False)
        assert default["listeners"] == [OURS, RUBYS]
        assert 600 <= default["latency"] < 660
        assert (low["name"], low["size"], low["is_paused"], low["listeners"]) == ("low", 1, True, [OURS])
        lines = kiqctl("queues").stdout.splitlines()
        assert lines[1].split() == ["default", "2", "10m", "app-1:100,", "rails-1:7"]
        assert lines[2].split()[3:] == ["paused", "app-1:100"]

    def test_a_queue_that_is_only_listened_to_shows(self, kiqctl: Kiqctl, store: Store) -> None:
        push_payloads(store, [job(1)])
        publish(store, OURS, queues=["new", "odd"])
        store.call("SET", "queue:odd", "x")

        default, new, odd = kiqctl.ask("queues")["queues"]

        assert (default["name"], new["name"], odd["name"]) == ("default", "new", "odd")
        assert (new["size"], new["listeners"], odd["size"]) == (0, [OURS], 0)

    def test_one_queue_that_is_none_has_nothing_done_to_the_others_and_says_so(
        self, kiqctl: Kiqctl, store: Store
    ) -> None:
        store.call("SADD", "paused", "low", "default")

        result = kiqctl("queues", "resume", "low", "default", "nope")

        assert result.exit_code == 1
        assert "nothing was done" in result.stderr
        assert sorted(store.call("SMEMBERS", "paused")) == [b"default", b"low"]

    def test_a_queue_that_nobody_listens_to_is_said_to_be_one(self, kiqctl: Kiqctl, store: Store) -> None:
        push_payloads(store, [job(1)], "forgotten")

        assert kiqctl.ask("queues", "list")["queues"][0]["listeners"] == []
        assert "nobody" in kiqctl("queues", "list").stdout

    def test_the_listeners_of_a_large_fleet_fill_no_screen(self, kiqctl: Kiqctl, store: Store) -> None:
        for number in range(30):
            publish(store, f"app-1:{number}:{'a' * 12}", queues=["new"])

        table = kiqctl("queues", "list").stdout

        assert "and 20 more" in table
        assert max(map(len, table.splitlines())) < 200
        assert len(kiqctl.ask("queues", "list")["queues"][0]["listeners"]) == 30

    def test_no_queue_at_all_is_no_failure(self, kiqctl: Kiqctl) -> None:
        assert kiqctl("queues").exit_code == 0
        assert kiqctl("queues", "latency", "--warn", "1").exit_code == 0
        assert kiqctl("stats").exit_code == 0

    @pytest.mark.parametrize(
        ("words", "code"),
        [
            ([], 0),
            (["--warn", "30"], 1),
            (["--warn", "5m"], 0),
            (["low", "--warn", "30"], 0),
            (["default", "--warn", "30"], 1),
            (["low", "default", "--warn", "30"], 1),
        ],
    )
    def test_latency_is_a_check(self, kiqctl: Kiqctl, store: Store, words: list[str], code: int) -> None:
        push_payloads(store, [job(1, enqueued_at=now_of(store) - 60)])
        push_payloads(store, [job(2, enqueued_at=now_of(store))], "low")

        document = kiqctl.ask("queues", "latency", *words, code=code)

        assert document["ok"] is (code == 0)
        assert [each["name"] for each in document["queues"] if each["is_late"]] == ["default"][
            : document["ok"] is False
        ]

    def test_pauses_and_resumes(self, kiqctl: Kiqctl, store: Store) -> None:
        push_payloads(store, [job(1)])
        push_payloads(store, [job(2)], "low")

        assert kiqctl.ask("queues", "pause", "default", "low")["queues"] == [
            {"name": "default", "changed": True},
            {"name": "low", "changed": True},
        ]
        assert sorted(store.call("SMEMBERS", "paused")) == [b"default", b"low"]
        assert kiqctl.ask("queues", "pause", "low")["queues"] == [{"name": "low", "changed": False}]
        assert kiqctl.ask("queues", "resume", "low")["queues"] == [{"name": "low", "changed": True}]
        assert store.call("SMEMBERS", "paused") == [b"default"]

    def test_a_paused_queue_that_is_empty_can_be_resumed(self, kiqctl: Kiqctl, store: Store) -> None:
        store.call("SADD", "paused", "gone")

        assert kiqctl("queues", "resume", "gone").exit_code == 0
        assert store.call("EXISTS", "paused") == 0

    def test_a_queue_that_workers_listen_to_need_not_hold_a_job_yet(self, kiqctl: Kiqctl, store: Store) -> None:
        publish(store, OURS, queues=["new"])

        assert kiqctl("queues", "pause", "new").exit_code == 0
        assert kiqctl("queues", "latency", "new").exit_code == 0

    @pytest.mark.parametrize(
        "words",
        [
            ["queues", "pause", "malers"],
            ["queues", "resume", "malers"],
            ["queues", "clear", "malers", "--yes"],
            ["queues", "latency", "malers"],
            ["jobs", "malers"],
            ["jobs", "malers", "--class", "Job", "--delete", "--yes"],
            ["migrate", "--from", "malers", "--to", "default", "--yes"],
            ["migrate", "--from", "malers", "--to", "default", "--dry-run"],
        ],
    )
    def test_a_queue_that_is_none_is_answered_with_the_nearest_names(
        self, kiqctl: Kiqctl, store: Store, words: list[str]
    ) -> None:
        push_payloads(store, [job(1)], "mailers")
        push_payloads(store, [job(1)], "default")

        result = kiqctl(*words)

        assert result.exit_code == 1
        assert "there is no queue malers; there is mailers" in result.stderr
        assert store.call("EXISTS", "paused") == 0

    def test_clears_what_waits_and_nothing_else(self, kiqctl: Kiqctl, store: Store) -> None:
        push_payloads(store, [job(number) for number in range(5)])
        push_payloads(store, [job(9)], "low")
        store.call("LMOVE", "queue:default", "kiq:wake:default", "RIGHT", "LEFT")

        refused = kiqctl("queues", "clear", "default")
        assert (refused.exit_code, store.call("LLEN", "queue:default")) == (2, 4)
        assert "5 jobs of the queue default" in refused.stderr

        assert kiqctl.ask("queues", "clear", "default", "--yes")["done"] == 5
        assert store.call("EXISTS", "queue:default", "kiq:wake:default") == 0
        assert queued_numbers(store, "low") == [9]


class TestJobs:
    def args(self, kiqctl: Kiqctl, *words: str) -> list[Any]:
        return [each["args"] for each in kiqctl.ask("jobs", "default", *words)["jobs"]]

    def test_shows_pages_from_either_end(self, kiqctl: Kiqctl, store: Store) -> None:
        push_payloads(store, [job(number) for number in range(5)])
        store.call("LMOVE", "queue:default", "kiq:wake:default", "RIGHT", "LEFT")

        assert self.args(kiqctl) == [[4], [3], [2], [1], [0]]
        assert self.args(kiqctl, "--oldest") == [[0], [1], [2], [3], [4]]
        assert self.args(kiqctl, "--limit", "2", "--page", "2") == [[2], [1]]
        assert self.args(kiqctl, "--limit", "2", "--page", "3", "--oldest") == [[4]]
        assert self.args(kiqctl, "--page", "9", "--oldest") == []

    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            (["--class", "Job"], [4, 2, 1]),
            (["--class", "Other"], [3]),
            (["--args-contain", '"EUR"'], [4]),
            (["--args-contain", "EUR", "--class", "Other"], []),
            (["--tag", "vip"], [2]),
            (["--jid", "j2", "--tag", "vip"], [2]),
            (["--selector", "worker_name=Other|tags=vip"], [3, 2]),
            (["--jid", "j2", "--class", "Other"], []),
            (["--class", "(no job)"], ["junk"]),
            (["--class", "Job", "--oldest", "--limit", "2"], [1, 2]),
            (["--class", "Job", "--limit", "2", "--page", "2"], [1]),
        ],
    )
    def test_filters(self, kiqctl: Kiqctl, store: Store, words: list[str], expected: list[Any]) -> None:
        other = job(3, **{"class": "Other"})
        push_payloads(store, [job(1), job(2, tags=["vip"]), other, b"junk", job(4, args=[4, "EUR"])])

        assert [each[0] for each in self.args(kiqctl, *words)] == expected

    def test_counts(self, kiqctl: Kiqctl, store: Store) -> None:
        push_payloads(store, [job(number, **{"class": "Job" if number % 3 else "Other"}) for number in range(1_200)])

        assert kiqctl("jobs", "default", "--count").stdout == "1200\n".replace("1200", "1,200")
        assert kiqctl.ask("jobs", "default", "--class", "Other", "--count")["count"] == 400

    def test_shows_one_in_full_or_where_it_is(self, kiqctl: Kiqctl, store: Store) -> None:
        push_payloads(store, [job(1, note="x" * 500), job(2)])
        add_entries(store, "dead", (NOW, job(3)))

        assert "x" * 500 in kiqctl("jobs", "default", "--jid", "j1").stdout
        assert kiqctl.ask("jobs", "default", "--jid", "j1")["payload"]["note"] == "x" * 500
        missing = kiqctl("jobs", "default", "--jid", "j3")
        assert missing.exit_code == 1
        assert "in the dead set" in missing.stderr

    def test_deletes_those_selected_once_it_is_told_to(self, kiqctl: Kiqctl, store: Store) -> None:
        push_payloads(store, [job(number, **{"class": "Job" if number % 3 else "Other"}) for number in range(1_200)])
        store.call("LMOVE", "queue:default", "kiq:wake:default", "RIGHT", "LEFT")
        words = ("jobs", "default", "--class", "Other", "--delete")

        refused = kiqctl(*words)
        assert refused.exit_code == 2
        assert "delete 400 jobs of the queue default" in refused.stderr
        assert store.call("LLEN", "queue:default") == 1_199

        assert kiqctl.ask(*words, "--yes")["done"] == 400
        assert queued_numbers(store) == [number for number in range(1_200) if number % 3]
        assert store.call("EXISTS", "kiq:wake:default") == 0
        assert kiqctl.ask("jobs", "default", "--jid", "j1", "--delete", "--yes")["done"] == 1

    def test_of_a_job_that_runs_it_says_what_ends_it(self, kiqctl: Kiqctl, store: Store) -> None:
        push_payloads(store, [job(2)])
        publish(store, OURS)
        run = {"queue": "default", "payload": job(1).decode(), "run_at": NOW}
        store.call("HSET", f"{OURS}:work", "tid", json.dumps(run))

        done = kiqctl("jobs", "default", "--jid", "j1", "--delete", "--yes")
        other = kiqctl("jobs", "default", "--jid", "j2", "--class", "Other", "--delete", "--yes")

        assert (done.exit_code, queued_numbers(store)) == (1, [2])
        assert f"running in {OURS}" in done.stderr
        assert "kiqctl kill j1" in done.stderr
        assert (other.exit_code, other.stderr) == (0, "")

    @pytest.mark.parametrize("words", [["--delete"], ["--class", "Job", "--delete", "--count"]])
    def test_what_is_deleted_has_to_be_said(self, kiqctl: Kiqctl, store: Store, words: list[str]) -> None:
        push_payloads(store, [job(1)])

        assert kiqctl("jobs", "default", *words, "--yes").exit_code == 2
        assert queued_numbers(store) == [1]


class TestStats:
    def test_shows_counters_sizes_and_queues(self, kiqctl: Kiqctl, store: Store) -> None:
        push_payloads(store, [job(1, enqueued_at=now_of(store) - 600)])
        for key, count in (("retry", 1), ("schedule", 2), ("dead", 3)):
            add_entries(store, key, *[(NOW, job(number)) for number in range(count)])
        store.pipeline([("SET", "stat:processed", 1_204), ("SET", "stat:failed", 12)])
        store.call("ZADD", "kiq:dropped", NOW, job(8), NOW, job(9))
        store.call("HSET", "kiq:suspects", "a" * 40, 2)
        publish(store, OURS, busy=3)

        document = kiqctl.ask("stats")

        assert {name: value for name, value in document.items() if name not in ("queues", "history")} == {
            "processed": 1_204,
            "failed": 12,
            "busy": 3,
            "enqueued": 1,
            "retries": 1,
            "scheduled": 2,
            "dead": 3,
            "parked": 0,
            "dropped": 2,
            "suspects": 1,
            "processes": 1,
            "unreadable": [],
        }
        (queue,) = document["queues"]
        assert (queue["name"], queue["size"], queue["processes"]) == ("default", 1, 1)
        assert 600 <= queue["latency"] < 660
        lines = [line.split() for line in kiqctl("stats").stdout.splitlines()]
        assert ["processed", "1,204"] in lines
        assert ["default", "1", "10m"] in lines

    def test_says_where_nobody_listens(self, kiqctl: Kiqctl, store: Store) -> None:
        push_payloads(store, [job(1)])
        push_payloads(store, [job(2)], "low")
        publish(store, OURS, queues=["default"])

        lines = {line.split()[0]: line for line in kiqctl("stats").stdout.splitlines() if line}

        assert "nobody listens" in lines["low"]
        assert "nobody listens" not in lines["default"]

    def test_shows_the_last_days(self, kiqctl: Kiqctl, store: Store) -> None:
        today = datetime.fromtimestamp(now_of(store), UTC).date()
        yesterday = today - timedelta(days=1)
        store.pipeline([("SET", f"stat:processed:{yesterday}", 7), ("SET", f"stat:failed:{yesterday}", 2)])

        history = kiqctl.ask("stats", "--history", "3")["history"]

        assert history[1] == {"day": str(yesterday), "processed": 7, "failed": 2}
        assert [each["day"] for each in history] == [str(today - timedelta(days=number)) for number in range(3)]
        assert kiqctl("stats", "--history", "0").exit_code == 2

    @pytest.mark.parametrize(
        ("words", "left"),
        [(["--reset"], [b"0", b"0"]), (["--reset", "failed"], [b"9", b"0"]), (["--reset", "processed"], [b"0", b"5"])],
    )
    def test_resets_once_it_is_told_to(self, kiqctl: Kiqctl, store: Store, words: list[str], left: list[bytes]) -> None:
        store.call("MSET", "stat:processed", 9, "stat:failed", 5, "stat:failed:2026-11-20", 5)

        assert kiqctl("stats", *words).exit_code == 2
        assert store.call("MGET", "stat:processed", "stat:failed") == [b"9", b"5"]

        assert json.loads(kiqctl("stats", *words, "--yes", "--json").stdout)["ok"]
        assert store.call("MGET", "stat:processed", "stat:failed") == left
        assert store.call("GET", "stat:failed:2026-11-20") == b"5"


def test_keys_of_another_type_are_said_and_have_no_figures(kiqctl: Kiqctl, store: Store) -> None:
    push_payloads(store, [job(1)], "fine")
    store.call("SADD", "queues", "odd")
    store.call("SET", "queue:odd", "text")
    store.call("SET", "dead", "text")

    rows = {each["name"]: each for each in kiqctl.ask("queues")["queues"]}
    assert rows["fine"]["error"] is None
    assert "WRONGTYPE" in rows["odd"]["error"]
    assert kiqctl.ask("stats")["unreadable"] == ["dead", "queue:odd"]
    for command in ("queues", "stats"):
        (line,) = [line for line in kiqctl(command).stdout.splitlines() if line.startswith("odd ")]
        assert "key of the wrong type" in line
        assert line.split()[1:3] == ["–", "–"]
    assert "dead is a key of another type" in kiqctl("stats").stderr


def test_hosts_are_shown_in_the_order_of_their_numbers(kiqctl: Kiqctl, store: Store) -> None:
    for host in ("web-10", "web-2", "web-1"):
        publish(store, f"{host}:7:aaaaaaaaaaaa", queues=["default"])

    listeners = kiqctl.ask("queues")["queues"][0]["listeners"]
    assert [name.partition(":")[0] for name in listeners] == ["web-1", "web-2", "web-10"]
    assert [each["host"] for each in kiqctl.ask("ps")["others"]] == ["web-1", "web-2", "web-10"]


def test_a_fleet_of_rubys_processes_alone_is_there(kiqctl: Kiqctl, store: Store) -> None:
    assert kiqctl("ps").exit_code == 1
    publish(store, "rails-1:7:cccccccccccc", labels=[], version=None, queues=["mailers"])

    result = kiqctl("ps")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "rails-1:7" in result.stdout


def test_a_job_is_shown_as_of_the_latest_beat_of_its_process(kiqctl: Kiqctl, store: Store) -> None:
    began = now_of(store)
    publish(store, OURS, ttl=50)  # its beat was ten seconds ago
    running_job = {"queue": "default", "payload": job(1).decode(), "run_at": began - 13}
    store.call("HSET", f"{OURS}:work", "one", json.dumps(running_job))

    (shown,) = kiqctl.ask("busy")["jobs"]

    passed = now_of(store) - began  # since then, on a busy machine
    assert 2 < shown["seconds"] < 5 + passed
    assert 9 < shown["age"] < 12 + passed
    assert "some may have ended since" in kiqctl("busy").stdout
    assert re.search(r"as of up to \d\d", kiqctl("top", "--once", "--interval", "0.1s").stdout)
