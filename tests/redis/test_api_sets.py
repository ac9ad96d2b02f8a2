"""Sets through kiqcluster.api: every verb, whoever is faster, and sets of any size while they change."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kiqcluster import Client, Push
from kiqcluster.api import DeadSet, JobSet, RetrySet, ScheduledSet, SortedEntry
from kiqcluster.errors import InvalidArguments, InvalidPush, JobKilled, KiqError, RedisRefused, UsageError
from kiqcluster.process.config import Config
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.payload import INVALID_PAYLOAD, bare, wrap
from kiqcluster.sidekiq.ruby_entries import misfits
from kiqcluster.store import Store
from tests.kit import ManualClock, RedisServer
from tests.stored_jobs import NOW, add_entries, entries, fill_set, job, numbers

KINDS: list[type[JobSet]] = [ScheduledSet, RetrySet, DeadSet]
BUCKET_NAMES = ("schedule", "retry", "dead")


def queued(store: Store, name: str = "default") -> list[bytes]:
    raws: list[bytes] = store.call("LRANGE", f"queue:{name}", 0, -1)
    return raws


def one(job_set: JobSet) -> SortedEntry:
    (entry,) = job_set
    return entry


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
def retries(store: Store, setup: Setup, clock: ManualClock) -> RetrySet:
    return RetrySet(clock=clock)


@pytest.fixture
def deaths(setup: Setup) -> list[tuple[dict[str, Any], Exception]]:
    """What the death handlers are told."""
    deaths: list[tuple[dict[str, Any], Exception]] = []
    setup.death_handler(lambda payload, error: deaths.append((payload, error)))
    return deaths


def misroute(push: Push, proceed: Callable[[], Push | None]) -> Push | None:
    """A client link that sends some jobs to a queue that no key can name."""
    if push.payload.get("astray"):
        push.payload["queue"] = "\ud800"
    return proceed()


class TestLooking:
    @pytest.mark.parametrize(("kind", "key"), [*zip(KINDS, BUCKET_NAMES, strict=True)])
    def test_each_set_is_sidekiqs_of_that_name(self, store: Store, setup: Setup, kind: type[JobSet], key: str) -> None:
        assert list(kind()) == []
        add_entries(store, key, (5.5, job(1)))

        entry = one(kind())

        assert (len(kind()), entry.raw, entry.score, entry.queue) == (1, job(1), 5.5, "default")

    @pytest.mark.parametrize("size", [1, 50, 51, 52, 551, 1_999])
    @pytest.mark.parametrize("score", [None, 7.0])
    def test_iteration_begins_with_the_highest_and_reversed_with_the_lowest(
        self, retries: RetrySet, store: Store, size: int, score: float | None
    ) -> None:
        fill_set(store, "retry", range(size), score)
        expected = [json.loads(raw)["args"][0] for raw in store.call("ZRANGE", "retry", 0, -1)]

        assert numbers(reversed(retries)) == expected
        assert numbers(retries) == expected[::-1]

    @pytest.mark.parametrize(
        ("start", "count", "expected"), [(0, 3, [9, 8, 7]), (8, 5, [1, 0]), (10, 5, []), (-1, 3, []), (0, 0, [])]
    )
    def test_a_page_is_counted_from_the_highest(
        self, retries: RetrySet, store: Store, start: int, count: int, expected: list[int]
    ) -> None:
        fill_set(store, "retry", range(10))

        assert numbers(retries.page(start, count)) == expected

    def test_an_entry_knows_its_time_and_its_name_on_rubys_pages(self, retries: RetrySet, store: Store) -> None:
        add_entries(store, "retry", (1_795_168_740.1958468, job(1)))

        entry = one(retries)

        assert entry.at == datetime(2026, 11, 20, 9, 59, 0, 195847, UTC)
        assert entry.id == "1795168740.1958468|j1"

    @pytest.mark.parametrize("score", ["inf", "-inf", "1e300", "-1e300", "0"])
    def test_a_time_that_no_calendar_has_makes_nothing_raise(self, retries: RetrySet, store: Store, score: str) -> None:
        store.call("ZADD", "retry", score, job(1))

        entry = one(retries)

        assert entry.at.tzinfo is UTC
        assert entry.id.endswith("|j1")
        assert numbers(retries.fetch(float(score))) == [1]

    @pytest.mark.parametrize(
        ("pattern", "found"),
        [
            ("Alpha", {1}),
            ("j1", {1, 10}),
            ('*"j1"*', {1}),
            ('*"j1?"*', {10}),
            ("*j1?*", {1, 10}),
            ("*[BC]eta*", {2}),
            ("héllo", {3}),
            ("back\\\\slash", {4}),
            ("nothing", set()),
            ('"args":[10]', {10}),
            ("what?", {5}),
        ],
    )
    def test_a_scan_takes_a_text_or_a_pattern(
        self, retries: RetrySet, store: Store, pattern: str, found: set[int]
    ) -> None:
        more = {1: "Alpha", 2: "Beta", 3: "héllo", 4: "back\\slash", 5: "what?", 10: "ten"}
        add_entries(store, "retry", *[(NOW, job(number, note=note)) for number, note in more.items()])

        assert set(numbers(retries.scan(pattern))) == found

    def test_a_scan_finds_all_of_a_large_set(self, retries: RetrySet, store: Store) -> None:
        fill_set(store, "retry", range(3_000))

        assert set(numbers(retries.scan("Job"))) == set(range(3_000))

    def test_an_entry_is_found_by_its_id(self, retries: RetrySet, store: Store) -> None:
        fill_set(store, "retry", range(1_200))
        add_entries(store, "retry", (NOW, job(7_000, jid="o*d[?]\\")), (NOW, b"not json j77777"))

        for jid in ("j0", "j1199", "o*d[?]\\"):
            found = retries.find_job(jid)
            assert found is not None
            assert found.jid == jid
        assert retries.find_job("j77777") is None
        assert retries.find_job("j") is None

    @pytest.mark.parametrize("jid", ["é1", 'a"b', "a*", "0-_9"])
    def test_an_id_of_any_characters_is_found(self, retries: RetrySet, store: Store, jid: str) -> None:
        add_entries(store, "retry", (1, json.dumps({"class": "X", "args": [], "jid": jid}).encode()), (2, job(2)))

        found = retries.find_job(jid)

        assert found is not None
        assert found.score == 1

    @pytest.mark.parametrize("verb", ["retry", "add_to_queue"])
    def test_a_queue_that_no_key_can_name_holds_up_no_other(
        self, retries: RetrySet, store: Store, setup: Setup, verb: str
    ) -> None:
        setup.client_middleware.add(misroute)
        add_entries(
            store, "retry", (1, b'{"class":"X","args":[1],"queue":"\\ud800"}'), (2, job(2)), (3, job(3, astray=True))
        )

        assert getattr(retries, verb)(retries) == 3

        assert (
            sorted(json.loads(raw)["queue"] for raw in store.call("LRANGE", "queue:default", 0, -1)) == ["default"] * 3
        )

    def test_entries_are_fetched_by_score_range_and_id(self, retries: RetrySet, store: Store) -> None:
        add_entries(store, "retry", (1.5, job(1)), (2.5, job(2)), (2.5, job(3)), (3.5, job(4)))

        assert numbers(retries.fetch(2.5)) == [2, 3]
        assert numbers(retries.fetch(2.5, "j3")) == [3]
        assert numbers(retries.fetch((1.5, 2.5))) == [1, 2, 3]
        assert numbers(retries.fetch((1.6, float("inf")), "j4")) == [4]
        assert retries.fetch(9) == retries.fetch((3, 2)) == retries.fetch(1.5, "j4") == []

    def test_many_entries_of_one_score_are_fetched(self, retries: RetrySet, store: Store) -> None:
        fill_set(store, "retry", range(1_500), score=2.0)
        add_entries(store, "retry", (1.0, job(5_000)), (3.0, job(6_000)))

        assert sorted(numbers(retries.fetch(2.0))) == list(range(1_500))

    def test_a_key_that_is_no_set_is_refused_in_redis_words(self, retries: RetrySet, store: Store) -> None:
        store.call("SET", "retry", "x")

        for look in (lambda: len(retries), lambda: list(retries), lambda: list(retries.scan("x"))):
            with pytest.raises(RedisRefused, match="WRONGTYPE"):
                look()

    def test_the_shard_of_via_is_looked_at(self, store: Store, setup: Setup, redis_server: RedisServer) -> None:
        shard = Store(redis_server.url, prefix="{shard}")
        add_entries(shard, shard.keys.retry, (NOW, job(1)))

        with Client.via(shard):
            entry = one(RetrySet())
        assert entry.retry()
        assert len(RetrySet()) == 0
        assert shard.call("LLEN", shard.keys.queue("default")) == 1
        shard.close()


class TestRetry:
    def test_a_retried_job_goes_to_its_queue_with_one_retry_fewer(
        self, retries: RetrySet, store: Store, clock: ManualClock
    ) -> None:
        add_entries(store, "retry", (NOW + 99, job(1, queue="mailers", retry_count=3, failed_at=5.5, error_class="E")))

        assert one(retries).retry()

        (raw,) = queued(store, "mailers")
        expected = {"retry_count": 2, "enqueued_at": NOW, "failed_at": 5.5, "error_class": "E", "jid": "j1"}
        assert json.loads(raw).items() >= expected.items()
        assert len(retries) == 0
        assert store.call("SMEMBERS", "queues") == [b"mailers"]

    @pytest.mark.parametrize(("count", "after"), [(0, -1), ("5", "5"), (None, None), (True, True)])
    def test_what_is_no_count_stays(self, retries: RetrySet, store: Store, count: Any, after: Any) -> None:
        add_entries(store, "retry", (NOW, job(1, retry_count=count)))

        one(retries).retry()

        assert json.loads(queued(store)[0])["retry_count"] == after

    def test_the_bytes_that_nobody_changes_stay(self, retries: RetrySet, store: Store) -> None:
        raw = b'{"class":"X","queue":"q","args":[1.50,1E5,"\\u00e9"],"jid":"a","created_at":1.5,"unknown":{"k": 1}}'
        add_entries(store, "retry", (NOW, raw))

        one(retries).retry()

        assert queued(store, "q") == [raw[:-1] + f',"enqueued_at":{NOW}}}'.encode()]

    def test_client_middleware_sees_it_and_may_stop_it(self, retries: RetrySet, store: Store, setup: Setup) -> None:
        @setup.client_middleware.add
        def link(push: Push, proceed: Callable[[], Push | None]) -> Push | None:
            push.payload["seen"] = push.payload["retry_count"]
            return proceed() if push.payload["args"] != [2] else None

        add_entries(store, "retry", (NOW, job(1, retry_count=5)), (NOW, job(2, retry_count=5)))

        assert retries.retry_all() == 2

        assert [json.loads(raw)["seen"] for raw in queued(store)] == [4]
        assert len(retries) == 0

    def test_an_entry_that_a_link_fails_on_stays_and_holds_up_no_other(
        self, retries: RetrySet, store: Store, setup: Setup
    ) -> None:
        @setup.client_middleware.add
        def fail(push: Push, proceed: Callable[[], Push | None]) -> Push | None:
            if push.payload["args"] == [700]:
                raise ValueError("no")
            return proceed()

        fill_set(store, "retry", range(1_200))  # three batches

        with pytest.raises(ValueError, match="no") as caught:
            retries.retry_all()

        assert caught.value.__notes__ == ["1 entries of retry stay, on which middleware failed; 1199 were moved"]
        assert [entry.args for entry in retries] == [[700]]
        assert len(queued(store)) == 1_199

    @pytest.mark.parametrize(
        "entry", [b"\xff\xfe", wrap(b"\xff\xfe", "default", ValueError("x"), NOW)], ids=["as it is", "wrapped"]
    )
    def test_bytes_that_are_no_text_go_back_in_a_form_that_rubys_page_can_show(
        self, store: Store, setup: Setup, entry: bytes
    ) -> None:
        add_entries(store, "dead", (NOW, entry))

        assert one(DeadSet()).retry()

        (pushed,) = queued(store, "default")
        assert bare(pushed) == b"\xff\xfe"

    @pytest.mark.parametrize(
        ("entry", "queue", "kept"),
        [
            (b"not json", "default", b"not json"),
            (b'{"args":[]}', "default", b'{"args":[]}'),
            (b'{"args":[],"queue":"mailers"}', "mailers", b'{"args":[],"queue":"mailers"}'),
            (wrap(b"not json", "mailers", ValueError("x"), NOW), "mailers", b"not json"),
        ],
        ids=["no JSON", "no class", "no class, but a queue", "wrapped text"],
    )
    def test_bytes_that_are_no_job_are_tried_again_as_they_were(
        self, store: Store, setup: Setup, entry: bytes, queue: str, kept: bytes
    ) -> None:
        add_entries(store, "dead", (NOW, entry))

        assert one(DeadSet()).retry()

        (pushed,) = queued(store, queue)
        assert bare(pushed) == kept
        assert len(DeadSet()) == 0

    @pytest.mark.parametrize("raw", [b"123", b"null", b"[]", b'"x"'])
    @pytest.mark.parametrize("is_wrapped", [True, False])
    def test_json_that_is_no_object_lies_in_no_queue_bare(
        self, store: Store, setup: Setup, raw: bytes, is_wrapped: bool
    ) -> None:
        """It would break Ruby's pages, and its workers would lose it."""
        add_entries(store, "dead", (NOW, wrap(raw, "mailers", ValueError("x"), NOW) if is_wrapped else raw))

        assert one(DeadSet()).retry()

        (pushed,) = queued(store, "mailers" if is_wrapped else "default")
        assert bare(pushed) == raw

    def test_a_job_that_only_ruby_could_not_read_is_retried_as_a_job(self, store: Store, setup: Setup) -> None:
        raw = b'{"class":"X","args":["\\ud800"],"jid":"a","queue":"q","retry_count":1}'
        add_entries(store, "dead", (NOW, wrap(raw, "q", ValueError("x"), NOW)))

        assert one(DeadSet()).retry()

        (pushed,) = queued(store, "q")
        assert bare(pushed).startswith(raw.replace(b'"retry_count":1}', b'"retry_count":0'))

    def test_a_job_without_a_queue_goes_to_default(self, retries: RetrySet, store: Store) -> None:
        add_entries(store, "retry", (NOW, b'{"class":"X","args":[],"jid":"a"}'))

        assert one(retries).retry()

        assert json.loads(queued(store)[0])["queue"] == "default"

    def test_adding_to_the_queue_leaves_the_count(self, store: Store, setup: Setup) -> None:
        add_entries(store, "schedule", (NOW, job(1, retry_count=3, at=NOW)))

        assert one(ScheduledSet()).add_to_queue()

        payload = json.loads(queued(store)[0])
        assert payload["retry_count"] == 3
        assert "at" not in payload

    def test_the_oldest_of_a_batch_is_fetched_last_as_its_order_was(self, retries: RetrySet, store: Store) -> None:
        fill_set(store, "retry", range(5))

        retries.retry(reversed(retries))

        assert [json.loads(raw)["args"][0] for raw in reversed(queued(store))] == [0, 1, 2, 3, 4]

    def test_a_queue_that_refuses_its_jobs_keeps_no_other_back(self, retries: RetrySet, store: Store) -> None:
        store.call("SET", "queue:broken", "x")
        add_entries(store, "retry", (NOW, job(1, queue="broken")), (NOW, job(2)))

        with pytest.raises(RedisRefused, match="WRONGTYPE"):
            retries.retry_all()

        assert entries(store, "retry") == {job(1, queue="broken"): NOW}
        assert len(queued(store)) == 1


class TestKill:
    def test_a_killed_job_lies_in_the_dead_set_with_its_bytes(
        self, retries: RetrySet, store: Store, clock: ManualClock, deaths: list[tuple[dict[str, Any], Exception]]
    ) -> None:
        add_entries(store, "retry", (NOW + 99, job(1)))

        assert one(retries).kill()

        assert list(entries(store, "dead")) == [job(1)]
        assert len(retries) == 0
        ((payload, error),) = deaths
        assert payload["jid"] == "j1"
        assert isinstance(error, JobKilled)
        assert isinstance(error, KiqError)

    def test_only_what_was_killed_calls_the_death_handlers(
        self, retries: RetrySet, store: Store, deaths: list[tuple[dict[str, Any], Exception]]
    ) -> None:
        fill_set(store, "retry", range(4))
        entries = list(retries)
        store.call("ZREM", "retry", job(1), job(2))

        assert retries.kill(entries) == 2

        assert {payload["jid"] for payload, _ in deaths} == {"j0", "j3"}

    def test_bytes_that_are_no_job_are_killed_without_the_death_handlers(
        self, retries: RetrySet, store: Store, deaths: list[tuple[dict[str, Any], Exception]]
    ) -> None:
        add_entries(store, "retry", (NOW, b"not json"))

        assert retries.kill_all() == 1

        assert list(entries(store, "dead")) == [b"not json"]
        assert deaths == []

    def test_a_death_handler_that_fails_saves_nobody(self, retries: RetrySet, store: Store, setup: Setup) -> None:
        @setup.death_handler
        def fail(payload: dict[str, Any], error: Exception) -> None:
            raise ValueError("no")

        fill_set(store, "retry", range(2))

        assert retries.kill_all() == 2

    def test_the_dead_set_keeps_its_limits(self, store: Store, setup: Setup, clock: ManualClock) -> None:
        setup.config = Config(dead_max_jobs=100, dead_timeout=1_000.0)
        add_entries(store, "dead", (NOW - 2_000, b"too old"))
        fill_set(store, "retry", range(250))

        assert RetrySet(clock=clock).kill_all() == 250

        dead = entries(store, "dead")
        assert len(dead) == 99  # as Sidekiq: the limit less one
        assert b"too old" not in dead

    def test_what_is_dead_cannot_be_killed(self, store: Store, setup: Setup) -> None:
        add_entries(store, "dead", (NOW, job(1)))

        with pytest.raises(UsageError):
            one(DeadSet()).kill()
        with pytest.raises(UsageError):
            DeadSet().kill_all()

        assert len(DeadSet()) == 1


class TestDeadSet:
    @pytest.mark.parametrize("raw", [job(1), b"not json"])
    def test_bytes_are_buried_as_they_are(self, store: Store, setup: Setup, clock: ManualClock, raw: bytes) -> None:
        DeadSet(clock=clock).bury(raw)

        assert entries(store, "dead") == {raw: NOW}

    def test_a_payload_is_buried_so_that_rubys_pages_show_it(
        self, store: Store, setup: Setup, deaths: list[tuple[dict[str, Any], Exception]]
    ) -> None:
        DeadSet().bury({"class": "X", "args": [1], "jid": "a", "tags": "oops"})

        entry = one(DeadSet())
        assert (entry.display_class, entry["queue"], entry["tags"]) == ("X", "default", "oops")
        assert misfits(json.loads(entry.raw)) == []
        assert [isinstance(error, JobKilled) for _, error in deaths] == [True]

    def test_a_payload_that_json_cannot_store_is_refused(self, store: Store, setup: Setup) -> None:
        with pytest.raises(InvalidArguments, match=r"job\['args'\]\[0\] is inf"):
            DeadSet().bury({"class": "X", "args": [float("inf")], "jid": "a"})

        assert len(DeadSet()) == 0

    def test_what_redis_does_not_take_calls_no_death_handlers(
        self, store: Store, setup: Setup, deaths: list[tuple[dict[str, Any], Exception]]
    ) -> None:
        store.call("SET", "dead", "no set")

        for verb in (lambda: DeadSet().bury(job(1)), DeadSet().trim, DeadSet().clear):
            with pytest.raises(RedisRefused, match="WRONGTYPE"):
                verb()

        assert deaths == []

    def test_trimming_drops_what_is_too_old_or_too_much(self, store: Store, setup: Setup, clock: ManualClock) -> None:
        setup.config = Config(dead_max_jobs=10, dead_timeout=1_000.0)
        add_entries(store, "dead", (NOW - 2_000, b"too old"), *[(NOW - number, job(number)) for number in range(20)])

        assert DeadSet(clock=clock).trim() == 12

        assert sorted(numbers(DeadSet())) == list(range(9))
        assert DeadSet(clock=clock).trim() == 0


class TestReschedule:
    @pytest.mark.parametrize(
        ("at", "score"),
        [
            (NOW + 60, NOW + 60),
            (timedelta(hours=1), NOW + 3_600),
            (datetime(2027, 1, 1, tzinfo=UTC), 1_798_761_600.0),
            (1_000_000_000, 1e9),
        ],
    )
    def test_an_entry_gets_another_time_and_keeps_its_bytes(
        self, retries: RetrySet, store: Store, at: Any, score: float
    ) -> None:
        add_entries(store, "retry", (NOW, job(1)))

        assert one(retries).reschedule(at)

        assert entries(store, "retry") == {job(1): score}

    def test_to_the_time_that_it_has_is_no_failure(self, retries: RetrySet, store: Store) -> None:
        add_entries(store, "retry", (NOW, job(1)))

        assert one(retries).reschedule(NOW)

    @pytest.mark.parametrize(
        "at",
        [
            datetime(2027, 1, 1),  # noqa: DTZ001
            float("nan"),
            float("inf"),
            1_893_456_000_000,
            1e300,
            "noon",
            None,
        ],
    )
    def test_what_is_no_time_is_refused(self, retries: RetrySet, store: Store, at: Any) -> None:
        add_entries(store, "retry", (NOW, job(1)))

        with pytest.raises(InvalidPush):
            one(retries).reschedule(at)

        assert entries(store, "retry") == {job(1): NOW}

    def test_many_are_rescheduled_at_once(self, retries: RetrySet, store: Store) -> None:
        fill_set(store, "retry", range(1_200))

        assert retries.reschedule(retries.scan("Job"), NOW + 9_999) == 1_200

        assert set(entries(store, "retry").values()) == {NOW + 9_999}


VERBS: dict[str, Callable[[SortedEntry], bool]] = {
    "delete": SortedEntry.delete,
    "reschedule": lambda entry: entry.reschedule(NOW + 5),
    "add_to_queue": SortedEntry.add_to_queue,
    "retry": SortedEntry.retry,
    "kill": SortedEntry.kill,
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_says_when_somebody_was_faster_and_changes_nothing(retries: RetrySet, store: Store, verb: str) -> None:
    add_entries(store, "retry", (NOW, job(1)))
    entry = one(retries)
    store.call("ZREM", "retry", job(1))

    assert VERBS[verb](entry) is False

    assert store.call("KEYS", "*") == []


@pytest.mark.parametrize("verb", VERBS)
def test_entries_of_the_same_score_are_told_apart(retries: RetrySet, store: Store, verb: str) -> None:
    add_entries(store, "retry", (NOW, job(1)), (NOW, job(2)), (NOW, job(3)))

    assert VERBS[verb](retries.fetch(NOW, "j2")[0])

    assert numbers(retries.fetch(NOW)) == [1, 3]


@pytest.mark.parametrize(
    ("verb", "where"),
    [("retry_all", "queue:default"), ("add_all_to_queue", "queue:default"), ("kill_all", "dead"), ("delete_all", "")],
)
def test_a_verb_for_all_moves_all(retries: RetrySet, store: Store, verb: str, where: str) -> None:
    fill_set(store, "retry", range(1_700))
    fill_set(store, "schedule", [9])

    assert getattr(retries, verb)() == 1_700

    assert len(retries) == 0
    assert getattr(retries, verb)() == 0
    if where:
        assert store.call("ZCARD" if where == "dead" else "LLEN", where) == 1_700
    assert len(ScheduledSet()) == 1


def test_clearing_says_how_many_there_were(retries: RetrySet, store: Store) -> None:
    fill_set(store, "retry", range(70))

    assert retries.clear() == 70
    assert retries.clear() == 0


def test_two_that_retry_and_kill_all_share_the_jobs(
    retries: RetrySet, store: Store, setup: Setup, redis_server: RedisServer
) -> None:
    fill_set(store, "retry", range(6_000))
    counts: dict[str, int] = {}

    def work(verb: str) -> None:
        counts[verb] = getattr(RetrySet(store=redis_server.store()), verb)()

    threads = [threading.Thread(target=work, args=(verb,)) for verb in ("retry_all", "kill_all")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert sum(counts.values()) == 6_000
    found = [json.loads(raw)["args"][0] for raw in (*queued(store), *entries(store, "dead"))]
    assert sorted(found) == list(range(6_000))
    assert len(retries) == 0


def test_the_class_of_wrapped_bytes_is_shown(store: Store, setup: Setup) -> None:
    add_entries(store, "dead", (NOW, wrap(b"not json", "mailers", ValueError("x"), NOW)))

    assert one(DeadSet()).display_class == INVALID_PAYLOAD


def test_entries_are_found_by_several_scores(store: Store, setup: Setup) -> None:
    fill_set(store, "dead", range(250))
    add_entries(store, "dead", (NOW + 7, job(1_007)))

    found = DeadSet().at_scores([NOW + number for number in range(150)] + [1.5])

    assert sorted(numbers(found)) == [*range(150), 1_007]
