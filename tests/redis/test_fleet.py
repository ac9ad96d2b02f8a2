"""The fleet as Redis shows it: processes of ours and of others, their supervisors, and messages that are left there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kiqcluster.control import control_messages, process_registry
from kiqcluster.control.control_messages import MESSAGE_TTL_SECONDS, Message
from kiqcluster.control.process_registry import MAX_PER_ROUND_TRIP
from kiqcluster.store import Store
from tests.fake_supervisor import publish

HERE = "app-1:101:bbbbbbbbbbbb"


def state(supervisor: str, **other: Any) -> str:
    return json.dumps({"supervisor": supervisor, **other})


class TestProcesses:
    def test_a_process_is_read_with_all_that_it_tells(self, store: Store) -> None:
        publish(store, HERE, queues=["default", "low"], busy=3, quiet="true", kiq_cluster=state("app-1:100:a", slots=2))

        (process,) = process_registry.list_processes(store)

        assert (process.identity, process.host, process.pid, process.tag) == (HERE, "app-1", 101, "shop")
        assert (process.queues, process.concurrency, process.busy) == (("default", "low"), 5, 3)
        assert (process.is_quiet, process.rss, process.version) == (True, 40_960_000, "0.1.0")
        assert (process.is_ours, process.supervisor) == (True, "app-1:100:a")
        assert process.cluster == {"supervisor": "app-1:100:a", "slots": 2}

    def test_rubys_processes_are_there_too_and_have_no_supervisor(self, store: Store) -> None:
        publish(store, "rails-1:7:cccccccccccc", labels=[], version="6.4.1")

        (process,) = process_registry.list_processes(store)

        assert (process.is_ours, process.supervisor, process.version) == (False, None, "6.4.1")

    def test_queues_are_read_from_the_capsules_where_there_is_no_list(self, store: Store) -> None:
        publish(store, HERE)
        info = {"capsules": {"a": {"weights": {"x": 1, "y": 0}}, "b": {"weights": {"y": 2}}}, "labels": []}
        store.call("HSET", HERE, "info", json.dumps(info))

        assert process_registry.list_processes(store)[0].queues == ("x", "y")

    def test_the_age_is_by_the_time_that_is_left_and_by_no_clock_of_a_host(self, store: Store) -> None:
        publish(store, HERE, ttl=45, beat=99.0)

        assert 14.9 <= process_registry.list_processes(store)[0].age <= 20

    def test_names_without_a_hash_are_nobody(self, store: Store) -> None:
        publish(store, HERE)
        store.call("SET", "text", "x")
        store.call("HSET", "no-info", "busy", "1")
        store.call("SADD", "processes", "gone:1:a", "text", "no-info", b"\xff\xfe", "")

        assert [process.identity for process in process_registry.list_processes(store)] == [HERE]

    @pytest.mark.parametrize("junk", ["", "x", "{}", "[1]", "null", '{"supervisor":5}', "-1e999", "\x00"])
    def test_odd_values_read_as_nothing_and_hide_nobody(self, store: Store, junk: str) -> None:
        publish(store, HERE)
        for field in ("info", "busy", "quiet", "rss", "beat", "concurrency", "kiq_cluster"):
            store.call("HSET", HERE, field, junk)

        (process,) = process_registry.list_processes(store)

        assert (process.identity, process.busy, process.supervisor) == (HERE, 0, None)
        assert (process.host, process.pid) == ("app-1", 101)

    def test_a_fleet_of_more_than_one_batch_is_read_whole(self, store: Store) -> None:
        names = [f"app-{number}:1:a" for number in range(MAX_PER_ROUND_TRIP + 3)]
        for name in names:
            publish(store, name)

        assert [process.identity for process in process_registry.list_processes(store)] == sorted(names)

    def test_nobody_is_an_empty_list(self, store: Store) -> None:
        assert process_registry.list_processes(store) == []


class TestClusters:
    def test_processes_are_grouped_by_supervisor_the_freshest_first(self, store: Store) -> None:
        publish(store, "b:2:x", ttl=40, kiq_cluster=state("b:1:s"))
        publish(store, "b:3:x", ttl=59, kiq_cluster=state("b:1:s"))
        publish(store, "a:2:x", kiq_cluster=state("a:1:s"))
        publish(store, "rails:1:x", labels=[])

        found = process_registry.group_by_cluster(process_registry.list_processes(store))

        assert [each.supervisor for each in found] == ["a:1:s", "b:1:s"]
        assert [process.identity for process in found[1].processes] == ["b:3:x", "b:2:x"]
        assert [each.host for each in found] == ["a", "b"]

    def test_what_a_cluster_does_is_by_the_process_that_has_beaten_last(self, store: Store) -> None:
        publish(store, "a:2:x", beat=2.0, kiq_cluster=state("a:1:s", slots=2))
        publish(store, "a:3:x", beat=1.0, kiq_cluster=state("a:1:s", slots=1))

        (found,) = process_registry.group_by_cluster(process_registry.list_processes(store))

        assert found.state["slots"] == 2

    def test_newer_news_counts_more_than_a_later_beat(self, store: Store) -> None:
        publish(store, "a:2:x", beat=2.0, kiq_cluster=state("a:1:s", slots=1, at=5.0))
        publish(store, "a:3:x", beat=1.0, kiq_cluster=state("a:1:s", slots=2, at=6.0))

        (found,) = process_registry.group_by_cluster(process_registry.list_processes(store))

        assert found.state["slots"] == 2


class TestStates:
    """The state of a cluster, which each of its processes publishes."""

    def test_a_state_is_fetched_once_for_all_processes_of_a_cluster(self, store: Store) -> None:
        large = state("a:1:s", children=["x" * 40_000], at=5.0)
        for number in range(20):
            publish(store, f"a:{number}:x", kiq_cluster=large)
        before = bytes_sent(store)

        found = process_registry.list_processes(store)

        assert bytes_sent(store) - before < 2 * len(large)
        assert [len(process.cluster["children"][0]) for process in found if process.cluster] == [40_000] * 20

    def test_a_process_that_names_no_supervisor_is_not_asked(self, store: Store) -> None:
        for number in range(20):
            publish(store, f"a:{number}:x", kiq_cluster=state("a:1:s", children=["x" * 40_000]), kiq_supervisor=None)
        before = bytes_sent(store)

        found = process_registry.list_processes(store)

        assert bytes_sent(store) - before < 40_000
        assert [process.supervisor for process in found] == [None] * 20

    @pytest.mark.parametrize("junk", [None, "x", "[]", '{"supervisor":5}'])
    def test_another_process_is_asked_where_the_latest_has_no_state(self, store: Store, junk: str | None) -> None:
        publish(store, "a:2:x", kiq_cluster=state("a:1:s", slots=1, at=5.0))
        publish(store, "a:3:x", kiq_cluster=junk, kiq_supervisor="9.0 a:1:s")
        publish(store, "b:3:x", kiq_cluster=junk, kiq_supervisor="9.0 b:1:s")

        processes = process_registry.list_processes(store)

        (found,) = process_registry.group_by_cluster(processes)
        assert ({each.identity for each in found.processes}, found.state["slots"]) == ({"a:2:x", "a:3:x"}, 1)
        assert processes[2].supervisor is None


def bytes_sent(store: Store) -> int:
    """Return how many bytes the server has sent to anybody, so far."""
    text = store.call("INFO", "stats").decode()
    return int(text.partition("total_net_output_bytes:")[2].split()[0])


class TestMessages:
    MESSAGE = Message("quiet", lease=900.0, by="kiqctl@x", id="1")

    def test_a_message_lies_in_the_list_of_its_process_for_a_minute(self, store: Store) -> None:
        control_messages.send(store, HERE, self.MESSAGE)

        (raw,) = store.call("LRANGE", f"kiq:control:{HERE}", 0, -1)
        assert Message.read(raw) == self.MESSAGE
        assert 0 < store.call("TTL", f"kiq:control:{HERE}") <= MESSAGE_TTL_SECONDS

    def test_messages_are_read_in_order(self, store: Store) -> None:
        for number in "12":
            control_messages.send(store, HERE, Message("quiet", id=number))

        assert Message.read(store.call("LPOP", f"kiq:control:{HERE}")).id == "1"

    def test_one_that_nobody_has_read_can_be_taken_back_once(self, store: Store) -> None:
        other = Message("resume", id="2")
        control_messages.send(store, HERE, self.MESSAGE)
        control_messages.send(store, HERE, other)

        assert control_messages.is_unread(store, HERE, self.MESSAGE)
        assert control_messages.withdraw(store, HERE, self.MESSAGE)
        assert not control_messages.is_unread(store, HERE, self.MESSAGE)
        assert not control_messages.withdraw(store, HERE, self.MESSAGE)
        assert control_messages.is_unread(store, HERE, other)

    def test_one_that_was_read_cannot(self, store: Store) -> None:
        control_messages.send(store, HERE, self.MESSAGE)
        store.call("LPOP", f"kiq:control:{HERE}")

        assert not control_messages.is_unread(store, HERE, self.MESSAGE)
        assert not control_messages.withdraw(store, HERE, self.MESSAGE)
