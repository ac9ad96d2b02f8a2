"""Child: the supervisor's view of one worker process, and of its end.  Starts and ends no process."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from kiqcluster.control.slot_state import SlotState
from kiqcluster.errors import ExitCode
from kiqcluster.ipc import operating_system
from kiqcluster.ipc.frames import Channel, Frame
from kiqcluster.ipc.running_jobs import TIMED_OUT, RunningJob, RunningJobs
from kiqcluster.ipc.thread_stacks import ThreadStacks

__all__ = ["JOB_TIMEOUT", "Child", "Death", "Ending", "LastBeat", "Responses", "describe_jobs", "restart_reason"]

MAX_NAMED_JOBS = 10  # in the text of a log line; its fields have all
JOB_TIMEOUT = "job_timeout"  # reason of a restart: a job has run for longer than its timeout_hard


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


@dataclass(slots=True)
class LastBeat:
    """What the latest beat of a process has reported.

    at, epoch: when the latest beat came that counted as progress; monotonic and epoch seconds.
    processed, prefetched, round_trips, round_trip_seconds: totals since the start of the process.
    redis: whether Redis answers it.  drained_since: since when it reports empty queues and no units; inf while it has
    some.  rss: bytes, as read here.  pss: bytes, as the process reports them; None if it has not measured them.
    """

    at: float
    epoch: float = 0.0
    busy: int = 0
    processed: int = 0
    prefetched: int = 0
    round_trips: int = 0
    round_trip_seconds: float = 0.0
    redis: bool = False
    drained_since: float = inf
    rss: int = 0
    pss: int | None = None

    def update(self, frame: Frame, rss: int | None, now: float) -> None:
        """Take over the values of a beat.  rss: bytes, None if they cannot be read.  now: monotonic seconds."""
        self.busy, self.redis = frame["busy"], frame["redis"]
        self.processed, self.prefetched = frame["processed"], frame["prefetched"]
        self.round_trips, self.round_trip_seconds = frame["round_trips"], frame["round_trip_seconds"]
        self.rss, self.pss = rss or self.rss, frame["pss"]
        if not frame["drained"]:
            self.drained_since = inf
        elif self.drained_since == inf:
            self.drained_since = now

    def unshared_bytes(self) -> int:
        """Return the bytes that its end would free: its proportional share if that is known, else all that it uses."""
        return self.rss if self.pss is None else min(self.pss, self.rss)


@dataclass(slots=True)
class Responses:
    """Whether a process responds, and the stacks of its threads.

    stacks: memory shared with the process, made before the fork.  last_frame_at: when the latest frame came.
    dump_due: when the requested stacks are read.  stacks_read: the latest stacks.
    """

    stacks: ThreadStacks | None = None
    last_frame_at: float = inf
    is_unresponsive: bool = False
    dump_due: float = inf
    stacks_read: str = ""

    def read_stacks(self) -> str:
        """Return the requested stacks, or those that a crash has left; empty if there are none."""
        found = "" if self.stacks is None else self.stacks.read()
        self.stacks_read = found or self.stacks_read
        return found

    def close(self) -> None:
        """Release the memory that was shared with the process."""
        if self.stacks is not None:
            self.stacks.close()


@dataclass(slots=True)
class Ending:
    """How a process ends: it was asked to stop, or it is killed, or neither.  The reasons are empty until then.

    stop_deadline: when it is killed, once it was asked to stop.  stop_reason: label of the restart counter.
    kill_reason: label of the restart counter.  kill_due: when it is killed, after its stacks were read; else None.
    blamed_token: the job for which somebody had it killed; if empty, all jobs that it ran are suspects.
    timed_out: tokens of jobs that have run for longer than their `timeout_hard`, because of which it ends.
    holders: tokens of other jobs, one of which may have held the interpreter when it was killed for that.
    exit_reason: why it ended, by its own account or as the reason of a kill.
    said_bye: whether it has given its units back.  cpu: seconds of its whole life, once it is dead.
    """

    stop_deadline: float = inf
    stop_reason: str = ""
    kill_reason: str = ""
    kill_due: float | None = None
    blamed_token: str = ""
    timed_out: tuple[str, ...] = ()
    holders: frozenset[str] = frozenset()
    exit_reason: str = ""
    said_bye: bool = False
    is_dead: bool = False
    cpu: float = 0.0

    @property
    def is_asked_to_stop(self) -> bool:
        return self.stop_deadline < inf


@dataclass(slots=True, eq=False)
class Child:
    """A process in a slot.  Times are monotonic seconds.

    running_jobs: memory shared with the process, made before the fork.
    release: directory of the code that it runs.  generation: number of the rolling restart that brought this code.
    job_limit: jobs after which it is replaced.  identities: its names in Redis, the current one last.
    waits_for: why its boot is held up.  boot_memory: unshared bytes before its first job; 0 if unknown.
    quiet_until: when the quiet ends that somebody asked of this process alone.
    """

    pid: int
    channel: Channel
    started_at: float
    beat: LastBeat
    running_jobs: RunningJobs = field(default_factory=lambda: RunningJobs(0))
    release: str = ""
    generation: int = 0
    job_limit: float = inf
    identities: list[str] = field(default_factory=list)
    ready_at: float | None = None
    waits_for: str = ""
    boot_memory: int = 0
    quiet: bool = False
    quiet_until: float = inf
    responses: Responses = field(default_factory=Responses)
    ending: Ending = field(default_factory=Ending)

    @property
    def state(self) -> SlotState:
        """What the process does.  The first of these that is true."""
        if self.ending.kill_reason or self.ending.said_bye or self.ending.is_asked_to_stop:
            return SlotState.STOPPING
        if not self.is_ready:
            return SlotState.BOOTING
        if self.responses.is_unresponsive:
            return SlotState.UNRESPONSIVE
        return SlotState.QUIET if self.quiet else SlotState.READY

    @property
    def reason(self) -> str:
        """Why it ended, after a colon; empty if unknown."""
        return f": {self.ending.exit_reason}" if self.ending.exit_reason else ""

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
        return self.is_ready and not (self.ending.is_dead or self.ending.kill_reason or self.ending.said_bye)

    def suspects(self, running: Sequence[RunningJob]) -> tuple[str, ...]:
        """Return the tokens of the jobs that are to blame for its death; with TIMED_OUT, of those that have failed."""
        tokens = [each.token for each in running if not each.is_waiting]
        was_ended = self.ending.kill_reason in (JOB_TIMEOUT, "overdue")
        has_gone = (
            bool(self.ending.stop_reason == JOB_TIMEOUT and self.ending.timed_out) and not self.ending.kill_reason
        )
        if has_gone and set(tokens) <= set(
            self.ending.timed_out
        ):  # it went by itself, and Redis has not taken its units
            was_ended = True
        timed_out = [each.token + TIMED_OUT for each in running if was_ended and each.token in self.ending.timed_out]
        if self.ending.kill_reason == JOB_TIMEOUT:  # the overdue job may have ended meanwhile
            return (*timed_out, *(token for token in tokens if token in self.ending.holders))
        return tuple(timed_out or [token for token in tokens if self.ending.blamed_token in ("", token)])

    def describe_death(self, death: Death, now: float, epoch: float, jobs: Sequence[RunningJob]) -> str:
        """Return the end of a log line about its death.  now: monotonic seconds.  epoch: epoch seconds."""
        memory = f", {self.beat.rss / 1e6:.0f} MB" if self.beat.rss else ""
        hint = "" if self.ending.kill_reason else death.hint
        return (
            f" after {now - self.started_at:.1f} s{memory}, {describe_jobs(jobs, epoch)}{hint}{self.first_reason_line}"
        )

    def death_record(
        self, death: Death, reason: str, now: float, epoch: float, running: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Return its death as /status shows it.  running: jobs, see RunningJob.as_json."""
        return {
            "at": epoch,
            "how": str(death),
            "reason": reason,
            "running": running,
            "uptime": now - self.started_at,
            "error": self.ending.exit_reason,
            "stacks": self.responses.stacks_read,
            "release": self.release,
        }

    def close(self) -> None:
        """Release the memory that was shared with it."""
        self.running_jobs.close()
        self.responses.close()

    def resident_bytes(self) -> int | None:
        """Return the bytes that it uses; None if that cannot be read, as after its death."""
        return operating_system.resident_bytes(self.pid)


def restart_reason(child: Child, death: Death) -> str:
    """Return the `reason` label of kiqcluster_child_restarts_total for a death."""
    if child.ending.kill_reason in ("silent", "job_killed", JOB_TIMEOUT) or child.ending.stop_reason:
        return child.ending.stop_reason or child.ending.kill_reason
    if not child.is_ready:
        return "boot"
    if death.signal is not None:
        return "killed"
    # A job may end its process with the same code (os._exit), but then the process has sent no `bye`.
    return "remote_stop" if death.code == ExitCode.STOPPED and child.ending.said_bye else "crash"


def describe_jobs(jobs: Sequence[RunningJob], now: float) -> str:
    """Return which jobs run, or ran, as text.  now: epoch seconds."""
    named = [f"{each.name} {each.jid} for {max(0.0, now - each.since):.1f} s" for each in jobs[:MAX_NAMED_JOBS]]
    if len(jobs) > MAX_NAMED_JOBS:
        named.append(f"{len(jobs) - MAX_NAMED_JOBS} more")
    words = f" ({', '.join(named)})" if named else ""
    return f"running jobs: {len(jobs)}{words}"
