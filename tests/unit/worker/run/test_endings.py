"""Endings: the table of what becomes of a unit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from kiqcluster import DISCARD, KILL, job
from kiqcluster.application.registry import Definition, Registry
from kiqcluster.errors import CannotRun, MalformedPayload, NormalFailure, PayloadDecryptionError
from kiqcluster.features.hooks.run_hooks import NO_FEATURES
from kiqcluster.sidekiq.outcome import (
    Dead,
    Deferred,
    Discard,
    Done,
    Dropped,
    Effect,
    HookAnswer,
    Interrupted,
    Outcome,
    Parked,
    Requeue,
    Retry,
)
from kiqcluster.sidekiq.payload import INVALID_PAYLOAD, Payload
from kiqcluster.sidekiq.ruby_json import decode, encode
from kiqcluster.store.engine.units import BeginVerdict, Unit
from kiqcluster.worker.run import endings
from kiqcluster.worker.run.endings import (
    DEFERRAL_SECONDS,
    INTERRUPTED_DELAY_SECONDS,
    MAX_DEFERRALS,
    NOT_STARTED,
    RETURNED,
    Cancelled,
    CutOff,
    Ending,
    GaveWay,
    GivenUp,
    KilledProcesses,
    OutcomeFailed,
    Raised,
    RaisedInterrupted,
    RanOverLimit,
    Refused,
    Returned,
    Unreadable,
    Unresolved,
    ending_of_forced_stop,
    killed_processes,
    unresolved,
)
from kiqcluster.worker.run.read_job import ReadJob, unreadable_job

NOW = 1_000.0
JID = "a" * 24
ERROR, COULD_NOT_BEGIN = ValueError("no"), CannotRun("no")
BURIED = Dead(b"", NOW)
LAST, UNWANTED, NOT_KEPT = {"retry": 0}, {"retry": False}, {"dead": False}
PARK = Effect("enter", "slots", ("2", "name", ""))


@dataclass
class Answers:
    """The hooks of a job, as a test answers for them."""

    delay: float | HookAnswer = 5.0
    is_wanted: bool = True  # in the dead set, by `retries_exhausted`
    max_retries: int = 25
    asked: list[str] = field(default_factory=list)

    def retry_in(
        self, _definition: Definition | None, _told: Payload, count: int, _error: Exception
    ) -> float | HookAnswer:
        self.asked.append(f"retry_in {count}")
        return self.delay

    def may_bury(
        self, _definition: Definition | None, told: Payload, _error: Exception, *, is_interrupted: bool
    ) -> bool:
        self.asked.append("interruptions_exhausted" if is_interrupted else "retries_exhausted")
        told.clear()  # a hook may do that
        return self.is_wanted

    def tell_death_handlers(self, _told: Payload, _error: Exception) -> None:
        self.asked.append("death handlers")


def read(**keys: Any) -> ReadJob:
    payload = {"class": "X", "args": [1.5], "jid": JID, "queue": "q", "retry": True, "enqueued_at": 1.0, **keys}
    return ReadJob(Unit("q", encode(payload), "token", "me", deaths=3), payload, "X", None, NO_FEATURES)


def shown(outcome: Outcome) -> tuple[Any, ...]:
    """Return an outcome without the payload that it writes."""
    return type(outcome), getattr(outcome, "at", None), getattr(outcome, "counted", None), outcome.effects


@pytest.mark.parametrize(
    ("ending", "keys", "hooks", "outcome"),
    [
        (RETURNED, {}, {}, Done()),
        (Returned("value", "anything"), {}, {}, Done()),
        (Returned(by_middleware=Discard()), {}, {}, Discard()),
        (Returned(by_middleware=Done(effects=(PARK,))), {}, {}, Done(effects=(PARK,))),
        (Returned(failure=NormalFailure()), {}, {}, Done()),
        (NOT_STARTED, {}, {}, Requeue()),
        (Refused(None), {}, {}, Requeue()),
        (Refused(BeginVerdict("lost")), {}, {}, Requeue()),
        (Refused(BeginVerdict("drop", reason="batch")), {}, {}, Dropped(at=NOW)),
        (Refused(BeginVerdict("defer", 7.0, reason="expiry")), {}, {}, Deferred(b"", NOW + 7.0)),
        (RanOverLimit(BeginVerdict("defer", 7.0, reason="rate_limit")), {}, {}, Deferred(b"", NOW + 7.0)),
        (Refused(BeginVerdict("park", row=PARK)), {}, {}, Parked("slots", 2, "name")),
        (RaisedInterrupted(is_stopping=True), {}, {}, Interrupted(b"")),
        (RaisedInterrupted(is_stopping=False), {}, {}, Deferred(b"", NOW + INTERRUPTED_DELAY_SECONDS)),
        (CutOff(1), {}, {}, Interrupted(b"")),
        (CutOff(None), {}, {}, Interrupted(b"")),
        (Cancelled("cancelled"), {}, {}, Dropped(at=NOW)),
        (Unresolved(COULD_NOT_BEGIN, "unknown_class", 1), {}, {}, Deferred(b"", NOW + DEFERRAL_SECONDS)),
        (GivenUp(COULD_NOT_BEGIN, 3), {}, {}, BURIED),
        (GivenUp(COULD_NOT_BEGIN, 3), NOT_KEPT, {}, Discard()),
        (GivenUp(COULD_NOT_BEGIN, 3), {}, {"is_wanted": False}, Discard()),
        (KilledProcesses(COULD_NOT_BEGIN, 3), {}, {}, BURIED),
        (KilledProcesses(COULD_NOT_BEGIN, 3), NOT_KEPT, {}, Discard()),
        (KilledProcesses(COULD_NOT_BEGIN, 3), {}, {"is_wanted": False}, Discard()),
        (KilledProcesses(COULD_NOT_BEGIN, 3, is_told=False), {}, {"is_wanted": False}, BURIED),
        (KilledProcesses(COULD_NOT_BEGIN, 3, is_told=False), NOT_KEPT, {}, Discard()),
        (Raised(ERROR), {}, {}, Retry(b"", NOW + 5.0)),
        (Raised(ERROR), NOT_KEPT, {"delay": 0.0}, Retry(b"", NOW)),
        (Raised(ERROR), {}, {"delay": DISCARD}, Discard()),
        (Raised(ERROR), {}, {"delay": KILL}, BURIED),
        (Raised(ERROR), NOT_KEPT, {"delay": KILL}, Discard()),
        (Raised(ERROR), {}, {"delay": KILL, "is_wanted": False}, Discard()),
        (Raised(ERROR), LAST, {}, BURIED),
        (Raised(ERROR), {}, {"max_retries": 0}, BURIED),
        (Raised(ERROR), LAST, {"is_wanted": False}, Discard()),
        (Raised(ERROR), {**LAST, **NOT_KEPT}, {}, Discard()),
        (Raised(ERROR), UNWANTED, {}, Discard()),
        (Raised(COULD_NOT_BEGIN), UNWANTED, {}, BURIED),
        (Raised(COULD_NOT_BEGIN), {**UNWANTED, **NOT_KEPT}, {}, Discard()),
        (Unreadable(MalformedPayload("no")), {}, {}, Dead(b"", NOW, counted=False)),
        (OutcomeFailed(ERROR), {}, {}, BURIED),
        (OutcomeFailed(ERROR), NOT_KEPT, {}, BURIED),
    ],
)
def test_what_becomes_of_a_unit(ending: Ending, keys: Payload, hooks: dict[str, Any], outcome: Outcome) -> None:
    found = ending.outcome(read(**keys), NOW, Answers(**hooks))

    assert shown(found) == shown(outcome)
    if isinstance(outcome, Parked):
        assert found == outcome


@pytest.mark.parametrize(
    ("ending", "keys", "hooks", "asked"),
    [
        (Raised(ERROR), {}, {}, ["retry_in 0"]),
        (Raised(ERROR), {}, {"delay": DISCARD}, ["retry_in 0", "death handlers"]),
        (Raised(ERROR), {}, {"delay": KILL}, ["retry_in 0", "retries_exhausted", "death handlers"]),
        (Raised(ERROR), LAST, {}, ["retries_exhausted", "death handlers"]),
        (Raised(ERROR), UNWANTED, {}, ["death handlers"]),
        (GivenUp(COULD_NOT_BEGIN, 3), {}, {}, ["interruptions_exhausted", "death handlers"]),
        (KilledProcesses(COULD_NOT_BEGIN, 3), {}, {}, ["interruptions_exhausted", "death handlers"]),
        (KilledProcesses(COULD_NOT_BEGIN, 3, is_told=False), {}, {}, []),
        (RETURNED, {}, {}, []),
        (Cancelled("cancelled"), {}, {}, []),
    ],
)
def test_which_hooks_are_asked(ending: Ending, keys: Payload, hooks: dict[str, Any], asked: list[str]) -> None:
    answers = Answers(**hooks)

    ending.outcome(read(**keys), NOW, answers)

    assert answers.asked == asked


def test_an_iterable_job_that_gives_way_goes_behind_the_others_unless_the_process_stops() -> None:
    given = read()

    assert GaveWay(is_stopping=False).outcome(given, NOW, Answers()) == Interrupted(given.unit.payload, to_back=True)
    assert GaveWay(is_stopping=True).outcome(given, NOW, Answers()) == Interrupted(given.unit.payload)


@pytest.mark.parametrize(
    ("ending", "keys"),
    [
        (Refused(BeginVerdict("drop", reason="batch")), {"dropped": True, "dropped_by": "batch"}),
        (Refused(BeginVerdict("defer", reason="x")), {"deferred": True, "deferred_by": "x", "deferred_count": 1}),
        (Unresolved(COULD_NOT_BEGIN, "unknown_key", 1), {"deferred_by": "unknown_key", "deferred_count": 1}),
        (CutOff(2), {"interrupted_count": 2}),
        (GivenUp(COULD_NOT_BEGIN, 3), {"interrupted_count": 3, "error_message": "no", "retry_count": 0}),
        (Raised(ERROR), {"error_class": "ValueError", "error_message": "no", "retry_count": 0, "queue": "q"}),
    ],
)
def test_what_is_written_into_the_entry(ending: Ending, keys: dict[str, Any]) -> None:
    outcome: Any = ending.outcome(read(), NOW, Answers())

    entry = decode(outcome.payload)
    assert {key: entry[key] for key in keys} == keys
    assert (entry["jid"], entry["args"]) == (JID, [1.5])


@pytest.mark.parametrize("error", [MalformedPayload("no"), PayloadDecryptionError("no")])
@pytest.mark.parametrize("kind", [Unreadable, OutcomeFailed])
def test_bytes_that_are_no_job_are_kept_in_an_entry(kind: type[Unreadable], error: MalformedPayload) -> None:
    outcome = kind(error).outcome(unreadable_job(Unit("q", b"\xff", "token", "me")), NOW, Answers())

    assert isinstance(outcome, Dead)
    assert outcome.counted is (kind is OutcomeFailed)
    assert decode(outcome.payload)["class"] == INVALID_PAYLOAD


def test_a_job_waits_so_often_for_its_class_or_its_key_each() -> None:
    counted = {"deferred_by": "unknown_class", "deferred_count": MAX_DEFERRALS}

    assert unresolved(read(), "unknown_class", COULD_NOT_BEGIN) == Unresolved(COULD_NOT_BEGIN, "unknown_class", 1)
    assert unresolved(read(**counted), "unknown_class", COULD_NOT_BEGIN) is None
    assert unresolved(read(**counted), "unknown_key", COULD_NOT_BEGIN) is not None


@pytest.mark.parametrize(
    ("options", "before", "ending"),
    [
        ({}, None, CutOff(1)),
        ({}, 1, CutOff(2)),
        ({}, 2, GivenUp),
        ({}, "two", CutOff(1)),
        ({"max_retries_after_interruption": 1}, None, GivenUp),
        ({"max_retries_after_interruption": -1}, 99, CutOff(100)),
    ],
)
def test_a_forced_stop_counts_until_the_job_is_given_up(
    registry: Registry, options: dict[str, Any], before: object, ending: object
) -> None:
    job(name="X", **options)(lambda: None)
    given = read(**({} if before is None else {"interrupted_count": before}))
    given.definition = registry.get("X")

    found = ending_of_forced_stop(given, 3)

    assert ending in (found, type(found))


def test_a_job_of_an_unknown_class_is_never_given_up_for_forced_stops() -> None:
    assert ending_of_forced_stop(read(interrupted_count=99), 3) == CutOff(100)


def test_a_job_that_has_killed_its_processes_says_how_many() -> None:
    ending = killed_processes(read(), is_told=True)

    assert (ending.count, ending.is_told, str(ending.error)[:18]) == (3, True, "3 processes died w")


def test_the_table_in_the_docstring_has_all_endings() -> None:
    rows = [line.split("|")[1].strip() for line in (endings.__doc__ or "").splitlines() if line.startswith("| ")]
    named = {each.__name__ for each in vars(endings).values() if isinstance(each, type) and issubclass(each, Ending)}

    assert {name for name in rows[1:] if name} == named - {"Ending"}
    with pytest.raises(NotImplementedError):
        Ending().outcome(read(), NOW, Answers())
