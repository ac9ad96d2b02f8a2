"""In flight: the units that a process holds, from the reserve until Redis has written their outcomes.

1. add              reserved units come in, and are held by token
2. finished         an outcome waits for the next batch; a unit in `returned` was never started, and is put back
3. take_waiting     a batch takes everything that waits
4. remove           Redis has written it: held no more.  An outcome that Redis refused stays, and is sent again later
5. acknowledge      the batch is written, or waits again.  One that an unexpected error has ended, a lack of memory
                    perhaps, is never acknowledged: the next batch sends it again

No I/O and no lock: the lock of the coordinator guards it, with two exceptions.  Processors add to `finished` without
it, since the appends of a deque are atomic; so `snapshot` reads it.  A hard stop calls `unacknowledged` without it,
since a stuck thread might hold the lock.  So an outcome is in its new place before it leaves the old one.  An outcome
that is seen twice is settled once, since its token is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from kiqcluster.process.config import NO_LIMIT
from kiqcluster.process.service import snapshot
from kiqcluster.sidekiq.outcome import Done, Requeue
from kiqcluster.store.engine.units import ANY_DEATHS, Refusals, Settlement, Unit

__all__ = [
    "FORGOTTEN_LOOK_SECONDS",
    "LAST_CHANCE_DELAY_SECONDS",
    "MAX_SETTLE_BYTES",
    "REFUSED_RETRY_SECONDS",
    "STALE_UNIT_SECONDS",
    "SUSPECT_DELAY_SECONDS",
    "InFlight",
    "count_fitting",
    "lowest_limit",
    "payload_bytes",
]

MAX_SETTLE_BYTES = 1_000_000  # of payloads that one batch settles, at least one: a lost batch is sent again as a whole
REFUSED_RETRY_SECONDS = 2.0  # until an outcome that Redis refused is sent again
STALE_UNIT_SECONDS = 10.0  # after which a unit is not started, and after half of which a reply counts only once Redis
# has confirmed it: others may have recovered a process that was frozen since
FORGOTTEN_LOOK_SECONDS = 5.0  # between two looks that find a unit forgotten, before it is put back
SUSPECT_DELAY_SECONDS = 0.9  # between the starts of two suspects: a job that kills usually kills early.  Shorter than
# the time between two sweeps, which find the next suspect
LAST_CHANCE_DELAY_SECONDS = 10.0  # the same, before a suspect whose next death is its last.  Not for ever: a job may
# run for hours, or hang


def lowest_limit(limits: Iterable[int | None]) -> int:
    """Return the fewest deaths at which a job of any class is buried, NO_LIMIT if none is.  None: a class without it.

    A reserve does not know the class of a suspect, so all suspects are kept as far apart as the most delicate class.
    """
    return min((limit for limit in limits if limit is not None and limit != NO_LIMIT), default=NO_LIMIT)


def payload_bytes(settlement: Settlement) -> int:
    """Return how many bytes of payloads an outcome sends along, those of its effects among them."""
    outcome = settlement.outcome
    words = [getattr(outcome, "payload", b""), *(word for effect in outcome.effects for word in effect.arguments)]
    return sum(len(word) for word in words if isinstance(word, bytes | str))


def count_fitting(settlements: Sequence[Settlement], most: int) -> int:
    """Return how many of these fit into one batch, from the first on: at least one, and up to `most` bytes."""
    total = 0
    for number, settlement in enumerate(settlements):
        total += payload_bytes(settlement)
        if total > most:
            return max(1, number)
    return len(settlements)


def _have_no_payloads(settlements: Iterable[Settlement]) -> bool:
    for settlement in settlements:  # noqa: SIM110  # a generator would cost each of them twice as much
        if type(settlement.outcome) is not Done or settlement.outcome.effects:
            return False
    return True


class InFlight:
    """The units of one process, and the outcomes that Redis does not have yet.

    finished: outcomes, the oldest first; only a batch takes some out.  returned: units to put back, never started.
    refused: outcomes that Redis would not write, which are sent again at `refused_until`, monotonic seconds.
    """

    def __init__(self, limit: int = 3) -> None:
        """limit: fewest deaths at which a job is buried (`lowest_limit`), NO_LIMIT for never."""
        # Of a suspect that can bear one more without being buried.
        self._max_safe_deaths = (ANY_DEATHS if limit == NO_LIMIT else limit) - 2
        self.finished: deque[Settlement] = deque()
        self.returned: list[Unit] = []
        self.refused: list[Settlement] = []
        self.refused_until = 0.0
        self._held: dict[str, Unit] = {}  # by token
        self._taken: list[Settlement] = []  # by a batch that is not acknowledged yet
        self._forgotten: frozenset[str] = frozenset()  # tokens, by the last look
        self._suspects: dict[str, Unit] = {}  # held units that processes have died with, by token, the latest last

    def __len__(self) -> int:
        """Return the number of units that are held, in any state."""
        return len(self._held)

    @property
    def tokens(self) -> list[str]:
        return list(self._held)

    @property
    def has_waiting(self) -> bool:
        """Whether anything waits for a batch."""
        return bool(self.finished or self.refused or self.returned)

    def add(self, units: Iterable[Unit], at: float) -> None:
        """Hold reserved units.  at: monotonic seconds, now."""
        for unit in units:
            unit.reserved_at = at
            self._held[unit.token] = unit
            if unit.deaths:
                self._suspects[unit.token] = unit

    def return_units(self, units: deque[Unit]) -> int:
        """Have all of these put back that no processor takes meanwhile, from the left; return how many."""
        before = len(self.returned)
        while units:
            try:
                self.returned.append(units.pop())
            except IndexError:  # a processor was faster
                break
        return len(self.returned) - before

    def return_forgotten(self, others: Iterable[Unit], now: float) -> int:
        """Have held units put back that nobody has, neither at this look nor at the last one; return how many.

        A thread that gets no memory may end between any two steps, and a unit that it has not started is gone with it.
        others: units at hand, and those that run.  Units that a thread may still be about to start are left alone.
        """
        waiting = (*snapshot(self.finished), *self._taken, *self.refused)
        known = {unit.token for unit in (*others, *self.returned, *(each.unit for each in waiting))}
        oldest = now - STALE_UNIT_SECONDS - FORGOTTEN_LOOK_SECONDS
        found = {token for token, unit in self._held.items() if unit.reserved_at < oldest} - known
        forgotten = [self._held[token] for token in found & self._forgotten]
        self.returned += forgotten
        self._forgotten = frozenset(found)
        return len(forgotten)

    def take_waiting(self, now: float) -> list[Settlement]:
        """Return what a batch settles now: everything that waits, up to MAX_SETTLE_BYTES of payloads.

        After a batch that was not acknowledged, it is that one again.  In each step an outcome is in its new place
        before it leaves the old one, so an error between two steps loses none; what is seen twice is settled once.
        """
        if self._taken:
            return self._taken
        waiting = snapshot(self.finished)
        is_light = _have_no_payloads(waiting)
        self._taken = batch = waiting if is_light else waiting[: count_fitting(waiting, MAX_SETTLE_BYTES)]
        for _ in batch:
            self.finished.popleft()
        if self.refused and now >= self.refused_until and len(batch) == len(waiting):
            # Outcomes without payloads leave room for one of any size, which must not wait until there are none.
            beside = [] if is_light else batch
            count = count_fitting([*beside, *self.refused], MAX_SETTLE_BYTES) - len(beside)
            batch += self.refused[:count]
            self.refused = self.refused[count:]
        # Newest first, so that the oldest is fetched next.
        self.returned.sort(key=lambda unit: unit.token, reverse=True)
        batch += [Settlement(unit, Requeue()) for unit in self.returned]
        self.returned = []
        return batch

    def remove(self, batch: Iterable[Settlement]) -> None:
        """Hold these units no more: Redis has written their outcomes."""
        held, suspects = self._held, self._suspects
        for settlement in batch:
            held.pop(settlement.unit.token, None)
            if suspects:
                suspects.pop(settlement.unit.token, None)

    def keep_refused(self, batch: Iterable[Settlement], refusals: Refusals, now: float) -> None:
        """Keep the outcomes that Redis refused to write: their units stay held, and they are sent again later."""
        self.refused += [each for each in batch if each.unit.token in refusals]
        self.refused_until = now + REFUSED_RETRY_SECONDS

    def restore(self, batch: Iterable[Settlement]) -> None:
        """Have a failed batch wait for the next one: whether Redis has written it is not known."""
        outcomes = []
        for settlement in batch:
            if type(settlement.outcome) is Requeue:
                self.returned.append(settlement.unit)  # sorted with those that are returned since
            else:
                outcomes.append(settlement)
        self.finished.extendleft(reversed(outcomes))

    def acknowledge(self) -> None:
        """Forget the batch that was taken: it is settled, or waits again."""
        self._taken = []

    def unacknowledged(self) -> list[Settlement]:
        """Return the outcomes that Redis has not acknowledged; from any thread, without the lock."""
        # `finished` twice: outcomes go from there to `_taken`, and back when a reply is lost.
        return [*snapshot(self.finished), *self._taken, *self.refused, *snapshot(self.finished)]

    def clear(self) -> None:
        """Hold nothing: others have recovered the units.  Their outcomes are still sent, and change nothing."""
        self._held.clear()
        self.returned.clear()
        self._suspects.clear()

    def most_deaths(self, batch: Sequence[Settlement], now: float) -> int:
        """Return how many deaths a suspect may have that starts here now, at most; 0: no suspect may start.

        Any number while no other suspect runs.  batch: the outcomes that Redis settles before the reserve.
        Beside others, after a while, a suspect that can bear another death, if all of them can: each may just have
        been in the same process.  A suspect that is one death from being buried starts beside no other, except beside
        those that have run for long.
        """
        if not self._suspects:
            return ANY_DEATHS
        ended = {each.unit.token for each in (*batch, *self.refused)}
        running = [unit for token, unit in self._suspects.items() if token not in ended]
        if not running or now >= running[-1].reserved_at + LAST_CHANCE_DELAY_SECONDS:
            return ANY_DEATHS
        are_safe = all(unit.deaths <= self._max_safe_deaths for unit in running)
        is_late_enough = now >= running[-1].reserved_at + SUSPECT_DELAY_SECONDS
        return max(0, self._max_safe_deaths) if are_safe and is_late_enough else 0
