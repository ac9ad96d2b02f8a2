"""FileWatcher: a process that looks for changed source files, for `--watch` in development.

It compares the modification times of *.py and *.toml below the working directory twice a second.  In the supervisor's
loop, the scan of a large tree would take too long.  The process ends when its socket reaches EOF.
"""

from __future__ import annotations

import os
import select
import selectors
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from kiqcluster.ipc.frames import Channel
from kiqcluster.supervisor.fork import fork_with_socket

__all__ = ["FileWatcher", "snapshot"]

SCAN_INTERVAL_SECONDS = 0.5
SUFFIXES = (".py", ".toml")
SKIPPED_FOLDERS = frozenset(
    {"node_modules", "__pycache__", "site-packages"}
)  # folders without sources of the application


class FileWatcher:
    """The supervisor's side.  Raises OSError.

    changed: called with the path of a changed file.  ended: called with the pid when the process has to be reaped.
    """

    def __init__(
        self,
        directory: Path,
        selector: selectors.BaseSelector,
        close_inherited: Callable[[], None],
        changed: Callable[[str], None],
        ended: Callable[[int], None],
    ) -> None:
        def run(parent: socket.socket) -> int:
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            return _scan(directory, Channel(parent))

        self.pid, ours = fork_with_socket(run, close_inherited, "watch")
        self.channel = Channel(ours)
        self._selector = selector
        self._changed = changed
        self._ended = ended
        selector.register(self.channel, selectors.EVENT_READ, self._on_frames)

    def _on_frames(self) -> None:
        for frame in self.channel.receive():
            self._changed(frame["path"])
        if self.channel.closed:
            self._selector.unregister(self.channel)
            self.channel.close()
            self._ended(self.pid)

    def close_in_child(self) -> None:
        """Close, in a new process, the supervisor's end of the socket."""
        self.channel.close()

    def end(self) -> None:
        """Kill the process."""
        if not self.channel.closed:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.channel.close()


def _scan(directory: Path, channel: Channel) -> int:
    before = snapshot(directory)
    while not select.select([channel], [], [], SCAN_INTERVAL_SECONDS)[0]:  # nothing is sent to it: readable means EOF
        now = snapshot(directory)
        changed = sorted(path for path in now.keys() | before.keys() if now.get(path) != before.get(path))
        if changed:
            channel.send("changed", path=changed[0])
        before = now
    return 0


def snapshot(directory: Path) -> dict[str, int]:
    """Return path → modification time in ns of the source files below a directory."""
    return dict(_modification_times(str(directory)))


def _modification_times(directory: str) -> Iterator[tuple[str, int]]:
    try:
        entries = list(os.scandir(directory))
    except OSError:  # it is gone, or may not be read
        return
    if any(entry.name == "pyvenv.cfg" for entry in entries):
        return
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                if not entry.name.startswith(".") and entry.name not in SKIPPED_FOLDERS:
                    yield from _modification_times(entry.path)
            elif entry.name.endswith(SUFFIXES):
                yield entry.path, entry.stat().st_mtime_ns
        except OSError:  # it was removed after the listing
            continue
