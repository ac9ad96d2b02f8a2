"""ProcessObserver: what others may want to know of the processes (rolling_restart, order_handler, supervisor)."""

from __future__ import annotations

from collections.abc import Mapping

from kiqcluster.supervisor.cluster.child import Child
from kiqcluster.supervisor.cluster.slots import Slot

__all__ = ["ProcessObserver"]


class ProcessObserver:
    """Is told what happens to children.  Does nothing by itself."""

    def on_ready(self, child: Child) -> None:
        """Called when a child has booted."""

    def on_promoted(self, slot: Slot) -> None:
        """Called when a replacement has become the child of its slot."""

    def on_replacement_failed(self, slot: Slot, how: str) -> None:
        """Called when a replacement has died before that; the slot keeps its child."""

    def on_death(self, slot: Slot, how: str) -> None:
        """Called when the child of a slot has died, unless the supervisor had asked it to stop."""

    def on_not_started(self, slot: Slot, why: str) -> None:
        """Called when no process could be started in an empty slot; this is tried again."""

    def on_control(self, message: Mapping[str, object]) -> None:
        """Called when a child passes on an order to the cluster."""
