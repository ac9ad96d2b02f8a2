"""State: what is true of the cluster as a whole; written by the loop, read by its pages, metrics and notices."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import inf

from kiqcluster.supervisor.cluster.quiet_lease import QuietLease
from kiqcluster.supervisor.cluster.slots import Slot

__all__ = ["ClusterState", "ReloadReport", "RollReport"]


@dataclass(slots=True)
class RollReport:
    """How the latest rolling restart goes, or went.

    ident: whoever asked for it finds its end by that.  state: rolling, done, failed or superseded.  error: why it did
    not come to its end; the first line says most.  ended_at: epoch seconds, None while it goes on.
    """

    ident: str
    state: str = "rolling"
    done: int = 0
    of: int = 0
    error: str = ""
    ended_at: float | None = None

    def as_json(self) -> dict[str, object]:
        return {
            "id": self.ident, "state": self.state, "done": self.done, "of": self.of, "error": self.error,
            "ended_at": self.ended_at,
        }  # fmt: skip


@dataclass(slots=True)
class ReloadReport:
    """How the latest reload goes, or went: as that of a roll.  state: reloading, done, failed or superseded."""

    ident: str
    state: str = "reloading"
    error: str = ""
    ended_at: float | None = None

    def as_json(self) -> dict[str, object]:
        return {"id": self.ident, "state": self.state, "error": self.error, "ended_at": self.ended_at}


@dataclass(slots=True)
class ClusterState:
    """Shared by everything in the supervisor that reports.  Times are monotonic seconds, but for started_epoch.

    generation: rolling restarts since the start; a child carries the one that it was started in.
    stop_by: when what is left is killed; None until the stop.  restart_needed: why a new supervisor is needed, if so.
    reload_needed: settings of the release that runs which wait for a reload.  roll_needed: what waits for a roll.
    control: path of the control socket, empty without one.  deploy: who has begun the latest deploy, empty before any.
    jobs: (name, queue) of every job class that the catalogue knows.  recovered: units given back for dead children.
    fenced: memberships that were lost while their process lived.  killed_at_stop: whether somebody did not leave.
    was_up: whether a child was ever ready.  retired_restarts: those of slots that have gone, by number.
    """

    started_at: float = 0.0
    started_epoch: float = 0.0
    slots: list[Slot] = field(default_factory=list)
    quiet: QuietLease = field(default_factory=QuietLease)
    roll: RollReport | None = None
    reload: ReloadReport | None = None
    generation: int = 0
    stop_by: float | None = None
    restart_needed: str = ""
    reload_needed: str = ""
    roll_needed: str = ""
    control: str = ""
    deploy: str = ""
    jobs: tuple[tuple[str, str], ...] = ()
    reloads: Counter[str] = field(default_factory=Counter)  # by result: done, failed, superseded
    rolls: Counter[str] = field(default_factory=Counter)  # by result: done, failed, superseded
    recovered: int = 0
    fenced: int = 0
    killed_at_stop: bool = False
    was_up: bool = False
    retired_restarts: dict[int, Counter[str]] = field(default_factory=dict)

    @property
    def is_stopping(self) -> bool:
        return self.stop_by is not None

    def seconds_left(self, now: float) -> float:
        """Return the seconds until what is left is killed; infinite while nothing stops."""
        return inf if self.stop_by is None else max(0.0, self.stop_by - now)

    def is_up(self, quorum: int | None) -> bool:
        """Return whether enough slots have a child that is ready.  quorum: how many; None for all."""
        serving = sum(slot.child is not None and slot.child.is_ready for slot in self.slots)
        return bool(self.slots) and serving >= min(len(self.slots), quorum or len(self.slots))
