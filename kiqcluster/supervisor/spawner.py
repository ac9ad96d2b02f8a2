"""Spawner: starts the worker process of a slot, from the release in use.

Runs in: the supervisor's loop; the function that it forks with runs in the new process.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from random import Random

from kiqcluster.ipc.frames import Channel
from kiqcluster.ipc.running_jobs import RunningJobs
from kiqcluster.ipc.site_hooks import foreign_threads
from kiqcluster.ipc.thread_stacks import ThreadStacks
from kiqcluster.process.clock import Clock
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.supervisor.cluster.child import Child, LastBeat, Responses
from kiqcluster.supervisor.cluster.expansion import SlotPlan
from kiqcluster.supervisor.cluster.slots import Slot
from kiqcluster.supervisor.fork import fork_with_socket
from kiqcluster.supervisor.release_paths import Start

__all__ = ["SpawnSpec", "Spawner"]

JOB_LIMIT_JITTER = 0.1  # recycle.jobs differs by this share, so that processes of one age are not replaced together


@dataclass(frozen=True, slots=True)
class SpawnSpec:
    """What a new worker process needs to know; cli.py turns it into the worker's ChildSpec.

    cluster_queues: from which the slots of this cluster fetch, in the shard of this one.
    """

    config: Config
    plan: SlotPlan
    known_queues: tuple[str, ...]
    cluster_queues: frozenset[str]
    quiet: bool
    running_jobs: RunningJobs
    parent: socket.socket
    orphans: dict[str, tuple[str, ...]]
    directory: Path = field(default_factory=Path.cwd)


class Spawner:
    """run_child: runs a worker in a forked process and returns its exit code.

    close_inherited: closes, in a child, the supervisor's descriptors.  enter_release: changes to the directory of the
    application and returns what a process gets there.
    """

    def __init__(
        self,
        run_child: Callable[[SpawnSpec], int],
        close_inherited: Callable[[], None],
        enter_release: Callable[[], Start],
        events: Events,
        clock: Clock,
        rng: Random,
    ) -> None:
        self._run_child = run_child
        self._close_inherited = close_inherited
        self._enter_release = enter_release
        self._events = events
        self._clock = clock
        self._rng = rng

    def spawn(
        self, slot: Slot, config: Config, known_queues: tuple[str, ...], cluster_queues: frozenset[str], *, quiet: bool
    ) -> Child:
        """Start a process.  Raises OSError and ApplicationError; then there is none."""
        now = self._clock.monotonic()
        with ExitStack() as shared:
            running_jobs = RunningJobs(slot.plan.concurrency, config.async_concurrency)
            shared.callback(running_jobs.close)
            stacks = ThreadStacks()
            shared.callback(stacks.close)
            start = self._enter_release()

            def run(parent: socket.socket) -> int:
                stacks.install_handlers()
                orphans, directory = dict(slot.orphans), start.directory
                queues = known_queues, cluster_queues
                return self._run_child(
                    SpawnSpec(config, slot.plan, *queues, quiet, running_jobs, parent, orphans, directory)
                )

            pid, ours = fork_with_socket(run, self._close_inherited, f"slot {slot.number}")
            shared.pop_all()  # the child has it from now on
        self._report_start(slot, pid, start)
        return Child(
            pid,
            Channel(ours),
            started_at=now,
            beat=LastBeat(now),
            running_jobs=running_jobs,
            responses=Responses(stacks),
            release=start.release,
            generation=start.generation,
            job_limit=self._job_limit(config),
        )

    def _job_limit(self, config: Config) -> float:
        return config.recycle_jobs * (1 + JOB_LIMIT_JITTER * self._rng.random()) if config.recycle_jobs else inf

    def _report_start(self, slot: Slot, pid: int, start: Start) -> None:
        self._events.emit("child_started", slot=slot.number, child=pid, release=start.release)
        if threads := foreign_threads():
            self._events.emit("forked_with_threads", slot=slot.number, child=pid, threads=", ".join(threads))
        if start.gone:
            self._events.emit("release_gone", slot=slot.number, gone=start.gone, release=start.release)
        if start.wanted:
            self._events.emit("child_behind", slot=slot.number, child=pid, release=start.release, wanted=start.wanted)
