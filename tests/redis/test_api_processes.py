"""Processes and the jobs that they run, as Redis shows them; and what they are asked to do, through Redis."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from kiqcluster.api import Process, ProcessSet, Stats, WorkSet
from kiqcluster.api.queues import summaries
from kiqcluster.control import process_registry
from kiqcluster.control.control_messages import Message
from kiqcluster.control.fleet import read_fleet
from kiqcluster.control.process_registry import MAX_PER_ROUND_TRIP, Capsule
from kiqcluster.errors import RedisRefused, UsageError
from kiqcluster.sidekiq import ruby_json
from kiqcluster.store import Store
from tests.fake_supervisor import publish
from tests.kit import RedisServer

OURS, RUBYS = "app-1:101:bbbbbbbbbbbb", "rails-1:7:cccccccccccc"
BEYOND_DIGITS = 10**5_000  # an integer of which str() makes no text
CRITICAL = {"critical": 3, "default": 2, "mailers": 0, "cronjob:tidy": 0}
# What Ruby's Sidekiq tells of one and the same process, version by version.
COMMON: dict[str, Any] = {
    "hostname": "vm",
    "started_at": 1_795_174_712.25,
    "pid": 28_194,
    "tag": "golden",
    "queues": list(CRITICAL),
    "labels": ["blue"],
    "identity": RUBYS,
}
OLD = {**COMMON, "concurrency": 4}  # 6.4.1
WITH_WEIGHTS = {**OLD, "weights": [CRITICAL], "version": "7.3.10", "embedded": False}
WITH_CAPSULES = {
    **COMMON,
    "capsules": {"default": {"concurrency": 4, "mode": "weighted", "weights": CRITICAL}},
    "weights": [CRITICAL],
    "version": "8.1.7",
    "embedded": False,
}


def register(store: Store, identity: str, info: dict[str, Any], **fields: Any) -> None:
    """Have a process show that tells this of itself."""
    publish(store, identity, **fields)
    store.call("HSET", identity, "info", ruby_json.encode(info))
    if "concurrency" in info:  # until 8.1.1 nowhere else
        store.call("HDEL", identity, "concurrency")
    else:
        store.call("HSET", identity, "concurrency", 4)


def only(store: Store) -> Process:
    (process,) = ProcessSet(store=store)
    return process


class TestReading:
    @pytest.mark.parametrize(
        ("info", "capsule"),
        [
            (OLD, Capsule("default", 4, "", dict.fromkeys(CRITICAL, 1))),
            ({**OLD, "weights": CRITICAL}, Capsule("default", 4, "weighted", CRITICAL)),
            (WITH_WEIGHTS, Capsule("default", 4, "weighted", CRITICAL)),
            (WITH_CAPSULES, Capsule("default", 4, "weighted", CRITICAL)),
        ],
        ids=["6.4.1", "7.0.2", "7.3.10", "8.1.7"],
    )
    def test_rubys_process_reads_alike_whatever_its_version(
        self, store: Store, info: dict[str, Any], capsule: Capsule
    ) -> None:
        register(store, RUBYS, info, busy=1, rss=28_684, rtt_us=43, beat=1_795_174_732.75)

        process = only(store)

        assert (process.identity, process.host, process.pid, process.tag) == (RUBYS, "vm", 28_194, "golden")
        assert (process.concurrency, process.busy, process.rss, process.rtt_us) == (4, 1, 28_684 * 1_024, 43)
        assert (process.is_ours, process.is_quiet, process.is_embedded) == (False, False, False)
        assert (process.started_at, process.beat, process.labels) == (1_795_174_712.25, 1_795_174_732.75, ("blue",))
        assert process.queues == tuple(CRITICAL)
        assert process.capsules == (capsule,)

    def test_several_capsules_are_told_apart(self, store: Store) -> None:
        capsules = {
            "default": {"concurrency": 3, "mode": "random", "weights": {"a": 1}},
            "unsafe": {"concurrency": 1, "mode": "strict", "weights": {"b": 0}},
        }
        register(store, RUBYS, {**COMMON, "capsules": capsules})
        assert only(store).capsules == (
            Capsule("default", 3, "random", {"a": 1}),
            Capsule("unsafe", 1, "strict", {"b": 0}),
        )

        register(store, RUBYS, {**OLD, "weights": [{"a": 1}, {"b": 0}]})
        assert only(store).capsules == (Capsule("default", 0, "random", {"a": 1}), Capsule("2", 0, "strict", {"b": 0}))

    @pytest.mark.parametrize(
        "odd",
        [
            {"capsules": 5, "weights": "x", "queues": "default", "labels": 1, "started_at": "now"},
            {"capsules": {"a": None, "b": {"weights": [1], "concurrency": "many", "mode": 5}}},
            {"weights": [None, 7]},
            dict.fromkeys(("hostname", "tag", "version"), BEYOND_DIGITS),
            {"queues": [BEYOND_DIGITS], "labels": [[BEYOND_DIGITS]]},
        ],
    )
    def test_what_is_odd_in_it_breaks_nothing(self, store: Store, odd: dict[str, Any]) -> None:
        register(store, RUBYS, {**COMMON, **odd}, rtt_us="long", rss="much")

        process = only(store)

        assert (process.rtt_us, process.rss) == (0, 0)
        assert all(capsule.weights == {} or capsule.mode == "" for capsule in process.capsules)


class TestProcessSet:
    def test_it_knows_everybody_and_what_they_add_up_to(self, store: Store) -> None:
        publish(store, OURS, rss=1_000)
        publish(store, RUBYS, rss=500, labels=[])

        processes = ProcessSet(store=store)

        assert [each.identity for each in processes] == [OURS, RUBYS]
        assert (len(processes), processes.total_concurrency, processes.total_rss) == (2, 10, 1_500 * 1_024)
        assert processes[RUBYS].host == "rails-1"
        assert OURS in processes
        assert processes[OURS] in processes
        assert "nobody" not in processes
        with pytest.raises(KeyError):
            processes["nobody"]

    def test_nobody_is_nobody(self, store: Store) -> None:
        processes = ProcessSet(store=store)

        assert (len(processes), list(processes), processes.total_rss, processes.leader) == (0, [], 0, None)

    def test_the_leader_is_that_of_sidekiq_enterprise(self, store: Store) -> None:
        store.call("SET", "dear-leader", RUBYS)

        assert ProcessSet(store=store).leader == RUBYS

    def test_cleanup_drops_who_is_gone_about_once_a_minute(self, store: Store) -> None:
        publish(store, OURS)
        gone = [f"gone:{number}:x" for number in range(MAX_PER_ROUND_TRIP + 1)]
        store.call("SADD", "processes", *gone, b"\xff")

        assert ProcessSet(store=store).cleanup() == MAX_PER_ROUND_TRIP + 2
        assert store.call("SMEMBERS", "processes") == [OURS.encode()]
        assert 0 < store.call("TTL", "process_cleanup") <= 60

        store.call("SADD", "processes", *gone)
        assert ProcessSet(store=store).cleanup() == 0

    def test_data_without_an_expiry_is_no_process_to_any_reader(self, store: Store) -> None:
        """It was copied; no worker may be left that gives it one."""
        publish(store, OURS, queues=["default"])
        publish(store, RUBYS, queues=["rubys"], busy=3)
        store.call("SADD", "queues", "rubys")
        store.call("PERSIST", RUBYS)

        for _ in range(2):
            assert [each.identity for each in ProcessSet(store=store)] == [OURS]
            assert (Stats(store=store).processes_size, Stats(store=store).workers_size) == (1, 0)
            assert [each.processes for each in summaries(store=store)] == [0]
            assert read_fleet(store).queues == {"default"}
            process_registry.drop_expired(store)

    def test_a_process_whose_data_has_lost_its_expiry_is_dropped(self, store: Store) -> None:
        """A copy of the data without TTLs would keep it for ever."""
        publish(store, OURS, ttl=30)
        publish(store, RUBYS)
        store.call("PERSIST", RUBYS)
        store.call("SADD", "processes", "queue:default")  # anybody may have written it
        store.call("LPUSH", "queue:default", "job")

        assert process_registry.drop_expired(store) == 2

        assert store.call("SMEMBERS", "processes") == [OURS.encode()]
        assert 0 < store.call("TTL", RUBYS) <= 60
        assert 0 < store.call("TTL", OURS) <= 30
        assert store.call("TTL", "queue:default") == -1

    def test_the_fleet_drops_who_is_gone_also_without_memory(self, own_server: RedisServer) -> None:
        store = own_server.store()
        publish(store, OURS)
        store.call("SADD", "processes", "gone:1:x")
        store.call("CONFIG", "SET", "maxmemory", 1)

        assert process_registry.drop_expired(store) == 1
        assert store.call("SMEMBERS", "processes") == [OURS.encode()]


class TestAsking:
    @pytest.mark.parametrize("action", ["quiet", "resume", "stop", "dump"])
    def test_ours_are_left_a_message_for_that_one_process(self, store: Store, action: str) -> None:
        publish(store, OURS)

        getattr(only(store), action)()

        key = store.keys.control(OURS)
        message = Message.read(store.call("LPOP", key))
        assert (message.action, message.scope, message.lease) == (action, "process", None)
        assert message.id

    def test_a_quiet_of_ours_can_have_a_lease(self, store: Store) -> None:
        publish(store, OURS)

        only(store).quiet(lease=90)

        assert Message.read(store.call("LPOP", store.keys.control(OURS))).lease == 90.0

    @pytest.mark.parametrize("lease", [-1, math.inf, math.nan, 1e10])
    def test_a_lease_that_it_would_not_understand_is_refused(self, store: Store, lease: float) -> None:
        publish(store, OURS)

        with pytest.raises(UsageError, match="lease"):
            only(store).quiet(lease)

        assert store.call("EXISTS", store.keys.control(OURS)) == 0

    @pytest.mark.parametrize("identity", [OURS, RUBYS])
    def test_a_request_that_redis_does_not_take_raises(self, store: Store, identity: str) -> None:
        publish(store, identity)
        for key in (store.keys.control(identity), store.keys.signals(identity)):
            store.call("SET", key, "no list")

        with pytest.raises(RedisRefused, match="WRONGTYPE"):
            only(store).stop()

    @pytest.mark.parametrize(("action", "signal"), [("quiet", b"TSTP"), ("stop", b"TERM"), ("dump", b"TTIN")])
    def test_rubys_are_left_a_signal(self, store: Store, action: str, signal: bytes) -> None:
        register(store, RUBYS, WITH_WEIGHTS)

        getattr(only(store), action)()

        assert store.call("LRANGE", f"{RUBYS}-signals", 0, -1) == [signal]
        assert 0 < store.call("TTL", f"{RUBYS}-signals") <= 60

    def test_what_ruby_cannot_do_is_refused_with_the_reason(self, store: Store) -> None:
        register(store, RUBYS, WITH_WEIGHTS)
        process = only(store)

        with pytest.raises(UsageError, match="cannot end a quiet"):
            process.resume()
        with pytest.raises(UsageError, match="stays so"):
            process.quiet(lease=60)
        assert store.call("KEYS", "*-signals") == []

    @pytest.mark.parametrize("action", ["quiet", "stop", "dump"])
    def test_one_inside_of_another_program_is_left_alone(self, store: Store, action: str) -> None:
        register(store, RUBYS, {**WITH_WEIGHTS, "embedded": True})

        with pytest.raises(UsageError, match="inside of another program"):
            getattr(only(store), action)()


JOB = '{"class":"Shop::Slow","jid":"28422a20b74694150972242f","args":[60],"queue":"mailers","retry":true}'


def work(**other: Any) -> str:
    return json.dumps({"queue": "mailers", "payload": JOB, "run_at": 1_795_174_779, **other})


class TestWorkSet:
    @pytest.mark.parametrize("key", ["work", "workers"], ids=["since 6.4.2", "6.4.1"])
    def test_a_running_job_is_read_from_either_hash(self, store: Store, key: str) -> None:
        register(store, RUBYS, OLD, busy=1)
        store.call("HSET", f"{RUBYS}:{key}", "l1u", work())

        (found,) = WorkSet(store=store)

        assert (found.identity, found.tid, found.queue, found.run_at) == (RUBYS, "l1u", "mailers", 1_795_174_779.0)
        assert (found.job.name, found.job.args, found.job.raw) == ("Shop::Slow", [60], JOB.encode())
        assert WorkSet(store=store).size == 1

    def test_a_job_in_both_hashes_runs_once(self, store: Store) -> None:
        """Ours write both, for Sidekiq of any age."""
        publish(store, OURS)
        for key in ("work", "workers"):
            store.call("HSET", f"{OURS}:{key}", "0", work())

        assert [each.tid for each in WorkSet(store=store)] == ["0"]

    def test_those_that_run_longest_come_first(self, store: Store) -> None:
        publish(store, OURS)
        publish(store, RUBYS)
        store.call("HSET", f"{OURS}:work", "0", work(run_at=300), "1", work(run_at=100))
        store.call("HSET", f"{RUBYS}:work", "0", work(run_at=200.5))

        assert [each.run_at for each in WorkSet(store=store)] == [100, 200.5, 300]

    def test_a_list_of_them_reads_the_processes_once(self, store: Store) -> None:
        """list() asks for a length as well, if there is one."""
        publish(store, OURS)
        store.call("CONFIG", "RESETSTAT")

        list(WorkSet(store=store))

        assert b"cmdstat_smembers:calls=1," in store.call("INFO", "commandstats")

    def test_its_size_is_what_the_processes_count(self, store: Store) -> None:
        """The heartbeat shows a job a little later than it counts it, and the other way round."""
        publish(store, OURS, busy=3)
        publish(store, RUBYS, busy=2)

        assert (WorkSet(store=store).size, list(WorkSet(store=store))) == (5, [])

    @pytest.mark.parametrize("busy", ["-1", "1e23", "9" * 23, "nan", "x"])
    def test_a_count_that_is_none_is_left_out(self, store: Store, busy: str) -> None:
        publish(store, OURS, busy=busy)
        publish(store, RUBYS, busy=2)

        assert (WorkSet(store=store).size, list(WorkSet(store=store))) == (2, [])

    def test_a_job_is_found_by_its_jid(self, store: Store) -> None:
        publish(store, OURS)
        store.call("HSET", f"{OURS}:work", "0", work(payload='{"class":"A","jid":"other"}'), "1", work())

        found = WorkSet(store=store).find_work("28422a20b74694150972242f")

        assert found is not None
        assert found.tid == "1"
        assert WorkSet(store=store).find_work("nowhere") is None

    def test_what_cannot_be_read_hides_no_other_job(self, store: Store) -> None:
        publish(store, OURS)
        publish(store, RUBYS)
        odd = [
            *("1", "no JSON", "2", "[]", "3", work(payload=None), "4", work(payload={"class": "Object"})),
            *("5", work(payload="no job"), "6", work(run_at="now", queue=7), b"\xff", work(run_at=None)),
            *("8", '{"payload":{"class":"Far","args":[1e400]}}', "9", work(run_at=10**400)),
        ]
        store.call("HSET", f"{OURS}:work", *odd, "7", work())
        store.call("SET", f"{RUBYS}:work", "text")
        store.call("HSET", f"{RUBYS}:workers", "0", work())

        found = {each.tid: (each.job.name, each.queue, each.run_at) for each in WorkSet(store=store)}

        assert found["7"] == found["0"] == ("Shop::Slow", "mailers", 1_795_174_779.0)
        assert found["4"][0] == "Object"
        assert found["6"] == found["9"] == ("Shop::Slow", "mailers", 0.0)
        assert found["8"][0] == "Far"
        assert "1" not in found
        assert len(found) == 9

    def test_more_processes_than_fit_into_a_round_trip_are_all_asked(self, store: Store) -> None:
        identities = [f"app-1:{number}:x" for number in range(1, MAX_PER_ROUND_TRIP + 20)]
        store.call("SADD", "processes", *identities)
        store.pipeline([("HSET", f"{identity}:work", "0", work()) for identity in identities])

        assert {each.identity for each in WorkSet(store=store)} == set(identities)
