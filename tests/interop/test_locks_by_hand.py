"""Jobs that hold a lock, moved, edited or deleted by hand, in Ruby and in Python: what stays locked.

In Ruby, a job that never runs again leaves its lock, which a release by hand or its time ends; all others end with it.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from kiqcluster import Job
from kiqcluster.api import DeadSet, LockSet, Queue, RetrySet, ScheduledSet
from kiqcluster.policies import Defer
from tests.in_process_worker import Worker

pytestmark = pytest.mark.ruby

QUEUE = "job = Sidekiq::Queue.new('default').find_job(jid); "
ENTRY = "entry = Sidekiq::%s.new.find_job(jid); "
IN_QUEUE = {
    "delete": "job.delete",
    "clear": "Sidekiq::Queue.new('default').clear",
    "edit": "item = job.item; job.delete; Sidekiq::Client.push(item.merge('tags' => ['edited']))",
    "move": "item = job.item; job.delete; Sidekiq::Client.push(item.merge('queue' => 'other'))",
}
IN_SET = {
    "delete": "entry.delete",
    "kill": "entry.kill",
    "clear": "Sidekiq::%s.new.clear",
    "run": "entry.add_to_queue",
    "reschedule": "entry.reschedule(Time.now + 60)",
    "edit": "item = entry.item; entry.delete; Sidekiq::%s.new.schedule(1.0, item.merge('tags' => ['edited']))",
}
BY_RUBY = {
    **{("queue", name): QUEUE + code for name, code in IN_QUEUE.items()},
    **{
        (place, name): (ENTRY + code).replace("%s", "RetrySet" if place == "retry" else "ScheduledSet")
        for place in ("schedule", "deferred", "retry")
        for name, code in IN_SET.items()
    },
    ("retry", "run"): (ENTRY % "RetrySet") + "entry.retry",
}
LEAVES_LOCK = {"delete", "kill", "clear"}


@pytest.fixture
def worker(stage: Any, setup: Any, registry: Any) -> Worker:
    return Worker(stage.store, setup, registry)


@pytest.fixture
def report(worker: Worker) -> Any:
    worker.ran.clear()

    def decide(_run: object) -> Defer | None:
        return Defer(3_600, "closed") if worker.during is closed else None

    class Report(
        Job,
        name="Echo",
        deduplicate="until_executed",
        deduplicate_scheduled=True,
        reschedule_once=True,
        concurrency_limit=1,
        policy=decide,
    ):
        def perform(self, number: int) -> None:
            worker.perform(number)

    return Report


def closed(*_: Any) -> None: ...


def fail(*_: Any) -> None:
    raise ValueError("on purpose")


def nothing(*_: Any) -> None: ...


def put(worker: Worker, report: Any, place: str) -> str:
    """Have a job lie in that place; return its jid."""
    if place == "schedule":
        return str(report.perform_in(3_600, 7))
    jid = report.perform_async(7)
    if place != "queue":
        worker.during = closed if place == "deferred" else fail
        worker.run()
        worker.during = nothing
        worker.ran.clear()
    return str(jid)


def run_all(worker: Worker) -> None:
    """Have all that is to run at some time run to its end."""
    worker.during = nothing
    for _ in range(3):
        for job_set in (ScheduledSet(), RetrySet()):
            job_set.add_all_to_queue()
        for queue in ("default", "other"):
            while worker.store.call("LLEN", f"queue:{queue}"):
                worker.run(queue)


@pytest.mark.parametrize(("place", "action"), BY_RUBY)
def test_what_ruby_does_with_a_job_by_hand(worker: Worker, report: Any, ruby: Any, place: str, action: str) -> None:
    jid = put(worker, report, place)
    assert report.perform_async(7) == jid

    ruby(BY_RUBY[place, action], jid=jid)
    run_all(worker)

    if action in LEAVES_LOCK:
        assert worker.ran == []
        (lock,) = LockSet()
        assert (lock.jid, report.perform_async(7)) == (jid, jid)
        assert lock.release()
    else:
        assert worker.ran == [(7,)]
        assert list(LockSet()) == []
    report.perform_async(7)
    run_all(worker)
    assert worker.ran[-1:] == [(7,)]
    assert list(LockSet()) == worker.store.call("KEYS", "kiq:slots:*") == []


@pytest.mark.parametrize("action", ["delete", "kill", "run", "reschedule"])
@pytest.mark.parametrize("place", ["queue", "schedule", "deferred", "retry"])
def test_what_python_does_with_one_leaves_nothing_locked(worker: Worker, report: Any, place: str, action: str) -> None:
    jid = put(worker, report, place)
    assert report.perform_async(7) == jid
    where: Any = {"queue": Queue("default"), "retry": RetrySet()}.get(place, ScheduledSet())
    job = where.find_job(jid)

    if action == "delete" or place == "queue":
        where.delete(job if place == "queue" else [job])
    elif action == "kill":
        where.kill([job])
    elif action == "run":
        where.add_to_queue([job])
    else:
        where.reschedule([job], time.time())
    run_all(worker)

    assert list(LockSet()) == []
    assert worker.ran == ([] if action in LEAVES_LOCK or place == "queue" else [(7,)])
    assert len(DeadSet()) == (action == "kill" and place != "queue")
