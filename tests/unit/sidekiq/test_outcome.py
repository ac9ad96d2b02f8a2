"""Outcomes: what each of the seven counts."""

from __future__ import annotations

import dataclasses

import pytest

from kiqcluster.sidekiq.outcome import Dead, Deferred, Discard, Done, Effect, Interrupted, Outcome, Requeue, Retry


@pytest.mark.parametrize(
    ("outcome", "processed", "failed"),
    [
        (Done(), True, False),
        (Retry(b"", 1.0), True, True),
        (Dead(b"", 1.0), True, True),
        (Dead(b"", 1.0, counted=False), False, False),
        (Discard(), True, True),
        (Requeue(), False, False),
        (Interrupted(b""), False, False),
        (Deferred(b"", 1.0), False, False),
    ],
)
def test_what_an_outcome_adds_to_sidekiqs_counters(outcome: Outcome, processed: bool, failed: bool) -> None:
    assert (bool(outcome.processed), bool(outcome.failed)) == (processed, failed)


def test_an_outcome_is_a_value_and_may_carry_effects() -> None:
    effect = Effect("zrem", "kiq:locks", ("a",))

    assert Done() == Done()
    assert Done(effects=(effect,)).effects == (effect,)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Retry(b"", 1.0).at = 2.0  # type: ignore[misc]
