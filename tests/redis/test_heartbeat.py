"""The heartbeat: what a beat writes and reads, and when it marks the units of its process uncertain."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from kiqcluster.control import control_messages, process_registry
from kiqcluster.control.control_messages import Message
from kiqcluster.ctl.exporter.gauges import Gauges
from kiqcluster.errors import RedisRefused, RedisUnavailable
from kiqcluster.features.strikes import MAX_STRIKE_BYTES, MAX_STRIKES
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.process.runtime import Runtime, Setup
from kiqcluster.sidekiq import ruby_json
from kiqcluster.store import Store
from kiqcluster.store.engine.units import Unit
from kiqcluster.worker.fleet_checks import json_doubt
from kiqcluster.worker.heartbeat import BEATS_PER_CHECK, Heartbeat, HeartbeatCallbacks
from kiqcluster.worker.process_entry import MAX_SHOWN_BYTES, MAX_SHOWN_QUEUES, Status
from kiqcluster.worker.run.job_run import JobRun
from tests.kit import TIMEOUT_SECONDS, ManualClock, wait_until

IDENTITY = "host:1:abc"
PAYLOAD = b'{"class":"X","queue":"default","args":[],"jid":"a"}'


class Bench:
    """A heartbeat that beats when it is told to, and what it tells its surroundings."""

    def __init__(self, store: Store, setup: Setup) -> None:
        self.store = store
        self.identity = IDENTITY
        self.running: dict[str, JobRun] = {}
        self.names: list[str] = []
        self.queues = {"default": 1}
        self.on_names: Callable[[Sequence[str]], object] = self._learn
        self.times_uncertain = 0
        self.heard: list[str | Message] = []
        self.cancelled: list[tuple[Sequence[str], Sequence[str], str]] = []
        self.strikes: list[tuple[Mapping[bytes, bytes], str]] = []
        self.failures: list[Exception] = []  # of what is due at a beat; the first one that is left is raised
        self.events: list[str] = []
        self.crashes: list[Exception] = []
        self.clock = ManualClock(SystemClock.now())
        status = Status(
            identity=lambda: self.identity,
            running=lambda: self.running,
            busy=lambda: len(self.running),
            is_quiet=lambda: False,
            queues=lambda: (self.queues, "random"),
            concurrency=3,
            tag="",
        )
        events = Events()
        events.listen(lambda event, fields: self.events.append(event))
        runtime = Runtime(Config(), store, setup, events, self.clock)
        callbacks = HeartbeatCallbacks(
            on_signal=self.heard.append,
            on_message=self.heard.append,
            on_names=lambda names: self.on_names(names),
            on_strikes=lambda raw, why: self.strikes.append((raw, why)),
            on_cancelled=lambda *told: self.cancelled.append(told),
            on_uncertain=self._mark_uncertain,
            on_beat=self._fail,
        )
        self.heartbeat = Heartbeat(runtime, status, callbacks, lambda name, error: self.crashes.append(error))

    def _fail(self) -> None:
        if self.failures:
            raise self.failures.pop(0)

    def _learn(self, names: object) -> None:
        self.names = list(names)  # type: ignore[call-overload]

    def _mark_uncertain(self) -> None:
        self.times_uncertain += 1

    def beat(self, times: int = 1) -> None:
        for _ in range(times):
            self.heartbeat.beat()

    def cluster(self) -> Any:
        """Return what is published of the supervisor."""
        raw = self.store.call("HGET", self.store.keys.process(self.identity), "kiq_cluster")
        return None if raw is None else ruby_json.decode(raw)

    def field(self, name: str) -> Any:
        return self.store.call("HGET", self.store.keys.process(self.identity), name)

    def commands(self) -> dict[str, int]:
        """Return command → how often the server ran it, so far; but INFO."""
        text = self.store.call("INFO", "commandstats").decode()
        counts = {name: int(calls) for name, calls in re.findall(r"cmdstat_([^:]+):calls=(\d+)", text)}
        return {name: count for name, count in counts.items() if name != "info"}


@pytest.fixture
def bench(store: Store, setup: Setup) -> Iterator[Bench]:
    bench = Bench(store, setup)
    yield bench
    bench.heartbeat.stop()
    bench.heartbeat.join(TIMEOUT_SECONDS)


@pytest.fixture
def listening(bench: Bench) -> Bench:
    """One whose thread runs, and waits: by its clock, which stands still, the next beat is never due."""
    bench.heartbeat.start()
    wait_until(lambda: b"cmd=blpop" in bench.store.call("CLIENT", "LIST"), "the heartbeat to listen")
    return bench


def test_a_process_is_found_before_its_first_beat_which_is_then_no_reason_to_doubt(bench: Bench, setup: Setup) -> None:
    heartbeats: list[str] = []
    setup.hooks.on("heartbeat")(lambda: heartbeats.append("heartbeat"))

    bench.heartbeat.announce()
    (found,) = process_registry.list_processes(bench.store)
    bench.beat(2)

    assert (found.identity, list(found.queues)) == (IDENTITY, list(bench.queues))
    assert (heartbeats, bench.times_uncertain) == (["heartbeat"], 0)


def test_a_beat_without_work_asks_for_no_more_than_it_must(bench: Bench) -> None:
    bench.beat(2)
    before = bench.commands()

    bench.beat()

    sent = {name: count - before.get(name, 0) for name, count in bench.commands().items()}
    assert {name: count for name, count in sent.items() if count} == {
        **dict.fromkeys(("evalsha", "hset", "expire", "sadd", "time", "hlen", "sscan"), 1),
        "zrange": 2,  # cancelled jobs and batches
    }


def test_a_beat_brings_the_strikes_that_redis_holds(bench: Bench) -> None:
    bench.beat()
    bench.store.call("HSET", bench.store.keys.strikes, "3fa9c1", "{}")
    bench.beat()
    bench.store.call("SET", bench.store.keys.strikes, "of another type")
    bench.beat()

    assert [raw for raw, _ in bench.strikes] == [{}, {b"3fa9c1": b"{}"}, {}]
    assert [bool(why) for _, why in bench.strikes] == [False, False, True]
    assert bench.crashes == []


def test_a_beat_reads_no_more_strikes_than_there_may_be_however_many_somebody_wrote(bench: Bench) -> None:
    bench.store.call("HSET", bench.store.keys.strikes, *(word for number in range(5_000) for word in (number, "{}")))
    bench.beat(2)
    (first, why), (again, _) = bench.strikes
    bench.store.call("DEL", bench.store.keys.strikes)
    bench.store.call("HSET", bench.store.keys.strikes, "large", b"x" * (MAX_STRIKE_BYTES + 1), "small", "{}")
    bench.beat()

    assert MAX_STRIKES <= len(first) <= 2 * MAX_STRIKES
    assert first == again
    assert "5000" in why
    assert bench.strikes[-1] == ({b"large": b"", b"small": b"{}"}, "")


def test_a_server_without_memory_shows_workers_and_takes_messages_for_them(listening: Bench, setup: Setup) -> None:
    store, refusals = listening.store, list[str]()
    setup.error_handlers.append(lambda error, context: refusals.append(f"{context['context']}: {error}"))
    running = {f"k{number}": JobRun(Unit("default", PAYLOAD, "1", IDENTITY), 5.0) for number in range(600)}
    store.call("CONFIG", "SET", "maxmemory", 1)
    try:
        store.call("DEL", store.keys.process(IDENTITY), store.keys.processes)
        listening.running = running
        listening.heartbeat.beat_soon()
        wait_until(lambda: process_registry.list_processes(store), "the process to be shown")
        assert store.call("HLEN", store.keys.work(IDENTITY)) == len(running)

        for _ in range(BEATS_PER_CHECK):
            listening.clock.time += 1
            listening.heartbeat.beat_soon()
            wait_until(
                lambda: listening.field("beat") == repr(listening.clock.time).encode(), "the process to beat again"
            )
        control_messages.send(store, IDENTITY, Message("dump", id="a"))
        wait_until(lambda: listening.heard, "the message to be heard")
        assert refusals == []
    finally:
        store.call("CONFIG", "SET", "maxmemory", 0)


def test_what_redis_refuses_a_beat_is_reported_once_until_it_agrees(
    bench: Bench, setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.heartbeat, "pause", lambda seconds: True)
    reported: list[str] = []
    setup.error_handlers.append(lambda error, context: reported.append(f"{context['context']}: {error}"))
    bench.failures = [RedisRefused("OOM no memory")] * 50 + [RedisRefused("NOPERM no key")] * 50

    bench.heartbeat.start()

    wait_until(lambda: b"cmd=blpop" in bench.store.call("CLIENT", "LIST"), "the heartbeat to be through")
    assert bench.failures == []
    assert reported == ["heartbeat: OOM no memory", "heartbeat: NOPERM no key"]
    bench.failures = [RedisRefused("NOPERM no key")]
    bench.heartbeat.beat_soon()
    wait_until(lambda: len(reported) == 3, "the refusal to be reported again")


def test_a_running_job_with_a_large_payload_is_shown_without_its_arguments(bench: Bench, store: Store) -> None:
    large = PAYLOAD.replace(b"[]", b'["' + b"x" * MAX_SHOWN_BYTES + b'"]')
    bench.running = {"k9x2": JobRun(Unit("default", large, "1.1.1", IDENTITY), bench.clock.now())}

    bench.beat()

    shown = store.call("HGET", store.keys.work(IDENTITY), "k9x2")
    assert len(shown) < 1_000
    payload = ruby_json.decode(ruby_json.decode(shown)["payload"])
    assert (payload["class"], payload["jid"], payload["args"]) == ("X", "a", [f"({len(large)} bytes, not shown)"])


def test_what_a_process_is_is_sent_when_it_changes_and_now_and_then(bench: Bench, store: Store) -> None:
    def info_after_a_beat() -> bytes | None:
        store.call("HDEL", store.keys.process(IDENTITY), "info")
        bench.beat()
        found: bytes | None = store.call("HGET", store.keys.process(IDENTITY), "info")
        return found

    shown = [info_after_a_beat() is not None for _ in range(BEATS_PER_CHECK + 1)]
    assert shown == [True, *[False] * (BEATS_PER_CHECK - 1), True]

    bench.queues = {"default": 1, "mailers": 1}
    assert b"mailers" in (info_after_a_beat() or b"")

    store.call("DEL", store.keys.process(IDENTITY))  # it has expired
    bench.beat()
    assert b"mailers" in store.call("HGET", store.keys.process(IDENTITY), "info")
    (process,) = process_registry.list_processes(store)
    assert process.queues == ("default", "mailers")


def test_a_process_of_very_many_queues_names_some_and_tells_how_many_it_omits(bench: Bench, store: Store) -> None:
    bench.queues = {f"tenant-{number}": 1 for number in range(100_000)}

    bench.beat()

    assert len(store.call("HGET", store.keys.process(IDENTITY), "info")) < 100_000
    (process,) = process_registry.list_processes(store)
    assert (len(process.queues), process.omitted_queues) == (MAX_SHOWN_QUEUES, 100_000 - MAX_SHOWN_QUEUES)
    store.call("SADD", store.keys.queues, "tenant-99999")  # it listens to this one, and does not say so
    families = {family.name: family for family in Gauges(store).read(bench.clock.now())}
    unlistened = {sample.labels["name"]: sample.value for sample in families["kiqcluster_queue_unlistened"].samples}
    assert not unlistened["tenant-99999"]


def test_running_jobs_are_shown_while_they_run_and_not_afterwards(bench: Bench, store: Store) -> None:
    shown = [store.keys.work(IDENTITY), store.keys.workers(IDENTITY)]
    bench.running = {"k9x2": JobRun(Unit("default", PAYLOAD, "1", IDENTITY), 5.0)}
    bench.beat(2)

    assert [store.call("HKEYS", key) for key in shown] == [[b"k9x2"]] * 2
    assert all(0 < store.call("TTL", key) <= 60 for key in shown)
    assert store.call("HGET", store.keys.process(IDENTITY), "busy") == b"1"

    bench.running = {}
    bench.beat()

    assert [store.call("EXISTS", key) for key in shown] == [0, 0]
    assert store.call("HGET", store.keys.process(IDENTITY), "busy") == b"0"


def test_a_process_that_was_dropped_from_the_registry_is_back_at_the_next_beat(bench: Bench, store: Store) -> None:
    bench.beat()
    store.call("SREM", store.keys.processes, IDENTITY)

    bench.beat()

    assert store.call("SMEMBERS", store.keys.processes) == [IDENTITY.encode()]


def test_the_queue_names_in_redis_are_told_at_each_beat(bench: Bench, store: Store) -> None:
    bench.beat()
    store.call("SADD", store.keys.queues, "new")

    bench.beat()

    assert bench.names == ["new"]


def test_nothing_is_doubted_on_one_connection_while_redis_holds_nothing_for_us(bench: Bench) -> None:
    bench.beat(2 * BEATS_PER_CHECK + 1)

    assert bench.times_uncertain == 0


def test_a_new_connection_is_reason_to_doubt_for_it_may_lead_to_another_server(bench: Bench, store: Store) -> None:
    bench.beat(2)

    bench.heartbeat._connection.close()
    bench.beat(2)

    assert bench.times_uncertain == 1


def test_units_that_redis_holds_for_us_are_checked_every_few_beats(bench: Bench, store: Store) -> None:
    store.call("HSET", store.keys.inflight(IDENTITY), "00000001.0000000001.00001:default", "{}")

    bench.beat(BEATS_PER_CHECK)
    before = bench.times_uncertain
    bench.beat(BEATS_PER_CHECK)

    assert (before, bench.times_uncertain) == (0, 1)


def test_whoever_has_vanished_from_the_registry_doubts_its_membership(bench: Bench, store: Store) -> None:
    bench.beat(2)
    store.call("DEL", store.keys.process(IDENTITY))  # as after a minute without a beat

    bench.beat()

    assert bench.times_uncertain == 1


def test_a_new_identity_takes_the_old_one_off_the_registry_and_doubts_nothing(bench: Bench, store: Store) -> None:
    bench.beat()

    bench.identity = "host:1:def"
    bench.beat()

    assert store.call("SMEMBERS", store.keys.processes) == [b"host:1:def"]
    assert store.call("EXISTS", store.keys.process(IDENTITY)) == 0
    assert bench.times_uncertain == 0


# what the supervisor is doing


def test_what_the_supervisor_does_is_published_with_each_beat(bench: Bench) -> None:
    bench.beat()
    assert bench.cluster() is None

    bench.heartbeat.publish_cluster({"supervisor": "host:9:a", "lease_remaining": None})
    bench.beat()
    bench.store.call("DEL", bench.store.keys.process(IDENTITY))
    bench.beat()

    assert bench.cluster() == {"supervisor": "host:9:a", "lease_remaining": None}
    assert bench.field("kiq_supervisor") == b"0.0 host:9:a"


def test_a_lease_runs_down_between_the_supervisors_words(bench: Bench) -> None:
    bench.heartbeat.publish_cluster({"supervisor": "host:9:a", "lease_remaining": 20.0})

    bench.clock.time += 8
    bench.beat()
    assert bench.cluster()["lease_remaining"] == 12.0
    bench.clock.time += 13
    bench.beat()

    assert bench.cluster()["lease_remaining"] == 0.0


def test_the_first_word_of_the_supervisor_is_no_reason_to_doubt(bench: Bench) -> None:
    """It is a new field of a hash that is there: the process has not vanished meanwhile."""
    bench.beat(2)
    bench.heartbeat.publish_cluster({"supervisor": "host:9:a"})

    bench.beat()

    assert bench.times_uncertain == 0


def test_news_is_published_at_once(listening: Bench) -> None:
    listening.heartbeat.publish_cluster({"supervisor": "host:9:a", "slots": 2})
    wait_until(lambda: listening.cluster() == {"supervisor": "host:9:a", "slots": 2}, "the news to be there")

    listening.heartbeat.publish_cluster({"supervisor": "host:9:a", "slots": 3})

    wait_until(lambda: listening.cluster()["slots"] == 3, "the later news to be there")
    assert listening.times_uncertain == 0


def test_a_lease_that_runs_down_is_no_news(listening: Bench) -> None:
    listening.heartbeat.publish_cluster({"supervisor": "host:9:a", "lease_remaining": 20.0})
    wait_until(listening.cluster, "the first word to be there")
    before = listening.commands()["hset"]

    listening.heartbeat.publish_cluster({"supervisor": "host:9:a", "lease_remaining": 10.0})
    control_messages.send(listening.store, IDENTITY, Message("dump", id="after it"))
    wait_until(lambda: listening.heard, "what came after it to be heard")

    assert listening.commands()["hset"] == before


def test_whoever_rings_has_a_beat_at_once(listening: Bench, store: Store) -> None:
    listening.running = {"k9x2": JobRun(Unit("default", PAYLOAD, "1", IDENTITY), 5.0)}

    listening.heartbeat.beat_soon()

    wait_until(lambda: store.call("HGET", store.keys.process(IDENTITY), "busy") == b"1", "the beat")


# listening


def test_messages_and_signals_are_heard_while_it_waits(listening: Bench, store: Store) -> None:
    control_messages.send(store, IDENTITY, Message("quiet", scope="process", lease=5.0, by="me", id="1"))
    wait_until(lambda: len(listening.heard) == 1, "the message to be heard")
    store.call("LPUSH", store.keys.signals(IDENTITY), "TSTP")
    wait_until(lambda: len(listening.heard) == 2, "the signal to be heard")

    assert listening.heard == [Message("quiet", scope="process", lease=5.0, by="me", id="1"), "TSTP"]


def test_a_new_identity_hears_its_messages_at_once(listening: Bench, store: Store) -> None:
    """Others have recovered this process, and it has joined again; its next beat is up to ten seconds away."""
    listening.identity = "host:1:def"

    listening.heartbeat.beat_soon()
    control_messages.send(store, listening.identity, Message("quiet", scope="process", lease=5.0, by="me", id="1"))
    wait_until(lambda: listening.heard, "the message to be heard")

    assert store.call("SMEMBERS", store.keys.processes) == [b"host:1:def"]


def test_a_message_about_cancelled_jobs_has_the_marks_read_at_once(listening: Bench, store: Store) -> None:
    wait_until(lambda: listening.cancelled, "the first beat")
    listening.cancelled.clear()
    store.call("ZADD", store.keys.cancelled, 1, "a", 2, "b")
    store.call("ZADD", store.keys.batches_cancelled, 1, "t")

    control_messages.send(store, IDENTITY, Message("cancel", scope="process"))
    wait_until(lambda: listening.cancelled, "the marks to be read")

    assert (listening.cancelled[0], listening.heard) == ((["a", "b"], ["t"], ""), [])


def test_a_beat_reads_which_jobs_and_batches_are_cancelled(bench: Bench, store: Store) -> None:
    store.call("ZADD", store.keys.cancelled, 1, "a")
    store.call("ZADD", store.keys.batches_cancelled, 1, "t", 2, "u")

    bench.heartbeat.beat()

    assert bench.cancelled == [(["a"], ["u", "t"], "")]


@pytest.mark.parametrize("broken", ["kiq:cancelled", "kiq:batches:cancelled"])
def test_marks_that_nobody_can_read_are_reported_and_stop_no_beat(bench: Bench, store: Store, broken: str) -> None:
    for key in (store.keys.cancelled, store.keys.batches_cancelled):
        store.call(*(("SET", key, "no zset") if key == broken else ("ZADD", key, 1, "a")))

    bench.heartbeat.beat()

    ((jids, batches, why),) = bench.cancelled
    assert ([*jids, *batches], why.split()[0]) == (["a"], "WRONGTYPE")
    assert broken in why


def test_a_message_has_the_marks_read_that_can_be(listening: Bench, store: Store) -> None:
    wait_until(lambda: listening.cancelled, "the first beat")
    listening.cancelled.clear()
    store.call("SET", store.keys.cancelled, "no zset")
    store.call("ZADD", store.keys.batches_cancelled, 1, "t")

    control_messages.send(store, IDENTITY, Message("cancel", scope="process"))
    wait_until(lambda: listening.cancelled, "the marks to be read")

    jids, batches, why = listening.cancelled[0]
    assert (list(jids), list(batches), why.split()[0]) == ([], ["t"], "WRONGTYPE")


def test_a_beat_that_fails_while_it_listens_leaves_it_in_step_and_listening(listening: Bench, store: Store) -> None:
    listening.failures.append(RedisUnavailable("away for a moment"))
    listening.heartbeat.beat_soon()
    wait_until(lambda: not listening.failures, "the beat to fail")

    control_messages.send(store, IDENTITY, Message("dump", id="after it"))
    wait_until(lambda: listening.heard or listening.crashes, "the message to be heard")

    assert listening.heard == [Message("dump", id="after it")]
    assert listening.crashes == []


def test_what_was_sent_together_is_heard_in_order(listening: Bench, store: Store) -> None:
    messages = [Message("quiet", id=str(number)) for number in range(20)]
    store.call("RPUSH", store.keys.control(IDENTITY), *(message.encode() for message in messages))

    wait_until(lambda: len(listening.heard) == 20, "all messages to be heard")

    assert listening.heard == messages


@pytest.mark.parametrize("junk", [b"", b"TSTP", b"\xff", b"[]", b'{"action":"explode"}', b"{" * 100_000])
def test_what_is_no_message_is_dropped_and_the_next_one_heard(listening: Bench, store: Store, junk: bytes) -> None:
    store.call("RPUSH", store.keys.control(IDENTITY), junk, Message("resume").encode())

    wait_until(lambda: listening.heard, "the message behind it to be heard")

    assert listening.heard == [Message("resume")]
    assert listening.events == ["control_malformed"]
    assert listening.heartbeat.is_alive


def test_a_heartbeat_that_is_stopped_takes_no_message_any_more(listening: Bench, store: Store) -> None:
    listening.heartbeat.stop()
    assert listening.heartbeat.join(TIMEOUT_SECONDS)

    control_messages.send(store, IDENTITY, Message("quiet"))

    assert store.call("LLEN", store.keys.control(IDENTITY)) == 1
    assert listening.heard == []


def test_a_set_of_queue_names_that_is_none_stops_no_beat(bench: Bench, store: Store) -> None:
    store.call("SET", store.keys.queues, "no set")

    bench.beat(2)

    assert store.call("SISMEMBER", store.keys.processes, IDENTITY) == 1


def test_a_clock_that_differs_from_redis_is_said_once_until_they_agree_again(bench: Bench, store: Store) -> None:
    seconds, microseconds = map(int, store.call("TIME"))
    now = seconds + microseconds / 1e6

    for offset in (0.0, 25.0, 3_600.0, 3_601.0, 0.0, -45.0, -50.0):
        bench.clock.time = now + offset
        bench.beat()

    assert bench.events.count("clock_skewed") == 2


@pytest.mark.parametrize(
    ("version", "labels", "warnings"),
    [
        ("6.4.1", [], 1),
        ("7.3.10", [], 0),
        ("8.1.7", [], 0),
        ("6.4.1", ["kiqcluster"], 0),
        (None, [], 0),
        ("odd", [], 0),
    ],
)
def test_a_ruby_process_whose_json_contradicts_the_setting_is_said_once(
    bench: Bench, store: Store, version: str | None, labels: list[str], warnings: int
) -> None:
    store.call("SADD", store.keys.processes, "ruby:1:x")
    store.call("HSET", store.keys.process("ruby:1:x"), "info", ruby_json.encode({"version": version, "labels": labels}))
    store.call("EXPIRE", store.keys.process("ruby:1:x"), 60)

    bench.beat(2 * BEATS_PER_CHECK)

    assert bench.events.count("ruby_json_doubtful") == warnings


@pytest.mark.parametrize(
    ("sidekiq", "setting", "wrong"),
    [
        *(("8.1.7", "2.6", True), ("8.0.9", "2.6", False), ("7.3.10", "2.6", False), ("6.4.1", "2.6", False)),
        *(("8.1.7", "2.12", False), ("7.0.0", "2.12", False), ("6.5.12", "2.12", True), ("10.0", "2.6", True)),
    ],
)
def test_which_sidekiq_contradicts_which_form_of_floats(sidekiq: str, setting: str, *, wrong: bool) -> None:
    assert json_doubt(sidekiq, setting, is_declared=True) == ("ruby_json_doubtful" if wrong else "")


@pytest.mark.parametrize(
    ("sidekiq", "is_declared", "event"),
    [
        *(("7.3.2", False, "ruby_json_undeclared"), ("8.0.9", False, "ruby_json_undeclared"), ("7.3.2", True, "")),
        *(("8.1.7", False, ""), ("6.4.1", False, "ruby_json_doubtful"), ("", False, "")),
    ],
)
def test_a_sidekiq_that_may_have_either_form_asks_for_the_setting(sidekiq: str, is_declared: bool, event: str) -> None:
    assert json_doubt(sidekiq, "2.12", is_declared=is_declared) == event


def test_a_setting_that_nobody_has_made_beside_such_a_sidekiq_is_said_once(bench: Bench, store: Store) -> None:
    store.call("SADD", store.keys.processes, "ruby:1:x")
    info = ruby_json.encode({"version": "7.3.2", "labels": []})
    store.call("HSET", store.keys.process("ruby:1:x"), "info", info)
    store.call("EXPIRE", store.keys.process("ruby:1:x"), 60)

    bench.beat(2 * BEATS_PER_CHECK)

    assert bench.events.count("ruby_json_undeclared") == 1
