"""Queues through kiqcluster.api: nothing that stays is missed, nothing is lost on its way, whoever else is at work."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable
from itertools import islice

import pytest

from kiqcluster import Client
from kiqcluster.api import JobRecord, Queue, QueueSummary, summaries
from kiqcluster.errors import InvalidPush, RedisRefused, UsageError
from kiqcluster.process.runtime import Setup
from kiqcluster.store import Store
from tests.kit import ManualClock, RedisServer
from tests.stored_jobs import fill_queue, job, move_to_wake_list, numbers, pop_jobs, queued_numbers


@pytest.fixture
def queue(store: Store, setup: Setup) -> Queue:
    return Queue("default")


class TestLooking:
    def test_a_queue_that_is_not_there_is_empty(self, queue: Queue) -> None:
        assert len(queue) == 0
        assert list(queue) == list(reversed(queue)) == queue.page(0, 10) == []
        assert queue.latency() == 0.0
        assert queue.find_job("x") is None
        assert not queue.is_paused()
        assert queue.clear() == 0

    @pytest.mark.parametrize("size", [1, 49, 50, 51, 549, 550, 551, 1_999])
    def test_iteration_yields_all_newest_first_and_reversed_oldest_first(
        self, queue: Queue, store: Store, size: int
    ) -> None:
        fill_queue(store, range(size))

        assert numbers(queue) == list(range(size))[::-1]
        assert numbers(reversed(queue)) == list(range(size))

    def test_a_job_in_the_wake_list_is_the_next_of_its_queue(self, queue: Queue, store: Store) -> None:
        fill_queue(store, range(60))
        move_to_wake_list(store, 3)

        assert len(queue) == 60
        assert numbers(queue) == list(range(60))[::-1]
        assert numbers(reversed(queue)) == list(range(60))
        assert numbers(queue.page(55, 10)) == [4, 3, 2, 1, 0]

    def test_a_queue_of_which_all_rang_has_them_still(self, queue: Queue, store: Store) -> None:
        fill_queue(store, range(3))
        move_to_wake_list(store, 3)

        assert (len(queue), numbers(queue)) == (3, [2, 1, 0])

    @pytest.mark.parametrize(
        ("start", "count", "expected"),
        [(0, 3, [9, 8, 7]), (8, 5, [1, 0]), (10, 5, []), (-1, 3, []), (0, 0, []), (3, -1, [])],
    )
    def test_a_page_is_counted_from_the_newest(
        self, queue: Queue, store: Store, start: int, count: int, expected: list[int]
    ) -> None:
        fill_queue(store, range(10))

        assert numbers(queue.page(start, count)) == expected

    def test_any_bytes_are_records_of_their_queue(self, queue: Queue, store: Store) -> None:
        hostile = [b"", b"\x00\xff\r\n", b"123", b"{}", b"moved by kiqcluster"]
        store.call("RPUSH", "queue:default", *hostile)

        assert [record.raw for record in queue] == hostile
        assert {record.queue for record in queue} == {"default"}

    def test_jobs_with_the_same_bytes_are_as_many_as_they_are(self, queue: Queue, store: Store) -> None:
        store.call("RPUSH", "queue:default", *[b"same"] * 1_234)

        assert len(list(queue)) == len(list(reversed(queue))) == 1_234

    def test_a_job_is_found_by_its_id(self, queue: Queue, store: Store) -> None:
        fill_queue(store, range(700))
        move_to_wake_list(store)

        for number in (0, 350, 699):
            found = queue.find_job(f"j{number}")
            assert found is not None
            assert found.raw == job(number)
        assert queue.find_job("j700") is None
        assert queue.find_job("") is None
        assert queue.find_job('odd "id"') is None

    @pytest.mark.parametrize("jid", ["é1", 'a"b', "0-_9"])
    def test_an_id_of_any_characters_is_found(self, queue: Queue, store: Store, jid: str) -> None:
        store.call("LPUSH", "queue:default", json.dumps({"class": "X", "args": [7], "jid": jid}), job(2))

        found = queue.find_job(jid)

        assert found is not None
        assert found.args == [7]

    def test_latency_is_that_of_the_next_job(self, store: Store, setup: Setup) -> None:
        clock = ManualClock(1_000.0)
        queue = Queue("default", clock=clock)
        store.call("LPUSH", "queue:default", job(1, enqueued_at=990.0), job(2, enqueued_at=995.0))

        assert queue.latency() == 10.0
        move_to_wake_list(store)
        assert queue.latency() == 10.0

    @pytest.mark.parametrize("raw", [b"not json", b'{"enqueued_at":"noon"}', b"\xff"])
    def test_the_latency_of_what_says_nothing_is_none(self, queue: Queue, store: Store, raw: bytes) -> None:
        store.call("LPUSH", "queue:default", raw)

        assert queue.latency() == 0.0

    def test_a_key_that_is_no_queue_is_refused_in_redis_words(self, queue: Queue, store: Store) -> None:
        store.call("SET", "queue:default", "x")

        for look in (lambda: len(queue), lambda: list(queue), queue.latency, lambda: queue.page(0, 1)):
            with pytest.raises(RedisRefused, match="WRONGTYPE"):
                look()

    def test_the_shard_of_via_is_looked_at(self, store: Store, setup: Setup, redis_server: RedisServer) -> None:
        with Store(redis_server.url, prefix="{shard}").borrowed():
            shard = Store(redis_server.url, prefix="{shard}")
        fill_queue(shard, range(3))

        with Client.via(shard):
            assert len(Queue("default")) == 3
            assert [each.name for each in Queue.all()] == ["default"]
        assert len(Queue("default")) == 0
        assert len(Queue("default", store=shard)) == 3
        shard.close()


class TestChanging:
    def test_a_pause_is_for_workers_and_lasts(self, queue: Queue, store: Store) -> None:
        assert queue.pause()
        assert not queue.pause()
        assert queue.is_paused()
        assert store.call("SMEMBERS", "paused") == [b"default"]

        assert queue.resume()
        assert not queue.resume()
        assert not queue.is_paused()

    def test_clearing_takes_all_and_the_name_but_no_pause(self, queue: Queue, store: Store) -> None:
        fill_queue(store, range(5))
        fill_queue(store, range(2), "other")
        move_to_wake_list(store, 2)
        queue.pause()

        assert queue.clear() == 5

        assert len(queue) == 0
        assert [each.name for each in Queue.all()] == ["other"]
        assert queue.is_paused()

    def test_only_an_empty_queue_is_forgotten(self, queue: Queue, store: Store) -> None:
        fill_queue(store, range(2))
        move_to_wake_list(store, 1)
        assert not queue.forget()
        assert [each.name for each in Queue.all()] == ["default"]

        pop_jobs(store, 1)
        assert not queue.forget()
        store.call("DEL", store.keys.wake("default"))

        assert queue.forget()
        assert Queue.all() == []

    def test_a_queue_that_somebody_pushes_to_meanwhile_is_not_forgotten(
        self, queue: Queue, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Queue, "__len__", lambda _: 0)  # as it was a moment ago
        fill_queue(store, range(2))

        assert not queue.forget()

        assert [each.name for each in Queue.all()] == ["default"]

    def test_a_job_is_deleted_by_its_bytes_and_once(self, queue: Queue, store: Store) -> None:
        fill_queue(store, range(5))
        move_to_wake_list(store, 2)
        records = list(queue)

        assert all(queue.delete(records[at]) for at in (1, 4))
        assert not any(queue.delete(records[at]) for at in (1, 4))

        assert numbers(queue) == [4, 2, 1]

    def test_of_jobs_with_the_same_bytes_one_is_deleted(self, queue: Queue, store: Store) -> None:
        store.call("LPUSH", "queue:default", "same", "same")
        store.call("LPUSH", "kiq:wake:default", "same")

        assert queue.delete(next(iter(queue)))

        assert len(queue) == 2

    @pytest.mark.parametrize("number", [0, 3_000, 5_999])
    def test_a_job_that_others_have_shifted_far_is_found_all_the_same(
        self, queue: Queue, store: Store, number: int
    ) -> None:
        fill_queue(store, range(6_000))
        record = next(record for record in queue if record.args == [number])
        store.call("RPUSH", "queue:default", *[job(other) for other in range(70_000, 71_000)])

        assert queue.delete(record)

        assert number not in queued_numbers(store)
        assert len(queue) == 6_999

    def test_a_record_that_was_made_by_hand_is_found_too(self, queue: Queue, store: Store) -> None:
        fill_queue(store, range(600))
        move_to_wake_list(store, 2)

        assert queue.delete_all([JobRecord(job(number)) for number in (0, 5, 300, 599, 777)]) == 4

        assert len(queue) == 596

    def test_many_jobs_are_deleted_as_they_are_read(self, queue: Queue, store: Store) -> None:
        fill_queue(store, range(4_000))
        move_to_wake_list(store, 2)

        count = queue.delete_all(record for record in queue if record.args[0] % 3 == 0)

        assert count == 1_334
        assert numbers(queue) == [number for number in range(4_000) if number % 3][::-1]

    def test_a_script_takes_fewer_jobs_out_the_farther_they_are_from_both_ends(
        self, queue: Queue, store: Store
    ) -> None:
        fill_queue(store, range(60_000))
        scripts = []
        for nearest in (0, 29_000, 57_500):
            jobs = [each for each in reversed(queue) if nearest <= each.args[0] < nearest + 1_000]
            store.call("CONFIG", "RESETSTAT")

            assert queue.delete_all(jobs) == 1_000

            told = re.search(rb"cmdstat_evalsha:calls=(\d+)", store.call("INFO", "commandstats"))
            assert told is not None
            scripts.append(int(told[1]))
        left = [each for each in range(60_000) if not any(at <= each < at + 1_000 for at in (0, 29_000, 57_500))]
        assert queued_numbers(store) == left
        assert scripts[0] == scripts[2] == 2
        assert scripts[1] >= 4

    def test_a_move_keeps_the_order_and_names_the_new_queue(self, queue: Queue, store: Store) -> None:
        fill_queue(store, range(3_000))
        move_to_wake_list(store, 3)

        count = queue.move((record for record in reversed(queue) if record.args[0] % 2 == 0), to="other")

        assert count == 1_500
        assert numbers(reversed(Queue("other"))) == list(range(0, 3_000, 2))
        assert numbers(reversed(queue)) == list(range(1, 3_000, 2))
        assert {record["queue"] for record in Queue("other")} == {"other"}
        assert {each.name for each in Queue.all()} == {"default", "other"}

    def test_a_moved_job_keeps_the_bytes_that_it_had(self, queue: Queue, store: Store) -> None:
        raw = b'{"class":"X","queue":"default","args":[1.50,1E5,"\\u00e9"],"jid":"a","unknown":{"k": 1}}'
        store.call("LPUSH", "queue:default", raw, "not json")

        assert queue.move(list(queue), to="other") == 2

        moved = {record.raw for record in Queue("other")}
        assert moved == {raw.replace(b'"queue":"default"', b'"queue":"other"'), b"not json"}

    def test_what_was_fetched_meanwhile_is_not_moved(self, queue: Queue, store: Store) -> None:
        fill_queue(store, range(10))
        records = list(queue)
        pop_jobs(store, 4)

        assert queue.move(records, to="other") == 6

        assert queued_numbers(store, "other") == [9, 8, 7, 6, 5, 4]  # as given, the newest last

    @pytest.mark.parametrize("is_by_hand", [False, True])
    def test_jobs_that_others_have_taken_are_not_looked_for_one_by_one(
        self, queue: Queue, store: Store, is_by_hand: bool
    ) -> None:
        """Redis, which walks through the whole queue for each of them, would do nothing else for seconds."""
        fill_queue(store, range(6_000))
        records = list(reversed(queue))
        pop_jobs(store, 3_000)
        store.call("CONFIG", "RESETSTAT")

        moved = queue.move([JobRecord(each.raw) for each in records] if is_by_hand else records, "other")

        (looks,) = re.findall(rb"cmdstat_lpos:calls=([0-9]+)", store.call("INFO", "commandstats")) or [0]
        assert int(looks) < 100
        assert (moved, len(queue)) == (3_000, 0)
        assert numbers(reversed(Queue("other"))) == list(range(3_000, 6_000))

    def test_jobs_that_others_have_shifted_are_moved_in_order_and_in_a_few_scripts(
        self, queue: Queue, store: Store
    ) -> None:
        fill_queue(store, range(4_000))
        records = list(reversed(queue))[1_500:3_500]
        pop_jobs(store, 1_000)
        store.call("CONFIG", "RESETSTAT")

        assert queue.move(records, to="other") == 2_000

        assert numbers(reversed(Queue("other"))) == list(range(1_500, 3_500))
        calls = int(store.call("INFO", "commandstats").partition(b"cmdstat_evalsha:calls=")[2].partition(b",")[0])
        assert calls < 20

    def test_two_that_move_the_same_jobs_share_them(
        self, queue: Queue, store: Store, redis_server: RedisServer
    ) -> None:
        fill_queue(store, range(5_000))
        counts: list[int] = []

        def move(to: str) -> None:
            mine = Queue("default", store=redis_server.store())
            counts.append(mine.move(mine, to=to))

        threads = [threading.Thread(target=move, args=(to,)) for to in ("left", "right")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

        assert sum(counts) == 5_000
        assert sorted(queued_numbers(store, "left") + queued_numbers(store, "right")) == list(range(5_000))
        assert queued_numbers(store) == []

    def test_jobs_are_moved_while_they_are_fetched_and_each_is_in_one_place(
        self, queue: Queue, store: Store, redis_server: RedisServer
    ) -> None:
        fill_queue(store, range(5_000))
        fetched: list[int] = []

        def take() -> None:
            other = redis_server.store()
            while raws := other.call("RPOP", "queue:default", 3):
                fetched.extend(json.loads(raw)["args"][0] for raw in raws)

        thread = threading.Thread(target=take)
        thread.start()
        moved = queue.move(queue, to="other")
        thread.join(60)

        assert len(queued_numbers(store, "other")) == moved
        assert sorted(queued_numbers(store, "other") + fetched) == list(range(5_000))

    @pytest.mark.parametrize("name", ["", "a b", "x*", "a,b"])
    def test_no_job_is_moved_where_no_worker_could_be_told_to_look(self, queue: Queue, store: Store, name: str) -> None:
        fill_queue(store, range(3))

        with pytest.raises(InvalidPush):
            queue.move(queue, to=name)

        assert len(queue) == 3

    def test_no_job_is_moved_to_where_it_is(self, queue: Queue) -> None:
        with pytest.raises(UsageError):
            queue.move([], to="default")

    def test_a_key_that_is_no_queue_takes_no_job(self, queue: Queue, store: Store) -> None:
        fill_queue(store, range(3))
        store.call("SET", "queue:broken", "x")

        with pytest.raises(RedisRefused, match="WRONGTYPE"):
            queue.move(queue, to="broken")

        assert len(queue) == 3


def test_summaries_tell_of_each_queue_in_two_round_trips(store: Store, setup: Setup) -> None:
    clock = ManualClock(1_000.0)
    store.call("LPUSH", "queue:mailers", job(1, enqueued_at=990.0), job(2))
    move_to_wake_list(store, queue="mailers")
    store.call("SADD", "queues", "mailers", "empty", "broken")
    store.call("SADD", "paused", "empty", "unpushed")
    store.call("SET", "queue:broken", "x")
    store.call("SADD", "processes", "ruby:1:a", "gone:2:b", "odd:3:c")
    store.call("HSET", "ruby:1:a", "info", '{"queues":["mailers","other"]}')
    store.call("HSET", "odd:3:c", "info", '{"capsules":{"a":{"weights":{"mailers":1}},"b":{"weights":5}}}')
    for identity in ("ruby:1:a", "odd:3:c"):
        store.call("EXPIRE", identity, 60)

    first, *others = summaries(clock=clock)
    assert (first.name, first.size) == ("broken", 0)
    assert "WRONGTYPE" in (first.error or "")
    assert others == [
        QueueSummary("empty", 0, 0.0, True, 0),
        QueueSummary("mailers", 2, 10.0, False, 2),
        QueueSummary("unpushed", 0, 0.0, True, 0),
    ]


def test_there_are_no_summaries_where_there_is_nothing(store: Store, setup: Setup) -> None:
    assert summaries() == []


@pytest.mark.full
def test_a_tenth_of_200_000_is_moved_in_its_order(store: Store, queue: Queue) -> None:
    fill_queue(store, range(200_000))

    count = queue.move((record for record in reversed(queue) if record.args[0] % 10 == 0), to="other")

    assert count == 20_000
    assert numbers(reversed(Queue("other"))) == list(range(0, 200_000, 10))
    assert len(queue) == 180_000


@pytest.mark.full
def test_the_newest_of_200_000_are_deleted_as_cheaply_as_the_oldest(store: Store, queue: Queue) -> None:
    fill_queue(store, range(200_000))

    def removing(records: Iterable[JobRecord]) -> float:
        """Return the microseconds that Redis took to close the gaps."""
        store.call("CONFIG", "RESETSTAT")
        assert queue.delete_all(islice(records, 10_000)) == 10_000
        (took,) = re.findall(rb"cmdstat_lrem:calls=[0-9]+,usec=([0-9]+)", store.call("INFO", "commandstats"))
        return float(took)

    oldest, newest = removing(reversed(queue)), removing(iter(queue))

    assert newest < 10 * oldest


def test_jobs_around_a_place_come_with_their_places(store: Store) -> None:
    fill_queue(store, range(10))
    move_to_wake_list(store, 2)
    queue = Queue(store=store)

    around = {place: queue.around(place, 1, 2) for place in (0, 1, 5, 9, 10, 50)}

    assert {place: numbers(jobs) for place, jobs in around.items()} == {
        0: [0, 1, 2],
        1: [0, 1, 2, 3],
        5: [4, 5, 6, 7],
        9: [8, 9],
        10: [9],
        50: [],
    }
    assert [job.place for job in around[5]] == [4, 5, 6, 7]
