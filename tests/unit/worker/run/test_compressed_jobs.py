"""Jobs with compressed arguments: what runs, what is stored, and what becomes of those that cannot be read."""

from __future__ import annotations

from typing import Any

import pytest

from kiqcluster import Job, job
from kiqcluster.application.registry import Registry
from kiqcluster.errors import PayloadDecompressionConflictError, PayloadDecompressionError
from kiqcluster.process.runtime import Run, Setup
from kiqcluster.sidekiq.active_job import WRAPPER, Keywords, enveloped
from kiqcluster.sidekiq.compression import compressed
from kiqcluster.sidekiq.outcome import Dead, Deferred, Discard, Done, Interrupted, Outcome, Retry
from kiqcluster.sidekiq.payload import bare
from kiqcluster.sidekiq.ruby_json import MAX_LONG_DIGITS, decode, encode, members
from kiqcluster.store.engine.units import BeginVerdict, Unit
from kiqcluster.worker.run.job_run import JobRun
from tests.unit.worker.run.test_execution import JID, Feature, Worker

TEXT = "x" * 5_000


@pytest.fixture
def worker(setup: Setup, registry: Registry) -> Worker:
    return Worker(setup, registry)


def packed(name: str, *arguments: Any, **keys: Any) -> bytes:
    raw = encode({"retry": True, "queue": "default", "args": list(arguments), "class": name, "jid": JID, **keys})
    return compressed(raw, bytes(members(raw)["args"]))[0]


@pytest.fixture
def ran(worker: Worker) -> list[Any]:
    ran: list[Any] = []

    @job(name="keep")
    def keep(text: str, number: int = 0) -> None:
        ran.append((text, number))

    @job(name="broken")
    def broken(text: str, number: int) -> None:
        raise ValueError(f"no {number}")

    return ran


def stored(outcome: Outcome, raw: bytes) -> dict[str, Any]:
    """Return the entry of an outcome; it has the arguments byte for byte as they came."""
    assert isinstance(outcome, Retry | Dead | Deferred | Interrupted)
    assert members(outcome.payload)["args"] == members(raw)["args"]
    payload: dict[str, Any] = decode(outcome.payload)
    assert payload["compressed"] is True
    assert payload["original_job_size_bytes"] == decode(raw)["original_job_size_bytes"]
    return payload


def test_perform_and_middleware_get_the_arguments(worker: Worker, ran: list[Any]) -> None:
    seen: list[Run] = []

    @worker.setup.server_middleware.add
    def look(run: Run, proceed: Any) -> Any:
        seen.append(run)
        return proceed()

    assert worker.run_bytes(packed("keep", TEXT, 7)) == Done()
    assert ran == [(TEXT, 7)]
    assert seen[0].payload["args"] == [TEXT, 7]
    assert seen[0].payload.keys().isdisjoint({"compressed", "original_job_size_bytes"})


def test_features_get_them_before_the_job_begins(worker: Worker, ran: list[Any]) -> None:
    seen: list[Any] = []

    class Look(Feature):
        def on_begin(self, run: Run) -> BeginVerdict:
            seen.append(run.payload["args"])
            return BeginVerdict("defer", 5)

    worker.play(Look())

    outcome = worker.run_bytes(packed("keep", TEXT))

    assert stored(outcome, packed("keep", TEXT))["deferred"] is True
    assert (seen, ran) == ([[TEXT]], [])


def test_an_envelope_of_activejob_is_opened_inside(worker: Worker) -> None:
    ran: list[Any] = []

    @job(name="RemindJob", active_job=True)
    def remind(text: str, *, note: str) -> None:
        ran.append((text, note))

    envelope = enveloped("RemindJob", "default", [TEXT, Keywords(note="n")], 1.5)
    assert worker.run_bytes(packed(WRAPPER, envelope, wrapped="RemindJob")) == Done()
    assert worker.run_bytes(packed(WRAPPER, envelope)) == Done()  # the name is only inside
    assert ran == [(TEXT, "n")] * 2


def test_a_retry_keeps_them_compressed_and_hooks_and_handlers_can_read_them(worker: Worker) -> None:
    asked: list[Any] = []

    class Fail(Job):
        def perform(self, text: str) -> None:
            raise ValueError("no")

        @staticmethod
        def retry_in(count: int, error: Exception, payload: dict[str, Any]) -> int:
            asked.append(payload["args"])
            return 30

        @staticmethod
        def retries_exhausted(payload: dict[str, Any], error: Exception) -> None:
            asked.append(payload["args"])

    raw = packed("Fail", TEXT)
    assert stored(worker.run_bytes(raw), raw)["error_message"] == "no"
    raw = packed("Fail", TEXT, retry=0)
    outcome = worker.run_bytes(raw)

    assert isinstance(outcome, Dead)
    stored(outcome, raw)
    assert asked == [[TEXT], [TEXT]]
    assert [context["job"]["args"] for _, context in worker.reported] == [[TEXT]] * 2
    assert [payload["args"] for payload, _ in worker.told_of_deaths] == [[TEXT]]


def test_one_that_is_interrupted_or_of_an_unknown_class_keeps_them(worker: Worker, ran: list[Any]) -> None:
    raw = packed("keep", TEXT)
    run = JobRun(Unit("default", raw, "token", "me"), worker.clock.now())

    assert stored(worker.execution.interrupt(run), raw)["interrupted_count"] == 1
    raw = packed("Newcomer", TEXT)
    assert stored(worker.run_bytes(raw), raw)["deferred_by"] == "unknown_class"


def test_features_get_them_of_one_that_a_forced_stop_cuts_off_before_it_begins(worker: Worker, ran: list[Any]) -> None:
    seen: list[Any] = []
    worker.play(Feature(end=lambda end: seen.append(end.payload["args"]) or []))  # type: ignore[func-returns-value]

    worker.execution.interrupt(JobRun(Unit("default", packed("keep", TEXT), "token", "me"), 0.0))

    assert seen == [[TEXT]]


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (["no zlib"], PayloadDecompressionError),
        (["a", "b"], PayloadDecompressionConflictError),
        ([], PayloadDecompressionConflictError),
    ],
)
@pytest.mark.parametrize("name", ["keep", "Newcomer"])
@pytest.mark.parametrize("retry", [True, False, 0])
def test_what_cannot_be_read_is_buried_with_its_reason_and_counted(
    worker: Worker, ran: list[Any], arguments: list[Any], kind: type[Exception], name: str, retry: bool | int
) -> None:
    raw = encode({"retry": retry, "queue": "q", "args": arguments, "class": name, "jid": JID, "compressed": True})

    outcome = worker.run_bytes(raw)

    assert isinstance(outcome, Dead)
    payload = decode(outcome.payload)
    assert (payload["error_class"], payload["args"], payload["jid"]) == (
        f"kiqcluster.errors.{kind.__name__}",
        arguments,
        JID,
    )
    assert "argument" in payload["error_message"]
    ((error, context),) = worker.reported
    assert (type(error), context["payload"]) == (kind, raw)
    assert worker.counted()[name if name == "keep" else "(unknown)", "default"] == {"dead": 1}
    assert ran == []


def test_a_job_with_an_endless_integer_is_buried_with_its_bytes(worker: Worker, ran: list[Any]) -> None:
    raw = b'{"class":"keep","jid":"a","args":[' + b"9" * (MAX_LONG_DIGITS + 1) + b"]}"

    outcome = worker.run_bytes(raw)

    assert isinstance(outcome, Dead)
    assert bare(outcome.payload) == raw
    assert f"than one of {MAX_LONG_DIGITS} digits" in decode(outcome.payload)["error_message"]
    assert ran == []


@pytest.mark.parametrize("value", [False, "gzip", 1])
def test_a_key_of_the_same_name_with_another_meaning_changes_nothing(
    worker: Worker, ran: list[Any], value: Any
) -> None:
    assert worker.run("keep", "text", compressed=value) == Done()
    assert ran == [("text", 0)]


def test_a_discarded_job_is_discarded(worker: Worker, ran: list[Any]) -> None:
    assert type(worker.run_bytes(packed("broken", TEXT, 5, retry=False))) is Discard


def test_arguments_that_do_not_fit_are_found_out_after_they_are_read(worker: Worker, ran: list[Any]) -> None:
    raw = packed("keep", TEXT, 1, 2)

    assert "MisfitArguments" in stored(worker.run_bytes(raw), raw)["error_class"]
