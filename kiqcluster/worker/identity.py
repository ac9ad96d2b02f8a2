"""Identity: who this process is in Redis, and how others on its host see whether it lives."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass

import psutil

from kiqcluster.ipc.operating_system import boot_id, created, pid_namespace
from kiqcluster.store.engine.units import Member

__all__ = ["ProcessFingerprint", "has_exited", "new_member"]

FIRST_EPOCH = 1


@dataclass(frozen=True, slots=True)
class ProcessFingerprint:
    """Values that tell one process from every other: pids are reused, hosts reboot, containers share numbers.

    namespace: of pids; a pid of another namespace says nothing here.  created: ticks from boot to its start on Linux,
    which no step of the wall clock changes; elsewhere seconds, as psutil gives them.
    """

    boot_id: str
    namespace: str
    pid: int
    created: str

    @classmethod
    def of_this_process(cls) -> ProcessFingerprint:
        return cls(boot_id(), pid_namespace(), os.getpid(), created(os.getpid()))

    @classmethod
    def parse(cls, record: str) -> ProcessFingerprint | None:
        """Return the fingerprint in a member's record, or None for a record of another version."""
        words = record.split()
        if len(words) != 4 or not words[2].isdigit():
            return None
        return cls(words[0], words[1], int(words[2]), words[3])

    def __str__(self) -> str:
        return f"{self.boot_id} {self.namespace} {self.pid} {self.created}"


def new_member(fingerprint: ProcessFingerprint) -> Member:
    """Return a member with a new identity `host:pid:nonce`; the nonce is drawn here, after the fork."""
    host = os.environ.get("DYNO") or socket.gethostname()
    return Member(f"{host}:{fingerprint.pid}:{secrets.token_hex(6)}", FIRST_EPOCH, str(fingerprint))


def has_exited(other: ProcessFingerprint, mine: ProcessFingerprint) -> bool:
    """Return whether a process of this host is certainly gone; False when that cannot be seen from here."""
    if (other.boot_id, other.namespace) != (mine.boot_id, mine.namespace) or other == mine:
        return False
    try:
        os.kill(other.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # another user's: it lives, or its pid is used again, which we may not see
        return False
    try:
        return created(other.pid) != other.created or psutil.Process(other.pid).status() == psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):  # it ended meanwhile, or is hidden: not for us to say
        return False
