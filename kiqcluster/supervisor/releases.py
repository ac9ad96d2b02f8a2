"""Releases: where the application is found, and what the next one has.

1. enter      follow the logical path again before each fork, so that a `current` link that was moved is seen
2. ask        a catalogue child imports the application and says which jobs there are, and which kiqcluster is there;
              for a roll, also whether a supervisor would start with it (outlook.py)
3. pin        after a release that does not boot, processes that die are replaced from the one before, while it is there

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
from kiqcluster.supervisor.catalogue import Catalogue, CatalogueChild, Foresee

__all__ = ["Releases", "Start", "Superseded"]

Then = Callable[[Catalogue], None]
Failed = Callable[[ApplicationError | UsageError], None]


class Superseded(ApplicationError):
    """Nobody waits for the answer any more: something else was asked for."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where a process starts.  directory: by its logical path.  release: where the code lies that it gets.

    generation: of the rolling restart that brought that code.  wanted: the release that it should get, if another.
    """

    directory: Path
    release: str
    generation: int
    wanted: str = ""


class Releases:
    """forget: closes in a child what is the supervisor's own.  ended: told the pid of a catalogue that is done."""

    def __init__(
        self,
        directory: Path,
        selector: selectors.BaseSelector,
        clock: Clock,
        forget: Callable[[], None],
        ended: Callable[[int], None],
    ) -> None:
        self._logical = directory
        self._good: Path | None = None  # where the release lies that booted last
        self._good_generation = 0
        self._preloaded = ""  # where the one lies that all processes have, if they have it from us
        self._is_pinned = False
        self._selector = selector
        self._clock = clock
        self._forget = forget
        self._ended = ended
        self._child: CatalogueChild | None = None
        self._then: Then | None = None
        self._failed: Failed | None = None

    # 1. enter

    def enter(self) -> Path:
        """Go to the application; return the path by which it is known.  Raises ApplicationError when it is gone."""
        pinned = self._good if self._is_pinned else None
        for directory in filter(None, (pinned, self._logical)):
            try:
                os.chdir(directory)
            except OSError as error:
                problem = error.strerror
            else:
                return directory
        raise ApplicationError(f"the directory {self._logical} is gone ({problem})")

    def start(self, generation: int) -> Start:
        """Go to the application, and say what a process gets there.  generation: of now.  Raises ApplicationError."""
        directory = self.enter()
        release, wanted = self._preloaded or str(Path.cwd()), self.newest
        if self._is_pinned and directory == self._good:
            generation = self._good_generation
        return Start(directory, release, generation, "" if wanted == release else wanted)

    @property
    def newest(self) -> str:
        """Where the path by which it is known leads at this moment."""
        return os.path.realpath(self._logical)

    def approve(self, generation: int = 0) -> None:
        """Take note that what is there boots, and that this rolling restart has brought it."""
        self._is_pinned = False
        self._good, self._good_generation = Path(self.newest), generation

    def preloaded(self) -> None:
        """Take note that every process gets what is there now."""
        self._preloaded = self.newest

    def why_not_renewed(self) -> str | None:
        """Return why processes that are started now do not have the newest release, None when they do."""
        if not self._preloaded or self._preloaded == self.newest:
            return None
        return f"with --preload, processes have the application of {self._preloaded}, as it was at the start"

    def pin(self) -> None:
        """Stay with the release that booted last."""
        self._is_pinned = self._good is not None and self._good != Path(self.newest)

    def unpin(self) -> None:
        """Look at the newest release again."""
        self._is_pinned = False

    # 2. ask

    @property
    def is_asking(self) -> bool:
        return self._child is not None

    @property
    def asked(self) -> CatalogueChild | None:
        """Who is being asked, if anybody is."""
        return self._child

    def ask(self, config: Config, then: Then, failed: Failed, foresee: Foresee | None = None) -> None:
        """Have the application tell what it has; one of the two is called later.  Raises ApplicationError, OSError.

        foresee: begins to judge the release's configuration, in the child.
        """
        self.interrupt("another question came before the answer")
        directory = self.enter()
        child = CatalogueChild(config, directory, self._clock, self._forget, foresee)
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
            self._child.expire()
            self._fail(Superseded(why))

    def give_up(self) -> None:
        """Ask no more; nobody is called."""
        if self._child is not None:
            self._child.expire()
            self._end()

    def close_in_child(self) -> None:
        """Close, in a fork, what is the supervisor's."""
        if self._child is not None:
            self._child.channel.close()

    def _fail(self, error: ApplicationError | UsageError) -> None:
        failed = self._failed
        self._end()
        if failed is not None:
            failed(error)

    def _end(self) -> None:
        if self._child is not None:
            self._selector.unregister(self._child.channel)
            self._child.channel.close()
            self._ended(self._child.pid)
            self._child = self._then = self._failed = None
