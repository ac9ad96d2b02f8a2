"""Batches: each way by which a job can end, and what its batch says then."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from threading import Barrier, Thread
from typing import Any

import pytest

from kiqcluster import Interrupted, job
from kiqcluster.api import DeadSet, DroppedSet, Queue, RetrySet
from kiqcluster.application.registry import Registry
from kiqcluster.batches import Batch, NormalFailure, current_batch
from kiqcluster.errors import BatchEnded, InvalidPush, UsageError
from kiqcluster.features.stacks import current_stacks
from kiqcluster.features.strikes import STRIKES, Strike
from kiqcluster.job import JobFunction
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.job_context import current_job
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.outcome import Dead, Deferred, Discard, Done, Dropped, Outcome, Parked, Retry
from kiqcluster.sidekiq.ruby_json import decode, encode
from kiqcluster.store import Store
from kiqcluster.store.engine.units import Unit
from kiqcluster.worker.run.job_run import JobRun
from tests.in_process_worker import Worker
from tests.kit import TIMEOUT_SECONDS


@pytest.fixture
def worker(store: Store, setup: Setup, registry: Registry) -> Worker:
    return Worker(store, setup, registry)


@pytest.fixture
def row(worker: Worker) -> JobFunction[..., Any]:
    """A job that does what the test says: by `worker.during`."""

    @job
    def handle_row(number: int) -> None:
        worker.during(number)

    return handle_row


@pytest.fixture
def callbacks(worker: Worker) -> dict[str, Any]:
    """One job for each callback, in a queue of its own."""

    @job(queue="callbacks", name="completed")
    def completed(batch: str) -> None: ...

    @job(queue="callbacks", name="succeeded")
    def succeeded(batch: str) -> None: ...

    @job(queue="callbacks", name="died")
    def died(batch: str) -> None: ...

    return {"on_complete": completed, "on_success": succeeded, "on_death": died}


def raising(error: BaseException) -> Callable[..., object]:
    def run(*_: object) -> None:
        raise error

    return run


def counts(batch: Batch) -> dict[str, int]:
    """Return how many jobs are in each status that a job is in."""
    status = batch.status()
    found = {name: getattr(status, name) for name in ("enqueue", "working", "finish", "failed", "error")}
    assert sum(found.values()) == status.total
    return {name: count for name, count in found.items() if count}


def pushed(store: Store) -> list[str]:
    """Return the callbacks that were pushed, the first one first."""
    return [decode(raw)["class"] for raw in reversed(store.call("LRANGE", "queue:callbacks", 0, -1))]


class TestCreate:
    def test_a_batch_has_an_event_for_each_job_that_it_has_enqueued(
        self, row: JobFunction[..., Any], store: Store
    ) -> None:
        batch = Batch.create("import", row, [[1], [2], [3]])

        queued = [decode(raw) for raw in store.call("LRANGE", "queue:default", 0, -1)]
        assert [payload["args"] for payload in reversed(queued)] == [[1], [2], [3]]
        assert {(payload["task_id"], payload["use_task_event"]) for payload in queued} == {(batch.id, True)}
        assert {one.jid: one.params for one in batch.jobs()} == {each["jid"]: each["args"] for each in queued}
        status = batch.status()
        assert (status.name, status.worker, status.total, status.expected) == ("import", "handle_row", 3, 3)
        assert (status.state, status.percent, status.is_open) == ("running", 0.0, False)

    def test_many_jobs_are_pushed_in_order(self, row: JobFunction[..., Any], store: Store) -> None:
        batch = Batch.create("import", row, [[number] for number in range(2_345)])

        found = [decode(raw)["args"][0] for raw in reversed(store.call("LRANGE", "queue:default", 0, -1))]
        assert found == list(range(2_345))
        assert counts(batch) == {"enqueue": 2_345}
        assert len({batch_job.jid for batch_job in batch.jobs("enqueue")}) == 2_345

    def test_an_empty_batch_is_complete_at_once(
        self, row: JobFunction[..., Any], callbacks: dict[str, Any], store: Store
    ) -> None:
        batch = Batch.create("import", row, [], **callbacks)

        assert (batch.status().state, batch.status().percent) == ("succeeded", 100.0)
        assert pushed(store) == ["completed", "succeeded"]

    def test_nothing_is_written_when_a_row_does_not_fit(self, row: JobFunction[..., Any], store: Store) -> None:
        with pytest.raises(TypeError, match="entry 1"):
            Batch.create("import", row, [[1], [1, 2]])

        assert store.call("KEYS", "kiq:batch*") == [] == store.call("KEYS", "queue:*")

    def test_a_creation_that_redis_has_ended_says_so_and_can_be_closed(
        self, row: JobFunction[..., Any], store: Store, worker: Worker
    ) -> None:
        """The first queue takes its jobs, the second one is no list."""
        store.call("SET", "queue:broken", "x")
        store_push = row.set(queue="broken")
        with pytest.raises(Exception, match="WRONGTYPE"), Batch.open("import") as batch:
            batch.add(row, [[1]])
            batch.add(store_push, [[2]])

        assert (batch.status().state, counts(batch)) == ("open", {"enqueue": 1})
        worker.run()
        assert not batch.status().is_complete
        batch.close()
        assert batch.status().state == "succeeded"

    def test_large_and_encrypted_arguments_are_not_kept_in_the_event(self, worker: Worker, setup: Setup) -> None:
        setup.configure(encryption={"keys": f"1:{b64encode(bytes(32)).decode()}"})

        @job(encrypt=True)
        def secret(word: str) -> None: ...

        @job
        def large(word: str) -> None: ...

        (hidden,) = Batch.create("a", secret, [["password"]]).jobs()
        (long,) = Batch.create("b", large, [["x" * 2_000]]).jobs()
        assert (hidden.params, long.params) == (None, None)

    def test_a_job_that_is_not_defined_here_needs_a_queue(self, worker: Worker, store: Store) -> None:
        with pytest.raises(UsageError, match="queue"):
            Batch.create("import", "HardWorker", [[1]])

        batch = Batch.create("import", "HardWorker", [[1]], queue="ruby")

        (payload,) = map(decode, store.call("LRANGE", "queue:ruby", 0, -1))
        assert (payload["class"], payload["task_id"]) == ("HardWorker", batch.id)

    def test_a_deduplicated_push_that_is_refused_is_not_counted(self, worker: Worker, store: Store) -> None:
        @job(deduplicate="until_executed")
        def once(number: int) -> None: ...

        with Batch.open("import") as batch:
            first, second, third = batch.add(once, [[1], [1], [2]])

        assert (second, None not in (first, third)) == (None, True)
        assert counts(batch) == {"enqueue": 2}

    @pytest.mark.parametrize("why", ["duplicates", "middleware"])
    def test_a_batch_of_whose_rows_none_is_enqueued_does_not_succeed(
        self, why: str, worker: Worker, callbacks: dict[str, Any], store: Store, setup: Setup
    ) -> None:
        @job(deduplicate="until_executed")
        def once(number: int) -> None: ...

        once.perform_bulk([[1], [2]])
        with Batch.open("parent", on_success=callbacks["on_death"]) as parent:
            if why == "middleware":
                setup.client_middleware.add(lambda push, go_on: go_on() if push.payload["class"] != "once" else None)

            batch = Batch.create("import", once, [[1], [2]], parent=parent, **callbacks)

        status = batch.status()
        assert (status.total, status.expected, status.state, status.is_complete) == (0, 2, "cancelled", True)
        assert status.reason
        assert parent.status().state == "complete"
        assert pushed(store) == ["completed"]

    def test_a_batch_does_not_wait_for_a_row_that_waits_elsewhere(self, worker: Worker, store: Store) -> None:
        @job(deduplicate="until_executed")
        def once(number: int) -> None: ...

        once.perform_async(1)
        batch = Batch.create("import", once, [[1], [2]])
        status = batch.status()
        assert (status.total, status.expected, status.state) == (1, 2, "running")

        worker.run()
        assert batch.status().state == "running"
        worker.run()
        assert batch.status().state == "succeeded"

    def test_a_batch_lives_for_its_time(self, row: JobFunction[..., Any], store: Store, worker: Worker) -> None:
        batch = Batch.create("import", row, [[1]], ttl=1_000, kept=100)

        assert 900 < store.call("TTL", store.keys.batch(batch.id)) <= 1_000
        worker.run()
        assert 90 < store.call("TTL", store.keys.batch(batch.id)) <= 100

    def test_the_youngest_are_listed_first_and_expired_ones_are_not(
        self, row: JobFunction[..., Any], store: Store
    ) -> None:
        first, second, third = (Batch.create(name, row, [[1]]) for name in ("a", "b", "c"))
        store.call("DEL", store.keys.batch(second.id))

        assert [status.id for status in Batch.all()] == [third.id, first.id]
        assert Batch.count() == 3

    def test_its_callbacks_its_children_and_a_page_of_its_failures_are_told(
        self, row: JobFunction[..., Any], worker: Worker, callbacks: dict[str, Any]
    ) -> None:
        batch = Batch.create("import", row, [[number] for number in range(5)], **callbacks)
        children = [Batch.create(name, row, [[9]], parent=batch) for name in ("a", "b")]
        worker.during = raising(NormalFailure("no name"))
        for _ in range(5):
            worker.run()

        parts = batch.parts(1, 3)

        assert {event: queue for event, (queue, _) in parts.callbacks.items()} == dict.fromkeys(callbacks, "callbacks")
        assert decode(parts.callbacks["on_death"][1])["class"] == "died"
        assert {each.id for each in parts.children} == {each.id for each in children}
        assert (parts.child_count, parts.failed) == (2, 5)
        assert [(each.params, each.status, each.messages) for each in parts.failures] == [
            ([number], "failed", ("no name",)) for number in (3, 2, 1)
        ]


class TestStatus:
    def test_a_job_is_working_and_then_finished(self, row: JobFunction[..., Any], worker: Worker) -> None:
        batch = Batch.create("import", row, [[1], [2]])
        seen: list[dict[str, int]] = []
        worker.during = lambda _: seen.append(counts(batch))

        worker.run()

        assert seen == [{"working": 1, "enqueue": 1}]
        assert (counts(batch), batch.status().percent) == ({"finish": 1, "enqueue": 1}, 50.0)

    def test_a_normal_failure_is_failed_and_neither_retried_nor_counted(
        self, row: JobFunction[..., Any], worker: Worker, store: Store, callbacks: dict[str, Any]
    ) -> None:
        batch = Batch.create("import", row, [[7]], **callbacks)
        worker.during = raising(NormalFailure("row 7 has no name"))

        assert isinstance(worker.run(), Done)

        (batch_job,) = batch.status().failures
        assert (batch_job.status, batch_job.params, batch_job.messages) == ("failed", [7], ("row 7 has no name",))
        assert (counts(batch), batch.status().state) == ({"failed": 1}, "complete")
        assert (store.call("GET", "stat:processed"), store.call("GET", "stat:failed")) == (b"1", None)
        assert pushed(store) == ["completed"]

    def test_an_error_goes_back_to_enqueue_until_the_job_is_dead(
        self, worker: Worker, store: Store, callbacks: dict[str, Any]
    ) -> None:
        @job(retry=1)
        def broken(number: int) -> None:
            raise ValueError(f"try {number}")

        batch = Batch.create("import", broken, [[1]], **callbacks)

        assert isinstance(worker.run(), Retry)
        assert counts(batch) == {"enqueue": 1}
        RetrySet(store=store).add_all_to_queue()
        assert isinstance(worker.run(), Dead)

        (batch_job,) = batch.status().failures
        assert (batch_job.status, batch_job.messages) == ("error", ("ValueError: try 1", "ValueError: try 1"))
        assert pushed(store) == ["died", "completed"]

    def test_a_job_without_retries_ends_as_error(self, worker: Worker) -> None:
        @job(retry=False)
        def broken(number: int) -> None:
            raise ValueError("no")

        batch = Batch.create("import", broken, [[1]])

        assert isinstance(worker.run(), Discard)
        assert [batch_job.messages for batch_job in batch.status().failures] == [("ValueError: no",)]

    def test_a_dead_job_that_is_retried_by_hand_finishes_after_all(
        self, worker: Worker, store: Store, callbacks: dict[str, Any]
    ) -> None:
        """The callbacks for the end and the death were pushed; success comes now, and each only once."""
        fails = [True]

        @job(retry=0)
        def broken(number: int) -> None:
            if fails[0]:
                raise ValueError("no")

        batch = Batch.create("import", broken, [[1]], **callbacks)
        worker.run()
        fails[0] = False

        DeadSet(store=store).retry_all()
        assert counts(batch) == {"error": 1}
        worker.run()

        assert (counts(batch), batch.status().state, batch.status().failures) == ({"finish": 1}, "succeeded", ())
        assert pushed(store) == ["died", "completed", "succeeded"]

    def test_a_job_that_dies_once_more_changes_nothing(
        self, worker: Worker, store: Store, callbacks: dict[str, Any]
    ) -> None:
        @job(retry=0)
        def broken(number: int) -> None:
            raise ValueError("no")

        batch = Batch.create("import", broken, [[1]], **callbacks)
        worker.run()
        DeadSet(store=store).retry_all()
        worker.run()

        assert (counts(batch), pushed(store)) == ({"error": 1}, ["died", "completed"])

    @pytest.mark.parametrize("by", ["delete", "kill"])
    def test_a_retry_that_is_deleted_or_killed_by_hand_is_an_error(self, by: str, worker: Worker, store: Store) -> None:
        @job(retry=3)
        def broken(number: int) -> None:
            raise ValueError("no")

        batch = Batch.create("import", broken, [[1]])
        worker.run()

        (entry,) = RetrySet(store=store)
        assert getattr(entry, by)()

        (batch_job,) = batch.status().failures
        assert (batch_job.status, "by hand" in batch_job.messages[-1]) == ("error", True)
        assert batch.status().is_complete

    def test_a_job_that_is_deleted_from_its_queue_is_an_error(
        self, row: JobFunction[..., Any], store: Store, worker: Worker
    ) -> None:
        batch = Batch.create("import", row, [[1], [2]])

        queue = Queue("default", store=store)
        assert queue.delete_all([record for record in queue if record.args == [1]]) == 1
        worker.run()

        assert (counts(batch), batch.status().failures[0].messages) == ({"error": 1, "finish": 1}, ("deleted by hand",))

    def test_a_dead_job_that_is_deleted_stays_an_error(self, worker: Worker, store: Store) -> None:
        @job(retry=0)
        def broken(number: int) -> None:
            raise ValueError("no")

        batch = Batch.create("import", broken, [[1]])
        worker.run()
        before = batch.status().failures
        for entry in DeadSet(store=store):
            entry.delete()

        assert (counts(batch), batch.status().failures) == ({"error": 1}, before)

    def test_an_expired_job_is_an_error_with_the_reason(
        self, row: JobFunction[..., Any], worker: Worker, store: Store
    ) -> None:
        batch = Batch.create("import", row.set(expires_in=60), [[1]])
        payload = decode(store.call("RPOP", "queue:default"))
        store.call("LPUSH", "queue:default", encode({**payload, "expiry": 1.5}))

        assert isinstance(worker.run(), Dropped)
        assert batch.status().failures[0].messages == ("dropped by expiry",)

    def test_a_job_that_a_strike_drops_is_an_error_and_one_that_it_defers_waits(
        self, row: JobFunction[..., Any], worker: Worker
    ) -> None:
        batch = Batch.create("import", row, [[1], [2]])
        for action in ("drop", "defer"):
            strike = Strike("1", "handle_row", action, 9e9)
            STRIKES.apply({b"1": strike.encoded()})
            current_stacks().run.ask_again()
            worker.run()
        STRIKES.apply({})
        current_stacks().run.ask_again()

        assert counts(batch) == {"error": 1, "enqueue": 1}
        assert batch.status().failures[0].messages == ("dropped by strike:1",)

    def test_a_parked_job_waits(self, worker: Worker) -> None:
        @job(concurrency_limit=lambda: -1)
        def limited(number: int) -> None: ...

        batch = Batch.create("import", limited, [[1]])

        assert isinstance(worker.run(), Parked)
        assert counts(batch) == {"enqueue": 1}

    def test_a_job_that_gives_up_its_place_waits(self, row: JobFunction[..., Any], worker: Worker) -> None:
        batch = Batch.create("import", row, [[1]])
        worker.during = raising(Interrupted())

        assert isinstance(worker.run(), Deferred)
        assert counts(batch) == {"enqueue": 1}

    def test_a_job_of_an_unknown_class_waits_and_then_is_an_error(self, worker: Worker, store: Store) -> None:
        batch = Batch.create("import", "Nobody", [[1]], queue="default")
        assert isinstance(worker.run(), Deferred)
        assert counts(batch) == {"enqueue": 1}

        (raw,) = store.call("ZRANGE", "schedule", 0, -1)
        store.call("LPUSH", "queue:default", encode({**decode(raw), "deferred_count": 99, "retry": 0}))
        assert isinstance(worker.run(), Dead)

        assert "UnknownJob" in batch.status().failures[0].messages[0]

    def test_a_payload_that_is_not_a_job_is_an_error(
        self, row: JobFunction[..., Any], worker: Worker, store: Store
    ) -> None:
        batch = Batch.create("import", row, [[1]])
        payload = decode(store.call("RPOP", "queue:default"))
        store.call("LPUSH", "queue:default", encode({**payload, "args": "no list"}))

        assert isinstance(worker.run(), Dead)

        assert "MalformedPayload" in batch.status().failures[0].messages[0]

    def test_a_job_that_cannot_be_decrypted_is_an_error(self, worker: Worker, store: Store, setup: Setup) -> None:
        setup.configure(encryption={"keys": f"1:{b64encode(bytes(32)).decode()}"})

        @job(encrypt=True)
        def secret(word: str) -> None: ...

        batch = Batch.create("import", secret, [["password"]])
        payload = decode(store.call("RPOP", "queue:default"))
        store.call("LPUSH", "queue:default", encode({**payload, "args": ["!" * 60]}))

        assert isinstance(worker.run(), Dead)
        assert len(batch.status().failures[0].messages) == 1

    def test_a_job_with_too_many_deaths_is_an_error(
        self, row: JobFunction[..., Any], worker: Worker, store: Store
    ) -> None:
        batch = Batch.create("import", row, [[1]])
        unit = worker.take()
        unit.deaths = 99

        outcome = worker.execute(unit)
        assert isinstance(outcome, Dead)
        worker.settle(unit, outcome)

        assert "processes died" in batch.status().failures[0].messages[0]

    def test_a_forced_stop_puts_the_job_back_to_enqueue(self, row: JobFunction[..., Any], worker: Worker) -> None:
        batch = Batch.create("import", row, [[1]])
        run = JobRun(worker.take(), SystemClock.now())
        stopped: list[Any] = []
        worker.during = lambda _: stopped.append(worker.execution.interrupt(run))
        worker.execution.execute(run)
        worker.settle(run.unit, stopped[0])

        assert counts(batch) == {"enqueue": 1}

    def test_a_unit_that_others_have_recovered_moves_no_status_back(
        self, row: JobFunction[..., Any], worker: Worker, store: Store, setup: Setup, registry: Registry
    ) -> None:
        """The first process was frozen while it ran the job; the second one has finished it."""
        batch = Batch.create("import", row, [[1]])
        other = Worker(store, setup, registry, name="host:2:bbbbbbbbbbbb")
        unit = worker.take()
        worker.during = raising(ValueError("late"))
        late = worker.execute(unit)
        other.recover(worker.name)
        worker.during = lambda _: None

        other.run()
        assert worker.settle(unit, late) == 0

        assert (counts(batch), batch.status().state) == ({"finish": 1}, "succeeded")

    def test_a_payload_that_runs_twice_counts_once(
        self, row: JobFunction[..., Any], worker: Worker, store: Store, callbacks: dict[str, Any]
    ) -> None:
        """A fail-over has brought back a job that was settled."""
        batch = Batch.create("import", row, [[1]], **callbacks)
        raw = store.call("LINDEX", "queue:default", 0)
        worker.run()
        store.call("LPUSH", "queue:default", raw)
        worker.during = raising(NormalFailure("late"))
        worker.run()

        assert (counts(batch), pushed(store)) == ({"finish": 1}, ["completed", "succeeded"])

    def test_messages_are_appended_with_each_run(self, worker: Worker, store: Store) -> None:
        @job(retry=1)
        def talking(number: int) -> None:
            running = current_job()
            assert running is not None
            running.log("3 of 200 skipped")
            running.log("half \ud800 of a pair")
            if "retry_count" not in running.payload:
                raise ValueError("no")

        batch = Batch.create("import", talking, [[1]])
        worker.run()
        RetrySet(store=store).add_all_to_queue()
        worker.run()

        (batch_job,) = batch.jobs("finish")
        said = ("3 of 200 skipped", "half ? of a pair")
        assert batch_job.messages == (*said, "ValueError: no", *said)

    def test_each_change_of_a_status_is_kept_with_its_time_and_its_messages(self, worker: Worker, store: Store) -> None:
        @job(retry=1)
        def talking(number: int) -> None:
            running = current_job()
            assert running is not None
            running.log("3 of 200 skipped, \u00e4")
            if "retry_count" not in running.payload:
                raise ValueError("no")

        batch = Batch.create("import", talking, [[1]])
        worker.run()
        RetrySet(store=store).add_all_to_queue()
        worker.run()

        (batch_job,) = batch.jobs("finish")
        assert [(each.status, each.messages) for each in batch_job.changes] == [
            ("enqueue", ()),
            ("working", ()),
            ("enqueue", ("3 of 200 skipped, \u00e4", "ValueError: no")),
            ("working", ()),
            ("finish", ("3 of 200 skipped, \u00e4",)),
        ]
        times = [batch.status().created_at, *(each.at for each in batch_job.changes)]
        assert times == sorted(times)

    def test_of_many_changes_the_first_and_the_last_ones_are_kept_and_all_messages(
        self, worker: Worker, store: Store
    ) -> None:
        @job
        def broken(number: int) -> None:
            raise ValueError("no")

        batch = Batch.create("import", broken, [[1]])
        for _ in range(15):
            worker.run()
            RetrySet(store=store).add_all_to_queue()

        (batch_job,) = batch.jobs()
        statuses = [each.status for each in batch_job.changes]
        assert (len(statuses), statuses[:2], statuses[-2:]) == (20, ["enqueue", "working"], ["working", "enqueue"])
        assert [text for each in batch_job.changes for text in each.messages] == ["ValueError: no"] * 15
        assert batch_job.messages == ("ValueError: no",) * 15

    def test_changes_that_somebody_else_has_written_are_left_out(
        self, row: JobFunction[..., Any], worker: Worker, store: Store
    ) -> None:
        batch = Batch.create("import", row, [[1]])
        (batch_job,) = batch.jobs()
        store.call("HSET", store.keys.batch(batch.id), f":{batch_job.jid}", b"enqueue\nx1,e5,\xff,w1.000:999999")

        worker.run()

        (batch_job,) = batch.jobs("finish")
        assert [each.status for each in batch_job.changes] == ["working", "working", "finish"]

    def test_a_broken_key_keeps_no_job(self, row: JobFunction[..., Any], worker: Worker, store: Store) -> None:
        batch = Batch.create("import", row, [[1]])
        store.call("SET", store.keys.batch(batch.id), "x")

        assert isinstance(worker.run(), Done)
        assert store.call("EXISTS", store.keys.inflight(worker.name)) == 0

    def test_a_batch_that_has_expired_keeps_no_job(
        self, row: JobFunction[..., Any], worker: Worker, store: Store
    ) -> None:
        batch = Batch.create("import", row, [[1]])
        store.call("DEL", store.keys.batch(batch.id))

        assert isinstance(worker.run(), Done)
        with pytest.raises(BatchEnded, match="not known"):
            batch.status()

    def test_one_round_trip_tells_counts_and_failures(
        self, row: JobFunction[..., Any], worker: Worker, store: Store
    ) -> None:
        batch = Batch.create("import", row, [[number] for number in range(5)])
        worker.during = raising(NormalFailure("no"))
        for _ in range(5):
            worker.run()
        store.call("CONFIG", "RESETSTAT")

        status = batch.status()

        assert [batch_job.messages for batch_job in status.failures] == [("no",)] * 5
        assert b"cmdstat_evalsha:calls=1," in store.call("INFO", "commandstats")

    def test_an_unknown_status_is_refused(self, row: JobFunction[..., Any]) -> None:
        with pytest.raises(UsageError, match="never 'done'"):
            Batch.create("import", row, []).jobs("done")


class TestCallbacks:
    def test_the_last_job_pushes_them_with_its_end(
        self, row: JobFunction[..., Any], worker: Worker, store: Store, callbacks: dict[str, Any]
    ) -> None:
        batch = Batch.create("import", row, [[1], [2]], **callbacks)

        worker.run()
        assert pushed(store) == []
        worker.run()

        assert pushed(store) == ["completed", "succeeded"]
        first = decode(store.call("LINDEX", "queue:callbacks", -1))
        assert (first["args"], first["queue"], first["enqueued_at"] >= first["created_at"]) == (
            [batch.id],
            "callbacks",
            True,
        )
        assert isinstance(worker.run("callbacks"), Done)

    def test_a_queue_that_is_no_list_is_told_and_made_good_by_close(
        self, row: JobFunction[..., Any], worker: Worker, store: Store, callbacks: dict[str, Any]
    ) -> None:
        batch = Batch.create("import", row, [[1]], on_complete=callbacks["on_complete"])
        store.call("SET", "queue:callbacks", "x")

        worker.run()
        assert ("is a string" in batch.status().problem, batch.status().is_complete) == (True, False)
        store.call("DEL", "queue:callbacks")
        batch.close()

        assert (batch.status().problem, pushed(store)) == ("", ["completed"])

    def test_options_of_one_push_hold(
        self, row: JobFunction[..., Any], callbacks: dict[str, Any], store: Store
    ) -> None:
        Batch.create("import", row, [], on_complete=callbacks["on_complete"].set(queue="other"))

        assert store.call("LLEN", "queue:other") == 1
        assert store.call("SISMEMBER", "queues", "other") == 1

    def test_what_cannot_be_a_callback_is_refused(self, row: JobFunction[..., Any], store: Store) -> None:
        @job(deduplicate="until_executed")
        def once(batch: str) -> None: ...

        @job
        def without_argument() -> None: ...

        for wrong in (once, without_argument, "text"):
            with pytest.raises((UsageError, TypeError)):
                Batch.create("import", row, [], on_complete=wrong)
        assert store.call("KEYS", "kiq:batch*") == []

    def test_two_processes_that_settle_the_last_two_jobs_at_once_push_them_once(
        self,
        row: JobFunction[..., Any],
        worker: Worker,
        store: Store,
        setup: Setup,
        registry: Registry,
        callbacks: dict[str, Any],
    ) -> None:
        workers = [worker, Worker(store, setup, registry, name="host:2:bbbbbbbbbbbb")]
        for _ in range(30):
            Batch.create("import", row, [[1], [2]], on_complete=callbacks["on_complete"])
            ends = [(each, unit, each.execute(unit)) for each in workers for unit in [each.take()]]
            at_once = Barrier(len(ends))

            def settle(each: Worker, unit: Unit, outcome: Outcome, at_once: Barrier = at_once) -> None:
                at_once.wait(TIMEOUT_SECONDS)
                each.settle(unit, outcome)

            threads = [Thread(target=settle, args=end) for end in ends]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(TIMEOUT_SECONDS)

        assert pushed(store) == ["completed"] * 30
        assert {status.state for status in Batch.all()} == {"succeeded"}


class TestNesting:
    def test_a_parent_waits_for_its_children(
        self, row: JobFunction[..., Any], worker: Worker, store: Store, callbacks: dict[str, Any]
    ) -> None:
        with Batch.open("parent", **callbacks) as parent:
            child = Batch.create("child", row, [[1]], parent=parent)
        assert (parent.status().state, parent.status().open_children) == ("running", 1)

        worker.run()

        assert (child.status().state, parent.status().state) == ("succeeded", "succeeded")
        assert pushed(store) == ["completed", "succeeded"]

    def test_a_parent_succeeds_only_with_its_children(
        self, worker: Worker, store: Store, callbacks: dict[str, Any]
    ) -> None:
        """A grandchild fails, and is retried by hand later."""
        fails = [True]

        @job(retry=0)
        def broken(number: int) -> None:
            if fails[0]:
                raise ValueError("no")

        with Batch.open("parent", **callbacks) as parent, Batch.open("child", parent=parent) as child:
            Batch.create("grandchild", broken, [[1]], parent=child)
        worker.run()
        assert (parent.status().state, child.status().state, pushed(store)) == ("complete", "complete", ["completed"])

        fails[0] = False
        DeadSet(store=store).retry_all()
        worker.run()

        assert (parent.status().state, pushed(store)) == ("succeeded", ["completed", "succeeded"])

    def test_a_job_adds_jobs_to_its_own_batch(self, row: JobFunction[..., Any], worker: Worker) -> None:
        @job
        def split(count: int) -> None:
            batch = current_batch()
            assert batch is not None
            batch.add(row, [[number] for number in range(count)])

        batch = Batch.create("import", split, [[3]])

        worker.run()
        assert counts(batch) == {"finish": 1, "enqueue": 3}
        for _ in range(3):
            worker.run()

        assert (counts(batch), batch.status().state) == ({"finish": 4}, "succeeded")

    def test_a_complete_batch_takes_no_jobs(self, row: JobFunction[..., Any], store: Store) -> None:
        batch = Batch.create("import", row, [])

        with pytest.raises(BatchEnded, match="is complete"):
            batch.add(row, [[1]])
        with pytest.raises(BatchEnded, match="is complete"):
            Batch.create("child", row, [[1]], parent=batch)
        assert store.call("EXISTS", "queue:default") == 0

    def test_there_is_no_current_batch_outside_of_jobs(self) -> None:
        assert current_batch() is None


class TestCancel:
    def test_jobs_that_have_not_begun_are_dropped(
        self, row: JobFunction[..., Any], worker: Worker, store: Store, callbacks: dict[str, Any]
    ) -> None:
        batch = Batch.create("import", row, [[1], [2], [3]], **callbacks)
        worker.run()

        assert batch.cancel("wrong file")
        for _ in range(2):
            assert isinstance(worker.run(), Dropped)

        status = batch.status()
        assert (counts(batch), status.cancelled, status.reason) == ({"finish": 1, "error": 2}, 2, "wrong file")
        assert (status.state, status.is_complete) == ("cancelled", True)
        assert {batch_job.messages for batch_job in status.failures} == {("cancelled with its batch",)}
        assert pushed(store) == ["completed"]
        assert not batch.cancel()

    @pytest.mark.parametrize("place", ["schedule", "retry", "parked"])
    def test_jobs_that_wait_for_long_are_dropped_at_once(
        self, place: str, row: JobFunction[..., Any], store: Store, callbacks: dict[str, Any]
    ) -> None:
        with Batch.open("import", **callbacks) as parent:
            child = Batch.create("child", row, [[1]], parent=parent)
            parent.add(row, [[2]])
        other = Batch.create("other", row, [[3]])
        raws = store.call("LRANGE", "queue:default", 0, -1)
        store.call("DEL", "queue:default")
        slots = store.keys.slots("handle_row")
        store.call("SADD", store.keys.parked_sets, slots)
        key = store.keys.parked(slots) if place == "parked" else place
        before = b"queue:default\0" if place == "parked" else b""
        store.call("ZADD", key, *[word for raw in raws for word in (9e9, before + raw)])

        assert parent.cancel("wrong file")

        assert [each.status().is_complete for each in (parent, child, other)] == [True, True, False]
        assert (counts(parent), parent.status().cancelled, counts(child)) == ({"error": 1}, 1, {"error": 1})
        assert {batch_job.messages for batch_job in parent.status().failures} == {("cancelled with its batch",)}
        assert store.call("ZCARD", key) == 1
        assert {entry["dropped_by"] for entry in DroppedSet(store=store)} == {"batch"}
        assert pushed(store) == ["completed"], "it has not died"

    def test_jobs_of_very_many_batches_are_dropped_at_once(self, row: JobFunction[..., Any], store: Store) -> None:
        with Batch.open("parent") as parent:
            for number in range(20):
                Batch.create(f"child {number}", row, [[number]] * 40, parent=parent)
        raws = store.call("LRANGE", "queue:default", 0, -1)
        store.call("ZADD", "schedule", *[word for raw in raws for word in (9e9, raw)])
        store.call("DEL", "queue:default")

        parent.cancel()

        assert (store.call("EXISTS", "schedule"), parent.status().is_complete) == (0, True)

    def test_a_chain_as_the_job_of_a_batch_is_refused_with_what_to_do_instead(self, row: JobFunction[..., Any]) -> None:
        with pytest.raises(InvalidPush, match=r"no chain .*current_batch\(\).add"):
            Batch.create("import", row.then(row), [[1]])

    def test_a_running_job_that_is_not_told_goes_on(self, row: JobFunction[..., Any], worker: Worker) -> None:
        batch = Batch.create("import", row, [[1]])
        worker.during = lambda _: batch.cancel()

        assert isinstance(worker.run(), Done)
        assert (counts(batch), batch.status().state) == ({"finish": 1}, "cancelled")

    def test_children_are_cancelled_too(self, row: JobFunction[..., Any], worker: Worker) -> None:
        with Batch.open("parent") as parent:
            child = Batch.create("child", row, [[1]], parent=parent)

        parent.cancel("no")
        worker.run()

        assert [each.status().state for each in (parent, child)] == ["cancelled", "cancelled"]
        assert parent.status().is_complete

    @pytest.mark.parametrize("verb", ["close", "cancel"])
    def test_a_batch_whose_child_has_expired_can_be_ended_by_hand(
        self, row: JobFunction[..., Any], store: Store, verb: str, callbacks: dict[str, Any]
    ) -> None:
        with Batch.open("parent", **callbacks) as parent:
            gone, here = (Batch.create("child", row, [[1]], parent=parent) for _ in range(2))
        store.call("DEL", store.keys.batch(gone.id), store.keys.batch_children(gone.id))

        getattr(parent, verb)()
        assert (parent.status().open_children, parent.status().is_complete) == (1, False)
        here.mark([batch_job.jid for batch_job in here.jobs()], "finish")

        status = parent.status()
        assert (status.is_complete, status.state) == (True, "cancelled" if verb == "cancel" else "complete")
        assert pushed(store) == ["completed"]

    def test_all_of_very_many_children_are_cancelled(self, row: JobFunction[..., Any], store: Store) -> None:
        with Batch.open("parent") as parent:
            children = [Batch.create(f"child {number}", row, [[1]], parent=parent) for number in range(1_100)]

        parent.cancel("no")

        assert {child.status().state for child in children} == {"cancelled"}

    def test_forged_children_that_lead_back_are_cancelled_once(self, row: JobFunction[..., Any], store: Store) -> None:
        with Batch.open("parent") as parent:
            child = Batch.create("child", row, [[1]], parent=parent)
        store.call("SADD", store.keys.batch_children(child.id), parent.id, child.id, "nobody")

        assert parent.cancel()

        assert child.status().state == "cancelled"

    def test_a_cancelled_batch_is_marked_until_its_jobs_have_ended(
        self, row: JobFunction[..., Any], worker: Worker, store: Store
    ) -> None:
        with Batch.open("parent") as parent:
            child = Batch.create("child", row, [[1]], parent=parent)
        store.call("HSET", store.keys.members, "host:1:a", "1 b n 1 1.0")

        parent.cancel()
        assert set(store.call("ZRANGE", store.keys.batches_cancelled, 0, -1)) == {
            parent.id.encode(),
            child.id.encode(),
        }
        assert store.call("LLEN", store.keys.control("host:1:a")) == 1

        worker.run()
        assert store.call("EXISTS", store.keys.batches_cancelled) == 0
        assert not parent.cancel()
        assert store.call("EXISTS", store.keys.batches_cancelled) == 0

    def test_marks_of_batches_are_limited_in_number_and_age(self, row: JobFunction[..., Any], store: Store) -> None:
        store.call("ZADD", store.keys.batches_cancelled, 1, "of 1970")
        now = SystemClock.now()
        store.call("ZADD", store.keys.batches_cancelled, *[w for n in range(1_200) for w in (now, f"t{n}")])

        batch = Batch.create("import", row, [[1]])
        batch.cancel()

        marks = store.call("ZRANGE", store.keys.batches_cancelled, 0, -1)
        assert (len(marks), marks[-1]) == (1_000, batch.id.encode())

    def test_a_cancelled_batch_takes_no_jobs(self, row: JobFunction[..., Any]) -> None:
        batch = Batch.create("import", row, [[1]])
        batch.cancel()

        with pytest.raises(BatchEnded, match="is cancelled"):
            batch.add(row, [[1]])


class TestMark:
    def test_a_job_of_ruby_is_marked_by_hand(self, worker: Worker, store: Store, callbacks: dict[str, Any]) -> None:
        batch = Batch.create("import", "HardWorker", [[1], [2]], queue="ruby", **callbacks)
        store.call("DEL", "queue:ruby")
        one, two = (batch_job.jid for batch_job in batch.jobs())

        batch.mark([one], "finish")
        batch.mark([two, "unknown"], "failed", "Ruby says no")

        assert (counts(batch), batch.status().failures[0].messages) == ({"finish": 1, "failed": 1}, ("Ruby says no",))
        assert pushed(store) == ["completed"]
        batch.mark([one], "error")
        assert counts(batch) == {"finish": 1, "failed": 1}

    def test_only_ends_can_be_marked(self, row: JobFunction[..., Any]) -> None:
        with pytest.raises(UsageError, match="working"):
            Batch.create("import", row, []).mark(["a"], "working")


def test_a_job_in_no_batch_has_no_key_in_redis(row: JobFunction[..., Any], worker: Worker, store: Store) -> None:
    row.perform_async(1)
    worker.run()

    assert [key for key in store.call("KEYS", "*") if b"batch" in key] == []


def test_a_batch_event_needs_both_keys(row: JobFunction[..., Any], worker: Worker, store: Store) -> None:
    """`task_id` alone may be of another program."""
    batch = Batch.create("import", row, [[1]])
    payload = decode(store.call("RPOP", "queue:default"))
    for changed in ({"use_task_event": False}, {"task_id": 7}, {"jid": 7}):
        store.call("LPUSH", "queue:default", encode({**payload, **changed}))
        assert isinstance(worker.run(), Done)

    assert counts(batch) == {"enqueue": 1}


class TestClassOfAJob:
    def test_it_is_kept_where_it_is_not_that_of_the_batch(self, store: Store, row: JobFunction[..., Any]) -> None:
        @job(name="Other")
        def other(number: int) -> None: ...

        @job(name="Once", deduplicate="until_executed")
        def other_once(number: int) -> None: ...

        batch = Batch.create("import", row, [[1]])
        batch.add(other, [[2]])
        batch.add(other_once, [[3]])  # by another script
        batch.add("Ruby::Row", [[4]], queue="ruby")
        status = batch.status()

        found = {batch_job.params[0]: status.class_of(batch_job) for batch_job in batch.jobs()}

        assert found == {1: status.worker, 2: "Other", 3: "Once", 4: "Ruby::Row"}
        assert status.worker

    def test_an_open_batch_has_that_of_each_job(self, store: Store, row: JobFunction[..., Any]) -> None:
        with Batch.open("several") as batch:
            batch.add(row, [[1]])

        (batch_job,) = batch.jobs()

        assert batch.status().class_of(batch_job) == "handle_row"
        assert batch_job.params == [1]
