"""The deploy lock: who takes the fleet through a release, so that there is one at a time.

It is a key in Redis with an owner and a lease: an owner who has died holds it no longer than that, by Redis' clock.
A Redis that has lost it, as at a fail-over, gives it to whoever asks first; the other finds that out at the next step.
"""

from __future__ import annotations

import getpass
import os
import secrets
import socket
from dataclasses import dataclass
from typing import Any

from kiqcluster.errors import ExitCode, KiqError
from kiqcluster.process.durations import show_duration
from kiqcluster.store import Store
from kiqcluster.store.scripts import HOLD, Call, run_script

__all__ = ["DeployHeld", "DeployLock", "Hold", "default_owner"]

ORPHANED = 1  # a parent of this pid, or none, is no shell that could be told from another


class DeployHeld(KiqError):
    """Somebody else deploys; nothing was done."""

    exit_code = ExitCode.PIDFILE_HELD


@dataclass(frozen=True, slots=True)
class Hold:
    """owner: who has the lock, empty if nobody.  remaining: seconds.  before: who had it before, empty if nobody."""

    owner: str
    remaining: float
    before: str = ""

    def in_words(self) -> str:
        return f"{self.owner} ({show_duration(self.remaining)} left)" if self.owner else "nobody"


class DeployLock:
    """The lock of one Redis, and who we are there.  Each operation is a round trip, and raises StoreError."""

    def __init__(self, store: Store, owner: str) -> None:
        self.owner = owner
        self._store = store

    def take(self, lease: float, *, force: bool = False) -> Hold:
        """Take it, or keep it for so many seconds at least.  Raises DeployHeld when somebody else has it."""
        hold = self._run("force" if force else "take", lease)
        if hold.owner != self.owner:
            raise DeployHeld(
                f"{hold.in_words()} deploys, and this is {self.owner}: nothing was done. If that is over, or is you, "
                f"say --owner {hold.owner}, or begin with --force"
            )
        return hold

    def drop(self) -> Hold:
        """Let go of it, if it is ours."""
        return self._run("drop", 0.0)

    def look(self) -> Hold:
        """Return who has it."""
        owner, left = self._store.pipeline([("GET", self._store.keys.deploy), ("PTTL", self._store.keys.deploy)])
        return _hold([owner, left, None])

    def _run(self, what: str, lease: float) -> Hold:
        call = Call(HOLD, [self._store.keys.deploy], [what, self.owner, max(1, round(lease * 1_000))])
        return _hold(run_script(self._store, call))


def _hold(reply: Any) -> Hold:
    owner, left, before = reply
    return Hold(_text(owner), max(0, left) / 1_000, _text(before))


def _text(raw: bytes | None) -> str:
    return "" if raw is None else raw.decode(errors="replace")


def default_owner() -> str:
    """Return a name for the shell or script that runs this, so that its steps go together and others are others.

    Where there is none to be told (`docker exec`), it is a new name each time, and has to be said at the next step.
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        user = str(os.getuid())
    parent = os.getppid()
    shell = str(parent) if parent > ORPHANED else secrets.token_hex(4)
    return f"{user}@{socket.gethostname()}:{shell}"
