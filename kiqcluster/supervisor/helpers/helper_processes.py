"""Helper processes: the guardian of the embedded server, the watcher of files, and others that have to be reaped."""

from __future__ import annotations

import os
import selectors
import signal
from collections.abc import Callable
from pathlib import Path
from random import Random

from kiqcluster.ipc import forks
from kiqcluster.process.clock import Clock, SystemClock
from kiqcluster.process.events import Events
from kiqcluster.supervisor.fork import reap
from kiqcluster.supervisor.helpers.embedded_server import EmbeddedServer
from kiqcluster.supervisor.helpers.watch import FileWatcher

__all__ = ["HelperProcesses"]

STOP_SECONDS = 15.0  # for the embedded server to stop, at the end


class HelperProcesses:
    """close_inherited: closes the supervisor's descriptors in a new process.

    unreaped: pids of helpers that are done and not reaped yet.
    """

    def __init__(
        self, selector: selectors.BaseSelector, close_inherited: Callable[[], None], events: Events, rng: Random
    ) -> None:
        self._selector = selector
        self._close_inherited = close_inherited
        self._events = events
        self._rng = rng
        self._embedded_server: EmbeddedServer | None = None
        self._file_watcher: FileWatcher | None = None
        self.unreaped: set[int] = set()

    def start_embedded_server(self, address: str) -> None:
        """Start the private server, and its guardian.  Raises UsageError; OSError."""
        server = EmbeddedServer(address, self._close_inherited, self._events, SystemClock(), self._rng)
        self._embedded_server = server
        server.ensure_running()
        self._events.emit("embedded_started", directory=server.directory, pid=server.pid)

    def start_watcher(self, directory: Path, on_changed: Callable[[str], None]) -> None:
        """Watch the files of a directory.  on_changed: called with the path of a changed one.  Raises OSError."""
        self._file_watcher = FileWatcher(
            directory, self._selector, self._close_inherited, on_changed, self.unreaped.add
        )

    def ensure_running(self) -> None:
        """Start the guardian again if it has died."""
        if self._embedded_server is not None:
            self._embedded_server.ensure_running()

    def reap(self) -> None:
        """Reap helpers that are done."""
        self.unreaped -= {pid for pid in self.unreaped if reap(pid) is not None}

    def pids(self) -> set[int]:
        """Return the pids whose ends are awaited here."""
        helpers = (self._embedded_server, self._file_watcher)
        return self.unreaped | {helper.pid for helper in helpers if helper is not None}

    def close_in_child(self) -> None:
        """Close all descriptors in a new process that is no worker."""
        self._close_watcher()
        if self._embedded_server is not None:
            self._embedded_server.close_pipe()

    def close_in_worker(self) -> None:
        """Close all but the write end of the pipe to the guardian: the server lives as long as workers.

        The processes that the jobs of a worker fork keep no server alive.
        """
        self._close_watcher()
        if self._embedded_server is not None:
            self._embedded_server.close_reader()
            forks.call_after_fork(self._embedded_server.close_pipe)

    def _close_watcher(self) -> None:
        if self._file_watcher is not None:
            self._file_watcher.close_in_child()

    def stop(self, clock: Clock, wait: Callable[[], object]) -> None:
        """End them; kill a server that does not stop within STOP_SECONDS.  wait: lets a moment pass."""
        if self._file_watcher is not None:
            self._file_watcher.end()
        if self._embedded_server is not None:
            self._stop_server(self._embedded_server, clock, wait)

    def _stop_server(self, server: EmbeddedServer, clock: Clock, wait: Callable[[], object]) -> None:
        server.close_pipe()
        deadline = clock.monotonic() + STOP_SECONDS
        while server.pid and server.reap() is None:
            if clock.monotonic() >= deadline:
                os.killpg(server.pid, signal.SIGKILL)
            wait()
