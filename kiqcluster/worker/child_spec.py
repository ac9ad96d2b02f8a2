"""ChildSpec: what a worker process is given."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kiqcluster.ipc.running_jobs import RunningJobs
from kiqcluster.process.config import Config
from kiqcluster.sidekiq.queue_groups import Group

__all__ = ["ChildSpec"]


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """The specification of a slot's process; made by the supervisor before the fork.

    orphans: identities of this slot that nobody has recovered yet, with the tokens that were running.
    running_jobs: shared with the supervisor.  cluster_queues: from which the slots of this cluster fetch.
    """

    slot: int
    config: Config
    group: Group
    known_queues: tuple[str, ...]
    concurrency: int
    quiet: bool
    running_jobs: RunningJobs
    parent: socket.socket
    orphans: Mapping[str, Sequence[str]] = field(default_factory=dict)
    directory: Path = field(default_factory=Path.cwd)
    cluster_queues: frozenset[str] = frozenset()
