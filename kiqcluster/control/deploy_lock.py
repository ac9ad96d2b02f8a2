"""The deploy lock: at most one deploy of a fleet at a time.

It is a key in Redis with an owner and a lease.  If the owner dies, the lock ends with the lease, by Redis' clock.
If Redis loses the key, as at a fail-over, the next owner that asks gets it; the former one finds out at its next step.
With shards each has the key, so that a deploy of one shard and a deploy of all exclude each other.
"""

from __future__ import annotations

import getpass
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kiqcluster.errors import ExitCode, KiqError, StoreError
from kiqcluster.process.durations import show_duration
from kiqcluster.store import Store, is_outage
from kiqcluster.store.scripts import LOCK, Call, run_script

__all__ = ["DeployHeld", "DeployLock", "LockState", "default_owner", "shell_owner"]

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
    """The lock of one Redis, or of several shards, for one owner.

    Each operation takes one round trip per shard.  Shards that are away are left out; StoreError if all are.
    """

    def __init__(self, store: Store, owner: str, others: Sequence[Store] = ()) -> None:
        self.owner = owner
        self._stores = (store, *others)

    def take(self, lease: float, *, force: bool = False) -> LockState:
        """Acquire or extend the lock for at least `lease` seconds.  Raises DeployHeld if another owner has it.

        Where another one has it in some shard, it stays free in those where it was free.
        """
        found: list[tuple[Store, LockState]] = []
        try:
            self._take(found, "force" if force else "take", lease)
        except (StoreError, DeployHeld):
            for store, state in found:
                if state.before != self.owner:
                    with suppress(StoreError):
                        self._run(store, "drop", 0.0)
            raise
        others = [state for _, state in found if state.before not in ("", self.owner)]
        known = [state for _, state in found if state.before]
        before = (others or known or [found[0][1]])[0].before
        return LockState(self.owner, min(state.remaining for _, state in found), before)

    def _take(self, found: list[tuple[Store, LockState]], what: str, lease: float) -> None:
        """Take the lock in each shard, and add its state."""
        failures = []
        for store in self._stores:
            try:
                state = self._run(store, what, lease)
            except StoreError as error:
                if not is_outage(error):
                    raise
                failures.append(error)
                continue
            if state.owner != self.owner:
                raise DeployHeld(
                    f"{state.describe()} is deploying, and this is {self.owner}: nothing was done. If that is your "
                    f"deploy, pass --owner {state.owner}; if it is over, begin with --force"
                )
            found.append((store, state))
        if not found:
            raise failures[0]

    def drop(self) -> LockState:
        """Release the lock, if it is ours."""
        return self._each(lambda store: self._run(store, "drop", 0.0))

    def look(self) -> LockState:
        """Return who holds the lock; another owner before this one."""
        return self._each(_look)

    def _each(self, ask: Callable[[Store], LockState]) -> LockState:
        """Ask each shard; return the state in which another owner has it, else this one, else nobody."""
        states, failures = [], []
        for store in self._stores:
            try:
                states.append(ask(store))
            except StoreError as error:
                if not is_outage(error):
                    raise
                failures.append(error)
        if not states:
            raise failures[0]
        return max(states, key=lambda state: (state.owner not in ("", self.owner), bool(state.owner)))

    def _run(self, store: Store, what: str, lease: float) -> LockState:
        call = Call(LOCK, [store.keys.deploy], [what, self.owner, max(1, round(lease * 1_000))])
        return _read_state(run_script(store, call))


def _look(store: Store) -> LockState:
    owner, left = store.pipeline([("GET", store.keys.deploy), ("PTTL", store.keys.deploy)])
    return _read_state([owner, left, None])


def _read_state(reply: Any) -> LockState:
    owner, left, before = reply
    return LockState(_text(owner), max(0, left) / 1_000, _text(before))


def _text(raw: bytes | None) -> str:
    return "" if raw is None else raw.decode(errors="replace")


def default_owner() -> str:
    """Return a name for the calling shell or script: the same for its later steps, different for other shells.

    Without a shell (`docker exec`) the name is new each time, and the next step has to pass it with --owner.
    """
    parent = os.getppid()
    return _owner_of(str(parent) if parent > INIT_PID else secrets.token_hex(4))


def shell_owner(store: Store, *others: Store) -> str:
    """Return the default owner of a step.  One round trip per shard.

    `bash -c` executes its last command in its own process: earlier steps had that pid for their shell.
    """
    own = _owner_of(str(os.getpid()))
    with suppress(StoreError):  # the step itself waits for Redis, or reports it
        if DeployLock(store, own, others).look().owner == own:
            return own
    return default_owner()


def _owner_of(shell: str) -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}:{shell}"
