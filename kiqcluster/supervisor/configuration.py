"""ClusterConfiguration: the configuration in use, the slots that follow from it, and what waits for a restart.

1. start      a catalogue child tells which jobs and queues the application has; then the slots are made
2. release    a rolling restart has asked a new release the same: the slots learn of its queues
3. reload     (HUP) read the configuration again and ask again; slots that are still wanted keep their process

A configuration that cannot be used, or an application that does not load, changes nothing.
Changes that wait for a reload, a roll or a new supervisor are reported until that has happened.
Runs in: the supervisor's loop.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kiqcluster.control.orders import AlreadyLogged
from kiqcluster.errors import KiqError, UsageError
from kiqcluster.process.clock import Clock
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.process.version import VERSION
from kiqcluster.sidekiq.queue_groups import Group, SelectorGroup
from kiqcluster.sidekiq.routing import digest, unused_rules
from kiqcluster.supervisor.catalogue import Catalogue, CatalogueQuery, StartPreflight, Superseded
from kiqcluster.supervisor.cluster.expansion import SlotPlan, plan_slots, setting_warnings
from kiqcluster.supervisor.cluster.reload import (
    SlotChanges,
    check_effective,
    compare,
    effective_config,
    pending_settings,
    same_threads,
)
from kiqcluster.supervisor.cluster.slots import Slot
from kiqcluster.supervisor.cluster.state import ClusterState, ReloadReport
from kiqcluster.supervisor.preflight import PreflightReport, ReadConfig, prepare
from kiqcluster.supervisor.processes import ProcessManager
from kiqcluster.supervisor.release_paths import Release, ReleasePaths

__all__ = ["ClusterConfiguration", "ReadConfig"]

JOBS = "the application's jobs"
NO_CONTROL = "none (`control` and -P say where)"


@dataclass(frozen=True, slots=True)
class Baseline:
    """What all workers were started with: at the start, or by the latest roll that was done."""

    config: Config
    jobs: tuple[tuple[str, str], ...] = ()
    release: Release | None = None

    def differences(self, config: Config, jobs: tuple[tuple[str, str], ...], release: Release | None) -> list[str]:
        """Return what waits for a rolling restart, now that these are in use."""
        _, names = pending_settings(self.config, config)
        names += [JOBS] if jobs != self.jobs else []
        if self.release is not None and release is not None and release.path != self.release.path:
            names.append(f"the release {release.path}")
        return names


class ClusterConfiguration:
    """read_config: None if there is nothing to read again.  cannot_start: told why the first catalogue failed."""

    def __init__(
        self,
        config: Config,
        groups: Sequence[Group],
        state: ClusterState,
        processes: ProcessManager,
        releases: ReleasePaths,
        query: CatalogueQuery,
        read_config: ReadConfig | None,
        cannot_start: Callable[[Exception], None],
        events: Events,
        clock: Clock,
    ) -> None:
        self._config = config
        self._groups = groups
        self._state = state
        self._processes = processes
        self._releases = releases
        self._query = query
        self._read_config = read_config
        self._cannot_start = cannot_start
        self._events = events
        self._clock = clock
        self._reload_waits = False  # for the end of a roll; it is the latest one
        self._restart_reasons: dict[str, str] = {}  # by topic
        self._baseline = Baseline(config)

    @property
    def config(self) -> Config:
        return self._config

    # 1. start

    def start(self) -> None:
        """Ask the application for its jobs and queues.  Raises ApplicationError, OSError."""
        release = self._releases.newest_release(self._state.generation)
        directory = self._releases.enter(release)
        self._query.ask(
            self._config, directory, lambda catalogue: self._make_slots(catalogue, release), self._cannot_start
        )

    def _make_slots(self, catalogue: Catalogue, release: Release) -> None:
        """Make the slots.  Raises UsageError if there is nothing to listen to."""
        plans = self._plan(catalogue)
        self._events.emit(
            "supervisor_started", version=VERSION, pid=os.getpid(), slots=len(plans), listen=self._config.listen,
            environment=self._config.environment, control=self._state.control or NO_CONTROL,
        )  # fmt: skip
        self._emit_warnings(plans)
        for plan in plans:
            self._add_slot(Slot(plan))
        self._releases.use(release)
        self.on_all_replaced()

    def on_all_replaced(self) -> None:
        """Record what all workers have."""
        self._baseline = Baseline(self._config, self._state.jobs, self._releases.in_use)

    def _emit_warnings(self, plans: Sequence[SlotPlan]) -> None:
        for problem in setting_warnings(self._config, len(plans)):
            self._events.emit("setting_doubtful", problem=problem)

    def _plan(self, catalogue: Catalogue) -> list[SlotPlan]:
        """Take over a catalogue; return the plans of the slots.  Raises UsageError."""
        self._learn(catalogue)
        known, jobs = catalogue.known(self._config)
        return plan_slots(self._groups, known, self._config, jobs)

    def _learn(self, catalogue: Catalogue) -> None:
        """Take over a catalogue."""
        self._processes.known_queues = {
            shard: tuple(sorted(catalogue.queues_in(shard, self._config)))
            for shard in ("", *(each.name for each in self._config.shards))
        }
        self._state.jobs = catalogue.routed(self._config)
        rules = catalogue.rules_in_force(self._config)
        self._state.routing = digest(rules)
        for number, hint in unused_rules(rules, catalogue.attributes):
            rule = rules[number - 1].selector.text
            self._events.emit("routing_rule_unused", number=number, selector=rule, hint=hint)
        is_other = catalogue.version != VERSION
        self.want_restart("version", f"kiqcluster {catalogue.version} is installed, {VERSION} runs" if is_other else "")

    def want_restart(self, topic: str, reason: str) -> None:
        """Record why a new supervisor is needed, or with an empty reason that it is not; log a new reason."""
        if reason and self._restart_reasons.get(topic) != reason:
            self._events.emit("restart_needed", reason=reason)
        self._restart_reasons[topic] = reason
        self._state.restart_needed = "; ".join(filter(None, self._restart_reasons.values()))

    def _add_slot(self, slot: Slot) -> None:
        plan = slot.plan
        queues = ",".join(plan.weights) or "(none yet)"
        self._events.emit("slot_group", slot=plan.slot, queues=queues, mode=plan.mode, concurrency=plan.concurrency)
        known = list(self._processes.known_queues.get(plan.group.shard, ()))
        if unheard_of := plan.group.unheard_of(known):
            hint = plan.group.hint_for(unheard_of, known)
            if plan.selector is None:
                self._events.emit("queue_unknown", slot=plan.slot, queues=",".join(unheard_of), hint=hint)
            else:
                self._events.emit("selector_unmatched", slot=plan.slot, values=" ".join(unheard_of), hint=hint)
        slot.restarts = self._state.retired_restarts.pop(slot.number, slot.restarts)  # no counter goes back
        self._state.slots.append(slot)

    # 2. release

    def start_preflight(self) -> StartPreflight | None:
        """Return what checks, in the directory of a new release, whether a supervisor would start with it."""
        if self._read_config is None:
            return None
        read_config, slots, running = self._read_config, self._state.slots, self._config
        return lambda: prepare(read_config, slots, running)

    def learn_release(self, catalogue: Catalogue) -> None:
        """Take over the catalogue of a release to which the cluster rolls.

        Raises UsageError if a supervisor would not start with that release.
        """
        self._check_preflight(catalogue.preflight, is_ours=catalogue.version == VERSION)
        plans = self._plan(catalogue)
        for slot, plan in compare(self._state.slots, plans, same_threads=True).kept:
            slot.plan = plan

    def _check_preflight(self, report: PreflightReport, *, is_ours: bool) -> None:
        """Report what the release's configuration changes.  is_ours: it is for the kiqcluster that runs."""
        if report.error and is_ours:
            raise UsageError(f"a supervisor would not start with its configuration: {report.error}")
        self.want_restart("settings", _settings_wait(report.restart))
        if report.error:  # another version may know settings that this one does not
            self.want_restart("settings", f"the configuration is not for kiqcluster {VERSION} ({report.error})")
        needed = ", ".join(report.reload)
        if needed and needed != self._state.reload_needed:
            self._events.emit("reload_needed", settings=needed)
        self._state.reload_needed = needed

    # 3. reload

    def reload(self, ident: str) -> str | None:
        """Read configuration and catalogue again; return why that is not possible, None once it is under way.

        ident: name by which the caller finds the result.  A reload during a roll is done after it.  One during another
        reload begins again, since the file may have changed.
        """
        refusal = self._state.why_no_change
        if refusal is not None:
            return refusal
        report = self._state.reload = ReloadReport(ident)
        if self._state.is_rolling and self._read_config is not None:
            self._reload_waits = True
            return None
        return self._read_again(report)

    def postpone_reload(self) -> None:
        """Have a reload that is asking now done after the roll that interrupts it."""
        self._reload_waits |= self._query.is_asking

    def continue_reload(self) -> None:
        """Do the reload that has waited for the end of a roll."""
        if self._reload_waits and not self._state.is_rolling:
            self._reload_waits = False
            assert self._state.reload is not None, "a reload that waits was asked for"
            self._read_again(self._state.reload)

    def _read_again(self, report: ReloadReport) -> str | None:
        if self._read_config is None:
            self._end_reload(report, "done")
            return None
        try:
            config, groups = self._read_config()
            self._query.interrupt("another question came before the answer")
            release = self._releases.release_for_reload(self._state.generation)
            self._query.ask(
                config,
                self._releases.enter(release),
                lambda catalogue: self._change_to(config, groups, catalogue, release, report),
                lambda error: self._cannot_reload(report, error),
            )
        except (KiqError, OSError) as error:
            self._cannot_reload(report, error)
            return AlreadyLogged(error)
        return None

    def _cannot_reload(self, report: ReloadReport, error: Exception) -> None:
        if isinstance(error, Superseded):
            self._state.reloads["superseded"] += 1
            self._events.emit("reload_superseded", reason=error)
            if report is not self._state.reload:  # otherwise a roll came first, and this reload is done after it
                self._end_reload(report, "superseded", str(error))
        else:
            self._state.reloads["failed"] += 1
            self._events.emit("reload_failed", error=error)
            self._end_reload(report, "failed", str(error))

    def _end_reload(self, report: ReloadReport, state: str, error: str = "") -> None:
        report.state, report.error, report.ended_at = state, error, self._clock.now()

    def abandon(self) -> None:
        """End a reload that is under way: the cluster stops."""
        if self._state.reload is not None and self._state.reload.state == "reloading":
            self._end_reload(self._state.reload, "failed", "the cluster was stopped")

    def _change_to(
        self, config: Config, groups: Sequence[Group], catalogue: Catalogue, release: Release, report: ReloadReport
    ) -> None:
        """Put another configuration in use.  Raises UsageError if it leaves nothing to listen to, or cannot be mixed.

        See check_effective.
        """
        old = self._config
        check_effective(old, config, catalogue.rules_in_force(config))
        known, jobs = catalogue.known(config)
        plans = plan_slots(groups, known, config, jobs)
        change = compare(self._state.slots, plans, same_threads=same_threads(old, config))
        self._config = self._processes.config = effective_config(old, config)
        self._groups = groups
        self._learn(catalogue)
        self._releases.use(release)
        self._apply(change)
        self._emit_warnings(plans)
        self._state.reloads["done"] += 1
        restart, _ = pending_settings(old, config)
        roll = self._baseline.differences(config, catalogue.routed(config), self._releases.in_use)
        self._state.reload_needed, self._state.roll_needed = "", ", ".join(roll)
        self._events.emit(
            "reloaded", added=len(change.added), removed=len(change.removed), kept=len(change.kept),
            resized=f", with other threads: {len(change.resized)}" if change.resized else "",
            restart=f"; restart the supervisor for {', '.join(restart)}" if restart else "",
            roll=f"; roll (USR2) for {', '.join(roll)}" if roll else "",
        )  # fmt: skip
        self.want_restart("settings", _settings_wait(restart))
        self._end_reload(report, "done")

    def _apply(self, change: SlotChanges) -> None:
        for slot, plan in change.kept:
            slot.plan = plan
            chosen = {}
            if isinstance(plan.group, SelectorGroup):
                chosen = {"chosen": dict(plan.weights), "left_behind": dict(plan.group.left_behind)}
            known = list(self._processes.known_queues.get(plan.group.shard, ()))
            for child in slot.children():
                child.channel.send("queues", known=known, **chosen)
        for plan in change.added:
            self._add_slot(Slot(plan))
        for slot, plan in change.resized:
            self._processes.drain(slot)
            slot.plan = plan
        for slot in change.removed:
            slot.is_retiring = True
            for child in slot.children():
                self._processes.ask_to_stop(child, self._config.stop_timeout)


def _settings_wait(names: Sequence[str]) -> str:
    return f"the configuration has another {', '.join(names)} than is used" if names else ""
