"""ReleasePaths: where the application lies, which release is in use, and which was rejected.

The logical path, such as a `current` link, is followed only when a start, a roll or a reload asks for the newest
release.  Each process starts in the release that is in use, or in the one that its caller names.
1. choose    newest_release, release_for_reload, pin
2. enter     before each fork: change to the directory of a release
3. decide    use or reject; a release in use is proved once a worker became ready with it.  If it does not boot, the one
             that was proved before is in use again

Runs in: the supervisor's loop.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from kiqcluster.errors import ApplicationError

__all__ = ["Release", "ReleasePaths", "Start"]


@dataclass(frozen=True, slots=True)
class Release:
    """A release on disk.  path: without links.  generation: of the rolling restart that brought it, 0 for the start."""

    path: Path
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Start:
    """Where a process starts.  release: path of its code; with --preload, that of the start.

    wanted: the newest release, if it is another.  gone: the release that it should have got, if that was removed.
    """

    directory: Path
    release: str
    generation: int
    wanted: str = ""
    gone: str = ""


class ReleasePaths:
    """directory: the logical path."""

    def __init__(self, directory: Path) -> None:
        self._logical = directory
        self._in_use: Release | None = None
        self._proved: Release | None = None  # the latest in use with which a worker became ready
        self._rejected: Path | None = None  # not to be brought by a reload
        self._preloaded = ""  # path of the code that all processes share, with --preload

    # 1. choose

    @property
    def newest(self) -> str:
        """Where the logical path leads now."""
        return os.path.realpath(self._logical)

    @property
    def in_use(self) -> Release | None:
        """The release that processes get unless told otherwise; None before the first."""
        return self._in_use

    def newest_release(self, generation: int) -> Release:
        """Return the newest release, also if it was rejected before.  Raises ApplicationError if there is none."""
        release = Release(self._follow(), generation)
        self._rejected = None
        return release

    def release_for_reload(self, generation: int) -> Release:
        """Return the newest release, but the one in use if the newest was rejected.  Raises ApplicationError."""
        newest, in_use = self._follow(), self._in_use
        if in_use is not None and (self._preloaded or newest in (self._rejected, in_use.path)):
            return in_use
        return Release(newest, generation)

    def pin(self, release: Release) -> None:
        """Reject the newest release, if it is another than this one."""
        self._rejected = Path(self.newest) if self.newest != str(release.path) else None

    def _follow(self) -> Path:
        try:
            return self._logical.resolve(strict=True)
        except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle, up to Python 3.12
            raise _is_gone(self._logical, error) from error

    def preloaded(self) -> None:
        """Record that every process gets the code that is there now."""
        self._preloaded = self.newest

    def why_not_renewed(self) -> str | None:
        """Return why new processes do not have the newest release, None if they do."""
        if not self._preloaded or self._preloaded == self.newest:
            return None
        return f"with --preload, processes have the application of {self._preloaded}, as it was at the start"

    # 2. enter

    def enter(self, release: Release) -> Path:
        """Change to the directory of a release and return it.  Raises ApplicationError if it is gone."""
        _change_to(release.path)
        return release.path

    def enter_newest(self) -> Path:
        """Change to the directory of the newest release and return it.  Raises ApplicationError if it is gone."""
        newest = self._follow()
        _change_to(newest)
        return newest

    def start(self, release: Release | None = None) -> Start:
        """Change to the directory for a new process; return what the process gets there.  Raises ApplicationError.

        release: the one that it must get; None for the one in use, or the newest if that was removed.
        """
        gone = ""
        if release is not None:
            _change_to(release.path)
        else:
            release = self._in_use
            assert release is not None, "a release is in use before there are slots"
            try:
                _change_to(release.path)
            except ApplicationError:
                gone = str(release.path)
                release = self._in_use = Release(self._follow(), release.generation)
                _change_to(release.path)
        path, wanted = self._preloaded or str(release.path), self.newest
        return Start(release.path, path, release.generation, "" if wanted == path else wanted, gone)

    # 3. decide

    def use(self, release: Release, *, is_proved: bool = False) -> None:
        """Put a release in use.  is_proved: workers run with it."""
        self._in_use = release
        if is_proved:
            self._proved = release

    def reject(self, release: Release | None) -> None:
        """Keep the release in use.  If the rejected one has the same path, go back to the one that was proved."""
        if release is not None and self._in_use is not None:
            if release.path != self._in_use.path:
                self._rejected = release.path
            else:
                self._go_back()

    def prove(self, path: str) -> None:
        """Record that a worker became ready with the release of this path."""
        if self._in_use is not None and str(self._in_use.path) == path:
            self._proved = self._in_use

    def go_back_from(self, path: str) -> None:
        """Leave a release in use that does not boot, as after a reload."""
        if self._in_use is not None and str(self._in_use.path) == path:
            self._go_back()

    def _go_back(self) -> None:
        """Put the release in use that was proved before, unless it is in use or gone."""
        if self._in_use is None or self._proved is None or self._proved.path == self._in_use.path:
            return
        if self._proved.path.is_dir():
            self._rejected, self._in_use = self._in_use.path, self._proved


def _change_to(directory: Path) -> None:
    try:
        os.chdir(directory)
    except OSError as error:
        raise _is_gone(directory, error) from error


def _is_gone(directory: Path, error: Exception) -> ApplicationError:
    return ApplicationError(f"the directory {directory} is gone ({getattr(error, 'strerror', None) or error})")
