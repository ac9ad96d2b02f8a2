"""Renewal: what the slots are to run, and how that changes while they run it.

1. start      a catalogue child tells what the application has; then there are slots
2. roll       (USR2) ask the newest release the same, then replace every process by one of it
3. reload     (HUP) read the configuration again and ask again; slots that are still wanted keep their process

What is broken changes nothing: a release that does not load or boot, a configuration that cannot be used.
Runs in: the supervisor's loop.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from kiqcluster.clock import Clock
from kiqcluster.config import Config
from kiqcluster.errors import KiqError
from kiqcluster.events import Events
from kiqcluster.groups import Group
from kiqcluster.supervisor.catalogue import Catalogue
from kiqcluster.supervisor.children import Slot
from kiqcluster.supervisor.crew import Crew
from kiqcluster.supervisor.expansion import plan_slots
from kiqcluster.supervisor.releases import Releases
from kiqcluster.supervisor.reload import Change, compare, heeded, unheeded
from kiqcluster.supervisor.rollout import Rollout
from kiqcluster.supervisor.state import ClusterState
from kiqcluster.version import VERSION

__all__ = ["Renewal", "Reread"]

THREAD_SETTINGS = ("concurrency", "min_concurrency", "max_concurrency")

Reread = Callable[[], tuple[Config, Sequence[Group]]]  # reads the configuration again; raises UsageError


class Renewal:
    """reread: None where there is nothing to read again.  cannot_start: told why the first catalogue failed."""

    def __init__(
        self,
        config: Config,
        groups: Sequence[Group],
        state: ClusterState,
        crew: Crew,
        releases: Releases,
        reread: Reread | None,
        cannot_start: Callable[[Exception], None],
        events: Events,
        clock: Clock,
    ) -> None:
        self.rollout = Rollout(crew, state, events, clock)
        self._config = config
        self._groups = groups
        self._state = state
        self._crew = crew
        self._releases = releases
        self._reread = reread
        self._cannot_start = cannot_start
        self._events = events
        self._clock = clock
        self._reloads_after_roll = False
        self._is_roll_open = False  # its end has not been acted upon

    # 1. start

    def start(self) -> None:
        """Ask the application what it has.  Raises ApplicationError, OSError."""
        self._releases.ask(self._config, self._plan, self._cannot_start)

    def _plan(self, catalogue: Catalogue) -> None:
        """Make the slots.  Raises UsageError when there is nothing to listen to."""
        known = self._learn(catalogue)
        plans = plan_slots(self._groups, known, self._config)
        self._events.emit(
            "supervisor_started", version=VERSION, pid=os.getpid(), slots=len(plans), listen=self._config.listen
        )
        for plan in plans:
            self._add_slot(Slot(plan))
        self._releases.approve()

    def _learn(self, catalogue: Catalogue) -> frozenset[str]:
        """Take in what the application has; return the names of all queues."""
        known = catalogue.known_queues(self._config)
        self._crew.known_queues = tuple(sorted(known))
        self._state.jobs = catalogue.jobs
        if catalogue.version != VERSION and not self._state.restart_needed:
            self._state.restart_needed = f"kiqcluster {catalogue.version} is installed, {VERSION} runs"
            self._events.emit("restart_needed", reason=self._state.restart_needed)
        return known

    def _add_slot(self, slot: Slot) -> None:
        plan = slot.plan
        queues = ",".join(plan.weights) or "(none yet)"
        self._events.emit("slot_group", slot=plan.slot, queues=queues, mode=plan.mode, concurrency=plan.concurrency)
        if unheard_of := plan.group.unheard_of(self._crew.known_queues):
            self._events.emit("queue_unknown", slot=plan.slot, queues=",".join(unheard_of))
        slot.restarts = self._state.retired_restarts.pop(slot.number, slot.restarts)  # no counter goes back
        self._state.slots.append(slot)

    # 2. roll

    def turn(self) -> None:
        """Go on with what is under way."""
        self.rollout.turn()
        self._conclude_roll()

    def roll(self, ident: str) -> str | None:
        """Begin to replace every process by one of the newest release; return why not, None when it is begun.

        ident: whoever asked finds the result by it; the same twice is one roll.
        """
        refusal = self._refusal()
        roll = self._state.roll
        if refusal is not None or (roll is not None and roll.ident == ident):
            return refusal
        self._reloads_after_roll |= self._releases.is_asking and not self.rollout.is_rolling  # it is a reload that asks
        self._releases.interrupt("a rolling restart came first; it is tried again after that")
        self._releases.unpin()
        self._is_roll_open = True
        self.rollout.begin_roll(ident)
        try:
            self._releases.ask(self._config, self._replan, self._cannot_roll)
        except (KiqError, OSError) as error:
            self._cannot_roll(error)
        return None

    def _refusal(self) -> str | None:
        if self._state.is_stopping:
            return "the cluster is stopping"
        return None if self._state.slots else "the application is being imported"

    def _replan(self, catalogue: Catalogue) -> None:
        plans = plan_slots(self._groups, self._learn(catalogue), self._config)
        for slot, plan in compare(self._state.slots, plans, same_threads=True).kept:
            slot.plan = plan
        self.rollout.roll()

    def _cannot_roll(self, error: Exception) -> None:
        self.rollout.fail_roll(str(error))

    def _conclude_roll(self) -> None:
        """End the quiet that a roll came in, also when the roll has failed: nothing must be left standing still."""
        roll = self._state.roll
        if not self._is_roll_open or roll is None or self.rollout.is_rolling:
            return
        self._is_roll_open = False
        if roll.state == "failed":
            self._releases.pin()
        else:
            self._releases.approve()
            self._warn_of_preload()
        if self.rollout.ends_quiet:
            self._state.quiet.end("roll")
            self._events.emit("cluster_resumed", signal="rolling restart")
            self._crew.tell_all("resume")
        if self._reloads_after_roll:
            self._reloads_after_roll = False
            self.reload()

    def _warn_of_preload(self) -> None:
        """Say that new processes are no new release: the application was imported before they were forked."""
        if self._config.preload and not self._state.restart_needed:
            self._state.restart_needed = "with --preload, processes have the application as it was at the start"
            self._events.emit("restart_needed", reason=self._state.restart_needed)

    # 3. reload

    def reload(self) -> str | None:
        """Read configuration and catalogue again; return why not, None when that is under way.

        One that comes during a roll is done after it; one during another begins anew, for the file may have changed.
        """
        refusal = self._refusal()
        if refusal is not None or self._reread is None:
            return refusal
        if self.rollout.is_rolling:
            self._reloads_after_roll = True
            return None
        try:
            config, groups = self._reread()
            self._releases.ask(
                config, lambda catalogue: self._change_to(config, groups, catalogue), self._cannot_reload
            )
        except (KiqError, OSError) as error:
            self._cannot_reload(error)
            return str(error)
        return None

    def _cannot_reload(self, error: Exception) -> None:
        self._state.reloads["failed"] += 1
        self._events.emit("reload_failed", error=error)

    def _change_to(self, config: Config, groups: Sequence[Group], catalogue: Catalogue) -> None:
        """Go by another configuration.  Raises UsageError when it leaves nothing to listen to."""
        plans = plan_slots(groups, catalogue.known_queues(config), config)
        old, old_jobs = self._config, self._state.jobs
        same_threads = all(getattr(old, name) == getattr(config, name) for name in THREAD_SETTINGS)
        change = compare(self._state.slots, plans, same_threads=same_threads)
        self._config = self._crew.config = heeded(old, config)
        self._groups = groups
        self._learn(catalogue)
        self._apply(change)
        self._state.reloads["done"] += 1
        restart, roll = unheeded(old, config)
        if old_jobs != catalogue.jobs:
            roll.append("the application's jobs")
        self._events.emit(
            "reloaded", added=len(change.added), removed=len(change.removed), kept=len(change.kept),
            restart=f"; restart the supervisor for {', '.join(restart)}" if restart else "",
            roll=f"; roll (USR2) for {', '.join(roll)}" if roll else "",
        )  # fmt: skip

    def _apply(self, change: Change) -> None:
        for slot, plan in change.kept:
            slot.plan = plan
            for child in slot.children():
                child.channel.send("queues", known=list(self._crew.known_queues))
        for plan in change.added:
            self._add_slot(Slot(plan))
        for slot in change.removed:
            slot.retires = True
            for child in slot.children():
                self._crew.dismiss(child, self._config.timeout)
