"""Rate limits of jobs: the server half of the option `rate_limit` (limits.py has the limits themselves).

client   none
server   a row before the run; a unit over the limit is deferred to the time that it is promised

Price: one row of begin.lua, four to six calls inside of it.  A start is counted when the row is true, also if the
process dies before the job runs, or if the reply is lost: rather one start too few in a period than one too many.
Runs in: processor threads.
"""

from __future__ import annotations

from collections.abc import Iterable

from kiqcluster.application.registry import Definition
from kiqcluster.limits import DEFERRED_BY, RateLimit
from kiqcluster.process.runtime import JobEnd, Run
from kiqcluster.sidekiq.outcome import Effect

__all__ = ["RateLimits"]


class RateLimits:
    """The server half."""

    name = DEFERRED_BY
    keys: frozenset[str] = frozenset()

    def is_used_by(self, definition: Definition) -> bool:
        return "rate_limit" in definition.local

    def on_begin(self, run: Run) -> Iterable[Effect]:
        limit: RateLimit = run.job.local["rate_limit"]
        was_promised = run.payload.get("deferred_by") == DEFERRED_BY
        return [limit.row(run.keys.rate(limit.name or run.job.name), was_promised)]

    def on_end(self, _end: JobEnd) -> Iterable[Effect]:
        return ()
