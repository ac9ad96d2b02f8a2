"""Tracing keys, and any others that we know nothing of, survive every step of a job's life byte for byte.

Through real processes: tests/process/test_tracing_keys.py.  Through Ruby: tests/interop/test_tracing.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from kiqcluster import Client, Push, job
from kiqcluster.api import DeadSet, JobSet, Queue, RetrySet, ScheduledSet
from kiqcluster.application.registry import Registry
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.process.metrics import JobMetrics
from kiqcluster.process.runtime import Runtime, Setup
from kiqcluster.sidekiq.outcome import Outcome, Requeue
from kiqcluster.sidekiq.payload import INVALID_PAYLOAD, bare
from kiqcluster.sidekiq.ruby_json import decode
from kiqcluster.store import Store
from kiqcluster.store.engine.engine import Engine
from kiqcluster.store.engine.units import Member, Settlement, Unit
from kiqcluster.store.entry_moves import DeadSetLimits
from kiqcluster.worker.maintenance.poller import Poller
from kiqcluster.worker.run.execution import Execution
from kiqcluster.worker.run.job_run import JobRun
from tests.tracing import SPELT, Spans, instrumented, lost, spelt, traceparent

ME = Member("host:1:aaaaaaaaaaaa", 1, "boot ns 1 2")
CARRIED: dict[str, Any] = decode(b"{" + ",".join(SPELT).encode() + b"}")


class Worker:
    """The parts of a worker that a job passes, taken a step at a time."""

    def __init__(self, store: Store, setup: Setup, registry: Registry) -> None:
        self.store = store
        self.engine = Engine(store, DeadSetLimits(100, 1_000.0))
        self.engine.join(ME)
        runtime = Runtime(Config(), store, setup, Events())
        self.execution = Execution(runtime, registry, JobMetrics(1, list), threading.Event())
        self._poller = Poller(runtime, self.engine, lambda name, error: None)
        self._calls = 0

    def reserve(self) -> Unit:
        self._calls += 1
        with self.store.borrowed() as connection:
            _, reserved = self.engine.exchange(connection, ME, self._calls, {"default": (1, 1)}, [], 1.5)
        assert reserved is not None
        (unit,) = reserved.units
        return unit

    def settle(self, unit: Unit, outcome: Outcome) -> None:
        with self.store.borrowed() as connection:
            self.engine.settle(connection, [Settlement(unit, outcome)], 1.5)

    def work(self) -> None:
        """Run the next job to its end, whatever that is."""
        unit = self.reserve()
        self.settle(unit, self.execution.execute(JobRun(unit, 0.0)))

    def poll(self) -> None:
        """Make everything due, and move it."""
        for name in ("schedule", "retry"):
            for raw in self.store.call("ZRANGE", name, 0, -1):
                self.store.call("ZADD", name, 1.0, raw)
        assert self._poller.poll() > 0


@pytest.fixture
def worker(store: Store, setup: Setup, registry: Registry) -> Worker:
    @job(name="broken")
    def broken() -> None:
        raise ValueError("on purpose")

    return Worker(store, setup, registry)


@pytest.fixture
def the_one(store: Store) -> Callable[[str], bytes]:
    """Return the only payload of a queue or set."""

    def the_one(key: str) -> bytes:
        # A suspect waits in the wake list of its queue.
        if key.startswith("queue:") and not store.call("EXISTS", key):
            key = key.replace("queue:", "kiq:wake:")
        (raw,) = store.call(*(("LRANGE", key) if ":" in key else ("ZRANGE", key)), 0, -1)
        assert isinstance(raw, bytes)
        return raw

    return the_one


TheOne = Callable[[str], bytes]


def carried(raw: bytes) -> dict[str, Any]:
    payload = decode(raw)
    return {key: payload[key] for key in CARRIED}


class TestPush:
    def test_a_push_writes_what_it_was_given(self, store: Store, setup: Setup, the_one: TheOne) -> None:
        Client().push({"class": "X", "args": [], "queue": "q", **CARRIED})

        assert carried(the_one("queue:q")) == CARRIED

    def test_a_bulk_push_writes_it_for_each_job(self, store: Store, setup: Setup) -> None:
        Client().push_bulk({"class": "X", "args": [[1], [2]], "queue": "q", **CARRIED})

        assert [carried(raw) for raw in store.call("LRANGE", "queue:q", 0, -1)] == [CARRIED, CARRIED]

    def test_a_link_sees_it_in_both(self, store: Store, setup: Setup) -> None:
        seen: list[Any] = []

        @setup.client_middleware.add
        def look(push: Push, proceed: Callable[[], Push | None]) -> Push | None:
            seen.append({key: push.payload[key] for key in CARRIED})
            return proceed()

        Client().push({"class": "X", "args": [], "queue": "q", **CARRIED})
        Client().push_bulk({"class": "X", "args": [[1]], "queue": "q", **CARRIED})

        assert seen == [CARRIED, CARRIED]
        assert [carried(raw) for raw in store.call("LRANGE", "queue:q", 0, -1)] == [CARRIED, CARRIED]

    @pytest.mark.parametrize("is_bulk", [False, True])
    def test_a_scheduled_job_has_it_in_the_set_and_in_its_queue(
        self, worker: Worker, the_one: TheOne, is_bulk: bool
    ) -> None:
        item = {"class": "X", "queue": "q", "at": 2e9, **CARRIED}
        if is_bulk:
            Client().push_bulk({**item, "args": [[]]})
        else:
            Client().push({**item, "args": []})
        assert carried(the_one("schedule")) == CARRIED

        worker.poll()

        assert carried(the_one("queue:q")) == CARRIED


class TestStored:
    def test_a_due_job_keeps_its_bytes(self, worker: Worker, store: Store, the_one: TheOne) -> None:
        store.call("ZADD", "schedule", 1, spelt("X", queue='"q"', at="1.5"))

        worker.poll()

        assert lost(the_one("queue:q")) == []

    def test_a_due_job_keeps_its_bytes_where_links_change_others(
        self, worker: Worker, store: Store, setup: Setup, the_one: TheOne
    ) -> None:
        @setup.client_middleware.add
        def mark(push: Push, proceed: Callable[[], Push | None]) -> Push | None:
            push.payload["tenant"] = 7
            return proceed()

        store.call("ZADD", "schedule", 1, spelt("X", queue='"q"'))
        worker.poll()

        assert lost(the_one("queue:q")) == []
        assert decode(the_one("queue:q"))["tenant"] == 7

    def test_many_retries_keep_them(self, worker: Worker, store: Store, the_one: TheOne) -> None:
        store.call("LPUSH", "queue:default", spelt("broken", queue='"default"', retry="5", backtrace="true"))

        for count in range(4):
            worker.work()
            assert lost(the_one("retry")) == []
            assert decode(the_one("retry"))["retry_count"] == count
            worker.poll()
            assert lost(the_one("queue:default")) == []

    @pytest.mark.parametrize(
        ("name", "keys"),
        [
            ("broken", {"retry": "0"}),
            ("broken", {"retry": "1", "retry_count": "0", "failed_at": "1.5"}),
            ("broken", {"args": "[1,2]"}),
        ],
    )
    def test_a_burial_keeps_them(
        self, worker: Worker, store: Store, the_one: TheOne, name: str, keys: dict[str, str]
    ) -> None:
        store.call("LPUSH", "queue:default", spelt(name, **{"queue": '"default"', "retry": "0", **keys}))

        worker.work()

        assert lost(the_one("dead")) == []

    def test_many_deferrals_of_an_unknown_class_keep_them_and_its_burial_too(
        self, worker: Worker, store: Store, the_one: TheOne
    ) -> None:
        store.call("LPUSH", "queue:default", spelt("Nobody", queue='"default"', retry="0"))

        for _ in range(10):
            worker.work()
            assert lost(the_one("schedule")) == []
            worker.poll()
        worker.work()

        assert lost(the_one("dead")) == []

    def test_the_burial_of_what_names_no_class_keeps_them(self, worker: Worker, store: Store, the_one: TheOne) -> None:
        raw = b"{" + ",".join(SPELT).encode() + b',"args":[]}'
        store.call("LPUSH", "queue:default", raw)

        worker.work()

        assert bare(the_one("dead")) == raw

    def test_bytes_that_are_no_job_are_kept_whole(self, worker: Worker, store: Store, the_one: TheOne) -> None:
        raw = b"[" + spelt("X") + b"]"
        store.call("LPUSH", "queue:default", raw)
        worker.work()

        entry = decode(the_one("dead"))

        assert (entry["class"], entry["args"]) == (INVALID_PAYLOAD, [raw.decode()])


class TestGivenBack:
    @pytest.fixture(autouse=True)
    def raw(self, worker: Worker, store: Store) -> bytes:
        raw = spelt("broken", queue='"default"')
        store.call("LPUSH", "queue:default", raw)
        return raw

    def test_a_quiet_process_gives_back_the_very_bytes(self, worker: Worker, raw: bytes, the_one: TheOne) -> None:
        worker.settle(worker.reserve(), Requeue())

        assert the_one("queue:default") == raw

    def test_recovery_gives_back_the_very_bytes_and_the_suspects_run_keeps_them(
        self, worker: Worker, store: Store, raw: bytes, the_one: TheOne
    ) -> None:
        unit = worker.reserve()
        with store.borrowed() as connection:
            worker.engine.recover(connection, ME.identity, [unit.token])
        worker.engine.join(ME)
        assert the_one("queue:default") == raw

        worker.work()

        assert lost(the_one("retry")) == []

    def test_a_forced_stop_counts_and_keeps_them(self, worker: Worker, the_one: TheOne) -> None:
        for count in (1, 2, 3):
            unit = worker.reserve()
            worker.settle(unit, worker.execution.interrupt(JobRun(unit, 0.0)))

            assert lost(the_one("queue:default")) == []
            assert decode(the_one("queue:default"))["interrupted_count"] == count

    def test_the_burial_of_a_killer_keeps_them(self, worker: Worker, the_one: TheOne) -> None:
        unit = worker.reserve()
        unit.deaths = 4

        worker.settle(unit, worker.execution.execute(JobRun(unit, 0.0)))

        assert lost(the_one("dead")) == []


class TestByHand:
    """What kiqcluster.api does with a job: as a web page or kiqctl does."""

    @pytest.mark.parametrize("links", [False, True], ids=["plain", "instrumented"])
    @pytest.mark.parametrize(
        ("job_set", "deed", "key"),
        [
            (ScheduledSet, JobSet.add_to_queue, "queue:q"),
            (RetrySet, JobSet.add_to_queue, "queue:q"),
            (RetrySet, JobSet.retry, "queue:q"),
            (DeadSet, JobSet.retry, "queue:q"),
            (ScheduledSet, JobSet.kill, "dead"),
            (RetrySet, JobSet.kill, "dead"),
            (RetrySet, lambda retries, entries: retries.reschedule(entries, 2e9), "retry"),
        ],
    )
    def test_an_entry_keeps_them(
        self,
        store: Store,
        setup: Setup,
        the_one: TheOne,
        job_set: type[JobSet],
        deed: Callable[[JobSet, Any], int],
        key: str,
        links: bool,
    ) -> None:
        entries = job_set()
        name = {ScheduledSet: "schedule", RetrySet: "retry", DeadSet: "dead"}[job_set]
        store.call("ZADD", name, time.time(), spelt("X", queue='"q"', retry_count="1", failed_at="1.5"))

        with instrumented() if links else nullcontext():
            assert deed(entries, list(entries)) == 1

        assert lost(the_one(key)) == []

    def test_a_job_that_moves_to_another_queue_keeps_them(self, store: Store, setup: Setup, the_one: TheOne) -> None:
        store.call("LPUSH", "queue:q", spelt("X", queue='"q"'))

        queue = Queue("q")
        assert queue.move(list(queue), to="elsewhere") == 1

        assert lost(the_one("queue:elsewhere")) == []

    def test_a_payload_that_is_buried_by_hand_keeps_them(self, store: Store, setup: Setup, the_one: TheOne) -> None:
        DeadSet().bury(spelt("X", queue='"q"'))

        assert lost(the_one("dead")) == []


class TestInstrumented:
    """The application's links run again whenever a job is enqueued again: the first push stays its origin."""

    @pytest.fixture
    def spans(self, worker: Worker) -> Iterator[Spans]:
        with instrumented() as spans:
            yield spans

    def test_a_job_that_another_producer_pushed_keeps_its_origin(
        self, worker: Worker, store: Store, spans: Spans, the_one: TheOne
    ) -> None:
        store.call("LPUSH", "queue:default", spelt("broken", queue='"default"', retry="5"))

        for _ in range(3):
            worker.work()
            worker.poll()

        assert lost(the_one("queue:default")) == []
        assert [span.name for span in spans.all()] == ["default process"] * 3

    def test_a_job_that_was_scheduled_here_keeps_its_origin(
        self, worker: Worker, store: Store, spans: Spans, the_one: TheOne
    ) -> None:
        Client().push({"class": "broken", "args": [], "at": 2e9})
        before = decode(the_one("schedule"))["traceparent"]

        worker.poll()
        worker.work()
        worker.poll()

        assert decode(the_one("queue:default"))["traceparent"] == before
        (link,) = spans.one("default process").links
        assert traceparent(link.context) == before == traceparent(spans.one("default publish").context)

    def test_a_job_without_an_origin_gets_one_when_it_becomes_due(
        self, worker: Worker, store: Store, spans: Spans, the_one: TheOne
    ) -> None:
        store.call("ZADD", "schedule", 1, '{"class":"X","queue":"q","args":[1.50],"jid":"a"}')

        worker.poll()

        assert decode(the_one("queue:q"))["traceparent"] == traceparent(spans.one("q publish").context)
        assert b"[1.50]" in the_one("queue:q")
