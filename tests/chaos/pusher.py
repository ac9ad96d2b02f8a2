"""An application that goes on enqueuing whatever happens to Redis, and keeps books on what it was told."""

from __future__ import annotations

import threading
from collections import Counter
from random import Random
from typing import Any

from kiqcluster import Client
from kiqcluster.errors import NotReplicated, RedisRefused, RedisUnavailable, ReplyLost, StoreError
from kiqcluster.process.config import Config
from kiqcluster.process.runtime import Setup
from kiqcluster.store import Store
from tests.chaos.ledger import Ledger
from tests.kit import PAUSE, TIMEOUT_SECONDS

__all__ = ["Pusher"]

BULK_JOBS = 20  # jobs of every tenth push


class Pusher:
    """A thread that pushes, for a `with` block; it pushes nothing twice.

    certain: jids of jobs whose push returned.  unknown: of pushes whose reply was lost.  never: of those that were
    certainly not enqueued.  unconfirmed: stored, but not on as many replicas as were asked for.
    """

    def __init__(self, store: Store, rng: Random, *, queue: str = "default", wait_replicas: int = 0) -> None:
        self.certain: set[str] = set()
        self.unknown: set[str] = set()
        self.never: set[str] = set()
        self.unconfirmed: set[str] = set()
        self.errors: Counter[str] = Counter()
        self._client = Client(store, Setup(config=Config()))
        self._rng = rng
        self._queue = queue
        self._wait_replicas = wait_replicas
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pusher", daemon=True)

    def __enter__(self) -> Pusher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(TIMEOUT_SECONDS)
        assert not self._thread.is_alive()

    def check(self, ledger: Ledger) -> dict[str, Any]:
        """Assert that the jobs ran as their pushes say, once each; return the counts."""
        audit, begun = ledger.audit(self.certain), ledger.begun()
        assert audit.lost == set()
        assert audit.repeated == {}
        assert begun.keys() & self.never == set()
        assert audit.strangers <= self.unknown | self.unconfirmed
        assert {jid: times for jid, times in begun.items() if times > 1} == {}
        return {**audit.counts(), **self.counts(), "unknown that ran": len(begun.keys() & self.unknown)}

    def counts(self) -> dict[str, Any]:
        """Return the figures of a report."""
        return {"push errors": dict(self.errors), "unknown": len(self.unknown), "refused": len(self.never)}

    def _run(self) -> None:
        while not self._stopping.is_set():
            jids = [f"{self._rng.getrandbits(96):024x}" for _ in range(BULK_JOBS if self._rng.random() < 0.1 else 1)]
            try:
                self._push(jids)
            except ReplyLost as error:
                self._note(error)
                self.unknown |= set(jids if len(jids) == 1 else error.jids)
            except NotReplicated as error:
                self._note(error)
                self.unconfirmed |= set(error.jids)
            except (RedisUnavailable, RedisRefused) as error:
                self._note(error)
                self.never |= set(jids if len(jids) == 1 else ())
            PAUSE.wait(0.002)

    def _push(self, jids: list[str]) -> None:
        item = {"class": "Work", "queue": self._queue, "retry": True}
        work = self._rng.choice((0, 0, 0, 5))  # milliseconds
        if len(jids) == 1:
            self._client.push({**item, "args": [work], "jid": jids[0]}, wait_replicas=self._wait_replicas)
            self.certain.add(jids[0])
        else:
            bulk = self._client.push_bulk({**item, "args": [[work]] * len(jids)}, wait_replicas=self._wait_replicas)
            self.certain |= {jid for jid in bulk if jid is not None}

    def _note(self, error: StoreError) -> None:
        self.errors[type(error).__name__] += 1
        PAUSE.wait(0.02)  # as a caller would who is told that it does not work
