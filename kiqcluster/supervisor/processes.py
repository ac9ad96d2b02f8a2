"""Crew: the processes in the slots, from the fork to the last units that are given back for them.

Runs in: the supervisor's loop.
1. spawn      fork a child into a slot: as its child, or as the successor of the one that serves
2. hear       frames of the children
3. promote    a successor that is ready takes the place; the one before is told to leave, and finishes what it runs
4. bury       reap the dead: their last words, their totals, their units; then the slot's next step
5. deadlines  boot, silence, leave: what is overdue is killed with everything that it has started

Who is to be replaced, and when, rolling_restart.py decides; what it needs to know, it is told (Watcher).
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from random import Random
from typing import Protocol

from kiqcluster.clock import Clock
from kiqcluster.config import STOP_GRACE, Config
from kiqcluster.errors import ApplicationError
from kiqcluster.ipc.frames import Channel, Frame
from kiqcluster.ipc.running_jobs import RunningJob, RunningJobs
from kiqcluster.ipc.thread_stacks import ThreadStacks
from kiqcluster.process.events import Events
from kiqcluster.supervisor.cluster import respawn
from kiqcluster.supervisor.cluster.expansion import SlotPlan
from kiqcluster.supervisor.cluster.liveness import Liveness
from kiqcluster.supervisor.cluster.slots import Child, Death, Slot, restart_reason
from kiqcluster.supervisor.cluster.state import ClusterState
from kiqcluster.supervisor.fork import fork_with_socket, reap
from kiqcluster.supervisor.metrics.page import ClusterMetrics
from kiqcluster.supervisor.release_paths import Start

__all__ = ["Birth", "Crew", "Watcher"]

JITTER = 0.1  # by which limits of jobs differ at most, so that processes of one age are not replaced together


@dataclass(frozen=True, slots=True)
class Birth:
    """What a new worker process is told; the cli turns it into the worker's own words."""

    config: Config
    plan: SlotPlan
    known_queues: tuple[str, ...]
    quiet: bool
    running_jobs: RunningJobs
    parent: socket.socket
    orphans: dict[str, tuple[str, ...]]
    directory: Path = field(default_factory=Path.cwd)


class Watcher(Protocol):
    """Who is told what becomes of the children."""

    def on_ready(self, child: Child) -> None:
        """Take note that a child has booted."""

    def on_promoted(self, slot: Slot) -> None:
        """Take note that a successor serves."""

    def on_successor_died(self, slot: Slot, how: str) -> None:
        """Take note that a successor did not boot; the one before it goes on."""

    def on_death(self, slot: Slot, how: str) -> None:
        """Take note that the child of a slot has died, unasked; the slot's history knows of it."""

    def on_not_started(self, slot: Slot, why: str) -> None:
        """Take note that an empty slot got no process; it is tried again."""

    def on_control(self, message: Mapping[str, object]) -> None:
        """Take note that somebody wants something of the cluster."""


class Crew:
    """run_child: runs a worker in a forked process and returns its exit code.

    forget: closes in a child what is the supervisor's own.  enter: goes to where the application is, and says what a
    process gets there.
    """

    def __init__(
        self,
        config: Config,
        state: ClusterState,
        metrics: ClusterMetrics,
        run_child: Callable[[Birth], int],
        forget: Callable[[], None],
        enter: Callable[[], Start],
        selector: selectors.BaseSelector,
        events: Events,
        clock: Clock,
        rng: Random,
    ) -> None:
        self.config = config
        self.known_queues: tuple[str, ...] = ()
        self.watcher: Watcher | None = None
        self._state = state
        self._metrics = metrics
        self._run_child = run_child
        self._forget = forget
        self._enter = enter
        self._selector = selector
        self._events = events
        self._clock = clock
        self._rng = rng
        self._why_not_forked = ""  # the latest time
        self._liveness = Liveness(events, clock)

    def children(self) -> Iterator[tuple[Slot, Child]]:
        """Yield every process with its slot, whatever it does."""
        for slot in list(self._state.slots):
            for child in slot.children():
                yield slot, child

    def close_in_child(self) -> None:
        """Close, in a fork, what belongs to the children."""
        for _, child in self.children():
            child.channel.close()
            if child.stacks is not None:
                child.stacks.close()

    def dump(self, pid: int = 0) -> str | None:
        """Have processes tell what their threads are at; those that read no frames, by a handler in C.

        pid: of one; 0 for all.  Returns why not, None when they were asked.
        """
        meant = [child for _, child in self.children() if pid in (0, child.pid)]
        for child in meant:
            child.channel.send("dump")
            if child.is_unresponsive or not child.is_ready:
                self._liveness.ask(child)
        return None if meant or not pid else f"has no worker process {pid}"

    def tell_all(self, kind: str, **fields: object) -> None:
        """Send a frame to every process."""
        for _, child in self.children():
            child.channel.send(kind, **fields)

    def flush(self) -> None:
        """Write what a full socket left behind."""
        for _, child in self.children():
            child.channel.flush()

    # 1. spawn

    def spawn_due(self) -> None:
        """Fill the empty slots whose time has come."""
        now = self._clock.monotonic()
        for slot in self._state.slots:
            if slot.child is None and not slot.retires and now >= slot.history.not_before:
                slot.child = self._spawn(slot, quiet=bool(self._state.quiet))
                if slot.child is None and self.watcher is not None:
                    self.watcher.on_not_started(slot, self._why_not_forked)

    def begin_succession(self, slot: Slot, *, quiet: bool) -> str:
        """Start a successor; return why that was not possible, empty when it was."""
        slot.successor = self._spawn(slot, quiet=quiet)
        return "" if slot.successor is not None else self._why_not_forked

    def _spawn(self, slot: Slot, *, quiet: bool) -> Child | None:
        now = self._clock.monotonic()
        shared = ExitStack()
        try:
            running_jobs = RunningJobs(slot.plan.concurrency)
            shared.callback(running_jobs.close)
            stacks = ThreadStacks()
            shared.callback(stacks.close)
            start = self._enter()

            def run(parent: socket.socket) -> int:
                stacks.install_handlers()
                orphans = dict(slot.orphans)
                birth = Birth(
                    self.config, slot.plan, self.known_queues, quiet, running_jobs, parent, orphans, start.directory
                )
                return self._run_child(birth)

            pid, ours = fork_with_socket(run, self._forget, f"slot {slot.number}")
        except (OSError, ApplicationError) as error:
            shared.close()
            self._why_not_forked = f"no process could be started: {error}"
            self._events.emit("fork_failed", slot=slot.number, error=error)
            if slot.child is None:
                self._count_death(slot, None, None, now)
            return None
        child = Child(
            pid, slot.number, Channel(ours), started_at=now, last_beat=now, running_jobs=running_jobs, stacks=stacks,
            release=start.release, generation=start.generation, job_limit=self._job_limit(),
        )  # fmt: skip
        self._selector.register(ours, selectors.EVENT_READ, lambda: self._on_frames(slot, child))
        self._events.emit("child_started", slot=slot.number, child=pid, release=start.release)
        if start.gone:
            self._events.emit("release_gone", slot=slot.number, gone=start.gone, release=start.release)
        if start.wanted:
            self._events.emit("child_behind", slot=slot.number, child=pid, release=start.release, wanted=start.wanted)
        return child

    def _job_limit(self) -> float:
        limit = self.config.max_jobs
        return limit * (1 + JITTER * self._rng.random()) if limit else inf

    # 2. hear

    def _on_frames(self, slot: Slot, child: Child) -> None:
        child.heard_at = self._clock.monotonic()
        for frame in child.channel.receive():
            self._take_in(slot, child, frame)
        if child.channel.closed:
            self._selector.unregister(child.channel.socket)
            child.channel.socket.close()

    def _take_in(self, slot: Slot, child: Child, frame: Frame) -> None:
        match frame["type"]:
            case "hello":
                if frame["identity"] not in child.identities:  # said again whenever a join is tried again
                    self._state.fenced += bool(child.identities)
                    child.identities.append(frame["identity"])
            case "booting":
                child.last_beat, child.waits_for = self._clock.monotonic(), frame["reason"]
            case "ready":
                child.first_size = frame["pss"] or 0
                self._on_ready(slot, child)
            case "beat":
                self._on_beat(slot, child, frame)
            case "quiet":
                self._on_quiet(child, frame)
            case "metrics":
                self._metrics.take_in(slot, child, frame)
            case "recovered":
                self._state.recovered += frame.get("units", 0)
                self._forget_orphan(frame["identity"])
            case "control" if self.watcher is not None:
                self.watcher.on_control(frame["message"])
            case "last_words":
                child.last_words = child.last_words or frame["reason"]
            case "bye":
                child.left = True
                child.identities.clear()

    def _on_ready(self, slot: Slot, child: Child) -> None:
        now = self._clock.monotonic()
        child.ready_at = child.last_beat = now
        child.last_beat_epoch = self._clock.now()
        child.waits_for, child.redis = "", True  # it has become a member there
        self._state.was_up = True
        slot.history = respawn.after_ready(slot.history)
        self._events.emit("child_ready", slot=slot.number, child=child.pid, seconds=now - child.started_at)
        if self.watcher is not None:
            self.watcher.on_ready(child)
        self.ask_sibling()

    def _on_beat(self, slot: Slot, child: Child, frame: Frame) -> None:
        child.busy, child.redis, child.quiet = frame["busy"], frame["redis"], frame["quiet"]
        child.processed = frame["processed"]
        child.prefetched = frame["prefetched"]
        child.round_trips = frame["round_trips"]
        child.round_trip_seconds = frame["round_trip_seconds"]
        if not frame["drained"]:
            child.drained_since = inf
        elif child.drained_since == inf:
            child.drained_since = self._clock.monotonic()
        child.rss = child.resident_bytes() or child.rss
        child.pss = frame["pss"]
        if frame["progress"]:
            child.last_beat, child.last_beat_epoch = self._clock.monotonic(), self._clock.now()
            is_sound = not child.doomed and not child.is_dead and not self._state.is_stopping
            if child is slot.successor and is_sound:  # it does not only boot, it works
                self._promote(slot)

    def _on_quiet(self, child: Child, frame: Frame) -> None:
        """Take note that a child is quiet or not; one that is so by itself, by a button or kiqctl, has a lease, too."""
        child.quiet = frame["quiet"]
        lease = frame["lease"] if frame["lease"] is not None else self.config.quiet_lease
        is_bounded = child.quiet and frame["own"] and lease
        child.quiet_until = self._clock.monotonic() + lease if is_bounded else inf

    def _forget_orphan(self, identity: str) -> None:
        for slot in self._state.slots:
            slot.orphans.pop(identity, None)

    # 3. promote

    def _promote(self, slot: Slot) -> None:
        """Let the successor serve, and the one before it leave."""
        before, slot.child, slot.successor = slot.child, slot.successor, None
        slot.strikes = 0
        if before is not None:
            slot.leaving.append(before)
            self.dismiss(before, self.config.timeout)
        if self.watcher is not None:
            self.watcher.on_promoted(slot)

    def dismiss(self, child: Child, seconds: float, reason: str = "") -> None:
        """Tell a process to leave; its running jobs have so many seconds.  reason: why, for the count of restarts."""
        child.leave_by = min(child.leave_by, self._clock.monotonic() + seconds + STOP_GRACE)
        child.leaves_for = child.leaves_for or reason
        child.channel.send("stop", seconds=seconds)
        if child.channel.closed or not (child.identities or child.is_ready):  # it reads no frames: it still imports
            os.kill(child.pid, signal.SIGTERM)

    def empty(self, slot: Slot) -> None:
        """Have the slot's processes leave, each when it has finished; the next one starts at once."""
        self.drop_successor(slot)
        if slot.child is not None:
            before, slot.child = slot.child, None
            slot.leaving.append(before)
            self.dismiss(before, self.config.timeout)

    def drop_successor(self, slot: Slot) -> None:
        """Give a successor up: at once while it boots, as any other once it may run jobs."""
        successor, slot.successor = slot.successor, None
        if successor is None:
            return
        slot.leaving.append(successor)
        if successor.is_ready:
            self.dismiss(successor, self.config.timeout)
        else:
            self._kill(successor, "dropped")

    # 4. bury

    def reap(self) -> None:
        """Take leave of those that have died."""
        for slot, child in self.children():
            if (reaped := reap(child.pid)) is not None:
                child.cpu = reaped.cpu
                self._bury(slot, child, Death.of(reaped.status))
        self._drop_retired()

    def _drop_retired(self) -> None:
        """Forget slots that have gone; what they left behind is the next slot's to see to."""
        slots = self._state.slots
        gone = [slot for slot in slots if slot.retires and not slot.children()]
        slots[:] = [slot for slot in slots if slot not in gone]
        for slot in gone:
            self._state.retired_restarts[slot.number] = slot.restarts
            if slots:
                slots[0].orphans.update(slot.orphans)

    def _bury(self, slot: Slot, child: Child, death: Death) -> None:
        child.is_dead = True  # its last words may not make it take a place
        if not child.channel.closed:
            for frame in child.channel.receive():
                self._take_in(slot, child, frame)
            self._selector.unregister(child.channel.socket)
            child.channel.close()
        running = child.running_jobs.jobs()
        child.read_stacks()  # of a crash
        child.close()
        blamed = tuple(each.token for each in running if child.blamed in ("", each.token))
        slot.orphans.update(dict.fromkeys(child.identities, blamed))
        self._metrics.fold(slot, child)
        self.ask_sibling()  # before anybody else is told to leave for it
        if child is slot.successor:
            slot.successor = None
            self._lose_successor(slot, child, death, running)
        elif child is slot.child:
            slot.child = None
            self._lose_child(slot, child, death, running)
        else:
            slot.leaving.remove(child)
            self._events.emit("child_left", slot=slot.number, child=child.pid)

    def _lose_successor(self, slot: Slot, child: Child, death: Death, running: list[RunningJob]) -> None:
        if self._state.is_stopping:
            return
        self._report(slot, child, death, "boot", running)
        if self.watcher is not None:
            self.watcher.on_successor_died(slot, f"pid {child.pid} {death}{child.reason}")

    def _lose_child(self, slot: Slot, child: Child, death: Death, running: list[RunningJob]) -> None:
        if self._state.is_stopping or slot.retires:
            self._events.emit("child_left", slot=slot.number, child=child.pid)
            return
        now = self._clock.monotonic()
        reason = restart_reason(child, death)
        slot.restarts[reason] += 1
        slot.strikes = 0
        if child.leaves_for and not child.doomed:  # it did as it was told
            self._events.emit("child_left", slot=slot.number, child=child.pid)
        else:
            self._report(slot, child, death, reason, running)
        self._count_death(slot, None if child.ready_at is None else now - child.ready_at, death.code, now)
        if slot.successor is not None:  # it boots already
            slot.child, slot.successor = slot.successor, None
        elif (wait := slot.history.not_before - now) > 0:
            self._events.emit(
                "child_backoff", slot=slot.number, seconds=wait, why=slot.history.why_waiting,
                failures=slot.history.failures,
            )  # fmt: skip
        if self.watcher is not None and not child.leaves_for:
            self.watcher.on_death(slot, f"pid {child.pid} {death}{child.reason}")

    def _report(self, slot: Slot, child: Child, death: Death, reason: str, jobs: list[RunningJob]) -> None:
        now, epoch = self._clock.monotonic(), self._clock.now()
        running = [each.as_json(epoch) for each in jobs]
        slot.last_death = {
            "at": epoch,
            "how": str(death),
            "reason": reason,
            "running": running,
            "uptime": now - child.started_at,
            "error": child.last_words,
            "stacks": child.stacks_read,
            "release": child.release,
        }
        self._events.emit(
            "child_died", slot=slot.number, child=child.pid, death=death, reason=reason, running=running,
            report=child.report(death, now, epoch, jobs), error=child.last_words, stacks=child.stacks_read,
        )  # fmt: skip

    def _count_death(self, slot: Slot, ready_for: float | None, code: int | None, now: float) -> None:
        burst = self.config.respawn_burst
        slot.history = respawn.after_death(
            slot.history, ready_for=ready_for, code=code, now=now, burst=burst, rng=self._rng
        )

    def ask_sibling(self) -> None:
        """Have a ready child give back what dead ones held: their replacements do, too, but may be long in coming."""
        orphans = {key: running for slot in self._state.slots for key, running in slot.orphans.items()}
        if not orphans:
            return
        able = [child for _, child in self.children() if child.is_able]
        for child in sorted(able, key=lambda each: each.leave_by < inf)[:1]:  # one that stays, if there is one
            child.channel.send("recover", orphans=orphans)

    # 5. deadlines

    def look_at_deadlines(self) -> None:
        """Kill what is overdue, and end the quiet of children that were quieted by themselves for too long."""
        now = self._clock.monotonic()
        for slot, child in self.children():
            if child.doomed:
                self._end_overdue(slot, child, now)
                continue
            if now >= min(child.leave_by, inf if self._state.stop_by is None else self._state.stop_by):
                self._events.emit("stop_overdue", slot=slot.number, child=child.pid)
                self._state.killed_at_stop |= self._state.is_stopping
                self._kill(child, "overdue")
            elif self._is_still_booting(slot, child) and now >= child.last_beat + self.config.boot_timeout:
                reason = f"was not ready within {self.config.boot_timeout:g} s (boot_timeout)"
                self._overdue(child, reason, "boot")
            elif self._is_silent(child, now):
                reason = f"made no progress for {self.config.silence_timeout:g} s (silence_timeout)"
                self._overdue(child, reason, "silent")
            elif now >= child.quiet_until:
                child.quiet_until = inf
                if not self._state.quiet:  # else that one's end counts
                    self._events.emit("child_quiet_expired", slot=slot.number, child=child.pid)
                    child.channel.send("resume")
            self._liveness.look(slot, child, is_leaving=self._is_leaving(child))

    def _overdue(self, child: Child, reason: str, kind: str) -> None:
        """Kill a child once it has had a moment to write its stacks."""
        child.last_words, child.doomed = reason, kind
        child.kill_due = self._clock.monotonic()
        if self._liveness.ask(child):
            child.kill_due = child.dump_due

    def kill_job(self, jid: str, by: str) -> str | None:
        """Kill the process that runs a job, which alone is to blame for it; return why not, None when it is done."""
        for _, child in self.children():
            for job in child.running_jobs.jobs():
                if job.jid == jid and not child.doomed:
                    child.blamed = job.token
                    self._overdue(child, f"runs {job.name} {jid}, which {by} wants to end", "job_killed")
                    return None
        return f"runs no job {jid}"

    def _end_overdue(self, slot: Slot, child: Child, now: float) -> None:
        if child.kill_due is None or now < child.kill_due:
            return
        child.kill_due = None
        child.read_stacks()
        self._events.emit(
            "child_overdue", slot=slot.number, child=child.pid, reason=child.last_words,
            stacks=child.stacks_read or "(it does not tell what its threads are at)",
        )  # fmt: skip
        self._kill(child, child.doomed)

    def _is_leaving(self, child: Child) -> bool:
        return self._state.is_stopping or child.leave_by < inf

    def _is_still_booting(self, slot: Slot, child: Child) -> bool:
        """Return whether it has to get somewhere yet: a successor that is ready has to fetch as well."""
        return not child.is_ready or child is slot.successor

    def _is_silent(self, child: Child, now: float) -> bool:
        limit = self.config.silence_timeout
        return bool(limit) and child.is_ready and not self._is_leaving(child) and now >= child.last_beat + limit

    def _kill(self, child: Child, reason: str) -> None:
        """Kill a child with everything that it has started."""
        child.doomed = reason
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:  # it has not made its group yet, or is dead and not reaped
            os.kill(child.pid, signal.SIGKILL)

    # the end

    def stop(self, seconds: float) -> None:
        """Tell everybody to leave."""
        for _, child in self.children():
            self.dismiss(child, seconds)

    @property
    def is_gone(self) -> bool:
        return not any(self.children())
