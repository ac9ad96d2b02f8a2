"""Holdings: the units that a process holds, from the reserve until Redis has written what became of them.

1. reserved     units come in, and are held by token
2. finished     an outcome waits for the next round (`returned`: a unit that nobody has started, to be put back)
3. take         a round takes all of that with it
4. settle       Redis has written it: held no more.  What Redis refused stays, and is tried again after a pause

No I/O, and no lock of its own: that of turns guards it, but for two things.  `finished` is added to without it, since
a deque's appends are atomic; and a hard stop reads all with `left` while nobody may be able to let go of the lock.  So
what leaves one place is in another before; what is seen twice is settled once, since a token is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from kiqcluster.sidekiq.outcome import Done, Requeue
from kiqcluster.store.engine import ANY_DEATHS, Refusals, Settlement, Unit

__all__ = [
    "LONG_LEAD",
    "MAX_SETTLE_BYTES",
    "REFUSED_PAUSE",
    "STALE",
    "SUSPECT_LEAD",
    "Holdings",
    "fitting",
    "weight",
]

MAX_SETTLE_BYTES = 1_000_000  # of payloads that one round settles, at least one: what is lost is sent again as a whole
REFUSED_PAUSE = 2.0  # seconds until an outcome that Redis refused is tried again
STALE = 10.0  # seconds after which a unit is not started, and after half of which a round's reply is not believed until
# Redis has confirmed it: others may have recovered a process that was frozen since
SUSPECT_LEAD = 0.9  # seconds by which a suspect starts before the next one: who kills does so early, as a rule.  Less
# than between two sweeps, which find the next one
LONG_LEAD = 10.0  # seconds by which it starts before one whose next death is the last.  Not for ever: a job may run for
# hours, or hang


def weight(settlement: Settlement) -> int:
    """Return how many bytes of payloads an outcome sends along, its effects' among them."""
    outcome = settlement.outcome
    words = [getattr(outcome, "payload", b""), *(word for effect in outcome.effects for word in effect.arguments)]
    return sum(len(word) for word in words if isinstance(word, bytes | str))


def fitting(settlements: Sequence[Settlement], most: int) -> int:
    """Return how many of these go in one round, from the first on: at least one, and until `most` bytes are full."""
    total = 0
    for number, settlement in enumerate(settlements):
        total += weight(settlement)
        if total > most:
            return max(1, number)
    return len(settlements)


class Holdings:
    """What one process holds.

    finished: outcomes, the oldest first; only a round takes some out.  returned: units to be put back, never started.
    refused: outcomes that Redis would not write, which are tried again at `refused_until`, monotonic seconds.
    """

    def __init__(self, limit: int = 3) -> None:
        """limit: deaths at which a job is buried (max_retries_after_interruption)."""
        self._fresh = limit - 2  # deaths, at most, of one that can bear one more without being buried
        self.finished: deque[Settlement] = deque()
        self.returned: list[Unit] = []
        self.refused: list[Settlement] = []
        self.refused_until = 0.0
        self._held: dict[str, Unit] = {}  # by token
        self._taken: list[Settlement] = []  # by a round that is not acknowledged yet
        self._suspects: dict[str, Unit] = {}  # those that processes have died of, by token, the latest last

    def __len__(self) -> int:
        """Return the number of units that are held, in any state."""
        return len(self._held)

    @property
    def tokens(self) -> list[str]:
        return list(self._held)

    @property
    def is_waiting(self) -> bool:
        """Whether anything waits for a round."""
        return bool(self.finished or self.refused or self.returned)

    def reserve(self, units: Iterable[Unit], at: float) -> None:
        """Take units in.  at: monotonic seconds, now."""
        for unit in units:
            unit.reserved_at = at
            self._held[unit.token] = unit
            if unit.deaths:
                self._suspects[unit.token] = unit

    def give_back(self, units: deque[Unit]) -> int:
        """Have all of these put back that nobody takes meanwhile, from the left; return how many."""
        before = len(self.returned)
        while units:
            try:
                self.returned.append(units.pop())
            except IndexError:  # a processor was faster
                break
        return len(self.returned) - before

    def take(self, now: float) -> list[Settlement]:
        """Return what is to be settled now: all that waits, but no more than MAX_SETTLE_BYTES of payloads."""
        waiting = list(self.finished)
        is_light = all(type(each.outcome) is Done and not each.outcome.effects for each in waiting)
        self._taken = batch = waiting if is_light else waiting[: fitting(waiting, MAX_SETTLE_BYTES)]
        for _ in batch:
            self.finished.popleft()
        if self.refused and now >= self.refused_until and len(batch) == len(waiting):
            # Beside outcomes that send nothing there is room for one of any size: it must not wait until none come.
            beside = [] if is_light else batch
            count = fitting([*beside, *self.refused], MAX_SETTLE_BYTES) - len(beside)
            batch += self.refused[:count]
            self.refused = self.refused[count:]
        # Newest first, so that the oldest is fetched next.
        self.returned.sort(key=lambda unit: unit.token, reverse=True)
        batch += [Settlement(unit, Requeue()) for unit in self.returned]
        self.returned = []
        return batch

    def settle(self, batch: Iterable[Settlement]) -> None:
        """Let go of what Redis has written."""
        for settlement in batch:
            self._held.pop(settlement.unit.token, None)
            self._suspects.pop(settlement.unit.token, None)

    def refuse(self, batch: Iterable[Settlement], refusals: Refusals, now: float) -> None:
        """Keep what Redis refused to write: it stays held, and is tried again later."""
        self.refused += [each for each in batch if each.unit.token in refusals]
        self.refused_until = now + REFUSED_PAUSE

    def put_back(self, batch: Iterable[Settlement]) -> None:
        """Have what a round had taken wait for the next one: whether Redis has written it is not known."""
        outcomes = []
        for settlement in batch:
            if type(settlement.outcome) is Requeue:
                self.returned.append(settlement.unit)  # in its order among those that are returned since
            else:
                outcomes.append(settlement)
        self.finished.extendleft(reversed(outcomes))

    def acknowledge(self) -> None:
        """Forget what the round had taken: it is settled, or waits again."""
        self._taken = []

    def left(self) -> list[Settlement]:
        """Return the outcomes that are not acknowledged; from any thread, without the lock."""
        # Twice, since they go from there to `_taken`, and after a lost reply back.
        return [*self.finished, *self._taken, *self.refused, *self.finished]

    def forget(self) -> None:
        """Hold nothing: others have recovered what was held.  Its outcomes are still sent; they settle to nothing."""
        self._held.clear()
        self.returned.clear()
        self._suspects.clear()

    def most_deaths(self, batch: Sequence[Settlement], now: float) -> int:
        """Return how many processes a suspect may have died with that starts here, at most; 0: none may start.

        Any number, when no other suspect runs (batch: settled with this round, before the reserve).  Beside others,
        after a while, one that can bear another death, as all of them can: each may just have been beside.  Who is a
        death from being buried has no other beside it, but those that have run for long.
        """
        if not self._suspects:
            return ANY_DEATHS
        ended = {each.unit.token for each in (*batch, *self.refused)}
        running = [unit for token, unit in self._suspects.items() if token not in ended]
        if not running or now >= running[-1].reserved_at + LONG_LEAD:
            return ANY_DEATHS
        can_bear_it = all(unit.deaths <= self._fresh for unit in running)
        return max(0, self._fresh) if can_bear_it and now >= running[-1].reserved_at + SUSPECT_LEAD else 0
