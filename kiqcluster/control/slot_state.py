"""Slot state: the words for what a slot or a process in it does, as /status and `kiq_cluster` have them."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["SlotState"]


class SlotState(StrEnum):
    """State of a slot is that of the process which serves in it; BACKOFF if there is none."""

    READY = "ready"  # it takes jobs
    BOOTING = "booting"  # it cannot take jobs yet
    UNRESPONSIVE = "unresponsive"  # it has sent nothing for some seconds: a job may hold the interpreter lock
    QUIET = "quiet"  # it finishes its jobs and takes no others
    STOPPING = "stopping"  # it was told to stop, or says that it does
    BACKOFF = "backoff"  # the slot waits before its next process starts

    @property
    def is_serving(self) -> bool:
        """Whether a process is there that has booted, responds, and stays."""
        return self in (SlotState.READY, SlotState.QUIET)
