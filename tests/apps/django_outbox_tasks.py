"""Exercises Django's tasks in an outbox with one database: `python -m tests.apps.django_outbox_tasks <url>`.

Prints a line of JSON: each promise, and "" or why it does not hold.  A process of its own, as tests/apps/django_outbox.
"""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import django
import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import transaction

from kiqcluster import testing as kiq_testing
from kiqcluster.application.registry import current_registry
from kiqcluster.errors import UsageError
from kiqcluster.process.runtime import current_setup
from kiqcluster.store import Store
from kiqcluster.testing.waiting import wait_until
from tests.apps.django_outbox import database
from tests.in_process_worker import Worker

BACKEND = "kiqcluster.contrib.django.TaskBackend"
FRAMEWORK = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
PRIORITIES = {(50, 100): "critical"}
PROMISES: list[Callable[[], None]] = []


class RollBack(Exception):
    pass


def promise(check: Callable[[], None]) -> Callable[[], None]:
    PROMISES.append(check)
    return check


def configure(url: str) -> None:
    from tests.apps.django_project.settings import BACKPORT

    settings.configure(
        INSTALLED_APPS=[*BACKPORT, "kiqcluster.contrib.django", "tests.apps.django_project.shop"],
        DATABASES={
            "default": database(url),
            "orders": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
        },
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        TASKS={
            "default": {
                "BACKEND": BACKEND,
                "QUEUES": [],
                "OPTIONS": {"outbox": True, "priority_queues": PRIORITIES},
            },
            "patient": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": {}},
            "forgetful": {"BACKEND": BACKEND, "OPTIONS": {"result_ttl": 0}},
            "django": {"BACKEND": f"{FRAMEWORK}.backends.immediate.ImmediateBackend"},
        },
        USE_TZ=True,
    )
    django.setup()
    call_command("migrate", verbosity=0)


def store() -> Store:
    return current_setup().current_store()


def queued(queue: str = "default") -> list[Any]:
    return [json.loads(raw)["args"] for raw in reversed(store().call("LRANGE", f"queue:{queue}", 0, -1))]


def rows() -> int:
    from kiqcluster.contrib.django.models import OutboxJob

    return int(OutboxJob.objects.count())


def wait_for_push() -> None:
    wait_until(lambda: not rows(), "the sender to push all rows")


def relay() -> Any:
    (found,) = current_setup().due_sources
    return found


def run(queue: str = "default") -> None:
    Worker(store(), current_setup(), current_registry()).run(queue)


def tasks() -> Any:
    from tests.apps.django_project.shop import tasks

    return tasks


def told() -> list[str]:
    """Return a list that gets the id of each task of which task_enqueued tells."""
    from kiqcluster.contrib.django.task_backend.framework import task_enqueued

    ids: list[str] = []

    def receive(task_result: Any, **_: Any) -> None:
        ids.append(task_result.id)

    task_enqueued.connect(receive, weak=False)
    return ids


def has_result(result: Any) -> bool:
    from kiqcluster.contrib.django.task_backend.framework import TaskResultDoesNotExist

    try:
        result.refresh()
    except TaskResultDoesNotExist:
        return False
    return True


@promise
def a_rollback_leaves_nothing() -> None:
    ids = told()
    with suppress(RollBack), transaction.atomic():
        result = tasks().add.enqueue(1)
        assert rows() == 1
        raise RollBack
    assert (rows(), queued(), ids, result.enqueued_at) == (0, [], [], None)
    assert store().call("KEYS", "*") == []
    assert not has_result(result)


@promise
def a_savepoint_that_is_rolled_back_takes_its_tasks() -> None:
    with transaction.atomic():
        with suppress(RollBack), transaction.atomic():
            tasks().add.enqueue(1)
            raise RollBack
        tasks().add.enqueue(2)
    wait_for_push()
    assert queued() == [[2]]


@promise
def a_task_is_pushed_after_the_commit_and_runs() -> None:
    ids = told()
    with transaction.atomic():
        result = tasks().add.enqueue(1, two=3)
        assert (queued(), ids, result.enqueued_at) == ([], [], None)
        assert tasks().add.get_result(result.id).status == result.status  # its row waits
    wait_for_push()
    assert (queued(), ids) == ([[1, {"two": 3}]], [result.id])
    assert result.enqueued_at is not None
    assert tasks().add.get_result(result.id) == result

    run()

    result.refresh()
    assert (str(result.status), result.return_value, result.attempts) == ("SUCCESSFUL", 4, 1)


@promise
def without_a_transaction_it_is_pushed_at_once() -> None:
    result = tasks().add.enqueue(1)
    assert result.enqueued_at is not None
    wait_for_push()
    assert queued() == [[1]]


@promise
def times_and_priorities_hold() -> None:
    due = datetime.now(UTC) + timedelta(hours=1)
    with transaction.atomic():
        later = tasks().add.using(run_after=due).enqueue(1)
        tasks().add.using(priority=60).enqueue(2)
    wait_for_push()
    ((_, score),) = [store().call("ZRANGE", "schedule", 0, -1, "WITHSCORES")]
    assert abs(float(score) - due.timestamp()) < 0.01
    assert queued("critical") == [[2]]
    assert tasks().add.get_result(later.id) == later


@promise
def a_task_waits_while_redis_is_away() -> None:
    setup = current_setup()
    here, setup.store = store(), Store("redis://127.0.0.1:1/0", timeout=0.2)
    with transaction.atomic():
        result = tasks().add.enqueue(1)
    relay().move()
    setup.store = here
    assert queued() == []
    while rows():
        relay().move()
    assert queued() == [[1]]
    assert has_result(result)


@promise
def what_a_dead_process_has_committed_is_relayed() -> None:
    from kiqcluster.contrib.django import outbox

    result = outbox(tasks().add, push_after_commit=False).enqueue(1, two=2)
    assert (rows(), queued()) == (1, [])
    assert tasks().add.get_result(result.id) == result  # by its row
    assert asyncio.run(tasks().add.aget_result(result.id)) == result
    relay().move()
    assert queued() == [[1, {"two": 2}]]
    assert tasks().add.get_result(result.id) == result
    run()
    assert tasks().add.get_result(result.id).return_value == 3


@promise
def a_call_uses_the_outbox_for_a_backend_without_the_option() -> None:
    from kiqcluster.contrib.django import outbox

    with suppress(RollBack), transaction.atomic():
        outbox(tasks().fail_patiently).enqueue("x")
        raise RollBack
    with transaction.atomic():
        result = outbox(tasks().fail_patiently.using(queue_name="mails")).enqueue("y")
        assert queued("mails") == []
    wait_for_push()
    assert queued("mails") == [["y"]]
    assert tasks().fail_patiently.get_result(result.id) == result
    tasks().fail_patiently.enqueue("z")
    assert (rows(), queued()) == (0, [["z"]])


@promise
def a_coroutine_enqueues_too() -> None:
    from kiqcluster.contrib.django import outbox

    result = asyncio.run(tasks().add.aenqueue(1))
    other = asyncio.run(outbox(tasks().fail_patiently).aenqueue("x"))
    wait_for_push()
    assert sorted(map(str, queued())) == ["['x']", "[1]"]
    assert has_result(result)
    assert has_result(other)


@promise
def enqueue_on_commit_writes_a_row_unless_it_names_another_database() -> None:
    from kiqcluster.contrib.django import enqueue_on_commit

    with transaction.atomic():
        enqueue_on_commit(tasks().add, 1)
        assert rows() == 1
    wait_for_push()
    with transaction.atomic(using="orders"):
        enqueue_on_commit(tasks().add, 2, using="orders")
        assert rows() == 0
        assert queued() == [[1]]
    assert queued() == [[1], [2]]


@promise
def jobs_of_a_test_are_delivered_by_the_commit() -> None:
    with kiq_testing.fake() as jobs:
        with transaction.atomic():
            result = tasks().add.enqueue(1)
            jobs.refute_enqueued(tasks().add.module_path)
        jobs.assert_enqueued(tasks().add.module_path, 1)
        jobs.drain()
        result.refresh()
        assert result.return_value == 1


@promise
def tasks_of_other_backends_are_refused() -> None:
    from kiqcluster.contrib.django import outbox

    with pytest.raises(UsageError, match="tasks of kiqcluster's backend"):
        outbox(tasks().add.using(backend="django"))


def main() -> None:
    configure(sys.argv[1])
    said: dict[str, str] = {}
    for check in PROMISES:
        store().call("FLUSHDB")
        try:
            check()
            said[check.__name__] = ""
        except Exception:  # the test shows it
            said[check.__name__] = traceback.format_exc()
    print(json.dumps(said))


if __name__ == "__main__":
    main()
