"""kiqctl batches: what it shows and changes."""

from __future__ import annotations

from typing import Any

import pytest

from kiqcluster import job
from kiqcluster.application.registry import Registry
from kiqcluster.batches import Batch, NormalFailure
from kiqcluster.job import JobFunction
from kiqcluster.process.runtime import Setup
from kiqcluster.store import Store
from tests.in_process_worker import Worker
from tests.redis.kiqctl import Kiqctl


@pytest.fixture
def worker(store: Store, setup: Setup, registry: Registry) -> Worker:
    return Worker(store, setup, registry)


@pytest.fixture
def row(worker: Worker) -> JobFunction[..., Any]:
    @job
    def handle_row(number: int) -> None:
        if number == 2:
            raise NormalFailure("row 2 has no name")

    return handle_row


def test_there_are_no_batches(kiqctl: Kiqctl, store: Store) -> None:
    assert kiqctl("batches").stdout == "there are no batches\n"
    assert kiqctl.ask("batches") == {"batches": []}
    assert kiqctl("batches", "show", "0" * 24).exit_code == 1


def test_a_batch_is_shown_with_its_failures(kiqctl: Kiqctl, row: JobFunction[..., Any], worker: Worker) -> None:
    batch = Batch.create("import", row, [[1], [2], [3]])
    worker.run()
    worker.run()

    assert batch.id in kiqctl("batches", "list").stdout
    lines = kiqctl("batches", "show", batch.id).stdout.splitlines()
    assert lines[0] == f"import  {batch.id}  running, 66.6 % of 3 jobs"
    assert lines[2] == "  jobs       1 enqueue, 0 working, 1 finish, 1 failed, 0 error"
    assert lines[-1].split()[1:] == ["failed", "2", "row", "2", "has", "no", "name"]
    document = kiqctl.ask("batches", "show", batch.id, "--status", "enqueue")
    assert ([each["params"] for each in document["jobs"]], document["percent"]) == ([[3]], 66.6)


def test_a_batch_is_cancelled(kiqctl: Kiqctl, row: JobFunction[..., Any], worker: Worker) -> None:
    batch = Batch.create("import", row, [[1], [3]])
    worker.run()

    assert kiqctl("batches", "cancel", batch.id).exit_code == 2, "nobody can be asked"
    assert kiqctl("batches", "cancel", batch.id, "--reason", "wrong file", "--yes").exit_code == 0
    worker.run()

    lines = kiqctl("batches", "show", batch.id).stdout
    assert ("1 dropped  wrong file" in lines, "cancelled, 100.0 %" in lines) == (True, True)
    assert kiqctl("batches", "cancel", batch.id, "--yes").exit_code == 1


def test_a_batch_whose_creator_died_is_closed(kiqctl: Kiqctl, row: JobFunction[..., Any], worker: Worker) -> None:
    with pytest.raises(ValueError, match="died"), Batch.open("import") as batch:
        batch.add(row, [[1]])
        raise ValueError("died")
    worker.run()
    assert "more are added" in kiqctl("batches", "show", batch.id).stdout

    assert kiqctl("batches", "close", batch.id).exit_code == 0

    assert batch.status().state == "succeeded"


def test_jobs_whose_queue_was_cleared_are_marked(
    kiqctl: Kiqctl, row: JobFunction[..., Any], worker: Worker, store: Store
) -> None:
    batch = Batch.create("import", row, [[1], [3]])
    store.call("DEL", "queue:default")

    assert kiqctl("batches", "mark", batch.id, "--as", "error", "--yes").exit_code == 1, "which?"
    done = kiqctl("batches", "mark", batch.id, "--waiting", "--as", "error", "--message", "cleared", "--yes")

    assert done.stdout == "marked 2 jobs\n"
    assert [batch_job.messages for batch_job in batch.status().failures] == [("cleared",)] * 2
    assert batch.status().is_complete


def test_the_parent_and_what_is_wrong_are_shown(
    kiqctl: Kiqctl, row: JobFunction[..., Any], worker: Worker, store: Store
) -> None:
    @job(queue="callbacks")
    def completed(batch: str) -> None: ...

    store.call("SET", "queue:callbacks", "x")
    with Batch.open("parent") as parent:
        child = Batch.create("child", row, [], parent=parent, on_complete=completed)

    assert "waits for 1 child batch" in kiqctl("batches", "show", parent.id).stdout
    lines = kiqctl("batches", "show", child.id).stdout
    assert (f"in {parent.id}" in lines, f"kiqctl batches close {child.id}" in lines) == (True, True)
