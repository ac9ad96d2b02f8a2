"""Batches that are forged, damaged or have odd values: they harm themselves at most, and no job stays `working`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kiqcluster import job
from kiqcluster.application.registry import Registry
from kiqcluster.batches import Batch, NormalFailure, status_app
from kiqcluster.errors import UsageError
from kiqcluster.job import JobFunction
from kiqcluster.process.job_context import current_job
from kiqcluster.process.runtime import Push, Setup
from kiqcluster.sidekiq.outcome import Done, Retry
from kiqcluster.sidekiq.ruby_json import decode, encode
from kiqcluster.store import Store
from tests.in_process_worker import Worker


@pytest.fixture
def worker(store: Store, setup: Setup, registry: Registry) -> Worker:
    return Worker(store, setup, registry)


@pytest.fixture
def row(worker: Worker) -> JobFunction[..., Any]:
    """A job that does what the test says: by `worker.during`."""

    @job(retry=3)
    def handle_row(number: int) -> None:
        worker.during(number)

    return handle_row


class Wordless(NormalFailure):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Speechless(ValueError):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def raising(error: BaseException) -> Callable[..., object]:
    def run(*_: object) -> None:
        raise error

    return run


def talking(*texts: str, error: BaseException) -> Callable[..., object]:
    def run(*_: object) -> None:
        running = current_job()
        assert running is not None
        for text in texts:
            running.log(text)
        raise error

    return run


@pytest.mark.parametrize(("error", "status"), [(Wordless(), "failed"), (Speechless(), "enqueue")])
def test_an_error_whose_text_fails_ends_its_job_all_the_same(
    row: JobFunction[..., Any], worker: Worker, error: BaseException, status: str
) -> None:
    batch = Batch.create("import", row, [[1]])
    worker.during = raising(error)

    assert isinstance(worker.run(), Done if status == "failed" else Retry)

    (batch_job,) = batch.jobs()
    assert (batch_job.status, "cannot be shown: RuntimeError" in batch_job.messages[-1]) == (status, True)


@pytest.mark.parametrize("letter", ["x", "ä", "\U0001f600", "\ud800", '"'])
def test_a_job_that_says_too_much_keeps_its_reason_and_what_has_room(
    row: JobFunction[..., Any], worker: Worker, letter: str
) -> None:
    batch = Batch.create("import", row, [[1]])
    worker.during = talking(*[letter * 1_000] * 100, error=NormalFailure("no name"))

    worker.run()

    (batch_job,) = batch.status().failures
    assert (batch_job.messages[-1], 3 <= len(batch_job.messages) <= 20) == ("no name", True)


def test_a_job_that_has_said_too_much_in_earlier_runs_keeps_its_last_reason(
    row: JobFunction[..., Any], worker: Worker, store: Store
) -> None:
    batch = Batch.create("import", row, [[1]])
    for error in (ValueError("first"), ValueError("second"), NormalFailure("last")):
        worker.during = talking(*["x" * 900] * 16, error=error)
        worker.run()
        store.call("LPUSH", "queue:default", *store.call("ZRANGE", "retry", 0, -1) or ["{}"])
        store.call("DEL", "retry")

    (batch_job,) = batch.status().failures
    assert [message for message in batch_job.messages if "x" not in message] == [
        "ValueError: first",
        "ValueError: second",
        "last",
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"name": "x" * 1_000_000},
        {"name": "a\0b"},
        {"name": "\ud800"},
        {"name": 7},
        {"ttl": 0},
        {"ttl": -1},
        {"ttl": 1.5},
        {"ttl": 10**12},
        {"kept": 0},
        {"kept": True},
        {"kept": "7"},
    ],
)
def test_values_that_no_batch_can_have_are_refused_before_anything_is_written(
    row: JobFunction[..., Any], store: Store, options: dict[str, Any]
) -> None:
    with pytest.raises(UsageError):
        Batch.create(**{"name": "import", **options}, job=row, rows=[[1]])

    assert store.call("KEYS", "*batch*") == [] == store.call("KEYS", "queue:*")


def test_a_reason_that_is_too_long_is_refused(row: JobFunction[..., Any]) -> None:
    batch = Batch.create("import", row, [[1]])

    with pytest.raises(UsageError, match="reason"):
        batch.cancel("x" * 1_000_000)

    assert batch.status().state == "running"


def test_forged_batches_hide_no_others_and_have_a_status(
    row: JobFunction[..., Any], store: Store, setup: Setup
) -> None:
    good, forged, broken = (Batch.create("import", row, [[1]]) for _ in range(3))
    store.call("HSET", store.keys.batch(forged.id), "total", "9" * 5_000, "finish", "-1", "created_at", "nan",
               "completed_at", "inf", "name", b"\xff\0", "expected", "1e9")  # fmt: skip
    store.call("DEL", store.keys.batch(broken.id))
    store.call("SET", store.keys.batch(broken.id), "no hash")
    store.call("SET", store.keys.batch_ended(good.id), "no zset")
    store.call("ZADD", store.keys.batches, 9e9, b"\xff\0\n", 9e9, "x" * 1_000_000)

    problems = {status.id: status.problem for status in Batch.all()}
    assert problems.keys() == {good.id, forged.id, broken.id}
    assert store.keys.batch(broken.id) in problems[broken.id]
    assert good.status().total == 1
    status = forged.status()
    assert (status.total, status.created_at, status.is_complete) == (0, 0.0, False)
    for identifier, code in ((forged.id, "200"), (broken.id, "500")):
        said: list[str] = []
        (body,) = status_app(store=store)(
            {"PATH_INFO": f"/batches/{identifier}.json"}, lambda status, _headers, said=said: said.append(status[:3])
        )
        assert (said, isinstance(decode(body), dict)) == ([code], True)


def test_the_parts_of_a_forged_batch_are_empty(row: JobFunction[..., Any], store: Store) -> None:
    batch = Batch.create("import", row, [[1]])
    store.call("HSET", store.keys.batch(batch.id), "on_complete", b"\xff no separator")
    store.call("SET", store.keys.batch_children(batch.id), "no set")
    store.call("ZADD", store.keys.batch_ended(batch.id), 1, "unknown")

    parts = batch.parts()

    assert parts.callbacks == {"on_complete": ("\ufffd no separator", b"")}
    assert (parts.children, parts.child_count, parts.failed) == ([], 0, 1)
    assert [(each.jid, each.status, each.messages) for each in parts.failures] == [("unknown", "", ())]


def test_events_that_nobody_can_read_hide_no_others(row: JobFunction[..., Any], store: Store) -> None:
    batch = Batch.create("import", row, [[1]])
    (jid,) = (batch_job.jid for batch_job in batch.jobs())
    batch.mark([jid], "failed")
    store.call("HSET", store.keys.batch(batch.id), b":\xff", b"\xff", ":odd", "failed", "podd", "{", "modd", "[")
    store.call("ZADD", store.keys.batch_ended(batch.id), 1, b"\xff", 2, "odd", 3, "gone")

    assert {batch_job.jid for batch_job in batch.jobs()} >= {jid, "odd"}
    assert {batch_job.jid for batch_job in batch.jobs("failed")} == {jid, "odd"}


@pytest.mark.parametrize("identifier", ["{}:ended", "{}:children", "\n", "\0", "kiq:batch:x", "ä", "x" * 1_000_000])
def test_a_payload_that_names_an_odd_batch_runs_and_changes_none(
    row: JobFunction[..., Any], worker: Worker, store: Store, identifier: str
) -> None:
    with Batch.open("parent") as parent:
        Batch.create("child", row, [], parent=parent)
        parent.add(row, [[1]])
    parent.mark(["nobody"], "failed")
    payload = decode(store.call("RPOP", "queue:default"))
    store.call("LPUSH", "queue:default", encode({**payload, "task_id": identifier.format(parent.id)}))
    before = parent.status()

    assert isinstance(worker.run(), Done)

    assert parent.status() == before


@pytest.mark.parametrize("word", ["DEL", "SET"])
def test_a_batch_that_vanishes_while_its_job_runs_keeps_no_unit(
    row: JobFunction[..., Any], worker: Worker, store: Store, word: str
) -> None:
    batch = Batch.create("import", row, [[1]])
    key = store.keys.batch(batch.id)

    def vanish(_: int) -> None:
        store.call("DEL", key)
        if word == "SET":
            store.call("SET", key, "no hash")

    worker.during = vanish

    assert isinstance(worker.run(), Done)  # and it was settled


def test_jobs_that_middleware_gives_one_id_count_once(
    row: JobFunction[..., Any], worker: Worker, store: Store, setup: Setup
) -> None:
    def same_id(push: Push, call_next: Callable[[], Push | None]) -> Push | None:
        push.payload["jid"] = "a" * 24
        return call_next()

    setup.client_middleware.add(same_id)
    batch = Batch.create("import", row, [[1], [2]])

    assert (batch.status().total, store.call("LLEN", "queue:default")) == (1, 1)
    worker.run()
    assert batch.status().state == "succeeded"
