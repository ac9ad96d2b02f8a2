"""Orders: the actions that a cluster can be asked for, and their parsing from a control message.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kiqcluster.errors import UsageError

__all__ = ["ACTIONS", "BY_SIGNAL", "MAX_LEASE_SECONDS", "AlreadyLogged", "Order", "parse_order"]

ACTIONS = ("quiet", "resume", "roll", "rollback", "reload", "stop", "dump", "kill")
BY_SIGNAL = "signal"  # `by` of an order that came as a signal
MAX_LEASE_SECONDS = 1e9  # larger numbers are mistakes, and some cannot be floats


class AlreadyLogged(str):
    """The error of an order, where the log has it already."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Order:
    """lease: seconds of a quiet, None for the cluster's setting.  ident: key of the answer.

    whose: resume only a quiet begun under this name (`deploy` for deploy@host); empty for any quiet.
    jid: kill the process that runs this job.  pid: dump this worker, 0 for all.
    """

    action: str
    by: str
    ident: str
    lease: float | None = None
    whose: str = ""
    jid: str = ""
    pid: int = 0


def parse_order(message: Mapping[str, object]) -> Order:
    """Return the order in a message.  Raises UsageError if it is not valid."""
    action, lease = message.get("action"), message.get("lease")
    if action not in ACTIONS:
        raise UsageError(f"there is no order {action!r}; the orders are {', '.join(ACTIONS)}")
    is_number = isinstance(lease, int | float) and not isinstance(lease, bool) and 0 <= lease < MAX_LEASE_SECONDS
    if lease is not None and not is_number:
        raise UsageError(f"a lease is a number of seconds, 0 for no end, not {lease!r}")
    pid = message.get("pid")
    seconds = float(lease) if isinstance(lease, int | float) else None
    by = str(message.get("by") or "somebody")
    by = "somebody" if by == BY_SIGNAL else by  # reserved for signals
    return Order(
        str(action),
        by,
        str(message.get("id") or ""),
        seconds,
        str(message.get("whose") or ""),
        str(message.get("jid") or ""),
        pid if isinstance(pid, int) else 0,
    )
