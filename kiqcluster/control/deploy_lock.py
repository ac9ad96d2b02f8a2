"""The deploy lock: at most one deploy of a fleet at a time.

It is a key in Redis with an owner and a lease.  If the owner dies, the lock ends with the lease, by Redis' clock.
If Redis loses the key, as at a fail-over, the next owner that asks gets it; the former one finds out at its next step.
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
from kiqcluster.store.scripts import LOCK, Call, run_script

__all__ = ["DeployHeld", "DeployLock", "LockState", "default_owner"]

INIT_PID = 1  # a parent of this pid does not identify a shell


class DeployHeld(KiqError):
    """Another owner holds the deploy lock; nothing was done."""

    exit_code = ExitCode.PIDFILE_HELD


@dataclass(frozen=True, slots=True)
class LockState:
    """owner: who holds the lock, empty if nobody.  remaining: seconds.  before: the previous owner, or empty."""

    owner: str
    remaining: float
    before: str = ""

    def describe(self) -> str:
        return f"{self.owner} ({show_duration(self.remaining)} left)" if self.owner else "nobody"


class DeployLock:
    """The lock of one Redis, for one owner.  Each operation takes one round trip and raises StoreError."""

    def __init__(self, store: Store, owner: str) -> None:
        self.owner = owner
        self._store = store

    def take(self, lease: float, *, force: bool = False) -> LockState:
        """Acquire or extend the lock for at least `lease` seconds.  Raises DeployHeld if another owner has it."""
        state = self._run("force" if force else "take", lease)
        if state.owner != self.owner:
            raise DeployHeld(
                f"{state.describe()} is deploying, and this is {self.owner}: nothing was done. If that is your deploy, "
                f"pass --owner {state.owner}; if it is over, begin with --force"
            )
        return state

    def drop(self) -> LockState:
        """Release the lock, if it is ours."""
        return self._run("drop", 0.0)

    def look(self) -> LockState:
        """Return who holds the lock."""
        owner, left = self._store.pipeline([("GET", self._store.keys.deploy), ("PTTL", self._store.keys.deploy)])
        return _read_state([owner, left, None])

    def _run(self, what: str, lease: float) -> LockState:
        call = Call(LOCK, [self._store.keys.deploy], [what, self.owner, max(1, round(lease * 1_000))])
        return _read_state(run_script(self._store, call))


def _read_state(reply: Any) -> LockState:
    owner, left, before = reply
    return LockState(_text(owner), max(0, left) / 1_000, _text(before))


def _text(raw: bytes | None) -> str:
    return "" if raw is None else raw.decode(errors="replace")


def default_owner() -> str:
    """Return a name for the calling shell or script: the same for its later steps, different for other shells.

    Without a shell (`docker exec`) the name is new each time, and the next step has to pass it with --owner.
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        user = str(os.getuid())
    parent = os.getppid()
    shell = str(parent) if parent > INIT_PID else secrets.token_hex(4)
    return f"{user}@{socket.gethostname()}:{shell}"
