"""Slots: what the supervisor knows of its slots and of the processes in them.  It starts and ends no process."""

from __future__ import annotations

import resource
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from kiqcluster.control.slot_state import SlotState
from kiqcluster.errors import ExitCode
from kiqcluster.ipc.frames import Channel
from kiqcluster.ipc.running_jobs import RunningJob, RunningJobs
from kiqcluster.ipc.thread_stacks import ThreadStacks
from kiqcluster.supervisor.cluster.expansion import SlotPlan
from kiqcluster.supervisor.cluster.respawn import History

__all__ = ["Child", "Death", "Slot", "describe_jobs", "restart_reason"]

MAX_NAMED_JOBS = 10  # in the text of a log line; its fields have all
PLANNED_REASONS = frozenset({"rolling", "max_jobs", "max_rss"})  # reasons of restarts that are no fault
PAGE_BYTES = resource.getpagesize()


@dataclass(frozen=True, slots=True)
class Death:
    """How a process ended.  code: its exit code, None when a signal ended it."""

    code: int | None
    signal: int | None

    @classmethod
    def of(cls, status: int) -> Death:
        """Return the meaning of a wait status."""
        if status & 0x7F:
            return cls(None, status & 0x7F)
        return cls(status >> 8, None)

    def __str__(self) -> str:
        if self.signal is None:
            return f"exited with {self.code}"
        try:
            name = signal.Signals(self.signal).name
        except ValueError:  # real-time signals have numbers only
            name = f"signal {self.signal}"
        return f"was killed by {name}"

    @property
    def hint(self) -> str:
        """What the person on call should check."""
        if self.signal == signal.SIGKILL:
            return "; if nobody killed it, the kernel did because memory ran out (see dmesg)"
        if self.signal == signal.SIGSEGV:
            return "; a C extension crashed"
        return ""


@dataclass(slots=True, eq=False)
class Child:
    """A process in a slot.  Times are monotonic seconds, except last_beat_epoch.

    running_jobs, stacks: memory shared with the process, made before the fork; stacks may be None.
    release: directory of the code that it runs.  generation: number of the rolling restart that brought this code.
    identities: its names in Redis, the current one last.  last_beat: the latest beat that counted as progress.
    processed, prefetched, round_trips, round_trip_seconds: totals since its start, from its latest beat.
    drained_since: since when it reports empty queues and no units; inf while it does not.
    quiet_until: when the quiet ends that somebody asked of this process alone.
    stop_deadline: when it is killed, once it was told to stop.  stop_reason: why it was told to.
    kill_reason: why it was killed, once it was.  exit_reason: why it ended, by its own account or as the reason of a
    kill; empty if unknown.
    blamed_token: the job for which somebody had it killed.  If empty, all jobs that it ran are suspects.
    last_frame_at: when the latest frame came.  dump_due: when the requested stacks are read.
    kill_due: when it is killed, after its stacks were read.  stacks_read: the latest stacks.
    boot_memory: unshared bytes before its first job; 0 if unknown.
    """

    pid: int
    slot: int
    channel: Channel
    started_at: float
    last_beat: float
    running_jobs: RunningJobs = field(default_factory=lambda: RunningJobs(0))
    stacks: ThreadStacks | None = None
    release: str = ""
    generation: int = 0
    job_limit: float = inf
    identities: list[str] = field(default_factory=list)
    ready_at: float | None = None
    last_beat_epoch: float = 0.0
    waits_for: str = ""
    busy: int = 0
    processed: int = 0
    prefetched: int = 0
    round_trips: int = 0
    round_trip_seconds: float = 0.0
    rss: int = 0  # bytes at its last beat
    cpu: float = 0.0  # seconds of its whole life, once it is dead
    pss: int | None = None  # bytes, by its own word; None where it has not looked
    redis: bool = False
    quiet: bool = False
    quiet_until: float = inf
    drained_since: float = inf
    said_bye: bool = False
    is_dead: bool = False
    stop_deadline: float = inf
    stop_reason: str = ""
    kill_reason: str = ""
    blamed_token: str = ""
    exit_reason: str = ""
    boot_memory: int = 0
    last_frame_at: float = inf
    is_unresponsive: bool = False
    dump_due: float = inf
    kill_due: float | None = None
    stacks_read: str = ""

    @property
    def state(self) -> SlotState:
        """What the process does.  The first of these that is true."""
        if self.kill_reason or self.said_bye or self.stop_deadline < inf:
            return SlotState.STOPPING
        if not self.is_ready:
            return SlotState.BOOTING
        if self.is_unresponsive:
            return SlotState.UNRESPONSIVE
        return SlotState.QUIET if self.quiet else SlotState.READY

    @property
    def reason(self) -> str:
        """Why it ended, after a colon; empty if unknown."""
        return f": {self.exit_reason}" if self.exit_reason else ""

    @property
    def first_reason_line(self) -> str:
        """The first line of the reason, which is the most useful."""
        return self.reason.partition("\n")[0]

    @property
    def is_ready(self) -> bool:
        return self.ready_at is not None

    @property
    def is_able(self) -> bool:
        """Whether it can recover units for other processes."""
        return self.is_ready and not (self.is_dead or self.kill_reason or self.said_bye)

    def describe_death(self, death: Death, now: float, epoch: float, jobs: Sequence[RunningJob]) -> str:
        """Return the end of a log line about its death.  now: monotonic seconds.  epoch: epoch seconds."""
        memory = f", {self.rss / 1e6:.0f} MB" if self.rss else ""
        hint = "" if self.kill_reason else death.hint
        return (
            f" after {now - self.started_at:.1f} s{memory}, {describe_jobs(jobs, epoch)}{hint}{self.first_reason_line}"
        )

    def read_stacks(self) -> str:
        """Return the requested stacks, or those that a crash has left; empty if there are none."""
        found = "" if self.stacks is None else self.stacks.read()
        self.stacks_read = found or self.stacks_read
        return found

    def close(self) -> None:
        """Release the memory that was shared with it."""
        self.running_jobs.close()
        if self.stacks is not None:
            self.stacks.close()

    def resident_bytes(self) -> int | None:
        """Return the bytes that it uses; None if that cannot be read, as after its death."""
        try:
            fields = Path(f"/proc/{self.pid}/statm").read_text().split()
        except OSError:
            return None
        return int(fields[1]) * PAGE_BYTES

    def unshared_bytes(self) -> int:
        """Return the bytes that its end would free: its proportional share if that is known, else all that it uses."""
        return self.rss if self.pss is None else min(self.pss, self.rss)


@dataclass(slots=True, eq=False)
class Slot:
    """A stable place for a child.

    replacement: boots to take the child's place.  leaving: processes that were replaced and finish their jobs.
    is_retiring: the slot left the configuration; it goes with its last process.
    orphans: identities of dead children that nobody has recovered yet → tokens of the units that they ran.
    memory_strikes: checks in a row at which the child used too much memory.
    memory_check_at: when memory is checked next, monotonic seconds.
    """

    plan: SlotPlan
    child: Child | None = None
    replacement: Child | None = None
    leaving: list[Child] = field(default_factory=list)
    is_retiring: bool = False
    history: History = field(default_factory=History)
    orphans: dict[str, tuple[str, ...]] = field(default_factory=dict)
    restarts: Counter[str] = field(default_factory=Counter)
    last_death: dict[str, Any] | None = None
    memory_strikes: int = 0
    memory_check_at: float = 0.0

    @property
    def number(self) -> int:
        return self.plan.slot

    @property
    def unplanned_restarts(self) -> int:
        """How many restarts nobody asked for."""
        return sum(count for reason, count in self.restarts.items() if reason not in PLANNED_REASONS)

    @property
    def state(self) -> SlotState:
        """What the slot does: the state of its child; BACKOFF without one."""
        return SlotState.BACKOFF if self.child is None else self.child.state

    def children(self) -> list[Child]:
        """Return every process of the slot: child, replacement, and those that leave."""
        return [*filter(None, (self.child, self.replacement)), *self.leaving]


def restart_reason(child: Child, death: Death) -> str:
    """Return the `reason` label of kiqcluster_child_restarts_total for a death."""
    if child.kill_reason in ("silent", "job_killed") or child.stop_reason:
        return child.stop_reason or child.kill_reason
    if not child.is_ready:
        return "boot"
    if death.signal is not None:
        return "killed"
    # A job may end its process with the same code (os._exit), but then the process has sent no `bye`.
    return "remote_stop" if death.code == ExitCode.STOPPED and child.said_bye else "crash"


def describe_jobs(jobs: Sequence[RunningJob], now: float) -> str:
    """Return which jobs run, or ran, as text.  now: epoch seconds."""
    named = [f"{each.name} {each.jid} for {max(0.0, now - each.since):.1f} s" for each in jobs[:MAX_NAMED_JOBS]]
    if len(jobs) > MAX_NAMED_JOBS:
        named.append(f"{len(jobs) - MAX_NAMED_JOBS} more")
    words = f" ({', '.join(named)})" if named else ""
    return f"running jobs: {len(jobs)}{words}"
