"""Whatever becomes of a job, the keys that we do not own are carried on byte for byte: every key, shape and path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kiqcluster import Interrupted, job
from kiqcluster.api.records import renamed
from kiqcluster.application.registry import Registry
from kiqcluster.client.reenqueue import added, enqueued, retried
from kiqcluster.errors import GaveWay, MalformedPayload, OverLimit
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.compression import compressed
from kiqcluster.sidekiq.outcome import KILL, Dead, Deferred, Discard, Dropped, Outcome, Retry
from kiqcluster.sidekiq.outcome import Interrupted as InterruptedOutcome
from kiqcluster.sidekiq.payload import TRANSIENT_KEYS, bare
from kiqcluster.sidekiq.ruby_entries import entry_for_ruby, misfits
from kiqcluster.sidekiq.ruby_json import decode, members, ruby_reads
from kiqcluster.store.engine.units import BeginVerdict, Unit
from kiqcluster.worker.run.job_run import JobRun
from tests.carried import each_alone, left_alone, together
from tests.unit.worker.run.test_execution import Feature, Worker, fail

FAILURE = {
    "queue",
    "error_class",
    "error_message",
    "error_backtrace",
    "failed_at",
    "retried_at",
    "retry_count",
    "interrupted_count",
}
BEGUN = {"deferred", "deferred_by", "kiq_rate"}  # that a job which has begun does not have any more
TRANSIENT = {"queue", "at", "enqueued_at"}  # that a job which waits in a set does not have
OWNED: dict[type[Outcome], set[str]] = {
    Retry: FAILURE | BEGUN,
    Dead: FAILURE | BEGUN,
    Deferred: TRANSIENT | BEGUN | {"deferred_count"},
    Dropped: TRANSIENT | {"dropped", "dropped_by"},
    InterruptedOutcome: {"queue", "interrupted_count"},
}
SETS = {
    "together": dict(together()),
    "each key alone": dict(each_alone()),
}


class CarryingWorker(Worker):
    """A worker with one job, whose body is what each path says."""

    body: Callable[[], Any] = staticmethod(fail)

    def has(self, body: Callable[[], Any], raw: bytes) -> Outcome:
        self.body = body
        return self.run_bytes(raw)

    def run_of(self, raw: bytes, **about: Any) -> JobRun:
        return JobRun(Unit("default", raw, "token", "me", **about), self.clock.now())


@pytest.fixture
def worker(setup: Setup, registry: Registry) -> CarryingWorker:
    worker = CarryingWorker(setup, registry)

    @job(name="carried", retry_in=lambda *_: worker.answer)
    def carried(*_: Any) -> Any:
        return worker.body()

    return worker


def raising(error: BaseException) -> Callable[[], Any]:
    def body() -> None:
        raise error

    return body


def killed(worker: CarryingWorker, raw: bytes) -> Outcome:
    worker.answer = KILL
    return worker.has(fail, raw)


def not_admitted(action: str) -> Callable[[CarryingWorker, bytes], Outcome]:
    def path(worker: CarryingWorker, raw: bytes) -> Outcome:
        worker.play(Feature(BeginVerdict(action, 5.0, reason="feature"), keys=frozenset({"class"})))
        return worker.run_bytes(raw)

    return path


def nobody_has(worker: CarryingWorker, raw: bytes) -> Outcome:
    return worker.run_bytes(raw.replace(b'"carried"', b'"nobody"'))


RUNS: dict[str, Callable[[CarryingWorker, bytes], Outcome | None]] = {
    "a failure": lambda worker, raw: worker.has(fail, raw),
    "a burial": killed,
    "a deferral": not_admitted("defer"),
    "a drop": not_admitted("drop"),
    "a class that nobody has": nobody_has,
    "a limit within the job": lambda worker, raw: worker.has(raising(OverLimit("crm", 5.0)), raw),
    "a job that yields": lambda worker, raw: worker.has(raising(Interrupted()), raw),
    "a job that gives way": lambda worker, raw: worker.has(raising(GaveWay()), raw),
    "a forced stop": lambda worker, raw: worker.execution.interrupt(worker.run_of(raw)),
    "a hard time limit": lambda worker, raw: worker.execution.time_out(worker.run_of(raw)),
    "a job that has killed its processes": lambda worker, raw: worker.execution.execute(worker.run_of(raw, deaths=3)),
}


def carried(raw: bytes, after: bytes, owned: set[str]) -> bool:
    """Return whether all keys are as they were but the owned, the unset, and times that the next push sets again."""
    payload = decode(raw)
    owned = owned | {key for key in ("jid", "args") if payload.get(key) in (None, "")}
    owned |= set(TRANSIENT_KEYS).intersection(misfits(payload))
    return left_alone(bare(after), owned) == left_alone(raw, owned)


ALL_PAYLOADS = pytest.mark.parametrize("payloads", ["together", pytest.param("each key alone", marks=pytest.mark.full)])


def is_fit_for_ruby(entry: bytes) -> bool:
    return ruby_reads(entry) and not misfits(decode(entry))


@pytest.mark.parametrize(
    ("path", "payloads"),
    [
        *((path, "together") for path in RUNS),
        *(pytest.param(path, "each key alone", marks=pytest.mark.full) for path in RUNS if path != "a failure"),
        ("a failure", "each key alone"),
    ],
)
def test_a_run_that_does_not_end_well_leaves_keys_of_others_alone(
    path: str, payloads: str, worker: CarryingWorker
) -> None:
    for name, raw in SETS[payloads].items():
        outcome = RUNS[path](worker, raw)

        if isinstance(outcome, Discard):
            assert name in ("retry: null", "retry: false", "dead: false")
            continue
        after = getattr(outcome, "payload", None)
        assert isinstance(after, bytes), (name, outcome)
        if path == "a class that nobody has":
            after = after.replace(b'"nobody"', b'"carried"').replace(b'\\"nobody\\"', b'\\"carried\\"')
        owned = OWNED[type(outcome)] | ({"error_backtrace"} if decode(raw).get("backtrace") else set())
        assert carried(raw, after, owned), (name, after)
        assert isinstance(outcome, Dropped | InterruptedOutcome) or is_fit_for_ruby(after), (name, after)


@pytest.mark.parametrize("again", [enqueued, added, retried])
@pytest.mark.parametrize("has_middleware", [False, True])
@ALL_PAYLOADS
def test_a_move_to_a_queue_leaves_keys_of_others_alone(
    again: Any, has_middleware: bool, payloads: str, setup: Setup
) -> None:
    if has_middleware:
        setup.client_middleware.add(lambda push, proceed: proceed())
    for name, raw in SETS[payloads].items():
        kept = entry_for_ruby(raw, {}, "default")
        for entry in (raw, kept):
            try:
                move = again(setup, entry, 1.5)
            except MalformedPayload:
                continue  # no class

            owned = {"queue", "enqueued_at", "at", "retry_count"} | ({"expiry"} if again is not enqueued else set())
            assert carried(raw, move.new, owned), (name, move.new)
            assert entry is raw or is_fit_for_ruby(move.new) or b'"class"' not in raw, (name, move.new)


@ALL_PAYLOADS
def test_another_queue_leaves_keys_of_others_alone(payloads: str) -> None:
    for name, raw in SETS[payloads].items():
        for entry in (raw, entry_for_ruby(raw, {}, "default")):
            after = renamed(entry, "low")

            assert carried(raw, after, {"queue"}), (name, after)
            assert decode(bare(after))["queue"] == decode(after)["queue"] == "low"


@ALL_PAYLOADS
def test_compressed_arguments_leave_keys_of_others_alone(payloads: str) -> None:
    for name, raw in SETS[payloads].items():
        after = compressed(raw, bytes(members(raw)["args"]))[0]

        owned = {"args", "compressed", "original_job_size_bytes"}
        assert left_alone(after, owned) == left_alone(raw, owned), name
