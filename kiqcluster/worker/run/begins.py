"""Begins: whether units may run, asked in as few round trips as possible.

Runs in: processor threads.
1. begin        ask for the unit of the calling thread; and, while jobs are short, for units at hand that are next
2. end          what a unit holds whose run has ended is released with the next begins: its outcome may wait for a batch

While jobs are short, one thread runs most of them, and the others wait beside the units at hand
(fetch/concurrency_limit).  A round trip for each job would cost more than the job.  So the thread asks for as many
units more as there are threads that wait: each of them has a thread that takes it at once, or within milliseconds if
the jobs before it take longer.  A place is never held by a unit for which no thread is free.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

from kiqcluster.errors import ReplyLost, StoreError
from kiqcluster.process.clock import Clock
from kiqcluster.sidekiq.outcome import Effect
from kiqcluster.store.engine.begin_calls import Begin, Begun, may_hold
from kiqcluster.store.engine.units import GO, BeginVerdict, Unit
from kiqcluster.worker.run.job_run import JobRun

__all__ = ["MAX_AHEAD", "Begins"]

MAX_AHEAD = 24  # units in one round trip beside that of the thread that asks
MAX_AHEAD_BYTES = 65_536  # of their rows, roughly
MAX_ENDED = 200  # units that are released in one round trip, and that are remembered for the next one
MAX_ANSWER_SECONDS = 30.0  # until a thread gives up another one that asks for its unit
MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.05, 2.0  # without asking ahead, after a unit was parked: at first, and later
CALM_SECONDS = 4.0  # without such a unit, after which the next pause is a short one

BeginUnits = Callable[[Sequence[Begin], Sequence[Unit]], Begun]


class Begins:
    """All processors of a worker share it.

    begin_units: see Engine.  units_ahead: returns the units at hand for which threads wait.  prepare: returns the begin
    of such a unit, None if it has no rows, or has to wait for its turn.
    """

    def __init__(
        self,
        begin_units: BeginUnits,
        clock: Clock,
        units_ahead: Callable[[], Iterable[Unit]] = tuple,
        prepare: Callable[[Unit], Begin | None] = lambda _: None,
    ) -> None:
        self._begin_units = begin_units
        self._now = clock.monotonic
        self._units_ahead = units_ahead
        self._prepare = prepare
        self._lock = threading.Lock()  # guards `asked` of all units; nobody holds it over a round trip
        self._ended: deque[JobRun] = deque(maxlen=MAX_ENDED)
        self._paused_until = self._parked_at = 0.0  # monotonic seconds
        self._pause = MIN_PAUSE_SECONDS

    def begin(self, unit: Unit, rows: Sequence[Effect]) -> BeginVerdict:
        """Return whether a unit may run, by its rows, or those by which it was asked for ahead (`asked`).

        One round trip; none without rows, or if it was asked for.
        Raises StoreError; then the unit may hold what its rows name.
        """
        if not rows:
            return GO
        own = Begin(unit, rows)
        asked = self._claim(own)
        if asked is not own and asked.answer is None and asked.turn.acquire(timeout=MAX_ANSWER_SECONDS):
            asked.turn.release()
            if asked.answer is None:  # it was withdrawn
                asked = self._claim(own)
        if asked is own:
            self._ask(own)
        unit.asked = None  # a cycle
        if isinstance(asked.answer, BeginVerdict):
            return asked.answer
        raise asked.answer or ReplyLost("the thread that has asked Redis for this unit has not come back")

    def end(self, run: JobRun) -> None:
        """Release soon what the unit of a run holds that has ended.  Never waits."""
        self._ended.append(run)

    def _claim(self, begin: Begin) -> Begin:
        """Return the begin by which a unit is asked for: this one, unless another thread was faster."""
        unit = begin.unit
        if may_hold(begin.rows):
            unit.holds = True  # first: whoever settles it from now on releases it
        with self._lock:
            asked: Begin = unit.asked or begin
            unit.asked = asked
        return asked

    def _ask(self, own: Begin) -> None:
        """Ask for a unit, and those ahead."""
        batch, turn = [own], own.turn
        answers: Sequence[BeginVerdict | StoreError] = ()
        error: StoreError = ReplyLost("the thread that has asked Redis was interrupted")
        turn.acquire()
        try:
            self._add_ahead(batch)
            ended = self._take_ended()
            begun = self._begin_units(batch, [run.unit for run in ended])
            answers = begun.verdicts
            if begun.is_released:
                _mark_released(ended)
            self._check(answers[1:])
        except StoreError as reason:
            error = reason
        finally:
            for number, begin in enumerate(batch):
                begin.answer = answers[number] if answers else error
            turn.release()

    def _add_ahead(self, batch: list[Begin]) -> None:
        """Add begins of units at hand, which share the turn of the first one."""
        if self._now() < self._paused_until:
            return
        (own,) = batch
        entered: Counter[str] = Counter(row.key for row in own.rows if row.operation == "enter")
        size = 0
        for unit in self._units_ahead():
            begin = None if unit.asked is not None else self._prepare(unit)
            if begin is None:
                continue
            size += _size(begin)
            if size > MAX_AHEAD_BYTES or not _leaves_room(begin, entered):
                break
            begin.turn = own.turn
            batch.append(begin)
            if self._claim(begin) is not begin:  # a thread has taken it meanwhile, and asks itself
                batch.pop()
        self._withdraw_taken(batch)

    def _withdraw_taken(self, batch: list[Begin]) -> None:
        """Withdraw the units that a thread has taken, or put back, meanwhile: it asks itself, or does not ask at all.

        An outcome that was made before the unit was claimed does not release what a begin takes after it.
        """
        if len(batch) == 1:
            return
        waiting = {unit.token for unit in self._units_ahead()}
        for begin in batch[1:]:
            if begin.unit.token not in waiting:
                with self._lock:
                    begin.unit.asked = None
                batch.remove(begin)

    def _check(self, answers: Sequence[BeginVerdict | StoreError]) -> None:
        """Pause if a unit was parked: run one after the other, they might all have found a place."""
        now = self._now()
        if any(isinstance(answer, BeginVerdict) and answer.action == "park" for answer in answers):
            self._pause = MIN_PAUSE_SECONDS if now > self._parked_at + CALM_SECONDS else self._pause * 2
            self._pause = min(self._pause, MAX_PAUSE_SECONDS)
            self._parked_at, self._paused_until = now, now + self._pause

    def _take_ended(self) -> list[JobRun]:
        taken = []
        while self._ended:
            try:
                taken.append(self._ended.popleft())
            except IndexError:  # another thread was faster
                break
        return taken


def _leaves_room(begin: Begin, entered: Counter[str]) -> bool:
    """Return whether a unit leaves half of the places of its sets to others.  entered: how many units take one now."""
    for row in begin.rows:
        if row.operation == "enter":
            largest = row.arguments[0]
            entered[row.key] += 1
            if isinstance(largest, int) and largest and entered[row.key] > max(1, largest // 2):
                return False
    return True


def _mark_released(ended: Sequence[JobRun]) -> None:
    for run in ended:
        # A thread that a job has left behind may take a place even now.
        if run.context is None or run.context.places is None:
            run.unit.holds = False


def _size(begin: Begin) -> int:
    """Return the bytes of the keys and texts of a unit's rows, roughly."""
    size = 0
    for row in begin.rows:
        size += len(row.key)
        for word in row.arguments:
            if isinstance(word, str | bytes):
                size += len(word)
    return size
