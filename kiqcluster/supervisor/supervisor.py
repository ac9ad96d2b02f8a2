"""Supervisor: keeps a worker process in every slot, from the first signal to the last.

Runs in: the process' only thread.
1. open       signals, pidfile, listener, guardian of the embedded server: what can be refused is refused first
2. catalogue  a child imports the application and says which queues there are; then the slots are planned
3. loop       select → signals, frames, HTTP; then reap, deadlines, spawn
4. stop       quiet, wait, kill what is overdue, reap, leave with a code that says how it went

Never: talks to Redis, imports the application, starts a thread, waits for a child.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from kiqcluster.board import Board
from kiqcluster.clock import Clock, SystemClock
from kiqcluster.config import STOP_GRACE, Config
from kiqcluster.errors import ApplicationError, ExitCode, UsageError
from kiqcluster.events import Events
from kiqcluster.frames import Channel, Frame
from kiqcluster.groups import Group
from kiqcluster.supervisor import respawn
from kiqcluster.supervisor.catalogue import Catalogue, CatalogueChild
from kiqcluster.supervisor.children import Child, Death, Slot, restart_reason
from kiqcluster.supervisor.expansion import SlotPlan, plan_slots
from kiqcluster.supervisor.fork import fork_with_socket, reap, reap_adopted
from kiqcluster.supervisor.guardian import Guardian
from kiqcluster.supervisor.metrics import ClusterMetrics
from kiqcluster.supervisor.pidfile import Pidfile
from kiqcluster.supervisor.probes import Probes, why_not_ready
from kiqcluster.supervisor.signals import SignalInbox
from kiqcluster.version import VERSION

__all__ = ["Birth", "Supervisor"]

LONGEST_TURN = 1.0  # seconds that the loop sleeps at most: deadlines are looked at after that
GUARDIAN_PATIENCE = 15.0  # seconds that the embedded server gets at the end


@dataclass(frozen=True, slots=True)
class Birth:
    """What a new worker process is told; the cli turns it into the worker's own words."""

    plan: SlotPlan
    known_queues: tuple[str, ...]
    quiet: bool
    board: Board
    parent: socket.socket
    orphans: dict[str, tuple[str, ...]]
    directory: Path = field(default_factory=Path.cwd)


class Supervisor:
    """run_child: runs a worker in a forked process and returns its exit code (worker.child, handed over by the cli)."""

    def __init__(
        self, config: Config, groups: Sequence[Group], run_child: Callable[[Birth], int], events: Events
    ) -> None:
        self._config = config
        self._groups = groups
        self._run_child = run_child
        self._events = events
        self._clock: Clock = SystemClock()
        self._rng = Random()
        self._selector = selectors.DefaultSelector()
        self._inbox = SignalInbox()
        self._pidfile = Pidfile(config.pidfile) if config.pidfile else None
        self._directory = config.known_directory()
        self._probes: Probes | None = None
        self._guardian: Guardian | None = None
        self._catalogue: CatalogueChild | None = None
        self._ending: set[int] = set()  # pids that are done and not reaped yet
        self._had_terminal = sys.stdin is not None and sys.stdin.isatty()
        self._known_queues: tuple[str, ...] = ()
        self.slots: list[Slot] = []
        self.is_quiet = False
        self._stop_by: float | None = None  # when what is left is killed
        self._exit_code = ExitCode.STOPPED
        self._metrics = ClusterMetrics(lambda: self.slots, lambda: self.is_quiet)

    def run(self) -> int:
        """Run until stopped; return the exit code.  Raises UsageError for what is refused at the start."""
        try:
            self._open()
            while not self._is_over():
                self._turn()
        finally:
            self._close()
        stranded = [identity for slot in self.slots for identity in slot.orphans]
        if stranded:
            self._events.emit("cluster_stranded", identities=", ".join(stranded))
            self._exit_code = self._exit_code or ExitCode.UNEXPECTED
        self._events.emit("cluster_stopped", code=int(self._exit_code))
        return self._exit_code

    # 1. open

    def _open(self) -> None:
        self._inbox.install()  # before the pidfile tells others whom to signal
        self._selector.register(self._inbox.fileno(), selectors.EVENT_READ, self._on_signals)
        if self._pidfile is not None:
            self._pidfile.acquire()
        self._probes = Probes(
            self._config.listen, self._selector, self._clock, self._metrics, self._why_not_ready, self._events
        )
        if self._config.embedded is not None:
            self._guardian = Guardian(self._config.embedded, self._forget, self._events, self._clock, self._rng)
            self._guardian.keep()
            self._events.emit("embedded_started", directory=self._guardian.directory, pid=self._guardian.pid)
        self._start_catalogue()

    def _forget(self) -> None:
        """Close, in a child, what is the supervisor's.  The pipe to the guardian stays: it is held on purpose."""
        self._selector.close()
        self._inbox.close()
        if self._probes is not None:
            self._probes.close()
        for slot in self.slots:
            if slot.child is not None:
                slot.child.channel.close()
        if self._catalogue is not None:
            self._catalogue.channel.close()
        if self._pidfile is not None:
            self._pidfile.forget()

    def _enter_directory(self) -> None:
        """Follow the logical path again, so that a `current` link that was moved is seen."""
        try:
            os.chdir(self._directory)
        except OSError as error:
            raise ApplicationError(f"the directory {self._directory} is gone ({error.strerror})") from error

    # 2. catalogue

    def _start_catalogue(self) -> None:
        self._enter_directory()
        child = CatalogueChild(self._config, self._directory, self._clock, self._forget)
        self._catalogue = child
        self._selector.register(child.channel, selectors.EVENT_READ, self._on_catalogue)

    def _on_catalogue(self) -> None:
        assert self._catalogue is not None
        try:
            catalogue = self._catalogue.result()
            if catalogue is not None:
                self._end_catalogue()
                self._plan(catalogue)
        except (ApplicationError, UsageError) as error:
            self._catalogue_failed(error)

    def _end_catalogue(self) -> None:
        if self._catalogue is not None:
            self._selector.unregister(self._catalogue.channel)
            self._catalogue.channel.close()
            self._ending.add(self._catalogue.pid)
            self._catalogue = None

    def _catalogue_failed(self, error: ApplicationError | UsageError) -> None:
        self._events.emit("catalogue_failed", error=error)
        self._end_catalogue()
        self._exit_code = error.exit_code
        self._stop_by = self._clock.monotonic()

    def _plan(self, catalogue: Catalogue) -> None:
        known = catalogue.known_queues(self._config)
        self._known_queues = tuple(sorted(known))
        plans = plan_slots(self._groups, known, self._config)
        self._events.emit(
            "supervisor_started", version=VERSION, pid=os.getpid(), slots=len(plans), listen=self._config.listen
        )
        for plan in plans:
            queues = ",".join(plan.weights) or "(none yet)"
            self._events.emit("slot_group", slot=plan.slot, queues=queues, mode=plan.mode, concurrency=plan.concurrency)
            if unheard_of := plan.group.unheard_of(known):
                self._events.emit("queue_unknown", slot=plan.slot, queues=",".join(unheard_of))
            self.slots.append(Slot(plan, Board(plan.concurrency)))

    # 3. loop

    def _turn(self) -> None:
        for key, _ in self._selector.select(LONGEST_TURN if not self._is_stopping else LONGEST_TURN / 10):
            key.data()
        self._reap_all()
        self._look_at_deadlines()
        self._spawn_due()
        for slot in self.slots:
            if slot.child is not None:
                slot.child.channel.flush()  # what a full socket left behind

    @property
    def _is_stopping(self) -> bool:
        return self._stop_by is not None

    def _is_over(self) -> bool:
        return self._is_stopping and self._catalogue is None and all(slot.child is None for slot in self.slots)

    # signals

    def _on_signals(self) -> None:
        for action, name in self._inbox.take():
            self._act(action, name)

    def _act(self, action: str, name: str) -> None:
        match action:
            case "stop":
                self._stop(name, self._config.timeout)
            case "stop_now":
                self._stop(name, 0.0)
            case "quiet":
                # At a terminal there is no shell to bring us back with `fg`: the second Ctrl-Z does it.
                at_terminal = name == "SIGTSTP" and self._had_terminal
                self._set_quiet(not (at_terminal and self.is_quiet), name)
            case "resume":
                self._set_quiet(False, name)
            case "dump":
                self._tell_all("dump")
            case "reload" if self._had_terminal and not os.isatty(0):  # the terminal has been closed
                self._stop(name, self._config.timeout)
            case "reload" | "roll":
                self._events.emit("unknown_signal", signal=name)

    def _set_quiet(self, quiet: bool, name: str) -> None:
        if self._is_stopping or quiet == self.is_quiet:
            return
        self.is_quiet = quiet
        self._events.emit("cluster_quiet" if quiet else "cluster_resumed", signal=name)
        self._tell_all("quiet" if quiet else "resume")

    def _tell_all(self, kind: str, **fields: object) -> None:
        for slot in self.slots:
            if slot.child is not None:
                slot.child.channel.send(kind, **fields)

    # frames

    def _on_frames(self, slot: Slot, child: Child) -> None:
        for frame in child.channel.receive():
            self._take_in(slot, child, frame)
        if child.channel.closed:
            self._selector.unregister(child.channel.socket)
            child.channel.socket.close()

    def _take_in(self, slot: Slot, child: Child, frame: Frame) -> None:
        now = self._clock.monotonic()
        match frame["type"]:
            case "hello":
                if frame["identity"] not in child.identities:  # said again whenever a join is tried again
                    child.identities.append(frame["identity"])
            case "booting":
                child.last_beat, child.waits_for = now, frame["reason"]
            case "ready":
                child.ready_at = child.last_beat = now
                child.waits_for = ""
                slot.history = respawn.after_ready(slot.history)
                self._events.emit("child_ready", slot=slot.number, child=child.pid, seconds=now - child.started_at)
                self._ask_sibling()
            case "beat":
                child.busy, child.redis, child.quiet = frame["busy"], frame["redis"], frame["quiet"]
                child.rss = child.resident_bytes() or child.rss
                if frame["progress"]:
                    child.last_beat = now
            case "quiet":
                child.quiet = frame["quiet"]
            case "metrics":
                self._metrics.apply(slot.number, frame["families"])
            case "recovered":
                self._forget_orphan(frame["identity"])
            case "bye":
                child.left = True
                child.identities.clear()

    def _forget_orphan(self, identity: str) -> None:
        for slot in self.slots:
            slot.orphans.pop(identity, None)

    # reaping

    def _reap_all(self) -> None:
        for slot in self.slots:
            child = slot.child
            if child is not None and (status := reap(child.pid)) is not None:
                self._bury(slot, child, Death.of(status))
        self._ending = {pid for pid in self._ending if reap(pid) is None}
        if os.getpid() == 1:
            children = {slot.child.pid for slot in self.slots if slot.child is not None}
            reap_adopted(children | {self._guardian.pid if self._guardian is not None else 0})

    def _bury(self, slot: Slot, child: Child, death: Death) -> None:
        """Take leave of a dead child: its last words, its totals, its units; then the slot's next step."""
        now = self._clock.monotonic()
        if not child.channel.closed:
            for frame in child.channel.receive():
                self._take_in(slot, child, frame)
            self._selector.unregister(child.channel.socket)
            child.channel.close()
        running = slot.board.running()
        slot.board.clear()
        slot.child = None
        slot.orphans.update(dict.fromkeys(child.identities, tuple(running)))
        self._metrics.fold(slot.number)
        if self._is_stopping:
            self._events.emit("child_left", slot=slot.number, child=child.pid)
            self._ask_sibling()
            return
        reason = restart_reason(child, death)
        slot.restarts[reason] += 1
        report = child.report(death, now, len(running))
        self._events.emit(
            "child_died", slot=slot.number, child=child.pid, death=death, report=report, reason=reason, running=running
        )
        self._count_death(slot, None if child.ready_at is None else now - child.ready_at, death.code, now)
        code = respawn.give_up_code([each.history for each in self.slots])
        if code is not None:
            self._events.emit("cluster_gave_up", code=int(code), reason=f"the last child {death}")
            self._exit_code = code
            self._stop("boot failure", 0.0)
            return
        wait, why = slot.history.not_before - now, slot.history.why_waiting
        if wait > 0:
            failures = slot.history.failures
            self._events.emit("child_backoff", slot=slot.number, seconds=wait, why=why, failures=failures)
        self._ask_sibling()

    def _count_death(self, slot: Slot, ready_for: float | None, code: int | None, now: float) -> None:
        burst = self._config.respawn_burst
        slot.history = respawn.after_death(
            slot.history, ready_for=ready_for, code=code, now=now, burst=burst, rng=self._rng
        )

    def _ask_sibling(self) -> None:
        """Have a ready child give back what dead ones held: their replacements do, too, but may be long in coming."""
        orphans = {key: running for slot in self.slots if slot.child is None for key, running in slot.orphans.items()}
        for slot in self.slots:
            if orphans and slot.child is not None and slot.state in ("ready", "quiet"):
                slot.child.channel.send("recover", orphans=orphans)
                return

    # deadlines

    def _look_at_deadlines(self) -> None:
        now = self._clock.monotonic()
        for slot in self.slots:
            child = slot.child
            if child is None or child.doomed:
                continue
            if self._stop_by is not None and now >= self._stop_by:
                self._events.emit("stop_overdue", slot=slot.number, child=child.pid)
                self._exit_code = self._exit_code or ExitCode.KILLED_AT_STOP
                self._kill(child, "overdue")
            elif not child.is_ready and now >= child.last_beat + self._config.boot_timeout:
                reason = f"was not ready within {self._config.boot_timeout:g} s (boot_timeout)"
                self._events.emit("child_overdue", slot=slot.number, child=child.pid, reason=reason)
                self._kill(child, "boot")
            elif self._is_silent(child, now):
                reason = f"made no progress for {self._config.silence_timeout:g} s (silence_timeout)"
                self._events.emit("child_overdue", slot=slot.number, child=child.pid, reason=reason)
                self._kill(child, "silent")
        if self._catalogue is not None and (now >= self._catalogue.deadline or self._is_stopping):
            error = self._catalogue.expire()
            if self._is_stopping:
                self._end_catalogue()
            else:
                self._catalogue_failed(error)
        if self._probes is not None:
            self._probes.drop_overdue()

    def _is_silent(self, child: Child, now: float) -> bool:
        limit = self._config.silence_timeout
        return bool(limit) and child.is_ready and not self._is_stopping and now >= child.last_beat + limit

    def _kill(self, child: Child, reason: str) -> None:
        """Kill a child with everything that it has started."""
        child.doomed = reason
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:  # it has not made its group yet, or is dead and not reaped
            os.kill(child.pid, signal.SIGKILL)

    # spawning

    def _spawn_due(self) -> None:
        if self._is_stopping:
            return
        if self._guardian is not None:
            self._guardian.keep()
        now = self._clock.monotonic()
        for slot in self.slots:
            if slot.child is None and now >= slot.history.not_before:
                self._spawn(slot, now)

    def _spawn(self, slot: Slot, now: float) -> None:
        def run(parent: socket.socket) -> int:
            if self._guardian is not None:
                self._guardian.forget_reader()
            return self._run_child(
                Birth(
                    plan=slot.plan,
                    known_queues=self._known_queues,
                    quiet=self.is_quiet,
                    board=slot.board,
                    parent=parent,
                    orphans=dict(slot.orphans),
                    directory=self._directory,
                )
            )

        try:
            self._enter_directory()
            pid, ours = fork_with_socket(run, self._forget, f"slot {slot.number}")
        except (OSError, ApplicationError) as error:
            self._events.emit("fork_failed", slot=slot.number, error=error)
            self._count_death(slot, None, None, now)
            return
        child = Child(pid, slot.number, Channel(ours), started_at=now, last_beat=now)
        slot.child = child
        self._selector.register(ours, selectors.EVENT_READ, lambda: self._on_frames(slot, child))
        self._events.emit("child_started", slot=slot.number, child=pid)

    # 4. stop

    def _stop(self, name: str, seconds: float) -> None:
        """Begin to stop; a second call can only bring the end nearer.  Nothing is respawned from here on."""
        by = self._clock.monotonic() + seconds + STOP_GRACE
        if self._stop_by is not None and by >= self._stop_by:
            running = sum(len(slot.board.running()) for slot in self.slots)
            self._events.emit("cluster_waits", signal=name, running=running)
            return
        self._stop_by = by
        self._events.emit("cluster_stopping", signal=name, seconds=seconds)
        self._tell_all("stop", seconds=seconds)
        for slot in self.slots:
            if slot.child is not None and not slot.child.identities:  # it still imports, and reads no frames
                os.kill(slot.child.pid, signal.SIGTERM)

    def _why_not_ready(self) -> str | None:
        return why_not_ready(self.slots, is_quiet=self.is_quiet, is_stopping=self._is_stopping)

    def _close(self) -> None:
        if self._guardian is not None:
            self._guardian.release()
            deadline = self._clock.monotonic() + GUARDIAN_PATIENCE
            while self._guardian.pid and self._guardian.reap() is None:
                if self._clock.monotonic() >= deadline:
                    os.killpg(self._guardian.pid, signal.SIGKILL)
                self._selector.select(LONGEST_TURN / 20)
                self._inbox.take()
        if self._probes is not None:
            self._probes.close()
            if self._config.listen.startswith("unix:"):
                Path(self._config.listen.removeprefix("unix:")).unlink(missing_ok=True)
        if self._pidfile is not None:
            self._pidfile.release()
