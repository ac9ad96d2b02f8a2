"""Progress: what a job says while it runs is in Redis as long as it runs, and nobody waits for that."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kiqcluster import job
from kiqcluster.api import WorkSet
from kiqcluster.application.registry import Registry
from kiqcluster.client.handle import Handle
from kiqcluster.client.results import Progress
from kiqcluster.errors import RedisUnavailable
from kiqcluster.features.progress import PROGRESS_TTL_SECONDS
from kiqcluster.process.job_context import current_job
from kiqcluster.process.runtime import Runtime, Setup
from kiqcluster.store import Store
from kiqcluster.worker.maintenance import progress as module
from kiqcluster.worker.maintenance.progress import ProgressReporter
from kiqcluster.worker.run.job_run import JobRun
from tests.in_process_worker import Worker
from tests.kit import TIMEOUT_SECONDS, wait_until
from tests.redis.kiqctl import Kiqctl


class Reporter:
    """A reporter of jobs that a test runs, which writes when the test says so.  fenced: identities that are."""

    def __init__(self, worker: Worker) -> None:
        self.runs: list[JobRun] = []
        self.fenced: set[str] = set()
        self.made = ProgressReporter(
            worker.runtime, worker.registry, lambda: self.runs, self.fenced.__contains__, lambda _name, _error: None
        )

    def write(self) -> int:
        """Write what is due; return how many runs that were."""
        due = [run for run in self.runs if self.made._is_due(run)]
        self.made.write(due)
        return len(due)


@pytest.fixture
def worker(store: Store, setup: Setup, registry: Registry) -> Worker:
    return Worker(store, setup, registry)


@pytest.fixture
def reporter(worker: Worker) -> Reporter:
    return Reporter(worker)


@pytest.fixture
def run(worker: Worker, reporter: Reporter) -> Callable[[Callable[[], object]], Any]:
    """Run the next job, and do this within it; return its outcome."""

    def run_next(during: Callable[[], object]) -> Any:
        unit = worker.take()
        reporter.runs = [JobRun(unit, 0.0)]
        worker.during = lambda *_: during()
        outcome = worker.execution.execute(reporter.runs[0])
        assert outcome is not None
        worker.settle(unit, outcome)
        ending = reporter.runs[0].ending
        failure = None if ending is None else ending.failure
        if failure is not None and not isinstance(failure, ValueError):
            raise failure  # of the test, not of the job
        return outcome

    return run_next


def enqueued(worker: Worker, **options: Any) -> Handle[None]:
    @job(name="Import", **options)
    def import_rows() -> None:
        worker.during()

    handle = import_rows.enqueue()
    assert handle is not None
    return handle


def say(done: float, total: float | None = None) -> None:
    running = current_job()
    assert running is not None
    running.progress(done, total)


def test_a_job_that_runs_shows_how_far_it_has_come(
    worker: Worker, reporter: Reporter, run: Callable[..., Any], store: Store
) -> None:
    handle = enqueued(worker, result_ttl=60)
    seen: list[Any] = []

    def during() -> None:
        for done in (1, 2, 50):
            say(done, 200)
        reporter.write()
        seen.extend((handle.status(), store.call("TTL", store.keys.progress(handle.jid))))

    run(during)

    status, ttl = seen
    assert (status.state, status.progress, status.progress.percent) == ("pending", Progress(50, 200), 25.0)
    assert 50 < ttl <= 60
    assert (handle.status().state, handle.status().progress) == ("done", None)
    assert store.call("KEYS", "kiq:progress:*") == []


def test_a_class_without_results_is_kept_for_a_day_and_renewed(
    worker: Worker, reporter: Reporter, run: Callable[..., Any], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = enqueued(worker)
    written: list[int] = []

    def during() -> None:
        say(1.5)
        written.append(reporter.write())
        written.append(reporter.write())
        key = store.keys.progress(handle.jid)
        assert json.loads(store.call("GET", key)) == {"done": 1.5, "total": None}
        assert PROGRESS_TTL_SECONDS - 10 < store.call("TTL", key) <= PROGRESS_TTL_SECONDS
        later = worker.runtime.clock.monotonic() + PROGRESS_TTL_SECONDS / 2 + 1
        monkeypatch.setattr(type(worker.runtime.clock), "monotonic", lambda *_: later)
        written.append(reporter.write())

    run(during)

    assert written == [1, 0, 1]


def test_a_retry_begins_anew(worker: Worker, reporter: Reporter, run: Callable[..., Any], store: Store) -> None:
    handle = enqueued(worker, result_ttl=60)

    def fail() -> None:
        say(9, 10)
        reporter.write()
        raise ValueError("no luck")

    run(fail)

    assert store.call("ZCARD", "retry") == 1
    assert (handle.status().state, handle.status().progress) == ("pending", None)


def test_what_others_have_recovered_and_what_has_ended_is_left_alone(
    worker: Worker, reporter: Reporter, run: Callable[..., Any], store: Store
) -> None:
    enqueued(worker)

    def lose() -> None:
        say(1)
        worker.recover(worker.name)
        reporter.write()

    run(lose)
    assert store.call("KEYS", "kiq:progress:*") == []
    worker.engine.join(worker.member)
    run(lambda: say(2))
    assert reporter.write() == 1  # as if its end had come between the look and the write

    assert store.call("KEYS", "kiq:progress:*") == []


def test_a_fenced_process_writes_nothing(
    worker: Worker, reporter: Reporter, run: Callable[..., Any], store: Store
) -> None:
    enqueued(worker)
    reporter.fenced.add(worker.name)

    def during() -> None:
        say(1)
        reporter.write()
        assert store.call("KEYS", "kiq:progress:*") == []

    run(during)


def test_a_unit_in_a_hand_list_is_held_as_well(
    worker: Worker, reporter: Reporter, run: Callable[..., Any], store: Store
) -> None:
    handle = enqueued(worker)

    def during() -> None:
        say(1)
        unit = reporter.runs[0].unit
        store.call("DEL", store.keys.inflight(worker.name))
        store.call("LPUSH", store.keys.hand(worker.name, unit.field), unit.payload)
        reporter.write()
        assert store.call("EXISTS", store.keys.progress(handle.jid)) == 1

    run(during)


def test_a_job_goes_on_while_redis_is_away(
    worker: Worker, reporter: Reporter, run: Callable[..., Any], store: Store
) -> None:
    handle = enqueued(worker, result_ttl=60)
    away = Store("redis://127.0.0.1:1/0", timeout=0.2)
    without = Runtime(worker.runtime.config, away, worker.setup, worker.runtime.events)
    lonely = ProgressReporter(without, worker.registry, lambda: reporter.runs, lambda _: False, lambda *_: None)

    def during() -> None:
        say(3, 4)
        with pytest.raises(RedisUnavailable):
            lonely.write(reporter.runs)
        reporter.write()  # it is still due
        assert handle.status().progress == Progress(3, 4)

    run(during)


def test_a_service_writes_it_and_sleeps_while_nothing_is_new(
    worker: Worker, reporter: Reporter, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = enqueued(worker, result_ttl=60)
    monkeypatch.setattr(module, "MAX_JOBS", 1)

    def during() -> None:
        reporter.made.look()
        assert not reporter.made.is_alive  # no job has said anything
        say(7)
        reporter.made.look()
        assert wait_until(lambda: handle.status().progress, "the progress to be written") == Progress(7)

    run(during)
    reporter.made.stop()
    assert reporter.made.join(TIMEOUT_SECONDS)


def test_operators_see_the_progress_of_running_jobs(store: Store, kiqctl: Kiqctl) -> None:
    store.call("SADD", "processes", "h:1:a")
    store.call("HSET", "h:1:a", "info", '{"hostname":"h","pid":1}', "busy", 3, "beat", 100.0)
    for number, jid in enumerate(("counted", "open", "silent", "broken")):
        payload = json.dumps({"class": "Import", "jid": jid, "args": [], "queue": "default"})
        work = {"queue": "default", "payload": payload, "run_at": 100 + number}
        store.call("HSET", "h:1:a:work", str(number), json.dumps(work))
    store.call("SET", store.keys.progress("counted"), '{"done":40,"total":160}')
    store.call("SET", store.keys.progress("open"), '{"done":1.5,"total":null}')
    store.call("SET", store.keys.progress("silent"), "no progress")
    store.call("RPUSH", store.keys.progress("broken"), "of a wrong type")

    found = {each.job.jid: each.progress for each in WorkSet(store=store)}
    shown, document = kiqctl("busy"), json.loads(kiqctl("busy", "--json").stdout)

    assert found == {"counted": Progress(40, 160), "open": Progress(1.5), "silent": None, "broken": None}
    assert "40/160 25 %" in shown.stdout
    assert [each["progress"] for each in document["jobs"]] == [
        {"done": 40, "total": 160, "percent": 25.0},
        {"done": 1.5, "total": None, "percent": None},
        None,
        None,
    ]
