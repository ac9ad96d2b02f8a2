"""Children: what the supervisor knows of its slots and of the processes in them.  Bookkeeping; it forks nothing."""

from __future__ import annotations

import resource
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from kiqcluster.errors import ExitCode
from kiqcluster.ipc.frames import Channel
from kiqcluster.ipc.running_jobs import RunningJob, RunningJobs
from kiqcluster.ipc.thread_stacks import ThreadStacks
from kiqcluster.supervisor.cluster.expansion import SlotPlan
from kiqcluster.supervisor.cluster.respawn import History

__all__ = ["Child", "Death", "Slot", "in_words", "restart_reason"]

MAX_NAMED_JOBS = 10  # in a line of the log; all are in its fields
PLANNED = frozenset({"rolling", "max_jobs", "max_rss"})  # reasons of restarts that are as they should be
PAGE = resource.getpagesize()  # bytes


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
        """What the person on call should look at."""
        if self.signal == signal.SIGKILL:
            return "; if nobody killed it, the kernel did for want of memory (see dmesg)"
        if self.signal == signal.SIGSEGV:
            return "; a C extension crashed"
        return ""


@dataclass(slots=True, eq=False)
class Child:
    """A process in a slot.  Times are monotonic seconds, but for last_beat_epoch.

    running_jobs, stacks: shared with it, made before it; it may have no stacks.
    release: where the code lies that it runs.  generation: of the rolling restart that brought that code.
    identities: who it was in Redis, by its own word.  last_beat: the last that counted as progress.
    processed, prefetched, round_trips, round_trip_seconds: by its last beat, since it was started.
    drained_since: when it began to say that its queues are empty and that it holds nothing.
    quiet_until: end of a quiet that is its own and not the cluster's.  leave_by: when it is killed, once it was told
    to leave.  leaves_for: why it was told to.  doomed: why it was killed, once it was.  last_words: why it ended, by
    its own word, or was killed; empty if nobody said.
    blamed: token of the job for which somebody had it killed; else all that it ran are suspects.
    heard_at: when it last said anything.  is_unresponsive: nothing came for long.  dump_due: when the stacks are read
    that it was asked for.  kill_due: when it is killed, after that.  stacks_read: the latest that were.
    first_size: bytes that it had for itself before its first job; 0 where it has not looked.
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
    left: bool = False
    is_dead: bool = False
    leave_by: float = inf
    leaves_for: str = ""
    doomed: str = ""
    blamed: str = ""
    last_words: str = ""
    first_size: int = 0
    heard_at: float = inf
    is_unresponsive: bool = False
    dump_due: float = inf
    kill_due: float | None = None
    stacks_read: str = ""

    @property
    def state(self) -> str:
        """One word for it: ready, booting, unresponsive, quiet or stopping."""
        if self.doomed or self.left or self.leave_by < inf:
            return "stopping"
        if not self.is_ready:
            return "booting"
        if self.is_unresponsive:
            return "unresponsive"
        return "quiet" if self.quiet else "ready"

    @property
    def reason(self) -> str:
        """Why it ended, after a colon; empty if nobody said."""
        return f": {self.last_words}" if self.last_words else ""

    @property
    def short_reason(self) -> str:
        """The first line of that, which says most."""
        return self.reason.partition("\n")[0]

    @property
    def is_ready(self) -> bool:
        return self.ready_at is not None

    @property
    def is_able(self) -> bool:
        """Whether it can do something for the others."""
        return self.is_ready and not (self.is_dead or self.doomed or self.left)

    def report(self, death: Death, now: float, epoch: float, jobs: Sequence[RunningJob]) -> str:
        """Return what the person on call wants to know of its end.  now: monotonic, epoch: epoch seconds."""
        memory = f", {self.rss / 1e6:.0f} MB" if self.rss else ""
        hint = "" if self.doomed else death.hint
        return f" after {now - self.started_at:.1f} s{memory}, {in_words(jobs, epoch)}{hint}{self.short_reason}"

    def read_stacks(self) -> str:
        """Return the stacks that it was asked for, or that a crash has left; empty where there are none."""
        found = "" if self.stacks is None else self.stacks.read()
        self.stacks_read = found or self.stacks_read
        return found

    def close(self) -> None:
        """Let go of what was shared with it."""
        self.running_jobs.close()
        if self.stacks is not None:
            self.stacks.close()

    def resident_bytes(self) -> int | None:
        """Return the memory it uses, while it lives; None where that cannot be read."""
        try:
            fields = Path(f"/proc/{self.pid}/statm").read_text().split()
        except OSError:
            return None
        return int(fields[1]) * PAGE

    def unshared_bytes(self) -> int:
        """Return the memory that it would free: its proportional share where that is known, else all that it uses."""
        return self.rss if self.pss is None else min(self.pss, self.rss)


@dataclass(slots=True, eq=False)
class Slot:
    """A stable place for a child.

    successor: boots to take the child's place.  leaving: have been replaced, and finish what they run.
    retires: it is not in the configuration any more, and goes with its last process.
    orphans: identities of its dead children that nobody has recovered yet, with the tokens that were running.
    strikes: looks in a row at which the child used too much memory.  weigh_at: the next look, monotonic seconds.
    """

    plan: SlotPlan
    child: Child | None = None
    successor: Child | None = None
    leaving: list[Child] = field(default_factory=list)
    retires: bool = False
    history: History = field(default_factory=History)
    orphans: dict[str, tuple[str, ...]] = field(default_factory=dict)
    restarts: Counter[str] = field(default_factory=Counter)
    last_death: dict[str, Any] | None = None
    strikes: int = 0
    weigh_at: float = 0.0

    @property
    def number(self) -> int:
        return self.plan.slot

    @property
    def unplanned_restarts(self) -> int:
        """How often its process was replaced that nobody wanted to be replaced."""
        return sum(count for reason, count in self.restarts.items() if reason not in PLANNED)

    @property
    def state(self) -> str:
        """One word for it: ready, booting, unresponsive, quiet, stopping or backoff."""
        return "backoff" if self.child is None else self.child.state

    def children(self) -> list[Child]:
        """Return every process of the slot: what serves, what will, and what did."""
        return [*filter(None, (self.child, self.successor)), *self.leaving]


def restart_reason(child: Child, death: Death) -> str:
    """Return the label of kiqcluster_child_restarts_total for a death that nobody asked for."""
    if child.doomed in ("silent", "job_killed") or child.leaves_for:
        return child.leaves_for or child.doomed
    if not child.is_ready:
        return "boot"
    if death.signal is not None:
        return "killed"
    # A job may end its process with the same code (os._exit), but then nobody has said that it leaves nothing behind.
    return "remote_stop" if death.code == ExitCode.STOPPED and child.left else "crash"


def in_words(jobs: Sequence[RunningJob], now: float) -> str:
    """Return which jobs run, or ran, in words.  now: epoch seconds."""
    named = [f"{each.name} {each.jid} for {max(0.0, now - each.since):.1f} s" for each in jobs[:MAX_NAMED_JOBS]]
    if len(jobs) > MAX_NAMED_JOBS:
        named.append(f"{len(jobs) - MAX_NAMED_JOBS} more")
    words = f" ({', '.join(named)})" if named else ""
    return f"running jobs: {len(jobs)}{words}"
