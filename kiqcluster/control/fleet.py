"""Fleet: which queues the live processes of a Redis fetch from, and of which applications they are.

Ruby's processes are part of it, but are of no application: Sidekiq does not say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kiqcluster.control.process_registry import (
    MAX_PER_ROUND_TRIP,
    field_commands,
    live_fields,
    read_object,
    served_queues,
)
from kiqcluster.store import Store

__all__ = ["Fleet", "read_fleet"]


@dataclass(frozen=True, slots=True)
class Fleet:
    """queues: from which some process fetches.  has_more: whether a process leaves out names, since it has too many.

    members: application → identity of one of its processes.  cron: application and digest of the cron entries that a
    process of it declares.  is_known: whether the list of processes can be read.
    """

    queues: frozenset[str] = frozenset()
    members: Mapping[str, str] = field(default_factory=dict)
    has_more: bool = False
    is_known: bool = True
    cron: frozenset[tuple[str, str]] = frozenset()

    def serves(self, queue: str) -> bool:
        """Return whether a process fetches from a queue, or may do so."""
        return queue in self.queues or self.has_more or not self.is_known

    def runs(self, application: str) -> bool:
        """Return whether a process of an application runs, or may run."""
        return application in self.members or not self.is_known

    def declares(self, application: str, digest: str) -> bool:
        """Return whether a process of an application declares the cron entries of a digest, or may do so."""
        return (application, digest) in self.cron or not self.is_known


def read_fleet(store: Store) -> Fleet:
    """Return the fleet as its heartbeats of the last minute describe it; one that is not known where the list of
    processes is a key of another type.

    Two round trips, one more per 500 processes.  Raises StoreError.
    """
    (found,) = store.read_each([("SMEMBERS", store.keys.processes)])
    if not isinstance(found, list):
        return Fleet(is_known=False)
    identities = sorted(each.decode(errors="replace") for each in found)
    queues, members, cron, has_more = set[str](), dict[str, str](), set[tuple[str, str]](), False
    replies = store.read_each(field_commands(store.keys, identities, "info"), 2 * MAX_PER_ROUND_TRIP)
    for identity, info in zip(identities, live_fields(replies), strict=True):
        if info is None:
            continue
        about = read_object(info)
        queues.update(served_queues(info))
        has_more |= bool(about.get("omitted_queues"))
        if isinstance(application := about.get("application"), str):
            members.setdefault(application, identity)
            cron.add((application, str(about.get("cron"))))
    return Fleet(frozenset(queues), members, has_more, cron=frozenset(cron))
