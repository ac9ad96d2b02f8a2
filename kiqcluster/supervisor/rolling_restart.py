"""Rollout: replaces worker processes, one slot at a time, and never by one that has not proved healthy.

A slot's replacement boots while its child serves.  When it is ready it takes the place, and the child finishes what it
runs and leaves; then the next slot has its turn, once the new process has lived for `bake_time`.  So capacity never
falls, a release that does not boot never takes a slot, and one that kills its workers soon takes one slot at most.
1. roll       all slots, for a new release.  It stops at the first replacement that fails; what serves goes on serving
2. recycle    one slot, whose child has run enough jobs or uses too much memory
3. turn       what is next, at each turn of the loop

Runs in: the supervisor's loop.  Counterpart: puma's phased restart, which takes a worker away first.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf

from kiqcluster.clock import Clock
from kiqcluster.control.slot_state import SlotState
from kiqcluster.process.events import Events
from kiqcluster.supervisor.cluster.slots import Child, Slot
from kiqcluster.supervisor.cluster.state import ClusterState, RollReport
from kiqcluster.supervisor.processes import ProcessManager

__all__ = ["Brings", "Rollout"]

ROLLING = "rolling"
ON_PURPOSE = frozenset({"remote_stop", "job_killed"})  # deaths that somebody asked for
SECOND_TRY = 60.0  # seconds after a replacement has failed until a slot is recycled again
STRIKES = 3  # looks in a row above max_rss
LOOK = 5.0  # seconds between looks at the memory
MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class Brings:
    """What processes have after a roll.  release: where its code lies; empty where the generation tells enough."""

    generation: int
    release: str = ""

    def is_in(self, child: Child) -> bool:
        return child.generation == self.generation and self.release in ("", child.release)


class Rollout:
    """Which slots wait for a new process, and which has its turn."""

    def __init__(self, processes: ProcessManager, state: ClusterState, events: Events, clock: Clock) -> None:
        self._processes = processes
        self._state = state
        self._events = events
        self._clock = clock
        self._brings = Brings(0)
        self._has_begun = False  # the new release has told what it has; until then nothing is replaced
        self._began_at = -inf  # when the latest roll was asked for, monotonic seconds
        self._waiting: deque[tuple[Slot, str]] = deque()  # with the reason
        self._current: tuple[Slot, str] | None = None
        self._not_before: dict[int, float] = {}  # slot number → when it may be recycled again
        self._complained_of: set[tuple[str, float]] = set()  # limits that were said to be too low

    # 1. roll

    def begin_roll(self, ident: str, back_to: Brings | None = None) -> None:
        """Announce a roll; `roll` follows when the new release has told what it has.  One under way gives way.

        back_to: what was there before; processes that have it already stay.
        """
        self._supersede(ident)
        self._clear()
        self._state.generation += 1
        self._brings = back_to or Brings(self._state.generation)
        self._has_begun = False
        self._began_at = self._clock.monotonic()
        self._state.roll = RollReport(ident, of=len(self._state.slots))
        self._events.emit("roll_started", id=ident, slots=len(self._state.slots))

    def roll(self) -> None:
        """Have every slot of an older generation replaced."""
        report = self._state.roll
        assert report is not None, "begin_roll comes before"
        slots = [slot for slot in self._state.slots if not slot.is_retiring]
        report.of = len(slots)
        self._waiting.extend((slot, ROLLING) for slot in slots)
        self._has_begun = True

    def fail_roll(self, error: str) -> None:
        """Stop a roll: what has been replaced stays, and so does what has not."""
        if (report := self._stop("failed", error)) is not None:
            self._events.emit("roll_failed", id=report.ident, done=report.done, slots=report.of, error=error)

    def _supersede(self, ident: str) -> None:
        """Stop a roll for another one, which is no failure."""
        if (report := self._stop("superseded", f"superseded by {ident}")) is not None:
            self._events.emit("roll_superseded", id=report.ident, by=ident, done=report.done, slots=report.of)

    def _stop(self, state: str, error: str) -> RollReport | None:
        """End a roll before its end; return its report, None without one."""
        report = self._state.roll
        if report is None or report.state != ROLLING:
            return None
        report.state, report.error, report.ended_at = state, error, self._clock.now()
        self._state.rolls[state] += 1
        self._clear()
        return report

    @property
    def is_rolling(self) -> bool:
        return self._state.roll is not None and self._state.roll.state == ROLLING

    @property
    def ends_quiet(self) -> bool:
        """Whether there is a quiet that the latest roll came in: replacements serve, and it ends with the roll."""
        return bool(self._state.quiet) and self._state.quiet.asked_at < self._began_at

    def abandon(self) -> None:
        """Replace nothing any more: the cluster stops."""
        if self.is_rolling:
            self.fail_roll("the cluster was stopped")
        self._clear()

    def _clear(self) -> None:
        if self._current is not None:
            self._processes.drop_replacement(self._current[0])
        self._current = None
        self._waiting.clear()

    def _conclude(self) -> None:
        """End the roll if nobody waits for it any more."""
        report = self._state.roll
        is_waiting = self._current is not None and self._current[1] == ROLLING
        if (
            report is None
            or not (self.is_rolling and self._has_begun)
            or is_waiting
            or any(why == ROLLING for _, why in self._waiting)
        ):
            return
        report.state, report.ended_at = "done", self._clock.now()
        self._state.rolls["done"] += 1
        self._events.emit("roll_done", id=report.ident, slots=report.of)

    # 2. recycle

    def look_at_limits(self) -> None:
        """Put in line whoever has run enough jobs, or uses too much memory."""
        for slot in self._state.slots:
            if slot.state.is_serving and slot.child is not None:
                if slot.child.processed >= slot.child.job_limit:
                    self._recycle(slot, "max_jobs")
                if slot.child.rss and self._clock.monotonic() >= slot.memory_check_at:  # it has told how large it is
                    slot.memory_check_at = self._clock.monotonic() + LOOK
                    self._weigh(slot, slot.child)
                    return  # one at a turn: a look takes a millisecond or more

    def _weigh(self, slot: Slot, child: Child) -> None:
        config = self._processes.config
        if not config.max_rss and not config.max_rss_hard:
            return
        size = child.unshared_bytes() / MEGABYTE
        soft = self._heeded("max_rss", config.max_rss, child)
        hard = self._heeded("max_rss_hard", config.max_rss_hard, child)
        slot.memory_strikes = slot.memory_strikes + 1 if size > soft else 0
        if size > hard and self._may_lose_one():
            self._events.emit("child_outgrown", slot=slot.number, child=child.pid, size=size, limit=config.max_rss_hard)
            self._processes.ask_to_stop(child, 0.0, "max_rss")
            return
        if (slot.memory_strikes >= STRIKES or size > hard) and self._recycle(slot, "max_rss"):
            self._events.emit("child_outgrown", slot=slot.number, child=child.pid, size=size, limit=min(soft, hard))

    def _heeded(self, name: str, limit: float, child: Child) -> float:
        """Return a limit in MB; none for a child that was beyond it before it had done anything.

        So would be the next one, for ever.
        """
        size = child.boot_memory / MEGABYTE
        if not limit or size <= limit:
            return limit or inf
        if (name, limit) not in self._complained_of:
            self._complained_of.add((name, limit))
            problem = (
                f"{name} is {limit} MB, and workers have {size:.0f} MB when they start: they are not replaced for it"
            )
            self._events.emit("setting_doubtful", problem=f"{problem}; raise it, or leave it out")
        return inf

    def _may_lose_one(self) -> bool:
        """Return whether enough others serve."""
        floor = self._processes.config.min_serving
        floor = len(self._state.slots) - 1 if floor is None else floor
        return sum(slot.state is SlotState.READY for slot in self._state.slots) - 1 >= floor

    def _recycle(self, slot: Slot, reason: str) -> bool:
        """Put a slot in line; return whether that is new."""
        is_known = any(slot is each for each, _ in self._waiting) or (
            self._current is not None and self._current[0] is slot
        )
        if is_known or self._clock.monotonic() < self._not_before.get(slot.number, 0.0):
            return False
        self._waiting.append((slot, reason))
        return True

    # 3. turn

    def turn(self) -> None:
        """Go on with the slot whose turn it is, or with the next."""
        if self._state.is_stopping or (self.is_rolling and not self._has_begun):
            return
        self.look_at_limits()
        self._settle()
        while self._current is None and self._waiting:
            slot, reason = self._waiting.popleft()
            if slot not in self._state.slots or slot.is_retiring:
                continue
            self._current = (slot, reason)
            self._begin(slot, reason)
            self._settle()  # there may have been nothing to do
        self._conclude()

    def _settle(self) -> None:
        """Have done with the slot whose turn it is, if nothing more is to be done for it."""
        if self._current is not None and self._is_settled(*self._current):
            if self._state.roll is not None:
                self._state.roll.done += self._current[1] == ROLLING
            self._current = None

    def _begin(self, slot: Slot, reason: str) -> None:
        child = slot.child
        if child is None:  # it waits after a failure: now is the time to try again
            slot.history = slot.history.without_wait()
            return
        is_roll = reason == ROLLING
        if is_roll and self._brings.is_in(child):
            return  # it died meanwhile, and was replaced by one of this release; or a roll back has it already
        is_quiet = bool(self._state.quiet) and not (is_roll and self.ends_quiet)
        if why_not := self._processes.start_replacement(slot, quiet=is_quiet):
            self.on_failure(slot, why_not)

    def _is_settled(self, slot: Slot, reason: str) -> bool:
        """Return whether nothing more is to be done for it: its new process serves, the one before it has left."""
        child = slot.child
        if slot not in self._state.slots or slot.is_retiring:
            return True
        if reason != ROLLING:
            return slot.replacement is None and not slot.leaving
        if child is None or child.ready_at is None or not self._brings.is_in(child):
            return False
        has_baked = self._clock.monotonic() >= child.ready_at + self._processes.config.bake_time
        return has_baked and not slot.leaving

    def on_promoted(self, slot: Slot) -> None:
        """Count what was replaced, and why."""
        reason = self._current[1] if self._current is not None and self._current[0] is slot else ROLLING
        slot.restarts[reason] += 1
        self._events.emit(
            "child_replaced", slot=slot.number, child=0 if slot.child is None else slot.child.pid, reason=reason
        )

    def on_death(self, slot: Slot, how: str) -> None:
        """Stop a roll whose new process has died: while it booted with none to replace, or in its bake time.

        One that somebody has ended on purpose says nothing of the release.
        """
        was_wanted = (slot.last_death or {}).get("reason") in ON_PURPOSE
        if slot.child is None and self._current == (slot, ROLLING) and not was_wanted:
            self.on_failure(slot, how)

    def on_not_started(self, slot: Slot, why: str) -> None:
        """Stop a roll that waits for an empty slot which gets no process, as when its release was deleted."""
        if self._current == (slot, ROLLING):
            self.on_failure(slot, why)

    def on_failure(self, slot: Slot, how: str) -> None:
        """Leave the slot as it is: its replacement did not boot."""
        if self._current is None or self._current[0] is not slot:
            return
        reason = self._current[1]
        self._current = None
        self._not_before[slot.number] = self._clock.monotonic() + SECOND_TRY
        slot.memory_strikes = 0
        if reason == ROLLING:
            self.fail_roll(f"slot {slot.number}: {how}")
        else:
            self._events.emit("recycle_failed", slot=slot.number, reason=reason, error=how)
