"""Releases: where the application is found, which release processes get, and what the next one has.

1. aim        follow the logical path, such as a `current` link, once: at the start, for a roll, for a reload
2. ask        a catalogue child imports the application there and says which jobs there are, and which kiqcluster is
              there; for a roll, also whether a supervisor would start with it (preflight.py)
3. enter      before each fork: the release that is in use, wherever the link leads by now; while a roll replaces
              processes, the release of that roll
4. approve    what was aimed at is in use from now on; or reject: what was in use before stays
5. prove      a worker has become ready with what is in use; if it does not boot, what was proved before is in use again

Runs in: the supervisor's loop.
"""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kiqcluster.clock import Clock
from kiqcluster.config import Config
from kiqcluster.errors import ApplicationError, UsageError
from kiqcluster.supervisor.catalogue import Catalogue, CatalogueChild, StartPreflight

__all__ = ["Release", "Releases", "Start", "Superseded"]

Then = Callable[[Catalogue], None]
Failed = Callable[[ApplicationError | UsageError], None]


class Superseded(ApplicationError):
    """Nobody waits for the answer any more: something else was asked for."""


@dataclass(frozen=True, slots=True)
class Release:
    """A release on disk.  path: without links.  generation: of the rolling restart that brought it, 0 for the start."""

    path: Path
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Start:
    """Where a process starts.  release: where the code lies that it gets: with --preload, that of the start.

    wanted: the release that the logical path leads to, if another.  gone: the release that it should have got, if that
    is not there any more.
    """

    directory: Path
    release: str
    generation: int
    wanted: str = ""
    gone: str = ""


class Releases:
    """forget: closes in a child what is the supervisor's own.  ended: told the pid of a catalogue that is done."""

    def __init__(
        self,
        directory: Path,
        selector: selectors.BaseSelector,
        clock: Clock,
        close_inherited: Callable[[], None],
        ended: Callable[[int], None],
    ) -> None:
        self._logical = directory
        self._in_use: Release | None = None
        self._proved: Release | None = None  # the latest in use with which a worker became ready
        self._aimed_at: Release | None = None
        self._is_rolling = False  # processes get what is aimed at
        self._rejected: Path | None = None  # the release of the latest roll, if that has failed
        self._preloaded = ""  # where the one lies that all processes have, if they have it from us
        self._selector = selector
        self._clock = clock
        self._close_inherited = close_inherited
        self._ended = ended
        self._child: CatalogueChild | None = None
        self._then: Then | None = None
        self._failed: Failed | None = None

    # 1. aim

    @property
    def newest(self) -> str:
        """Where the logical path leads at this moment."""
        return os.path.realpath(self._logical)

    @property
    def in_use(self) -> Release | None:
        """The release that processes get outside of a roll; None before the first was approved."""
        return self._in_use

    def aim_at_newest(self, generation: int) -> None:
        """Have the release of this moment asked, and rolled to.  Raises ApplicationError when there is none."""
        self._aim_at(Release(self._follow(), generation))
        self._rejected = None

    def aim_again(self, generation: int) -> None:
        """Do the same for a reload: a release that a roll has rejected stays rejected until another roll."""
        newest, in_use = self._follow(), self._in_use
        if in_use is not None and (self._preloaded or newest in (self._rejected, in_use.path)):
            self._aim_at(in_use)
        else:
            self._aim_at(Release(newest, generation))

    def aim_back_at(self, release: Release) -> None:
        """Have a release asked, and rolled to, that was in use before; the one of the link is rejected."""
        self._rejected = Path(self.newest) if self.newest != str(release.path) else None
        self._aim_at(release)

    def _follow(self) -> Path:
        try:
            return self._logical.resolve(strict=True)
        except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle, up to Python 3.12
            raise self._is_gone(self._logical, error) from error

    def _aim_at(self, release: Release) -> None:
        self._aimed_at, self._is_rolling = release, False

    def preloaded(self) -> None:
        """Take note that every process gets what is there now."""
        self._preloaded = self.newest

    def why_not_renewed(self) -> str | None:
        """Return why processes that are started now do not have the newest release, None when they do."""
        if not self._preloaded or self._preloaded == self.newest:
            return None
        return f"with --preload, processes have the application of {self._preloaded}, as it was at the start"

    # 2. ask

    @property
    def is_asking(self) -> bool:
        return self._child is not None

    @property
    def asked(self) -> CatalogueChild | None:
        """Who is being asked, if anybody is."""
        return self._child

    def ask(self, config: Config, then: Then, failed: Failed, start_preflight: StartPreflight | None = None) -> None:
        """Have the application tell what it has; one of the two is called later.  Raises ApplicationError, OSError.

        start_preflight: begins to preflight the release's configuration, in the child.
        """
        self.interrupt("another question came before the answer")
        release = self._aimed_at or self._in_use
        assert release is not None, "aim comes before"
        self._change_to(release.path)
        child = CatalogueChild(config, self._logical, release.path, self._clock, self._close_inherited, start_preflight)
        self._child, self._then, self._failed = child, then, failed
        self._selector.register(child.channel, selectors.EVENT_READ, self._on_answer)

    def _on_answer(self) -> None:
        assert self._child is not None
        try:
            catalogue = self._child.result()
        except (ApplicationError, UsageError) as error:
            self._fail(error)
            return
        if catalogue is None:
            return
        then, failed = self._then, self._failed
        self._end()
        if then is not None and failed is not None:
            try:
                then(catalogue)
            except (ApplicationError, UsageError) as error:
                failed(error)

    def look_at_deadline(self) -> None:
        """Give up a child that takes too long."""
        if self._child is not None and self._clock.monotonic() >= self._child.deadline:
            self._fail(self._child.expire())

    def interrupt(self, why: str) -> None:
        """Ask no more, and say so to whoever waits for the answer."""
        if self._child is not None:
            self._child.kill()
            self._fail(Superseded(why))

    def give_up(self) -> None:
        """Ask no more; nobody is called."""
        if self._child is not None:
            self._child.kill()
            self._end()

    def close_in_child(self) -> None:
        """Close, in a fork, what is the supervisor's."""
        if self._child is not None:
            self._child.close()

    def _fail(self, error: ApplicationError | UsageError) -> None:
        failed = self._failed
        self._end()
        if failed is not None:
            failed(error)

    def _end(self) -> None:
        if self._child is not None:
            self._selector.unregister(self._child.channel)
            self._child.close()
            self._ended(self._child.pid)
            self._child = self._then = self._failed = None

    # 3. enter

    def roll(self) -> None:
        """Have processes that are started from now on get the release that was aimed at."""
        self._is_rolling = True

    def start(self) -> Start:
        """Go to the application, and say what a process gets there.  Raises ApplicationError.

        During a roll there is no way around its release.  Otherwise one that was removed gives way to the newest.
        """
        release = self._aimed_at if self._is_rolling and self._aimed_at is not None else self._in_use
        assert release is not None, "a release is approved before there are slots"
        gone = ""
        try:
            self._change_to(release.path)
        except ApplicationError:
            if self._is_rolling:
                raise
            gone = str(release.path)
            release = self._in_use = Release(self._follow(), release.generation)
            self._change_to(release.path)
        path, wanted = self._preloaded or str(release.path), self.newest
        return Start(release.path, path, release.generation, "" if wanted == path else wanted, gone)

    def enter_newest(self) -> Path:
        """Go to where the logical path leads, and return that.  Raises ApplicationError."""
        newest = self._follow()
        self._change_to(newest)
        return newest

    def _change_to(self, directory: Path) -> None:
        try:
            os.chdir(directory)
        except OSError as error:
            raise self._is_gone(directory, error) from error

    @staticmethod
    def _is_gone(directory: Path, error: Exception) -> ApplicationError:
        return ApplicationError(f"the directory {directory} is gone ({getattr(error, 'strerror', None) or error})")

    # 4. approve

    def approve(self) -> None:
        """Take note that what was aimed at is good: it is in use from now on."""
        assert self._aimed_at is not None, "aim comes before"
        self._in_use = self._aimed_at
        if self._is_rolling:
            self._proved = self._in_use
        self.forget_aim()

    def reject(self) -> None:
        """Stay with the release that was in use before a roll."""
        aimed_at = self._aimed_at
        if aimed_at is not None and self._in_use is not None:
            if aimed_at.path != self._in_use.path:
                self._rejected = aimed_at.path
            else:
                self._go_back()
        self.forget_aim()

    def forget_aim(self) -> None:
        """Stay with the release that is in use; a reload has failed, which says nothing of the release."""
        self._aimed_at, self._is_rolling = None, False

    # 5. prove

    def on_ready(self, path: str) -> None:
        """Take note that a worker of a release has become ready; in a roll, its end tells."""
        if self._in_use is not None and str(self._in_use.path) == path and not self._is_rolling:
            self._proved = self._in_use

    def on_boot_failure(self, path: str) -> None:
        """Go back from a release that a reload has brought and that does not boot."""
        if self._in_use is not None and str(self._in_use.path) == path and not self._is_rolling:
            self._go_back()

    def _go_back(self) -> None:
        """Have what was proved before in use again, unless that is so, or it is gone."""
        if self._in_use is None or self._proved is None or self._proved.path == self._in_use.path:
            return
        if self._proved.path.is_dir():
            self._rejected, self._in_use = self._in_use.path, self._proved
