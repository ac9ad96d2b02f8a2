"""Renewal: what the slots are to run, and how that changes while they run it.

1. start      a catalogue child tells what the application has; then there are slots
2. roll       (USR2) ask the newest release the same, and whether it could be started; then replace every process by
              one of it
3. reload     (HUP) read the configuration again and ask again; slots that are still wanted keep their process

What is broken changes nothing: a release that does not load or boot, a configuration that cannot be used.
What has changed and waits (for a reload, a roll, a new supervisor) is kept until that has come.
Runs in: the supervisor's loop.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kiqcluster.clock import Clock
from kiqcluster.config import Config
from kiqcluster.control.orders import AlreadyLogged
from kiqcluster.errors import ApplicationError, KiqError, UsageError
from kiqcluster.process.events import Events
from kiqcluster.sidekiq.queue_groups import Group
from kiqcluster.supervisor.catalogue import Catalogue
from kiqcluster.supervisor.cluster.expansion import SlotPlan, plan_slots, setting_warnings
from kiqcluster.supervisor.cluster.slots import Slot
from kiqcluster.supervisor.cluster.state import ClusterState, ReloadReport, RollReport
from kiqcluster.supervisor.preflight import PreflightReport, ReadConfig, prepare
from kiqcluster.supervisor.processes import ProcessManager
from kiqcluster.supervisor.release_paths import Release, Releases, Superseded
from kiqcluster.supervisor.reload import SlotChanges, compare, effective_config, pending_settings, same_threads
from kiqcluster.supervisor.rolling_restart import Brings, Rollout
from kiqcluster.version import VERSION

__all__ = ["ReadConfig", "Renewal"]

DEPLOY = "deploy"  # how `kiqctl deploy` begins its name
JOBS = "the application's jobs"
NO_CONTROL = "none (`control` and -P say where)"


@dataclass(frozen=True, slots=True)
class Birthright:
    """What all workers have since they were born: by the start, or by the latest roll that was done."""

    config: Config
    jobs: tuple[tuple[str, str], ...] = ()
    release: Release | None = None

    def differences(self, config: Config, jobs: tuple[tuple[str, str], ...], release: Release | None) -> list[str]:
        """Return what waits for a rolling restart, now that the cluster goes by these."""
        _, names = pending_settings(self.config, config)
        names += [JOBS] if jobs != self.jobs else []
        if self.release is not None and release is not None and release.path != self.release.path:
            names.append(f"the release {release.path}")
        return names


class Renewal:
    """reread: None where there is nothing to read again.  cannot_start: told why the first catalogue failed."""

    def __init__(
        self,
        config: Config,
        groups: Sequence[Group],
        state: ClusterState,
        processes: ProcessManager,
        releases: Releases,
        read_config: ReadConfig | None,
        cannot_start: Callable[[Exception], None],
        events: Events,
        clock: Clock,
    ) -> None:
        self.rollout = Rollout(processes, state, events, clock)
        self._config = config
        self._groups = groups
        self._state = state
        self._processes = processes
        self._releases = releases
        self._read_config = read_config
        self._cannot_start = cannot_start
        self._events = events
        self._clock = clock
        self._reloads_after_roll = False  # it is the latest reload that waits
        self._is_roll_open = False  # its end has not been acted upon
        self._restart_reasons: dict[str, str] = {}  # by what they are about
        self._born = Birthright(config)
        self._before_deploy: Release | None = None  # in use when the latest deploy began

    # 1. start

    def start(self) -> None:
        """Ask the application what it has.  Raises ApplicationError, OSError."""
        self._releases.aim_at_newest(self._state.generation)
        self._releases.ask(self._config, self._plan, self._cannot_start)

    def _plan(self, catalogue: Catalogue) -> None:
        """Make the slots.  Raises UsageError when there is nothing to listen to."""
        known = self._learn(catalogue)
        plans = plan_slots(self._groups, known, self._config)
        self._events.emit(
            "supervisor_started", version=VERSION, pid=os.getpid(), slots=len(plans), listen=self._config.listen,
            environment=self._config.environment, control=self._state.control or NO_CONTROL,
        )  # fmt: skip
        self._emit_warnings(plans)
        for plan in plans:
            self._add_slot(Slot(plan))
        self._releases.approve()
        self._take_note_of_birth()

    def _take_note_of_birth(self) -> None:
        """Remember what all workers have."""
        self._born = Birthright(self._config, self._state.jobs, self._releases.in_use)

    def _emit_warnings(self, plans: Sequence[SlotPlan]) -> None:
        for problem in setting_warnings(self._config, len(plans)):
            self._events.emit("setting_doubtful", problem=problem)

    def _learn(self, catalogue: Catalogue) -> frozenset[str]:
        """Take in what the application has; return the names of all queues."""
        known = catalogue.known_queues(self._config)
        self._processes.known_queues = tuple(sorted(known))
        self._state.jobs = catalogue.jobs
        is_other = catalogue.version != VERSION
        self._want_restart(
            "version", f"kiqcluster {catalogue.version} is installed, {VERSION} runs" if is_other else ""
        )
        return known

    def _want_restart(self, about: str, reason: str) -> None:
        """Take note of why a new supervisor is needed, or no more; say what is new."""
        if reason and self._restart_reasons.get(about) != reason:
            self._events.emit("restart_needed", reason=reason)
        self._restart_reasons[about] = reason
        self._state.restart_needed = "; ".join(filter(None, self._restart_reasons.values()))

    def _add_slot(self, slot: Slot) -> None:
        plan = slot.plan
        queues = ",".join(plan.weights) or "(none yet)"
        self._events.emit("slot_group", slot=plan.slot, queues=queues, mode=plan.mode, concurrency=plan.concurrency)
        known = list(self._processes.known_queues)
        if unheard_of := plan.group.unheard_of(known):
            hint = plan.group.hint_for(unheard_of, known)
            self._events.emit("queue_unknown", slot=plan.slot, queues=",".join(unheard_of), hint=hint)
        slot.restarts = self._state.retired_restarts.pop(slot.number, slot.restarts)  # no counter goes back
        self._state.slots.append(slot)

    # 2. roll

    def turn(self) -> None:
        """Go on with what is under way."""
        self.rollout.turn()
        self.conclude_roll()

    def roll(self, ident: str) -> str | None:
        """Begin to replace every process by one of the newest release; return why not, None when it is begun.

        ident: whoever asked finds the result by it; the same twice is one roll.
        """
        refusal = self._refusal()
        roll = self._state.roll
        if refusal is not None or (roll is not None and roll.ident == ident):
            return refusal
        self._begin(ident)
        if (stale := self._releases.why_not_renewed()) is not None:
            self._want_restart("preload", stale)
            self._cannot_roll(ApplicationError(f"{stale}; restart the supervisor for the new release"))
            return None
        read_config, running = self._read_config, self._config
        start_preflight = None if read_config is None else lambda: prepare(read_config, self._state.slots, running)
        try:
            self._releases.aim_at_newest(self._state.generation)
            self._releases.ask(self._config, self._replan, self._cannot_roll, start_preflight)
        except (KiqError, OSError) as error:
            self._cannot_roll(error)
        return None

    def begin_deploy(self, by: str) -> None:
        """Remember which release is in use, if it is a deploy that begins."""
        if by.partition("@")[0] == DEPLOY:
            self._before_deploy, self._state.deploy = self._releases.in_use, by

    def roll_back(self, ident: str, by: str) -> str | None:
        """Begin to bring back the release from before a deploy; return why not, None when that is begun.

        Processes that have it stay.  A cluster that does not know this deploy, for it was started later, brings the
        release of the link.  by: who has begun the deploy.
        """
        roll = self._state.roll
        if self._state.is_stopping or (roll is not None and roll.ident == ident):
            return self._refusal()
        if not self._state.slots:
            self._nothing_to_roll(ident)
            return None
        back_to = self._before_deploy if by == self._state.deploy else None
        try:
            if back_to is None and (in_use := self._releases.in_use) is not None:
                is_newest = str(in_use.path) == self._releases.newest
                back_to = in_use if is_newest else Release(Path(self._releases.newest), self._state.generation + 1)
            assert back_to is not None, "there are slots"
            brings = Brings(back_to.generation, str(back_to.path))
            if self._has_nothing_but(brings):
                self._nothing_to_roll(ident)
                return None
            self._begin(ident, brings)
            self._releases.aim_back_at(back_to)
            self._releases.ask(self._config, self._replan, self._cannot_roll)
        except (KiqError, OSError) as error:
            self._cannot_roll(error)
        return None

    def _nothing_to_roll(self, ident: str) -> None:
        """Answer whoever waits for the end of a roll."""
        self._state.roll = RollReport(ident, "done", ended_at=self._clock.now())

    def _has_nothing_but(self, brings: Brings) -> bool:
        """Return whether all processes have a release, and no other is on its way."""
        if self._config.preload:
            return not self.rollout.is_rolling
        children = [
            child for slot in self._state.slots for child in (slot.child, slot.replacement) if child is not None
        ]
        in_use = self._releases.in_use
        is_in_use = in_use is not None and str(in_use.path) == brings.release and in_use.generation == brings.generation
        return is_in_use and not self.rollout.is_rolling and all(brings.is_in(child) for child in children)

    def _begin(self, ident: str, back_to: Brings | None = None) -> None:
        """Announce a roll; what is asked for at the moment gives way."""
        self._reloads_after_roll |= self._releases.is_asking and not self.rollout.is_rolling  # it is a reload that asks
        self._releases.interrupt("a rolling restart came first; it is tried again after that")
        self._is_roll_open = True
        self.rollout.begin_roll(ident, back_to)

    def _refusal(self) -> str | None:
        if self._state.is_stopping:
            return "the cluster is stopping"
        return None if self._state.slots else "the application is being imported"

    def _replan(self, catalogue: Catalogue) -> None:
        """Begin to replace.  Raises UsageError for what would keep a supervisor from starting with that release."""
        self._look_ahead(catalogue.preflight, is_ours=catalogue.version == VERSION)
        plans = plan_slots(self._groups, self._learn(catalogue), self._config)
        for slot, plan in compare(self._state.slots, plans, same_threads=True).kept:
            slot.plan = plan
        self._releases.roll()
        self.rollout.roll()

    def _look_ahead(self, report: PreflightReport, *, is_ours: bool) -> None:
        """Take note of what the release's configuration changes.  is_ours: it is for the kiqcluster that runs."""
        if report.error and is_ours:
            raise UsageError(f"a supervisor would not start with its configuration: {report.error}")
        self._want_restart("settings", _settings_wait(report.restart))
        if report.error:  # another version may know what we do not
            self._want_restart("settings", f"the configuration is not for kiqcluster {VERSION} ({report.error})")
        needed = ", ".join(report.reload)
        if needed and needed != self._state.reload_needed:
            self._events.emit("reload_needed", settings=needed)
        self._state.reload_needed = needed

    def _cannot_roll(self, error: Exception) -> None:
        if not isinstance(error, Superseded):  # else the next roll says so
            self.rollout.fail_roll(str(error))

    def conclude_roll(self) -> None:
        """End the quiet that a roll came in, also when the roll has failed: nothing must be left standing still."""
        roll = self._state.roll
        if not self._is_roll_open or roll is None or self.rollout.is_rolling:
            return
        self._is_roll_open = False
        if roll.state == "failed":
            self._releases.reject()
        else:
            self._releases.approve()
            self._take_note_of_birth()
            self._state.roll_needed = self._why_rolled_behind(roll.ident)
            self._warn_of_preload()
        if self.rollout.ends_quiet:
            self._state.quiet.end("roll")
            self._events.emit("cluster_resumed", signal="rolling restart")
            self._processes.broadcast("resume")
        if self._reloads_after_roll:
            self._reloads_after_roll = False
            assert self._state.reload is not None, "what waits has been asked for"
            self._read_again(self._state.reload)

    def _why_rolled_behind(self, ident: str) -> str:
        """Return, and say, that the link was moved while workers were replaced by what it had led to; mostly empty."""
        release, newest = self._releases.in_use, self._releases.newest
        if release is None or str(release.path) == newest:
            return ""
        self._events.emit("release_moved", id=ident, release=str(release.path), wanted=newest)
        return f"the release {newest}, which came during the roll"

    def _warn_of_preload(self) -> None:
        """Say that new processes are no new release: the application was imported before they were forked."""
        if self._config.preload:
            self._want_restart("preload", "with --preload, processes have the application as it was at the start")

    # 3. reload

    def reload(self, ident: str) -> str | None:
        """Read configuration and catalogue again; return why not, None when that is under way.

        ident: whoever asked finds the result by it.
        One that comes during a roll is done after it; one during another begins anew, for the file may have changed.
        """
        refusal = self._refusal()
        if refusal is not None:
            return refusal
        report = self._state.reload = ReloadReport(ident)
        if self.rollout.is_rolling and self._read_config is not None:
            self._reloads_after_roll = True
            return None
        return self._read_again(report)

    def _read_again(self, report: ReloadReport) -> str | None:
        if self._read_config is None:
            self._end_reload(report, "done")
            return None
        try:
            config, groups = self._read_config()
            self._releases.interrupt("another question came before the answer")
            self._releases.aim_again(self._state.generation)
            self._releases.ask(
                config,
                lambda catalogue: self._change_to(config, groups, catalogue, report),
                lambda error: self._cannot_reload(report, error),
            )
        except (KiqError, OSError) as error:
            self._cannot_reload(report, error)
            return AlreadyLogged(error)
        return None

    def _cannot_reload(self, report: ReloadReport, error: Exception) -> None:
        self._releases.forget_aim()
        if isinstance(error, Superseded):
            self._state.reloads["superseded"] += 1
            self._events.emit("reload_superseded", reason=error)
            if report is not self._state.reload:  # else it is the roll's turn, and this one goes on after that
                self._end_reload(report, "superseded", str(error))
        else:
            self._state.reloads["failed"] += 1
            self._events.emit("reload_failed", error=error)
            self._end_reload(report, "failed", str(error))

    def _end_reload(self, report: ReloadReport, state: str, error: str = "") -> None:
        report.state, report.error, report.ended_at = state, error, self._clock.now()

    def abandon(self) -> None:
        """Renew nothing any more: the cluster stops."""
        self.rollout.abandon()
        if self._state.reload is not None and self._state.reload.state == "reloading":
            self._end_reload(self._state.reload, "failed", "the cluster was stopped")

    def _change_to(self, config: Config, groups: Sequence[Group], catalogue: Catalogue, report: ReloadReport) -> None:
        """Go by another configuration.  Raises UsageError when it leaves nothing to listen to."""
        plans = plan_slots(groups, catalogue.known_queues(config), config)
        old = self._config
        change = compare(self._state.slots, plans, same_threads=same_threads(old, config))
        self._config = self._processes.config = effective_config(old, config)
        self._groups = groups
        self._learn(catalogue)
        self._releases.approve()
        self._apply(change)
        self._emit_warnings(plans)
        self._state.reloads["done"] += 1
        restart, _ = pending_settings(old, config)
        roll = self._born.differences(config, catalogue.jobs, self._releases.in_use)
        self._state.reload_needed, self._state.roll_needed = "", ", ".join(roll)
        self._events.emit(
            "reloaded", added=len(change.added), removed=len(change.removed), kept=len(change.kept),
            resized=f", with other threads: {len(change.resized)}" if change.resized else "",
            restart=f"; restart the supervisor for {', '.join(restart)}" if restart else "",
            roll=f"; roll (USR2) for {', '.join(roll)}" if roll else "",
        )  # fmt: skip
        self._want_restart("settings", _settings_wait(restart))
        self._end_reload(report, "done")

    def _apply(self, change: SlotChanges) -> None:
        for slot, plan in change.kept:
            slot.plan = plan
            for child in slot.children():
                child.channel.send("queues", known=list(self._processes.known_queues))
        for plan in change.added:
            self._add_slot(Slot(plan))
        for slot, plan in change.resized:
            self._processes.drain(slot)
            slot.plan = plan
        for slot in change.removed:
            slot.is_retiring = True
            for child in slot.children():
                self._processes.ask_to_stop(child, self._config.timeout)


def _settings_wait(names: Sequence[str]) -> str:
    return f"the configuration has another {', '.join(names)} than is used" if names else ""
