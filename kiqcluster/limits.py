"""Rate limits: how many starts a period may have, or how many runs there may be at once, over all processes.

An option of a job:     class Sync(Job, rate_limit=limits.sliding_window(100, 60)): ...
Inside of a job:        with limits.leaky_bucket(10, per_second=5, name="crm"): call_the_api()

fixed_window    at most n starts in each period of the clock: each minute, each hour
sliding_window  at most n starts in any period of that length
leaky_bucket    a burst of n starts, then as many as the rate allows
concurrent      at most n at once; the place comes back at the end of the job, or of the block

A job over its limit is deferred to a computed time; it has not failed, and no attempt is counted.  Jobs over a limit
get times one after another, so they neither come back at once nor overtake one another.  Redis' clock decides.
A concurrent limit knows no time at which a place is free: there a job comes back after a delay, and may be overtaken.

Price: a row of the script before the run (begin.lua), or one round trip inside of a job; of a place inside of a job
two.  If Redis loses the key of a limit, its count begins anew.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from secrets import randbelow
from types import TracebackType

from kiqcluster.errors import Interrupted, OverLimit, StoreError, UsageError
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.delivery import VIA
from kiqcluster.process.job_context import JobContext, current_job
from kiqcluster.process.runtime import current_setup
from kiqcluster.sidekiq.outcome import Effect
from kiqcluster.sidekiq.payload import DEFERRED_BY_RATE_LIMIT, PROMISED_BY, Payload, new_jid
from kiqcluster.store.limits.places import FULL, LOST, leave_place, take_place
from kiqcluster.store.scripts import RATE, Call, Word, run_script

__all__ = [
    "ConcurrentLimit",
    "OverLimit",
    "RateLimit",
    "concurrent",
    "fixed_window",
    "has_promised",
    "leaky_bucket",
    "places_of",
    "sliding_window",
]

MAX_NAME_CHARACTERS = 200
RESERVED_ENDINGS = (":starts", ":running")  # of the keys beside that of a limit
DEFAULT_WAIT_SECONDS, DEFAULT_DELAY_SECONDS = 5.0, 10.0  # of a concurrent limit
MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.05, 1.0  # between two looks whether a place is free


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
        was_promised = running is not None and has_promised(self.name, running.payload)
        arguments: list[Word] = [self.kind, self.largest, repr(self.seconds), int(was_promised), new_jid()]
        seconds = float(run_script(store, Call(RATE, [store.keys.rate(self.name)], arguments)))
        if seconds:
            raise OverLimit(self.name, seconds)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing: a start stays counted."""


@dataclass(frozen=True, slots=True)
class ConcurrentLimit(RateLimit):
    """A limit to runs at the same time; an option of a job, or a context manager that has a place inside of it.

    seconds: until a refused job comes back, and up to twice that, by chance, so that many do not come back at once.
    wait: seconds that a block waits for a place.
    """

    wait: float = DEFAULT_WAIT_SECONDS

    def row(self, key: str, was_promised: bool) -> Effect:  # noqa: ARG002  # nobody is promised a place
        """Return the row for begin.lua."""
        return Effect(self.kind, key, (self.largest, f"defer {self._delay():.3f}"))

    def __enter__(self) -> None:
        """Take a place; wait for one if others have all.  One round trip, one more for each look while it waits.

        It looks after 50 ms, and then ever less often, at most about once a second.  Raises OverLimit, which defers
        the job, when there is none in time or the process stops; UsageError outside of a worker's jobs, and in a
        process that one has forked, unless the job has the place around the fork; Interrupted when others have
        recovered the job; StoreError.  Nothing happens in a test whose jobs stay in memory.
        """
        if not self.name:
            raise UsageError('a limit inside of a job needs a name: limits.concurrent(…, name="crm")')
        setup, running = current_setup(), current_job()
        if setup.delivery is not None:
            return
        if running is None or running.held is None or not running.held[0].token:
            raise UsageError(
                f"limits.concurrent(…, name={self.name!r}) is for jobs that a worker runs: their end gives the place "
                "back. Outside of a job nothing would, if the process died"
            )
        answer = places_of(running).take(running, self)
        if answer == FULL:
            answer = self._wait(running)
        if answer == FULL:
            raise OverLimit(self.name, self._delay())
        if answer == LOST:
            raise Interrupted(f"another process runs this job by now, so it gets no place in {self.name}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the place, unless the job has it for longer.  One round trip.

        A failure is ignored: the end of the job releases the place as well.
        """
        running = current_job()
        if running is None or running.places is None:
            return
        try:
            places_of(running).leave(running, self.name)
        except StoreError:
            return

    def _wait(self, running: JobContext) -> str:
        """Return the last answer of `take_place`, within the time to wait."""
        clock, answer, pause = SystemClock(), FULL, MIN_PAUSE_SECONDS
        ends_at = clock.monotonic() + self.wait
        while answer == FULL and (left := ends_at - clock.monotonic()) > 0:
            running._stopping.wait(min(left, pause * (1 - randbelow(1_000) / 4_000)))  # not all at the same time
            if running.stopping:
                break
            answer = places_of(running).take(running, self)
            pause = min(2 * pause, MAX_PAUSE_SECONDS)
        return answer

    def _delay(self) -> float:
        return self.seconds * (1 + randbelow(1_000) / 1_000)


@dataclass(slots=True)
class HeldPlaces:
    """The places in concurrent limits that a running job has, one of each name: name → how deep its blocks are nested.

    lock: so that threads of a job neither take nor leave a place twice.

    A process that the job forks takes and leaves no place; within those of the job, it may enter further blocks.
    """

    depths: dict[str, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def keep(self, name: str) -> None:
        """Note a place that the job has until it ends."""
        self.depths[name] = self.depths.get(name, 0) + 1

    def take(self, running: JobContext, limit: ConcurrentLimit) -> str:
        """Take a place, or enter a further block of one; return the answer of `take_place`.  Raises UsageError."""
        assert running.held is not None, "a worker runs it"
        if _is_forked(running):  # without the lock, which another thread may have had at the time of the fork
            if limit.name in self.depths:
                return "GO"
            raise UsageError(
                f"a process that a job has forked gets no place in {limit.name}: its worker would not know of it, and "
                "not give it back; enter the limit in the job, around the fork"
            )
        with self.lock:
            depth = self.depths.get(limit.name, 0)
            answer = "GO" if depth else take_place(*running.held, limit.name, limit.largest)
            if answer == "GO":
                self.depths[limit.name] = depth + 1
            return answer

    def leave(self, running: JobContext, name: str) -> None:
        """Leave a block; with the last one, the place."""
        assert running.held is not None, "a worker runs it"
        if _is_forked(running):
            return
        with self.lock:
            self.depths[name] = depth = self.depths.get(name, 0) - 1
            if depth <= 0:
                del self.depths[name]
                leave_place(*running.held, name)


def has_promised(name: str, payload: Payload) -> bool:
    """Return whether the limit of a name has promised this job a time: that of another name says nothing about it.

    All limits that have put the job off count, since its last run that was not put off.  Else two busy limits in one
    job would each put it off at the time that the other one had promised.
    """
    if payload.get("deferred_by") != DEFERRED_BY_RATE_LIMIT:
        return False
    names = payload.get(PROMISED_BY)
    return isinstance(names, list) and name in names


def _is_forked(running: JobContext) -> bool:
    """Return whether this process is one that the job has forked, and not its worker."""
    return running._pid != os.getpid()


def places_of(running: JobContext) -> HeldPlaces:
    """Return the places of a job."""
    if running.places is None:
        running.places = HeldPlaces()
    places: HeldPlaces = running.places
    return places


def fixed_window(n: int, seconds: float, *, name: str = "") -> RateLimit:
    """Allow n starts in each period of the clock.  seconds: its length, counted from the epoch (60: each minute)."""
    return _checked("fixed_window", n, seconds, seconds, name)


def sliding_window(n: int, seconds: float, *, name: str = "") -> RateLimit:
    """Allow n starts in any period of that length.  Redis keeps the time of each."""
    return _checked("sliding_window", n, seconds, seconds, name)


def leaky_bucket(n: int, per_second: float, *, name: str = "") -> RateLimit:
    """Allow a burst of n starts; afterwards, room for `per_second` starts comes back each second (0.1: one in ten)."""
    return _checked("leaky_bucket", n, per_second, 1 / per_second if _is_positive(per_second) else 0.0, name)


def concurrent(
    n: int, *, wait: float = DEFAULT_WAIT_SECONDS, delay: float = DEFAULT_DELAY_SECONDS, name: str = ""
) -> ConcurrentLimit:
    """Allow n at once.

    wait: seconds that a block inside of a job waits for a place; an option does not wait.  delay: seconds until a
    refused job comes back, and up to twice that.
    """
    if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait < 1e9:
        raise UsageError(f"limits.concurrent: wait={wait!r} does not fit; pass seconds, 0 to wait for nobody")
    checked = _checked("concurrent", n, delay, delay, name)
    return ConcurrentLimit(checked.kind, checked.largest, checked.seconds, checked.name, float(wait))


def _checked(kind: str, n: object, given: object, seconds: float, name: object) -> RateLimit:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise UsageError(f"limits.{kind}: {n!r} is not a number of starts; pass 1 or more")
    if not _is_positive(given):
        raise UsageError(f"limits.{kind}: {given!r} does not fit; pass a positive number")
    is_name = isinstance(name, str) and len(name) <= MAX_NAME_CHARACTERS and (not name or name.isprintable())
    if not is_name or str(name).endswith(RESERVED_ENDINGS):
        raise UsageError(f'limits.{kind}: {name!r} is not a valid name; pass a word such as "crm"')
    return RateLimit(kind, n, float(seconds), str(name))


def _is_positive(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and 0 < value < 1e9
