"""Decision: the table of what becomes of a unit."""

from __future__ import annotations

from typing import Any

import pytest

from kiqcluster import DISCARD, KILL
from kiqcluster.errors import CannotRun
from kiqcluster.sidekiq.outcome import Dead, Deferred, Discard, Done, Effect, Interrupted, Outcome, Requeue, Retry
from kiqcluster.sidekiq.payload import INVALID_PAYLOAD
from kiqcluster.sidekiq.ruby_json import decode
from kiqcluster.worker.run.decision import DEFERRAL_SECONDS, YIELD_SECONDS, Disposition, Ending, Facts, decide
from kiqcluster.worker.run.decision import disposition as disposition_of
from kiqcluster.worker.run.retry import Plan

NOW = 1_000.0
RAW, ENTRY = b'{"class":"X"}', b'{"class":"X","changed":1}'
ERROR, COULD_NOT_BEGIN = ValueError("no"), CannotRun("no")
FINISH, REQUEUE, INTERRUPT = Disposition.FINISH, Disposition.REQUEUE, Disposition.INTERRUPT
DEFER, RETRY, DISCARDED = Disposition.DEFER, Disposition.RETRY, Disposition.DISCARD
GIVE_UP, BURY = Disposition.GIVE_UP, Disposition.BURY
BURIED = Dead(ENTRY, NOW)


def failure(*, wanted: bool = True, exhausted: bool = False) -> Plan:
    return Plan({}, 0, wanted, exhausted)


LEFT, LAST, UNWANTED = failure(), failure(exhausted=True), failure(wanted=False)


@pytest.mark.parametrize(
    ("ending", "facts", "disposition", "outcome"),
    [
        (Ending.RETURNED, {}, FINISH, Done()),
        (Ending.RETURNED, {"returned": "anything"}, FINISH, Done()),
        (Ending.RETURNED, {"returned": Discard()}, FINISH, Discard()),
        (
            Ending.RETURNED,
            {"returned": Done(effects=(Effect("sadd", "k"),))},
            FINISH,
            Done(effects=(Effect("sadd", "k"),)),
        ),
        (Ending.NOT_STARTED, {}, REQUEUE, Requeue()),
        (Ending.YIELDED, {"is_stopping": True}, INTERRUPT, Interrupted(RAW)),
        (Ending.YIELDED, {}, DEFER, Deferred(ENTRY, NOW + YIELD_SECONDS)),
        (Ending.UNKNOWN_CLASS, {}, DEFER, Deferred(ENTRY, NOW + DEFERRAL_SECONDS)),
        (Ending.FORCED_STOP, {}, INTERRUPT, Interrupted(ENTRY)),
        (Ending.FORCED_STOP, {"error": COULD_NOT_BEGIN}, GIVE_UP, BURIED),
        (Ending.FORCED_STOP, {"error": COULD_NOT_BEGIN, "is_kept": False}, GIVE_UP, Discard()),
        (Ending.FORCED_STOP, {"error": COULD_NOT_BEGIN, "retries_exhausted": DISCARD}, GIVE_UP, Discard()),
        (Ending.KILLED_PROCESSES, {"error": COULD_NOT_BEGIN}, GIVE_UP, BURIED),
        (Ending.KILLED_PROCESSES, {"error": COULD_NOT_BEGIN, "is_kept": False}, GIVE_UP, Discard()),
        (Ending.FAILED, {"plan": LEFT, "retry_delay": 5.0}, RETRY, Retry(ENTRY, NOW + 5.0)),
        (Ending.FAILED, {"plan": LEFT, "retry_in": 7, "retry_delay": 7.5}, RETRY, Retry(ENTRY, NOW + 7.5)),
        (Ending.FAILED, {"plan": LEFT, "is_kept": False}, RETRY, Retry(ENTRY, NOW)),
        (Ending.FAILED, {"plan": LEFT, "retry_in": DISCARD}, DISCARDED, Discard()),
        (Ending.FAILED, {"plan": LEFT, "retry_in": KILL}, GIVE_UP, BURIED),
        (Ending.FAILED, {"plan": LEFT, "retry_in": KILL, "is_kept": False}, GIVE_UP, Discard()),
        (Ending.FAILED, {"plan": LEFT, "retry_in": KILL, "retries_exhausted": DISCARD}, GIVE_UP, Discard()),
        (Ending.FAILED, {"plan": LAST}, GIVE_UP, BURIED),
        (Ending.FAILED, {"plan": LAST, "retries_exhausted": KILL}, GIVE_UP, BURIED),
        (Ending.FAILED, {"plan": LAST, "retries_exhausted": DISCARD}, GIVE_UP, Discard()),
        (Ending.FAILED, {"plan": LAST, "is_kept": False}, GIVE_UP, Discard()),
        (Ending.FAILED, {"plan": UNWANTED}, DISCARDED, Discard()),
        (Ending.FAILED, {"plan": UNWANTED, "error": COULD_NOT_BEGIN}, GIVE_UP, BURIED),
        (Ending.FAILED, {"plan": UNWANTED, "error": COULD_NOT_BEGIN, "is_kept": False}, GIVE_UP, Discard()),
        (Ending.NOT_A_JOB, {}, BURY, Dead(ENTRY, NOW, counted=False)),
        (Ending.UNDECIDABLE, {}, BURY, BURIED),
        (Ending.UNDECIDABLE, {"is_kept": False}, BURY, BURIED),
    ],
)
def test_what_becomes_of_a_unit(
    ending: Ending, facts: dict[str, Any], disposition: Disposition, outcome: Outcome
) -> None:
    error = None if ending is Ending.FORCED_STOP else ERROR
    known = Facts(**{"ending": ending, "now": NOW, "raw": RAW, "queue": "q", "entry": ENTRY, "error": error, **facts})

    assert disposition_of(known) is disposition
    assert decide(known) == outcome


@pytest.mark.parametrize(
    ("ending", "plan", "is_counted"),
    [
        (Ending.FAILED, LAST, True),
        (Ending.KILLED_PROCESSES, None, True),
        (Ending.NOT_A_JOB, None, False),
        (Ending.UNDECIDABLE, None, True),
    ],
)
def test_bytes_that_are_buried_without_an_entry_are_kept_in_one(
    ending: Ending, plan: Plan | None, is_counted: bool
) -> None:
    outcome = decide(Facts(ending=ending, now=NOW, raw=b"\xff", queue="q", error=ERROR, plan=plan))

    assert isinstance(outcome, Dead)
    assert outcome.counted is is_counted
    assert decode(outcome.payload)["class"] == INVALID_PAYLOAD
