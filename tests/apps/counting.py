"""How many jobs run at once, counted by themselves, in keys that the product knows nothing of.

A limit that is measured by the product's own set of holders cannot be seen to fail: a place that is released too early
is no longer in that set, while its job still runs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kiqcluster import current_job
from kiqcluster.process.runtime import current_setup

__all__ = ["FROZEN", "counted", "identity"]

FROZEN = "test:frozen"  # set of the identities that a test freezes until others have recovered them


def identity() -> str:
    """Return the membership under which the running job was fetched; a process that was fenced has another one then."""
    running = current_job()
    assert running is not None
    return running._identity


def is_alive(member: bytes, frozen: set[bytes]) -> bool:
    pid, _, rest = member.partition(b"/")
    if rest.partition(b"/")[2] in frozen:
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def counted(name: str) -> Iterator[int]:
    """Give the number of runs under this name, this one among them, in processes that are alive.

    Runs of a process that a test has frozen until it was recovered do not count, and see 0: their jobs are others' now.
    """
    store = current_setup().current_store()
    me = f"{os.getpid()}/{threading.get_ident()}/{identity()}"
    store.call("SADD", f"running:{name}", me)
    try:
        members, frozen = store.pipeline([("SMEMBERS", f"running:{name}"), ("SMEMBERS", FROZEN)])
        alive = [member for member in members if is_alive(member, frozen)]
        yield len(alive) if me.encode() in alive else 0
    finally:
        store.call("SREM", f"running:{name}", me)
