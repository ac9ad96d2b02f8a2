"""State of the cluster as a whole: the loop writes it; pages, metrics and systemd's status read it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from math import inf

from kiqcluster.supervisor.cluster.quiet_lease import QuietLease
from kiqcluster.supervisor.cluster.slots import Slot, judged_slots

__all__ = ["ClusterState", "ReloadReport", "Roll", "RollPhase"]


class RollPhase(Enum):
    """Phases of a rolling restart: see rolling_restart.py.  Reports call the first two "rolling"."""

    ASKING = "asking"
    REPLACING = "replacing"
    DONE = "done"
    FAILED = "failed"
    SUPERSEDED = "superseded"


@dataclass(slots=True)
class Roll:
    """A rolling restart.

    ident: name by which the caller finds the result.  done, of: slots.  error: why it failed; the first line says
    most.  ended_at: epoch seconds, None while it goes on.  asked_at: monotonic seconds.  waits_for: shards that are
    away, while only slots of these are left.
    """

    ident: str
    phase: RollPhase = RollPhase.ASKING
    done: int = 0
    of: int = 0
    error: str = ""
    ended_at: float | None = None
    asked_at: float = -inf
    waits_for: tuple[str, ...] = ()

    @property
    def is_under_way(self) -> bool:
        return self.phase in (RollPhase.ASKING, RollPhase.REPLACING)

    def as_json(self) -> dict[str, object]:
        state = "rolling" if self.is_under_way else self.phase.value
        return {
            "id": self.ident, "state": state, "done": self.done, "of": self.of, "error": self.error,
            "ended_at": self.ended_at, **({"waits_for": list(self.waits_for)} if self.waits_for else {}),
        }  # fmt: skip


@dataclass(slots=True)
class ReloadReport:
    """The latest reload, in the form of a Roll.  state: reloading, done, failed or superseded."""

    ident: str
    state: str = "reloading"
    error: str = ""
    ended_at: float | None = None

    def as_json(self) -> dict[str, object]:
        return {"id": self.ident, "state": self.state, "error": self.error, "ended_at": self.ended_at}


@dataclass(slots=True)
class ClusterState:
    """Shared by all reports of the supervisor.  Times are monotonic seconds, except started_epoch.

    generation: number of the latest rolling restart; each child has that of its code.
    stop_by: when remaining processes are killed; None until the stop.  restart_needed: why a new supervisor is needed.
    reload_needed: settings of the release in use that wait for a reload.  roll_needed: changes that wait for a roll.
    control: path of the control socket, empty without one.  deploy: who began the latest deploy, empty before any.
    jobs: (name, queue) of every job class in the catalogue.  routing: digest of the routing rules, "" without any.
    recovered: units returned to queues for dead children.
    fenced: memberships lost while their process lived.  killed_at_stop: whether a process did not stop in time.
    was_up: whether a child was ever ready.  retired_restarts: restarts of removed slots, by slot number.
    """

    started_at: float = 0.0
    started_epoch: float = 0.0
    slots: list[Slot] = field(default_factory=list)
    quiet: QuietLease = field(default_factory=QuietLease)
    roll: Roll | None = None
    reload: ReloadReport | None = None
    generation: int = 0
    stop_by: float | None = None
    restart_needed: str = ""
    reload_needed: str = ""
    roll_needed: str = ""
    control: str = ""
    deploy: str = ""
    jobs: tuple[tuple[str, str], ...] = ()
    routing: str = ""
    reloads: Counter[str] = field(default_factory=Counter)  # by result: done, failed, superseded
    rolls: Counter[str] = field(default_factory=Counter)  # by result: done, failed, superseded
    recovered: int = 0
    fenced: int = 0
    killed_at_stop: bool = False
    was_up: bool = False
    retired_restarts: dict[int, Counter[str]] = field(default_factory=dict)

    @property
    def is_rolling(self) -> bool:
        return self.roll is not None and self.roll.is_under_way

    @property
    def why_no_change(self) -> str | None:
        """Why neither a roll nor a reload can begin, None if they can."""
        if self.is_stopping:
            return "the cluster is stopping"
        return None if self.slots else "the application is being imported"

    @property
    def is_stopping(self) -> bool:
        return self.stop_by is not None

    def seconds_left(self, now: float) -> float:
        """Return the seconds until remaining processes are killed; inf while the cluster does not stop."""
        return inf if self.stop_by is None else max(0.0, self.stop_by - now)

    def is_up(self, quorum: int | None) -> bool:
        """Return whether enough slots have a child that is ready.  quorum: how many; None for all.

        Slots that wait for a shard that is away do not count.
        """
        slots = judged_slots(self.slots)
        serving = sum(slot.child is not None and slot.child.is_ready for slot in slots)
        return bool(slots) and serving >= min(len(slots), quorum or len(slots))
