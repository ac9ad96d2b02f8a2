"""Children: what the supervisor knows of its slots and of the processes in them.  Bookkeeping; it forks nothing."""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from kiqcluster.board import Board
from kiqcluster.errors import ExitCode
from kiqcluster.frames import Channel
from kiqcluster.supervisor.expansion import SlotPlan
from kiqcluster.supervisor.respawn import History

__all__ = ["Child", "Death", "Slot", "restart_reason"]


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
            return "; a C extension crashed (run it with faulthandler)"
        return ""


@dataclass(slots=True)
class Child:
    """A process in a slot.  Times are monotonic seconds.

    identities: who it was in Redis, by its own word; last_beat: the last that counted as progress.
    """

    pid: int
    slot: int
    channel: Channel
    started_at: float
    last_beat: float
    identities: list[str] = field(default_factory=list)
    ready_at: float | None = None
    waits_for: str = ""
    busy: int = 0
    rss: int = 0  # bytes at its last beat, for the death report
    redis: bool = False
    quiet: bool = False
    left: bool = False
    doomed: str = ""  # why it was killed, once it was

    @property
    def is_ready(self) -> bool:
        return self.ready_at is not None

    def report(self, death: Death, now: float, running: int) -> str:
        """Return what the person on call wants to know of its end."""
        memory = f", {self.rss / 1e6:.0f} MB" if self.rss else ""
        return f" after {now - self.started_at:.1f} s{memory}, {running} jobs were running{death.hint}"

    def resident_bytes(self) -> int | None:
        """Return the memory it uses, while it lives; None where that cannot be read."""
        try:
            fields = Path(f"/proc/{self.pid}/statm").read_text().split()
        except OSError:
            return None
        return int(fields[1]) * 4_096


@dataclass(slots=True)
class Slot:
    """A stable place for a child.

    orphans: identities of its dead children that nobody has recovered yet, with the tokens that were running.
    """

    plan: SlotPlan
    board: Board
    child: Child | None = None
    history: History = field(default_factory=History)
    orphans: dict[str, tuple[str, ...]] = field(default_factory=dict)
    restarts: Counter[str] = field(default_factory=Counter)

    @property
    def number(self) -> int:
        return self.plan.slot

    @property
    def state(self) -> str:
        """One word for it: ready, booting, quiet, stopping or backoff."""
        if self.child is None:
            return "backoff"
        if self.child.doomed or self.child.left:
            return "stopping"
        if not self.child.is_ready:
            return "booting"
        return "quiet" if self.child.quiet else "ready"


def restart_reason(child: Child, death: Death) -> str:
    """Return the label of kiqcluster_child_restarts_total for a death that nobody asked for."""
    if child.doomed == "silent":
        return "silent"
    if not child.is_ready:
        return "boot"
    if death.signal is not None:
        return "killed"
    return "remote_stop" if death.code == ExitCode.STOPPED else "crash"
