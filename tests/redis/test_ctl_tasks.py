"""kiqctl tasks: what it shows and changes."""

from __future__ import annotations

from typing import Any

import pytest

from kiqcluster import job
from kiqcluster.application.registry import Registry
from kiqcluster.job import JobFunction
from kiqcluster.process.runtime import Setup
from kiqcluster.store import Store
from kiqcluster.tasks import NormalFailure, Task
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


def test_there_are_no_tasks(kiqctl: Kiqctl, store: Store) -> None:
    assert kiqctl("tasks").stdout == "there are no tasks\n"
    assert kiqctl.ask("tasks") == {"tasks": []}
    assert kiqctl("tasks", "show", "0" * 24).exit_code == 1


def test_a_task_is_shown_with_its_failures(kiqctl: Kiqctl, row: JobFunction[..., Any], worker: Worker) -> None:
    task = Task.create("import", row, [[1], [2], [3]])
    worker.run()
    worker.run()

    assert task.id in kiqctl("tasks", "list").stdout
    lines = kiqctl("tasks", "show", task.id).stdout.splitlines()
    assert lines[0] == f"import  {task.id}  running, 66.6 % of 3 jobs"
    assert lines[2] == "  jobs       1 enqueue, 0 working, 1 finish, 1 failed, 0 error"
    assert lines[-1].split()[1:] == ["failed", "2", "row", "2", "has", "no", "name"]
    document = kiqctl.ask("tasks", "show", task.id, "--status", "enqueue")
    assert ([each["params"] for each in document["jobs"]], document["percent"]) == ([[3]], 66.6)


def test_a_task_is_cancelled(kiqctl: Kiqctl, row: JobFunction[..., Any], worker: Worker) -> None:
    task = Task.create("import", row, [[1], [3]])
    worker.run()

    assert kiqctl("tasks", "cancel", task.id).exit_code == 2, "nobody can be asked"
    assert kiqctl("tasks", "cancel", task.id, "--reason", "wrong file", "--yes").exit_code == 0
    worker.run()

    lines = kiqctl("tasks", "show", task.id).stdout
    assert ("1 dropped  wrong file" in lines, "cancelled, 100.0 %" in lines) == (True, True)
    assert kiqctl("tasks", "cancel", task.id, "--yes").exit_code == 1


def test_a_task_whose_creator_died_is_closed(kiqctl: Kiqctl, row: JobFunction[..., Any], worker: Worker) -> None:
    with pytest.raises(ValueError, match="died"), Task.open("import") as task:
        task.add(row, [[1]])
        raise ValueError("died")
    worker.run()
    assert "more are added" in kiqctl("tasks", "show", task.id).stdout

    assert kiqctl("tasks", "close", task.id).exit_code == 0

    assert task.status().state == "succeeded"


def test_jobs_whose_queue_was_cleared_are_marked(
    kiqctl: Kiqctl, row: JobFunction[..., Any], worker: Worker, store: Store
) -> None:
    task = Task.create("import", row, [[1], [3]])
    store.call("DEL", "queue:default")

    assert kiqctl("tasks", "mark", task.id, "--as", "error", "--yes").exit_code == 1, "which?"
    done = kiqctl("tasks", "mark", task.id, "--waiting", "--as", "error", "--message", "cleared", "--yes")

    assert done.stdout == "marked 2 jobs\n"
    assert [event.messages for event in task.status().failures] == [("cleared",)] * 2
    assert task.status().is_complete


def test_the_parent_and_what_is_wrong_are_shown(
    kiqctl: Kiqctl, row: JobFunction[..., Any], worker: Worker, store: Store
) -> None:
    @job(queue="callbacks")
    def completed(task: str) -> None: ...

    store.call("SET", "queue:callbacks", "x")
    with Task.open("parent") as parent:
        child = Task.create("child", row, [], parent=parent, on_complete=completed)

    assert "waits for 1 child task" in kiqctl("tasks", "show", parent.id).stdout
    lines = kiqctl("tasks", "show", child.id).stdout
    assert (f"in {parent.id}" in lines, f"kiqctl tasks close {child.id}" in lines) == (True, True)
