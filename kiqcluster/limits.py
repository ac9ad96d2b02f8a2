"""Rate limits: how many starts a period may have, over all processes.

An option of a job:     class Sync(Job, rate_limit=limits.sliding_window(100, 60)): ...
Inside of a job:        with limits.leaky_bucket(10, per_second=5, name="crm"): call_the_api()

fixed_window    at most n starts in each period of the clock: each minute, each hour
sliding_window  at most n starts in any period of that length
leaky_bucket    a burst of n starts, then as many as the rate allows

A job over its limit is deferred to a computed time; it has not failed, and no attempt is counted.  Jobs over a limit
get times one after another, so they neither come back at once nor overtake one another.  Redis' clock decides.

Price: a row of the script before the run (begin.lua), or one round trip inside of a job.  If Redis loses the key of a
limit, its count begins anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType

from kiqcluster.errors import OverLimit, UsageError
from kiqcluster.process.runtime import VIA, current_job, current_setup
from kiqcluster.sidekiq.outcome import Effect
from kiqcluster.sidekiq.payload import new_jid
from kiqcluster.store.scripts import RATE, Call, Word, run_script

__all__ = ["DEFERRED_BY", "OverLimit", "RateLimit", "fixed_window", "leaky_bucket", "sliding_window"]

MAX_NAME_CHARACTERS = 200
DEFERRED_BY = "rate_limit"  # in the payload of a job that a rate limit has deferred


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A limit to starts; an option of a job, or a context manager that counts one start when it is entered.

    kind: the operation of rates.lua.  largest: number of starts.  seconds: length of the period; of a leaky bucket,
    from one start to the next.  name: all limits of one name share one count; "" for the name of the job.
    """

    kind: str
    largest: int
    seconds: float
    name: str = ""

    def row(self, key: str, was_promised: bool) -> Effect:
        """Return the row for begin.lua."""
        return Effect(self.kind, key, (self.largest, repr(self.seconds), int(was_promised)))

    def __enter__(self) -> None:
        """Count one start.  One round trip; none in a test whose jobs stay in memory, where it is always allowed.

        Raises OverLimit, which defers a job; StoreError.
        """
        if not self.name:
            raise UsageError(f'a limit inside of a job needs a name: limits.{self.kind}(…, name="crm")')
        setup = current_setup()
        if setup.delivery is not None:
            return
        store = VIA.get() or setup.current_store()
        running = current_job()
        was_promised = running is not None and running.payload.get("deferred_by") == DEFERRED_BY
        arguments: list[Word] = [self.kind, self.largest, repr(self.seconds), int(was_promised), new_jid()]
        seconds = float(run_script(store, Call(RATE, [store.keys.rate(self.name)], arguments)))
        if seconds:
            raise OverLimit(self.name, seconds)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing: a start stays counted."""


def fixed_window(n: int, seconds: float, *, name: str = "") -> RateLimit:
    """Allow n starts in each period of the clock.  seconds: its length, counted from the epoch (60: each minute)."""
    return _checked("fixed_window", n, seconds, seconds, name)


def sliding_window(n: int, seconds: float, *, name: str = "") -> RateLimit:
    """Allow n starts in any period of that length.  Redis keeps the time of each."""
    return _checked("sliding_window", n, seconds, seconds, name)


def leaky_bucket(n: int, per_second: float, *, name: str = "") -> RateLimit:
    """Allow a burst of n starts; afterwards, room for `per_second` starts comes back each second (0.1: one in ten)."""
    return _checked("leaky_bucket", n, per_second, 1 / per_second if _is_positive(per_second) else 0.0, name)


def _checked(kind: str, n: object, given: object, seconds: float, name: object) -> RateLimit:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise UsageError(f"limits.{kind}: {n!r} is not a number of starts; pass 1 or more")
    if not _is_positive(given):
        raise UsageError(f"limits.{kind}: {given!r} does not fit; pass a positive number")
    if not isinstance(name, str) or len(name) > MAX_NAME_CHARACTERS or (name and not name.isprintable()):
        raise UsageError(f'limits.{kind}: {name!r} is not a valid name; pass a word such as "crm"')
    return RateLimit(kind, n, float(seconds), name)


def _is_positive(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and 0 < value < 1e9
