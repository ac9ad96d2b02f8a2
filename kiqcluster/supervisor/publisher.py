"""Publisher: sends the state of the cluster to the children, which publish it in Redis (field `kiq_cluster`).

Runs in: the supervisor's loop, once a turn.  A change is sent at once, and everything again every MAX_INTERVAL_SECONDS.
Changes of single processes wait for MIN_INTERVAL_SECONDS: each frame causes a heartbeat of every child.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kiqcluster.process.clock import Clock
from kiqcluster.process.version import VERSION
from kiqcluster.supervisor.cluster.child import Child
from kiqcluster.supervisor.cluster.slots import Slot
from kiqcluster.supervisor.cluster.state import ClusterState
from kiqcluster.supervisor.processes import ProcessManager

__all__ = ["Publisher"]

MAX_INTERVAL_SECONDS = 10.0  # between two frames while nothing changes
MIN_INTERVAL_SECONDS = 1.0  # between two frames because of single processes
MAX_ANSWERS = 16  # to orders
MAX_CHILDREN = 64  # processes in one document; every process of the cluster publishes the whole document


class Publisher:
    """supervisor: its name in Redis.  answers: id of an order → None, or why it was refused."""

    def __init__(self, supervisor: str, state: ClusterState, processes: ProcessManager, clock: Clock) -> None:
        self.answers: dict[str, str | None] = {}
        self._supervisor = supervisor
        self._state = state
        self._processes = processes
        self._clock = clock
        self._published: dict[str, object] = {}
        self._published_children: object = None
        self._published_at = -MAX_INTERVAL_SECONDS

    def answer(self, ident: str, refusal: str | None) -> None:
        """Record the answer to an order.  refusal: None if it was accepted."""
        plain = None if refusal is None else str(refusal)
        self.answers = dict([*self.answers.items(), (ident, plain)][-MAX_ANSWERS:])

    def publish_if_due(self) -> None:
        """Send the state to the children, if it has changed or is due."""
        now = self._clock.monotonic()
        ready = [
            child.pid for _, child in self._processes.children() if child.is_ready
        ]  # a new process has not got it yet
        fields = {**self._cluster_fields(now), "lease_remaining": self._state.quiet.until, "ready": ready}
        children = [
            {**_row(slot, child, now), "backoff": slot.history.not_before} for slot, child in self._rows_with_children()
        ]
        is_due = fields != self._published or now >= self._published_at + MAX_INTERVAL_SECONDS
        if is_due or (children != self._published_children and now >= self._published_at + MIN_INTERVAL_SECONDS):
            self._published, self._published_children, self._published_at = fields, children, now
            self._processes.broadcast("cluster", state=self.document())

    def document(self) -> dict[str, object]:
        """Return the document (docs/reference/status.md).  children: a row for each process, and each empty slot."""
        now = self._clock.monotonic()
        rows = [_row(slot, child, now) for slot, child in self._rows_with_children()]
        return {**self._cluster_fields(now), "children": rows, "at": self._clock.now()}

    def _cluster_fields(self, now: float) -> dict[str, object]:
        state, quiet = self._state, self._state.quiet
        return {
            "supervisor": self._supervisor,
            "slots": len(state.slots),
            "quiet_by": quiet.by,
            "quiet_since": quiet.since_epoch if quiet else None,
            "lease_remaining": quiet.remaining(now),
            "roll": None if state.roll is None else state.roll.as_json(),
            "reload": None if state.reload is None else state.reload.as_json(),
            "stopping": state.is_stopping,
            "version": VERSION,
            "restart_needed": state.restart_needed,
            "reload_needed": state.reload_needed,
            "roll_needed": state.roll_needed,
            "answers": self.answers,
        }

    def _rows_with_children(self) -> list[tuple[Slot, Child | None]]:
        """Return each process with its slot.  If there are too many, those that do not serve come first."""
        found: list[tuple[Slot, Child | None]] = []
        for slot in self._state.slots:
            found += [(slot, child) for child in slot.children()] or [(slot, None)]
        if len(found) > MAX_CHILDREN:
            found.sort(key=lambda each: each[1] is not None and each[0].state.is_serving and each[1].beat.redis)
        return found[:MAX_CHILDREN]


def _row(slot: Slot, child: Child | None, now: float) -> Mapping[str, Any]:
    died_at = (slot.last_death or {}).get("at")
    about: dict[str, object] = {"slot": slot.number, "restarts": slot.unplanned_restarts, "died_at": died_at}
    if shard := slot.plan.group.shard:
        about["shard"] = shard
    if child is None:
        return {
            **about, "pid": None, "state": slot.state, "release": "", "generation": None,
            "backoff": round(max(0.0, slot.history.not_before - now), 1), "waits_for": "", "redis": False,
        }  # fmt: skip
    return {
        **about, "pid": child.pid, "state": child.state, "release": child.release,
        "generation": child.generation, "backoff": 0.0, "waits_for": child.waits_for, "redis": child.beat.redis,
    }  # fmt: skip
