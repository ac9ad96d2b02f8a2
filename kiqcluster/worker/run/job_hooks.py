"""Job hooks: what the application says of a failed job, and what it is told.

1. retry_in, may_bury    ask `retry_in`, `retries_exhausted` and `interruptions_exhausted`, for endings.py
2. tell_death_handlers   for endings.py, too
3. report_error          tells error handlers
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

from kiqcluster.application.registry import Definition
from kiqcluster.errors import UsageError, as_exception
from kiqcluster.process.boundary.calls import guarded, name_of, shown
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.outcome import DISCARD, KILL, HookAnswer
from kiqcluster.sidekiq.payload import Payload
from kiqcluster.worker.run import retry

__all__ = ["JobHooks"]


class JobHooks:
    """The hooks of jobs, and the handlers of the application (endings.Hooks).  rng: for the jitter of retries."""

    def __init__(self, setup: Setup, rng: Random, max_retries: int) -> None:
        self._setup = setup
        self._rng = rng
        self.max_retries = max_retries

    def retry_in(
        self, definition: Definition | None, told: Payload, count: int, error: Exception
    ) -> float | HookAnswer:
        """Return the seconds until the next attempt, by `retry_in` or by Sidekiq's curve; or DISCARD or KILL."""
        answer = None if definition is None else self._ask(definition.retry_in, count, error, dict(told))
        if answer is DISCARD or answer is KILL:
            word: HookAnswer = answer
            return word
        wanted = retry.wanted_delay(answer)
        if wanted is None and answer is not None:
            self._report_answer(answer, told)
        return retry.delay(wanted, count, self._rng)

    def may_bury(self, definition: Definition | None, told: Payload, error: Exception, *, is_interrupted: bool) -> bool:
        """Return whether the hook of a job that does not run again lets it go to the dead set."""
        if definition is None:
            return True
        hook = definition.retries_exhausted
        if is_interrupted and definition.interruptions_exhausted is not None:
            hook = definition.interruptions_exhausted
        return self._ask(hook, told, error) is not DISCARD

    def tell_death_handlers(self, told: Payload, error: Exception) -> None:
        self._setup.notify_death_handlers(told, error)

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
