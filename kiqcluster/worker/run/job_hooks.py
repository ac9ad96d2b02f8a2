"""Job hooks: what the application says of a failed job, and what it is told.

1. decide         asks `retry_in`, `retries_exhausted` and `interruptions_exhausted`, tells death handlers, and has
                  decision.py decide
2. report_error   tells error handlers
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from kiqcluster.application.registry import Definition
from kiqcluster.errors import UsageError, as_exception
from kiqcluster.process.boundary.calls import guarded, name_of, shown
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.outcome import DISCARD, KILL, Outcome
from kiqcluster.sidekiq.payload import Payload
from kiqcluster.worker.run import retry
from kiqcluster.worker.run.decision import Disposition, Ending, Facts, decide, disposition

__all__ = ["JobHooks"]

INTERRUPTIONS = (Ending.KILLED_PROCESSES, Ending.FORCED_STOP)  # of which a job has had too many


class JobHooks:
    """The hooks of jobs, and the handlers of the application.  rng: for the jitter of retries."""

    def __init__(self, setup: Setup, rng: Random) -> None:
        self._setup = setup
        self._rng = rng

    def decide(self, facts: Facts, definition: Definition | None, told: Payload, error: Exception) -> Outcome:
        """Ask the job's hooks what they may decide, tell the death handlers of a job that will not run again, decide.

        told: the payload as it would be written.
        """
        if disposition(facts) is Disposition.RETRY and facts.plan is not None:
            count = facts.plan.count
            answer = self._ask(definition.retry_in, count, error, dict(told)) if definition else None
            wanted = retry.wanted_delay(answer)
            if wanted is None and not (answer is None or answer is DISCARD or answer is KILL):
                self._report_answer(answer, told)
            facts = replace(facts, retry_in=answer, retry_delay=retry.delay(wanted, count, self._rng))
        way = disposition(facts)
        if way is Disposition.GIVE_UP and definition is not None:
            hook = definition.retries_exhausted
            if facts.ending in INTERRUPTIONS and definition.interruptions_exhausted is not None:
                hook = definition.interruptions_exhausted
            facts = replace(facts, retries_exhausted=self._ask(hook, told, error))
        if way in (Disposition.GIVE_UP, Disposition.DISCARD):
            # Before the outcome is written: after a crash in between they are told again, which is better than never.
            self._setup.notify_death_handlers(told, error)
        return decide(facts)

    def _ask(self, hook: Any, *facts: Any) -> Any:
        """Return a hook's answer; one that fails is reported and counts as no answer, as in Sidekiq."""
        return None if hook is None else guarded(partial(self._report_hook, hook), hook, *facts)

    def _report_answer(self, answer: object, told: Payload) -> None:
        """Report an answer of `retry_in` that is none; the usual delay counts."""
        error = UsageError(
            f"retry_in of {told.get('class')} has answered {shown(answer)}, which is no delay, so the usual one "
            "counts: answer seconds from 0 on or a timedelta, up to ten years, or DISCARD, KILL or None"
        )
        self.report_error(error, "hook retry_in", job=told)

    def _report_hook(self, hook: Any, raised: BaseException) -> None:
        self.report_error(raised, f"hook {name_of(hook)}")

    def report_error(self, raised: BaseException, context: str, **facts: Any) -> None:
        self._setup.notify_error_handlers(as_exception(raised), {"context": context, **facts})
