"""Results of tasks that are declared as in Celery, and their payloads, in a real Redis."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kiqcluster.application.registry import Registry
from kiqcluster.batches import Batch
from kiqcluster.contrib.celery import AsyncResult, Celery, Unsupported, shared_task
from kiqcluster.errors import JobDropped, JobFailed
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq import ruby_json
from kiqcluster.store import Store
from kiqcluster.store.shards import parse_shards
from tests.in_process_worker import Worker

pytestmark = pytest.mark.usefixtures("setup")


def test_the_payload_is_one_of_sidekiq(store: Store) -> None:
    @shared_task(name="Acme::Export", max_retries=5)
    def export(order: int, *, fmt: str = "csv") -> None: ...

    result = export.delay(7, fmt="pdf")

    (raw,) = store.call("LRANGE", "queue:default", 0, -1)
    payload = ruby_json.decode(raw)
    assert isinstance(payload, dict)
    assert {key: payload[key] for key in ("class", "args", "retry", "queue", "jid")} == {
        "class": "Acme::Export",
        "args": [7, {"fmt": "pdf"}],
        "retry": 5,
        "queue": "default",
        "jid": result.id,
    }


def test_a_job_that_is_revoked_says_so(store: Store) -> None:
    @shared_task
    def later() -> int:
        return 1

    result = later.apply_async(countdown=600)
    assert (result.status, result.ready(), result.result) == ("PENDING", False, None)

    assert result.revoke()

    assert (result.status, result.successful(), result.failed()) == ("REVOKED", False, False)
    with pytest.raises(JobDropped):
        result.get(1)
    with pytest.raises(Unsupported, match="check_cancelled"):
        result.revoke(terminate=True)


def test_a_result_that_is_not_there_in_time(store: Store) -> None:
    @shared_task
    def later() -> int:
        return 1

    with pytest.raises(TimeoutError):
        later.delay().get(timeout=0.05)


def test_a_job_that_fails_or_succeeds_says_so(store: Store, setup: Setup, registry: Registry) -> None:
    app = Celery("shop")

    @app.task
    def halve(x: int) -> float:
        return 1 / x

    worker = Worker(store, setup, registry)
    failed = halve.delay(0)
    worker.run()
    done = halve.delay(2)
    worker.run()

    assert (failed.status, done.status, done.result, done.get(1)) == ("FAILURE", "SUCCESS", 0.5, 0.5)
    assert isinstance(failed.result, JobFailed)
    with pytest.raises(JobFailed, match="division by zero"):
        halve.AsyncResult(failed.id).get(1)
    assert [ruby_json.decode(raw)["jid"] for raw in store.call("ZRANGE", "dead", 0, -1)] == [failed.id]  # type: ignore[index, call-overload]


def test_the_result_of_an_id(store: Store, setup: Setup, registry: Registry) -> None:
    app = Celery("shop")

    @app.task(name="Acme::Double")
    def double(x: int) -> int:
        return 2 * x

    jid = double.delay(4).id
    asked = [AsyncResult(jid, app=app), app.AsyncResult(jid)]
    assert [each.status for each in asked] == ["PENDING", "PENDING"]

    Worker(store, setup, registry).run()

    assert [(each.status, each.get(1)) for each in asked] == [("SUCCESS", 8)] * 2


def test_the_result_of_a_task_that_is_not_declared_here(store: Store, setup: Setup, registry: Registry) -> None:
    app = Celery("shop")
    result = app.send_task("Acme::Triple", [4])

    @app.task(name="Acme::Triple")
    def triple(x: int) -> int:
        return 3 * x

    Worker(store, setup, registry).run()

    assert result.get(1) == 12


def test_an_id_without_a_task_in_one_of_several_shards_is_refused(setup: Setup) -> None:
    setup.config = replace(setup.current_config(), shards=parse_shards({"two": "redis://two.example:6379/0"}))

    with pytest.raises(Unsupported, match="ask the task"):
        AsyncResult("0123456789abcdef01234567")


def test_a_chain_and_a_batch_with_callbacks_of_batches(store: Store, setup: Setup, registry: Registry) -> None:
    notes: list[object] = []

    @shared_task(bind=True)
    def add(self: object, x: int, y: int = 1) -> int:
        return x + y

    @shared_task
    def note(value: object) -> object:
        notes.append(value)
        return value

    handle = add.job.then(add.job, 10).then(note.job).enqueue(1)
    made = Batch.create("notes", note.job, [[7], [8]], on_success=note.job.set(queue="default"))
    worker = Worker(store, setup, registry)
    while store.call("LLEN", "queue:default"):
        worker.run()

    assert handle is not None
    assert (handle.result(1), made.status().state) == (12, "succeeded")
    assert sorted(map(str, notes)) == sorted(["12", "7", "8", made.id])


def test_a_verb_of_kiqcluster_is_one_of_the_job(store: Store) -> None:
    @shared_task
    def add(x: int) -> int:
        return x

    with pytest.raises(Unsupported, match=r"write add\.job"):
        Batch.create("sums", add, [[1]])
    with pytest.raises(Unsupported, match=r"write add\.job"):
        add.then(add)
