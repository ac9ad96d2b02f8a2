"""Rate limits of jobs: the server half of the option `rate_limit` (limits.py has the limits themselves).

client   none
server   a row before the run; a unit over the limit is deferred to the time that it is promised.  The place of a
         concurrent limit is registered under the unit, and released by the script that moves it

Price: one row of begin.lua, three to five calls inside of it; seven for a place, and four more in the script that
settles the job.  A start is counted when the row is true, also if the process dies before the job runs, or if the reply
is lost: rather one start too few in a period than one too many.
Runs in: processor threads.
"""

from __future__ import annotations

from collections.abc import Iterable

from kiqcluster.application.registry import Definition
from kiqcluster.limits import ConcurrentLimit, RateLimit, has_promised, places_of
from kiqcluster.process.job_context import current_job
from kiqcluster.process.runtime import Run
from kiqcluster.sidekiq.outcome import Effect
from kiqcluster.sidekiq.payload import DEFERRED_BY_RATE_LIMIT

__all__ = ["RateLimits"]


class RateLimits:
    """The server half."""

    name = DEFERRED_BY_RATE_LIMIT
    keys: frozenset[str] = frozenset()

    def is_used_by(self, definition: Definition) -> bool:
        return "rate_limit" in definition.local

    def asks_ahead(self, definition: Definition) -> bool:
        """Return whether a start is only counted: a place is taken when the job begins."""
        return not isinstance(definition.local["rate_limit"], ConcurrentLimit)

    def on_begin(self, run: Run) -> Iterable[Effect]:
        limit: RateLimit = run.job.local["rate_limit"]
        name = limit.name or run.job.name
        running = current_job()
        if isinstance(limit, ConcurrentLimit) and running is not None:
            places_of(running).keep(name)  # a block of the same name within the job uses this place
        return [limit.row(run.keys.rate(name), has_promised(name, run.payload))]
