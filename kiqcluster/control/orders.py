"""Commands: what somebody may ask of a cluster, read from a control message.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kiqcluster.errors import UsageError

__all__ = ["ACTIONS", "BY_SIGNAL", "LONGEST_LEASE", "Command", "Told", "parse_command"]

ACTIONS = ("quiet", "resume", "roll", "rollback", "reload", "stop", "dump", "kill")
BY_SIGNAL = "signal"  # who asked for what a signal did
LONGEST_LEASE = 1e9  # seconds; larger numbers are slips, and some are no floats


class Told(str):
    """Why a command was not carried out, where the log has it already."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Command:
    """lease: seconds of a quiet, None for the cluster's own.  ident: what the answer is found by, if anybody looks.

    whose: a resume ends only a quiet that somebody of this name has begun (`deploy` for deploy@host); empty: anybody's.
    jid: of the job whose process a kill ends.  pid: of the worker that a dump is about, 0 for all.
    """

    action: str
    by: str
    ident: str
    lease: float | None = None
    whose: str = ""
    jid: str = ""
    pid: int = 0


def parse_command(message: Mapping[str, object]) -> Command:
    """Return the command of a message.  Raises UsageError that says what is wrong with it."""
    action, lease = message.get("action"), message.get("lease")
    if action not in ACTIONS:
        raise UsageError(f"there is no command {action!r}; those are {', '.join(ACTIONS)}")
    is_number = isinstance(lease, int | float) and not isinstance(lease, bool) and 0 <= lease < LONGEST_LEASE
    if lease is not None and not is_number:
        raise UsageError(f"a lease is a number of seconds, 0 for no end, not {lease!r}")
    pid = message.get("pid")
    seconds = float(lease) if isinstance(lease, int | float) else None
    by = str(message.get("by") or "somebody")
    by = "somebody" if by == BY_SIGNAL else by  # only a signal is one
    return Command(
        str(action),
        by,
        str(message.get("id") or ""),
        seconds,
        str(message.get("whose") or ""),
        str(message.get("jid") or ""),
        pid if isinstance(pid, int) else 0,
    )
