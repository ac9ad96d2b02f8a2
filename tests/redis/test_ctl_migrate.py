"""kiqctl migrate: whoever is meant goes to the other queue from wherever it waits, in its order, and nobody else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kiqcluster.store import Store
from kiqcluster.store.scripts import MOVE_JOBS
from tests.fake_supervisor import publish
from tests.kit import RedisServer
from tests.proxy import Proxy
from tests.redis.kiqctl import Kiqctl
from tests.stored_jobs import NOW, add_entries, entries, job, push_payloads, queued_numbers

MINE = {"class": "Mine"}
WRAPPER = "ActiveJob::QueueAdapters::SidekiqAdapter::JobWrapper"


def lay_out(store: Store) -> None:
    """Have a job of each class and queue wait in each place."""
    for number, (name, queue) in enumerate([("Mine", "old"), ("Mine", "other"), ("Job", "old"), ("Mine", "new")]):
        raw = job(number, **{"class": name, "queue": queue})
        push_payloads(store, [raw], queue)
        for key in ("schedule", "retry", "dead"):
            add_entries(store, key, (NOW + number, raw))


def queues_of(store: Store, key: str) -> dict[int, tuple[str, float]]:
    """Return number → queue and score of the entries of a set."""
    found = {}
    for raw, score in entries(store, key).items():
        payload = json.loads(raw)
        found[payload["args"][0]] = (payload["queue"], score - NOW)
    return found


STAY = {0: ("old", 0), 1: ("other", 1), 2: ("old", 2), 3: ("new", 3)}


class TestWhom:
    @pytest.mark.parametrize(
        ("words", "moved"),
        [
            (["--class", "Mine", "--from", "old"], [0]),
            (["--class", "Mine"], [0, 1]),
            (["--from", "old"], [0, 2]),
            (["--class", "Nobody"], []),
        ],
    )
    def test_moves_a_class_or_a_queue_or_both(
        self, kiqctl: Kiqctl, store: Store, words: list[str], moved: list[int]
    ) -> None:
        lay_out(store)

        document = kiqctl.ask("migrate", *words, "--to", "new", "--yes")

        assert document["done"] == 3 * len(moved)
        expected = {**STAY, **{number: ("new", number) for number in moved}}
        assert queues_of(store, "schedule") == queues_of(store, "retry") == expected
        assert queues_of(store, "dead") == STAY, "the dead are left in peace"
        assert queued_numbers(store, "new") == [3, *moved]
        assert all(json.loads(raw)["queue"] == "new" for raw in store.call("LRANGE", "queue:new", 0, -1))

    @pytest.mark.parametrize("words", [["--dead", "--in", "retry"], ["--in", "retry,dead"], ["--in", "dead, retry"]])
    def test_moves_where_it_is_told_to(self, kiqctl: Kiqctl, store: Store, words: list[str]) -> None:
        lay_out(store)

        kiqctl("migrate", "--from", "old", "--to", "new", "--yes", *words)

        moved = {**STAY, 0: ("new", 0), 2: ("new", 2)}
        assert (queues_of(store, "retry"), queues_of(store, "dead")) == (moved, moved)
        assert queues_of(store, "schedule") == STAY
        assert queued_numbers(store, "old") == [0, 2]

    def test_finds_active_jobs_by_their_inner_class(self, kiqctl: Kiqctl, store: Store) -> None:
        envelope = {"class": WRAPPER, "wrapped": "Inner", "args": [{"job_class": "Inner", "arguments": [1]}]}
        push_payloads(store, [job(1, **envelope, queue="old"), job(2, queue="old")], "old")

        assert kiqctl.ask("migrate", "--class", "Inner", "--from", "old", "--to", "new", "--yes")["done"] == 1
        assert queued_numbers(store, "old") == [2]

    def test_an_entry_without_a_queue_is_one_of_default(self, kiqctl: Kiqctl, store: Store) -> None:
        bare = b'{"class":"Job","args":[1],"jid":"j1"}'
        push_payloads(store, [job(2)])
        add_entries(store, "retry", (NOW, bare))

        kiqctl("migrate", "--from", "default", "--to", "new", "--in", "retry", "--yes")

        assert queues_of(store, "retry") == {1: ("new", 0)}

    @pytest.mark.parametrize(
        "words",
        [
            ["--to", "new"],
            ["--from", "old"],
            ["--from", "new", "--to", "new"],
            ["--from", "old", "--to", "a b"],
            ["--from", "old", "--to", "new", "--in", "attic"],
        ],
    )
    def test_what_cannot_be_meant_is_exit_2(self, kiqctl: Kiqctl, store: Store, words: list[str]) -> None:
        lay_out(store)

        assert kiqctl("migrate", *words, "--yes").exit_code == 2
        assert queued_numbers(store, "old") == [0, 2]

    def test_says_first_how_many_there_are(self, kiqctl: Kiqctl, store: Store) -> None:
        lay_out(store)
        before = {key: store.call("DUMP", key) for key in store.call("KEYS", "*")}

        refused = kiqctl("migrate", "--from", "old", "--to", "new")
        document = kiqctl.ask("migrate", "--from", "old", "--to", "new", "--dead", "--dry-run")

        assert refused.exit_code == 2
        assert "move 6 jobs: all from old to new" in refused.stderr
        assert document["places"] == {"schedule": 2, "retry": 2, "dead": 2, "queue old": 2}
        assert (document["found"], document["dry_run"]) == (8, True)
        assert {key: store.call("DUMP", key) for key in store.call("KEYS", "*")} == before

    def test_parked_jobs_are_told_of_and_moved_where_somebody_says_so(self, kiqctl: Kiqctl, store: Store) -> None:
        slots = store.keys.slots("Mine")
        store.call("SADD", store.keys.parked_sets, slots)
        for number, queue in enumerate(["old", "old", "other"]):
            raw = job(number, **{"class": "Mine", "queue": queue})
            store.call("ZADD", store.keys.parked(slots), number, store.keys.queue(queue).encode() + b"\0" + raw)
        push_payloads(store, [job(9, queue="old")], "old")
        words = ("migrate", "--from", "old", "--to", "new", "--yes")

        told = kiqctl("migrate", "--from", "old", "--to", "new", "--dry-run").stderr
        first, narrowed = kiqctl.ask(*words), kiqctl.ask(*words, "--in", "queues")
        moved = kiqctl.ask(*words, "--in", "parked")

        assert "2 parked jobs that are meant stay" in told
        assert [each["parked_left"] for each in (first, narrowed, moved)] == [2, 0, 0]
        assert [each["done"] for each in (first, narrowed, moved)] == [1, 0, 2]
        line = [entry.split(b"\0")[0] for entry in store.call("ZRANGE", store.keys.parked(slots), 0, -1)]
        assert line == [b"queue:new", b"queue:new", b"queue:other"]

    def test_a_queue_that_nobody_listens_to_is_said_before_anything_moves(self, kiqctl: Kiqctl, store: Store) -> None:
        push_payloads(store, [job(1)])
        publish(store, "app-1:1:aaaaaaaaaaaa", queues=["default", "low"])

        assert "nobody" not in kiqctl("migrate", "--from", "default", "--to", "low").stderr
        assert "no process listens to the queue lwo" in kiqctl("migrate", "--from", "default", "--to", "lwo").stderr
        assert "lwo" in kiqctl.ask("migrate", "--from", "default", "--to", "lwo", "--dry-run")["warning"]
        assert kiqctl.ask("migrate", "--from", "default", "--to", "low", "--dry-run")["warning"] is None

    def test_warns_where_nobody_listens(self, kiqctl: Kiqctl, store: Store) -> None:
        lay_out(store)
        publish(store, "app-1:100:aaaaaaaaaaaa", queues=["new"])

        heard = kiqctl("migrate", "--class", "Mine", "--from", "old", "--to", "new", "--yes")
        unheard = kiqctl("migrate", "--class", "Job", "--from", "old", "--to", "lonely", "--yes")

        assert (heard.exit_code, unheard.exit_code) == (0, 0)
        assert "no process listens" not in heard.stderr
        assert "no process listens to the queue lonely" in unheard.stderr


class TestHow:
    @pytest.mark.parametrize("words", [["--class", "Mine"], []])
    def test_the_order_stays(self, kiqctl: Kiqctl, store: Store, words: list[str]) -> None:
        push_payloads(store, [job(number, **{**MINE, "queue": "old"}) for number in range(3_000)], "old")
        for _ in range(3):
            store.call("LMOVE", "queue:old", "kiq:wake:old", "RIGHT", "LEFT")
        push_payloads(store, [job(9_999)], "new")

        document = kiqctl.ask("migrate", *words, "--from", "old", "--to", "new", "--yes")

        assert document["done"] == 3_000
        assert queued_numbers(store, "new") == [9_999, *range(3_000)]
        assert store.call("EXISTS", "queue:old", "kiq:wake:old") == 0

    def test_those_among_many_others_keep_their_order(self, kiqctl: Kiqctl, store: Store) -> None:
        jobs = [job(number, **{"class": "Mine" if number % 7 == 0 else "Job"}) for number in range(5_000)]
        push_payloads(store, jobs, "old")

        kiqctl("migrate", "--class", "Mine", "--from", "old", "--to", "new", "--yes")

        assert queued_numbers(store, "new") == list(range(0, 5_000, 7))
        assert queued_numbers(store, "old") == [number for number in range(5_000) if number % 7]

    def test_the_bytes_of_everything_else_in_a_payload_stay(self, kiqctl: Kiqctl, store: Store) -> None:
        raw = b'{"queue":"old","class":"Mine","args":[1.0e+16,"\\u00e9",1e400],"jid":"j1","x":[1,  2]}'
        add_entries(store, "retry", (NOW + 0.1, raw))
        push_payloads(store, [raw], "old")

        kiqctl("migrate", "--from", "old", "--to", "new", "--yes")

        expected = raw.replace(b'"old"', b'"new"')
        assert entries(store, "retry") == {expected: NOW + 0.1}
        assert store.call("LRANGE", "queue:new", 0, -1) == [expected]

    def test_what_is_no_job_goes_with_its_queue(self, kiqctl: Kiqctl, store: Store) -> None:
        store.call("LPUSH", "queue:old", b"junk \xff")

        assert kiqctl.ask("migrate", "--from", "old", "--to", "new", "--yes")["done"] == 1
        assert store.call("LRANGE", "queue:new", 0, -1) == [b"junk \xff"]

    def test_an_entry_that_can_name_no_queue_is_none_that_was_moved(self, kiqctl: Kiqctl, store: Store) -> None:
        add_entries(store, "retry", (NOW, b"no job"), (NOW, b"[]"), (NOW, job(1)))

        document = kiqctl.ask("migrate", "--from", "default", "--to", "low", "--yes")

        assert (document["found"], document["done"]) == (1, 1)
        assert {b"no job", b"[]"} < entries(store, "retry").keys()

    def test_one_of_two_that_would_become_the_same_stays(self, kiqctl: Kiqctl, store: Store) -> None:
        add_entries(store, "retry", (NOW, job(1, queue="old")), (NOW + 1, job(1, queue="new")))

        result = kiqctl("migrate", "--class", "Job", "--from", "old", "--to", "new", "--yes", "--in", "retry")

        assert store.call("ZCARD", "retry") == 2
        assert "moved 0 jobs" in result.stdout

    def test_a_queue_that_is_none_in_redis_is_said_and_keeps_its_jobs(self, kiqctl: Kiqctl, store: Store) -> None:
        store.call("SET", "queue:new", "x")
        push_payloads(store, [job(number) for number in range(3)], "old")

        result = kiqctl("migrate", "--from", "old", "--to", "new", "--yes")

        assert result.exit_code == 5
        assert "WRONGTYPE" in result.stderr
        assert queued_numbers(store, "old") == [0, 1, 2]

    def test_a_lost_reply_is_said_and_all_is_well_when_it_is_done_again(
        self, store: Store, redis_server: RedisServer, kiqctl: Kiqctl
    ) -> None:
        push_payloads(store, [job(number) for number in range(1_200)], "old")
        words = ("migrate", "--from", "old", "--to", "new", "--yes")

        with Proxy(("127.0.0.1", redis_server.port)) as proxy:
            proxy.lose_replies(MOVE_JOBS.digest.encode())
            document: Any = Kiqctl(proxy.url).ask(*words, code=1)

        moved = store.call("LLEN", "queue:new")
        assert document["done"] <= moved <= document["done"] + document["unknown"]
        assert document["unknown"] > 0
        assert kiqctl.ask(*words)["done"] == 1_200 - moved
        assert queued_numbers(store, "new") == list(range(1_200))
