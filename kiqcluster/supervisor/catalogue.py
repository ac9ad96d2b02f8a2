"""Catalogue: what the application declares, learned from a short-lived child that imports it.

The supervisor never imports the application (invariant 2): a broken import is a message in here, and the next
catalogue sees new code.  The child has a deadline and a process group of its own.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path

from kiqcluster import application
from kiqcluster.clock import Clock
from kiqcluster.config import Config
from kiqcluster.errors import ApplicationError, ExitCode, KiqError
from kiqcluster.frames import Channel
from kiqcluster.supervisor.fork import fork_with_socket
from kiqcluster.supervisor.outlook import Judge, Outlook
from kiqcluster.version import VERSION

__all__ = ["Catalogue", "CatalogueChild", "Foresee", "ask"]

Foresee = Callable[[], Judge]  # reads the configuration; returns what judges it once the queues are known


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What an application has.

    jobs: (name, queue) of each.  version: of the kiqcluster that is installed now, which may be another than runs.
    outlook: what its configuration would change, if that was asked for.
    """

    jobs: tuple[tuple[str, str], ...]
    version: str = VERSION
    outlook: Outlook = field(default_factory=Outlook)

    def known_queues(self, config: Config) -> frozenset[str]:
        """Return the queue names of the jobs and of the configuration."""
        return frozenset({queue for _, queue in self.jobs} | set(config.queues))


class CatalogueChild:
    """The child while it imports.  forget: closes in it what is the supervisor's."""

    def __init__(
        self,
        config: Config,
        directory: Path,
        clock: Clock,
        forget: Callable[[], None],
        foresee: Foresee | None = None,
    ) -> None:
        def run(parent: socket.socket) -> int:
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            return _tell(config, directory, parent, foresee)

        self.pid, ours = fork_with_socket(run, forget, "catalogue")
        self.channel = Channel(ours)
        self.deadline = clock.monotonic() + config.boot_timeout
        self._boot_timeout = config.boot_timeout

    def result(self) -> Catalogue | None:
        """Return what has arrived, None while it has not.  Raises ApplicationError when the import failed."""
        for frame in self.channel.receive():
            if frame["type"] == "catalogue":
                if "error" in frame:
                    raise ApplicationError(frame["error"])
                jobs = tuple((job["name"], job["queue"]) for job in frame["jobs"])
                outlook = {name: tuple(value) for name, value in frame.get("outlook", {}).items() if name != "error"}
                error = frame.get("outlook", {}).get("error", "")
                return Catalogue(jobs, frame.get("version", VERSION), Outlook(error, **outlook))
        if self.channel.closed:
            raise ApplicationError("the process that imports the application died before it was done")
        return None

    def expire(self) -> ApplicationError:
        """Kill the child; return the error that says why."""
        os.killpg(self.pid, signal.SIGKILL)
        return ApplicationError(f"the application took more than {self._boot_timeout:g} s to import (boot_timeout)")


def ask(config: Config, directory: Path, clock: Clock) -> Catalogue:
    """Return the catalogue, waiting for it; for commands that start nothing.  Raises ApplicationError."""
    child = CatalogueChild(config, directory, clock, lambda: None)
    try:
        while True:
            left = child.deadline - clock.monotonic()
            if left <= 0:
                raise child.expire()
            select.select([child.channel], [], [], left)
            catalogue = child.result()
            if catalogue is not None:
                return catalogue
    finally:
        os.waitpid(child.pid, 0)
        child.channel.close()


def _tell(config: Config, directory: Path, parent: socket.socket, foresee: Foresee | None) -> int:
    """Import the application and send what it declares.  Runs in the child."""
    channel = Channel(parent)
    judge = None
    if foresee is not None:
        judge = foresee()
        os.chdir(directory)
    try:
        application.load(config.require, directory)
        jobs = application.describe(config.require)
    except KiqError as error:
        channel.send("catalogue", error=str(error))
        _drain(channel)
        return ExitCode.APPLICATION
    known = Catalogue(tuple((job["name"], job["queue"]) for job in jobs))
    outlook = Outlook() if judge is None else judge(known.known_queues)
    channel.send("catalogue", jobs=jobs, version=_installed_version(), outlook=asdict(outlook))
    _drain(channel)
    return ExitCode.STOPPED


def _drain(channel: Channel) -> None:
    """Wait until the supervisor has read everything; it kills this process if it loses patience."""
    while channel.pending:
        select.select([], [channel], [])
        channel.flush()


def _installed_version() -> str:
    """Return the version that a new supervisor would be; ours, where nothing is installed."""
    try:
        return metadata.version("kiqcluster")
    except metadata.PackageNotFoundError:
        return VERSION
