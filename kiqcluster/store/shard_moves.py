"""Shard moves: jobs on their way from one Redis to another.

Two servers have no common transaction, so a job moves in three steps:
1. stage    from its queue or set to the list kiq:moving:<shard> of its own Redis, from which nobody fetches
2. receive  into the other Redis, which remembers the number of the latest job of each run (receive_jobs.lua)
3. forget   from that list
Each step is one script.  The job is never where two workers could fetch it.  Whoever ends in between leaves jobs in the
list.  The next run begins with these, and what the other Redis has received is not written again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from kiqcluster.errors import RedisRefused
from kiqcluster.sidekiq.payload import new_jid
from kiqcluster.store.scripts import RECEIVE_JOBS, Call, Word, read_refusals, run_script
from kiqcluster.store.store import Store

__all__ = ["ShardMove", "staged_counts"]

PAGE_JOBS = 100  # that are received in one step
RECORD_SECONDS = 30 * 86_400  # for which a run that was ended early can be continued without writing a job twice
QUEUE = "queue"  # the place of a job that has no score


class _Staged(NamedTuple):
    """An entry of the list: of which run, its number there, and where the job goes.  score: "" in a queue."""

    raw: bytes
    run: str
    number: str
    place: str
    queue: str
    score: str
    payload: bytes

    @classmethod
    def read(cls, raw: bytes) -> _Staged:
        *header, payload = raw.split(b"\0", 5)
        run, number, place, queue, score = (word.decode(errors="surrogateescape") for word in header)
        return cls(raw, run, number, place, queue, score, payload)


class ShardMove:
    """A move of jobs to another shard.  Each run gives its jobs numbers, in the order in which they leave."""

    def __init__(self, source: Store, target: Store) -> None:
        self.to = target.name
        self.keys = (source.keys.moving, source.keys.moving_to(target.name))
        self._source = source
        self._target = target
        self._run = new_jid()
        self._number = 0

    def entry(self, payload: bytes, queue: str, place: str = QUEUE, score: float | None = None) -> bytes:
        """Return the entry of the list for a job.  place: queue, or the name of a set, with the score there."""
        self._number += 1
        at = "" if score is None else repr(score)
        header = "\0".join((self._run, str(self._number), place, queue, at))
        return header.encode(errors="surrogateescape") + b"\0" + payload

    def check(self) -> None:
        """Raise StoreError if the other shard does not answer: nothing should leave then."""
        self._target.call("EXISTS", self._target.keys.queues)

    def deliver(self) -> int:
        """Bring all staged jobs to the other shard, those of earlier runs as well; return how many.

        Two round trips here, and one there, per 100.  Raises StoreError; what was not received stays in the list.
        """
        done = 0
        while page := self._source.call("LRANGE", self.keys[1], -PAGE_JOBS, -1):
            for _, several in groupby(map(_Staged.read, reversed(page)), key=lambda each: each.run):
                jobs = list(several)
                received, refusal = self._receive(jobs)
                if received:
                    self._source.pipeline([("LREM", self.keys[1], -1, each.raw) for each in jobs[:received]])
                done += received
                if refusal:
                    raise RedisRefused(f"{refusal} (in the shard {self.to}; the job stays in {self.keys[1]})")
        return done

    def _receive(self, jobs: Sequence[_Staged]) -> tuple[int, str]:
        keys = [self._target.keys.moved(jobs[0].run), self._target.keys.queues]
        arguments: list[Word] = [RECORD_SECONDS]
        for job in jobs:
            is_queued = job.place == QUEUE
            key = self._target.keys.queue(job.queue) if is_queued else str(getattr(self._target.keys, job.place))
            if key not in keys:
                keys.append(key)
            arguments += [job.number, keys.index(key) + 1, job.queue, job.score, job.payload]
        received, refusal = run_script(self._target, Call(RECEIVE_JOBS, keys, arguments))
        (words,) = read_refusals(self._target, RECEIVE_JOBS, [refusal])
        return int(received), words


def staged_counts(store: Store) -> dict[str, int]:
    """Return shard → jobs that are on their way to it from this one, since a move that was ended early.

    One or two round trips.  Raises StoreError.
    """
    names = sorted(name.decode(errors="replace") for name in store.call("SMEMBERS", store.keys.moving))
    counts = store.pipeline([("LLEN", store.keys.moving_to(name)) for name in names]) if names else []
    return {name: count for name, count in zip(names, counts, strict=True) if count}
