"""ProcessManager: the processes in the slots, from the fork until others have recovered what they held.

Runs in: the supervisor's loop.
1. spawn      fork a child into a slot: as its child, or as the replacement of the one that serves
2. frames     read the frames of the children
3. promote    a replacement that works becomes the slot's child; the one before is asked to stop and finishes its jobs
4. exits      reap dead processes: last frames, metrics, units; then decide on the slot's next step
5. deadlines  boot, silence, stop: an overdue process is killed with everything that it has started

rolling_restart.py decides which process is replaced, and when.  Observers are told what it needs to know.
"""

from __future__ import annotations

import os
import selectors
import signal
from collections.abc import Iterator, Mapping
from math import inf
from random import Random

from kiqcluster.errors import ApplicationError
from kiqcluster.ipc.frames import Frame
from kiqcluster.ipc.running_jobs import RunningJob
from kiqcluster.process.clock import Clock
from kiqcluster.process.config import STOP_GRACE_SECONDS, Config
from kiqcluster.process.events import Events
from kiqcluster.supervisor.cluster import respawn
from kiqcluster.supervisor.cluster.child import Child, Death, restart_reason
from kiqcluster.supervisor.cluster.deadlines import Deadline, passed_deadline
from kiqcluster.supervisor.cluster.liveness import Liveness
from kiqcluster.supervisor.cluster.process_observer import ProcessObserver
from kiqcluster.supervisor.cluster.slots import Slot
from kiqcluster.supervisor.cluster.state import ClusterState
from kiqcluster.supervisor.fork import reap
from kiqcluster.supervisor.metrics.page import ClusterMetrics
from kiqcluster.supervisor.spawner import Spawner

__all__ = ["ProcessManager"]


class ProcessManager:
    """The worker processes of all slots.  config: that of new processes and of all deadlines; a reload replaces it."""

    def __init__(
        self,
        config: Config,
        state: ClusterState,
        metrics: ClusterMetrics,
        spawner: Spawner,
        selector: selectors.BaseSelector,
        events: Events,
        clock: Clock,
        rng: Random,
    ) -> None:
        self.config = config
        self.known_queues: Mapping[str, tuple[str, ...]] = {}  # by shard
        self.observers: list[ProcessObserver] = []
        self._state = state
        self._metrics = metrics
        self._spawner = spawner
        self._selector = selector
        self._events = events
        self._clock = clock
        self._rng = rng
        self._spawn_error = ""  # the latest time
        self._liveness = Liveness(events, clock, self._publish_stacks)

    def children(self) -> Iterator[tuple[Slot, Child]]:
        """Yield every process with its slot."""
        for slot in list(self._state.slots):
            for child in slot.children():
                yield slot, child

    def close_in_child(self) -> None:
        """Close, in a new process, what belongs to its siblings."""
        for _, child in self.children():
            child.channel.close()
            if child.responses.stacks is not None:
                child.responses.stacks.close()

    def dump(self, pid: int = 0) -> str | None:
        """Have processes log the stacks of their threads.  Those that read no frames do it by a handler in C.

        pid: one process, or 0 for all.  Returns why that is not possible, or None.
        """
        meant = [child for _, child in self.children() if pid in (0, child.pid)]
        for child in meant:
            child.channel.send("dump")
            if child.responses.is_unresponsive or not child.is_ready:
                self._liveness.request_stacks(child)
        return None if meant or not pid else f"has no worker process {pid}"

    def _publish_stacks(self, slot: Slot, child: Child, stacks: str) -> None:
        """Have another child publish the stacks of one that does not respond, in the Redis of its shard."""
        kin = [each for other, each in self.children() if other.shard == slot.shard and each.is_able]
        able = next((each for each in kin if not each.responses.is_unresponsive), None)
        if able is not None and child.identities:
            able.channel.send("stacks", identity=child.identities[-1], stacks=stacks)

    def broadcast(self, kind: str, **fields: object) -> None:
        """Send a frame to every process."""
        for _, child in self.children():
            child.channel.send(kind, **fields)

    def flush(self) -> None:
        """Write frames that a full socket did not take."""
        for _, child in self.children():
            child.channel.flush()

    # 1. spawn

    def spawn_due(self) -> None:
        """Start a process in each empty slot whose wait is over."""
        now = self._clock.monotonic()
        for slot in self._state.slots:
            if slot.child is None and not slot.is_retiring and now >= slot.history.not_before:
                slot.child = self._spawn(slot, quiet=bool(self._state.quiet))
                if slot.child is None:
                    for observer in self.observers:
                        observer.on_not_started(slot, self._spawn_error)

    def start_replacement(self, slot: Slot, *, quiet: bool) -> str:
        """Start a replacement; return why that was not possible, or an empty text."""
        slot.replacement = self._spawn(slot, quiet=quiet)
        return "" if slot.replacement is not None else self._spawn_error

    def _spawn(self, slot: Slot, *, quiet: bool) -> Child | None:
        shard = slot.plan.group.shard
        plans = [each.plan for each in self._state.slots if each.plan.group.shard == shard]
        queues = self.known_queues.get(shard, ()), frozenset(queue for plan in plans for queue in plan.weights)
        try:
            child = self._spawner.spawn(slot, self.config, *queues, quiet=quiet)
        except (OSError, ApplicationError) as error:
            self._spawn_error = f"no process could be started: {error}"
            self._events.emit("fork_failed", slot=slot.number, error=error)
            if slot.child is None:
                self._record_death(slot, None, None, self._clock.monotonic())
            return None
        self._selector.register(child.channel.socket, selectors.EVENT_READ, lambda: self._on_frames(slot, child))
        return child

    # 2. frames

    def _on_frames(self, slot: Slot, child: Child) -> None:
        child.responses.last_frame_at = self._clock.monotonic()
        for frame in child.channel.receive():
            self._on_frame(slot, child, frame)
        if child.channel.closed:
            self._selector.unregister(child.channel.socket)
            child.channel.socket.close()

    def _on_frame(self, slot: Slot, child: Child, frame: Frame) -> None:
        match frame["type"]:
            case "hello":
                if frame["identity"] not in child.identities:  # it is sent again when a join is tried again
                    self._state.fenced += bool(child.identities)
                    child.identities.append(frame["identity"])
            case "booting":
                child.beat.at, child.waits_for = self._clock.monotonic(), frame["reason"]
            case "ready":
                child.boot_memory = frame["pss"] or 0
                self._on_ready(slot, child)
            case "beat":
                self._on_beat(slot, child, frame)
            case "quiet":
                self._on_quiet(child, frame)
            case "metrics":
                self._metrics.add_frame(slot, child, frame)
            case "recovered":
                self._state.recovered += frame.get("units", 0)
                self._remove_orphan(frame["identity"])
            case "control":
                for observer in self.observers:
                    observer.on_control(frame["message"])
            case "last_words":
                child.ending.exit_reason = child.ending.exit_reason or frame["reason"]
            case "bye":
                child.ending.said_bye = True
                child.identities.clear()

    def _on_ready(self, slot: Slot, child: Child) -> None:
        now = self._clock.monotonic()
        child.ready_at = child.beat.at = now
        child.beat.epoch = self._clock.now()
        child.waits_for, child.beat.redis = "", True  # it has joined there
        self._state.was_up = True
        slot.history = respawn.after_ready(slot.history)
        self._events.emit("child_ready", slot=slot.number, child=child.pid, seconds=now - child.started_at)
        for observer in self.observers:
            observer.on_ready(child)
        self.ask_sibling_to_recover()

    def _on_beat(self, slot: Slot, child: Child, frame: Frame) -> None:
        child.quiet = frame["quiet"]
        child.beat.update(frame, child.resident_bytes(), self._clock.monotonic())
        if frame["progress"]:
            child.beat.at, child.beat.epoch = self._clock.monotonic(), self._clock.now()
            is_sound = not child.ending.kill_reason and not child.ending.is_dead and not self._state.is_stopping
            if child is slot.replacement and is_sound:  # it has booted and it fetches
                self._promote(slot)

    def _on_quiet(self, child: Child, frame: Frame) -> None:
        """Record whether a child is quiet.  It has a lease, too, if this was asked of it alone."""
        child.quiet = frame["quiet"]
        lease = frame["lease"] if frame["lease"] is not None else self.config.quiet_lease
        is_bounded = child.quiet and frame["own"] and lease
        child.quiet_until = self._clock.monotonic() + lease if is_bounded else inf

    def _remove_orphan(self, identity: str) -> None:
        for slot in self._state.slots:
            slot.orphans.pop(identity, None)

    # 3. promote

    def _promote(self, slot: Slot) -> None:
        """Make the replacement the child of its slot, and ask the one before to stop."""
        before, slot.child, slot.replacement = slot.child, slot.replacement, None
        slot.memory_strikes = 0
        if before is not None:
            slot.leaving.append(before)
            self.ask_to_stop(before, self.config.stop_timeout)
        for observer in self.observers:
            observer.on_promoted(slot)

    def ask_to_stop(self, child: Child, seconds: float, reason: str = "") -> None:
        """Ask a process to stop.  seconds: for its running jobs.  reason: label of the restart counter."""
        child.ending.stop_deadline = min(
            child.ending.stop_deadline, self._clock.monotonic() + seconds + STOP_GRACE_SECONDS
        )
        child.ending.stop_reason = child.ending.stop_reason or reason
        child.channel.send("stop", seconds=seconds)
        reads_frames = child.identities or child.is_ready  # else it still imports the application
        if child.channel.closed or not reads_frames:
            os.kill(child.pid, signal.SIGTERM)

    def drain(self, slot: Slot) -> None:
        """Ask the processes of a slot to stop after their running jobs.  Its next process starts at once."""
        self.drop_replacement(slot)
        if slot.child is not None:
            before, slot.child = slot.child, None
            slot.leaving.append(before)
            self.ask_to_stop(before, self.config.stop_timeout)

    def drop_replacement(self, slot: Slot) -> None:
        """Give up a replacement: kill it while it boots, ask it to stop once it may run jobs."""
        replacement, slot.replacement = slot.replacement, None
        if replacement is None:
            return
        slot.leaving.append(replacement)
        if replacement.is_ready:
            self.ask_to_stop(replacement, self.config.stop_timeout)
        else:
            self._kill(replacement, "dropped")

    # 4. exits

    def reap(self) -> None:
        """Reap the processes that have died."""
        for slot, child in self.children():
            if (reaped := reap(child.pid)) is not None:
                child.ending.cpu = reaped.cpu
                self._on_exit(slot, child, Death.of(reaped.status))
        self._remove_retired_slots()

    def _remove_retired_slots(self) -> None:
        """Remove retired slots without processes; another slot takes over what is to be recovered."""
        slots = self._state.slots
        gone = [slot for slot in slots if slot.is_retiring and not slot.children()]
        slots[:] = [slot for slot in slots if slot not in gone]
        for slot in gone:
            self._state.retired_restarts[slot.number] = slot.restarts
            kin = next((each for each in slots if each.plan.group.shard == slot.plan.group.shard), None)
            if kin is not None:
                kin.orphans.update(slot.orphans)
            elif slot.orphans:
                self._events.emit("cluster_stranded", identities=", ".join(slot.orphans))

    def _on_exit(self, slot: Slot, child: Child, death: Death) -> None:
        child.ending.is_dead = True  # its last frames may not promote it
        if not child.channel.closed:
            for frame in child.channel.receive():
                self._on_frame(slot, child, frame)
            self._selector.unregister(child.channel.socket)
            child.channel.close()
        running = child.running_jobs.jobs()
        child.responses.read_stacks()  # of a crash
        child.close()
        slot.orphans.update(dict.fromkeys(child.identities, child.suspects(running)))
        self._metrics.on_child_exit(slot, child)
        self.ask_sibling_to_recover()  # before another process is asked to stop
        if child is slot.replacement:
            slot.replacement = None
            self._on_replacement_exit(slot, child, death, running)
        elif child is slot.child:
            slot.child = None
            self._on_child_exit(slot, child, death, running)
        else:
            slot.leaving.remove(child)
            self._on_leave(slot, child, death, running)

    def _on_replacement_exit(self, slot: Slot, child: Child, death: Death, running: list[RunningJob]) -> None:
        if self._state.is_stopping:
            self._on_leave(slot, child, death, running)
            return
        self._report(slot, child, death, "boot", running)
        for observer in self.observers:
            observer.on_replacement_failed(slot, f"pid {child.pid} {death}{child.reason}")

    def _on_child_exit(self, slot: Slot, child: Child, death: Death, running: list[RunningJob]) -> None:
        if self._state.is_stopping or slot.is_retiring:
            self._on_leave(slot, child, death, running)
            return
        now = self._clock.monotonic()
        reason = restart_reason(child, death)
        slot.restarts[reason] += 1
        slot.memory_strikes = 0
        if child.ending.stop_reason:
            self._on_leave(slot, child, death, running)
        else:
            self._report(slot, child, death, reason, running)
        self._record_death(slot, None if child.ready_at is None else now - child.ready_at, death.code, now)
        if slot.replacement is not None:  # its replacement boots already
            slot.child, slot.replacement = slot.replacement, None
        elif (wait := slot.history.not_before - now) > 0:
            self._events.emit(
                "child_backoff", slot=slot.number, seconds=wait, why=slot.history.why_waiting,
                failures=slot.history.failures,
            )  # fmt: skip
        if not child.ending.stop_reason:
            for observer in self.observers:
                observer.on_death(slot, f"pid {child.pid} {death}{child.reason}")

    def _on_leave(self, slot: Slot, child: Child, death: Death, running: list[RunningJob]) -> None:
        """Log the end of a process that was asked to stop: as a death, unless it has given its units back."""
        if child.identities:  # it joined, and said no bye
            self._report(slot, child, death, restart_reason(child, death), running)
        else:
            self._events.emit("child_left", slot=slot.number, child=child.pid)

    def _report(self, slot: Slot, child: Child, death: Death, reason: str, jobs: list[RunningJob]) -> None:
        now, epoch = self._clock.monotonic(), self._clock.now()
        running = [each.as_json(epoch) for each in jobs]
        slot.last_death = child.death_record(death, reason, now, epoch, running)
        self._events.emit(
            "child_died", slot=slot.number, child=child.pid, death=death, reason=reason, running=running,
            report=child.describe_death(death, now, epoch, jobs),
            error=child.ending.exit_reason, stacks=child.responses.stacks_read,
        )  # fmt: skip

    def _record_death(self, slot: Slot, ready_for: float | None, code: int | None, now: float) -> None:
        burst = self.config.health_respawn_burst
        slot.history = respawn.after_death(
            slot.history, ready_for=ready_for, code=code, now=now, burst=burst, rng=self._rng
        )

    def ask_sibling_to_recover(self) -> None:
        """Have a ready child recover the units of dead ones.  Their successors do that too, but may come late."""
        for shard in {slot.plan.group.shard for slot in self._state.slots if slot.orphans}:
            slots = [slot for slot in self._state.slots if slot.plan.group.shard == shard]
            able = [child for slot in slots for child in slot.children() if child.is_able]
            if able:
                chosen = min(able, key=lambda each: each.ending.is_asked_to_stop)  # prefer one that was not
                orphans = {key: running for slot in slots for key, running in slot.orphans.items()}
                chosen.channel.send("recover", orphans=orphans)

    # 5. deadlines

    def check_deadlines(self) -> None:
        """Kill overdue processes, and end the quiet of single processes whose lease is over."""
        now = self._clock.monotonic()
        for slot, child in self.children():
            if child.ending.kill_reason:
                self._kill_overdue(slot, child, now)
                continue
            match passed_deadline(slot, child, self.config, self._state.stop_by, now):
                case Deadline.STOP:
                    self._events.emit("stop_overdue", slot=slot.number, child=child.pid)
                    self._state.killed_at_stop |= self._state.is_stopping
                    self._kill(child, "overdue")
                case Deadline.BOOT:
                    reason = f"was not ready within {self.config.health_boot_timeout:g} s (health.boot_timeout)"
                    self.end_by_kill(child, reason, "boot")
                case Deadline.SILENCE:
                    reason = f"made no progress for {self.config.health_silence_timeout:g} s (health.silence_timeout)"
                    self.end_by_kill(child, reason, "silent")
                case Deadline.QUIET:
                    self._end_quiet(slot, child)
            is_leaving = self._state.is_stopping or child.ending.is_asked_to_stop
            self._liveness.check(slot, child, is_leaving=is_leaving)

    def _end_quiet(self, slot: Slot, child: Child) -> None:
        child.quiet_until = inf
        if not self._state.quiet:  # else the lease of the cluster's quiet counts
            self._events.emit("child_quiet_expired", slot=slot.number, child=child.pid)
            child.channel.send("resume")

    def end_by_kill(self, child: Child, reason: str, kind: str) -> None:
        """Have a child killed after a moment in which it writes its stacks."""
        child.ending.exit_reason, child.ending.kill_reason = reason, kind
        child.ending.kill_due = self._clock.monotonic()
        if self._liveness.request_stacks(child):
            child.ending.kill_due = child.responses.dump_due

    def kill_job(self, jid: str, by: str) -> str | None:
        """Kill the process that runs a job, and blame that job alone; return why that is not possible, or None.

        A process that is being killed already, for whatever reason, is left to that.
        """
        for _, child in self.children():
            for job in child.running_jobs.jobs():
                if job.jid == jid and child.ending.kill_reason:
                    return None
                if job.jid == jid:
                    child.ending.blamed_token = job.token
                    self.end_by_kill(child, f"runs {job.name} {jid}, which {by} wants to end", "job_killed")
                    return None
        return f"runs no job {jid}"

    def _kill_overdue(self, slot: Slot, child: Child, now: float) -> None:
        if child.ending.kill_due is None or now < child.ending.kill_due:
            return
        child.ending.kill_due = None
        child.responses.read_stacks()
        self._events.emit(
            "child_overdue", slot=slot.number, child=child.pid, reason=child.ending.exit_reason,
            stacks=child.responses.stacks_read or "(it does not tell its stacks)",
        )  # fmt: skip
        self._kill(child, child.ending.kill_reason)

    def _kill(self, child: Child, reason: str) -> None:
        """Kill a child with its process group."""
        child.ending.kill_reason = reason
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:  # it does not lead its group yet, or is dead and not reaped
            os.kill(child.pid, signal.SIGKILL)

    # the end

    def stop(self, seconds: float) -> None:
        """Ask all processes to stop."""
        for _, child in self.children():
            self.ask_to_stop(child, seconds)

    @property
    def all_exited(self) -> bool:
        return not any(self.children())
