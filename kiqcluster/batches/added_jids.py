"""Ids of the jobs that a job adds to a batch: a job that runs again names the rows that it has added before alike.

The id of an added job is a digest of: the id of the job that adds it; the batch; where an iterable job is; the class
and the arguments of the row; and how many equal rows the run has added before.  So a run that is repeated, after a
retry or a crash, names its rows as the run before did, in whatever order and parts it adds them, and Redis skips those
that the batch knows (push_batch.lua, push.lua).  Rows that are new get new ids.

For a class whose arguments are encrypted, the digest has a key: an id must not tell a secret that somebody guesses.
Price: 1 µs for each row, and about 150 bytes until the run, or the item of an iterable job, has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from kiqcluster.features.payload import encryption
from kiqcluster.ipc.forks import ForkLock
from kiqcluster.process.job_context import JobContext
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.payload import Jid

__all__ = ["added_jids", "secret_key"]

DIGEST_BYTES = 12  # each of them two hex digits of a jid


class AddedRows:
    """The rows that a run has added.  counts: of equal rows, by the id of the first.  lock: a job may add from threads.

    step: of an iterable job, to which the counts belong.
    """

    __slots__ = ("counts", "lock", "step")

    def __init__(self) -> None:
        self.lock = ForkLock()
        self.step = b""
        self.counts: dict[str, int] = {}


def added_jids(running: JobContext, batch: str, name: str, rows: Sequence[bytes], key: bytes = b"") -> list[Jid]:
    """Return the id of the job for each row.

    running: the job that adds them.  name: of their class.  rows: arguments as JSON.  key: `secret_key`, for secrets.
    """
    step = _step(running)
    start = blake2b(ruby_json.encode([running.jid, batch, name]) + step + b"\n", digest_size=DIGEST_BYTES, key=key)
    added: AddedRows = vars(running).setdefault("added", AddedRows())  # at once, for threads
    jids: list[Jid] = []
    with added.lock:
        if added.step != step:
            added.step, added.counts = step, {}
        counts = added.counts
        for row in rows:
            digest = start.copy()
            digest.update(row)
            first = digest.hexdigest()
            count = counts[first] = counts.get(first, 0) + 1
            jids.append(Jid(first if count == 1 else _of_equal_row(first, count)))
    return jids


def secret_key(setup: Setup) -> bytes:
    """Return the key for digests of secrets, b"" where the setup has none and nothing can be encrypted."""
    return (encryption.keyed(setup, "jobs that a job adds to a batch") or "").encode()


def _of_equal_row(first: str, count: int) -> str:
    return blake2b(f"{first}:{count}".encode(), digest_size=DIGEST_BYTES).hexdigest()


def _step(running: JobContext) -> bytes:
    """Return where an iterable job is, as JSON; b"" for another job.

    Each item adds its rows once, also where two items have equal ones.
    """
    iteration: Any = running.iteration
    return b"" if iteration is None else ruby_json.encode(iteration.cursor)
