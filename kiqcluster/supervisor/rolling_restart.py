"""RollingRestart: replaces worker processes one slot at a time, and never by one that has not shown that it works.

The replacement boots while the slot's child serves.  Once it works it becomes the child; the process before finishes
its jobs and stops.  The next slot follows once the new process has lived for `roll.bake_time`.  So capacity never
falls, a release that does not boot never takes a slot, and one that soon kills its workers takes one slot at most.

    ASKING      a catalogue child imports the new release, and checks that a supervisor would start with it
      ↓
    REPLACING   slot by slot; processes that start now get the new release
      ↓
    DONE, FAILED (what was replaced stays, and so does what was not), SUPERSEDED (another roll was asked for)

`conclude` acts upon the end once: which release is used from now on; the quiet in which the roll came ends.
With --watch all slots get their new processes at once: code that was edited is not to run any longer.
A slot can also be replaced by itself, when its worker has reached a limit (cluster/recycling.py).
Slots of a shard that is away come last, and wait until it is back (ADR 27).

Runs in: the supervisor's loop.  Counterpart: puma's phased restart, which stops a worker first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kiqcluster.errors import ApplicationError, KiqError
from kiqcluster.process.clock import Clock
from kiqcluster.process.events import Events
from kiqcluster.store.shards import DEFAULT_SHARD
from kiqcluster.supervisor.catalogue import Catalogue, CatalogueQuery, Superseded
from kiqcluster.supervisor.cluster.child import Child
from kiqcluster.supervisor.cluster.process_observer import ProcessObserver
from kiqcluster.supervisor.cluster.recycling import Recycling
from kiqcluster.supervisor.cluster.slots import Slot, away_shards
from kiqcluster.supervisor.cluster.state import ClusterState, Roll, RollPhase
from kiqcluster.supervisor.configuration import ClusterConfiguration
from kiqcluster.supervisor.processes import ProcessManager
from kiqcluster.supervisor.release_paths import Release, ReleasePaths, Start

__all__ = ["RollingRestart", "Target"]

ROLLING = "rolling"  # the reason of a restart, beside those of recycling
ON_PURPOSE = frozenset({"remote_stop", "job_killed", "job_timeout"})  # reasons of deaths that somebody asked for
RECYCLE_RETRY_SECONDS = 60.0  # after a replacement has failed, until its slot is recycled again
DEPLOY = "deploy"  # the name with which `kiqctl deploy` gives orders


@dataclass(frozen=True, slots=True)
class Target:
    """What processes have after a roll.  release: path of the code; empty if the generation alone decides."""

    generation: int
    release: str = ""

    def is_met_by(self, child: Child) -> bool:
        return child.generation == self.generation and self.release in ("", child.release)


class RollingRestart(ProcessObserver):
    """Which slots wait for a new process, which one is being replaced, and the roll that is under way, if any."""

    def __init__(
        self,
        configuration: ClusterConfiguration,
        processes: ProcessManager,
        releases: ReleasePaths,
        query: CatalogueQuery,
        state: ClusterState,
        events: Events,
        clock: Clock,
    ) -> None:
        self._configuration = configuration
        self._processes = processes
        self._releases = releases
        self._query = query
        self._state = state
        self._events = events
        self._clock = clock
        self._recycling = Recycling(
            lambda: processes.config, state, self._enqueue, processes.ask_to_stop, events, clock
        )
        self._roll: Roll | None = None  # the latest, until its end has been acted upon
        self._target = Target(0)
        self._release: Release | None = None  # that the roll brings
        self._trial: Release | None = None  # the same from REPLACING until the end has been acted upon
        self._before_deploy: Release | None = None  # in use when the latest deploy began
        self._waiting: deque[tuple[Slot, str]] = deque()  # with the reason
        self._current: tuple[Slot, str] | None = None
        self._not_before: dict[int, float] = {}  # slot number → when it may be recycled again

    # 1. orders

    def roll(self, ident: str) -> str | None:
        """Begin to replace every process by one of the newest release; return why that is not possible, or None.

        ident: name by which the caller finds the result; the same twice is one roll.
        """
        refusal = self._state.why_no_change
        if refusal is not None or self._is_known(ident):
            return refusal
        self._interrupt_and_announce(ident)
        if (stale := self._releases.why_not_renewed()) is not None:
            self._configuration.want_restart("preload", stale)
            self._cannot_roll(ApplicationError(f"{stale}; restart the supervisor for the new release"))
            return None
        try:
            self._release, self._trial = self._releases.newest_release(self._state.generation), None
            start_preflight = self._configuration.start_preflight()
            directory = self._releases.enter(self._release)
            self._query.ask(
                self._configuration.config, directory, self._on_catalogue, self._cannot_roll, start_preflight
            )
        except (KiqError, OSError) as error:
            self._cannot_roll(error)
        return None

    def begin_deploy(self, by: str) -> None:
        """Remember which release is in use, if `by` is the name of a deploy."""
        if by.partition("@")[0] == DEPLOY:
            self._before_deploy, self._state.deploy = self._releases.in_use, by

    def roll_back(self, ident: str, by: str) -> str | None:
        """Begin to bring back the release from before a deploy; return why that is not possible, or None.

        Processes that have this release stay.  A cluster that was started after the deploy began does not know it, and
        brings the newest release.  by: who began the deploy.
        """
        if self._state.is_stopping or self._is_known(ident):
            return self._state.why_no_change
        if not self._state.slots:
            self._report_nothing_to_do(ident)
            return None
        back_to = self._before_deploy if by == self._state.deploy else None
        try:
            if back_to is None and (in_use := self._releases.in_use) is not None:
                is_newest = str(in_use.path) == self._releases.newest
                back_to = in_use if is_newest else Release(Path(self._releases.newest), self._state.generation + 1)
            assert back_to is not None, "there are slots"
            target = Target(back_to.generation, str(back_to.path))
            if self._is_met(target):
                self._report_nothing_to_do(ident)
                return None
            self._interrupt_and_announce(ident, target)
            self._release, self._trial = back_to, None
            self._releases.pin(back_to)
            directory = self._releases.enter(back_to)
            self._query.ask(self._configuration.config, directory, self._on_catalogue, self._cannot_roll)
        except (KiqError, OSError) as error:
            self._cannot_roll(error)
        return None

    def _is_known(self, ident: str) -> bool:
        return self._state.roll is not None and self._state.roll.ident == ident

    def _report_nothing_to_do(self, ident: str) -> None:
        self._state.roll = Roll(ident, RollPhase.DONE, ended_at=self._clock.now())

    def _is_met(self, target: Target) -> bool:
        """Return whether all processes have a release, and no other is on its way."""
        if self._configuration.config.preload:
            return not self._state.is_rolling
        children = [
            child for slot in self._state.slots for child in (slot.child, slot.replacement) if child is not None
        ]
        in_use = self._releases.in_use
        is_in_use = in_use is not None and Target(in_use.generation, str(in_use.path)) == target
        return is_in_use and not self._state.is_rolling and all(target.is_met_by(child) for child in children)

    def _interrupt_and_announce(self, ident: str, target: Target | None = None) -> None:
        """Announce a roll.  A question that is open gives way; a reload is done after the roll."""
        if not self._state.is_rolling:
            self._configuration.postpone_reload()
        self._query.interrupt("a rolling restart came first; it is tried again after that")
        self.announce(ident, target)

    # 2. phases

    def announce(self, ident: str, target: Target | None = None) -> None:
        """Begin a roll; `replace_all` follows once the new release has answered.  A roll that is under way ends.

        target: of a roll back; None for the new generation.
        """
        if (before := self._stop(RollPhase.SUPERSEDED, f"superseded by {ident}")) is not None:
            self._events.emit("roll_superseded", id=before.ident, by=ident, done=before.done, slots=before.of)
        self._clear()
        self._state.generation += 1
        self._target = target or Target(self._state.generation)
        self._roll = self._state.roll = Roll(ident, of=len(self._state.slots), asked_at=self._clock.monotonic())
        self._events.emit("roll_started", id=ident, slots=len(self._state.slots))

    def _on_catalogue(self, catalogue: Catalogue) -> None:
        """Begin to replace.  Raises UsageError if a supervisor would not start with that release."""
        self._configuration.learn_release(catalogue)
        self.replace_all()

    def replace_all(self) -> None:
        """Queue all slots.  From now on, processes get the new release."""
        assert self._roll is not None, "announce comes before"
        slots = [slot for slot in self._state.slots if not slot.is_retiring]
        self._roll.of, self._roll.phase = len(slots), RollPhase.REPLACING
        self._trial = self._release
        self._waiting.extend((slot, ROLLING) for slot in slots)
        if self._processes.config.watch:
            self._restart_at_once(slots)

    def _restart_at_once(self, slots: Sequence[Slot]) -> None:
        """Have all slots get their new processes now; the ones before end their jobs, and take no others."""
        for slot in slots:
            if slot.child is not None and not self._target.is_met_by(slot.child):
                slot.restarts[ROLLING] += 1
                self._processes.drain(slot)
            slot.history = slot.history.without_wait()

    def _cannot_roll(self, error: Exception) -> None:
        if not isinstance(error, Superseded):  # then the next roll says so
            self.fail(str(error))

    def fail(self, error: str) -> None:
        """Stop a roll: replaced slots keep their new processes, the others their old ones."""
        if (roll := self._stop(RollPhase.FAILED, error)) is not None:
            self._events.emit("roll_failed", id=roll.ident, done=roll.done, slots=roll.of, error=error)

    def abandon(self) -> None:
        """Replace nothing any more: the cluster stops."""
        self.fail("the cluster was stopped")
        self._clear()

    def _stop(self, phase: RollPhase, error: str) -> Roll | None:
        """End a roll that is under way; return it, None if there is none."""
        roll = self._state.roll
        if roll is None or not roll.is_under_way:
            return None
        roll.error = error
        self._end(roll, phase)
        self._clear()
        return roll

    def _end(self, roll: Roll, phase: RollPhase) -> None:
        roll.phase, roll.ended_at = phase, self._clock.now()
        self._state.rolls[phase.value] += 1

    def _clear(self) -> None:
        if self._current is not None:
            self._processes.drop_replacement(self._current[0])
        self._current = None
        self._waiting.clear()

    def _end_if_all_replaced(self) -> None:
        roll = self._roll
        if roll is None or roll.phase is not RollPhase.REPLACING:
            return
        if any(reason == ROLLING for _, reason in (*self._waiting, *filter(None, [self._current]))):
            return
        self._end(roll, RollPhase.DONE)
        self._events.emit("roll_done", id=roll.ident, slots=roll.of)

    def conclude(self) -> None:
        """Act upon the end of a roll, once: decide on the release, and end its quiet also after a failure."""
        roll = self._roll
        if roll is None or roll.is_under_way:
            return
        ends_quiet, release = self.ends_quiet, self._release
        self._roll = self._release = self._trial = None
        if roll.phase is RollPhase.FAILED:
            self._releases.reject(release)
        else:
            assert release is not None, "a roll that is done has a release"
            self._releases.use(release, is_proved=True)
            self._configuration.on_all_replaced()
            self._state.roll_needed = self._why_behind(roll.ident)
            self._warn_of_preload()
        if ends_quiet:
            self._state.quiet.end("roll")
            self._events.emit("cluster_resumed", signal="rolling restart")
            self._processes.broadcast("resume")

    def _why_behind(self, ident: str) -> str:
        """Log and return that the link was moved during the roll; empty if it was not."""
        release, newest = self._releases.in_use, self._releases.newest
        if release is None or str(release.path) == newest:
            return ""
        self._events.emit("release_moved", id=ident, release=str(release.path), wanted=newest)
        return f"the release {newest}, which came during the roll"

    def _warn_of_preload(self) -> None:
        """Say that new processes have no new code: the application was imported before they were forked."""
        if self._configuration.config.preload:
            self._configuration.want_restart(
                "preload", "with --preload, processes have the application as it was at the start"
            )

    @property
    def ends_quiet(self) -> bool:
        """Whether the roll came during a quiet: its replacements serve, and the quiet ends with it."""
        return self._roll is not None and bool(self._state.quiet) and self._state.quiet.asked_at < self._roll.asked_at

    # 3. slots

    def turn(self) -> None:
        """Continue with the slot that is being replaced, or with the next."""
        if self._state.is_stopping or (self._roll is not None and self._roll.phase is RollPhase.ASKING):
            return
        self._recycling.check()
        self._finish_current()
        away = away_shards(self._state.slots)
        self._put_off_current(away)
        while self._current is None and (following := self._next(away)) is not None:
            slot, reason = self._current = following
            self._begin(slot, reason)
            self._finish_current()  # there may have been nothing to do
        self._report_waiting(away)
        self._end_if_all_replaced()

    def _next(self, away: frozenset[str]) -> tuple[Slot, str] | None:
        """Remove and return the slot that is next, of a shard that is not away; None if there is none."""
        gone = [each for each in self._waiting if each[0] not in self._state.slots or each[0].is_retiring]
        for each in gone:
            self._waiting.remove(each)
        following = next((each for each in self._waiting if each[0].shard not in away), None)
        if following is not None:
            self._waiting.remove(following)
        return following

    def _put_off_current(self, away: frozenset[str]) -> None:
        """Let other slots go first, if the current one's shard is away and its replacement does not serve yet."""
        if self._current is None or self._current[0].shard not in away:
            return
        slot = self._current[0]
        is_booting = slot.replacement is not None and not slot.replacement.is_ready
        if (is_booting or slot.child is None) and any(each.shard not in away for each, _ in self._waiting):
            self._processes.drop_replacement(slot)
            self._waiting.append(self._current)
            self._current = None

    def _report_waiting(self, away: frozenset[str]) -> None:
        """Say for which shards the roll waits, when only slots of these are left."""
        roll = self._roll
        if roll is None:
            return
        left = {slot.shard for slot, reason in self._waiting if reason == ROLLING} if self._current is None else set()
        before, roll.waits_for = roll.waits_for, tuple(sorted(shard or DEFAULT_SHARD for shard in left & away))
        if roll.waits_for and roll.waits_for != before:
            names = ", ".join(roll.waits_for)
            self._events.emit("roll_waits", id=roll.ident, shards=names, done=roll.done, slots=roll.of)

    def _enqueue(self, slot: Slot, reason: str) -> bool:
        """Queue a slot for recycling; return whether that is new."""
        is_known = any(slot is each for each, _ in self._waiting) or (
            self._current is not None and self._current[0] is slot
        )
        if is_known or self._clock.monotonic() < self._not_before.get(slot.number, 0.0):
            return False
        self._waiting.append((slot, reason))
        return True

    def _finish_current(self) -> None:
        """Be done with the current slot, if nothing is left to do for it."""
        if self._current is not None and self._is_finished(*self._current):
            if self._state.roll is not None:
                self._state.roll.done += self._current[1] == ROLLING
            self._current = None

    def _begin(self, slot: Slot, reason: str) -> None:
        child = slot.child
        if child is None:  # it waits after a failure: try again now
            slot.history = slot.history.without_wait()
            return
        is_roll = reason == ROLLING
        if is_roll and self._target.is_met_by(child):
            return  # it died meanwhile and came back with this release; or this is a roll back, and it has the release
        is_quiet = bool(self._state.quiet) and not (is_roll and self.ends_quiet)
        if why_not := self._processes.start_replacement(slot, quiet=is_quiet):
            self.on_replacement_failed(slot, why_not)

    def _is_finished(self, slot: Slot, reason: str) -> bool:
        """Return whether the new process of a slot serves and the one before it is gone."""
        child = slot.child
        if slot not in self._state.slots or slot.is_retiring:
            return True
        if reason != ROLLING:
            return slot.replacement is None and not slot.leaving
        if child is None or child.ready_at is None or not self._target.is_met_by(child):
            return False
        config = self._processes.config
        has_baked = self._clock.monotonic() >= child.ready_at + config.roll_bake_time
        return config.watch or (has_baked and not slot.leaving)

    # 4. what happens to processes

    def enter_release(self) -> Start:
        """Change to the release for the next process, and return what it gets.  Raises ApplicationError."""
        return self._releases.start(self._trial)

    def on_ready(self, child: Child) -> None:
        if self._trial is None:  # otherwise the end of the roll decides
            self._releases.prove(child.release)

    def on_promoted(self, slot: Slot) -> None:
        """Count the restart, by its reason."""
        reason = self._current[1] if self._current is not None and self._current[0] is slot else ROLLING
        slot.restarts[reason] += 1
        self._events.emit(
            "child_replaced", slot=slot.number, child=0 if slot.child is None else slot.child.pid, reason=reason
        )

    def on_replacement_failed(self, slot: Slot, how: str) -> None:
        """Give the slot up for now; a roll fails with it."""
        if self._current is None or self._current[0] is not slot:
            return
        reason = self._current[1]
        self._current = None
        self._not_before[slot.number] = self._clock.monotonic() + RECYCLE_RETRY_SECONDS
        slot.memory_strikes = 0
        if reason == ROLLING:
            self.fail(f"slot {slot.number}: {how}")
        else:
            self._events.emit("recycle_failed", slot=slot.number, reason=reason, error=how)

    def on_death(self, slot: Slot, how: str) -> None:
        """Fail a roll whose new process has died: while it booted in an empty slot, or within its bake time.

        A death that somebody asked for says nothing about the release.
        """
        reason = (slot.last_death or {}).get("reason")
        if slot.child is None and self._current == (slot, ROLLING) and reason not in ON_PURPOSE:
            self.on_replacement_failed(slot, how)
        if reason == "boot" and slot.last_death is not None and self._trial is None:
            self._releases.go_back_from(slot.last_death["release"])

    def on_not_started(self, slot: Slot, why: str) -> None:
        """Fail a roll that waits for an empty slot which gets no process, as when its release was deleted."""
        if self._current == (slot, ROLLING):
            self.on_replacement_failed(slot, why)
